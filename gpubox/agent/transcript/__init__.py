"""Chats on disk: one append-only JSON Lines file each, read back as a tree of turns."""
