"""The keys of what scrolls and has no cursor. Which keys they are stands in the registry of verbs."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from textual.widget import Widget as _Base
else:
    _Base = object  # no DOMNode: Textual looks for styles and bindings only in those


class ScrollKeys(_Base):
    """Mixed in before the widget that scrolls, which has ``bindings(Where.LISTS)``."""

    def action_down(self) -> None:
        self.scroll_down(animate=False)

    def action_up(self) -> None:
        self.scroll_up(animate=False)

    def action_top(self) -> None:
        self.scroll_home(animate=False)

    def action_bottom(self) -> None:
        self.scroll_end(animate=False)
