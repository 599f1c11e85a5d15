"""The advice on the screen: one line on the dashboard, and the list behind the key A."""
