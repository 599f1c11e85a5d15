"""The command line: every verb of the screen, with --json and exit codes."""
