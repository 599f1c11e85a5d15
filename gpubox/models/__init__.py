"""Models: GGUF files, where they are found, how they are fetched."""
