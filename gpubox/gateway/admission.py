"""Which request may go to which server now, and which profile is brought up next. Pure: the caller gives the time.

Slots are the unit: a server gets as many requests as it has slots, and the others wait here, where they are seen,
overtaken and cancelled. The next one is of the client that was served the fewest tokens for its weight (start-time fair
queueing): it pays an estimate when it goes, and the difference when its answer is over. A client that was away starts
where the least served one stands, so a pause earns nothing.

A request for a profile that is not up waits for a swap. How long the servers stay that must stop for it:
- One that nobody asks goes after a tenth of what the swap costs both ways: between two requests, clients are quicker.
- One that is asked goes as soon as its stay has cost the waiting requests together as many seconds as its going costs
  its own: for each of these the swap there and back and the work that waits, both as measured.
- At wait-seconds it goes anyhow, earlier if others wait for their turn after this one. It takes no new requests then,
  and no answer is cut off. So a swap begins after at most wait-seconds and one answer.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, field

from gpubox.gateway.client_keys import UNLIMITED, ClientLimits
from gpubox.gateway.gateway_status import WaitKind, WaitsFor
from gpubox.gateway.servers import GatewayServer

READ_COST = 1 / 32
"""Of a prompt token that is read, in generated ones: servers read 10 to 100 times as fast as they write, a card more
than a processor. One that comes from the KV cache costs nothing."""
ASSUMED_TOKENS, ASSUMED_ANSWER_SECONDS, ASSUMED_LOAD_SECONDS = 256.0, 10.0, 10.0
"""Before there is a first answer, or a first load."""
NEWEST_SHARE = 0.25
"""Of the newest answer in the averages."""
IDLE_SHARE = 0.1
BROKEN_SECONDS, BROKEN_MAX_SECONDS = 15.0, 300.0
"""A profile that failed is not tried again for so long; twice as long after each further failure."""
POSTPONE_MAX_SECONDS, UNTIL_RELEASED = 15.0, float("inf")
_GENERATING = frozenset({
    "completion", "completions", "chat/completions", "messages", "responses", "infill", "chat", "generate", "embedding",
    "embeddings", "rerank", "reranking", "audio/transcriptions",
})  # fmt: skip
"""llama-server's endpoints (build 11434) that work in a slot, without /v1 or /api."""


def takes_slot(path: str) -> bool:
    """Whether a server answers a request to ``path`` in a slot: a generation, which changes nothing."""
    return path.removeprefix("/v1").removeprefix("/api").removeprefix("/") in _GENERATING


@dataclass(slots=True, eq=False)
class Ticket:
    """One request in the queue or at a server."""

    id: int
    client: str = ""
    """Empty until it is known."""
    profile: str = ""
    """The one that answers; empty until it is known."""
    limits: ClientLimits = UNLIMITED
    takes_slot: bool = True
    arrived: float = 0.0
    since: float = 0.0
    """Until when its wait is counted in the next two."""
    queue_seconds: float = 0.0
    """How long it waited for a slot."""
    swap_seconds: float = 0.0
    """How long it waited for its profile to be up."""
    server: asyncio.Future[GatewayServer] | None = None
    """Where it may go, once it may."""
    sent_at: float = 0.0
    charge: float = 0.0
    """The tokens that it was expected to cost when it was sent."""


@dataclass(slots=True)
class _Account:
    """What one client got of one profile."""

    tag: float = 0.0
    """The tokens that it got, divided by its weight; requests under way count as they were estimated."""
    under_way: float = 0.0
    """The part of ``tag`` that is an estimate."""
    estimate: float = ASSUMED_TOKENS
    """Of its next request."""
    running: int = 0
    waiting: dict[int, Ticket] = field(default_factory=dict)
    """In the order of arrival."""

    @property
    def is_active(self) -> bool:
        return bool(self.running or self.waiting)

    @property
    def first(self) -> Ticket:
        return next(iter(self.waiting.values()))


