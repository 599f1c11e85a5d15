"""Runs the Supervisor for a verb: progress on stderr, one result on stdout."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any

import click

from gpubox import units
from gpubox.cli import diagnostics, output
from gpubox.cli.context import Context
from gpubox.cli.options import PlainHelpOption
from gpubox.concurrency import run_cancellable
from gpubox.errors import GpuboxError, UsageError
from gpubox.models.resolve import profile_model
from gpubox.planner.supervisors import make_supervisor
from gpubox.profiles.profile import Profile
from gpubox.server import events
from gpubox.server.instance import observe
from gpubox.server.supervisor import Supervisor

ANYWAY_HINT = "--anyway starts it as it is."
OperationWork = Callable[[Supervisor], Coroutine[Any, Any, Any]]


class OperationOutput:
    """Prints the events of one operation: one line redrawn on a terminal, plain lines elsewhere."""

    def __init__(self) -> None:
        self.finished: events.OperationFinished | None = None
        self._busy_slots: tuple[str, ...] = ()

    def __call__(self, event: events.ServerEvent) -> None:
        if isinstance(event, events.OperationFinished):
            self.finished = event
            diagnostics.redraw("")
        elif isinstance(event, events.LoadProgress):
            diagnostics.redraw(f"  load {event.profile}  {_load_progress(event)}")
        elif isinstance(event, events.StepStarted):
            diagnostics.redraw(f"  {event.step} {event.profile} …")
        elif isinstance(event, events.WaitingForSlots):
            if event.slots != self._busy_slots and (diagnostics.stderr_is_terminal() or not self._busy_slots):
                limit = units.rough_duration(event.seconds_left)
                diagnostics.note(
                    f"  {event.profile} is busy: {'; '.join(event.slots)}. Waiting up to {limit}; --now does not wait."
                )
            self._busy_slots = event.slots
        elif isinstance(event, events.StepDone):
            remark = f"  {event.note}" if event.note else ""
            diagnostics.note(f"✓ {event.step} {event.profile}  {units.duration(event.seconds)}{remark}")
        elif isinstance(event, events.StepFailed):
            # The error with the sentence is printed at the end; this line shows the log line that it comes from.
            line = event.line if event.line not in event.sentence else ""
            diagnostics.note(f"✗ {event.step} {event.profile}  {line}".rstrip())
            if event.logged:
                diagnostics.note("  `gpubox logs --failed` shows its log.")


def _load_progress(event: events.LoadProgress) -> str:
    if not event.bytes_total:
        return event.stage
    left = f"  ~{units.rough_duration(event.seconds_left)} left" if event.seconds_left is not None else ""
    return f"{event.stage}  {units.file_size(event.bytes_read)} of {units.file_size(event.bytes_total)}{left}"


def waiting_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Adds ``--now`` and ``--wait`` to a verb that replaces a running server."""
    from gpubox.config import Config

    text = f"Wait at most SECONDS for running requests. [default: {Config().wait_seconds:.0f}]"
    now = click.option("--now", is_flag=True, help="Do not wait for running requests; cut them off.")
    wait = click.option("--wait", type=click.FloatRange(min=0), metavar="SECONDS", help=text, cls=PlainHelpOption)
    return now(wait(command))


def check_waiting_options(now: bool, wait: float | None) -> None:
    """Raises UsageError if both ``--now`` and ``--wait`` are given."""
    if now and wait is not None:
        raise UsageError("--now and --wait cannot be combined.", "Leave one of them out.")


def anyway_option(command: Callable[..., Any]) -> Callable[..., Any]:
    """Adds ``--anyway`` to a verb that starts a server."""
    return click.option("--anyway", is_flag=True, help="Start even if it would not fit into memory.")(command)


def run_and_report(
    context: Context, instance: str, work: OperationWork, *, as_json: bool, anyway: bool = False
) -> None:
    """Runs ``work`` with the instance's Supervisor and prints the outcome. Raises its GpuboxError.

    ``anyway``: does not ask the planner whether the profile fits.
    """
    finished, error = run_on_instance(context, instance, work, anyway=anyway)
    if as_json:
        output.emit_json(outcome_values(context, instance, finished, error))
    elif finished and not error:
        output.emit(f"{finished.message} ({units.duration(finished.seconds)})")
    if error:
        raise error


def run_on_instance(
    context: Context, instance: str, work: OperationWork, *, anyway: bool = False
) -> tuple[events.OperationFinished | None, GpuboxError | None]:
    """Runs ``work`` with the instance's Supervisor; returns the final event and the error, or the interrupt."""
    progress = OperationOutput()
    try:
        run_cancellable(work(supervisor_of(context, instance, progress, anyway=anyway)))
    except GpuboxError as error:
        return progress.finished, error
    except KeyboardInterrupt:
        return progress.finished, diagnostics.interrupted()
    return progress.finished, None


def supervisor_of(context: Context, instance: str, progress: OperationOutput, *, anyway: bool = False) -> Supervisor:
    """The Supervisor of an instance, which refuses a profile that would not fit unless ``anyway``."""
    return make_supervisor(context.paths, context.config, instance, progress, anyway=anyway, hint=ANYWAY_HINT)


def outcome_values(
    context: Context, instance: str, finished: events.OperationFinished | None, error: GpuboxError | None
) -> dict[str, Any]:
    """The outcome of one operation, for --json. After an interrupt, ``answering`` is what runs now."""
    running = None if finished else observe(context.paths, instance).running
    return {
        **output.error_values(error),
        "operation": finished.kind if finished else None,
        "profile": finished.profile if finished else None,
        "answering": finished.answering if finished else running.launch.profile if running else None,
        "seconds": round(finished.seconds, 3) if finished else None,
        "message": finished.message if finished else error.message if error else None,
    }


def ensure_model(context: Context, profile: Profile) -> None:
    """Downloads the profile's model if it is missing and can be downloaded; no server is stopped meanwhile."""
    source = profile_model(profile, context.paths, context.config)
    if source.path is not None or not source.fetch:
        return
    from gpubox.models.fetch import fetch_model

    if not diagnostics.stderr_is_terminal():
        diagnostics.note(f"downloading {profile.model} …")

    def show(done: int, total: int | None, waiting: str) -> None:
        amount = f"{units.file_size(done)} of {units.file_size(total)}"
        diagnostics.redraw(f"  {waiting or f'downloading {profile.model}  {amount}'}")

    path = fetch_model(profile.model, context.paths, context.config, show)
    diagnostics.note(f"✓ model {path.name}  {units.file_size(path.stat().st_size)}")
