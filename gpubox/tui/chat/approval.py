"""Approval of a tool call: the whole diff, scrollable, and three answers. Several calls queue up."""

from __future__ import annotations

import asyncio
import time
from typing import Any

from textual import events
from textual.app import ComposeResult
from textual.containers import Vertical
from textual.content import Content
from textual.screen import Screen
from textual.widgets import Static

from gpubox.agent.tools import ToolCall
from gpubox.sanitize import sanitize_line
from gpubox.tui.chat.parts import diff_lines
from gpubox.tui.dialogs import Dialog
from gpubox.tui.styled_lines import truncate_line
from gpubox.tui.widgets.scrollable_lines import ScrollableLines

ANSWERS = (("y", "yes, this once"), ("a", "yes, and all later ones in this chat"), ("n", "no"))
TYPING_PAUSE_SECONDS = 0.6
"""A yes counts only this long after the question and after the last key: the user may be typing a prompt."""


class ApprovalScreen(Dialog[str]):
    """Returns ``yes``, ``all`` or ``no``. Enter allows nothing: it takes a letter that is not part of a word."""

    DEFAULT_CSS = """
    ApprovalScreen > Vertical { width: 110; height: auto; padding: 0 1; border: round $turn-approval; }
    ApprovalScreen Static { margin-top: 1; }
    ApprovalScreen ScrollableLines { background: $panel; }
    """
    BINDINGS = [  # noqa: RUF012
        ("y", "dismiss('yes')", "Yes"),
        ("a", "dismiss('all')", "All"),
        ("n,escape", "dismiss('no')", "No"),
    ]

    def __init__(self, call: ToolCall, diff: str) -> None:
        super().__init__()
        self.call, self.diff = call, diff
        self._last_key_at = time.monotonic()

    def compose(self) -> ComposeResult:
        self.view = ScrollableLines(lambda width: [truncate_line(row, width) for row in diff_lines(self.diff, width)])
        with Vertical() as box:
            path = sanitize_line(" ".join(str(self.call.arguments.get("path", "")).split()))[:60]
            box.border_title = Content(f"{sanitize_line(self.call.name)[:40]} {path}".rstrip())
            box.border_subtitle = Content(self._change_counts())
            yield self.view
            keys = [Content.assemble((key, "bold $primary"), " ", (label, "$quiet")) for key, label in ANSWERS]
            yield Static(Content("   ").join(keys), markup=False)

    def on_mount(self) -> None:
        self._last_key_at = time.monotonic()
        self.view.focus()

    def on_key(self, event: events.Key) -> None:
        if not event.is_printable:
            return
        last, self._last_key_at = self._last_key_at, time.monotonic()
        if event.key in ("y", "a") and self._last_key_at - last < TYPING_PAUSE_SECONDS:
            event.stop()

    def on_resize(self, event: events.Resize) -> None:
        # A percentage in the styles would push the answers below a long diff off the screen.
        self.view.styles.max_height = max(3, event.size.height * 96 // 100 - 5)

    def _change_counts(self) -> str:
        lines = self.diff.split("\n")
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
