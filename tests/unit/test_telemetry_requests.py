"""Requests from the server's log: cached tokens, speeds, stop reasons."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

import pytest

from gpubox.server.log_parsing import parse_event
from gpubox.telemetry.requests import MAX_REQUESTS, RequestLog
from gpubox.telemetry.snapshot import Request

LOGS = Path(__file__).parent.parent / "fixtures" / "logs"
STARTED = datetime(2026, 1, 1, tzinfo=UTC)
Lines = list[tuple[float, str]]


def feed(log: RequestLog, lines: Lines) -> list[Request]:
    """Feeds lines with the server's clock before them; the requests that they ended."""
    items = []
    for at, text in lines:
        seconds, event = parse_event(f"{int(at // 60)}.{at % 60:06.3f}.000 I {text}")
        assert event is not None, text
        request = log.feed(seconds, event)
        if request:
            items.append(request)
    return items


def request_lines(
    at: float,
    *,
    slot: int = 0,
    task: int = 1,
    prompt: int = 1000,
    cached: int = 0,
    generated: int = 50,
    pp: float = 500.0,
    tg: float = 25.0,
    truncated: int = 0,
    extra: tuple[str, ...] = (),
) -> Lines:
    """One whole request as the server logs it."""
    of = f"id  {slot} | task {task} |"
    new, most = prompt - cached, max(0, prompt - 4)
    end = at + new / pp + generated / tg
    return [
        (at, f"slot launch_slot_: {of} processing task, is_child = 0"),
        (at, f"slot operator(): {of} new prompt, n_ctx_slot = 4096, n_keep = 0, task.n_tokens = {prompt}"),
        *((at, text.format(of=of)) for text in extra),
        (at, f"slot operator(): {of} cached n_tokens = {cached}, memory_seq_rm [{cached}, end)"),
        (at + new / pp / 2, f"slot operator(): {of} cached n_tokens = {most}, memory_seq_rm [{most}, end)"),
        (
            end,
            f"slot print_timing: {of} prompt eval time = {new / pp * 1e3:9.2f} ms / {new} tokens "
            f"( 1.00 ms per token, {pp:9.2f} tokens per second)",
        ),
        (
            end,
            f"slot print_timing: {of} eval time = {generated / tg * 1e3:9.2f} ms / {generated} tokens "
            f"( 1.00 ms per token, {tg:9.2f} tokens per second)",
        ),
        (end, f"slot print_timing: {of} total time = {(end - at) * 1e3:9.2f} ms / {new + generated} tokens"),
        (end, f"slot release: {of} stop processing: n_tokens = {prompt + generated - 1}, truncated = {truncated}"),
    ]


def test_the_recorded_requests() -> None:
    log = RequestLog(STARTED)
    for line in (LOGS / "b11434-moe-mtp-rpc.log").read_text(encoding="utf-8").splitlines():
        at, event = parse_event(line)
        if event:
            log.feed(at, event)
    second, first = log.finished

    assert (log.count, sum(r.generated_tokens or 0 for r in log.finished), log.in_flight) == (2, 200, {})
    assert (first.slot, first.task, first.prompt_tokens, first.cached_tokens, first.generated_tokens) == (
        1,
        0,
        32,
        0,
        150,
    )
    assert first.at == "2026-01-01T00:00:00.499+00:00"
    assert first.slot_ttft_seconds == pytest.approx(0.0573, abs=1e-3)
    assert first.duration_seconds == pytest.approx(0.8407, abs=1e-3)
    assert (first.pp_tokens_per_second, first.tg_tokens_per_second) == (560.74, 190.21)
    assert (first.draft_tokens, first.draft_tokens_accepted, first.mean_accepted_length) == (117, 110, 3.82)
    assert first.draft_acceptance == pytest.approx(0.94017, abs=1e-5)
    assert first.accepted_per_position == (1.0, 0.949, 0.872)
    assert (second.task, second.prompt_tokens, second.draft_acceptance) == (42, 1501, 35 / 41)
    assert (first.stop_reason, first.cache_miss, second.cache_miss) == (None, None, None)


def test_cached_and_processed_tokens() -> None:
    (request,) = feed(RequestLog(STARTED), request_lines(5.0, prompt=43_000, cached=41_200, pp=900.0))

    assert (request.prompt_tokens, request.cached_tokens) == (43_000, 41_200)
    assert request.slot_ttft_seconds == pytest.approx(2.0, abs=0.01)
    assert request.duration_seconds == pytest.approx(4.0, abs=0.01)
    assert request.cache_miss is None


