"""What the Supervisor tells while it works: frozen values, for the screen and the command line alike."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Step(StrEnum):
    """The steps of a switch, in order; ``RESTORE`` only when something failed."""

    CHECK = "check"
    WAIT = "wait"
    STOP = "stop"
    SETTLE = "VRAM settled"
    LOAD = "load"
    PROVE = "first token"
    RESTORE = "restore"


@dataclass(frozen=True, slots=True)
class StepStarted:
    """A step began on ``profile``."""

    step: Step
    profile: str


@dataclass(frozen=True, slots=True)
class StepDone:
    """A step ended well after ``seconds``; ``note`` is what it found, in a few words."""

    step: Step
    profile: str
    seconds: float
    note: str = ""


@dataclass(frozen=True, slots=True)
class WaitingForSlots:
    """The old server still works; one line for each busy slot."""

    profile: str
    slots: tuple[str, ...]
    seconds_left: float
    """Until the change is given up."""


@dataclass(frozen=True, slots=True)
class LoadProgress:
    """How far a load is. Bytes are what the process has read of its files, never more than the model's size."""

    profile: str
    stage: str
    bytes_read: int | None
    bytes_total: int | None
    seconds: float
    """Since the start of the load."""

    @property
    def seconds_left(self) -> float | None:
        """An estimate: the bytes still unread at the mean speed so far; ``None`` before it means anything."""
        if not self.bytes_read or not self.bytes_total or self.seconds < 0.5:
            return None
        return (self.bytes_total - self.bytes_read) * self.seconds / self.bytes_read


@dataclass(frozen=True, slots=True)
class StepFailed:
    """A step failed: ``sentence`` says why, ``hint`` what to try, ``line`` is the log line that matters."""

    step: Step
    profile: str
    sentence: str
    hint: str = ""
    line: str = ""
    logged: bool = False
    """Whether its log is kept as that of the last failure."""


@dataclass(frozen=True, slots=True)
class OperationFinished:
    """The operation is over. ``answering`` is the profile that answers now, ``None`` when nothing runs."""

    kind: str
    profile: str
    ok: bool
    answering: str | None
    seconds: float
    message: str


ServerEvent = StepStarted | StepDone | WaitingForSlots | LoadProgress | StepFailed | OperationFinished
