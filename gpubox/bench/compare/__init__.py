"""Which is faster: the one decision of ``ab``, ``sweep`` and ``tune``, and of stored runs.

cell_benchmark.py   what the kinds that compare cells have in common: items, course, answer
contest.py          which cell is started next, and when it ends
effects.py          how fast cells should be that were never started
starts.py           compares speeds by server start
judge.py            faster, slower, equal within a margin, or cannot tell
words.py            the answer as a sentence
settling.py         what would tell it if nothing can: the whole command, and its time
report.py           the report of a comparison
load_failures.py    which failures to load are a result of a cell's flags
history.py          the same told from stored runs, by ranks
"""
