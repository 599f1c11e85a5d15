"""``speed``: TTFT, pp, tg and draft acceptance as a client of the server gets them."""
