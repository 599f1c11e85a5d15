"""One trial on the screen: measures what runs, switches, measures the change; then one key keeps or reverts it."""

from __future__ import annotations

import asyncio
import contextlib
import threading
import traceback
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import TYPE_CHECKING, ClassVar, Literal

from textual import on
from textual.app import ComposeResult
from textual.binding import BindingType
from textual.content import Content
from textual.widgets import OptionList, Static
from textual.widgets.option_list import Option

from gpubox.concurrency import run_in_thread
from gpubox.errors import GpuboxError
from gpubox.sanitize import sanitize_line
from gpubox.tui.actions import ACTIONS_BY_ID, Scope, bindings
from gpubox.tui.base_screen import PushedScreen
from gpubox.tui.dialogs import ChoiceList
from gpubox.tui.messages import TrialChanged
from gpubox.tui.operation_progress import OperationProgress, progress_parts
from gpubox.tui.widgets.lines import wrap_phrases

if TYPE_CHECKING:
    from gpubox.bench.run_store import Run
    from gpubox.profiles.edit import ProfileEdit
    from gpubox.server.trial import Trial
    from gpubox.tui.bridge import ServiceBridge
    from gpubox.tui.messages import ServerOverview
    from gpubox.tui.operations import OperationController
    from gpubox.tui.workshop.edit_session import EditSession
    from gpubox.tui.workshop.profile_files import WorkshopService


class Stage(StrEnum):
    """The steps of a trial, in their order."""

    BEFORE = "measure what runs"
    SWITCH = "switch to the change"
    AFTER = "measure the change"
    DECIDE = "keep or revert"
    ENDING = "end the trial"
    OVER = "over"


@dataclass(frozen=True, slots=True)
class TrialProgress:
    """How far a trial is."""

    profile: str
    changes: str
    """``n-cpu-moe 18 instead of 22``."""
    stage: Stage = Stage.BEFORE
    before: str = ""
    """What the first measurement gave, or why there is none; empty: not yet."""
    after: str = ""
    verdict: str = ""
    problem: str = ""
    """Why the trial failed, or why it could not be kept."""
    outcome: str = ""
    """How it ended."""

    @property
    def summary(self) -> str:
        """The trial in one line; empty while an operation says more, and when it is over."""
        if self.stage in (Stage.SWITCH, Stage.ENDING, Stage.OVER):
            return ""
        if self.stage is Stage.DECIDE:
            return f"trying {self.changes}: {self.verdict}  t: keep or revert it"
        return f"trying {self.changes}: {self.stage}"


