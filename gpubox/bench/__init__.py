"""Benchmarks: planned, measured under guard, kept as they come, reported with intervals and provenance."""
