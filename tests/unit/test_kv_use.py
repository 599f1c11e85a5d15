"""Whether restored states helped: from the number of cached tokens, and from the server's log."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime

import pytest

from gpubox.server.kept_kv import judge
from gpubox.server.log_parsing import parse_event
from gpubox.server.state import RestoredSlot, reused_state
from gpubox.telemetry.requests import RequestLog

SMALL, LARGE = RestoredSlot(0, 600, "small"), RestoredSlot(1, 4000, "large")


def request(slot: int, task: int, prompt: int, cached: int, selected: str) -> str:
    """The log lines of one request, as build 11434 writes them."""
    head = f"0.01.000.000 I slot get_availabl: id  {slot} | task -1 | selected slot by {selected}\n"
    lines = [
        "launch_slot_: id  {s} | task {t} | processing task, is_child = 0",
        "operator(): id  {s} | task {t} | new prompt, n_ctx_slot = 8192, n_keep = 0, task.n_tokens = {p}",
        "operator(): id  {s} | task {t} | cached n_tokens = {c}, memory_seq_rm [{c}, end)",
        "timing: id  {s} | task {t} | prompt eval time =   41.89 ms /  {r} tokens (1 ms, 811 tokens per second)",
        "timing: id  {s} | task {t} |        eval time =    12.17 ms /     2 tokens (6 ms, 164 tokens per second)",
        "timing: id  {s} | task {t} |       total time =    54.06 ms /    36 tokens",
        "release: id  {s} | task {t} | stop processing: n_tokens = {p}, truncated = 0",
    ]  # fmt: skip
    values = {"s": slot, "t": task, "p": prompt, "c": cached, "r": prompt - cached}
    return head + "".join(f"0.01.000.000 I slot {line.format(**values)}\n" for line in lines)


LCP = "LCP similarity, f_sim_best = 0.945 (> 0.100 thold), f_keep = 1.000"
LRU = "LRU, t_last = -1"


def verdict(*requests: str) -> tuple[set[str], set[str]]:
    return judge((parse_event(line)[1] for text in requests for line in text.splitlines()), (SMALL, LARGE))


@pytest.mark.parametrize(
    ("cached", "state"),
    [(600, SMALL), (599, SMALL), (310, SMALL), (250, None), (0, None), (None, None), (4000, LARGE), (2500, LARGE),
     (4001, None), (900, None)],
)  # fmt: skip
def test_the_number_of_cached_tokens_says_which_state_was_reused(
    cached: int | None, state: RestoredSlot | None
) -> None:
    assert reused_state((LARGE, SMALL), cached) == state


def test_the_log_says_what_helped_and_what_was_wanted_in_vain() -> None:
    assert verdict(request(0, 5, 634, 600, LCP)) == ({"small"}, set())
    assert verdict(request(0, 5, 634, 0, LCP)) == (set(), {"small"})  # a hybrid model, and a branch
    assert verdict(request(0, 5, 634, 0, LRU)) == (set(), set())  # another conversation took its slot
    assert verdict(request(0, 5, 634, 0, LRU), request(0, 6, 634, 600, LCP)) == (set(), set())
    assert verdict(request(2, 5, 4100, 4000, LRU)) == ({"large"}, set())  # through the prompt cache in RAM
    assert verdict(request(1, 5, 300, 0, LCP)) == (set(), set())  # a short prompt that begins alike
    assert verdict("nonsense") == (set(), set())


def test_the_first_request_that_reuses_a_state_shows_it() -> None:
    log = RequestLog(datetime(2026, 1, 1, tzinfo=UTC), restored=(SMALL,))
    text = request(0, 5, 634, 600, LCP) + request(0, 7, 690, 600, LCP)

    for line in text.splitlines():
        at, event = parse_event(line)
        if event:
            log.feed(at, event)

    assert [each.restored_tokens for each in log.finished] == [None, 600]
    assert replace(log.finished[1], restored_tokens=None).cached_tokens == 600