class TrialController:
    """One trial at a time. It goes on while its screen is closed; the owner's decision ends it."""

    def __init__(
        self, bridge: ServiceBridge, operations: OperationController, service: WorkshopService, session: EditSession,
        edit: ProfileEdit,
    ) -> None:  # fmt: skip
        self.bridge, self.operations, self.service, self.edit = bridge, operations, service, edit
        from gpubox.tui.workshop.edit_session import describe_changes

        self.profile = edit.name
        self.progress = TrialProgress(edit.name, describe_changes(session.rows))
        self._trial: Trial | None = None
        self._decision: Literal["", "keep", "revert", "again"] = ""
        self._decided = asyncio.Event()
        self._stop = threading.Event()
        """Ends the measurement under way."""
        self.over = asyncio.Event()

    @property
    def under_way(self) -> bool:
        return self.progress.stage is not Stage.OVER

    @property
    def can_keep(self) -> bool:
        return self.progress.stage is Stage.DECIDE

    async def run(self, *, stop_now: bool, allow_exposed: bool, anyway: bool) -> bool:
        """The whole trial. Returns whether the change was kept."""
        try:
            await self._run(stop_now, allow_exposed, anyway)
        except GpuboxError as error:
            self._show(stage=Stage.OVER, problem=str(error), outcome="The change is not written.")
        except Exception as error:  # a fault of gpubox must not leave the tried server behind
            self.bridge.services.save_traceback(traceback.format_exc())
            self._show(problem=f"gpubox failed: {type(error).__name__}: {error}. What ran before is restored.")
            if self._trial:
                with contextlib.suppress(GpuboxError):
                    await run_in_thread(self.service.revert, self._trial)
            self._show(stage=Stage.OVER, outcome="The change is not written.")
        finally:
            self.over.set()
        return self._decision == "keep" and not self.progress.problem

    async def _run(self, stop_now: bool, allow_exposed: bool, anyway: bool) -> None:
        profile = self.edit.profile
        first, tokens = None, 0
        if await run_in_thread(self.service.answering, profile):
            first, tokens = await self._measure(Stage.BEFORE)
        else:
            self._show(before="nothing ran")
        if self._decision:
            self._show(stage=Stage.OVER, outcome="Nothing was switched, and nothing is written.")
            return
        self._show(stage=Stage.SWITCH)
        self.operations.begin("trial", self.profile)
        self._trial = await self.operations.perform(
            lambda emit: self.service.begin_trial(self.edit, stop_now, allow_exposed, emit, anyway=anyway)
        )
        await self._measure_after(first, tokens)
        while True:
            if await self._wait_for_decision() == "again":
                self._reset()
                await self._measure_after(first, tokens)
            elif await self._end(self._trial):
                return

    async def _wait_for_decision(self) -> str:
        if not self._decision:
            self._show(stage=Stage.DECIDE)
        await self._decided.wait()
        return self._decision

    async def _measure_after(self, first: Run | None, tokens: int) -> None:
        """Measures the change, and compares it with what ran ``first``."""
        if self._decision:
            return
        self._show(after="", verdict="")
        second, _ = await self._measure(Stage.AFTER, tokens)
        if not self._decision:
            self._show(verdict=await self._compare(first, second) if first and second else "Not compared.")

    def _reset(self) -> None:
        self._decision = ""
        self._decided.clear()

    async def _measure(self, stage: Stage, tokens: int = 0) -> tuple[Run | None, int]:
        """The stored run and the tokens of each answer; no run if it failed or was skipped."""
        self._stop.clear()
        self._show(stage=stage)
        if self._decision:
            return None, tokens
        run: Run | None = None
        try:
            run, tokens, text = await run_in_thread(self.service.measure, self.edit.profile, tokens, self._stop)
        except GpuboxError as error:
            text = f"not measured: {error.message}"
        if stage is Stage.BEFORE:
            self._show(before=text)
        else:
            self._show(after=text)
        return run, tokens

    async def _compare(self, first: Run, second: Run) -> str:
        try:
            return await run_in_thread(self.service.compare_sides, self.edit, first, second)
        except GpuboxError as error:
            return f"Not compared: {error.message}"

    async def _end(self, trial: Trial) -> bool:
        """Carries the decision out. False if the change cannot be kept; it can still be reverted."""
        self._show(stage=Stage.ENDING, problem="")
        if self._decision == "revert":
            previous = trial.record.previous.profile if trial.record.previous else ""
            self.operations.begin("revert", previous or self.profile)
            await self.operations.perform(lambda emit: self.service.revert(trial))
            back = f"{previous} runs as before" if previous else "nothing runs, as before"
            self._show(stage=Stage.OVER, outcome=f"The change is reverted: {back}.")
            return True
        try:
            path = await run_in_thread(self.service.keep, trial)
        except GpuboxError as error:
            self._reset()
            self._show(problem=str(error))
            return False
        self._show(stage=Stage.OVER, outcome=f"{self.profile} is written: {path}")
        return True

    def _show(self, **changes: object) -> None:
        self.progress = replace(self.progress, **changes)  # type: ignore[arg-type]
        self.bridge.trial = self.profile if self.under_way else ""
        self.bridge.app.post_message(TrialChanged(self.progress.summary))

    # -- decisions ------------------------------------------------------------------------------------

    def keep(self) -> bool:
        """Keeps the change. Returns False if it is too early for that."""
        if not self.can_keep:
            return False
        self._decide("keep")
        return True

    def again(self) -> None:
        """Measures the change once more, before the decision."""
        if self.can_keep:
            self._decide("again")

    def revert(self) -> None:
        """Reverts at the next possible moment."""
        if self.progress.stage in (Stage.ENDING, Stage.OVER):
            return
        self._decide("revert")
        if self.progress.stage is Stage.SWITCH:
            self.bridge.services.cancel()
        self._stop.set()

    def skip(self) -> None:
        """Ends the measurement under way."""
        self._stop.set()

    @property
    def choices(self) -> list[str]:
        """The ids of what the owner can do now, the safe one first."""
        if self.progress.stage is Stage.DECIDE:
            return ["trial_keep", "trial_revert", "trial_again"]
        if self.progress.stage in (Stage.BEFORE, Stage.AFTER):
            return ["trial_skip", "trial_revert"]
        return ["trial_revert"] if self.progress.stage is Stage.SWITCH else []

    def _decide(self, decision: Literal["keep", "revert", "again"]) -> None:
        self._decision = decision
        self._decided.set()


