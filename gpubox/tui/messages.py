"""What the bridge tells the screens: values and messages."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from textual.message import Message

if TYPE_CHECKING:
    from gpubox.server.status import ServerStatus
    from gpubox.tui.operation_progress import OperationEvent
    from gpubox.tui.profile_entries import ProfileEntry


@dataclass(frozen=True, slots=True)
class ServerOverview:
    """What runs at this moment."""

    status: ServerStatus
    companions: tuple[str, ...] = ()
    """Profiles that run beside the active one."""
    last: str | None = None
    """The profile that answered last, where none does now."""

    @property
    def without_slots(self) -> ServerOverview:
        """The same without what moves with every token."""
        return replace(self, status=replace(self.status, slots=None)) if self.status.slots else self

    @property
    def running(self) -> frozenset[str]:
        """Every profile whose process lives."""
        main = self.status.profile if self.status.pid is not None else None
        return frozenset({*self.companions, *([main] if main else [])})


class ServerOverviewChanged(Message):
    """A new reading of what runs; only sent when it differs from the last."""

    def __init__(self, now: ServerOverview) -> None:
        super().__init__()
        self.now = now


class SnapshotTaken(Message):
    """A new snapshot waits with the bridge. It carries none: what is drawn is the newest by then."""


class ProfileEntriesRead(Message):
    """The profile list, after a change of its files or of what is known about them."""

    def __init__(self, entries: tuple[ProfileEntry, ...]) -> None:
        super().__init__()
        self.entries = entries


class LogLinesRead(Message):
    """New lines of the server's log."""

    def __init__(self, lines: list[str]) -> None:
        super().__init__()
        self.lines = lines


class OperationUpdated(Message):
    """The operation under way has something to tell."""

    def __init__(self, event: OperationEvent) -> None:
        super().__init__()
        self.event = event


class OperationEnded(Message):
    """The operation is over, well or not."""
