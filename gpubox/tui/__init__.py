"""The screen. The only room that knows Textual."""
