"""``suite``: the article's comparison of 12 tasks in 13 rows and five groups, without its scoring bugs.

A task that cannot be scored on this box is n/a (``None``), never 0.
"""
