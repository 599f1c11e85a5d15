"""The one decision which of two is faster.

history.py   told from stored runs, by ranks
"""
