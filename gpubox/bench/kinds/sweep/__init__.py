"""One profile over a grid of flags: which cell loads, which is fastest, and by how sure a margin."""
