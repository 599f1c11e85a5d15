"""The rules, a small file for each subject. ``table.RULES`` lists them in the order in which they are shown."""
