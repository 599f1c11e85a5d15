"""The third screen: the runs, what they came to, and the one at work."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import TYPE_CHECKING, Any, ClassVar

from textual import events, on
from textual.app import ComposeResult
from textual.binding import BindingType
from textual.containers import Horizontal

from gpubox.errors import GpuboxError
from gpubox.tui.actions import Scope, bindings
from gpubox.tui.bench.report_pane import ReportPane
from gpubox.tui.bench.rows import RunRows
from gpubox.tui.bench.runs import BenchRuns
from gpubox.tui.bench.views import (
    active_run_lines,
    comparison_lines,
    kind_overview_lines,
    leaderboard_lines,
    report_lines,
    summary_line,
)
from gpubox.tui.styled_lines import styled_line
from gpubox.tui.widgets.header import StatusHeader
from gpubox.tui.widgets.key_bar import KeyBar
from gpubox.tui.widgets.styled_lines import StyledLines

if TYPE_CHECKING:
    from gpubox.bench.report.run_progress import RunProgress
    from gpubox.bench.report.run_summaries import RunSummary
    from gpubox.telemetry.snapshot import Snapshot, Throughput
    from gpubox.tui.bench.service import BenchService
    from gpubox.tui.messages import ServerOverview

LIVE_REDRAW_SECONDS = 0.5
LIVE, COMPARISON, BOARD = "live", "comparison", "leaderboard"


class BenchLine(StyledLines):
    """The line above the list."""

    DEFAULT_CSS = "BenchLine { height: 1; padding: 0 1; background: $footer-background; }"


class BenchScreen(BenchRuns):
    """A list at the left (above, where it is narrow), and the pane of what was chosen."""

    HORIZONTAL_BREAKPOINTS = [(0, "-narrow"), (100, "-wide"), (150, "-roomy")]  # noqa: RUF012
    AUTO_FOCUS = "RunRows"
    BINDINGS: ClassVar[list[BindingType]] = [*bindings(Scope.BENCH), ("escape", "bench_back", "Back")]
    DEFAULT_CSS = """
    BenchScreen { layout: vertical; background: $background; color: $foreground; }
    BenchScreen #bench-body { height: 1fr; }
    BenchScreen RunRows { width: 57; border: round $line; padding: 0 1; }
    BenchScreen RunRows:focus { border: round $line-focus; }
    BenchScreen.-roomy RunRows { width: 76; }
    BenchScreen.-narrow #bench-body { layout: vertical; }
    BenchScreen.-narrow RunRows { width: 1fr; height: 8; }
    BenchScreen.-alone RunRows { display: none; }
    """

    def __init__(self, service: BenchService, *, note: str = "") -> None:
        super().__init__(service)
        self.header, self.keys, self.line = StatusHeader(), KeyBar(Scope.BENCH), BenchLine()
        self.header.note = note
        self.rows, self.pane = RunRows(), ReportPane()
        self.rows.border_title = "Runs"
        self.heads: tuple[RunSummary, ...] = ()
        self.live: RunProgress | None = None
        self.throughput: Throughput | None = None
        self._now: ServerOverview | None = None
        self._wanted = ""
        """The run that the cursor goes to as soon as it is in the list."""
        self._view = ""
        """LIVE, COMPARISON or BOARD; empty: the report of the run under the cursor."""
        self._drawn_at = float("-inf")

    def compose(self) -> ComposeResult:
        yield self.header
        yield self.line
        with Horizontal(id="bench-body"):
            yield self.rows
            yield self.pane
        yield self.keys

    def on_mount(self) -> None:
        self.work(self.read_heads, "bench-list")

    # -- what the app tells ---------------------------------------------------------------------------

    def show_overview(self, header: StatusHeader, now: ServerOverview | None) -> None:
        self.header.overview, self.header.clock, self.header.stale = header.overview, header.clock, header.stale
        self.header.gpu_readings, self.header.activity = header.gpu_readings, header.activity
        self._now = now
        if self.is_mounted:
            self._draw_keys()

    def show_snapshot(self, snapshot: Snapshot) -> None:
        self.throughput = snapshot.throughput
        now = time.monotonic()
        if self.is_current and self.live and now - self._drawn_at >= LIVE_REDRAW_SECONDS:
            self._drawn_at = now
            self._draw_live()

    def show_run(self, live: RunProgress | None) -> None:
        """The run at work went on, began or ended."""
        before, self.live = self.live, live
        if (before.info.id if before else "") != (live.info.id if live else ""):
            if live is None and self._view == LIVE:
                self._view = ""
            elif live and (self._view == LIVE or self._at_rest()):
                self.show_live()
            self.work(self.read_heads, "bench-list", exclusive=True)
        self._take_heads()
        self._draw_live()
        self._draw_line()

    def at_hand(self) -> RunSummary | None:
        return None if self._view in (BOARD, COMPARISON) else self.rows.value

    def choices(self) -> tuple[list[str], str]:
        app: Any = self.app
        names = [entry.name for entry in app.entries if entry.profile and not entry.profile.companion]
        return names, (self._now.status.profile if self._now else "") or ""

    def rate(self) -> float | None:
        app: Any = self.app
        snapshot: Snapshot | None = app.dashboard.throughput.snapshot  # read also before this screen was opened
        through = snapshot.throughput if snapshot else None
        return (through.tg_median or through.tg_tokens_per_second) if through else None

    # -- drawing --------------------------------------------------------------------------------------

    async def read_heads(self) -> None:
        self.heads = tuple(await self.service.run_summaries())
        self.rows.marked = tuple(name for name in self.rows.marked if any(head.id == name for head in self.heads))
        self._take_heads()
        self._go_to_wanted()
        self.rows.border_subtitle = f"{len(self.heads)}" if self.heads else ""
        self._draw_line()
        self._show()

    def _take_heads(self) -> None:
        live = self.live
        self.rows.show_values(tuple(
            replace(head, done=live.done, headline=live.headline) if live and head.id == live.info.id else head
            for head in self.heads
        ))  # fmt: skip

    def _at_rest(self) -> bool:
        """Whether nobody reads a report that a run which begins would take away."""
        return not self._view and self.rows.at_top and not self.has_class("-alone")

    def _go_to_wanted(self) -> None:
        if self._wanted and self.rows.stand_on(self._wanted):
            self._wanted = ""

    def show_live(self) -> None:
        self._view = LIVE
        if self.live:
            self._wanted = self.live.info.id
            self._go_to_wanted()
        self._draw_line()
        self._draw_live()

    def show_ended(self, run: str) -> None:
        if self._view == LIVE and self.live is None:
            self._view, self._wanted = "", run
            self._go_to_wanted()
            self._show()

    def _draw_line(self) -> None:
        if self.is_mounted:
            width = self.line.content_size.width
            self.line.show([summary_line(len(self.heads), self.live, len(self.rows.marked), width)])
            self._draw_keys()

    def _draw_keys(self) -> None:
        head, live = self.rows.value, self.live
        stops = bool(head and live and head.id == live.info.id)
        listed = not (self.has_class("-alone") or self._view in (BOARD, COMPARISON))
        self.keys.hidden_actions = self.needless() | {"back" if listed else "bench_open"}
        self.keys.labels = {"bench_remove": "stop" if stops else "delete"}

    def _draw_live(self) -> None:
        if self._view != LIVE or not self.is_mounted:
            return
        live, throughput = self.live, self.throughput
        if live is None:
            self.pane.put(LIVE, "Run", lambda width: [styled_line(("It is being started ...", "$quiet"))])
        else:
            self.pane.put(LIVE, f"{live.info.id}, at work", lambda width: active_run_lines(live, throughput, width))

    def _show(self) -> None:
        """Fills the pane with what belongs there now."""
        self._draw_keys()
        if self._view == LIVE:
            self._draw_live()
        elif self._view == BOARD:
            self.work(self._board, "bench-view", exclusive=True)
        elif self._view == COMPARISON:
            self.work(self._comparison, "bench-view", exclusive=True)
        elif self.rows.value:
            self.work(self._report, "bench-view", exclusive=True)
        else:
            self.pane.put("", "What can be measured", kind_overview_lines)

    async def _report(self) -> None:
        head = self.rows.value
        if head is None:
            return
        if head.problem:
            self.pane.put(head.id, head.id, lambda width: [styled_line((head.problem, "$error"))])
            return
        found = await self.service.load_report(head.id)
        self.pane.put(head.id, head.id, lambda width: report_lines(found, width))

    async def _comparison(self) -> None:
        try:
            found = await self.service.load_comparison(*self.rows.marked)
        except GpuboxError:  # nothing to show: back to where it was asked for
            self.action_bench_back()
            raise
        self.pane.put(COMPARISON, "Comparison", lambda width: comparison_lines(found, width))

    async def _board(self) -> None:
        found = await self.service.load_leaderboards()
        self.pane.put(BOARD, "Leaderboard", lambda width: leaderboard_lines(found, width))

    # -- keys -----------------------------------------------------------------------------------------

    @on(RunRows.Moved)
    def _moved(self) -> None:
        head = self.rows.value
        self._view = LIVE if head and self.live and head.id == self.live.info.id else ""
        self._show()
        self._draw_line()

    @on(RunRows.RowOpened)
    def _opened(self) -> None:
        self._alone(True)

    def _alone(self, alone: bool) -> None:
        self.set_class(alone, "-alone")
        self.set_focus(self.pane if alone else self.rows)
        self._draw_keys()

    def what_is_shown(self) -> list[str]:
        if self._view == COMPARISON:
            return ["compare", *self.rows.marked]
        if self._view == BOARD:
            return ["leaderboard"]
        return [self.rows.value.id] if self.rows.value else []

    def action_bench_mark(self) -> None:
        self.rows.mark()
        self._draw_line()

    def action_bench_compare(self) -> None:
        if len(self.rows.marked) < 2:
            self.say("Mark two runs with space, the first one first.")
            return
        self._view = COMPARISON
        self._alone(True)
        self._show()

    def action_bench_board(self) -> None:
        self._view = "" if self._view == BOARD else BOARD
        self._alone(self._view == BOARD)
        self._show()

    def action_bench_live(self) -> None:
        if self.live:
            self.show_live()
        else:
            self.say("No run is at work.")

    def action_bench_back(self) -> None:
        """One level back: the pane alone, a view, then the dashboard."""
        alone = self.has_class("-alone")
        self._alone(False)
        if self._view in (BOARD, COMPARISON) or (self._view == LIVE and self.live is None):
            self._view = ""
            self._show()
        elif not alone:
            self.app.switch_mode("dashboard")

    def on_resize(self, event: events.Resize) -> None:
        self.call_after_refresh(self._draw_line)

    @on(events.ScreenResume)
    def _resumed(self) -> None:
        self.work(self.read_heads, "bench-list", exclusive=True)
