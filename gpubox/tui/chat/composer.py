"""Where the owner writes: Enter sends, ctrl+j begins a new line, Up in an empty one takes the last prompt up again."""

from __future__ import annotations

from typing import ClassVar

from textual import events
from textual.binding import Binding, BindingType
from textual.message import Message
from textual.widgets import TextArea

NEW_LINE = ("ctrl+j", "shift+enter", "alt+enter")
MAX_ROWS = 10


class Composer(TextArea):
    """A few lines of text, as high as they are."""

    DEFAULT_CSS = """
    Composer {
        height: 3; border: round $line; padding: 0 1; background: $background; scrollbar-size-vertical: 1;
        border-title-color: $accent; border-subtitle-color: $quiet;
        &:focus { border: round $line-focus; background-tint: $foreground 0%; }
        & .text-area--cursor-line { background: $background; }
        & .text-area--placeholder { color: $quiet; }
    }
    """

    # A text area's own ctrl+y would redo.
    BINDINGS: ClassVar[list[BindingType]] = [Binding("ctrl+y", "screen.chat_copy_code", show=False)]

    class Sent(Message):
        """Enter was pressed on something."""

        def __init__(self, text: str) -> None:
            super().__init__()
            self.text = text

    class WantsLast(Message):
        """Up was pressed where nothing is written."""

    class WantsScroll(Message):
        """A page key was pressed: it is the chat that is meant."""

        def __init__(self, pages: int) -> None:
            super().__init__()
            self.pages = pages

    def __init__(self) -> None:
        super().__init__(
            "", soft_wrap=True, show_line_numbers=False, tab_behavior="focus", compact=False, id="composer",
            placeholder="Ask, or say what to write and run", highlight_cursor_line=False,
        )  # fmt: skip
        self.cursor_blink = False

    def put(self, text: str) -> None:
        """Writes ``text`` instead of what is there, the cursor behind it."""
        self.text = text
        self.move_cursor(self.document.end)
        self._fit()

    async def _on_key(self, event: events.Key) -> None:
        key = event.key
        if key == "enter":
            self._take(event)
            if self.text.strip():
                self.post_message(self.Sent(self.text.rstrip()))
        elif key in NEW_LINE:
            self._take(event)
            self.insert("\n")
        elif key == "up" and not self.text:
            self._take(event)
            self.post_message(self.WantsLast())
        elif key in ("pageup", "pagedown"):
            self._take(event)
            self.post_message(self.WantsScroll(-1 if key == "pageup" else 1))
        else:
            await super()._on_key(event)

    def _take(self, event: events.Key) -> None:
        event.stop()
        event.prevent_default()

    def on_text_area_changed(self) -> None:
        self._fit()

    def on_resize(self) -> None:
        self._fit()

    def _fit(self) -> None:
        rows = max(1, min(MAX_ROWS, self.app.size.height // 3, self.wrapped_document.height))
        if self.styles.height is None or self.styles.height.value != rows + 2:
            self.styles.height = rows + 2
