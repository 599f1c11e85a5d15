"""May it write that? The diff, whole and scrollable, and three answers."""

from __future__ import annotations

import time

from textual import events
from textual.app import ComposeResult
from textual.containers import Vertical
from textual.content import Content
from textual.screen import ModalScreen
from textual.widgets import Static

from gpubox.agent.tools import ToolCall
from gpubox.sanitize import sanitize_line
from gpubox.tui.chat.card import diff_lines
from gpubox.tui.styled_lines import StyledLine, truncate_line
from gpubox.tui.widgets.scrollable_lines import ScrollableLines

ANSWERS = (("y", "yes, this once"), ("a", "yes, and all that follow in this chat"), ("n", "no"))
TYPING_PAUSE_SECONDS = 0.6
"""A yes counts so long after the question came and after the letter before it: the owner may be typing a prompt."""


class ApprovalScreen(ModalScreen[str]):
    """Returns ``yes``, ``all`` or ``no``. Nothing is allowed by Enter: it takes a letter, and not one of a word."""

    DEFAULT_CSS = """
    ApprovalScreen { align: center middle; background: $background 60%; }
    ApprovalScreen > Vertical {
        width: 110; max-width: 98%; height: auto; max-height: 96%; padding: 0 1; background: $panel;
        border: round $turn-approval; border-title-color: $foreground; border-title-style: bold;
        border-subtitle-color: $quiet;
    }
    ApprovalScreen Static { height: auto; margin-top: 1; }
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
        self._typed_at = time.monotonic()

    def compose(self) -> ComposeResult:
        self.view = ScrollableLines(self._lines)
        with Vertical() as box:
            path = sanitize_line(" ".join(str(self.call.arguments.get("path", "")).split()))[:60]
            box.border_title = Content(f"{sanitize_line(self.call.name)[:40]} {path}".rstrip())
            box.border_subtitle = Content(self._counts())
            yield self.view
            keys = [Content.assemble((key, "bold $primary"), " ", (words, "$quiet")) for key, words in ANSWERS]
            yield Static(Content("   ").join(keys), markup=False)

    def on_mount(self) -> None:
        self._typed_at = time.monotonic()
        self.view.focus()

    def on_key(self, event: events.Key) -> None:
        if not event.is_printable:
            return
        before, self._typed_at = self._typed_at, time.monotonic()
        if event.key in ("y", "a") and self._typed_at - before < TYPING_PAUSE_SECONDS:
            event.stop()

    def on_resize(self, event: events.Resize) -> None:
        # Not a fraction in the styles: the answers below a long diff have to stay on the screen.
        self.view.styles.max_height = max(3, event.size.height * 96 // 100 - 5)

    def _lines(self, width: int) -> list[StyledLine]:
        return [truncate_line(row, width) for row in diff_lines(self.diff, width)]

    def _counts(self) -> str:
        lines = self.diff.split("\n")
        plus = sum(line.startswith("+") and not line.startswith("+++") for line in lines)
        minus = sum(line.startswith("-") and not line.startswith("---") for line in lines)
        return f"+{plus:,} −{minus:,} lines" if plus or minus else ""
