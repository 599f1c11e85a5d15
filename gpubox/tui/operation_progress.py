"""The progress of one operation (start, switch, restart, stop), from its events to the lines on the screen. Pure."""

from __future__ import annotations

from dataclasses import dataclass, replace

from textual.content import Content

from gpubox import units
from gpubox.errors import GpuboxError
from gpubox.sanitize import sanitize_line
from gpubox.server import events
from gpubox.server.events import Step
from gpubox.tui.styled_lines import block_bar, part_of_total

BAR_CELLS = 10
STALL_SECONDS = 2.0
"""After so long without a byte the mean speed no longer gives an estimate."""


@dataclass(frozen=True, slots=True)
class DownloadStatus:
    """Progress of the model download, which precedes the operation's own events. Seconds since its start."""

    profile: str
    bytes_done: int
    bytes_total: int | None
    seconds: float
    waiting: str = ""
    """Why no byte comes; empty: nothing has failed."""

    @property
    def seconds_left(self) -> float | None:
        """An estimate at the mean speed so far."""
        if not self.bytes_total or not self.bytes_done or self.seconds < 1:
            return None
        return (self.bytes_total - self.bytes_done) * self.seconds / self.bytes_done


@dataclass(frozen=True, slots=True)
class OperationAborted:
    """The operation ended with this error."""

    error: GpuboxError


OperationEvent = events.ServerEvent | DownloadStatus | OperationAborted


@dataclass(frozen=True, slots=True)
class OperationProgress:
    """All that is known of one operation. ``kind`` is start, switch, restart or stop."""

    kind: str
    profile: str
    done: tuple[events.StepDone, ...] = ()
    step: Step | None = None
    """The step under way."""
    progress: events.LoadProgress | DownloadStatus | None = None
    bytes_grew_at: float = 0.0
    """The second of the load or download at which its bytes last grew."""
    busy_slots: tuple[str, ...] = ()
    """What the operation waits for, a phrase per slot."""
    wait_seconds_left: float | None = None
    failed: events.StepFailed | None = None
    finished: events.OperationFinished | None = None
    error: GpuboxError | None = None

    @property
    def ended(self) -> bool:
        return self.finished is not None or self.error is not None

    @property
    def succeeded(self) -> bool:
        return self.finished is not None and self.finished.ok and self.error is None

    @property
    def is_waiting(self) -> bool:
        """Whether it waits for busy slots."""
        return self.step is Step.WAIT

    @property
    def is_downloading(self) -> bool:
        return isinstance(self.progress, DownloadStatus)

    @property
    def can_cancel(self) -> bool:
        """Whether cancelling now leaves a server that runs, or the state before the operation."""
        return self.step in (Step.CHECK, Step.SAVE_KV, Step.LOAD, Step.PROBE, Step.RESTORE_KV)

    @property
    def can_leave(self) -> bool:
        """Whether a server is up or loading that does not need gpubox any more."""
        return self.step in (Step.LOAD, Step.PROBE, Step.RESTORE_KV, Step.RESTORE)

    def with_event(self, event: OperationEvent) -> OperationProgress:
        """The progress after ``event``."""
        match event:
            case events.StepStarted(step=step):
                return replace(self, step=step, progress=None, busy_slots=())
            case events.StepDone():
                return replace(self, done=(*self.done, event), step=None, progress=None, busy_slots=())
            case events.LoadProgress() | DownloadStatus():
                grew = self.progress is None or _bytes_done(event) != _bytes_done(self.progress)
                return replace(self, progress=event, bytes_grew_at=event.seconds if grew else self.bytes_grew_at)
            case events.WaitingForSlots(slots=slots, seconds_left=left):
                return replace(self, busy_slots=slots, wait_seconds_left=left)
            case events.StepFailed():
                return replace(self, failed=self.failed or event, step=None, progress=None)
            case events.OperationFinished():
                return replace(self, finished=event, step=None, progress=None)
            case OperationAborted(error=error):
                return replace(self, error=error, step=None, progress=None)

    @property
    def fraction_done(self) -> float | None:
        """How much of the load or download is done, 0 to 1; ``None`` if unknown."""
        if self.progress is None or not self.progress.bytes_total:
            return None
        done = _bytes_done(self.progress)
        return None if done is None else done / self.progress.bytes_total

    @property
    def seconds_left(self) -> float | None:
        """An estimate for the load or download; ``None`` while no bytes arrive."""
        if self.progress is None or self.progress.seconds - self.bytes_grew_at > STALL_SECONDS:
            return None
        return self.progress.seconds_left

    @property
    def step_label(self) -> str:
        """The step under way in one or two words, for the profile's row."""
        name = "download" if self.is_downloading else str(self.step or "")
        return f"{name} {self.fraction_done:.0%}" if name and self.fraction_done is not None else name


