"""Which request may go to which server now, and which profile is brought up next. Pure: the caller gives the time.

A request for a profile that is up goes at once; llama-server queues by itself. A request for another profile waits,
and the profile with the longest waiting request is brought up next. If servers must go for it, they take new requests
for a while (nothing is gained by switching for each request), and then none, until those that run are done. No
answer is cut off: the deadline holds as long as no single answer takes longer than it.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field

MIN_STAY_SECONDS = 10.0
"""A profile that was brought up stays at least so long while it is asked, unless the deadline of another is near."""
STAY_LOADS = 3.0
"""And so many times as long as its load took."""
IDLE_SECONDS = 1.0
"""A profile that nobody has asked for so long goes at once: an agent between two requests is quicker."""
ASSUMED_LOAD_SECONDS = 10.0
"""For a profile that was never loaded here."""
BROKEN_SECONDS, BROKEN_MAX_SECONDS = 15.0, 300.0
"""A profile that failed is not tried again for so long; twice as long after each further failure."""
POSTPONE_MAX_SECONDS = 15.0
_GENERATING = frozenset({
    "completion", "completions", "chat/completions", "messages", "responses", "infill", "chat", "generate", "embedding",
    "embeddings", "rerank", "reranking", "audio/transcriptions",
})  # fmt: skip
"""llama-server's endpoints (build 11434) that work in a slot, without /v1 or /api."""


def takes_slot(path: str) -> bool:
    """Whether a server answers a request to ``path`` in a slot: a generation, which changes nothing."""
    return path.removeprefix("/v1").removeprefix("/api").removeprefix("/") in _GENERATING


@dataclass(slots=True)
class QueuedProfile:
    """The requests of one profile, and its server as the queue sees it."""

    up: bool = False
    closed: bool = False
    """Takes no new requests: its server is about to stop, or is changed by another gpubox."""
    up_since: float = 0.0
    used: float = 0.0
    """When its last request came or ended."""
    load_seconds: float = ASSUMED_LOAD_SECONDS
    running: set[int] = field(default_factory=set)
    waiting: OrderedDict[int, float] = field(default_factory=OrderedDict)
    """Request -> when it arrived."""
    postponed_until: float = 0.0
    """It cannot be brought up before: another gpubox or a benchmark is at work."""
    postponed: int = 0
    failures: int = 0
    broken_until: float = 0.0
    cause: str = ""

    @property
    def oldest(self) -> float:
        """When the request that waits longest arrived."""
        return next(iter(self.waiting.values()))


class AdmissionQueue:
    """The waiting and running requests of all profiles. Times are seconds of one clock."""

    def __init__(self, *, deadline_seconds: float, capacity: int) -> None:
        self.deadline_seconds, self.capacity = deadline_seconds, capacity
        self.paused = False
        self.profiles: dict[str, QueuedProfile] = {}

    def of(self, profile: str) -> QueuedProfile:
        return self.profiles.setdefault(profile, QueuedProfile())

    @property
    def waiting_count(self) -> int:
        return sum(len(queued.waiting) for queued in self.profiles.values())

    def is_full(self) -> bool:
        return self.waiting_count >= self.capacity

    def broken(self, profile: str, now: float) -> tuple[str, float] | None:
        """Why the profile is not tried now, and for how many seconds; None if it may be tried."""
        queued = self.of(profile)
        return (queued.cause, queued.broken_until - now) if queued.broken_until > now else None

    def admits(self, profile: str) -> bool:
        """Whether a request may go to the profile's server now."""
        queued = self.of(profile)
        return queued.up and not queued.closed and not self.paused

    def wait(self, request: int, profile: str, now: float) -> None:
        self.of(profile).waiting[request] = now

    def run(self, request: int, profile: str, now: float) -> None:
        queued = self.of(profile)
        queued.waiting.pop(request, None)
        queued.running.add(request)
        queued.used = now

    def leave(self, request: int, profile: str, now: float) -> None:
        """The request is over, or its client has left."""
        queued = self.of(profile)
        queued.waiting.pop(request, None)
        if request in queued.running:
            queued.running.discard(request)
            queued.used = now

    def set_up(self, running: Iterable[str], now: float) -> None:
        """Tells which profiles have a server that answers."""
        names = set(running)
        for name, queued in self.profiles.items():
            if queued.up and name not in names:
                queued.up = False
        for name in names:
            queued = self.of(name)
            if not queued.up:
                queued.up, queued.up_since, queued.used = True, now, now
                queued.failures, queued.broken_until, queued.cause = 0, 0.0, ""
                queued.postponed, queued.postponed_until = 0, 0.0

    def failed(self, profile: str, cause: str, now: float) -> list[int]:
        """The profile could not be brought up: returns its waiting requests, which get ``cause``."""
        queued = self.of(profile)
        seconds = min(BROKEN_SECONDS * 2**queued.failures, BROKEN_MAX_SECONDS)
        queued.failures += 1
        queued.cause, queued.broken_until = cause, now + seconds
        requests = list(queued.waiting)
        queued.waiting.clear()
        return requests

    def forgive(self) -> None:
        """Every profile that failed may be tried again."""
        for queued in self.profiles.values():
            queued.broken_until = 0.0

    def postpone(self, profile: str, now: float) -> list[int]:
        """The profile cannot be brought up now. Returns the requests that have waited for longer than the deadline."""
        queued = self.of(profile)
        queued.postponed_until = now + min(2.0**queued.postponed, POSTPONE_MAX_SECONDS)
        queued.postponed += 1
        late = [request for request, arrived in queued.waiting.items() if now - arrived >= self.deadline_seconds]
        for request in late:
            del queued.waiting[request]
        return late

    def next_profile(self, now: float) -> str | None:
        """The profile to bring up next: that of the request which waits longest."""
        if self.paused:
            return None
        wanted = [
            (queued.oldest, name)
            for name, queued in self.profiles.items()
            if queued.waiting and not queued.up and max(queued.broken_until, queued.postponed_until) <= now
        ]
        return min(wanted)[1] if wanted else None

    def close_at(self, wanted: str, displaced: Collection[str], now: float) -> float:
        """When the ``displaced`` profiles stop taking requests so that ``wanted`` comes up in time."""
        queued = self.of(wanted)
        arrived = queued.oldest if queued.waiting else now
        latest = arrived + max(0.0, self.deadline_seconds - queued.load_seconds) / 2
        at = now
        for profile in map(self.of, displaced):
            if not profile.running and not profile.waiting and now - profile.used >= IDLE_SECONDS:
                continue
            stay = profile.up_since + max(MIN_STAY_SECONDS, STAY_LOADS * profile.load_seconds)
            quiet = profile.used + IDLE_SECONDS if not profile.running and not profile.waiting else stay
            at = max(at, min(stay, quiet))
        return min(at, max(latest, now))

    def idle_seconds(self, profile: str, now: float) -> float | None:
        """How long nobody has asked the profile; None while somebody does."""
        queued = self.of(profile)
        return None if queued.running or queued.waiting else now - max(queued.used, queued.up_since)
