"""Hardware: one funnel per driver, and the processes of this host."""
