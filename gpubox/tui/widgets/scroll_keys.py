"""The j, k, g and G keys of widgets that scroll and have no cursor."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from textual.widget import Widget as _Base
else:
    _Base = object  # Textual inherits styles and bindings along the first base that is a DOMNode: not this one


class ScrollKeys(_Base):
    """Base class before the scrolling widget; its BINDINGS must have ``bindings(Scope.LISTS)``."""

    def action_down(self) -> None:
        self.scroll_down(animate=False, immediate=True)  # later, keys pressed in a row would be lost

    def action_up(self) -> None:
        self.scroll_up(animate=False, immediate=True)

    def action_top(self) -> None:
        self.scroll_home(animate=False)

    def action_bottom(self) -> None:
        self.scroll_end(animate=False)
