"""One line of text that is asked for."""

from __future__ import annotations

from textual import on
from textual.app import ComposeResult
from textual.containers import Vertical
from textual.content import Content
from textual.screen import ModalScreen
from textual.widgets import Input, Static


class PromptScreen(ModalScreen[str | None]):
    """Returns what was written; ``None`` for esc and for nothing."""

    DEFAULT_CSS = """
    PromptScreen { align: center middle; background: $background 60%; }
    PromptScreen > Vertical {
        width: 72; max-width: 96%; height: auto; padding: 1 2; background: $panel;
        border: round $line-focus; border-title-color: $foreground; border-title-style: bold;
        border-subtitle-color: $quiet;
    }
    PromptScreen Static { height: auto; margin-bottom: 1; color: $secondary; }
    PromptScreen Input { height: 1; background: $line; }
    """
    BINDINGS = [("escape", "dismiss(None)", "Cancel")]  # noqa: RUF012

    def __init__(self, title: str, value: str, body: str = "") -> None:
        super().__init__()
        self.question, self.value, self.body = title, value, body

    def compose(self) -> ComposeResult:
        with Vertical() as box:
            box.border_title = Content(self.question)
            box.border_subtitle = "⏎ takes it, esc leaves it"
            if self.body:
                yield Static(self.body, markup=False)
            yield Input(self.value, compact=True, select_on_focus=True)

    def on_mount(self) -> None:
        self.set_focus(self.query_one(Input))  # at once: what is typed right away is meant for it

    @on(Input.Submitted)
    def _taken(self, event: Input.Submitted) -> None:
        self.dismiss(event.value.strip() or None)
