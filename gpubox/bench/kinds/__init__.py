"""The kinds of benchmark, a package each: its options, how it executes and scores an item, and its report."""
