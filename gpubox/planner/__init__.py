"""Predicts the memory of a launch before it: a Profile and a GGUF's header -> a MemoryPlan."""
