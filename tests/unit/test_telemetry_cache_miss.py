"""Cache misses: the reasons that recorded logs show, and no others."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

import pytest

from gpubox.server.log_parsing import parse_event
from gpubox.telemetry.log_source import LogSource
from gpubox.telemetry.requests import (
    AFTER_RESTART,
    AFTER_SLEEP,
    NAMED_SLOT_CHANGED,
    NO_CHECKPOINT,
    PREFIX_CHANGED,
    PromptCacheState,
    RequestLog,
)
from tests.unit.llama_box import LOADED, logged

LOGS = Path(__file__).parent.parent / "fixtures" / "logs"
STARTED = datetime(2026, 1, 1, tzinfo=UTC)
LRU = "selected slot by LRU, t_last = {}"
LCP = "selected slot by LCP similarity, f_sim_best = {} (> 0.100 thold), f_keep = 0.990"
FORCED = "forcing full prompt re-processing due to lack of cache data (likely due to SWA or hybrid/recurrent memory, x)"


def reasons(log: RequestLog, text: str) -> dict[int, str | None]:
    """The cache miss reason of each task in the lines of ``text``."""
    result = {}
    for line in text.splitlines():
        at, event = parse_event(line)
        if event and (request := log.feed(at, event)):
            result[request.task] = request.cache_miss
    return result


# -- recorded: the same prompts A, A, A+, A changed, B, C, A, then five new ones, on three servers ---------------

SEVEN_TASKS = (0, 6, 11, 17, 23, 29, 35)
"""The tasks of the first seven prompts on the first two servers."""


NONE_OF_FIVE = dict.fromkeys((0, 5, 10, 15, 20))
EVICTED = "the similar prompt of slot {} ({} tokens) was evicted {}"


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        # two slots of a hybrid model, no prompt cache; task 44 is forced too, but its slot was a longer prompt's
        ("hybrid", {**dict.fromkeys((*SEVEN_TASKS, 44)), 17: NO_CHECKPOINT, 29: PREFIX_CHANGED,
                    35: EVICTED.format(1, 252, "by task 29")}),
        ("cache", {**dict.fromkeys(SEVEN_TASKS), 17: NO_CHECKPOINT}),  # with a prompt cache nothing is evicted
        ("tight", {**NONE_OF_FIVE, 25: EVICTED.format(2, 304, "to make room")}),  # a KV cache that is too small
    ],
)  # fmt: skip
def test_recorded_servers(name: str, expected: dict[int, str | None]) -> None:
    by_task = reasons(RequestLog(STARTED), (LOGS / f"b11434-slots-{name}.log").read_text(encoding="utf-8"))
    assert {task: by_task[task] for task in expected} == expected
    if name == "cache":
        assert set(by_task.values()) == {None, NO_CHECKPOINT}


# -- one by one -----------------------------------------------------------------------------------------


SWA = "0.00.100.000 I llama_kv_cache_iswa: creating     SWA KV cache, size = 1024 cells\n"
RECURRENT = "0.00.100.000 I llama_memory_recurrent:        CPU RS buffer size =     1.78 MiB\n"
NO_SWA = "0.00.100.000 I llama_kv_cache_iswa: creating non-SWA KV cache, size = 8192 cells\n"


def forced(task: int, chosen: str, *, extra: str = "", prompt: int = 4000) -> str:
    """The lines of a request of which the server says that it reads all of it again."""
    lines = logged(task, chosen, extra=extra, prompt=prompt).splitlines(keepends=True)
    at = next(n for n, line in enumerate(lines) if "cached n_tokens" in line)
    return "".join([*lines[:at], f"0.01.000.000 I slot operator(): id  0 | task {task} | {FORCED}\n", *lines[at:]])


@pytest.mark.parametrize("model", [SWA, RECURRENT], ids=["SWA", "hybrid"])
def test_the_prompt_cache_had_it_and_a_checkpoint_was_missing(model: str) -> None:
    better = "0.01.000.000 I srv          load:  - found better prompt with f_keep = 0.850, f_sim = 1.000\n"
    text = model + logged(1, LRU.format(-1)) + forced(2, LRU.format(7), extra=better)

    assert reasons(RequestLog(STARTED), text)[2] == NO_CHECKPOINT


@pytest.mark.parametrize("prompt", [1, 2, 8, 63, 64, 100, 4000])
@pytest.mark.parametrize("similarity", [0.11, 0.5, 1.0])
def test_a_checkpoint_is_missed_only_by_a_model_that_needs_one_and_where_it_would_have_served(
    prompt: int, similarity: float
) -> None:
    text = logged(1, LRU.format(-1)) + forced(2, LCP.format(similarity), prompt=prompt)
    served = prompt * similarity >= 64

    assert reasons(RequestLog(STARTED), text)[2] is None  # a dense model: the server says the same of it
    assert reasons(RequestLog(STARTED), NO_SWA + text)[2] is None
    assert reasons(RequestLog(STARTED), SWA + text)[2] == (NO_CHECKPOINT if served else None)


SAVED = "0.01.000.000 I srv   prompt_save:  - saving prompt with length 4012, total state size = 1.0 MiB\n"
BY_ID = "selected slot by id (0)"
FIRST, LAST = logged(1, LRU.format(-1)), LRU.format(9)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (FIRST + logged(2, LRU.format(7), prompt=300) + logged(3, LAST, prompt=4200),
         {2: None, 3: EVICTED.format(0, "4,012", "by task 2")}),
        (FIRST + logged(2, LRU.format(7), prompt=300, extra=SAVED) + logged(3, LAST), {2: None, 3: PREFIX_CHANGED}),
        (SWA + logged(1, BY_ID) + forced(2, BY_ID), {2: None}),  # how much was alike is not known
        (FIRST + logged(2, LCP.format(0.9)), {2: None}),  # a client without prompt cache
        (FIRST + logged(2, ""), {2: None}),
        (logged(1, BY_ID) + logged(2, BY_ID), {2: NAMED_SLOT_CHANGED}),
        (FIRST + logged(2, LRU.format(7), prompt=63), {2: None}),
        (FIRST + logged(2, LRU.format(7), cached=3000), {2: None}),
        (FIRST + logged(2, LRU.format(7), cached=201), {2: None}),
    ],
    ids=["pushed out", "in the prompt cache", "named slot of a model with SWA", "like it", "no line tells",
         "a slot that the client names", "short", "reused", "reused a little"],
)  # fmt: skip
def test_one_by_one(text: str, expected: dict[int, str | None]) -> None:
    assert reasons(RequestLog(STARTED), text) == {1: None, **expected}


def test_after_a_restart_the_first_prompt_is_read_whole() -> None:
    log = RequestLog(STARTED, prompt_cache=PromptCacheState(restarted=True))
    text = logged(0, LRU.format(-1), prompt=2) + logged(1, LRU.format(-1), slot=1) + logged(2, LRU.format(-1), slot=2)

    assert reasons(log, text) == {0: None, 1: AFTER_RESTART, 2: None}


@pytest.mark.parametrize("before", [False, True])
def test_there_was_a_launch_before_this_one(before: bool, tmp_path: Path) -> None:
    path = tmp_path / "main.log"
    path.write_text(LOADED + logged(1, LRU.format(-1)))
    if before:
        path.with_name("main.log.1").write_text(LOADED)
    (result,) = LogSource(path, STARTED).requests.finished

    assert result.cache_miss == (AFTER_RESTART if before else None)


def test_a_server_that_slept_has_forgotten_everything(tmp_path: Path) -> None:
    path = tmp_path / "main.log"
    words = ("entering", "exiting")
    sleep = "".join(f"0.10.000.000 I que start_loop: {word} sleeping state\n" for word in words)
    path.write_text(LOADED + logged(1, LRU.format(-1)) + sleep + logged(2, LRU.format(-1)))

    assert LogSource(path, STARTED).requests.finished[0].cache_miss == AFTER_SLEEP
