"""``tune``: finds the fastest flags of a profile that fit, with far fewer server starts than a sweep of every cell."""