def _bytes_done(progress: events.LoadProgress | DownloadStatus) -> int | None:
    return progress.bytes_done if isinstance(progress, DownloadStatus) else progress.bytes_read


def progress_parts(operation: OperationProgress) -> list[Content]:
    """The operation as phrases; the caller may break lines between them."""
    if operation.ended:
        return _result_parts(operation)
    name = operation.profile or "the server"
    head = Content.assemble(("◌ ", "$accent"), (sanitize_line(name), "bold"))
    return [head, *map(_done_step, operation.done), *_current_step(operation)]


def _done_step(step: events.StepDone) -> Content:
    quick = step.step is Step.CHECK or step.seconds < 0.05
    return Content.assemble(
        f"{step.step} ", ("✓", "$success"), ("" if quick else f" {units.duration(step.seconds)}", "$quiet")
    )


def _current_step(operation: OperationProgress) -> list[Content]:
    match operation.progress:
        case DownloadStatus(waiting=waiting):
            why = [Content.styled(sanitize_line(waiting), "$warning")] if waiting else []
            return [_transfer("download", operation), *why]
        case events.LoadProgress(stage=stage, bytes_total=total):
            text = Content.styled(sanitize_line(stage), "$quiet")
            return [_transfer("load", operation), text] if total else [Content.assemble(("load … ", "$accent"), text)]
    if operation.busy_slots:
        slots = "; ".join(sanitize_line(slot) for slot in operation.busy_slots)
        return [
            Content.assemble(("wait … ", "$accent"), slots),
            Content.styled(f"at most {_time_left(operation.wait_seconds_left or 0)} more", "$quiet"),
            Content.styled("⏎ asks again, esc leaves it running", "$quiet"),
        ]
    return [Content.styled(f"{operation.step} …", "$accent")] if operation.step else []


def _transfer(label: str, operation: OperationProgress) -> Content:
    """``load ▓▓░░░░░░░░ 5.0 of 20.0 GB ~15 s left``."""
    assert operation.progress is not None
    fraction, done, total = operation.fraction_done, _bytes_done(operation.progress), operation.progress.bytes_total
    if fraction is None or total is None:
        return Content.assemble((f"{label} … ", "$accent"), units.file_size(done))
    amount = part_of_total(done, total, units.file_size)
    left = f" ~{_time_left(operation.seconds_left)} left" if operation.seconds_left is not None else ""
    return Content.assemble(f"{label} ", (block_bar(fraction, BAR_CELLS), "$accent"), f" {amount}", (left, "$quiet"))


def _time_left(seconds: float) -> str:
    return f"{max(1, round(seconds))} s" if seconds < 59.5 else units.duration(seconds)


def _result_parts(operation: OperationProgress) -> list[Content]:
    profile, failed, finished = operation.profile, operation.failed, operation.finished
    if operation.succeeded:
        assert finished is not None
        head = Content.assemble(("✓ ", "$success"), _with_duration(finished, profile))
        return [head, *map(_done_step, operation.done)]
    error = operation.error
    text = finished.message if finished and not finished.ok else error.message if error else ""
    message = sanitize_line(text.removeprefix(f"{profile}: "))
    hint = (failed.hint if failed else "") or (error.hint if error else "")
    parts = [Content.assemble(("✗ ", "$error"), (sanitize_line(profile), "bold"), "  " if profile else "", message)]
    if hint:
        parts.append(Content.styled(sanitize_line(hint), "$accent"))
    if failed and failed.line and failed.line not in message:
        parts.append(Content.styled(f'the log says "{sanitize_line(failed.line)}"', "$quiet"))
    if failed and failed.logged:
        parts.append(Content.styled("f in its menu (x) shows its log", "$quiet"))
    return parts


def _with_duration(finished: events.OperationFinished, profile: str) -> Content:
    """``b answers.`` as ``b answers in 3.1 s``, with the name in bold."""
    text, duration = sanitize_line(finished.message).rstrip("."), units.duration(finished.seconds)
    if text == f"{profile} answers":
        text = f"{profile} answers in {duration}"
    elif text == f"{profile} is stopped":
        text = f"{text} ({duration})"
    if profile and text.startswith(profile):
        return Content.assemble((profile, "bold"), text.removeprefix(profile))
    return Content(text)
