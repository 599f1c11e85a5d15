"""Asks the GPU drivers and the kernel: one funnel for each. No package above reads them by itself.

gpu.py          the readings of a card, the same for every manufacturer
nvml.py         one reading of all cards
nvml_card.py    the queries about one NVIDIA card
nvml_reader.py  continuous readings by a thread; lost and returned cards
sysfs.py        AMD and Intel cards, GPUs in the processor, and the processes on them
host.py         memory and cores of this machine, and what one process uses of them
process.py      processes by identity, marker and port
"""
