"""``soak``: minutes of an agent-like load. Does the speed hold, does memory grow, does tg go in cycles?"""
