"""The chat pane: how a turn of the agent looks, and what the owner can do with it."""
