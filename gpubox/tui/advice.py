"""The advice: one line for the dashboard, and the screen with the evidence and the change; keys try or dismiss it."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar

from textual import on
from textual.app import ComposeResult
from textual.binding import BindingType
from textual.content import Content

from gpubox.concurrency import run_in_thread
from gpubox.sanitize import sanitize_line
from gpubox.tui.actions import Scope, bindings
from gpubox.tui.base_screen import PushedScreen
from gpubox.tui.styled_lines import QUIET, StyledLine, styled_line, truncate_line, wrap_text
from gpubox.tui.widgets.cursor_rows import CursorRows
from gpubox.tui.widgets.lines import TitledPane

if TYPE_CHECKING:
    from gpubox.advisor.advice import Advice
    from gpubox.advisor.advisor import AdviceList
    from gpubox.tui.workshop.profile_actions import WorkshopController

NO_PROFILE = "Nothing runs, and no profile is highlighted."
SOURCE = "Advice comes from real requests: use the model for a while, or tune it (x, Tune)."
INDENT = "  "


def advice_row(advice: Advice, width: int) -> StyledLine:
    """One row of the list."""
    style = QUIET if advice.dismissed else ""
    return truncate_line(
        styled_line(
            (f"{sanitize_line(advice.word):<11}", f"bold {style}".strip() if advice.dismissed else "bold $accent"),
            (sanitize_line(advice.sentence), style),
        ),
        width,
    )


def advice_details(advice: Advice | None, width: int) -> list[StyledLine]:
    """Sentence, evidence and change of one advice."""
    if advice is None:
        return wrap_text(SOURCE, width)
    lines = [*wrap_text(advice.sentence, width), (), styled_line(("evidence", QUIET))]
    for text in advice.evidence:
        lines += wrap_text(text, width, indent=INDENT)
    lines += [(), styled_line((f"change of {sanitize_line(advice.try_profile or '')}".strip(), QUIET))]
    if not advice.changes:
        lines.append(styled_line(INDENT, ("no flag of the profile mends it", QUIET)))
    for text in advice.diff:
        lines += wrap_text(text, width, "$success" if text.startswith("+") else "$error", indent=INDENT)
    if advice.dismissed:
        lines += [(), styled_line(("dismissed: it is not shown on the dashboard; the menu (x) shows it again", QUIET))]
    return [truncate_line(line, width) for line in lines]


class AdviceRows(CursorRows["Advice"]):
    """One row for each advice."""

    EMPTY_TEXT = "Nothing to advise."
    KEY = "rule"
    CURSOR_STYLES = ("on $cursor", "on $cursor")

    def make_row(self, value: Advice, width: int) -> StyledLine:
        return advice_row(value, width)


class AdviceScreen(PushedScreen):
    """The advice about one profile."""

    BINDINGS: ClassVar[list[BindingType]] = [*bindings(Scope.ADVICE)]
    DEFAULT_CSS = """
    AdviceScreen AdviceRows {
        box-sizing: content-box; max-height: 50%; border: round $line; padding: 0 1; border-title-color: $foreground;
        &:focus { border: round $line-focus; }
    }
    """

    def __init__(self, judged: AdviceList, workshop: WorkshopController) -> None:
        """``workshop`` tries a change, as the editor does."""
        super().__init__(Scope.ADVICE, note=workshop.bridge.services.note)
        self.judged, self.workshop, self.bridge = judged, workshop, workshop.bridge
        self.shows_all = False
        self.rows, self.details = AdviceRows(), TitledPane()
        self.rows.border_title = Content(f"Advice for {sanitize_line(judged.profile)}")

    def compose(self) -> ComposeResult:
        yield self.header
        yield self.rows
        yield self.details
        yield self.keys

    def on_mount(self) -> None:
        self.show_advice(self.judged)
        self.rows.focus()

    def show_advice(self, judged: AdviceList) -> None:
        """Shows another list about the same profile."""
        self.judged = judged
        shown = judged.advice if self.shows_all else judged.shown
        self.rows.styles.height = max(1, len(shown))
        self.rows.show_values(shown)
        hidden = len(judged.advice) - len(judged.shown)
        self.rows.border_subtitle = f"{hidden} dismissed" if hidden else ""
        self._selected()

    @on(AdviceRows.RowHighlighted)
    def _selected(self) -> None:
        advice = self.rows.value
        self.details.put("Why, and what to change", lambda width: advice_details(advice, width))
        hidden = set() if advice else {"advice_dismiss"}
        if advice is None or advice.try_profile is None or not advice.changes:
            hidden.add("advice_try")
        self.keys.hidden_actions = frozenset(hidden)

    @on(CursorRows.RowOpened)
    def _opened(self, event: CursorRows.RowOpened) -> None:
        event.stop()
        self.action_advice_try()

    def action_advice_try(self) -> None:
        advice = self.rows.value
        if advice is None:
            return
        if advice.try_profile is None or not advice.changes:
            self.say("There is no change to try.")
        elif self.bridge.trial:
            self.say("A trial is under way: t shows it.")
        else:
            self.work(partial(self._try, advice.try_profile, advice.changes), "advice")

    async def _try(self, name: str, changes: Mapping[str, Any]) -> None:
        profile = await run_in_thread(self.bridge.services.profile_named, name)
        session, edit, refusal = await self.workshop.change(profile, changes)
        if refusal:
            self.say(refusal, bad=True)
            return
        self.dismiss(None)
        self.workshop.try_once(session, edit)

    def action_advice_dismiss(self) -> None:
        if advice := self.rows.value:
            self.work(partial(self._dismiss, advice), "advice")

    async def _dismiss(self, advice: Advice) -> None:
        """Dismisses an advice for good, or shows it again."""
        profile, services = self.judged.profile, self.bridge.services
        judged = await run_in_thread(
            services.dismiss_advice, profile, advice.rule, not advice.dismissed, self.bridge.poller.newest
        )
        if judged is not None and self.is_mounted:
            self.show_advice(judged)
        if advice.dismissed:
            self.say(f"{advice.word} is shown again.")
        else:
            self.say(f"{advice.word} is dismissed for {profile}. a shows the dismissed ones.")
        await self.bridge.advice.poll()

    def action_advice_all(self) -> None:
        self.shows_all = not self.shows_all
        self.show_advice(self.judged)

    def action_advice_back(self) -> None:
        self.dismiss(None)


async def show_advice(workshop: WorkshopController) -> None:
    """Opens the advice about what runs, else about the highlighted profile."""
    bridge, entry = workshop.bridge, workshop.profiles.entry
    app, services, snapshot = bridge.app, bridge.services, bridge.poller.newest
    if bridge.refuses():
        return
    running = bool(snapshot and snapshot.server.pid)
    name = "" if running else entry.name if entry and entry.profile else None
    if name is None:
        app.say(NO_PROFILE)
        return
    judged = await run_in_thread(services.advice, snapshot, name)
    if judged is None or not judged.profile:
        app.say(NO_PROFILE)
    else:
        app.push_screen(AdviceScreen(judged, workshop))
