"""Whether a request reused a state that was put back: from its slot, its cached tokens, and the requests before it."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from gpubox.server.log_parsing import parse_event
from gpubox.server.state import RestoredSlot
from gpubox.telemetry.requests import RequestLog
from tests.unit.llama_box import logged

SMALL, LARGE = RestoredSlot(0, 600, "small"), RestoredSlot(1, 4000, "large")
LCP = "selected slot by LCP similarity, f_sim_best = 0.945 (> 0.100 thold), f_keep = 1.000"
LRU = "selected slot by LRU, t_last = -1"
BETTER = "0.01.000.000 I srv          load:  - found better prompt with f_keep = 0.950, f_sim = 0.940\n"


def reused(*requests: str, probe: bool = False) -> list[int | None]:
    """What the log shows of each request, the first one first."""
    log = RequestLog(datetime(2026, 1, 1, tzinfo=UTC), restored=(LARGE, SMALL), skip_probe=probe)
    for line in "".join(requests).splitlines():
        at, event = parse_event(line)
        if event:
            log.feed(at, event)
    return [each.restored_tokens for each in reversed(log.finished)]


@pytest.mark.parametrize(
    ("cached", "tokens"), [(600, 600), (599, 600), (310, 600), (250, None), (0, None), (900, None)]
)
def test_the_first_request_in_a_slot_reuses_its_state_or_not(cached: int, tokens: int | None) -> None:
    assert reused(logged(5, LCP, prompt=634, cached=cached)) == [tokens]


def test_a_state_that_was_moved_to_the_prompt_cache_in_ram_is_known_by_its_length() -> None:
    assert reused(logged(5, LRU, slot=2, prompt=4100, cached=4000)) == [4000]
    assert reused(logged(5, LRU, slot=2, prompt=4100, cached=4001)) == [None]


def test_only_the_first_request_that_reuses_a_state_shows_it() -> None:
    assert reused(logged(5, LCP, prompt=634, cached=600), logged(7, LCP, prompt=690, cached=600)) == [600, None]


def test_tokens_of_another_conversation_are_no_restored_state() -> None:
    """As many tokens as in a kept state, which another request has left in a slot, or in RAM."""
    before = logged(5, LRU, slot=3, prompt=580)
    assert reused(before, logged(7, LCP, slot=3, prompt=600, cached=591)) == [None, None]
    assert reused(before, logged(7, LRU, slot=2, prompt=600, cached=591)) == [None, None]
    assert reused(before, logged(7, LCP, slot=0, prompt=600, cached=591)) == [None, 600]
    assert reused(before, logged(7, LCP, slot=0, prompt=600, cached=591, extra=BETTER)) == [None, None]


def test_the_readiness_probe_came_before_the_states() -> None:
    probe = logged(0, LRU, prompt=3)
    assert reused(probe, logged(5, LCP, prompt=634, cached=600), probe=True) == [600]
