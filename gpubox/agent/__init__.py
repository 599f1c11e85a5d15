"""The agent loop: think, run code, look, again. Knows a LlamaClient and tools; no screen, no file."""
