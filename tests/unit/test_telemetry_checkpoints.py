"""Context checkpoints in host memory, from a recorded run."""

from __future__ import annotations

from pathlib import Path

from gpubox.server.log_events import ContextCheckpoint, PromptCleared
from gpubox.server.log_parsing import parse_event
from gpubox.telemetry.log_source import ContextCheckpoints

LOGS = Path(__file__).parent.parent / "fixtures" / "logs"
ONE = round(0.111 * 2**20)


def test_a_recorded_run_holds_one_for_each_slot_at_its_end() -> None:
    checkpoints, most = ContextCheckpoints(), 0
    for line in (LOGS / "b11434-slots-hybrid.log").read_text(encoding="utf-8").splitlines():
        event = parse_event(line)[1]
        if isinstance(event, ContextCheckpoint):
            checkpoints.feed(event)
        elif isinstance(event, PromptCleared):
            checkpoints.clear(event.slot)
        most = max(most, checkpoints.size_bytes)

    assert (checkpoints.size_bytes, most) == (2 * ONE, 2 * ONE)  # two in one slot, then one in each


def made(number: int, tokens: int, slot: int = 0) -> ContextCheckpoint:
    return ContextCheckpoint(slot, 10, False, number, tokens)


def test_the_oldest_makes_way_and_one_at_the_same_place_is_replaced() -> None:
    checkpoints = ContextCheckpoints()
    for event in (made(1, 100), made(2, 200), made(1, 50, slot=1)):
        checkpoints.feed(event)
    assert checkpoints.size_bytes == 30
    checkpoints.feed(ContextCheckpoint(0, 10, True, 0, 100))
    checkpoints.feed(made(2, 300))
    assert checkpoints.size_bytes == 30
    checkpoints.feed(made(2, 300))
    assert checkpoints.size_bytes == 30
    checkpoints.feed(ContextCheckpoint(0, 10, True, 0, 77))  # one that is not in the log
    assert checkpoints.size_bytes == 30


def test_a_slot_that_begins_anew() -> None:
    checkpoints = ContextCheckpoints()
    for event in (made(1, 100), made(2, 200), made(1, 300)):
        checkpoints.feed(event)
    assert checkpoints.size_bytes == 10
    checkpoints.feed(made(1, 50, slot=1))
    checkpoints.clear(0)
    assert checkpoints.size_bytes == 10
    checkpoints.clear()
    assert checkpoints.size_bytes == 0
