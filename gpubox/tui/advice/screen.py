"""The list of advice: what is said, on what evidence, and the change; keys try or dismiss it."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from textual import on
from textual.app import ComposeResult
from textual.binding import BindingType
from textual.containers import Vertical
from textual.content import Content

from gpubox.sanitize import sanitize_line
from gpubox.tui.actions import Scope, bindings
from gpubox.tui.advice.lines import advice_details, advice_row
from gpubox.tui.persistent_screen import PushedScreen
from gpubox.tui.styled_lines import StyledLine
from gpubox.tui.widgets.cursor_rows import CursorRows
from gpubox.tui.widgets.scrollable_lines import ScrollableLines

if TYPE_CHECKING:
    from textual import events

    from gpubox.advisor.advice import Advice
    from gpubox.advisor.advisor import AdviceList
    from gpubox.tui.advice.controller import AdviceController

NOTHING = "Nothing to advise."


class AdviceRows(CursorRows["Advice"]):
    """One row for each advice."""

    EMPTY_TEXT = NOTHING
    CURSOR_RETURNS_TO_TOP = False
    CURSOR_STYLES = ("on $cursor", "on $cursor")

    def make_row(self, value: Advice, width: int) -> StyledLine:
        return advice_row(value, width)

    def key(self, value: Advice) -> str:
        return value.rule


class AdviceScreen(PushedScreen):
    """The advice about one profile."""

    BINDINGS: ClassVar[list[BindingType]] = [*bindings(Scope.ADVICE)]
    DEFAULT_CSS = """
    AdviceScreen { layout: vertical; background: $background; color: $foreground; }
    AdviceScreen #advice-list {
        height: auto; max-height: 50%; border: round $line-focus; padding: 0 1; border-title-color: $foreground;
    }
    AdviceScreen AdviceRows { height: auto; max-height: 100%; min-height: 1; }
    AdviceScreen #advice-frame {
        height: 1fr; border: round $line; padding: 0 1; border-title-color: $foreground;
    }
    AdviceScreen ScrollableLines { height: 1fr; }
    """

    def __init__(self, judged: AdviceList, controller: AdviceController, *, note: str = "") -> None:
        super().__init__(Scope.ADVICE, note=note)
        self.judged, self.controller = judged, controller
        self.shows_all = False
        self.rows, self.details = AdviceRows(), ScrollableLines(self._details)

    def compose(self) -> ComposeResult:
        yield self.header
        with Vertical(id="advice-list") as box:
            box.border_title = Content(f"Advice for {sanitize_line(self.judged.profile)}")
            yield self.rows
        with Vertical(id="advice-frame") as frame:
            frame.border_title = "Why, and what to change"
            yield self.details
        yield self.keys

    def on_mount(self) -> None:
        self.show_advice(self.judged)
        self.rows.focus()

    def on_resize(self, event: events.Resize) -> None:
        self.details.make_again()

    def show_advice(self, judged: AdviceList) -> None:
        """Shows another list about the same profile."""
        self.judged = judged
        shown = judged.advice if self.shows_all else judged.shown
        self.rows.styles.height = max(1, len(shown))
        self.rows.show_values(shown)
        hidden = len(judged.advice) - len(judged.shown)
        self.query_one("#advice-list", Vertical).border_subtitle = f"{hidden} dismissed" if hidden else ""
        self._selected()

    @on(AdviceRows.RowHighlighted)
    def _selected(self) -> None:
        advice = self.rows.value
        self.details.make_again()
        self.keys.labels = {"advice_dismiss": "show again" if advice and advice.dismissed else "dismiss"}
        hidden = set() if advice else {"advice_dismiss"}
        if advice is None or advice.try_profile is None or not advice.changes:
            hidden.add("advice_try")
        self.keys.hidden_actions = frozenset(hidden)

    def _details(self, width: int) -> list[StyledLine]:
        return advice_details(self.rows.value, width)

    @on(CursorRows.RowOpened)
    def _opened(self, event: CursorRows.RowOpened) -> None:
        event.stop()
        self.action_advice_try()

    def action_advice_try(self) -> None:
        if advice := self.rows.value:
            self.controller.try_advice(self, advice)

    def action_advice_dismiss(self) -> None:
        if advice := self.rows.value:
            self.controller.dismiss(self, advice)

    def action_advice_all(self) -> None:
        self.shows_all = not self.shows_all
        self.show_advice(self.judged)

    def action_advice_back(self) -> None:
        self.dismiss(None)
