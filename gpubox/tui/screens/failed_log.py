"""The log of the last start that failed, or of the server that died: the pane shows what was started since."""

from __future__ import annotations

from textual.app import ComposeResult
from textual.containers import Vertical
from textual.screen import ModalScreen
from textual.widgets import Static

from gpubox.sanitize import sanitize_line
from gpubox.tui.dashboard.log import LogView


class FailedLogScreen(ModalScreen[None]):
    """esc or q closes it."""

    DEFAULT_CSS = """
    FailedLogScreen { align: center middle; background: $background 60%; }
    FailedLogScreen > Vertical {
        width: 96%; height: 90%; padding: 0 1; background: $panel; border: round $line-focus;
        border-title-color: $foreground; border-title-style: bold; border-subtitle-color: $quiet;
    }
    FailedLogScreen Static { height: auto; max-height: 3; color: $error; }
    """
    BINDINGS = [("escape,q", "dismiss", "Close")]  # noqa: RUF012

    def __init__(self, said: str, lines: list[str]) -> None:
        super().__init__()
        self.said, self.lines = said, lines

    def compose(self) -> ComposeResult:
        with Vertical() as box:
            box.border_title, box.border_subtitle = "Log of the last failure", "esc closes"
            yield Static(sanitize_line(self.said), markup=False)
            yield LogView()

    def on_mount(self) -> None:
        view = self.query_one(LogView)
        view.focus()
        self.call_after_refresh(view.write, self.lines)  # it wraps at the width that it has by then
