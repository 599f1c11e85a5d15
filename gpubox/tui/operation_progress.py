"""The story of one operation, from its events to the lines the owner reads. Pure."""

from __future__ import annotations

from dataclasses import dataclass, replace

from textual.content import Content

from gpubox import units
from gpubox.errors import GpuboxError
from gpubox.sanitize import sanitize_line
from gpubox.server.events import (
    LoadProgress,
    OperationFinished,
    ServerEvent,
    Step,
    StepDone,
    StepFailed,
    StepStarted,
    WaitingForSlots,
)
from gpubox.tui.formatting import block_bar

BAR_CELLS = 10
STILL_SECONDS = 2.0


@dataclass(frozen=True, slots=True)
class DownloadStatus:
    """How far the download of a model is; it comes before the operation's own events."""

    profile: str
    bytes_done: int
    bytes_total: int | None
    seconds: float

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


OperationEvent = ServerEvent | DownloadStatus | OperationAborted


@dataclass(frozen=True, slots=True)
class OperationProgress:
    """One operation as far as it has come."""

    kind: str
    profile: str
    done: tuple[StepDone, ...] = ()
    step: Step | None = None
    """Under way now."""
    progress: LoadProgress | DownloadStatus | None = None
    moved: float = 0.0
    """At which second of the load or download its bytes last grew."""
    waiting: tuple[str, ...] = ()
    waits_seconds: float | None = None
    """How long it still waits for them."""
    failed: StepFailed | None = None
    finished: OperationFinished | None = None
    refused: GpuboxError | None = None

    @property
    def over(self) -> bool:
        return self.finished is not None or self.refused is not None

    @property
    def waits(self) -> bool:
        """Whether it waits for busy slots."""
        return self.step is Step.WAIT

    @property
    def downloads(self) -> bool:
        """Whether a model is being downloaded."""
        return isinstance(self.progress, DownloadStatus)

    @property
    def can_cancel(self) -> bool:
        """Whether it can be ended in this step with something left that runs."""
        return self.step in (Step.CHECK, Step.LOAD, Step.PROBE)

    @property
    def safe_to_leave(self) -> bool:
        """Whether a server is there now that goes on without gpubox."""
        return self.step in (Step.LOAD, Step.PROBE, Step.RESTORE)

    @property
    def ok(self) -> bool:
        return self.finished is not None and self.finished.ok and self.refused is None

    def after(self, event: OperationEvent) -> OperationProgress:
        """The story with ``event`` added."""
        match event:
            case StepStarted(step=step):
                return replace(self, step=step, progress=None, waiting=())
            case StepDone():
                return replace(self, done=(*self.done, event), step=None, progress=None, waiting=())
            case LoadProgress() | DownloadStatus():
                grew = self.progress is None or _bytes(event) != _bytes(self.progress)
                return replace(self, progress=event, moved=event.seconds if grew else self.moved)
            case WaitingForSlots(slots=slots, seconds_left=left):
                return replace(self, waiting=slots, waits_seconds=left)
            case StepFailed():
                return replace(self, failed=self.failed or event, step=None, progress=None)
            case OperationFinished():
                return replace(self, finished=event, step=None, progress=None)
            case OperationAborted(error=error):
                return replace(self, refused=error, step=None, progress=None)

    @property
    def share(self) -> float | None:
        """How much of the load or download is done, 0 to 1; ``None``: not known."""
        match self.progress:
            case LoadProgress(bytes_read=int(done), bytes_total=int(total)) if total:
                return done / total
            case DownloadStatus(bytes_done=done, bytes_total=int(total)) if total:
                return done / total
        return None

    @property
    def seconds_left(self) -> float | None:
        """An estimate; ``None`` while nothing has been read for a while: the mean speed says nothing then."""
        if self.progress is None or self.progress.seconds - self.moved > STILL_SECONDS:
            return None
        return self.progress.seconds_left

    @property
    def word(self) -> str:
        """The step under way in one or two words, for the profile's row."""
        name = "download" if isinstance(self.progress, DownloadStatus) else str(self.step or "")
        return f"{name} {self.share:.0%}" if name and self.share is not None else name


