"""Running the Supervisor from a verb: progress on stderr, one result on stdout."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable, Coroutine
from typing import Any

import click

from gpubox import units
from gpubox.cli import diagnostics, output
from gpubox.cli.context import Context
from gpubox.errors import GpuboxError, UsageError
from gpubox.models.resolve import profile_model
from gpubox.profiles.profile import Profile
from gpubox.server.events import (
    LoadProgress,
    OperationFinished,
    ServerEvent,
    StepDone,
    StepFailed,
    StepStarted,
    WaitingForSlots,
)
from gpubox.server.instance import observe
from gpubox.server.supervisor import Supervisor

OperationWork = Callable[[Supervisor], Coroutine[Any, Any, Any]]


class OperationOutput:
    """Shows the events of one operation: a line redrawn in place on a terminal, plain lines elsewhere."""

    def __init__(self) -> None:
        self.live = diagnostics.stderr_is_terminal()
        self.finished: OperationFinished | None = None
        self._waiting: tuple[str, ...] = ()

    def __call__(self, event: ServerEvent) -> None:
        if isinstance(event, OperationFinished):
            self.finished = event
            if self.live:
                diagnostics.redraw("")
        elif isinstance(event, LoadProgress):
            if self.live:
                diagnostics.redraw(f"  load {event.profile}  {_progress(event)}")
        elif isinstance(event, StepStarted):
            if self.live:
                diagnostics.redraw(f"  {event.step} {event.profile} …")
        elif isinstance(event, WaitingForSlots):
            if event.slots != self._waiting and (self.live or not self._waiting):
                limit = units.rough_duration(event.seconds_left)
                self._line(
                    f"  {event.profile} is busy: {'; '.join(event.slots)}. Waiting at most {limit}; --now does not."
                )
            self._waiting = event.slots
        elif isinstance(event, StepDone):
            extra = f"  {event.note}" if event.note else ""
            self._line(f"✓ {event.step} {event.profile}  {units.duration(event.seconds)}{extra}")
        elif isinstance(event, StepFailed):
            # The sentence is the error's, told at the end; here stands the line of the log that it was read from.
            line = event.line if event.line not in event.sentence else ""
            self._line(f"✗ {event.step} {event.profile}  {line}".rstrip())
            if event.logged:
                self._line("  `gpubox logs --failed` shows its log.")

    def _line(self, text: str) -> None:
        if self.live:
            diagnostics.redraw("")
        diagnostics.note(text)


def _progress(event: LoadProgress) -> str:
    read = f"{units.file_size(event.bytes_read)} of {units.file_size(event.bytes_total)}"
    left = f"  ~{units.rough_duration(event.seconds_left)} left" if event.seconds_left is not None else ""
    return f"{event.stage}  {read}{left}" if event.bytes_total else event.stage


def waiting_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Adds ``--now`` and ``--wait`` to a verb that replaces a server which may be answering."""
    from gpubox.config import Config

    default = f"Wait at most so long for them, then give up (else wait-seconds, {Config().wait_seconds:.0f})."
    now = click.option("--now", "-n", is_flag=True, help="Do not wait for requests that are being answered.")
    wait = click.option("--wait", type=click.FloatRange(min=0), metavar="SECONDS", help=default)
    return now(wait(command))


def check_waiting_options(now: bool, wait: float | None) -> None:
    """Raises UsageError where ``--now`` and ``--wait`` contradict each other."""
    if now and wait is not None:
        raise UsageError("--now does not wait, --wait does.", "Leave one of them out.")


def run_and_report(context: Context, slot: str, work: OperationWork, *, as_json: bool) -> None:
    """Runs ``work`` on the slot's Supervisor and prints how it ended. Raises its GpuboxError."""
    finished, error = run_on_instance(context, slot, work)
    if as_json:
        output.emit_json(outcome_values(context, slot, finished, error))
    elif finished and not error:
        output.emit(f"{finished.message} ({units.duration(finished.seconds)})")
    if error:
        raise error


def run_on_instance(
    context: Context, slot: str, work: OperationWork
) -> tuple[OperationFinished | None, GpuboxError | None]:
    """Runs ``work`` on the slot's Supervisor: how it ended, and what went wrong, an interrupt included."""
    progress = OperationOutput()
    try:
        run_cancellable(work(Supervisor(context.paths, context.config, slot, progress)))
    except GpuboxError as error:
        return progress.finished, error
    except KeyboardInterrupt:
        return progress.finished, diagnostics.interrupted()
    return progress.finished, None


def outcome_values(
    context: Context, slot: str, finished: OperationFinished | None, error: GpuboxError | None
) -> dict[str, Any]:
    """How one operation ended, for --json. One that was cut short is told by what answers now."""
    running = None if finished else observe(context.paths, slot).running
    return {
        **output.error_values(error),
        "operation": finished.kind if finished else None,
        "profile": finished.profile if finished else None,
        "answering": finished.answering if finished else running.launch.profile if running else None,
        "seconds": round(finished.seconds, 3) if finished else None,
        "message": finished.message if finished else error.message if error else None,
    }


def run_cancellable(work: Coroutine[Any, Any, Any]) -> Any:
    """What ``work`` answers. SIGTERM interrupts it as Ctrl-C does, and a lost terminal does not.

    Raises KeyboardInterrupt where it was interrupted.
    """
    try:
        return asyncio.run(_unhurried(work))
    except asyncio.CancelledError:
        raise KeyboardInterrupt from None


async def _unhurried(work: Coroutine[Any, Any, Any]) -> Any:
    loop, task = asyncio.get_running_loop(), asyncio.current_task()
    assert task is not None

    def cancel(number: int, frame: object) -> None:
        # Only that, also the second time: what tidies up may go on to its end.
        loop.call_soon_threadsafe(task.cancel)

    # Not the loop's own handlers: it would leave SIGTERM deadly where it ends.
    before = {number: signal.signal(number, cancel) for number in (signal.SIGINT, signal.SIGTERM)}
    before[signal.SIGHUP] = signal.signal(signal.SIGHUP, lambda number, frame: None)
    try:
        return await work
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def ensure_model(context: Context, profile: Profile) -> None:
    """Downloads the profile's model where it names one to download; nothing is stopped meanwhile."""
    source = profile_model(profile, context.paths, context.config)
    if source.path is not None or not source.fetch:
        return
    from gpubox.models.fetch import fetch_model

    live = diagnostics.stderr_is_terminal()
    if not live:
        diagnostics.note(f"downloading {profile.model} …")

    def show(done: int, total: int | None) -> None:
        if live:
            diagnostics.redraw(f"  downloading {profile.model}  {units.file_size(done)} of {units.file_size(total)}")

    try:
        path = fetch_model(profile.model, context.paths, context.config, show)
    finally:
        if live:
            diagnostics.redraw("")
    diagnostics.note(f"✓ model {path.name}  {units.file_size(path.stat().st_size)}")
