"""What only the owner can decide, in the chat: one question, its keys, and a line for a reason or an answer."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Any, ClassVar

from textual import events
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical
from textual.content import Content
from textual.widgets import Input

from gpubox.agent.tools import Answer, OwnerQuestion
from gpubox.sanitize import reveal_hidden
from gpubox.tui import dialogs
from gpubox.tui.chat.diff_lines import FILE_TEXTS, diff_rows
from gpubox.tui.chat.markdown import cut_long_line
from gpubox.tui.styled_lines import StyledLine, styled_line, wrap
from gpubox.tui.widgets.lines import ScrollableLines

TITLES = {
    "network": "Network, once", "ask": "The model asks", "go_on": "Go on?", "test": "Tests",
    "permission": "Permission",
}  # fmt: skip
MAX_OPTIONS = 9
WHY_NOT = "why not? The model reads it. ⏎ without a word: a plain no"
ANSWER = "your answer"


class AnswerLine(Input):
    """One line. Enter passes it on at once: a letter typed right behind it belongs to the prompt."""

    def __init__(self, take: Callable[[str], None]) -> None:
        super().__init__(compact=True)
        self._take = take

    async def action_submit(self) -> None:
        self._take(self.value.strip())


class QuestionText(ScrollableLines, can_focus=False):
    """The text and the options. ``fitted`` is called whenever it is known anew whether all of it fits."""

    def __init__(self, fitted: Callable[[], None]) -> None:
        super().__init__()
        self._fitted = fitted

    def on_resize(self, event: events.Resize) -> None:
        self.call_later(self._fitted)  # after the lines were made for this width


class QuestionPane(Vertical, can_focus=True):
    """One question at a time; others wait. It never takes the focus: who writes a prompt goes on, and no letter of it
    answers."""

    DEFAULT_CSS = """
    QuestionPane {
        height: auto; max-height: 45%; border: round $turn-approval; padding: 0 1; display: none;
        background: $background; border-title-color: $foreground; border-title-style: bold;
        border-subtitle-color: $turn-approval;
        &:focus-within { border: round $line-focus; }
        &:focus { border: round $line-focus; }
        & ScrollableLines { max-height: 30vh; background: $background; }
        & Input { height: 1; background: $line; display: none; }
    }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("y", "yes", "Yes", show=False),
        Binding("n", "no", "No", show=False),
        Binding("o", "write", "Another answer", show=False),
        Binding("escape", "leave", "Back to the prompt", show=False),
        Binding("pagedown", "page(1)", show=False),
        Binding("pageup", "page(-1)", show=False),
        *(Binding(str(number), f"choose({number})", show=False) for number in range(1, MAX_OPTIONS + 1)),
    ]

    def __init__(self, answered: Callable[[], None]) -> None:
        """``answered`` is called after each answer."""
        super().__init__()
        self._answered = answered
        self.body = QuestionText(self._show_keys)
        self.line = AnswerLine(self.take_line)
        self.pending: list[tuple[OwnerQuestion, asyncio.Future[Answer], str]] = []
        """Each with its future answer and its title."""

    def compose(self) -> ComposeResult:
        yield self.body
        yield self.line

    @property
    def question(self) -> OwnerQuestion | None:
        return self.pending[0][0] if self.pending else None

    async def ask(self, question: OwnerQuestion, title: str = "") -> Answer:
        """The owner's answer. A cancelled question goes. ``title``: of a question of gpubox itself."""
        answer: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
        self.pending.append((question, answer, title or TITLES[question.kind]))
        if not self.screen.is_current:
            app: Any = self.app
            app.say("The chat has a question: c shows it.")
        self._show_next()
        try:
            return await answer
        finally:
            self.pending = [item for item in self.pending if item[1] is not answer]
            self._show_next()
            self._answered()

    def take_tab(self, typed_at: float) -> bool:
        """Takes the focus from the prompt while there is a question; a Tab right after a letter is a slip."""
        if self.display and time.monotonic() - typed_at >= dialogs.TYPING_PAUSE_SECONDS:
            self.screen.set_focus(self)
            if (question := self.question) and question.kind == "ask" and not question.options:
                self.action_write()
        return self.display

    # -- answers --------------------------------------------------------------------------------------

    def action_yes(self) -> None:
        if (question := self.question) and question.kind not in ("ask", "permission"):
            self._answer(Answer(True))

    def action_no(self) -> None:
        if (question := self.question) and question.kind == "permission":  # no agent reads why
            self._answer(Answer(False))
        else:
            self._open_line(WHY_NOT)

    def action_write(self) -> None:
        if (question := self.question) and question.kind == "ask":
            self._open_line(ANSWER)

    def action_choose(self, number: int) -> None:
        if (question := self.question) and number <= len(question.options):
            self._answer(Answer(True, question.options[number - 1]))

    def take_line(self, text: str) -> None:
        refuses = self.line.placeholder == WHY_NOT
        if text or refuses:
            self._answer(Answer(not refuses, text))

    def action_leave(self) -> None:
        """Gives the focus back; the question stays."""
        self.line.display = False
        self.screen.set_focus(self.screen.query_one("#composer"))
        self._show_keys()

    def action_page(self, pages: int) -> None:
        self.body.scroll_relative(y=pages * max(1, self.body.size.height - 1), animate=False)

    def _answer(self, answer: Answer) -> None:
        """Answers the question that is shown; the next one waits for its own Tab."""
        if self.pending and not self.pending[0][1].done():
            self.pending[0][1].set_result(answer)
        self.action_leave()

    def _open_line(self, placeholder: str) -> None:
        self.line.value, self.line.placeholder, self.line.display = "", placeholder, True
        self.screen.set_focus(self.line)
        self._show_keys()

    # -- drawing --------------------------------------------------------------------------------------

    def watch_has_focus(self, _has_focus: bool) -> None:
        super().watch_has_focus(_has_focus)
        self._show_keys()

    def _show_keys(self) -> None:
        question = self.question
        if question is None:
            return
        numbers = f"1-{min(len(question.options), MAX_OPTIONS)}"
        if self.line.display:
            text = "⏎ answers   esc back"
        elif self.has_focus:
            keys = {
                "ask": f"{numbers} chooses   o another answer   n no answer",
                "permission": f"{numbers} chooses   n no",
            }
            text = f"{keys.get(question.kind, 'y yes   n no')}   esc back"
        elif question.kind in ("ask", "permission"):
            text = f"tab, then {numbers if question.options else 'your answer'}"
        else:
            text = "tab, then y or n"
        self.border_subtitle = f"{text}   pgdn more" if self.body.max_scroll_y and not self.line.display else text

    def _show_next(self) -> None:
        if not self.is_attached:
            return
        if self.has_focus or self.line.display:
            self.action_leave()
        self.display = bool(self.pending)
        if question := self.question:
            waiting = f"   {len(self.pending) - 1} more" if len(self.pending) > 1 else ""
            self.border_title = Content(f"{self.pending[0][2]}{waiting}")
            self.body.make_again(lambda width: question_lines(question, width))
            self.refresh(layout=True)
            self._show_keys()
            self.call_after_refresh(self.body.make_again)  # a pane that was hidden is not always told its size


