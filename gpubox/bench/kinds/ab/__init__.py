"""``ab``: which of two is faster, and whether the difference is significant."""
