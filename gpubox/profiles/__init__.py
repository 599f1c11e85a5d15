"""Profiles: the frozen description of one llama-server launch, and its argv."""
