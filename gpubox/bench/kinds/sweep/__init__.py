"""``sweep``: one profile over a grid of flags. Which cells load, which is fastest, and which are within noise of it."""
