"""Which request goes where and when: by hand, and in a simulation with a clock and servers of its own."""

from __future__ import annotations

import heapq
import itertools
import random
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

import pytest

from gpubox.gateway.admission import READ_COST, UNTIL_RELEASED, AdmissionQueue, Ticket, takes_slot
from gpubox.gateway.client_keys import ClientLimits
from gpubox.gateway.gateway_status import WaitsFor
from tests.sampling import sampled

IDS = itertools.count(1)


def queue(*up: str, at: float = 0.0, slots: int = 1) -> AdmissionQueue:
    made = AdmissionQueue(deadline_seconds=60.0, capacity=4)
    made.set_up(up, (), at)
    for name in up:
        made.of(name).slots = slots
    return made


def ticket(profile: str = "a", client: str = "c", **limits: object) -> Ticket:
    return Ticket(next(IDS), client, profile, ClientLimits(**limits))  # type: ignore[arg-type]


def waits(requests: AdmissionQueue, at: float, *tickets: Ticket) -> None:
    for each in tickets:
        requests.wait(each, at)


def runs(requests: AdmissionQueue, at: float, *tickets: Ticket) -> None:
    for each in tickets:
        requests.run(each, at)


def test_a_request_goes_at_once_while_there_is_a_slot() -> None:
    requests = queue("a", slots=2)
    assert requests.admits(ticket())
    assert not requests.admits(ticket("b"))
    runs(requests, 0.0, ticket(), ticket())
    assert not requests.admits(ticket())
    assert requests.admits(Ticket(0, "c", "a", takes_slot=False))
    requests.paused = True
    assert not requests.admits(Ticket(0, "c", "a", takes_slot=False))


def test_requests_at_the_servers_own_port_take_slots_but_never_all() -> None:
    requests = queue("a", slots=3)
    requests.of("a").foreign = 2
    assert requests.admits(ticket())
    runs(requests, 0.0, ticket())
    assert not requests.admits(ticket())
    requests.of("a").foreign = 3
    requests.leave(next(iter(requests.of("a").running.values())), 1.0)
    assert requests.admits(ticket())  # a crowd at the port may never end


def test_a_key_that_allows_one_request_at_once_keeps_nobody_else_waiting() -> None:
    requests = queue("a", "b", slots=2)
    first, second = ticket(requests_at_once=1), ticket(requests_at_once=1)
    runs(requests, 0.0, first)
    assert not requests.admits(second)
    waits(requests, 0.0, second)
    assert not requests.admits(ticket("b", requests_at_once=1))  # of all profiles
    assert requests.admits(ticket("a", "other"))
    assert requests.next_ticket("a") is None
    assert requests.waits_for(1.0) == {second.id: WaitsFor("limit", (("c", 1),))}
    requests.leave(first, 2.0)
    assert requests.next_ticket("a") is second


def test_a_full_queue_takes_from_the_client_that_fills_it() -> None:
    requests = queue()
    many = [ticket(client="many") for _ in range(4)]
    for at, each in enumerate(many):
        assert not requests.is_full()
        requests.wait(each, at)
    assert requests.is_full()
    assert requests.victim("other") is many[-1]
    assert requests.victim("many") is None
    requests.leave(many[-1], 5.0)
    waits(requests, 5.0, ticket(client="other"))
    assert requests.victim("other") is many[2]
    requests.leave(many[2], 6.0)
    waits(requests, 6.0, ticket(client="other"))
    assert requests.victim("other") is None


def test_what_another_operation_is_in_the_way_of_is_tried_after_it() -> None:
    requests = queue("a")
    waits(requests, 1.0, ticket("b"), ticket("c"))
    requests.of("c").retry_at = UNTIL_RELEASED
    requests.release(but="c")
    assert requests.next_profiles(2.0) == ["b"]
    requests.release(but="b")
    assert requests.next_profiles(2.0) == ["b", "c"]


