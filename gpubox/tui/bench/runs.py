"""What the owner can do on the Bench screen: plan, stop, resume, compare, rank, share, remove."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from gpubox.errors import GpuboxError, UsageError
from gpubox.tui.bench.form import bench_command_line
from gpubox.tui.bench.views import outline_sentences
from gpubox.tui.dialogs import DialogAnswer, QuestionScreen
from gpubox.tui.persistent_screen import PersistentScreen

if TYPE_CHECKING:
    from gpubox.bench.report.run_progress import RunProgress
    from gpubox.bench.report.run_summaries import RunSummary
    from gpubox.tui.bench.rows import RunRows
    from gpubox.tui.bench.service import BenchService

ONE_AT_A_TIME = "A run is at work; one at a time. x on it stops it."


def has_best_cell(head: RunSummary) -> bool:
    """Whether there is a best cell to save."""
    return bool(head.info and head.info.plan.kind == "sweep" and head.headline and head.state != "running")


def has_pending_restore(head: RunSummary) -> bool:
    """Whether a run was cut off before the box was as it had been."""
    return bool(head.info and head.info.restore_pending and head.state != "running")


class BenchRuns(PersistentScreen):
    """The verbs. What is drawn is in ``screens.bench``."""

    rows: RunRows
    heads: tuple[RunSummary, ...]
    live: RunProgress | None

    def __init__(self, service: BenchService) -> None:
        super().__init__()
        self.service = service
        self.starting = False
        """Whether a run was started here that is not seen at work yet."""

    async def read_heads(self) -> None:
        """Brings the list up to date."""
        raise NotImplementedError

    def show_live(self) -> None:
        """Brings the run at work to the pane."""
        raise NotImplementedError

    def show_ended(self, run: str) -> None:
        """A run that was started here is over, and was perhaps never seen at work; empty: there is none."""
        raise NotImplementedError

    def at_hand(self) -> RunSummary | None:
        """The run under the cursor, where it can be seen."""
        raise NotImplementedError

    def choices(self) -> tuple[list[str], str]:
        """The owner's profiles, and the one that runs."""
        raise NotImplementedError

    def refused(self) -> bool:
        """Says why nothing can be run now; whether that is so."""
        if self.service.read_only:
            self.say(self.service.read_only, bad=True)
        elif self.live or self.starting:
            self.say(ONE_AT_A_TIME)
        return bool(self.service.read_only or self.live or self.starting)

    def needless(self) -> frozenset[str]:
        """The verbs that have nothing to do now: the bar leaves their keys out."""
        head, free = self.at_hand(), not (self.live or self.starting or self.service.read_only)
        at_cursor = bool(head and self.live and head.id == self.live.info.id)
        useful = {
            "bench_plan": free,
            "bench_measure": free and bool(self.choices()[1] or self.service.url),
            "bench_open": bool(head),
            "bench_mark": len(self.heads) > 1,
            "bench_compare": len(self.rows.marked) == 2,
            "bench_board": bool(self.heads),
            "bench_live": bool(self.live) and not at_cursor,
            "bench_resume": free and bool(head and head.info and (head.state != "finished" or head.restore_pending)),
            "bench_save": bool(head and has_best_cell(head)),
            "bench_restore": free and any(map(has_pending_restore, self.heads)),
            "bench_remove": at_cursor or bool(head and not self.service.read_only and not self.starting),
            "bench_export": bool(self.what_is_shown()),
        }
        return frozenset(verb for verb, of_use in useful.items() if not of_use)

    async def ask(self, title: str, body: str, answers: Sequence[DialogAnswer]) -> str | None:
        """The owner's answer."""
        app: Any = self.app
        found: str | None = await app.push_screen_wait(QuestionScreen(title, body, answers))
        return found

    # -- running --------------------------------------------------------------------------------------

    def rate(self) -> float | None:
        """Tokens a second that what runs generates, as far as its requests told."""
        raise NotImplementedError

    def plan_speed(self) -> None:
        """The quick ``speed`` on what runs, after one question; n has the long ones."""
        if not self.refused():
            _, active = self.choices()
            if not active and not self.service.url:
                self.say("Nothing runs. Start a profile first, or plan a run with n.")
                return
            of_it = ["--url", self.service.url] if self.service.url else [active]
            words = ["speed", *of_it, "--preset", "quick"]
            self.work(lambda: self.begin(words, confirm=True), "bench-begin")

    def action_bench_measure(self) -> None:
        self.plan_speed()

    def action_bench_plan(self) -> None:
        if self.refused():
            return
        from gpubox.tui.bench.plan_screen import PlanScreen

        profiles, active = self.choices()

        def taken(words: list[str] | None) -> None:
            if words:
                self.work(lambda: self.begin(words, confirm=False), "bench-begin")

        self.app.push_screen(PlanScreen(self.service, profiles, active, self.rate()), taken)

    async def begin(self, words: Sequence[str], *, confirm: bool) -> None:
        """Runs ``gpubox bench WORDS``: asks where somebody is answered, and first of all where ``confirm``."""
        if self.refused():
            return
        now, busy = False, await self.service.busy()
        if busy or confirm:
            said = outline_sentences(await self.service.outline(words), self.rate())
            answers = [DialogAnswer("n", "not now", "no"), DialogAnswer("y", "begin", "yes")]
            if busy:
                said.append(f"Somebody is being answered: {'; '.join(busy)}.")
                answers = [
                    DialogAnswer("n", "not now", "no"),
                    DialogAnswer("y", "begin at once; that answer is cut off", "now"),
                ]
            body = "\n".join([*said, "", bench_command_line(words)])
            what = self.service.url or words[1]
            answer = await self.ask(f"Measure {what}?" if confirm else "Begin?", body, answers)
            if answer not in ("yes", "now") or self.refused():
                return
            now = answer == "now"
        await self._run(list(words), now=now)

    async def _run(self, words: list[str], *, now: bool) -> None:
        known = {head.id for head in self.heads}
        self.starting = True
        self.show_live()
        try:
            ended = await self.service.run(words, now=now)
        finally:
            self.starting = False
            await self.read_heads()
            new = (head.id for head in self.heads if head.id not in known)
            self.show_ended(words[1] if words[0] == "resume" else next(new, ""))
        if not ended.ok:
            self.say(ended.text, bad=True)

    def action_bench_resume(self) -> None:
        head = self.at_hand()
        if head is None or self.refused():
            return
        if head.state == "finished" and not head.restore_pending:
            self.say("It is finished; nothing is left to do.")
        elif head.info:
            self.work(lambda: self.begin(["resume", head.id], confirm=False), "bench-begin")

    # -- stopping and removing ------------------------------------------------------------------------

    def action_bench_remove(self) -> None:
        """Stops the run at work, where it is under the cursor; else removes the run there."""
        head = self.at_hand()
        if self.starting and not self.live:
            self.say("It is being started; x stops it once it is at work.")
        elif self.live and (head is None or head.id == self.live.info.id):
            live = self.live
            self.work(lambda: self._stop(live), "bench-stop")
        elif head and not self.service.read_only:
            self.work(lambda: self._remove(head), "bench-remove")

    async def _stop(self, live: RunProgress) -> None:
        body = f"{live.done} of {live.info.items} items are done and stay; r goes on with it later."
        answers = [DialogAnswer("n", "go on", "no"), DialogAnswer("y", "stop it; what ran before runs again", "yes")]
        if await self.ask("Stop the run?", body, answers) == "yes":
            await self.service.stop(live)

    async def _remove(self, head: RunSummary) -> None:
        restore_pending = (
            f"{head.restore_pending} ran before it and is not back yet; it will not come back by this.\n"
            if head.restore_pending
            else ""
        )
        answers = [DialogAnswer("n", "keep it", "no"), DialogAnswer("y", "delete it with all that was measured", "yes")]
        if (
            await self.ask(
                f"Delete {head.id}?", f"{restore_pending}{head.headline or head.problem or head.state}", answers
            )
            == "yes"
        ):
            await self.service.remove(head.id)
            await self.read_heads()

    # -- after a run ----------------------------------------------------------------------------------

    def action_bench_save(self) -> None:
        head = self.at_hand()
        if head and has_best_cell(head):
            self.work(lambda: self._save(head), "bench-save")
        else:
            self.say("Only a sweep that is over has a best cell to save.")

    async def _save(self, head: RunSummary) -> None:
        from gpubox.tui.dialogs import PromptScreen

        best = await self.service.best(head.id)
        name, body = best.name, f"The best cell: {best.cell}. A name for it:"
        app: Any = self.app
        while name := await app.push_screen_wait(PromptScreen("Save as a profile", name, body)):
            try:
                await self.service.keep(head.id, name)
            except UsageError as error:
                body = f"{error.message} Another name:"
            else:
                self.say(f"Saved as the profile {name}; it is in the list of the dashboard.")
                return

    def action_bench_restore(self) -> None:
        if not self.refused():
            self.work(self._give_back, "bench-begin")

    async def _give_back(self) -> None:
        await self.read_heads()  # asked for from the palette, the screen may have read nothing yet
        owing = next((head for head in self.heads if has_pending_restore(head)), None)
        if owing is None:
            self.say("No run that was cut off has left its server behind.")
            return
        body = f"{owing.id} was cut off; {owing.restore_pending or 'nothing'} ran before it. r goes on with the run instead."
        answers = [
            DialogAnswer("n", "not now", "no"),
            DialogAnswer("y", "stop what it left, and bring that back", "yes"),
        ]
        if await self.ask("Give back what ran before?", body, answers) == "yes":
            self.say("It is being brought back ...")
            back = await self.service.restore()
            await self.read_heads()
            self.say(f"{back} is back." if back else "Nothing runs, as before.")

    # -- sharing --------------------------------------------------------------------------------------

    def what_is_shown(self) -> list[str]:
        """In the words of ``bench export``; empty where nothing can be shared."""
        raise NotImplementedError

    def action_bench_export(self) -> None:
        if self.what_is_shown():
            self.work(self._export, "bench-export")

    async def _export(self) -> None:
        what = self.what_is_shown()
        answers = [DialogAnswer("m", "Markdown", "md"), DialogAnswer("s", "SVG charts", "svg"), DialogAnswer("c", "CSV", "csv"),
                   DialogAnswer("j", "JSON", "json")]  # fmt: skip
        form = await self.ask(f"Export {' '.join(what)}", "Without paths, host names and keys.", answers)
        if form:
            try:
                self.say(f"Wrote {await self.service.export(what, form)}")
            except GpuboxError as error:
                self.say(str(error), bad=True)