def test_the_log_of_an_older_build_without_times() -> None:
    log = RequestLog(STARTED)
    result = None
    for line in (LOGS / "older-builds.log").read_text(encoding="utf-8").splitlines():
        at, event = parse_event(line)
        if event:
            result = log.feed(at, event, seen=77.0) or result

    assert result is not None
    assert result.at == "2026-01-01T00:01:17.000+00:00"
    assert (result.prompt_tokens, result.cached_tokens, result.generated_tokens) == (3000, 0, 200)
    assert (result.slot_ttft_seconds, result.duration_seconds) == (3.0, 13.0)
    assert (result.pp_tokens_per_second, result.tg_tokens_per_second) == (1000.0, 20.0)
    assert (result.draft_tokens, result.draft_tokens_accepted, result.mean_accepted_length) == (297, 171, 2.40)
    assert result.cache_miss is None  # the log does not show how much of it a slot held


def test_timings_without_slot_and_header_are_ignored() -> None:
    log = RequestLog(STARTED)
    lines = request_lines(1.0)
    stray = (1.5, "prompt eval time =    3000.00 ms /  3000 tokens (    1.00 ms per token,  1000.00 tokens per second)")

    (request,) = feed(log, [*lines[:5], stray, *lines[5:]])

    assert request.pp_tokens_per_second == 500.0


def test_a_forced_reread_of_a_model_that_is_not_known_to_need_checkpoints_is_not_explained() -> None:
    forced = (
        "slot operator(): {of} forcing full prompt re-processing due to lack of cache data (likely due to SWA, see x)"
    )
    (request,) = feed(RequestLog(STARTED), request_lines(1.0, extra=(forced,)))

    assert request.cache_miss is None


def test_without_a_line_there_is_no_cache_miss_reason() -> None:
    log = RequestLog(STARTED)
    feed(log, request_lines(1.0, task=1))

    assert feed(log, request_lines(20.0, task=2))[0].cache_miss is None


def test_a_request_that_failed_is_one() -> None:
    lines = request_lines(1.0, task=9)
    error = (4.0, "srv    send_error: task id = 9, error: Context size has been exceeded.")
    (request,) = feed(RequestLog(STARTED), [*lines[:3], error, (4.1, lines[-1][1])])

    assert (request.stop_reason, request.prompt_tokens, request.generated_tokens) == ("error", 1000, None)


@pytest.mark.parametrize(
    ("limit", "generated", "truncated", "reason"),
    [
        (50, 50, 0, "length"),
        (64, 50, 0, "stop"),
        (-1, 50, 0, None),
        (None, 50, 0, None),
        (64, 50, 1, "context full"),
    ],
)
def test_why_it_ended(limit: int | None, generated: int, truncated: int, reason: str | None) -> None:
    log = RequestLog(STARTED)
    lines = request_lines(1.0, generated=generated, truncated=truncated)
    feed(log, lines[:3])
    log.in_flight[0].predict_limit = limit  # from /slots

    assert feed(log, lines[3:])[0].stop_reason == reason


def test_a_client_that_went_away_before_the_first_token() -> None:
    log = RequestLog(STARTED)
    lines = request_lines(1.0, task=9)
    released = "slot release: id  0 | task 9 | stop processing: n_tokens = 512, truncated = 0"
    (request,) = feed(log, [*lines[:3], (4.0, "srv stop: cancel task, id_task = 9"), (5.0, released)])

    assert (request.stop_reason, request.generated_tokens, request.ttft_seconds) == ("cancelled", None, None)
    assert request.prompt_tokens == 1000
    assert request.duration_seconds == pytest.approx(4.0)
    assert log.count == 1


def test_a_client_that_went_away_in_the_middle_of_an_answer() -> None:
    log = RequestLog(STARTED)
    lines = request_lines(1.0, task=9, generated=150)
    progress = (4.5, "slot print_timing: id  0 | task 9 | n_gen =    112, tg =  36.77 t/s, tg_3s =  37.10 t/s")
    (request,) = feed(log, [*lines[:5], progress, (4.6, "srv stop: cancel task, id_task = 9"), (5.0, lines[-1][1])])

    assert (request.stop_reason, request.generated_tokens, request.tg_tokens_per_second) == ("cancelled", 150, None)
    assert sum(r.generated_tokens or 0 for r in log.finished) == 150

    lines = request_lines(6.0, task=9, generated=150, truncated=1)  # what was shifted out is not known
    (request,) = feed(log, [*lines[:5], (7.5, progress[1]), (7.6, "srv stop: cancel task, id_task = 9"), lines[-1]])
    assert (request.stop_reason, request.generated_tokens) == ("cancelled", 112)


