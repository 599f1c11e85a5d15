"""Models: GGUF files, where they are on disk, and how they are downloaded."""
