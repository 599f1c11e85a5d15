"""How long requests waited for their slots, from the log lines of the server's queue."""

from __future__ import annotations

import random
from collections import deque
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

import pytest

from gpubox import units
from gpubox.server.log_parsing import parse_event
from gpubox.telemetry.requests import RequestLog
from gpubox.telemetry.snapshot import Request
from tests.sampling import sampled

STARTED = datetime(2026, 1, 1, tzinfo=UTC)


def stamp(seconds: float) -> str:
    micro = round(seconds * 1e6)
    return f"{micro // 60_000_000}.{micro // 1_000_000 % 60:02d}.{micro // 1000 % 1000:03d}.{micro % 1000:03d} I "


def waits(lines: list[tuple[float, str]]) -> dict[int, Request]:
    """The finished requests by task."""
    log, result = RequestLog(STARTED), {}
    for at, text in lines:
        time, event = parse_event(stamp(at) + text)
        if event and (request := log.feed(time, event)):
            result[request.task] = request
    return result


@dataclass
class Server:
    """llama-server's main loop and queue in small: what it writes, and how long each task really waited."""

    slots: int
    rng: random.Random
    now: float = 1.0
    lines: list[tuple[float, str]] = field(default_factory=list)
    truth: dict[int, float] = field(default_factory=dict)
    new: deque[tuple[int, float]] = field(default_factory=deque)
    deferred: deque[tuple[int, float]] = field(default_factory=deque)
    running: dict[int, tuple[int, float]] = field(default_factory=dict)
    number: int = 1

    def say(self, text: str, at: float | None = None) -> None:
        self.lines.append((self.now if at is None else at, text))

    def arrive(self, at: float) -> int:
        """A request comes while the loop is at work."""
        self.say("srv  server_strea: conv_id= (empty=1)", at)
        self.number += self.rng.randrange(1, 9)
        self.new.append((self.number, at))
        return self.number

    def leave(self, at: float) -> None:
        """The client of a task that waits goes away."""
        waiting = [*self.new, *self.deferred]
        if waiting:
            task = self.rng.choice(waiting)
            self.say(f"srv          stop: cancel task, id_task = {task[0]}", at)
            self.new = deque(t for t in self.new if t != task)
            self.deferred = deque(t for t in self.deferred if t != task)

    def look(self) -> None:
        """The main loop takes what is in its queue."""
        while self.new:
            task = self.new.popleft()
            self.now += 1e-5
            free = [slot for slot in range(self.slots) if slot not in self.running]
            for slot in range(self.slots):
                if slot not in free:
                    self.say(f"slot get_availabl: id {slot:2} | task {task[0]} |  - skipping, is_processing = 1")
            if not free:
                self.deferred.append(task)
                continue
            self.say(f"slot get_availabl: id {free[0]:2} | task -1 | selected slot by LRU, t_last = 5")
            self.say(f"slot launch_slot_: id {free[0]:2} | task {task[0]} | processing task, is_child = 0")
            self.truth[task[0]] = self.now - task[1]
            self.running[free[0]] = (task[0], self.now + self.rng.uniform(0.5, 5.0))

    def finish(self, slot: int, task: int) -> None:
        of = f"id {slot:2} | task {task} |"
        speed = "5 tokens ( 1.00 ms per token, 9.00 tokens per second)"
        self.say(f"slot print_timing: {of} prompt eval time = 1.00 ms / {speed}")
        self.say(f"slot print_timing: {of} eval time = 1.00 ms / {speed}")
        self.say(f"slot      release: {of} stop processing: n_tokens = 10, truncated = 0")
        del self.running[slot]
        if self.deferred:
            self.new.appendleft(self.deferred.popleft())


CASES = [(seed, slots, leavers) for seed in range(20) for slots in (1, 2, 4) for leavers in (0.0, 0.25)]


