"""The line that filters a list or the log: hidden until it is opened, and again when it is left empty."""

from __future__ import annotations

from textual.widget import Widget
from textual.widgets import Input


class FilterLine(Input):
    """Filters ``view``, which gets the focus back."""

    def __init__(self, name: str, placeholder: str, view: Widget) -> None:
        super().__init__(placeholder=placeholder, id=name, compact=True, select_on_focus=False)
        self.view = view
        self.display = False

    def open(self) -> None:
        self.display = True
        # Not Widget.focus(), which waits a turn: letters typed right behind "/" would reach the view.
        self.screen.set_focus(self)

    def close(self) -> bool:
        """Shows everything again. Returns False if nothing was filtered."""
        if not self.display and not self.value:
            return False
        self.value = ""
        self.display = False
        self.screen.set_focus(self.view)
        return True

    async def action_submit(self) -> None:
        # Not by a message, which is handled a turn later: a key typed right behind Enter would reach this line.
        self.screen.set_focus(self.view)
        self.display = bool(self.value)
