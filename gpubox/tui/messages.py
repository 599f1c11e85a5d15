"""What the bridge and the operations tell the app: values and Textual messages."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from textual.message import Message

if TYPE_CHECKING:
    from gpubox.gateway.status import GatewayStatus
    from gpubox.server.status import ServerStatus
    from gpubox.tui.dashboard.profiles import ProfileEntry
    from gpubox.tui.operation_progress import OperationEvent


@dataclass(frozen=True, slots=True)
class ServerOverview:
    """What runs now."""

    status: ServerStatus
    companions: tuple[str, ...] = ()
    """Profiles that run beside the active one."""
    last_profile: str | None = None
    """The profile that answered last, if none does now."""

    @property
    def without_slots(self) -> ServerOverview:
        """The same without the slots, which change with every token."""
        return replace(self, status=replace(self.status, slots=None)) if self.status.slots else self

    @property
    def running(self) -> frozenset[str]:
        """The profiles whose process lives."""
        active = self.status.profile if self.status.pid is not None else None
        return frozenset({*self.companions, *([active] if active else [])})


@dataclass(frozen=True, slots=True)
class GatewayView:
    """What is known of the gateway that runs."""

    base_url: str
    status: GatewayStatus | None = None
    problem: str = ""
    """Why it gave no status, though it runs."""

    @property
    def summary(self) -> GatewaySummary:
        """What every header shows of it."""
        status = self.status
        if status is None:
            return GatewaySummary(self.base_url, problem="no answer")
        problem = "C shows a problem" if status.problems else ""
        return GatewaySummary(self.base_url, status.paused, status.exposed, status.has_keys, problem)


@dataclass(frozen=True, slots=True)
class GatewaySummary:
    """The gateway in a few words. It changes less often than a status."""

    base_url: str
    paused: bool = False
    exposed: str = ""
    has_keys: bool = False
    problem: str = ""


class GatewayChanged(Message):
    """Sent only if what is known of the gateway differs from before; ``None``: none runs."""

    def __init__(self, view: GatewayView | None) -> None:
        super().__init__()
        self.view = view


class AdviceChanged(Message):
    """The advisor says something else than before."""


class ServerOverviewChanged(Message):
    """Sent only if the overview differs from the last one."""

    def __init__(self, overview: ServerOverview) -> None:
        super().__init__()
        self.overview = overview


class SnapshotTaken(Message):
    """A snapshot waits in the SnapshotPoller. Not carried here, so that the newest one is drawn."""


class ProfileEntriesRead(Message):
    """The profile list, after a change of its files or of their compatibility."""

    def __init__(self, entries: tuple[ProfileEntry, ...]) -> None:
        super().__init__()
        self.entries = entries


class LogLinesRead(Message):
    """New lines of the server's log."""

    def __init__(self, lines: list[str]) -> None:
        super().__init__()
        self.lines = lines


class OperationUpdated(Message):
    """An event of the running operation."""

    def __init__(self, event: OperationEvent) -> None:
        super().__init__()
        self.event = event


class OperationEnded(Message):
    """The operation is over, successful or not."""
