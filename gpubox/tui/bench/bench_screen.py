"""The Bench screen: the list of runs, and the report of the selected run or the progress of the active one."""

from __future__ import annotations

import time
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, ClassVar

from textual import events, on
from textual.app import ComposeResult
from textual.binding import BindingType
from textual.containers import Horizontal

from gpubox.errors import GpuboxError
from gpubox.tui.actions import Scope, bindings
from gpubox.tui.base_screen import OtherScreen
from gpubox.tui.bench.bench_runs import EXPORTS
from gpubox.tui.bench.plan_form import PlanScreen, ask_longer_plan, bench_command_line
from gpubox.tui.bench.run_pane import (
    RunRows,
    active_run_lines,
    document_lines,
    has_best_cell,
    has_pending_restore,
    kind_overview_lines,
    summary_line,
)
from gpubox.tui.dialogs import ask, ask_name, confirm
from gpubox.tui.styled_lines import styled_line
from gpubox.tui.widgets.lines import SingleLine, TitledPane

if TYPE_CHECKING:
    from gpubox.bench.report.model import RunSummary
    from gpubox.bench.report.run_summaries import RunProgress
    from gpubox.telemetry.snapshot import Snapshot, Throughput
    from gpubox.tui.bench.bench_runs import BenchRuns
    from gpubox.tui.bridge import ServiceBridge
    from gpubox.tui.messages import ProfileEntry, ServerOverview

LIVE_REDRAW_SECONDS = 0.5
"""Minimum time between two drawings of the server's speed during a run."""
ONE_AT_A_TIME = "Another run is active, and only one can run at a time. Select it; its menu (x) stops it."
LIVE, COMPARISON, LEADERBOARD = "live", "compare", "leaderboard"
"""What the pane shows instead of the report of the selected run; the last two are views of ``bench show``."""
TITLES = {COMPARISON: "Comparison", LEADERBOARD: "Leaderboard"}


