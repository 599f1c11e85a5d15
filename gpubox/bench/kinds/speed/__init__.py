"""How fast the served path is."""
