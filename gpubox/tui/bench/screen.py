"""The Bench screen: the list of runs, and the report of the selected run or the progress of the active one."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import TYPE_CHECKING, ClassVar

from textual import events, on
from textual.app import ComposeResult
from textual.binding import BindingType
from textual.containers import Horizontal

from gpubox.errors import GpuboxError
from gpubox.tui.actions import Scope, bindings
from gpubox.tui.base_screen import PersistentScreen
from gpubox.tui.bench.controller import BenchController
from gpubox.tui.bench.report_pane import (
    ReportPane,
    active_run_lines,
    document_lines,
    kind_overview_lines,
    summary_line,
)
from gpubox.tui.bench.run_list import RunRows
from gpubox.tui.styled_lines import styled_line
from gpubox.tui.widgets.lines import SingleLine

if TYPE_CHECKING:
    from gpubox.bench.report.model import RunSummary
    from gpubox.bench.report.run_progress import RunProgress
    from gpubox.telemetry.snapshot import Snapshot, Throughput
    from gpubox.tui.bench.service import BenchService
    from gpubox.tui.bridge import ServiceBridge
    from gpubox.tui.messages import ServerOverview

LIVE_REDRAW_SECONDS = 0.5
"""Minimum time between two drawings of the server's speed during a run."""
LIVE, COMPARISON, LEADERBOARD = "live", "comparison", "leaderboard"
"""What the pane shows instead of the report of the selected run."""