@pytest.mark.parametrize(("seed", "slots", "leavers"), sampled(CASES))
def test_each_wait_is_the_true_one_whoever_leaves(seed: int, slots: int, leavers: float) -> None:
    rng = random.Random(seed)
    server = Server(slots, rng)
    load = rng.choice([0.05, 0.3, 1.0])
    for _ in range(200):
        length = rng.choice([0.02, 0.02, 0.3, 2.0]) if server.running or server.new else 0.02
        within = sorted(server.now + 0.001 + rng.random() * (length - 0.01) for _ in range(rng.randrange(3)))
        before, server.now = server.now, server.now
        coming = [at for at in within if rng.random() < load]
        for slot, (task, _) in server.running.items():
            server.say(f"slot   operator(): id {slot:2} | task {task} | cached n_tokens = 5, memory_seq_rm [5, end)")
        if not server.running and not server.new:
            server.say("srv  update_slots: all slots are idle")
        for at in coming:
            if rng.random() < leavers:
                server.leave(at)
            else:
                server.arrive(at)
        server.now = before + length
        for slot, (task, end) in list(server.running.items()):
            if server.now >= end:
                server.finish(slot, task)
        server.look()

    result = waits(server.lines)

    items = [request for request in result.values() if request.queue_seconds is not None]
    assert len(items) > len(result) / 3  # if two slots finish at once, the order is unknown where clients left
    for request in items:
        assert request.queue_seconds == pytest.approx(server.truth[request.task], abs=1e-4)
        assert request.ttft_seconds == pytest.approx((request.queue_seconds or 0) + (request.slot_ttft_seconds or 0))
    if slots == 1 or leavers == 0:
        assert len(items) == len(result) > 0


QUEUE = Path(__file__).parent.parent / "fixtures" / "logs" / "b11434-queue.log"
SEEN = {8: 7.852, 10: 10.371, 13: 10.740, 15: 11.800, 16: 12.601, 17: 13.989, 131: 0.180, 133: 0.868, 144: 1.799,
        145: 3.237, 149: 3.761, 150: 4.910}  # fmt: skip
"""By task: what each client measured (one slot), one more leaving in each round."""


def test_a_recorded_queue_gives_the_waits_that_the_clients_saw() -> None:
    log, result = RequestLog(STARTED, skip_probe=True), {}
    for line in QUEUE.read_text(encoding="utf-8").splitlines():
        at, event = parse_event(line)
        if event and (request := log.feed(at, event)):
            result[request.task] = request

    for task, seconds in SEEN.items():
        assert result[task].ttft_seconds == pytest.approx(seconds, abs=0.03)
    # in the last round one was refused, and two prompts came in one request: that leaves a choice
    assert [result[task].ttft_seconds for task in (285, 303, 314, 321)] == [None] * 4
    assert all((result[task].slot_ttft_seconds or 0) > 0 for task in (285, 303, 314, 321))


def one(begin: float, task: int, *, arrived: float | None = None) -> list[tuple[float, str]]:
    """A request that finds a slot at once."""
    of = f"id  0 | task {task} |"
    came = [(arrived, "srv  server_strea: conv_id= (empty=1)")] if arrived is not None else []
    return [
        *came,
        (begin, "slot get_availabl: id  0 | task -1 | selected slot by LRU, t_last = 5"),
        (begin, f"slot launch_slot_: {of} processing task, is_child = 0"),
        (
            begin + 1,
            f"slot print_timing: {of} eval time = 500.00 ms / 5 tokens ( 1.00 ms per token, 9.00 tokens per second)",
        ),
        (begin + 1, f"slot      release: {of} stop processing: n_tokens = 10, truncated = 0"),
        (begin + 1, "srv  update_slots: all slots are idle"),
    ]


def test_one_that_was_refused_an_hour_ago_is_not_the_one_that_comes_now() -> None:
    refused = [(10.0, "srv  server_strea: conv_id= (empty=1)")]
    lines = [(1.0, "srv  update_slots: all slots are idle"), *refused, *one(59.0, 7, arrived=58.9)]

    assert waits(lines)[7].queue_seconds == pytest.approx(0.1)


def test_a_log_without_arrivals_gives_no_wait_and_only_a_bound_of_ttft() -> None:
    request = waits(one(5.0, 7))[7]

    assert (request.queue_seconds, request.ttft_seconds, request.slot_ttft_seconds) == (None, None, 0.5)
    assert units.duration_at_least(request.ttft_seconds, request.slot_ttft_seconds) == "≥500ms"


def test_after_a_gap_in_the_log_waits_are_unknown_until_all_slots_are_idle() -> None:
    log = RequestLog(STARTED)
    log.forget()
    result = {}
    for at, text in [*one(5.0, 7, arrived=4.0), *one(9.0, 9, arrived=8.5)]:
        time, event = parse_event(stamp(at) + text)
        if event and (request := log.feed(time, event)):
            result[request.task] = request.queue_seconds

    assert result == {7: None, 9: pytest.approx(0.5)}
