"""What the Supervisor reports while it works: frozen values, for the screen and the command line alike."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Step(StrEnum):
    """The steps of a switch, in order. ``RESTORE`` happens only after a failure."""

    CHECK = "flags and memory"
    WAIT = "wait"
    SAVE_KV = "KV saved"
    STOP = "stop"
    SETTLE = "VRAM settled"
    LOAD = "load"
    PROBE = "first token"
    RESTORE_KV = "KV put back"
    """Into slots; whether it is reused, the next requests show."""
    RESTORE = "restore"


@dataclass(frozen=True, slots=True)
class StepStarted:
    """A step on ``profile`` began."""

    step: Step
    profile: str


@dataclass(frozen=True, slots=True)
class StepDone:
    """A step succeeded after ``seconds``; ``note`` is its result in a few words."""

    step: Step
    profile: str
    seconds: float
    note: str = ""


@dataclass(frozen=True, slots=True)
class WaitingForSlots:
    """The old server still answers requests. ``slots``: one line for each busy slot."""

    profile: str
    slots: tuple[str, ...]
    seconds_left: float
    """Until the operation is given up."""


@dataclass(frozen=True, slots=True)
class LoadProgress:
    """How far a load is. ``bytes_read`` is what the process read of its files, at most the size of the model."""

    profile: str
    stage: str
    bytes_read: int | None
    bytes_total: int | None
    seconds: float
    """Since the start of the load."""

    @property
    def seconds_left(self) -> float | None:
        """An estimate from the mean speed so far; ``None`` in the first half second."""
        if not self.bytes_read or not self.bytes_total or self.seconds < 0.5:
            return None
        return (self.bytes_total - self.bytes_read) * self.seconds / self.bytes_read


@dataclass(frozen=True, slots=True)
class StepFailed:
    """A step failed: ``sentence`` says why, ``hint`` what to try, ``line`` is the log line that shows it."""

    step: Step
    profile: str
    sentence: str
    hint: str = ""
    line: str = ""
    logged: bool = False
    """Whether the log of this launch was kept as the log of the last failure."""


@dataclass(frozen=True, slots=True)
class OperationFinished:
    """The operation is over. ``answering`` is the profile that answers now, ``None`` if nothing runs."""

    kind: str
    profile: str
    ok: bool
    answering: str | None
    seconds: float
    message: str
    asked_by: str = ""
    """The gateway's client for which it was done; empty: the owner."""


ServerEvent = StepStarted | StepDone | WaitingForSlots | LoadProgress | StepFailed | OperationFinished
