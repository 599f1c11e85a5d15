"""The Bench screen: runs, their reports, and what starts them.

bench_screen.py  the screen: the list, the pane of what is selected, and what their keys do
run_pane.py      the list of runs, and the pane: a report, a comparison, the leaderboard, the active run
tune_lines.py    the picture of a tune that is under way
plan_form.py     the form that plans a run
bench_runs.py    the runs of this machine; starts and stops their processes
"""
