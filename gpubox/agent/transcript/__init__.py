"""Chats on disk: one JSONL file each, appended as things happen, read back as a tree of turns."""
