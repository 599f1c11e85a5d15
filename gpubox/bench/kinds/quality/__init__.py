"""``quality``: how far the answers of quants and KV types are from those of a reference."""
