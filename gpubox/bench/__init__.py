"""Benchmarks: plans, runs stored item by item, statistics, and reports with intervals and provenance."""