def progress_parts(story: OperationProgress) -> list[Content]:
    """The story as pieces that belong together each; the caller breaks lines between them."""
    if story.over:
        return _ending(story)
    name = story.profile or "the server"
    found = [Content.assemble(("◌ ", "$accent"), (sanitize_line(name), "bold"))]
    found += [_done(step) for step in story.done]
    found += _under_way(story)
    return found


def _bytes(progress: LoadProgress | DownloadStatus) -> int | None:
    return progress.bytes_done if isinstance(progress, DownloadStatus) else progress.bytes_read


def _done(step: StepDone) -> Content:
    quick = step.step is Step.CHECK or step.seconds < 0.05
    took = "" if quick else f" {units.duration(step.seconds)}"
    return Content.assemble((f"{step.step} ", ""), ("✓", "$success"), (took, "$quiet"))


def _under_way(story: OperationProgress) -> list[Content]:
    match story.progress:
        case DownloadStatus() as progress:
            return [_bar("download", story.share, progress.bytes_done, progress.bytes_total, story.seconds_left)]
        case LoadProgress() as progress if progress.bytes_total:
            stage = [Content.styled(sanitize_line(progress.stage), "$quiet")]
            return [_bar("load", story.share, progress.bytes_read, progress.bytes_total, story.seconds_left), *stage]
        case LoadProgress() as progress:
            return [Content.assemble(("load … ", "$accent"), (sanitize_line(progress.stage), "$quiet"))]
    if story.waiting:
        slots = "; ".join(sanitize_line(slot) for slot in story.waiting)
        return [
            Content.assemble(("wait … ", "$accent"), (slots, "")),
            Content.styled(f"at most {_left(story.waits_seconds or 0)} more", "$quiet"),
            Content.styled("⏎ asks again, esc leaves it running", "$quiet"),
        ]
    return [Content.styled(f"{story.step} …", "$accent")] if story.step else []


def _bar(word: str, share: float | None, done: int | None, total: int | None, left: float | None) -> Content:
    if share is None or total is None:
        return Content.assemble((f"{word} … ", "$accent"), units.file_size(done))
    size = units.file_size(total)
    number, unit = units.file_size(done).split(" ") if done is not None else (units.UNKNOWN, "")
    amount = f"{number} of {size}" if size.endswith(unit) else f"{number} {unit} of {size}"
    more = f" ~{_left(left)} left" if left is not None else ""
    return Content.assemble((f"{word} ", ""), (block_bar(share, BAR_CELLS), "$accent"), f" {amount}", (more, "$quiet"))


def _left(seconds: float) -> str:
    return f"{max(1, round(seconds))} s" if seconds < 59.5 else units.duration(seconds)


def _ending(story: OperationProgress) -> list[Content]:
    if story.ok:
        assert story.finished is not None
        took = units.duration(story.finished.seconds)
        head = Content.assemble(("✓ ", "$success"), _told(story.finished.message, story.profile, took))
        return [head, *(_done(step) for step in story.done)]
    message, hint = _failure(story)
    head = Content.assemble(
        ("✗ ", "$error"), (sanitize_line(story.profile), "bold"), "  " if story.profile else "", message
    )
    found = [head]
    if hint:
        found.append(Content.styled(sanitize_line(hint), "$accent"))
    if story.failed and story.failed.line and story.failed.line not in message:
        found.append(Content.assemble(("log ", "$quiet"), (sanitize_line(story.failed.line), "$quiet")))
    if story.failed and story.failed.logged:
        found.append(Content.styled("F shows its log", "$quiet"))
    return found


def _told(message: str, name: str, took: str) -> Content:
    """``b answers.`` as ``b answers in 3.1 s``, the name in bold."""
    text = sanitize_line(message).rstrip(".")
    if text == f"{name} answers":
        text = f"{name} answers in {took}"
    elif text == f"{name} is stopped":
        text = f"{text} ({took})"
    if name and text.startswith(name):
        return Content.assemble((name, "bold"), text.removeprefix(name))
    return Content(text)


def _failure(story: OperationProgress) -> tuple[str, str]:
    """What to say of a failed operation, and the suggestion."""
    if story.finished and not story.finished.ok:
        message = story.finished.message
    else:
        message = story.refused.message if story.refused else ""
    hint = (story.failed.hint if story.failed else "") or (story.refused.hint if story.refused else "")
    return sanitize_line(message.removeprefix(f"{story.profile}: ")), hint
