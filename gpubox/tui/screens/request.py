"""One finished request with every number the server's log gave."""

from __future__ import annotations

from typing import TYPE_CHECKING

from textual.app import ComposeResult
from textual.containers import VerticalScroll
from textual.content import Content
from textual.screen import ModalScreen
from textual.widgets import Static

from gpubox.tui.dashboard.requests import fields

if TYPE_CHECKING:
    from gpubox.telemetry.snapshot import Request

LABEL = 20


class RequestScreen(ModalScreen[None]):
    """esc, q or Enter closes it."""

    DEFAULT_CSS = """
    RequestScreen { align: center middle; background: $background 60%; }
    RequestScreen > VerticalScroll {
        width: 88; max-width: 98%; height: auto; max-height: 96%; padding: 1 2; background: $panel;
        border: round $line-focus; border-title-color: $foreground; border-title-style: bold;
        border-subtitle-color: $quiet; scrollbar-size-vertical: 1;
    }
    RequestScreen Static { height: auto; }
    """
    BINDINGS = [("escape,q,enter", "dismiss", "Close")]  # noqa: RUF012

    def __init__(self, request: Request) -> None:
        super().__init__()
        self.request = request

    def compose(self) -> ComposeResult:
        with VerticalScroll() as box:
            box.border_title, box.border_subtitle = f"Request {self.request.number}", "esc closes"
            rows = [Content.assemble((name.ljust(LABEL), "$quiet"), value) for name, value in fields(self.request)]
            yield Static(Content("\n").join(rows), markup=False)

    def on_mount(self) -> None:
        self.query_one(VerticalScroll).focus()
