"""The dashboard: one pane, one file."""