class BenchScreen(PersistentScreen):
    """A list at the left (above it on a narrow terminal), and the pane of what is selected."""

    HORIZONTAL_BREAKPOINTS = [(0, "-narrow"), (100, "-wide"), (150, "-roomy")]  # noqa: RUF012
    AUTO_FOCUS = "RunRows"
    BINDINGS: ClassVar[list[BindingType]] = [*bindings(Scope.BENCH), ("escape", "bench_back", "Back")]
    DEFAULT_CSS = """
    BenchScreen { layout: vertical; background: $background; color: $foreground; }
    BenchScreen #bench-line { background: $footer-background; }
    BenchScreen #bench-body { height: 1fr; }
    BenchScreen RunRows { width: 57; border: round $line; padding: 0 1; }
    BenchScreen RunRows:focus { border: round $line-focus; }
    BenchScreen.-roomy RunRows { width: 76; }
    BenchScreen.-narrow #bench-body { layout: vertical; }
    BenchScreen.-narrow RunRows { width: 1fr; height: 8; }
    BenchScreen.-pane-only RunRows { display: none; }
    """

    def __init__(self, service: BenchService, bridge: ServiceBridge) -> None:
        super().__init__(Scope.BENCH, note=bridge.services.note)
        self.service, self.bridge, self.line = service, bridge, SingleLine("bench-line")
        self.rows, self.pane = RunRows(), ReportPane()
        self.rows.border_title = "Runs"
        self.controller = BenchController(self, service)
        self.summaries: tuple[RunSummary, ...] = ()
        self.live: RunProgress | None = None
        """The run that is executed now, by any process."""
        self.throughput: Throughput | None = None
        self._overview: ServerOverview | None = None
        self._run_to_highlight = ""
        """The cursor moves to this run as soon as it is in the list."""
        self._view = ""
        """LIVE, COMPARISON or LEADERBOARD; empty: the report of the selected run."""
        self._drawn_at = float("-inf")

    def compose(self) -> ComposeResult:
        yield self.header
        yield self.line
        with Horizontal(id="bench-body"):
            yield self.rows
            yield self.pane
        yield self.keys

    def on_mount(self) -> None:
        self.work(self.read_summaries, "bench-list")

    # -- updates from the app -------------------------------------------------------------------------

    def show_overview(self, overview: ServerOverview | None) -> None:
        self._overview = overview
        if self.is_mounted:
            self._update_keys()

    def show_snapshot(self, snapshot: Snapshot) -> None:
        self.throughput = snapshot.throughput
        now = time.monotonic()
        if self.is_current and self.live and now - self._drawn_at >= LIVE_REDRAW_SECONDS:
            self._drawn_at = now
            self._draw_live()

    def show_run(self, live: RunProgress | None) -> None:
        """The active run made progress, started or ended."""
        before, self.live = self.live, live
        if (before.info.id if before else "") != (live.info.id if live else ""):
            if live is None and self._view == LIVE:
                self._view = ""
            elif live and (self._view == LIVE or self._is_idle()):
                self.show_live()
            self.work(self.read_summaries, "bench-list", exclusive=True)
        self._fill_list()
        self._draw_live()
        self._draw_line()

    def _is_idle(self) -> bool:
        """Whether the user reads no other report, which a new run would replace."""
        return not self._view and self.rows.cursor == 0 and not self.has_class("-pane-only")

    @property
    def selected_run(self) -> RunSummary | None:
        """The run under the cursor, if the pane belongs to it."""
        return None if self._view in (LEADERBOARD, COMPARISON) else self.rows.value

    @property
    def export_target(self) -> list[str]:
        """What the pane shows: a view of ``bench show``, and its runs."""
        if self._view == COMPARISON:
            return ["compare", *self.rows.marked]
        if self._view == LEADERBOARD:
            return ["leaderboard"]
        return ["report", self.rows.value.id] if self.rows.value else []

    def profiles(self) -> tuple[list[str], str]:
        """The user's profiles, and the running one."""
        names = [entry.name for entry in self.bridge.entries if entry.profile and not entry.profile.companion]
        return names, (self._overview.status.profile if self._overview else "") or ""

    def tokens_per_second(self) -> float | None:
        """tg of the running server, if its requests reported it."""
        snapshot = self.bridge.poller.newest
        throughput = snapshot.throughput if snapshot else None
        return (throughput.tg_median or throughput.tg_tokens_per_second) if throughput else None

    # -- the list -------------------------------------------------------------------------------------

    async def read_summaries(self) -> None:
        """Reads the list of runs again."""
        self.summaries = tuple(await self.service.summaries())
        ids = {run.id for run in self.summaries}
        self.rows.marked = tuple(run for run in self.rows.marked if run in ids)
        self._fill_list()
        self._highlight_wanted()
        self.rows.border_subtitle = f"{len(self.summaries)}" if self.summaries else ""
        self._draw_line()
        self._show()

    def _fill_list(self) -> None:
        live = self.live
        runs = tuple(
            replace(run, done=live.done, headline=live.headline) if live and run.id == live.info.id else run
            for run in self.summaries
        )
        self.rows.show_values(runs)

    def _highlight_wanted(self) -> None:
        if self._run_to_highlight and self.rows.highlight(self._run_to_highlight):
            self._run_to_highlight = ""

    def show_live(self) -> None:
        """Shows the active run in the pane."""
        self._view = LIVE
        if self.live:
            self._run_to_highlight = self.live.info.id
            self._highlight_wanted()
        self._draw_line()
        self._draw_live()

    def show_ended(self, run: str) -> None:
        """Shows the report of a run that ended, unless the user looks at something else."""
        if self._view == LIVE and self.live is None:
            self._view, self._run_to_highlight = "", run
            self._highlight_wanted()
            self._show()

    # -- drawing --------------------------------------------------------------------------------------

    def _draw_line(self) -> None:
        if self.is_mounted:
            width = self.line.content_size.width
            self.line.show([summary_line(len(self.summaries), self.live, len(self.rows.marked), width)])
            self._update_keys()

    def _update_keys(self) -> None:
        run, live = self.rows.value, self.live
        is_live = bool(run and live and run.id == live.info.id)
        list_visible = not (self.has_class("-pane-only") or self._view in (LEADERBOARD, COMPARISON))
        hidden = {"back" if list_visible else "bench_open"}
        self.keys.hidden_actions = self.controller.disabled_actions() | hidden
        self.keys.labels = {"bench_remove": "stop" if is_live else "delete"}

    def _draw_live(self) -> None:
        if self._view != LIVE or not self.is_mounted:
            return
        live, throughput = self.live, self.throughput
        if live is None:
            self.pane.put(LIVE, "Run", lambda width: [styled_line(("The run is being started ...", "$quiet"))])
        else:
            self.pane.put(LIVE, f"{live.info.id}, active", lambda width: active_run_lines(live, throughput, width))

    def _show(self) -> None:
        """Fills the pane."""
        self._update_keys()
        if self._view == LIVE:
            self._draw_live()
        elif self._view == LEADERBOARD:
            self.work(self._show_leaderboard, "bench-view", exclusive=True)
        elif self._view == COMPARISON:
            self.work(self._show_comparison, "bench-view", exclusive=True)
        elif self.rows.value:
            self.work(self._show_report, "bench-view", exclusive=True)
        else:
            self.pane.put("", "What can be measured", kind_overview_lines)

    async def _show_report(self) -> None:
        run = self.rows.value
        if run is None:
            return
        if run.problem or run.info is None:
            self.pane.put(run.id, run.id, lambda width: [styled_line((run.problem, "$error"))])
            return
        documents = await self.service.documents("report", [run.id])
        self.pane.put(run.id, run.id, lambda width: document_lines(documents, width))

    async def _show_comparison(self) -> None:
        try:
            documents = await self.service.documents("compare", self.rows.marked)
        except GpuboxError:
            self.action_bench_back()
            raise
        self.pane.put(COMPARISON, "Comparison", lambda width: document_lines(documents, width))

    async def _show_leaderboard(self) -> None:
        documents = await self.service.documents("leaderboard")
        self.pane.put(LEADERBOARD, "Leaderboard", lambda width: document_lines(documents, width))

    def on_resize(self, event: events.Resize) -> None:
        self.call_after_refresh(self._draw_line)

    @on(events.ScreenResume)
    def _resumed(self) -> None:
        self.work(self.read_summaries, "bench-list", exclusive=True)

    @on(RunRows.RowHighlighted)
    def _run_highlighted(self) -> None:
        run = self.rows.value
        self._view = LIVE if run and self.live and run.id == self.live.info.id else ""
        self._show()
        self._draw_line()

    @on(RunRows.RowOpened)
    def _row_opened(self) -> None:
        self._set_pane_only(True)

    def _set_pane_only(self, pane_only: bool) -> None:
        self.set_class(pane_only, "-pane-only")
        self.set_focus(self.pane if pane_only else self.rows)
        self._update_keys()

    # -- actions --------------------------------------------------------------------------------------

    def action_bench_back(self) -> None:
        """One level back: the pane alone, a comparison or leaderboard, then the dashboard."""
        pane_only = self.has_class("-pane-only")
        self._set_pane_only(False)
        if self._view in (LEADERBOARD, COMPARISON) or (self._view == LIVE and self.live is None):
            self._view = ""
            self._show()
        elif not pane_only:
            self.app.switch_mode("dashboard")

    def action_bench_mark(self) -> None:
        self.rows.toggle_mark()
        self._draw_line()

    def action_bench_compare(self) -> None:
        if len(self.rows.marked) < 2:
            self.say("Mark two runs with space, the baseline first.")
            return
        self._view = COMPARISON
        self._set_pane_only(True)
        self._show()

    def action_bench_board(self) -> None:
        self._view = "" if self._view == LEADERBOARD else LEADERBOARD
        self._set_pane_only(self._view == LEADERBOARD)
        self._show()

    def action_bench_live(self) -> None:
        if self.live:
            self.show_live()
        else:
            self.say("No run is active.")

    def action_bench_copy(self) -> None:
        """Copies the selected text; without a selection the whole content of the pane."""
        selected = self.get_selected_text()
        self.copy(selected or self.pane.text, "the selected text" if selected else "the report")

    def action_bench_plan(self) -> None:
        self.controller.plan()

    def action_bench_measure(self) -> None:
        self.controller.measure_speed()

    def action_bench_resume(self) -> None:
        self.controller.resume()

    def action_bench_remove(self) -> None:
        self.controller.stop_or_delete()

    def action_bench_save(self) -> None:
        self.controller.save_best_cell()

    def action_bench_restore(self) -> None:
        self.controller.restore()

    def action_bench_export(self) -> None:
        self.controller.export()

    def action_bench_post(self) -> None:
        self.controller.post()
