"""A question with two or three answers, each with its key."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from textual import events
from textual.app import ComposeResult
from textual.containers import Vertical
from textual.content import Content
from textual.screen import ModalScreen
from textual.widgets import OptionList, Static
from textual.widgets.option_list import Option


@dataclass(frozen=True, slots=True)
class DialogAnswer:
    """One answer: its key, its words, and the value the question returns."""

    key: str
    words: str
    value: str


class QuestionScreen(ModalScreen[str | None]):
    """Returns the value of the answer; ``None`` for esc. The first answer is the safe one."""

    DEFAULT_CSS = """
    QuestionScreen { align: center middle; background: $background 60%; }
    QuestionScreen > Vertical {
        width: 72; max-width: 96%; height: auto; max-height: 96%; padding: 1 2;
        border: round $line-focus; background: $panel; border-title-color: $foreground; border-title-style: bold;
    }
    QuestionScreen Static { height: auto; margin-bottom: 1; }
    QuestionScreen OptionList { height: auto; border: none; padding: 0; background: $panel; }
    QuestionScreen OptionList:focus { border: none; background-tint: $foreground 0%; }
    QuestionScreen OptionList:focus > .option-list--option-highlighted {
        background: $line; color: $foreground; text-style: none;
    }
    """
    BINDINGS = [("escape", "dismiss(None)", "Cancel")]  # noqa: RUF012

    def __init__(self, title: str, body: str, answers: Sequence[DialogAnswer]) -> None:
        super().__init__()
        self.question, self.body, self.answers = title, body, answers

    def compose(self) -> ComposeResult:
        with Vertical() as box:
            box.border_title = Content(self.question)  # a plain text would be read as markup
            yield Static(self.body, markup=False)
            yield OptionList(*[self._option(answer) for answer in self.answers], markup=False)

    def on_mount(self) -> None:
        self.query_one(OptionList).focus()

    def on_key(self, event: events.Key) -> None:
        for answer in self.answers:
            if event.key == answer.key:
                event.stop()
                self.dismiss(answer.value)

    def on_option_list_option_selected(self, event: OptionList.OptionSelected) -> None:
        self.dismiss(event.option_id)

    def _option(self, answer: DialogAnswer) -> Option:
        return Option(Content.assemble((f"{answer.key}  ", "bold $primary"), answer.words), id=answer.value)