@dataclass(slots=True)
class QueuedProfile:
    """The requests of one profile, and its server as the queue sees it."""

    up: bool = False
    closed: bool = False
    """Takes no new requests: its server is about to stop, or is changed by another gpubox."""
    lost_until: float = 0.0
    """Its server did not take a request, and gets none before."""
    quiet_until: float = 0.0
    """Its server is not asked before for what its slots do."""
    unload_until: float = 0.0
    """Until then a client waits for its unloading."""
    up_since: float = 0.0
    was_up: bool = False
    """Whether it has ever been."""
    used: float = 0.0
    """When its last request came or ended."""
    slots: int | None = 1
    """1 until the server says it. None: it does not say."""
    context: int | None = None
    """Tokens of a slot. None: its server has not said it yet."""
    foreign: int = 0
    """The slots that work on requests which came to the server's own port."""
    load_seconds: float = ASSUMED_LOAD_SECONDS
    """How long it takes to bring it up, with the stop of another."""
    answer_seconds: float = ASSUMED_ANSWER_SECONDS
    estimate: float = ASSUMED_TOKENS
    running: dict[int, Ticket] = field(default_factory=dict)
    busy: int = 0
    """Of ``running``, those in slots."""
    accounts: dict[str, _Account] = field(default_factory=dict)
    floor: float = 0.0
    """Where a client's account starts that comes now."""
    slotless: dict[int, Ticket] = field(default_factory=dict)
    """Waiting requests that need the server, but no slot."""
    displaces: tuple[str, ...] = ()
    """The profiles that must stop for it, while it is brought up."""
    loading: bool = False
    retry_at: float = 0.0
    """It is not brought up before."""
    cause: str = ""
    """Why: it failed. Empty: another gpubox or a benchmark is at work."""
    failures: int = 0
    postponed: int = 0
    postponed_since: float = 0.0

    @property
    def is_open(self) -> bool:
        return self.up and not self.closed

    def waiting(self) -> Iterator[Ticket]:
        """In the order of arrival within each client."""
        yield from self.slotless.values()
        for account in self.accounts.values():
            yield from account.waiting.values()

    @property
    def waiting_count(self) -> int:
        return len(self.slotless) + sum(len(account.waiting) for account in self.accounts.values())

    @property
    def oldest(self) -> float:
        """When the request that waits longest arrived."""
        return min(ticket.arrived for ticket in self.waiting())

    def count_wait(self, ticket: Ticket, now: float) -> None:
        seconds = now - ticket.since
        if self.is_open:
            ticket.queue_seconds += seconds
        else:
            ticket.swap_seconds += seconds
        ticket.since = now