def test_waiting_is_told_with_who_goes_first() -> None:
    requests = queue("a")
    runs(requests, 0.0, ticket(client="x"))
    first, second, loads = ticket(client="x"), ticket(client="y"), ticket("b")
    waits(requests, 1.0, first, second, loads)
    requests.of("b").displaces = ("a",)
    told = requests.waits_for(5.0)
    assert told[second.id] == WaitsFor("slot", (("x", 1),))
    assert told[first.id] == WaitsFor("slot", (("x", 1), ("y", 1)))
    assert told[loads.id] == WaitsFor("swap", (("a", 1),))
    requests.of("a").closed = True  # so that b gets its turn
    assert requests.waits_for(5.0)[first.id] == WaitsFor("swap", (("b", 1),))
    requests.of("b").loading = True
    assert requests.waits_for(5.0)[loads.id] == WaitsFor("load")
    requests.paused = True
    assert requests.waits_for(5.0)[first.id] == WaitsFor("hold")


def test_a_wait_is_split_into_that_for_a_slot_and_that_for_the_profile() -> None:
    requests = queue("a")
    runs(requests, 0.0, ticket())
    waits(requests, 0.0, waiting := ticket())
    requests.set_up(["a"], ["a"], 3.0)
    requests.set_up([], [], 4.0)
    requests.set_up(["a"], [], 9.0)
    requests.run(waiting, 11.0)
    assert (waiting.queue_seconds, waiting.swap_seconds) == (5.0, 6.0)


def test_the_profile_of_the_longest_waiting_request_comes_next() -> None:
    requests = queue("a")
    first, second, third = ticket("c"), ticket("b"), ticket("c")
    for at, each in enumerate((first, second, third)):
        requests.wait(each, at + 1.0)
    assert requests.next_profiles(4.0) == ["c", "b"]
    requests.leave(first, 4.0)
    assert requests.next_profiles(4.0) == ["b", "c"]
    requests.paused = True
    assert requests.next_profiles(4.0) == []


def swapping(*, waiting: int = 1, running: int = 0, load: float = 4.0, answer: float = 2.0) -> AdmissionQueue:
    """``a`` is up since 100, with running requests; ``b`` is asked for at 102. Both load for ``load`` seconds."""
    requests = queue("a", at=100.0)
    for name in "ab":
        requests.of(name).load_seconds, requests.of(name).answer_seconds = load, answer
    runs(requests, 101.0, *(ticket() for _ in range(running)))
    waits(requests, 102.0, *(ticket("b", f"c{number}") for number in range(waiting)))
    return requests


def test_a_profile_that_nobody_asks_goes_after_a_tenth_of_the_swap() -> None:
    assert swapping().close_at("b", ["a"], 100.1) == 100.0 + 0.8
    assert swapping().close_at("b", ["a"], 105.0) == 105.0


@pytest.mark.parametrize(
    ("waiting", "running", "load", "expected"),
    [
        (1, 1, 4.0, 102.0 + 8.0 + 2.0),  # one waits for as long as the other then would: there, its answer, and back
        (4, 1, 4.0, 102.0 + (8.0 + 8.0) / 4),  # four together
        (1, 4, 4.0, 102.0 + 4 * (8.0 + 2.0)),
        (1, 1, 0.1, 102.0 + 0.2 + 2.0),  # a quick swap is no reason to stay
        (1, 9, 4.0, 102.0 + 60.0),  # the deadline
    ],
)
def test_a_profile_that_is_asked_stays_as_long_as_its_going_would_cost(
    waiting: int, running: int, load: float, expected: float
) -> None:
    requests = swapping(waiting=waiting, running=running, load=load)
    assert requests.close_at("b", ["a"], 102.0) == pytest.approx(expected)
    assert requests.close_at("b", ["a"], expected + 5.0) == expected + 5.0


def test_what_waits_for_its_turn_after_the_next_one_counts_too() -> None:
    requests = swapping(running=9)
    waits(requests, 103.0, ticket("c"))
    requests.of("c").load_seconds = 5.0
    assert requests.close_at("b", ["a"], 103.0) == 103.0 + 60.0 - (4.0 + 2.0)


def test_a_failed_profile_gives_its_requests_back_and_is_not_tried_for_a_while() -> None:
    requests = queue("a")
    waits(requests, 1.0, first := ticket("b"), second := ticket("b"))
    assert requests.failed("b", "b: no such file.", 2.0) == [first, second]
    assert requests.broken("b", 3.0) == ("b: no such file.", 14.0)
    assert requests.broken("b", 18.0) is None
    assert requests.next_profiles(18.0) == ["b"]
    requests.failed("b", "again", 20.0)
    assert requests.broken("b", 49.0) is not None  # twice as long
    requests.set_up(["b"], (), 60.0)
    assert requests.broken("b", 60.0) is None


