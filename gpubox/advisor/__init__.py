"""Judges what runs: evidence -> one word, one sentence and the flags to change."""
