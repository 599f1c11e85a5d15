"""The workshop: change a profile, try the change, compare two profiles."""
