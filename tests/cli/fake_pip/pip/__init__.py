"""Stands in for pip in the tests of engine builds, by way of PYTHONPATH. A real build takes ten minutes."""