class BenchScreen(OtherScreen):
    """A list at the left (above it on a narrow terminal), and the pane of what is selected.

    Each action asks before it stops or deletes something.
    """

    HORIZONTAL_BREAKPOINTS = [(0, "-narrow"), (100, "-wide"), (150, "-roomy")]  # noqa: RUF012
    AUTO_FOCUS = "RunRows"
    BINDINGS: ClassVar[list[BindingType]] = [*bindings(Scope.BENCH), ("escape", "back", "Back")]
    DEFAULT_CSS = """
    BenchScreen #bench-line { background: $footer-background; }
    BenchScreen #bench-body { height: 1fr; }
    BenchScreen RunRows { width: 57; border: round $line; padding: 0 1; }
    BenchScreen RunRows:focus { border: round $line-focus; }
    BenchScreen.-roomy RunRows { width: 76; }
    BenchScreen.-narrow #bench-body { layout: vertical; }
    BenchScreen.-narrow RunRows { width: 1fr; height: 8; }
    BenchScreen.-pane-only RunRows { display: none; }
    """

    def __init__(self, runs: BenchRuns, bridge: ServiceBridge) -> None:
        super().__init__(Scope.BENCH, note=bridge.services.note)
        self.runs, self.bridge, self.line = runs, bridge, SingleLine("bench-line")
        self.rows, self.pane = RunRows(), TitledPane()
        self.rows.border_title = "Runs"
        self.summaries: tuple[RunSummary, ...] = ()
        self.live: RunProgress | None = None
        """The run that is executed now, by any process."""
        self.starting = False
        """A run was started here that is not active yet."""
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
            reads_another = self._view or self.rows.cursor or self.has_class("-pane-only")
            if live is None and self._view == LIVE:
                self._view = ""
            elif live and (self._view == LIVE or not reads_another):
                self.show_live()
            self.work(self.read_summaries, "bench-list", exclusive=True)
        self._fill_list()
        self._draw_live()
        self._draw_line()

    @property
    def selected_run(self) -> RunSummary | None:
        """The run under the cursor, if the pane belongs to it."""
        return None if self._view in (LEADERBOARD, COMPARISON) else self.rows.value

    @property
    def export_target(self) -> list[str]:
        """What the pane shows: a view of ``bench show``, and its runs."""
        if self._view in (COMPARISON, LEADERBOARD):
            return [self._view, *(self.rows.marked if self._view == COMPARISON else ())]
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
        self.summaries = tuple(await self.runs.summaries())
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

    def _draw_live(self) -> None:
        if self._view != LIVE or not self.is_mounted:
            return
        live, throughput = self.live, self.throughput
        if live is None:
            self.pane.put("Run", lambda width: [styled_line(("The run is being started ...", "$quiet"))])
        else:
            self.pane.put(f"{live.info.id}, active", lambda width: active_run_lines(live, throughput, width))

    def _show(self) -> None:
        """Fills the pane."""
        self._update_keys()
        run, view = self.rows.value, self._view
        if view == LIVE:
            self._draw_live()
        elif view:
            self.work(lambda: self._show_documents(*self.export_target), "bench-view", exclusive=True)
        elif run is None:
            self.pane.put("What can be measured", kind_overview_lines)
        elif run.problem or run.info is None:
            self.pane.put(run.id, lambda width: [styled_line((run.problem, "$error"))])
        else:
            self.work(lambda: self._show_documents("report", run.id), "bench-view", exclusive=True)

    async def _show_documents(self, view: str, *runs: str) -> None:
        try:
            documents = await self.runs.documents(view, runs)
        except GpuboxError:
            if view == COMPARISON:
                self.action_back()
            elif view == "report" and not any(run.id == runs[0] for run in await self.runs.summaries()):
                await self.read_summaries()  # it was deleted meanwhile
                return
            raise
        self.pane.put(TITLES.get(view) or runs[0], lambda width: document_lines(documents, width))

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

    def action_back(self) -> None:
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
        selected = self.get_selected_text()
        self.copy(selected or self.pane.text, "the selected text" if selected else "the report")

    # -- what can be done now -------------------------------------------------------------------------

    @property
    def _refusal(self) -> str:
        """Why no run can be started now; empty if one can."""
        return self.runs.read_only or (ONE_AT_A_TIME if self.live or self.starting else "")

    def _refused(self) -> bool:
        """Returns whether no run can be started now, and tells the user why."""
        if self._refusal:
            self.say(self._refusal, bad=bool(self.runs.read_only))
        return bool(self._refusal)

    def _update_keys(self) -> None:
        """Hides the keys of the actions that have nothing to do now."""
        free, live = not self._refusal, self.live.info.id if self.live else ""
        run, (_, profile) = self.selected_run, self.profiles()
        is_active = bool(run and run.id == live)
        enabled = {
            "bench_plan": free,
            "bench_measure": free and bool(profile or self.runs.url),
            "bench_open": bool(run) and not self.has_class("-pane-only"),
            "bench_mark": len(self.summaries) > 1,
            "bench_compare": len(self.rows.marked) == 2,
            "bench_board": bool(self.summaries),
            "bench_live": bool(self.live) and not is_active,
            "bench_resume": free and bool(run and run.info and (run.state != "finished" or run.restore_pending)),
            "bench_save": bool(run and has_best_cell(run)),
            "bench_restore": free and any(map(has_pending_restore, self.summaries)),
            "bench_remove": is_active or bool(run and not self.runs.read_only and not self.starting),
            "bench_export": bool(self.export_target),
            "bench_post": bool(run and not run.problem and not is_active),
        }
        self.keys.hidden_actions = frozenset(action for action, is_enabled in enabled.items() if not is_enabled)
        self.keys.labels = {"menu": "menu: stop" if self.rows.value and self.rows.value.id == live else "menu"}

    def action_bench_measure(self) -> None:
        """The quick ``speed`` benchmark of the running server, after a question."""
        if self._refused():
            return
        _, profile = self.profiles()
        if not profile and not self.runs.url:
            self.say("Nothing runs. On the dashboard (1) ⏎ starts a profile; here n plans a run.")
            return
        target = ["--url", self.runs.url] if self.runs.url else [profile]
        self.work(lambda: self._start(["speed", *target, "--preset", "quick"], confirm=True), "bench-start")

    def tune(self, entry: ProfileEntry | None) -> None:
        """Tunes the profile of a row of the dashboard, after a question with the plan."""
        if entry is None or entry.profile is None:
            self.say("No profile is highlighted.")
        elif self.runs.url:
            self.say("gpubox cannot restart a server given by its address, so it cannot tune it.")
        elif not self._refused():
            self.say(f"Planning the tune of {entry.name} ...")
            self.work(lambda: self._start(["tune", entry.name], confirm=True), "bench-tune", exclusive=True)

    def action_bench_plan(self, kind: str = "", profile: str = "", preset: str = "") -> None:
        """Opens the form that plans a run; what is given is chosen first."""
        if self._refused():
            return
        profiles, active = self.profiles()

        def start(arguments: list[str] | None) -> None:
            if arguments:
                confirm = arguments[0] == "tune"  # many restarts: never without a look at the plan
                self.work(lambda: self._start(arguments, confirm=confirm), "bench-start")

        first = {"kind": kind, "profile": profile, "preset": preset}
        self.app.push_screen(PlanScreen(self.runs, profiles, active, self.tokens_per_second(), **first), start)

    async def _start(self, arguments: list[str], *, confirm: bool) -> None:
        """Runs ``gpubox bench ARGUMENTS``. Asks first with ``confirm``, or if the server answers a request."""
        if self._refused():
            return
        is_tune = arguments[0] == "tune"
        busy, answer = await self.runs.busy(), "yes"
        if busy or confirm:
            sentences = (await self.runs.outline(arguments)).sentences(self.tokens_per_second())
            start = ("y", "start", "yes")
            if busy:
                sentences.append(f"The server is answering a request: {'; '.join(busy)}.")
                start = ("y", "start now; that answer is cut off", "now")
            verb = "Tune" if is_tune else "Measure"
            title = f"{verb} {self.runs.url or arguments[1]}?" if confirm else "Start the run?"
            body = "\n".join([*sentences, "", bench_command_line(arguments)])
            others = [("o", "another goal, time or reserve", "options")] if is_tune else []
            self.app.clear_notifications()  # what was planned is in the question
            answer = await ask(self.app, title, body, ("n", "not now", "no"), *others, start) or "no"
            if answer == "options":
                self.action_bench_plan("tune", arguments[1])
                return
            if answer == "no" or self._refused():
                return
        await self._run(arguments, now=answer == "now")

    async def _run(self, arguments: list[str], *, now: bool) -> None:
        known = {run.id for run in self.summaries}
        self.starting = True
        self.show_live()
        try:
            await self.runs.run(arguments, now=now)
        finally:
            self.starting = False
            await self.read_summaries()
            new = next((run.id for run in self.summaries if run.id not in known), "")
            self.show_ended(arguments[1] if arguments[0] == "resume" else new)
        run = next((each for each in self.summaries if each.id == new), None)
        quick = run if "quick" in arguments and self.is_current else None
        if quick and (preset := await ask_longer_plan(self.app, self.runs, arguments, quick)) is not None:
            self.action_bench_plan("speed", quick.targets[0], preset)

    def action_bench_resume(self) -> None:
        """Runs the items of the selected run that have no result."""
        run = self.selected_run
        if run is None or self._refused():
            return
        if run.state == "finished" and not run.restore_pending:
            self.say("This run is finished; there is nothing to resume.")
        elif run.info:
            self.work(lambda: self._start(["resume", run.id], confirm=False), "bench-start")

    # -- stopping and deleting ------------------------------------------------------------------------

    def action_bench_remove(self) -> None:
        """Stops the active run if it is selected or no run is; otherwise deletes the selected run."""
        run, active = self.selected_run, self.live
        if self.starting and not active:
            self.say("The run is being started; it can be stopped as soon as it is active.")
        elif active and (run is None or run.id == active.info.id):
            self.work(lambda: self._stop(active), "bench-stop")
        elif run and not self.runs.read_only:
            self.work(lambda: self._delete(run), "bench-delete")

    async def _stop(self, run: RunProgress) -> None:
        done = f"{run.tune.starts_done} starts" if run.tune else f"{run.done} of {run.info.items} measurements"
        body = f"{done} are done and are kept; r resumes the run later."
        if await confirm(self.app, "Stop the run?", body, "stop it and restore what ran before", no="continue"):
            await self.runs.stop(run)

    async def _delete(self, run: RunSummary) -> None:
        body = run.headline or run.problem or run.state
        if run.restore_pending:
            body = f"{run.restore_pending} ran before it and is not restored yet; deleting does not restore it.\n{body}"
        if await confirm(self.app, f"Delete {run.id}?", body, "delete it and all its results", no="keep it"):
            await self.runs.delete(run.id)
            await self.read_summaries()

    def action_bench_save(self) -> None:
        run = self.selected_run
        if run and has_best_cell(run):
            self.work(lambda: self._save_best_cell(run), "bench-save")
        else:
            self.say("Only a finished sweep or tune has flags to save.")

    async def _save_best_cell(self, run: RunSummary) -> None:
        best, proposal = await self.runs.best_cell(run.id)
        body = f"Best: {best}. Name of the new profile:"
        save = partial(self.runs.save_as_profile, run.id)
        if name := await ask_name(self.app, "Save as profile", proposal, body, save):
            self.say(f"Saved as the profile {name}; it is in the list of the dashboard.")

    def action_bench_restore(self) -> None:
        if not self._refused():
            self.work(self._restore, "bench-start")

    async def _restore(self) -> None:
        await self.read_summaries()  # the palette can start this action before the list was ever read
        run = next(filter(has_pending_restore, self.summaries), None)
        if run is None:
            self.say("No interrupted run has left its server running.")
            return
        body = f"{run.id} was interrupted; {run.restore_pending or 'nothing'} ran before it. r resumes the run instead."
        yes = "stop the server of the run and restore what ran before"
        if await confirm(self.app, "Restore what ran before?", body, yes):
            self.say("Restoring ...")
            profile = await self.runs.restore()
            await self.read_summaries()
            self.say(f"{profile} runs again." if profile else "Nothing runs, as before the run.")

    def action_bench_export(self) -> None:
        if self.export_target:
            self.work(self._export, "bench-export")

    async def _export(self) -> None:
        view, *runs = self.export_target
        title, body = f"Export {' and '.join(runs) or view}", "Without paths, host names and keys."
        if form := await ask(self.app, title, body, *((key, label, form) for form, (key, label, _) in EXPORTS.items())):
            self.say(f"Wrote {await self.runs.export(view, runs, form)}")

    def action_bench_post(self) -> None:
        """Writes the card and the Markdown block of the selected run, and copies the block."""
        run = self.selected_run
        if run and not run.problem:
            self.work(lambda: self._post(run), "bench-post")
        else:
            self.say("Select a run to post.")

    async def _post(self, run: RunSummary) -> None:
        markdown, card = await self.runs.post(run.id)
        self.copy(markdown, f"the Markdown block; {card.name} is in {card.parent}")