def question_lines(question: OwnerQuestion, width: int) -> list[StyledLine]:
    """The text and the options. Nothing in them is hidden: the owner decides by it."""
    rows: list[StyledLine] = []
    for text in question.text.strip("\n").split("\n"):
        rows += wrap(styled_line((reveal_hidden(cut_long_line(text.expandtabs(4))), "")), width)
    given = dict(question.call.arguments) if question.kind == "permission" and question.call else {}
    command = str(given.pop("command", ""))
    rows += _argument_rows("$ ", command if command not in question.text else "", width)
    for number, option in enumerate(question.options[:MAX_OPTIONS], 1):
        head = styled_line((f"{number}  ", "bold $primary"))
        rows += wrap(((reveal_hidden(cut_long_line(" ".join(option.split()))), ""),), width, head, (("   ", ""),))
    for name, value in given.items():
        if not (question.diff and name in FILE_TEXTS):
            rows += _argument_rows(f"{name}: ", value, width)
    return rows + (diff_rows(question.diff.rstrip("\n").split("\n"), "", width) if question.diff else [])


def _argument_rows(name: str, value: object, width: int) -> list[StyledLine]:
    lines = f"{name}{value}".split("\n") if value else []
    return [row for text in lines for row in wrap(((reveal_hidden(cut_long_line(text.expandtabs(4))), ""),), width)]
