"""Reports of runs, comparisons and leaderboards, for terminals and files."""
