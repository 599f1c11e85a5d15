"""What screens are made of. A widget draws what it is given; it never fetches."""
