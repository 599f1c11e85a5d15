"""Whether restored states helped: from the number of cached tokens, and from the server's log."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime

import pytest

from gpubox.server.kept_kv import judge
from gpubox.server.log_parsing import parse_event
from gpubox.server.state import RestoredSlot, reused_state
from gpubox.telemetry.requests import RequestLog
from tests.unit.llama_box import logged

SMALL, LARGE = RestoredSlot(0, 600, "small"), RestoredSlot(1, 4000, "large")


LCP = "selected slot by LCP similarity, f_sim_best = 0.945 (> 0.100 thold), f_keep = 1.000"
LRU = "selected slot by LRU, t_last = -1"
NONE: set[str] = set()


@pytest.mark.parametrize(
    ("cached", "state"),
    [(600, SMALL), (599, SMALL), (310, SMALL), (250, None), (0, None), (None, None), (4000, LARGE), (2500, LARGE),
     (4001, None), (900, None)],
)  # fmt: skip
def test_the_number_of_cached_tokens_says_which_state_was_reused(
    cached: int | None, state: RestoredSlot | None
) -> None:
    assert reused_state((LARGE, SMALL), cached) == state


@pytest.mark.parametrize(
    ("requests", "helped", "missed"),
    [
        ((logged(5, LCP, prompt=634, cached=600),), {"small"}, NONE),
        ((logged(5, LCP, prompt=634, cached=0),), NONE, {"small"}),  # a hybrid model, and a branch
        ((logged(5, LRU, prompt=634, cached=0),), NONE, NONE),  # another conversation took its slot
        ((logged(5, LRU, prompt=634, cached=0), logged(6, LCP, prompt=634, cached=600)), NONE, NONE),
        ((logged(5, LRU, slot=2, prompt=4100, cached=4000),), {"large"}, NONE),  # through the prompt cache in RAM
        ((logged(5, LCP, slot=1, prompt=300, cached=0),), NONE, NONE),  # a short prompt that begins alike
        (("nonsense",), NONE, NONE),
    ],
)  # fmt: skip
def test_the_log_says_what_helped_and_what_was_wanted_in_vain(
    requests: tuple[str, ...], helped: set[str], missed: set[str]
) -> None:
    events = (parse_event(line)[1] for text in requests for line in text.splitlines())
    assert judge(events, (SMALL, LARGE)) == (helped, missed)


def test_the_first_request_that_reuses_a_state_shows_it() -> None:
    log = RequestLog(datetime(2026, 1, 1, tzinfo=UTC), restored=(SMALL,))
    text = logged(5, LCP, prompt=634, cached=600) + logged(7, LCP, prompt=690, cached=600)

    for line in text.splitlines():
        at, event = parse_event(line)
        if event:
            log.feed(at, event)

    assert [each.restored_tokens for each in log.finished] == [None, 600]
    assert replace(log.finished[1], restored_tokens=None).cached_tokens == 600
