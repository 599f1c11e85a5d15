"""Benchmarks: plans, runs stored item by item, statistics, and reports with intervals and provenance.

kind.py               what a kind is: one object that verb, form, runner and reports are made from
benchmark.py          what the code of a kind does: items and their course, execute, score
model.py              plan, target, item, result, run, and a Doubt about a number: the values on disk
overrides.py          the targets of a plan, and the flags that a benchmark changes
plan_outline.py       what a plan will do, and how long it takes
plan_runner.py        runs a plan
target_server.py      starts the server under test, restores the one before, also after a kill
interference.py       what disturbs an item: a Doubt for each cause that was seen
measured_request.py   one request, streamed and timed; its energy
questions.py          questions with fixed prompts, and the numbers of their replies
prompts.py            those prompts
provenance.py         what was measured, and on which machine
run_store.py          the folder of a run
under_way.py          where the runs are, and which are executed now
events.py             what a run reports
stats.py              intervals, tests, bootstrap
saved_profile.py      the best of a run as a profile
trial_measurement.py  measures a trial in a minute
"""
