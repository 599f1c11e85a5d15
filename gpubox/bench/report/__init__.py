"""What a run comes to, and the shapes it is given in."""
