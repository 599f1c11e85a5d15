"""Which is faster: the one decision of ``ab``, ``sweep`` and ``tune``, and of stored runs.

cell_benchmark.py   what the kinds that compare cells have in common: items, course, answer
contest.py          which cell is started next, how often, and when it ends
starts.py           faster, slower, equal within a margin, or cannot tell, by server start
words.py            the answer as a sentence; what would tell it if nothing can: the whole command, and its time
report.py           the report of a comparison
past_runs.py        the same told from stored runs, by ranks; which of their launches are the same
"""
