"""The server: its process, its state, its HTTP client, its log."""
