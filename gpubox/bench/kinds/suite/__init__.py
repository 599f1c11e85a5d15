"""The 12-task comparison (13 rows) of five categories, with its rubric, its weights, and none of its scoring bugs.

Where a task cannot be scored on this box it is n/a (``None``), never 0.
"""
