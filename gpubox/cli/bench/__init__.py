"""The sub-verbs of ``gpubox bench``.

kinds.py         a verb for each kind, made from its ``Kind``
execution.py     runs a plan: its targets, its execution, its report
run_progress.py  the progress of a run
runs.py          stored runs: show, resume, save, delete
"""