def test_a_profile_that_has_been_up_is_tried_once_more() -> None:
    requests = queue("b")
    requests.set_up([], (), 1.0)
    waits(requests, 1.0, waiting := ticket("b"))
    assert requests.failed("b", "killed", 2.0) == []
    assert requests.next_profiles(2.0) == ["b"]
    assert requests.failed("b", "killed", 3.0) == [waiting]


def test_idle_seconds_count_from_the_last_request() -> None:
    requests = queue("a", at=10.0)
    assert requests.idle_seconds("a", 25.0) == 15.0
    requests.run(asked := ticket(), 30.0)
    assert requests.idle_seconds("a", 35.0) is None
    requests.leave(asked, 40.0)
    assert requests.idle_seconds("a", 45.0) == 5.0


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("/v1/chat/completions", True), ("/completion", True), ("/v1/embeddings", True), ("/v1/messages", True),
        ("/reranking", True), ("/v1/responses", True), ("/props", False), ("/slots", False), ("/tokenize", False),
        ("/apply-template", False), ("/v1/messages/count_tokens", False), ("/lora-adapters", False),
    ],
)  # fmt: skip
def test_what_takes_a_slot(path: str, expected: bool) -> None:
    assert takes_slot(path) == expected


# -- the simulation --------------------------------------------------------------------------------------------------


@dataclass
class Server:
    """A llama-server: so many requests as it has slots are answered at once, the others in the order they came."""

    slots: int
    free: int = 0
    line: list[tuple[Ticket, float]] = field(default_factory=list)


@dataclass
class Box:
    """Profiles of which one is up at a time, clients, and a clock. An answer takes its tokens at ``PACE``."""

    PACE = 25.0
    LOAD = 3.0

    wait_seconds: float
    slots: int = 2
    now: float = 0.0
    up: str = "busy"
    events: list[tuple[float, int, Callable[[], None]]] = field(default_factory=list)
    tokens: Counter[str] = field(default_factory=Counter)
    most: int = 0
    swapping_to: str = ""

    def __post_init__(self) -> None:
        self.queue = AdmissionQueue(deadline_seconds=self.wait_seconds, capacity=10_000)
        self.answered: dict[int, Callable[[], None]] = {}
        self.asked: dict[int, float] = {}
        self._start(self.up)

    def at(self, seconds: float, act: Callable[[], None]) -> None:
        heapq.heappush(self.events, (self.now + seconds, next(IDS), act))

    def run(self, until: float) -> None:
        while self.events and self.events[0][0] <= until:
            self.now, _, act = heapq.heappop(self.events)
            act()
        self.now = until

    def ask(
        self, client: str, tokens: float, then: Callable[[], None] = lambda: None, profile: str = "busy",
        weight: float = 1.0,
    ) -> Ticket:  # fmt: skip
        made = Ticket(next(IDS), client, profile, ClientLimits(weight=weight))
        self.asked[made.id], self.answered[made.id] = tokens, then
        if self.queue.admits(made):
            self._send(made)
        else:
            self.queue.wait(made, self.now)
            self._look()
        return made

    def _start(self, profile: str) -> None:
        self.up, self.server = profile, Server(self.slots, self.slots)
        self.queue.set_up([profile], (), self.now)
        self.queue.of(profile).slots = self.slots
        self.queue.of(profile).load_seconds = self.LOAD
        self.swapping_to = ""
        self._look()

    def _send(self, sent: Ticket) -> None:
        self.queue.run(sent, self.now)
        self.most = max(self.most, len(self.queue.of(self.up).running))
        assert sent.profile == self.up
        self.server.line.append((sent, self.asked[sent.id]))
        self._serve()

    def _serve(self) -> None:
        while self.server.free and self.server.line:
            self.server.free -= 1
            sent, tokens = self.server.line.pop(0)
            self.at(tokens / self.PACE, lambda sent=sent, tokens=tokens: self._end(sent, tokens))  # type: ignore[misc]

    def _end(self, sent: Ticket, tokens: float) -> None:
        self.server.free += 1
        self.tokens[sent.client] += int(tokens)
        self.queue.leave(sent, self.now, tokens)
        self._serve()
        self.answered[sent.id]()
        self._look()

    def _look(self) -> None:
        """What the gateway does whenever something has changed."""
        while made := self.queue.next_ticket(self.up):
            self._send(made)
        wanted = self.queue.next_profiles(self.now)
        if self.swapping_to or not wanted:
            return
        at = self.queue.close_at(wanted[0], [self.up], self.now)
        if at > self.now:
            self.at(min(at - self.now, 0.1), self._look)
            return
        self.queue.set_up([self.up], [self.up], self.now)
        if not self.queue.of(self.up).running:
            self.swapping_to = wanted[0]
            self.queue.set_up([], (), self.now)
            self.at(self.LOAD, lambda: self._start(wanted[0]))


