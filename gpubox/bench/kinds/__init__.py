"""The kinds of benchmark: one package each."""
