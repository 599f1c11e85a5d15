"""Blocking work beside the screen."""
