"""Engines: which llama-server binaries there are, and what each says it accepts."""
