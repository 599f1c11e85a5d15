"""Approval of a tool call: the whole diff, scrollable, and three answers. Several calls queue up."""

from __future__ import annotations

import asyncio
from typing import Any

from textual import events
from textual.app import ComposeResult
from textual.binding import Binding
from textual.screen import Screen

from gpubox.agent.tools import ToolCall
from gpubox.sanitize import sanitize_line
from gpubox.tui.chat.turn_parts import diff_lines
from gpubox.tui.dialogs import QuestionScreen
from gpubox.tui.styled_lines import truncate_line
from gpubox.tui.widgets.lines import ScrollableLines

ANSWERS = (("n", "no", "no"), ("y", "yes, this once", "yes"), ("a", "yes, and all later ones in this chat", "all"))


class ApprovalScreen(QuestionScreen):
    """Returns ``yes``, ``all`` or ``no``; ``None`` for esc."""

    DEFAULT_CSS = """
    ApprovalScreen > Vertical { width: 110; padding: 0 1; border: round $turn-approval; }
    ApprovalScreen OptionList { margin-top: 1; }
    ApprovalScreen ScrollableLines { background: $panel; }
    """
    BINDINGS = [  # noqa: RUF012
        Binding("pageup", "scroll(-1)", "Page up", priority=True),
        Binding("pagedown", "scroll(1)", "Page down", priority=True),
    ]
    UNASKED = True

    def __init__(self, call: ToolCall, diff: str) -> None:
        path = sanitize_line(" ".join(str(call.arguments.get("path", "")).split()))[:60]
        title = f"{sanitize_line(call.name)[:40]} {path}".rstrip()
        super().__init__(f"{title}  {_change_counts(diff)}".rstrip(), "", *ANSWERS)
        self.diff = diff

    def compose_body(self) -> ComposeResult:
        self.view = ScrollableLines(lambda width: [truncate_line(row, width) for row in diff_lines(self.diff, width)])
        yield self.view

    def action_scroll(self, pages: int) -> None:
        """Scrolls the diff."""
        self.view.scroll_relative(y=pages * max(1, self.view.size.height - 1), animate=False)

    def on_resize(self, event: events.Resize) -> None:
        # A percentage in the styles would push the answers below a long diff off the screen.
        self.view.styles.max_height = max(3, event.size.height * 96 // 100 - 7)


def _change_counts(diff: str) -> str:
    lines = diff.split("\n")
    added = sum(line.startswith("+") and not line.startswith("+++") for line in lines)
    removed = sum(line.startswith("-") and not line.startswith("---") for line in lines)
    return f"+{added:,} −{removed:,} lines" if added or removed else ""


class ApprovalQueue:
    """Asks for one approval at a time, while ``screen`` is in front."""

    def __init__(self, screen: Screen[Any]) -> None:
        self.screen = screen
        self.pending: list[tuple[ToolCall, str, asyncio.Future[str]]] = []
        """Tool call, diff and the future answer."""
        self.shown: ApprovalScreen | None = None

    async def ask(self, call: ToolCall, diff: str) -> str:
        """Waits for the user's answer: ``yes``, ``all`` or ``no``."""
        answer: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self.pending.append((call, diff, answer))
        if not self.screen.is_current:
            self.screen.notify("The chat needs your approval to write a file.", markup=False)
        self.show_next()
        try:
            return await answer
        finally:
            self.pending = [item for item in self.pending if item[2] is not answer]
            if not answer.done() or answer.cancelled():
                self._close_shown()

    def show_next(self) -> None:
        """Shows the next question, unless one is shown or another screen is in front."""
        # An answered question stays in the list until its task has read the answer.
        waiting = [item for item in self.pending if not item[2].done()]
        if self.shown or not waiting or not self.screen.is_current:
            return
        call, diff, future = waiting[0]

        def take(answer: str | None) -> None:
            self.shown = None
            if not future.done():
                future.set_result(answer or "no")
            self.screen.call_later(self.show_next)

        self.shown = ApprovalScreen(call, diff)
        self.screen.app.push_screen(self.shown, take)

    def _close_shown(self) -> None:
        shown, self.shown = self.shown, None
        if shown and shown.is_current:
            shown.dismiss("no")
