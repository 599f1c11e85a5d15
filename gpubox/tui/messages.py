"""What the bridge and the operations know and tell: values (what runs, the rows of the profile list) and messages."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Literal

from textual.message import Message

from gpubox.errors import GpuboxError

if TYPE_CHECKING:
    from gpubox.gateway.gateway_status import GatewayStatus
    from gpubox.models.find import LocalModel
    from gpubox.planner.plan import MemoryPlan
    from gpubox.planner.verdict import MemoryVerdict
    from gpubox.profiles.loader import ProfileCatalog
    from gpubox.profiles.profile import Profile
    from gpubox.server.launch import EngineCompatibility
    from gpubox.server.status import ServerStatus
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
        problem = "5 shows a problem" if status.problems else ""
        return GatewaySummary(self.base_url, status.paused, status.exposed, status.has_keys, problem)


@dataclass(frozen=True, slots=True)
class GatewaySummary:
    """The gateway in a few words. It changes less often than a status."""

    base_url: str
    paused: bool = False
    exposed: str = ""
    has_keys: bool = False
    problem: str = ""


@dataclass(frozen=True, slots=True)
class UndoStep:
    """Something that u takes back."""

    text: str
    """``back to smol (ran before)``, ``undo the edit of smol``."""
    profile: str
    runs: bool
    """Whether the profile runs again; else its file is what it was."""


@dataclass(frozen=True, slots=True)
class ProfileEntry:
    """One row of the list. ``id`` is unique, and stays the same when the entry changes."""

    id: str
    kind: Literal["profile", "broken", "model", "choice", "last"]
    """``last``: a name of the last time, as long as the profiles are not read."""
    name: str
    profile: Profile | None = None
    compatibility: EngineCompatibility | None = None
    """``None`` until the engine has been asked."""
    error: GpuboxError | None = None
    model: Path | None = None
    plan: MemoryPlan | None = None
    """Whether it would fit; ``None`` if that is unknown."""
    text: str = ""
    """What stands beside the name in place of all that is known of it."""

    @property
    def lacks_engine(self) -> bool:
        """Whether nothing here can start it: no engine was found."""
        return bool(self.compatibility and not (self.compatibility.ok or self.compatibility.engine))

    @property
    def summary(self) -> str:
        """The text beside the name."""
        if self.text:
            return self.text
        if self.kind == "broken" and self.error:
            # The path is left out: the row has no room for the folder, and the name is beside it.
            file = re.escape(f"{self.name.removesuffix('.toml')}.toml")
            return re.sub(rf"^.*?{file}:? (is )?", "", self.error.message, count=1)
        if self.kind == "model":
            return self._model_words
        assert self.profile is not None
        if self.profile.elsewhere:
            return self.profile.elsewhere
        state = self.compatibility
        if state and state.summary and not (state.ok and (state.model_present or state.fetchable)):
            return state.summary
        words = (self.verdict.words, self.profile.title) if self.verdict else (self.profile.title,)
        return " · ".join(filter(None, words if self.is_short else reversed(words)))

    @property
    def _model_words(self) -> str:
        if self.plan is None:
            return "new model: Enter starts it"
        from gpubox.views.memory import short_words

        verdict, words = self.verdict, short_words(self.plan)
        assert verdict
        if self.plan.solutions and self.plan.solutions[0].fits:
            return f"fits {words}"
        return (
            f"too large: {words}"
            if verdict.fit == "short"
            else f"{verdict.fit}, {words}"
            if verdict.fit in ("fits", "tight")
            else words
        )

    @property
    def verdict(self) -> MemoryVerdict | None:
        """Whether it would fit, as far as that is known."""
        from gpubox.planner.verdict import judge  # not before the first paint, as all that entries are made of

        return judge(self.plan) if self.plan else None

    @property
    def is_short(self) -> bool:
        """Whether it would certainly not fit."""
        return self.verdict is not None and self.verdict.fit == "short"

    @property
    def search_text(self) -> str:
        """The text that a search matches, in lower case."""
        profile = self.profile
        details = f"{profile.title} {profile.description} {profile.model}" if profile else ""
        return f"{self.name} {self.summary} {details} {self.model or ''}".lower()


def build_entries(
    catalog: ProfileCatalog,
    compatibility: Mapping[str, EngineCompatibility],
    models: Iterable[LocalModel],
    plans: Mapping[str, MemoryPlan] = MappingProxyType({}),
) -> tuple[ProfileEntry, ...]:
    """Broken files, then the profiles in the catalog's order, then the models that no profile names."""
    entries = [ProfileEntry(f"broken:{name}", "broken", name, error=e) for name, e in sorted(catalog.broken.items())]
    entries += [
        ProfileEntry(f"profile:{p.name}", "profile", p.name, p, compatibility.get(p.name), plan=plans.get(p.name))
        for p in catalog.profiles.values()
    ]
    entries += [
        ProfileEntry(f"model:{m.path}", "model", m.name, model=m.path, plan=plans.get(str(m.path))) for m in models
    ]
    return tuple(entries)


