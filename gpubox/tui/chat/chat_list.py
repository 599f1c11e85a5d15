"""The chats, the one that changed last first: search by name and by what was said, rename, delete."""

from __future__ import annotations

from collections.abc import Hashable
from typing import TYPE_CHECKING, ClassVar

from textual import on
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical
from textual.message import Message
from textual.widgets import Input

from gpubox.tui.formatting import time_or_date
from gpubox.tui.styled_lines import StyledLine, cell_width, pad_line, sanitize_to_width, styled_line
from gpubox.tui.widgets.cursor_rows import CursorRows

if TYPE_CHECKING:
    from gpubox.agent.transcript.chat_files import ChatSummary


class ChatRows(CursorRows["ChatSummary"]):
    """The lines. Enter opens one."""

    EMPTY_TEXT = "No chat yet."
    CURSOR_RETURNS_TO_TOP = False
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("r", "rename", show=False),
        Binding("x,delete", "remove", show=False),
    ]

    class Wanted(Message):
        """Something other than opening is wanted of a chat: ``rename`` or ``remove``."""

        def __init__(self, what: str, head: ChatSummary) -> None:
            super().__init__()
            self.what, self.head = what, head

    current = ""
    """The chat that is open."""

    def make_row(self, value: ChatSummary, width: int) -> StyledLine:
        mark = ("● ", "$primary") if value.name == self.current else ("✗ ", "$error") if value.problem else ("  ", "")
        at = time_or_date(value.changed_at)
        names = max(12, min(28, width // 2))
        if width < 48:
            name = styled_line(mark, (sanitize_to_width(value.name, width - len(at) - 4), "bold"))
            return (*pad_line(name, width - len(at) - 1), (f" {at}", "$quiet"))
        words = value.problem or value.title
        head = styled_line(mark, (sanitize_to_width(value.name, names - 3), "bold"))
        left = (*pad_line(head, names), (sanitize_to_width(words, width - names - len(at) - 8), "$secondary"))
        right = styled_line((f"{value.turns:>4} ", "$quiet"), (f" {at}", "$quiet"))
        return (*pad_line(left, width - cell_width(right)), *right)

    def key(self, value: ChatSummary) -> Hashable:
        return value.name

    def action_rename(self) -> None:
        if self.value:
            self.post_message(self.Wanted("rename", self.value))

    def action_remove(self) -> None:
        if self.value:
            self.post_message(self.Wanted("remove", self.value))


class ChatList(Vertical):
    """The rows under a search line."""

    DEFAULT_CSS = """
    ChatList {
        width: 40%; min-width: 40; height: 1fr; border: round $line; padding: 0 1; background: $background;
        border-title-color: $secondary; border-title-style: bold; border-subtitle-color: $quiet;
        &:focus-within { border: round $line-focus; border-title-color: $foreground; }
        & Input { height: 1; background: $panel; margin-bottom: 1; }
    }
    """

    class Searched(Message):
        """Another text is looked for."""

    def __init__(self) -> None:
        super().__init__(id="chats")
        self.search = Input(placeholder="search in all chats", id="chat-search", compact=True, select_on_focus=False)
        self.rows = ChatRows()
        self.border_title = "Chats"
        self.border_subtitle = "⏎ open  r rename  x delete  / search"

    def compose(self) -> ComposeResult:
        yield self.search
        yield self.rows

    def take(self, chat_summaries: tuple[ChatSummary, ...], current: str) -> None:
        """Shows ``chat_summaries``."""
        if self.rows.current != current:
            self.rows.current = current
            self.rows.redraw()
        self.rows.show_values(chat_summaries)

    def find(self) -> None:
        """The keys go to the search line."""
        self.screen.set_focus(self.search)

    @on(Input.Changed, "#chat-search")
    def _changed(self) -> None:
        self.post_message(self.Searched())

    @on(Input.Submitted, "#chat-search")
    def _submitted(self) -> None:
        self.screen.set_focus(self.rows)
