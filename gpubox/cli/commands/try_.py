"""``gpubox try PROFILE --set NAME=VALUE``."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import click

from gpubox.cli import diagnostics, output
from gpubox.cli.commands.edit import check_edit, parse_changes
from gpubox.cli.context import Context
from gpubox.cli.operations import OperationOutput, anyway_option, ensure_model, supervisor_of
from gpubox.cli.options import json_option, yes_option
from gpubox.concurrency import run_cancellable
from gpubox.errors import GpuboxError, UsageError
from gpubox.hardware.process import is_alive
from gpubox.profiles.edit import ProfileEdit, edit_profile
from gpubox.server.instance import observe
from gpubox.server.state import pending_trial
from gpubox.server.supervisor import Supervisor, instance_of
from gpubox.server.trial import Trial, recover_trial

if TYPE_CHECKING:
    from gpubox.bench.report.run_comparison import RunComparison
    from gpubox.bench.run_store import Run


@dataclass(frozen=True, slots=True)
class _Outcome:
    """What a trial has shown."""

    before: Run | None
    after: Run | None
    comparison: RunComparison | None
    edit: ProfileEdit

    @property
    def sentence(self) -> str:
        """Whether the change is faster; empty if it was not compared."""
        from gpubox.bench.trial_measurement import summarize

        if self.comparison is None or self.before is None:
            return ""
        return summarize(self.comparison, self.edit.unchanged, self.edit.profile, self.before.info.plan.targets[0].name)


@click.command("try")
@click.argument("profile", required=False)
@click.option("--set", "sets", multiple=True, metavar="NAME=VALUE", help="Change a flag or another key; repeatable.")
@click.option("--unset", multiple=True, metavar="NAME", help="Leave out a flag or another key; repeatable.")
@click.option("--keep", is_flag=True, help="Write the change without a question if the server starts.")
@click.option("--revert", is_flag=True, help="Bring back what ran before without a question.")
@click.option("--no-measure", is_flag=True, help="Only switch; measure nothing.")
@click.option("--now", is_flag=True, help="Do not wait for running requests; cut them off.")
@anyway_option
@yes_option
@json_option
@click.pass_obj
def command(
    context: Context, profile: str | None, sets: tuple[str, ...], unset: tuple[str, ...], keep: bool, revert: bool,
    no_measure: bool, now: bool, anyway: bool, yes: bool, as_json: bool,
) -> None:  # fmt: skip
    """Run a changed PROFILE without writing it, measure it for a minute, then keep or revert the change.

    gpubox measures what runs now first. Until you keep the change, Ctrl-C, a lost terminal or a kill of gpubox bring
    back what ran before. Without PROFILE, gpubox reverts a trial that a killed gpubox left behind.
    """
    if profile is None:
        _recover(context, as_json)
        return
    if keep and revert:
        raise UsageError("--keep and --revert cannot be combined.", "Leave one of them out.")
    if not (sets or unset):
        raise UsageError("Nothing to try.", f"Write: gpubox try {profile} --set n-cpu-moe=20")
    if not (keep or revert or diagnostics.stderr_is_terminal()):
        raise UsageError("There is no terminal to ask at.", "Add --keep or --revert.")
    edited = context.profile(profile)
    edit = edit_profile(edited, parse_changes(sets, unset, edited, context), context.paths)
    check_edit(edit, context, hint="Nothing is tried.")
    ensure_model(context, edit.profile)
    supervisor = supervisor_of(context, instance_of(edit.profile, context.paths), OperationOutput(), anyway=anyway)
    trial, outcome = run_cancellable(_begin(context, edit, supervisor, measure=not no_measure, now=now, yes=yes))
    keep = keep or (not revert and _ask_keep(trial, outcome))
    _end(trial, keep)
    if as_json:
        output.emit_json(_values(trial, outcome, keep))
    elif outcome.sentence:
        output.emit(outcome.sentence)
    kept = f"{profile} is written: {edit.path}"
    previous = f"{trial.record.previous.profile} runs as before" if trial.record.previous else "nothing runs, as before"
    if not as_json:
        output.emit(kept if keep else f"The change is reverted: {previous}.")


async def _begin(
    context: Context, edit: ProfileEdit, supervisor: Supervisor, *, measure: bool, now: bool, yes: bool
) -> tuple[Trial, _Outcome]:
    from gpubox.bench.report.load import load_comparison
    from gpubox.bench.trial_measurement import measure_running
    from gpubox.cli.bench.run_progress import RunProgressOutput

    async def measured(tokens: int) -> tuple[Run | None, int]:
        if not measure:
            return None, tokens
        side = await measure_running(supervisor.instance, tokens, context.paths, context.config, RunProgressOutput())
        return side or (None, tokens)

    running = observe(context.paths, supervisor.instance).running
    replaced = [running] if running else []
    await asyncio.to_thread(supervisor.check_memory, edit.profile, replaced)  # before a minute of measuring
    before, tokens = await measured(0)
    trial = await Trial.begin(edit, supervisor, stop_now=now, allow_exposed=yes)
    try:
        after, _ = await measured(tokens)
        comparison = load_comparison(before, after) if before and after else None
    except BaseException:
        await _revert_uninterrupted(trial)
        raise
    return trial, _Outcome(before, after, comparison, edit)


async def _revert_uninterrupted(trial: Trial) -> None:
    if task := asyncio.current_task():
        task.uncancel()  # Ctrl-C: what ran before comes back; a second Ctrl-C ends that too
    diagnostics.note("  reverting …")
    await trial.revert()


def _ask_keep(trial: Trial, outcome: _Outcome) -> bool:
    """Asks for one key. Everything but ``k`` reverts: also Ctrl-C and a closed terminal."""
    if outcome.sentence:
        diagnostics.note(outcome.sentence)
    diagnostics.note(f"k keeps the change ({'; '.join(trial.edit.diff)}), any other key reverts it")
    try:
        return click.getchar().lower() == "k"
    except (KeyboardInterrupt, EOFError, OSError):
        return False


def _end(trial: Trial, keep: bool) -> None:
    try:
        if keep:
            run_cancellable(trial.keep())
            return
    except GpuboxError:
        run_cancellable(trial.revert())
        raise
    run_cancellable(trial.revert())


def _recover(context: Context, as_json: bool) -> None:
    record = pending_trial(context.paths)
    reverted = run_cancellable(recover_trial(context.paths, context.config))
    if record and reverted is None and not is_alive(record.owner):
        raise GpuboxError(f"The trial of {record.profile} is being reverted already.", "`gpubox status` shows it.")
    if record and reverted is None:
        raise GpuboxError(f"{record.profile} is being tried in another gpubox.", "Keep or revert it in that gpubox.")
    text = f"The trial of {reverted} is reverted." if reverted else "No trial was left behind."
    output.emit_result(text, {"profile": reverted}, as_json=as_json)


def _values(trial: Trial, outcome: _Outcome, keep: bool) -> dict[str, Any]:
    from msgspec import to_builtins

    return {
        "profile": trial.record.profile,
        "changed": list(trial.edit.diff),
        "kept": keep,
        "path": str(trial.edit.path),
        "before_run": outcome.before.id if outcome.before else None,
        "after_run": outcome.after.id if outcome.after else None,
        "sentence": outcome.sentence or None,
        "comparison": to_builtins(outcome.comparison) if outcome.comparison else None,
    }
