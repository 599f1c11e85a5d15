"""The prompt box: Enter sends, ctrl+j starts a new line, Up in an empty box edits the last prompt.

While a list of suggestions is shown, the arrows, Tab, Enter and esc are about it.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, ClassVar

from textual import events
from textual.binding import Binding, BindingType
from textual.message import Message
from textual.widgets import TextArea

from gpubox.agent.files_named import pasted_image
from gpubox.tui.dialogs import NEW_LINE_KEYS

if TYPE_CHECKING:
    from gpubox.tui.chat.suggestions import Suggestions

SCREEN_KEYS = {
    "up": "screen.chat_last", "tab": "screen.tab", "pageup": "screen.page(-1)", "pagedown": "screen.page(1)",
}  # fmt: skip
"""Keys that are about what stands above the box; Up only in an empty one."""
MAX_ROWS = 10


class Composer(TextArea):
    """A text area that is as high as its text."""

    DEFAULT_CSS = """
    Composer {
        height: 3; border: round $line; padding: 0 1; background: $background; scrollbar-size-vertical: 1;
        border-title-color: $accent; border-subtitle-color: $quiet;
        &:focus { border: round $line-focus; background-tint: $foreground 0%; }
        & .text-area--cursor-line { background: $background; }
        & .text-area--placeholder { color: $quiet; }
    }
    """
    # TextArea binds ctrl+y to redo, ctrl+d to delete.
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("ctrl+y", "screen.command('copy_code')", show=False),
        Binding("ctrl+d", "screen.command('diff')", show=False),
    ]

    class Submitted(Message):
        """Enter was pressed; ``text`` may be empty."""

        def __init__(self, text: str) -> None:
            super().__init__()
            self.text = text

    def __init__(self, suggestions: Suggestions) -> None:
        super().__init__(
            "", soft_wrap=True, show_line_numbers=False, tab_behavior="focus", compact=False, id="composer",
            placeholder="Ask, or say what to write and run   / commands   @ files", highlight_cursor_line=False,
        )  # fmt: skip
        self.suggestions = suggestions
        self.cursor_blink = False
        self.typed_at = float("-inf")
        """When the text was last changed."""

    def set_text(self, text: str) -> None:
        self.text = text
        self.move_cursor(self.document.end)
        self._fit_height()

    @property
    def before_cursor(self) -> str:
        return self.get_text_range((0, 0), self.cursor_location)

    async def _on_key(self, event: events.Key) -> None:
        if self.suggestions.display and self._suggested(event.key):
            pass
        elif event.key == "enter":
            self.post_message(self.Submitted(self.text.rstrip()))
        elif event.key in NEW_LINE_KEYS:
            self.insert("\n")
        elif event.key in SCREEN_KEYS and not (event.key == "up" and self.text):
            await self.run_action(SCREEN_KEYS[event.key])
        else:
            await super()._on_key(event)
            return
        event.stop()
        event.prevent_default()

    def _suggested(self, key: str) -> bool:
        """Does what ``key`` means to the suggestions; whether it means anything."""
        suggestions = self.suggestions
        if key in ("up", "down"):
            suggestions.move_cursor(suggestions.cursor + (1 if key == "down" else -1))
        elif key in ("tab", "enter"):
            completed = suggestions.completed(self.before_cursor)
            if key == "enter" and completed.rstrip() == self.before_cursor:  # it is typed whole: Enter sends it
                suggestions.close(self.text)
                return False
            self.replace(completed, (0, 0), self.cursor_location)
            suggestions.close(self.text)
            if key == "enter" and completed.startswith("/") and not completed.endswith(" "):
                self.post_message(self.Submitted(completed))
        elif key == "escape":
            suggestions.close(self.text)
        return key in ("up", "down", "tab", "enter", "escape")

    async def _on_paste(self, event: events.Paste) -> None:
        if image := pasted_image(event.text):  # a terminal pastes the path of what was dropped on it
            event.prevent_default()
            self.insert(image)

    def on_text_area_changed(self) -> None:
        self.typed_at = time.monotonic()
        self._fit_height()
        self.suggestions.offer(self.text, self.before_cursor)

    def on_resize(self) -> None:
        self._fit_height()

    def _fit_height(self) -> None:
        rows = max(1, min(MAX_ROWS, self.app.size.height // 3, self.wrapped_document.height))
        if self.styles.height is None or self.styles.height.value != rows + 2:
            self.styles.height = rows + 2