def is_newcomer(entries: Iterable[ProfileEntry]) -> bool:
    """Whether no entry is a profile of the owner's, nor a broken file."""
    return all(entry.profile.shipped if entry.profile else entry.kind == "model" for entry in entries)


def filter_entries(entries: Iterable[ProfileEntry], search: str) -> tuple[ProfileEntry, ...]:
    """The entries that contain every word of ``search``; those with all words in their name come first."""
    terms = search.lower().split()
    matching = [entry for entry in entries if all(term in entry.search_text for term in terms)]
    return tuple(sorted(matching, key=lambda entry: not all(term in entry.name.lower() for term in terms)))


def entry_state(entry: ProfileEntry, running: frozenset[str], *, changes: bool) -> str:
    """The mark of a row, as a key of PROFILES; ``changes``: an operation on it is under way."""
    if entry.profile is None:
        if entry.kind == "model" and entry.is_short and entry.plan and not entry.plan.solutions:
            return "refused"
        return "broken" if entry.kind == "broken" else "model"
    if changes:
        return "busy"
    from gpubox.views.profile import profile_state

    return profile_state(entry.profile, entry.compatibility, entry.verdict, running=entry.name in running)


class GatewayChanged(Message):
    """The bridge knows something else of the gateway than before."""


class ClientConnected(Message):
    """The owner has a client's settings: in its file, or copied."""


class AdviceChanged(Message):
    """The advisor says something else than before."""


class ServerOverviewChanged(Message):
    """The bridge's overview differs from the last one."""


class SnapshotTaken(Message):
    """A snapshot waits in the SnapshotPoller. Not carried here, so that the newest one is drawn."""


class ProfileEntriesRead(Message):
    """The bridge has read the profile list, after a change of its files or of their compatibility."""


class LogLinesRead(Message):
    """New lines of the server's log."""

    def __init__(self, lines: list[str]) -> None:
        super().__init__()
        self.lines = lines


class ScreenOpened(Message):
    """A full screen is there, and shows nothing yet."""


class ScreenDrawn(Message):
    """The first full screen was drawn."""


class ProfileWanted(Message):
    """This profile is to be highlighted in the list."""

    def __init__(self, name: str) -> None:
        super().__init__()
        self.name = name


class TrialChanged(Message):
    """The trial of this gpubox is at another step. ``summary``: in one line; empty: there is nothing to say of it."""

    def __init__(self, summary: str) -> None:
        super().__init__()
        self.summary = summary


class OperationUpdated(Message):
    """An event of the running operation; ``None``: it begins."""

    def __init__(self, event: OperationEvent | None) -> None:
        super().__init__()
        self.event = event


class OperationEnded(Message):
    """The operation is over, successful or not."""


class ChoiceMade(Message):
    """The owner chose how the screen looks: a field of Remembered, and its value."""

    def __init__(self, **values: object) -> None:
        super().__init__()
        self.values = values
