"""The rules, a small file for each subject.

table.py           all rules, the most urgent first; a new rule is a file and a line there
mapped_weights.py  weights that the CPU computes with, but that are not in RAM
context.py         a context far larger than what is used of it
kv_types.py        cache types without attention in a CUDA build; f16 for Qwen3.5-like models
drafts.py          drafts that are rejected too often, thinking beside MTP
rereads.py         prompts that a hybrid or SWA model reads again
restored_slots.py  slots whose restored states are cleared by the next task
machine.py         threads, PCIe, other programs in VRAM
exposure.py        a server that everybody in the network may use
engine_fixes.py    errors that a newer build of llama.cpp no longer has
"""