def crowd(
    box: Box, client: str, connections: int, tokens: Callable[[], float], weight: float = 1.0, *, once: bool = False
) -> None:
    """A client that always has so many requests open; ``once``: each of them only once."""

    def ask() -> None:
        box.ask(client, tokens(), lambda: None if once else box.at(0.002, ask), weight=weight)

    for _ in range(connections):
        ask()


def test_another_profile_is_placed_in_time_whatever_the_others_send() -> None:
    late = []
    for round_ in range(20):
        box, placed = Box(wait_seconds=10.0), list[float]()
        for number in range(20):
            crowd(box, f"c{number}", 1, lambda: 100.0)
        began = 20.0 + 1.7 * round_
        box.at(began, lambda box=box, placed=placed: box.ask("x", 1, lambda: placed.append(box.now), "other"))  # type: ignore[misc]
        box.run(began + 60.0)
        late.append(placed[0] - began)
        assert box.up == "busy"  # which then has its turn again
    assert max(late) <= 10.0 + 4.0 + box.LOAD + 0.2


def test_a_small_request_waits_for_two_answers_at_most() -> None:
    for slots, begun in itertools.product((1, 2, 4), (10.0, 11.3, 13.9, 40.0)):
        box, done = Box(wait_seconds=60.0, slots=slots), list[float]()
        for number in range(31):
            box.ask("batch", 90.0 + number % 20)
        box.at(begun, lambda box=box, done=done: box.ask("small", 5, lambda: done.append(box.now)))  # type: ignore[misc]
        box.run(200.0)
        assert done[0] - begun <= 2 * 4.4
        assert box.most <= slots


LENGTHS: list[tuple[Callable[[random.Random], float], Callable[[random.Random], float]]] = [
    (lambda chance: 100.0, lambda chance: 100.0),
    (lambda chance: 10.0, lambda chance: 500.0),
    (lambda chance: chance.choice([5.0, 50.0, 1000.0]), lambda chance: 40.0),
    (lambda chance: chance.expovariate(1 / 200), lambda chance: chance.expovariate(1 / 20)),
]


@pytest.mark.parametrize("case", sampled(range(len(LENGTHS) * 4), 0.25))
def test_tokens_are_shared_by_weight(case: int) -> None:
    one, two = LENGTHS[case % len(LENGTHS)]
    weight = 2.0 if case // len(LENGTHS) % 2 else 1.0
    chance, box = random.Random(case), Box(wait_seconds=60.0)
    crowd(box, "one", 8, lambda: one(chance), weight)
    crowd(box, "two", 12, lambda: two(chance))
    if case >= 2 * len(LENGTHS):  # clients that come and go
        for at in range(0, 4000, 40):
            box.at(at, lambda: crowd(box, f"guest{chance.randrange(5)}", 1, lambda: 20.0, once=True))
    box.run(200.0)
    before = Counter(box.tokens)
    box.run(4000.0)
    given = box.tokens - before
    share = given["one"] / (given["one"] + given["two"])
    assert (0.60 <= share <= 0.73) if weight == 2.0 else (0.45 <= share <= 0.55)


def test_a_pause_earns_nothing() -> None:
    box = Box(wait_seconds=60.0)
    crowd(box, "one", 8, lambda: 100.0)
    box.at(1000.0, lambda: crowd(box, "two", 8, lambda: 100.0))
    box.run(1000.0)
    before = box.tokens["one"]
    box.run(1400.0)
    assert box.tokens["two"] == pytest.approx(box.tokens["one"] - before, rel=0.1)


def test_a_read_token_costs_less_than_a_generated_one() -> None:
    assert 0 < READ_COST < 0.1
