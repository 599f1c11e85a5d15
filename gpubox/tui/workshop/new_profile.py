"""The dialog that asks what a new profile is made of."""

from __future__ import annotations

from textual import events
from textual.app import ComposeResult
from textual.containers import Vertical
from textual.content import Content
from textual.message import Message
from textual.widgets import Static, TextArea

from gpubox.sanitize import sanitize_line
from gpubox.tui.dialogs import Dialog

ABOUT = "A .gguf file, hf:USER/REPO:QUANT, or a llama-server command line, pasted as it is."


class SourceText(TextArea):
    """Takes a pasted text of several lines. Enter confirms it."""

    class Confirmed(Message):
        """Enter was pressed."""

    async def _on_key(self, event: events.Key) -> None:
        if event.key == "enter":
            event.stop()
            event.prevent_default()
            self.post_message(self.Confirmed())
        else:
            await super()._on_key(event)


class SourceScreen(Dialog[str | None]):
    """Returns the source, ``None`` for esc or an empty text."""

    DEFAULT_CSS = """
    SourceScreen > Vertical { width: 96; max-width: 96%; height: auto; padding: 1 2; }
    SourceScreen Static { height: auto; margin-bottom: 1; color: $secondary; }
    SourceScreen #source-problem { color: $error; }
    SourceScreen TextArea {
        height: 8; border: none; padding: 0 1; background: $line; scrollbar-size-vertical: 1;
        & .text-area--cursor-line { background: $line; }
    }
    """
    BINDINGS = [("escape", "dismiss(None)", "Cancel")]  # noqa: RUF012

    def __init__(self, source: str = "", problem: str = "") -> None:
        super().__init__()
        self.problem = problem
        self.source = SourceText(
            source, soft_wrap=True, tab_behavior="focus", show_line_numbers=False, highlight_cursor_line=False
        )
        self.source.cursor_blink = False

    def compose(self) -> ComposeResult:
        with Vertical() as box:
            box.border_title, box.border_subtitle = "New profile", "⏎ goes on, esc cancels"
            yield Static(ABOUT, markup=False)
            if self.problem:
                yield Static(Content(sanitize_line(self.problem)), id="source-problem", markup=False)
            yield self.source

    def on_mount(self) -> None:
        self.set_focus(self.source)
        self.source.move_cursor(self.source.document.end)

    def on_source_text_confirmed(self) -> None:
        self.dismiss(self.source.text.strip() or None)
