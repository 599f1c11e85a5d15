"""The question whether a tool may write, in the chat: the whole diff and three answers. Several calls queue up."""

from __future__ import annotations

import asyncio
import time
from typing import Any, ClassVar

from textual.binding import Binding, BindingType

from gpubox.agent.tools import Question
from gpubox.sanitize import sanitize_line
from gpubox.tui import dialogs
from gpubox.tui.chat.turn_parts import diff_lines
from gpubox.tui.styled_lines import wrap_text
from gpubox.tui.widgets.lines import TitledPane

UNFOCUSED = "tab, then y or n"
ANSWERS = "y yes   n no   a yes to all in this chat   esc back"
"""The keys that answer, once the owner has moved the focus here."""


class ApprovalPane(TitledPane):
    """One question at a time. It never takes the focus: who writes a prompt goes on, and no letter of it answers."""

    DEFAULT_CSS = """
    ApprovalPane {
        height: auto; max-height: 45%; min-height: 4; border: round $turn-approval; display: none;
        border-title-color: $foreground; border-subtitle-color: $turn-approval;
        &:focus { border: round $line-focus; }
    }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("y", "answer('yes')", "Yes", show=False),
        Binding("n", "answer('no')", "No", show=False),
        Binding("a", "answer('all')", "Yes, and all later ones", show=False),
        Binding("escape", "leave", "Back to the prompt", show=False),
    ]

    def __init__(self) -> None:
        super().__init__()
        self.border_subtitle = UNFOCUSED
        self.pending: list[tuple[Question, str, asyncio.Future[str]]] = []
        """Question, folder and the future answer."""

    async def ask(self, question: Question, folder: str) -> str:
        """Asks whether a call may write into ``folder``; returns the answer: ``yes``, ``all`` or ``no``."""
        answer: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self.pending.append((question, folder, answer))
        if not self.screen.is_current:
            app: Any = self.app
            app.say("The chat asks whether a file may be written: c shows it.")
        self._show_next()
        try:
            return await answer
        finally:
            self.pending = [item for item in self.pending if item[-1] is not answer]
            self._show_next()

    def take_tab(self, typed_at: float) -> bool:
        """Takes the focus from the prompt while there is a question; a Tab right after a letter is a slip."""
        if self.display and time.monotonic() - typed_at >= dialogs.TYPING_PAUSE_SECONDS:
            self.screen.set_focus(self)
        return self.display

    def action_answer(self, answer: str) -> None:
        """Answers the question that is shown; the next one waits for its own Tab."""
        if self.pending and not self.pending[0][-1].done():
            self.pending[0][-1].set_result(answer)
        self.action_leave()

    def action_leave(self) -> None:
        """Gives the focus back."""
        self.screen.set_focus(self.screen.query_one("#composer"))

    def watch_has_focus(self, _has_focus: bool) -> None:
        super().watch_has_focus(_has_focus)
        self.border_subtitle = ANSWERS if _has_focus else UNFOCUSED

    def _show_next(self) -> None:
        if not self.is_attached:
            return
        if self.has_focus:
            self.action_leave()
        self.display = bool(self.pending)
        if self.pending:
            question, folder, _ = self.pending[0]
            call, diff = question.call, question.text
            path = sanitize_line(" ".join(str(call.arguments.get("path", "") if call else "").split()))[:60]
            name = f"May it write?  {sanitize_line(call.name if call else '')[:40]} {path}".rstrip()
            self.put(f"{name}  {_change_counts(diff)}".rstrip(),
                     lambda width: [*wrap_text(f"in {folder}", width, "bold"), *diff_lines(diff, width)])  # fmt: skip
            self.refresh(layout=True)
            self.call_after_refresh(self.remake)  # a pane that was hidden is not always told its size


def _change_counts(diff: str) -> str:
    lines = diff.split("\n")
    added = sum(line.startswith("+") and not line.startswith("+++") for line in lines)
    removed = sum(line.startswith("-") and not line.startswith("---") for line in lines)
    return f"+{added:,} −{removed:,} lines" if added or removed else ""
