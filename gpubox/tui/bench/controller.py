"""What the user does on the Bench screen: plan, start, stop and resume runs, save, restore, export and delete."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpubox.errors import GpuboxError, UsageError
from gpubox.tui.bench.plan_screen import PlanScreen, bench_command_line
from gpubox.tui.dialogs import PromptScreen, ask

if TYPE_CHECKING:
    from gpubox.bench.report.model import RunSummary
    from gpubox.bench.report.run_progress import RunProgress
    from gpubox.tui.bench.screen import BenchScreen
    from gpubox.tui.bench.service import BenchService
    from gpubox.tui.messages import ProfileEntry

ONE_AT_A_TIME = "Another run is active, and only one can run at a time. Select it and press x to stop it."
EXPORT_KEYS = (("m", "Markdown", "markdown"), ("s", "SVG charts", "svg"), ("c", "CSV", "csv"), ("j", "JSON", "json"))
"""Key, label and form."""


def has_best_cell(run: RunSummary) -> bool:
    """Whether the run is a sweep or a tune with flags to save."""
    kind = run.info.plan.kind if run.info and run.headline else ""
    return run.state == "finished" if kind == "tune" else kind == "sweep" and run.state != "running"


def has_pending_restore(run: RunSummary) -> bool:
    """Whether the run was killed before it restored the server that ran before it."""
    return bool(run.info and run.info.restore_pending and run.state != "running")


class BenchController:
    """The actions of the screen. Each one asks before it stops or deletes something."""

    def __init__(self, screen: BenchScreen, service: BenchService) -> None:
        self.screen, self.service = screen, service
        self.starting = False
        """Whether a run was started here that is not active yet."""

    def _refused(self) -> bool:
        """Returns whether no run can be started now, and tells the user why."""
        if self.service.read_only:
            self.screen.say(self.service.read_only, bad=True)
        elif self.screen.live or self.starting:
            self.screen.say(ONE_AT_A_TIME)
        return not self._can_start

    @property
    def _can_start(self) -> bool:
        return not (self.service.read_only or self.screen.live or self.starting)

    def disabled_actions(self) -> frozenset[str]:
        """The actions that have nothing to do now; the key bar hides them."""
        screen, free = self.screen, self._can_start
        run, (_, profile) = screen.selected_run, screen.profiles()
        is_active = bool(run and screen.live and run.id == screen.live.info.id)
        enabled = {
            "bench_plan": free,
            "bench_measure": free and bool(profile or self.service.url),
            "bench_open": bool(run),
            "bench_mark": len(screen.summaries) > 1,
            "bench_compare": len(screen.rows.marked) == 2,
            "bench_board": bool(screen.summaries),
            "bench_live": bool(screen.live) and not is_active,
            "bench_resume": free and bool(run and run.info and (run.state != "finished" or run.restore_pending)),
            "bench_save": bool(run and has_best_cell(run)),
            "bench_restore": free and any(map(has_pending_restore, screen.summaries)),
            "bench_remove": is_active or bool(run and not self.service.read_only and not self.starting),
            "bench_export": bool(screen.export_target),
            "bench_post": bool(run and not run.problem and not is_active),
        }
        return frozenset(action for action, is_enabled in enabled.items() if not is_enabled)

    # -- running --------------------------------------------------------------------------------------

    def measure_speed(self) -> None:
        """The quick ``speed`` benchmark of the running server, after a question."""
        if self._refused():
            return
        _, profile = self.screen.profiles()
        if not profile and not self.service.url:
            self.screen.say("Nothing runs. Start a profile first, or press n to plan a run.")
            return
        target = ["--url", self.service.url] if self.service.url else [profile]
        arguments = ["speed", *target, "--preset", "quick"]
        self.screen.work(lambda: self._start(arguments, confirm=True), "bench-start")

    def tune(self, entry: ProfileEntry | None) -> None:
        """Tunes the profile of a row of the dashboard, after a question with the plan."""
        if entry is None or entry.profile is None:
            self.screen.say("No profile is highlighted.")
        elif self.service.url:
            self.screen.say("gpubox cannot restart a server given by its address, so it cannot tune it.")
        elif not self._refused():
            arguments = ["tune", entry.name]
            self.screen.say(f"Planning the tune of {entry.name} ...")
            self.screen.work(lambda: self._start(arguments, confirm=True), "bench-tune", exclusive=True)

    def plan(self, kind: str = "", profile: str = "") -> None:
        """Opens the form that plans a run, for ``kind`` and ``profile`` first."""
        if self._refused():
            return
        profiles, active = self.screen.profiles()

        def start(arguments: list[str] | None) -> None:
            if arguments:
                confirm = arguments[0] == "tune"  # many restarts: never without a look at the plan
                self.screen.work(lambda: self._start(arguments, confirm=confirm), "bench-start")

        screen = PlanScreen(self.service, profiles, active, self.screen.tokens_per_second(), kind=kind, profile=profile)
        self.screen.app.push_screen(screen, start)

    async def _start(self, arguments: list[str], *, confirm: bool) -> None:
        """Runs ``gpubox bench ARGUMENTS``. Asks first with ``confirm``, or if the server answers a request."""
        if self._refused():
            return
        is_tune = arguments[0] == "tune"
        busy, answer = await self.service.busy(), "yes"
        if busy or confirm:
            sentences = (await self.service.outline(arguments)).sentences(self.screen.tokens_per_second())
            start = ("y", "start", "yes")
            if busy:
                sentences.append(f"The server is answering a request: {'; '.join(busy)}.")
                start = ("y", "start now; that answer is cut off", "now")
            verb = "Tune" if is_tune else "Measure"
            title = f"{verb} {self.service.url or arguments[1]}?" if confirm else "Start the run?"
            body = "\n".join([*sentences, "", bench_command_line(arguments)])
            others = [("o", "another goal, time or reserve", "options")] if is_tune else []
            answer = await ask(self.screen.app, title, body, ("n", "not now", "no"), *others, start) or "no"
            if answer == "options":
                self.plan("tune", arguments[1])
                return
            if answer == "no" or self._refused():
                return
        await self._run(arguments, now=answer == "now")

    async def _run(self, arguments: list[str], *, now: bool) -> None:
        known = {run.id for run in self.screen.summaries}
        self.starting = True
        self.screen.show_live()
        try:
            await self.service.run(arguments, now=now)
        finally:
            self.starting = False
            await self.screen.read_summaries()
            new = next((run.id for run in self.screen.summaries if run.id not in known), "")
            self.screen.show_ended(arguments[1] if arguments[0] == "resume" else new)

    def resume(self) -> None:
        """Runs the items of the selected run that have no result."""
        run = self.screen.selected_run
        if run is None or self._refused():
            return
        if run.state == "finished" and not run.restore_pending:
            self.screen.say("This run is finished; there is nothing to resume.")
        elif run.info:
            arguments = ["resume", run.id]
            self.screen.work(lambda: self._start(arguments, confirm=False), "bench-start")

    # -- stopping and deleting ------------------------------------------------------------------------

    def stop_or_delete(self) -> None:
        """Stops the active run if it is selected or no run is; otherwise deletes the selected run."""
        run, active = self.screen.selected_run, self.screen.live
        if self.starting and not active:
            self.screen.say("The run is being started; x stops it as soon as it is active.")
        elif active and (run is None or run.id == active.info.id):
            self.screen.work(lambda: self._stop(active), "bench-stop")
        elif run and not self.service.read_only:
            self.screen.work(lambda: self._delete(run), "bench-delete")

    async def _stop(self, run: RunProgress) -> None:
        done = f"{run.tune.starts_done} starts" if run.tune else f"{run.done} of {run.info.items} items"
        body = f"{done} are done and are kept; r resumes the run later."
        stop = ("y", "stop it and restore what ran before", "yes")
        if await ask(self.screen.app, "Stop the run?", body, ("n", "continue", "no"), stop) == "yes":
            await self.service.stop(run)

    async def _delete(self, run: RunSummary) -> None:
        body = run.headline or run.problem or run.state
        if run.restore_pending:
            body = f"{run.restore_pending} ran before it and is not restored yet; deleting does not restore it.\n{body}"
        delete = ("y", "delete it and all its results", "yes")
        if await ask(self.screen.app, f"Delete {run.id}?", body, ("n", "keep it", "no"), delete) == "yes":
            await self.service.delete(run.id)
            await self.screen.read_summaries()

    # -- after a run ----------------------------------------------------------------------------------

    def save_best_cell(self) -> None:
        """Saves the best flags of the selected sweep or tune as a profile."""
        run = self.screen.selected_run
        if run and has_best_cell(run):
            self.screen.work(lambda: self._save_best_cell(run), "bench-save")
        else:
            self.screen.say("Only a finished sweep or tune has flags to save.")

    async def _save_best_cell(self, run: RunSummary) -> None:
        best = await self.service.best_cell(run.id)
        proposal, body = best.profile_name, f"Best: {best.label}. Name of the new profile:"
        while name := await self.screen.app.push_screen_wait(PromptScreen("Save as profile", proposal, body)):
            try:
                await self.service.save_as_profile(run.id, name)
            except UsageError as error:
                proposal, body = name, f"{error.message} Another name:"
            else:
                self.screen.say(f"Saved as the profile {name}; it is in the list of the dashboard.")
                return

    def restore(self) -> None:
        """Restores the server that ran before a killed run."""
        if not self._refused():
            self.screen.work(self._restore, "bench-start")

    async def _restore(self) -> None:
        await self.screen.read_summaries()  # the palette can start this action before the list was ever read
        run = next(filter(has_pending_restore, self.screen.summaries), None)
        if run is None:
            self.screen.say("No interrupted run has left its server running.")
            return
        body = f"{run.id} was interrupted; {run.restore_pending or 'nothing'} ran before it. r resumes the run instead."
        restore = ("y", "stop the server of the run and restore what ran before", "yes")
        if await ask(self.screen.app, "Restore what ran before?", body, ("n", "not now", "no"), restore) == "yes":
            self.screen.say("Restoring ...")
            profile = await self.service.restore()
            await self.screen.read_summaries()
            self.screen.say(f"{profile} runs again." if profile else "Nothing runs, as before the run.")

    def export(self) -> None:
        """Writes what the pane shows to a file."""
        if self.screen.export_target:
            self.screen.work(self._export, "bench-export")

    async def _export(self) -> None:
        view, *runs = self.screen.export_target
        title, body = f"Export {' and '.join(runs) or view}", "Without paths, host names and keys."
        if form := await ask(self.screen.app, title, body, *EXPORT_KEYS):
            try:
                self.screen.say(f"Wrote {await self.service.export(view, runs, form)}")
            except GpuboxError as error:
                self.screen.say(str(error), bad=True)

    def post(self) -> None:
        """Writes the card and the Markdown block of the selected run, and copies the block."""
        run = self.screen.selected_run
        if run and not run.problem:
            self.screen.work(lambda: self._post(run), "bench-post")
        else:
            self.screen.say("Select a run to post.")

    async def _post(self, run: RunSummary) -> None:
        posted = await self.service.post(run.id)
        self.screen.copy(posted.markdown, f"the Markdown block; {posted.card.name} is in {posted.card.parent}")
