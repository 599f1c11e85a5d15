"""Predicts the memory of a launch before it is started, and judges whether it fits.

plan.py          the predicted memory, as values
verdict.py       does it fit? the one judgement of a plan, and its words
planner.py       profile -> plan: header, flags, devices, compute buffers
launch_flags.py  the flags that decide memory, with llama-server's defaults (pure)
model_shape.py   layers, heads, windows and states of a model, from its header (pure)
placement.py     which device each layer and tensor goes to (pure)
formula.py       weights, caches and drafts by device (pure)
compute.py       compute buffers: measured, by law, or estimated (pure)
assembly.py      formula, compute buffers and a dry run -> plan
devices.py       which devices an engine has, the driver's card of each, and what is free
dry_run.py       asks the engine for its memory table, and kills it before it loads
measured.py      what dry and real runs showed, on disk
solve.py         the value of a flag with which it fits
supervisors.py   makes every Supervisor above `server`: each refuses a start that would certainly not fit
finder.py        models on this machine and on Hugging Face, planned from their headers
"""