class AdmissionQueue:
    """The waiting and running requests of all profiles. Times are seconds of one clock."""

    def __init__(self, *, deadline_seconds: float, capacity: int) -> None:
        self.deadline_seconds, self.capacity = deadline_seconds, capacity
        self.paused = False
        self.profiles: dict[str, QueuedProfile] = {}
        self.waiting_count = 0

    def of(self, profile: str) -> QueuedProfile:
        return self.profiles.setdefault(profile, QueuedProfile())

    # -- one request ---------------------------------------------------------

    def admits(self, ticket: Ticket) -> bool:
        """Whether a request that has just come may go to its server now."""
        queued = self.of(ticket.profile)
        if not queued.is_open or self.paused:
            return False
        if not ticket.takes_slot:
            return True
        return self._has_slot(queued) and not self._at_limit(ticket) and self._next_of(queued) is None

    def victim(self, client: str) -> Ticket | None:
        """If the queue is full: the newest request of the client with the most waiting ones, which makes room for one
        of ``client``. None: ``client`` itself has the most, or one less."""
        waiting = [ticket for queued in self.profiles.values() for ticket in queued.waiting()]
        counts = Counter(ticket.client for ticket in waiting)
        largest, count = counts.most_common(1)[0]
        if count <= counts[client] + 1:
            return None
        return max((ticket for ticket in waiting if ticket.client == largest), key=lambda ticket: ticket.arrived)

    def is_full(self) -> bool:
        return self.waiting_count >= self.capacity

    def wait(self, ticket: Ticket, now: float) -> None:
        queued = self.of(ticket.profile)
        ticket.arrived = ticket.arrived or now
        ticket.since = now
        waiting = self._account(queued, ticket).waiting if ticket.takes_slot else queued.slotless
        waiting[ticket.id] = ticket
        self.waiting_count += 1

    def run(self, ticket: Ticket, now: float) -> None:
        """The request goes to its server."""
        queued = self.of(ticket.profile)
        self._leave_queue(queued, ticket, now)
        queued.running[ticket.id] = ticket
        queued.used = ticket.sent_at = now
        if ticket.takes_slot:
            queued.busy += 1
            account = self._account(queued, ticket)
            account.running += 1
            ticket.charge = account.estimate
            account.tag += ticket.charge / ticket.limits.weight
            account.under_way += ticket.charge / ticket.limits.weight

    def leave(self, ticket: Ticket, now: float, tokens: float | None = None) -> None:
        """The request is over, or its client has left. ``tokens``: what its answer cost; None: it is not known."""
        queued = self.of(ticket.profile)
        self._leave_queue(queued, ticket, now)
        if queued.running.pop(ticket.id, None) is not None:
            queued.used = now
            if ticket.takes_slot:
                self._settle(queued, ticket, now, tokens)
        if not queued.running and not queued.waiting_count:  # nobody was kept waiting: all begin anew
            queued.accounts.clear()
            queued.floor = 0.0

    def next_ticket(self, profile: str) -> Ticket | None:
        """The waiting request of the profile that goes next, if one may go now."""
        queued = self.of(profile)
        if not queued.is_open or self.paused:
            return None
        if queued.slotless:
            return next(iter(queued.slotless.values()))
        return self._next_of(queued) if self._has_slot(queued) else None

    def _leave_queue(self, queued: QueuedProfile, ticket: Ticket, now: float) -> None:
        account = queued.accounts.get(ticket.client)
        waiting = queued.slotless if not ticket.takes_slot else account.waiting if account else {}
        if waiting.pop(ticket.id, None) is not None:
            queued.count_wait(ticket, now)
            self.waiting_count -= 1

    def _settle(self, queued: QueuedProfile, ticket: Ticket, now: float, tokens: float | None) -> None:
        """The account of a request that is over gets what it really cost."""
        queued.busy -= 1
        account, weight = queued.accounts[ticket.client], ticket.limits.weight
        account.running -= 1
        account.under_way = account.under_way - ticket.charge / weight if account.running else 0.0
        if tokens is None:
            return
        account.tag += (tokens - ticket.charge) / weight
        account.estimate += (tokens - account.estimate) * NEWEST_SHARE
        queued.estimate += (tokens - queued.estimate) * NEWEST_SHARE
        share = 1.0 if queued.answer_seconds == ASSUMED_ANSWER_SECONDS else NEWEST_SHARE
        queued.answer_seconds += (now - ticket.sent_at - queued.answer_seconds) * share

    def _account(self, queued: QueuedProfile, ticket: Ticket) -> _Account:
        """The client's account; of one that was away, it is brought forward."""
        account = queued.accounts.get(ticket.client)
        if account is None:
            account = _Account(estimate=queued.estimate)
        if not account.is_active:
            others = [each.tag - each.under_way for each in queued.accounts.values() if each.is_active]
            queued.floor = max(queued.floor, min(others, default=0.0))
            queued.accounts = {name: each for name, each in queued.accounts.items()
                               if each.is_active or each.tag > queued.floor}  # fmt: skip
            account.tag = max(account.tag, queued.floor)
            queued.accounts[ticket.client] = account
        return account

    def _next_of(self, queued: QueuedProfile) -> Ticket | None:
        best: _Account | None = None
        for account in queued.accounts.values():
            if not account.waiting or self._at_limit(account.first):
                continue
            if best is None or (account.tag, account.running) < (best.tag, best.running):
                best = account
        return best.first if best else None

    def _has_slot(self, queued: QueuedProfile) -> bool:
        # Those at the server's own port never hold back all of ours: their queue may have no end. None is sent to wait
        # at the server: it would gain a millisecond, and stand in the way of who comes next.
        return queued.slots is None or queued.busy < max(1, queued.slots - queued.foreign)

    def _at_limit(self, ticket: Ticket) -> bool:
        most = ticket.limits.requests_at_once
        return most is not None and self._in_slots(ticket.client) >= most

    def _in_slots(self, client: str) -> int:
        """The requests of a client in slots of any profile."""
        accounts = (queued.accounts.get(client) for queued in self.profiles.values())
        return sum(account.running for account in accounts if account)

    def _down(self) -> Iterator[tuple[str, QueuedProfile]]:
        """The profiles that are waited for and not up."""
        return ((name, queued) for name, queued in self.profiles.items() if not queued.up and queued.waiting_count)

    # -- the profiles --------------------------------------------------------

    def set_up(self, running: Iterable[str], closed: Collection[str], now: float) -> None:
        """Tells which profiles have a server that answers, and which of them take no new requests."""
        names = set(running)
        for name in names:
            self.of(name)
        for name, queued in self.profiles.items():
            up, closes = name in names, name in closed
            if (up and not closes) != queued.is_open:
                for ticket in queued.waiting():
                    queued.count_wait(ticket, now)
            if up and not queued.up:
                queued.up_since, queued.used, queued.was_up, queued.loading = now, now, True, False
                queued.failures, queued.postponed, queued.retry_at, queued.cause = 0, 0, 0.0, ""
                queued.lost_until = queued.unload_until = 0.0
            queued.up, queued.closed = up, closes

    def broken(self, profile: str, now: float) -> tuple[str, float] | None:
        """Why the profile is not tried now, and for how many seconds; None if it may be tried."""
        queued = self.of(profile)
        return (queued.cause, queued.retry_at - now) if queued.cause and queued.retry_at > now else None

    def failed(self, profile: str, cause: str, now: float) -> list[Ticket]:
        """The profile could not be brought up: returns its waiting requests, which get ``cause``.

        One that has been up before is tried once more first: its server may have been killed while it loaded.
        """
        queued = self.of(profile)
        queued.failures += 1
        if queued.failures == 1 and queued.was_up:
            return []
        queued.was_up = False
        seconds = min(BROKEN_SECONDS * 2 ** (queued.failures - 1), BROKEN_MAX_SECONDS)
        queued.cause, queued.retry_at = cause, now + seconds
        return list(queued.waiting())

    def forgive(self) -> None:
        """Every profile that failed may be tried again."""
        for queued in self.profiles.values():
            queued.retry_at = 0.0 if queued.cause else queued.retry_at

    def postpone(self, profile: str, now: float) -> list[Ticket]:
        """The profile cannot be brought up now. Returns the requests that wait longer for that than the deadline."""
        queued = self.of(profile)
        queued.cause, queued.retry_at = "", now + min(2.0**queued.postponed, POSTPONE_MAX_SECONDS)
        if not queued.postponed:
            queued.postponed_since = now
        queued.postponed += 1
        since = queued.postponed_since
        return [each for each in queued.waiting() if now - max(each.arrived, since) >= self.deadline_seconds]

    def release(self, but: str) -> None:
        """The operation of ``but`` is over: what waited for that may be tried."""
        for name, queued in self.profiles.items():
            if queued.retry_at == UNTIL_RELEASED and name != but:
                queued.retry_at = 0.0

    def next_profiles(self, now: float) -> list[str]:
        """The profiles to bring up, first that of the request which waits longest."""
        if self.paused:
            return []
        wanted = sorted((queued.oldest, name) for name, queued in self._down() if queued.retry_at <= now)
        return [name for _, name in wanted]

    def close_at(self, wanted: str, displaced: Collection[str], now: float) -> float:
        """When the ``displaced`` profiles stop taking requests so that ``wanted`` comes up in time."""
        target = self.of(wanted)
        latest = (target.oldest if target.waiting_count else now) + self.deadline_seconds
        before = target.load_seconds + target.answer_seconds
        for oldest, queued in sorted(((each.oldest, each) for _, each in self._down()), key=lambda pair: pair[0]):
            if queued is not target and not queued.loading:  # it has its turn after this one, with the same deadline
                latest = min(latest, oldest + self.deadline_seconds - before)
                before += queued.load_seconds + queued.answer_seconds
        stays = [self._stays_until(self.of(name), target, now) for name in displaced]
        return max(now, min(latest, max(stays, default=now)))

    def _stays_until(self, queued: QueuedProfile, target: QueuedProfile, now: float) -> float:
        swap = queued.load_seconds + target.load_seconds
        asking = len(queued.running) + queued.waiting_count
        if not asking:
            return queued.used + IDLE_SHARE * swap
        arrived = [max(ticket.arrived, queued.up_since) for ticket in target.waiting()]
        if not arrived:
            return now
        work = target.waiting_count * target.answer_seconds / (target.slots or 1)  # as far as the last answers tell
        left = asking * (swap + work) - sum(now - since for since in arrived)
        return now + left / len(arrived)

    def idle_seconds(self, profile: str, now: float) -> float | None:
        """How long nobody has asked the profile; None while somebody does."""
        queued = self.of(profile)
        return None if queued.running or queued.waiting_count else now - max(queued.used, queued.up_since)

    # -- what it knows -------------------------------------------------------

    def waits_for(self, now: float) -> dict[int, WaitsFor]:
        """What each waiting request waits for, and behind whom; the seconds of the tickets are up to date then."""
        waits: dict[int, WaitsFor] = {}
        for name, queued in self.profiles.items():
            waiting = list(queued.waiting())
            for ticket in waiting:
                queued.count_wait(ticket, now)
            if self.paused or not queued.is_open:
                waits |= dict.fromkeys((each.id for each in waiting), self._waits_for_profile(name, queued))
                continue
            ahead = Counter(ticket.client for ticket in queued.running.values() if ticket.takes_slot)
            for ticket in _in_order(queued):
                if self._at_limit(ticket):
                    waits[ticket.id] = WaitsFor("limit", ((ticket.client, self._in_slots(ticket.client)),))
                else:
                    waits[ticket.id] = WaitsFor("slot", tuple(ahead.most_common()))
                    ahead[ticket.client] += 1
        return waits

    def _waits_for_profile(self, name: str, queued: QueuedProfile) -> WaitsFor:
        kind: WaitKind = "hold" if self.paused else "load" if queued.loading else "swap"
        if kind != "swap":
            return WaitsFor(kind)
        wanted = [(each, other.waiting_count) for each, other in self.profiles.items() if name in other.displaces]
        running = [(each, len(self.of(each).running)) for each in queued.displaces]
        return WaitsFor(kind, tuple(running or wanted))


def _in_order(queued: QueuedProfile) -> list[Ticket]:
    """The waiting requests as they will go, as far as the estimates tell."""
    tags = {each.id: account.tag + place * account.estimate / each.limits.weight
            for account in queued.accounts.values() for place, each in enumerate(account.waiting.values())}  # fmt: skip
    return sorted((each for each in queued.waiting() if each.takes_slot), key=lambda ticket: tags[ticket.id])
