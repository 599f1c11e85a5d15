"""Which of two is faster, and whether that can be said at all."""
