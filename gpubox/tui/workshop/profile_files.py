"""What the editor and trials ask of this machine. All methods block: the screen runs them in threads."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import TYPE_CHECKING, Any

from gpubox.engines.capabilities import engine_words, find_refusals
from gpubox.engines.find import choose_engine, find_engines
from gpubox.engines.query import canonical_names, read_capabilities
from gpubox.errors import UsageError
from gpubox.paths import MAIN_INSTANCE
from gpubox.profiles.argv import redacted_env
from gpubox.profiles.comparison import compare_profiles
from gpubox.profiles.edit import change_text, last_former, save_edit, unchanged
from gpubox.server.instance import observe, running_servers
from gpubox.server.launch import preview_launch
from gpubox.server.state import load_state
from gpubox.server.supervisor import instance_of
from gpubox.tui.messages import UndoStep
from gpubox.tui.workshop.edit_session import EditSession, changed_words

if TYPE_CHECKING:
    from pathlib import Path

    from gpubox.bench.report.model import RunSummary
    from gpubox.bench.run_store import Run
    from gpubox.config import Config
    from gpubox.engines.capabilities import Capabilities
    from gpubox.paths import Paths
    from gpubox.planner.plan import MemoryPlan
    from gpubox.planner.planner import Planner
    from gpubox.profiles.comparison import ComparedKey
    from gpubox.profiles.edit import KeyValue, ProfileEdit
    from gpubox.profiles.profile import Profile
    from gpubox.server.trial import Trial
    from gpubox.toml_edit import KeyPath

    Emit = Callable[[Any], None]
    RunOperation = Callable[[Coroutine[Any, Any, Any]], Any]


@dataclass(frozen=True, slots=True)
class Assessment:
    """What is known of a changed profile without asking its engine."""

    words: tuple[tuple[str, bool], ...] = ()
    """The command line: each option with its values, and whether it is new; env first."""
    refusals: Mapping[str, str] = field(default_factory=dict)
    """Flag -> why the engine refuses it."""
    problem: str = ""
    """Why the profile cannot be saved."""
    profile: Profile | None = None


@dataclass(frozen=True, slots=True)
class ProfileComparison:
    """Two profiles: what their files say, what they would use, and what was measured."""

    names: tuple[str, str]
    keys: tuple[ComparedKey, ...]
    plans: tuple[MemoryPlan | None, MemoryPlan | None]
    measured: tuple[RunSummary | None, RunSummary | None]
    """The last finished speed run of each."""


class WorkshopService:
    """The profile files, plans and trials of this machine. Methods raise GpuboxError."""

    def __init__(self, paths: Paths, config: Callable[[], Config], run_operation: RunOperation) -> None:
        """``config`` returns the present settings; ``run_operation`` runs a cancellable operation of the Supervisor."""
        self.paths, self._config, self._run_operation = paths, config, run_operation
        self._planner: tuple[Config, Planner] | None = None

    # -- editing ------------------------------------------------------------------------------------

    def open_profile(self, profile: Profile) -> EditSession:
        """Reads the profile's file and its engine's options."""
        capabilities, engine = self.engine_options(profile.engine)
        engines = tuple(engine.name for engine in find_engines(self._config()))
        return EditSession(profile, unchanged(profile, self.paths), capabilities, engine, engines)

    def engine_options(self, name: str) -> tuple[Capabilities, str]:
        """The options of an engine, and its name with the version."""
        engine = choose_engine(self._config(), name)
        capabilities = read_capabilities(engine, self.paths)
        return capabilities, engine_words(engine, capabilities.version)

    def edit(self, base: ProfileEdit, changes: Mapping[KeyPath, KeyValue]) -> ProfileEdit:
        """``base`` with the changes. Raises UsageError if it would not load."""
        edit = replace(base, after=change_text(base.before, changes)) if changes else base
        _ = edit.profile
        return edit

    def assess(self, profile: Profile, base: ProfileEdit, changes: Mapping[KeyPath, KeyValue]) -> Assessment:
        """The command line and the refusals of the changed profile. Starts no process."""
        try:
            changed = replace(self.edit(base, changes).profile, shipped=profile.shipped)
        except UsageError as error:
            return Assessment(problem=str(error))
        config = self._config()
        preview = preview_launch(changed, self.paths, config, ask_engine=False)
        before = preview_launch(profile, self.paths, config, ask_engine=False).argv if changes else preview.argv
        refusals: dict[str, str] = {}
        if preview.engine:
            capabilities, _ = self.engine_options(changed.engine)
            for refusal in find_refusals(capabilities, changed.flags):
                refusals[refusal.flag] = f"{refusal.why}{f' ({refusal.hint})' if refusal.hint else ''}"
        problem = "" if preview.engine or preview.refusal is None else str(preview.refusal)
        problem = problem or changed.elsewhere
        env = tuple((f"{name}={value}", False) for name, value in redacted_env(changed.env).items())
        return Assessment((*env, *changed_words(before, preview.argv)), refusals, problem, changed)

    def plan(self, profile: Profile, *, may_dry_run: bool = False) -> MemoryPlan | None:
        """The memory that a start of ``profile`` in place of what runs would take.

        ``may_dry_run``: whether the engine may be run, until its load begins, to measure its compute buffers. Cached.
        """
        from gpubox.planner.planner import Planner

        config = self._config()
        if self._planner is None or self._planner[0] is not config:
            self._planner = config, Planner(self.paths, config)
        replaces = running_servers(self.paths, instance_of(profile, self.paths))
        return self._planner[1].plan(profile, replaces=replaces, may_dry_run=may_dry_run)

    def check(self, edit: ProfileEdit) -> str:
        """Why the engine itself refuses the changed profile; empty if it accepts it. Starts the engine's parser."""
        preview = preview_launch(edit.profile, self.paths, self._config())
        return str(preview.refusal) if preview.engine and preview.refusal else ""

    def save(self, edit: ProfileEdit) -> Path:
        """Writes the edit. Raises GpuboxError if the file has changed since it was read."""
        return save_edit(edit, self.paths)

    def undo_steps(self) -> list[UndoStep]:
        """What can be taken back, the last first: a switch, and the last change of a profile's file."""
        state, former = load_state(self.paths.instance_state(MAIN_INSTANCE)), last_former(self.paths)
        steps = [(former.at, UndoStep(str(former), former.name, runs=False))] if former else []
        if name := state.previous_profile:
            at = datetime.fromisoformat(state.running.started_at).timestamp() if state.running else 0.0
            steps.append((at, UndoStep(f"back to {name} (ran before)", name, runs=True)))
        return [step for _, step in sorted(steps, key=lambda each: each[0], reverse=True)]

    # -- comparing ----------------------------------------------------------------------------------

    def compare(self, left: Profile, right: Profile) -> ProfileComparison:
        """Two profiles side by side."""
        from gpubox.bench.report.run_summaries import run_summaries

        runs = list(reversed(run_summaries(self.paths)))
        return ProfileComparison(
            (left.name, right.name),
            compare_profiles(left, right, canonical_names(left.engine, self._config(), self.paths)),
            (self.plan(left), self.plan(right)),
            (_last_speed_run(runs, left.name), _last_speed_run(runs, right.name)),
        )

    # -- trying -------------------------------------------------------------------------------------

    def answering(self, profile: Profile) -> str | None:
        """The profile whose server a trial of ``profile`` would replace, if it answers."""
        running = observe(self.paths, instance_of(profile, self.paths)).running
        return running.launch.profile if running and running.ready_at else None

    def measure(self, profile: Profile, tokens: int, stop: threading.Event) -> tuple[Run, int, str]:
        """Measures the server that runs in the place of ``profile``, apart from this process, until ``stop``.

        Returns the stored run, the tokens of each answer and the main figure: ``tg 70.2 tok/s``. ``tokens``: 0 chooses
        them.
        """
        from gpubox.bench.report.run_summaries import run_summary
        from gpubox.bench.trial_measurement import measure_apart

        run, tokens = measure_apart(instance_of(profile, self.paths), tokens, self.paths, stop)
        return run, tokens, run_summary(run).headline

    def compare_sides(self, edit: ProfileEdit, before: Run, after: Run) -> str:
        """One sentence: what the change did to the speed."""
        from gpubox.bench.report.load import load_comparison
        from gpubox.bench.trial_measurement import summarize

        ran = before.info.plan.targets[0].name
        return summarize(load_comparison(before, after), edit.unchanged, edit.profile, ran)

    def begin_trial(
        self, edit: ProfileEdit, stop_now: bool, allow_exposed: bool, emit: Emit, *, anyway: bool = False
    ) -> Trial:
        """Switches to the changed profile. Raises GpuboxError if it does not start: then what ran before runs."""
        from gpubox.planner.supervisors import make_supervisor
        from gpubox.server.trial import Trial

        instance = instance_of(edit.profile, self.paths)
        supervisor = make_supervisor(self.paths, self._config(), instance, emit, anyway=anyway)
        trial: Trial = self._run_operation(
            Trial.begin(edit, supervisor, stop_now=stop_now, allow_exposed=allow_exposed)
        )
        return trial

    def keep(self, trial: Trial) -> Path:
        """Writes the tried profile. Raises GpuboxError, and the trial goes on, if its file has changed meanwhile."""
        return asyncio.run(trial.keep())

    def revert(self, trial: Trial) -> None:
        """Brings back what ran before. Raises GpuboxError if that fails."""
        self._run_operation(trial.revert())


def _last_speed_run(runs: list[RunSummary], profile: str) -> RunSummary | None:
    """The newest finished speed run of the profile alone; a trial's run of a changed copy does not count."""
    for run in runs:
        plan = run.info.plan if run.info else None
        if plan and plan.kind == "speed" and run.state == "finished" and run.metrics:
            (target, *others) = plan.targets
            if not others and target.profile == profile and not target.overrides:
                return run
    return None
