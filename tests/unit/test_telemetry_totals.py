"""The number of requests is right however long the log is and whatever was cut out of it."""

from __future__ import annotations

import random
from datetime import UTC, datetime
from pathlib import Path

import pytest

from gpubox.server import log as log_module
from gpubox.server.log import ENDED, count_ended_requests, truncate_log
from gpubox.telemetry import log_source
from gpubox.telemetry.log_source import LogSource
from tests.unit.llama_box import LOADED, done, taken

PROOF = taken("0.00.500.000", 0, prompt=1) + (
    "0.00.600.000 I slot print_timing: id  0 | task 0 | prompt eval time = 20.00 ms / 1 tokens "
    "( 20.00 ms per token, 50.00 tokens per second)\n"
    "0.00.600.000 I slot release: id  0 | task 0 | stop processing: n_tokens = 1, truncated = 0\n"
)
FILLER = "0.02.000.000 I srv  update_slots: all slots are idle\n"


@pytest.fixture(autouse=True)
def small_log(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every bound in proportion, so that a log of a few KiB is a long one."""
    for module, name, value in (
        (log_source, "HEAD_BYTES", 2000),
        (log_source, "TAIL_BYTES", 3000),
        (log_source, "TICK_BYTES", 1000),
        (log_module, "MAX_LOG_BYTES", 30_000),
        (log_module, "COPY_SECONDS", 0.0),
        (log_module, "_CHUNK", 997),
    ):
        monkeypatch.setattr(module, name, value)


def source(path: Path) -> LogSource:
    return LogSource(path, datetime.now(UTC), probe=True)


def one_request(rng: random.Random, task: int) -> str:
    """Answered, cancelled, refused, or an embedding, of which no timings are written."""
    of = f"id  0 | task {task} |"
    begin = taken("0.05.000.000", task, prompt=rng.randrange(1, 500))
    end = f"0.06.000.000 I slot release: {of} stop processing: n_tokens = 9, truncated = 0\n"
    kind = rng.choice(["answered", "answered", "cancelled", "refused", "embedding"])
    if kind == "answered":
        return begin + done("0.06.000.000", task, generated=rng.randrange(2, 99))
    if kind == "cancelled":
        return begin + f"0.05.500.000 W srv          stop: cancel task, id_task = {task}\n" + end
    if kind == "refused":
        return begin + f"0.05.500.000 E srv    send_error: task id = {task}, error: too long\n" + end
    return begin + end


@pytest.mark.parametrize("seed", range(25))
def test_a_new_gpubox_counts_every_request_of_any_log(tmp_path: Path, seed: int) -> None:
    rng, path, total = random.Random(seed), tmp_path / "main.log", 0
    path.write_text(LOADED + PROOF)
    watching = source(path)
    for round_ in range(rng.randrange(1, 6)):
        with path.open("a") as log:
            for number in range(rng.randrange(60)):
                log.write(one_request(rng, 1000 * (round_ + 1) + number))
                log.write(FILLER * rng.randrange(8))
                total += 1
        watching.read()  # in a flood it leaves out what it cannot read in time
        if rng.random() < 0.7:
            truncate_log(path)
        for _ in range(100):
            watching.read()

        for name, result in (("new", source(path)), ("watching", watching)):
            assert result.uncounted == ""
            assert result.requests.count == total, name
            numbers = [request.number for request in result.requests.finished]
            assert numbers == sorted(numbers, reverse=True)
            assert not numbers or numbers[0] == total or name == "watching"


def test_a_request_across_a_skipped_part_counts(tmp_path: Path) -> None:
    path = tmp_path / "main.log"
    path.write_text(LOADED + PROOF + taken("0.01.000.000", 5) + FILLER * 300 + done("0.09.000.000", 5))

    result = source(path)

    assert not result.complete
    assert (result.requests.count, result.uncounted) == (1, "")


@pytest.mark.parametrize("at", range(0, 120, 7))
def test_a_line_at_the_edge_is_counted_once(tmp_path: Path, at: int) -> None:
    path = tmp_path / "x.log"
    text = "0.06.000.000 I slot release: id  0 | task 5 | stop processing: n_tokens = 9, truncated = 0\n" * 40
    path.write_text(text)
    size, edge = len(text), 1000 + at

    behind = text.encode()[edge:].partition(b"\n")[2]  # what a reader takes that comes into the middle of a line

    assert (count_ended_requests(path, 0, edge) or 0) + len(ENDED.findall(behind)) == 40
    assert count_ended_requests(path, 0, size) == 40


def test_a_log_that_another_program_cut_is_not_counted_and_says_why(tmp_path: Path) -> None:
    path = tmp_path / "main.log"
    path.write_text(taken("59.01.000.000", 5) + done("59.09.000.000", 5))

    assert source(path).uncounted == "another program truncated the log: its old requests are not counted"


def test_a_log_that_an_older_gpubox_cut_says_why_it_is_not_counted(tmp_path: Path) -> None:
    path = tmp_path / "main.log"
    path.write_text(LOADED + "gpubox: cut at 2026-01-01T00:00:00+00:00: the removed lines are lost\n")

    assert source(path).uncounted == "the log was truncated: the requests in the removed part are not counted"


def test_a_flood_that_is_too_long_to_count_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_module, "MAX_COUNTED_BYTES", 10_000)
    path = tmp_path / "main.log"
    path.write_text(LOADED + PROOF + FILLER * 500)

    assert source(path).uncounted == "a part of the log is too long: its requests are not counted"
