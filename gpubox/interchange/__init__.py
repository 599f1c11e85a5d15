"""Profiles from other people's files, and profiles for other people's programs."""