def trial_lines(progress: TrialProgress, operation: OperationProgress | None, live: str, width: int) -> Content:
    """The trial, step by step; ``live`` is the progress of the measurement."""
    lines = [Content.styled(sanitize_line(progress.verdict), "bold"), Content("")] if progress.verdict else []
    lines += [Content.assemble(("trying ", "$quiet"), (sanitize_line(progress.changes), "bold"), ("  in ", "$quiet"),
                               (sanitize_line(progress.profile), "bold $primary")), Content("")]  # fmt: skip
    stages = list(Stage)
    at = stages.index(progress.stage)
    switching = wrap_phrases(progress_parts(operation), max(20, width - 4)) if operation else Content("")
    for stage, result in (
        (Stage.BEFORE, Content(sanitize_line(progress.before))),
        (Stage.SWITCH, Content("")),
        (Stage.AFTER, Content(sanitize_line(progress.after))),
    ):
        index = stages.index(stage)
        if progress.stage is Stage.OVER and not (progress.before if stage is Stage.BEFORE else progress.after):
            continue
        glyph, style = ("✓", "$success") if at > index else ("◌", "$accent") if at == index else ("·", "$quiet")
        text = result if result.plain or at != index else Content.styled(live, "$quiet")
        lines.append(Content.assemble((f"{glyph} ", style), (f"{stage:<22}", "" if at >= index else "$quiet"), text))
        if stage is Stage.SWITCH and at == index and switching.plain:
            lines += [Content("    ") + line for line in switching.split("\n")]
    lines.append(Content(""))
    if progress.problem:
        lines += [Content.assemble(("✗ ", "$error"), sanitize_line(progress.problem)), Content("")]
    if progress.outcome:
        lines.append(
            Content.assemble(("✓ ", "$success") if not progress.problem else "", sanitize_line(progress.outcome))
        )
    elif progress.stage is Stage.ENDING:
        lines.append(Content.styled("…", "$accent"))
    return Content("\n").join(lines)


class TrialScreen(PushedScreen):
    """Shows the trial of the app."""

    AUTO_FOCUS = ""
    BINDINGS: ClassVar[list[BindingType]] = [*bindings(Scope.TRIAL)]
    DEFAULT_CSS = """
    TrialScreen ChoiceList { padding: 0 2; background: $background; }
    TrialScreen #trial-frame {
        height: 1fr; border: round $line-focus; padding: 1 2; border-title-color: $foreground; overflow: auto;
    }
    """

    def __init__(self, trial: TrialController, *, note: str = "") -> None:
        super().__init__(Scope.TRIAL, note=note)
        self.trial = trial
        self.text = Static("", id="trial-frame", markup=False)
        self.text.border_title = "Try once"
        self.rows = ChoiceList()
        self._choices: list[str] = []
        self._is_new = True

    def compose(self) -> ComposeResult:
        yield self.header
        yield self.text
        yield self.rows
        yield self.keys

    def on_mount(self) -> None:
        self.refresh_trial()

    def on_resize(self) -> None:
        self.refresh_trial()

    def show_overview(self, overview: ServerOverview | None) -> None:
        self.refresh_trial()  # the header's run of the measurement may have made progress

    def refresh_trial(self) -> None:
        """Draws the trial as it is now."""
        if not self.is_mounted:
            return
        progress = self.trial.progress
        live = self.header.bench.removeprefix("bench speed ")
        operation = self.trial.bridge.operation if progress.stage in (Stage.SWITCH, Stage.ENDING) else None
        self.text.update(trial_lines(progress, operation, live, max(20, self.app.size.width - 8)))
        if self.trial.choices != self._choices:
            self._choices = self.trial.choices
            actions = [ACTIONS_BY_ID[name] for name in self._choices]
            self.rows.set_options(
                [Option(Content.assemble(f"{a.title:<26}", (a.help, "$quiet")), id=a.id) for a in actions]
            )
            # Rows that change under the owner's hand are not highlighted: Enter decides nothing by chance.
            opened, self._is_new = self._is_new, False
            self.rows.highlighted = 0 if opened and self.trial.can_keep else None
            self.rows.display = bool(actions)
            self.rows.focus()
        self.keys.hidden_actions = frozenset() if self._choices else frozenset({"trial_choose"})

    @on(OptionList.OptionSelected)
    async def _chosen(self, event: OptionList.OptionSelected) -> None:
        await self.run_action(f"{event.option_id}")

    def action_trial_keep(self) -> None:
        if not self.trial.keep() and self.trial.under_way:
            self.say("The change can be kept after it is measured.")

    def action_trial_again(self) -> None:
        self.trial.again()

    def action_trial_revert(self) -> None:
        self.trial.revert()

    def action_trial_skip(self) -> None:
        self.trial.skip()

    def action_trial_back(self) -> None:
        self.dismiss(None)
