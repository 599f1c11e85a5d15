"""Benchmarks: plans, runs stored item by item, statistics, and reports with intervals and provenance.

kind.py               what a kind is: one object that verb, form, runner and reports are made from
benchmark.py          what the code of a kind does: items, execute, score
model.py              plan, target, item, result, run, and a Doubt about a number: the values on disk
plan_targets.py       the targets of a plan, refused before anything stops
overrides.py          the flags that a benchmark changes
plan_outline.py       what a plan will do, and how long it takes
plan_runner.py        runs a plan
course.py             which items come next, by the results so far
target_server.py      starts the server under test, restores the one before
recovery.py           restores it after a kill
interference.py       what disturbs an item: a Doubt for each cause that was seen
measured_request.py   one request, streamed and timed
questions.py          questions with fixed prompts, and the numbers of their replies
prompts.py            those prompts
endpoint.py           which server answers at an address
energy.py             energy per token
provenance.py         what was measured, and on which machine
run_store.py          the folder of a run
under_way.py          where the runs are, and which are executed now
events.py             what a run reports
stats.py              intervals, tests, bootstrap
saved_profile.py      the best of a run as a profile
trial_measurement.py  measures a trial in a minute
"""
