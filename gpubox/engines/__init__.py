"""Engines: which llama-server binaries there are, and which flags each accepts."""