def test_clients_that_left_the_queue_are_forgotten_in_the_end() -> None:
    log = RequestLog(STARTED)
    feed(log, [(1.0, f"srv stop: cancel task, id_task = {task}") for task in range(5 * MAX_REQUESTS)])

    assert len(log._cancelled) <= MAX_REQUESTS + 1


def test_an_embedding_without_timings_is_a_request() -> None:
    log = RequestLog(STARTED)
    lines = request_lines(1.0, prompt=40)

    (request,) = feed(log, [*lines[:3], lines[-1]])
    assert (request.prompt_tokens, request.generated_tokens, request.tg_tokens_per_second) == (40, None, None)
    assert (request.duration_seconds or 0) > 0
    assert (log.count, log.in_flight) == (1, {})


def test_gpuboxs_own_embedding_is_no_request() -> None:
    log = RequestLog(STARTED, skip_probe=True)
    lines = request_lines(1.0, prompt=2)

    assert feed(log, [*lines[:3], lines[-1]]) == []
    assert (log.count, log.skip_probe) == (0, False)


def test_gpuboxs_own_token_is_no_request() -> None:
    log = RequestLog(STARTED, skip_probe=True)

    assert feed(log, request_lines(1.0, task=0, prompt=2, generated=1)) == []
    (request,) = feed(log, request_lines(9.0, task=2))
    assert (request.number, log.count) == (1, 1)
    assert len(feed(log, request_lines(20.0, task=3, prompt=2, generated=1))) == 1  # a client may ask for one token too


def test_clients_that_come_before_gpuboxs_token_are_counted_and_it_is_not() -> None:
    log = RequestLog(STARTED, skip_probe=True)

    assert len(feed(log, request_lines(1.0, task=1))) == 1
    assert len(feed(log, request_lines(20.0, task=2, prompt=500, generated=1))) == 1  # one token of a long prompt
    assert feed(log, request_lines(30.0, task=3, prompt=1, generated=1)) == []
    assert len(feed(log, request_lines(40.0, task=4))) == 1
    assert log.count == 3


def test_four_slots_at_once() -> None:
    log = RequestLog(STARTED)
    lines = sorted(
        (line for slot in range(4) for line in request_lines(1.0, slot=slot, task=10 + slot, prompt=100 * (slot + 1))),
        key=lambda line: line[0],
    )
    requests = feed(log, lines)

    assert {r.slot: (r.task, r.prompt_tokens) for r in requests} == {s: (10 + s, 100 * (s + 1)) for s in range(4)}


def test_lines_of_a_task_that_the_slot_does_not_have_are_passed_over() -> None:
    log = RequestLog(STARTED)
    feed(log, request_lines(1.0, task=1)[:3])
    feed(log, request_lines(2.0, task=7)[1:])

    assert (log.in_flight[0].task, log.in_flight[0].prompt_tokens) == (1, 1000)


def test_a_release_without_a_launch_only_counts() -> None:
    log = RequestLog(STARTED)

    assert feed(log, request_lines(1.0)[1:]) == []
    assert log.count == 1


def test_a_slot_that_takes_another_request_has_dropped_the_first() -> None:
    log = RequestLog(STARTED)
    feed(log, request_lines(1.0, task=1)[:3])
    (request,) = feed(log, request_lines(9.0, task=2))

    assert (request.task, log.count) == (2, 1)


def test_progress_gives_the_prompt_length_if_no_other_line_does() -> None:
    log = RequestLog(STARTED)
    lines = request_lines(1.0)
    line = "id  0 | task 1 | prompt processing, n_tokens = 256, progress = {}, t = 8.69 s / 29.45 tokens per second"
    feed(log, [lines[0], (2.0, line.format("0.25"))])
    assert (log.in_flight[0].prompt_tokens, log.in_flight[0].pp) == (1024, 29.45)

    log = RequestLog(STARTED)
    feed(
        log,
        [lines[0], (2.0, line.format("0.00")), (2.0, line.format("nan")), (2.0, line.format("0." + "0" * 300 + "1"))],
    )
    assert log.in_flight[0].prompt_tokens is None


def test_a_clock_that_jumps_back_makes_no_negative_time() -> None:
    lines = request_lines(100.0)
    (request,) = feed(RequestLog(STARTED), [*lines[:-1], (3.0, lines[-1][1])])

    assert request.slot_ttft_seconds == 0.0
    assert request.duration_seconds == 0.0


def test_only_the_last_hundreds_are_kept() -> None:
    log = RequestLog(STARTED)
    for number in range(MAX_REQUESTS + 50):
        feed(log, request_lines(1.0 + 20 * number, task=number))

    assert (len(log.finished), log.count, log.finished[0].number) == (
        MAX_REQUESTS,
        MAX_REQUESTS + 50,
        MAX_REQUESTS + 50,
    )
