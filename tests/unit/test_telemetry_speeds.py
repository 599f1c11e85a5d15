"""Slots, speeds and totals of one moment, and speeds of the session."""

from __future__ import annotations

import random
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from gpubox.server.responses import Slot
from gpubox.telemetry.requests import RequestInFlight, RequestLog
from gpubox.telemetry.sampler import STUCK_SECONDS
from gpubox.telemetry.snapshot import Request, SlotReading
from gpubox.telemetry.speeds import (
    GAP_SECONDS,
    MIN_WINDOW_SECONDS,
    OpenRequest,
    SessionSpeeds,
    SlotRates,
    current_session,
    read_slots,
    session_speeds,
    throughput,
    totals,
)

STARTED = datetime(2026, 1, 1, tzinfo=UTC)


def slot(index: int = 0, generated: int | None = 0, *, task: int | None = 1, used: int = 100, **more: object) -> Slot:
    return Slot(index, True, 4096, used, generated, task, **more)  # type: ignore[arg-type]


IDLE = Slot(0, False, 4096, 100, None, 1)


def polled(rates: SlotRates, speed: float, seconds: float = 4.0, *, begin: float = 0.0, index: int = 0) -> float:
    """Four polls a second of a slot that generates at ``speed``; the time of the last."""
    for quarter in range(int(seconds * 4) + 1):
        at = begin + quarter / 4
        rates.feed(at, (slot(index, 1 + round(speed * quarter / 4)),))
    return at


# -- now ---------------------------------------------------------------------------------------------


@pytest.fixture
def rates() -> SlotRates:
    return SlotRates()


def test_the_speed_of_the_last_three_seconds(rates: SlotRates) -> None:
    at = polled(rates, 20.0)
    assert rates.tg(0, at) == pytest.approx(20.0)

    for quarter in range(1, 17):  # now it slows down
        rates.feed(at + quarter / 4, (slot(0, 81 + round(4.0 * quarter / 4)),))
    assert rates.tg(0, at + 4.0) == pytest.approx(4.0)


def test_the_first_moments_say_nothing(rates: SlotRates) -> None:
    rates.feed(0.0, (slot(0, 1),))
    rates.feed(MIN_WINDOW_SECONDS / 2, (slot(0, 9),))

    assert rates.tg(0, MIN_WINDOW_SECONDS / 2) is None


def test_an_idle_slot_has_no_speed(rates: SlotRates) -> None:
    at = polled(rates, 20.0)
    rates.feed(at, (IDLE,))

    assert rates.tg(0, at) is None
    (reading,) = read_slots((IDLE,), None, rates, at, None)
    assert (reading.state, reading.tg_tokens_per_second) == ("idle", None)
    assert throughput("idle", (reading,), []).tg_tokens_per_second is None


def test_the_next_task_begins_anew(rates: SlotRates) -> None:
    at = polled(rates, 20.0)
    rates.feed(at + 0.25, (slot(0, 200, task=2),))
    rates.feed(at + 0.50, (slot(0, 203, task=2),))
    assert rates.tg(0, at + 0.5) is None

    rates.feed(at + 1.25, (slot(0, 212, task=2),))
    assert rates.tg(0, at + 1.25) == pytest.approx(12.0)
    assert rates.seconds(0, at + 1.25) == pytest.approx(1.0)


def test_a_count_that_goes_back_is_another_request(rates: SlotRates) -> None:
    at = polled(rates, 20.0)
    rates.feed(at + 0.25, (slot(0, 3, task=1),))
    rates.feed(at + 0.50, (slot(0, 5, task=1),))
    assert rates.tg(0, at + 0.5) is None


def test_a_clock_that_jumps_back_gives_no_negative_speed(rates: SlotRates) -> None:
    at = polled(rates, 20.0, begin=1000.0)
    for quarter in range(5):
        rates.feed(10.0 + quarter / 4, (slot(0, 100 + 5 * quarter),))

    assert at > 1000
    assert rates.tg(0, 11.0) == pytest.approx(20.0)
    assert rates.seconds_unmoved(11.0) <= STUCK_SECONDS


def test_four_slots_are_summed(rates: SlotRates) -> None:
    for quarter in range(17):
        rates.feed(quarter / 4, tuple(slot(i, 1 + round((i + 1) * 5 * quarter / 4), task=i) for i in range(4)))
    slots = tuple(slot(i, 100, task=i) for i in range(4))
    readings = read_slots(slots, None, rates, 4.0, None)

    assert [r.tg_tokens_per_second for r in readings] == pytest.approx([5, 10, 15, 20], rel=0.05)
    now = throughput("answering", readings, [])
    assert now.tg_tokens_per_second == pytest.approx(50, rel=0.05)
    assert (now.busy_slots, now.slots) == (4, 4)


def test_a_standstill_is_zero_and_not_the_last_speed() -> None:
    rates, log = SlotRates(), RequestLog(STARTED)
    for quarter in range(17):
        rates.feed(quarter / 4, (slot(0, 50),))
    log.in_flight[0] = RequestInFlight(0, 1, 0.0, tg_3s=37.1, tg_at=3.0)

    assert read_slots((slot(0, 50),), log, rates, 4.0, 4.0)[0].tg_tokens_per_second == 0.0


def test_where_the_polls_say_nothing_the_logs_line_is_the_speed_for_a_while() -> None:
    log = RequestLog(STARTED)
    log.in_flight[0] = RequestInFlight(0, 1, 0.0, tg_3s=37.1, tg_at=10.0)

    def tg(clock: float) -> float | None:
        return read_slots((slot(0, 50),), log, SlotRates(), clock, clock)[0].tg_tokens_per_second

    assert (tg(11.0), tg(14.0), tg(14.5)) == (37.1, 37.1, None)


def test_stuck_is_when_no_busy_slot_moves(rates: SlotRates) -> None:
    rates.feed(0.0, (slot(0, 5), slot(1, 5, task=2)))
    rates.feed(STUCK_SECONDS, (slot(0, 5), slot(1, 6, task=2)))
    assert rates.seconds_unmoved(STUCK_SECONDS + 1) <= STUCK_SECONDS

    assert rates.seconds_unmoved(2 * STUCK_SECONDS + 1) > STUCK_SECONDS
    rates.feed(2 * STUCK_SECONDS + 2, (slot(0, 6), slot(1, 6, task=2)))
    assert rates.seconds_unmoved(2 * STUCK_SECONDS + 2) <= STUCK_SECONDS
    assert SlotRates().seconds_unmoved(1e9) <= STUCK_SECONDS


def test_reading_a_prompt_is_moving_and_one_that_is_not_read_on_is_not(rates: SlotRates) -> None:
    rates.feed(0.0, (slot(0, 0, used=0),))
    rates.feed(15.0, (slot(0, 0, used=2048),))
    rates.feed(30.0, (slot(0, 0, used=2048),))
    assert rates.seconds_unmoved(30.0) <= STUCK_SECONDS

    rates.feed(36.0, (slot(0, 0, used=2048),))
    assert rates.seconds_unmoved(36.0) > STUCK_SECONDS
    assert rates.seconds_unmoved(36.0) == 21.0
    assert SlotRates().seconds_unmoved(36.0) == 0.0


# -- a prompt ----------------------------------------------------------------------------------------


def reading_prompt(processed: int | None, clock: float = 12.0, *, prompt: int | None = 43_000) -> SlotReading:
    log = RequestLog(STARTED)
    log.in_flight[0] = RequestInFlight(0, 1, 10.0, prompt_tokens=prompt, cached_tokens=41_000)
    inputs = slot(0, 0, used=41_000 + (processed or 0), processed_tokens=processed, predict_limit=64)
    (reading,) = read_slots((inputs,), log, SlotRates(), clock, clock)
    assert log.in_flight[0].predict_limit == 64
    return reading


def test_the_progress_of_a_prompt_includes_cached_tokens() -> None:
    reading = reading_prompt(1000)

    assert (reading.state, reading.prompt_done_tokens, reading.cached_tokens) == ("prefill", 42_000, 41_000)
    assert reading.prefill_progress == pytest.approx(42 / 43)
    assert reading.pp_tokens_per_second == pytest.approx(500.0)  # of the new ones
    assert reading.eta_seconds == pytest.approx(2.0)
    assert reading.seconds == pytest.approx(2.0)

    now = throughput("prefill", (reading,), [])
    assert (now.pp_tokens_per_second, now.eta_seconds) == (reading.pp_tokens_per_second, reading.eta_seconds)


def test_between_two_batches_the_speed_of_a_prompt_stays_and_its_end_comes_nearer() -> None:
    log = RequestLog(STARTED)
    log.in_flight[0] = RequestInFlight(0, 1, 10.0, prompt_tokens=4000, cached_tokens=0)
    rates = SlotRates()
    for at, processed in ((10.0, 0), (12.0, 1000), (13.5, 1000)):
        inputs = slot(0, 0, used=processed, processed_tokens=processed)
        rates.feed(at, (inputs,))
    (reading,) = read_slots((inputs,), log, rates, 13.5, 13.5)

    assert reading.pp_tokens_per_second == pytest.approx(500.0)  # 1000 tokens in the 2 s up to the step
    assert reading.eta_seconds == pytest.approx(6.0 - 1.5)

    log.in_flight[0].pp = 512.5
    (reading,) = read_slots((inputs,), log, rates, 13.5, 13.5)
    assert reading.pp_tokens_per_second == 512.5  # the log's own


def test_before_the_first_batch_there_is_no_speed_and_no_end_in_sight() -> None:
    reading = reading_prompt(0)

    assert reading.prefill_progress == pytest.approx(41 / 43)
    assert (reading.pp_tokens_per_second, reading.eta_seconds) == (None, None)


def test_a_prompt_of_unknown_length_has_no_progress() -> None:
    reading = reading_prompt(1000, prompt=None)

    assert (reading.prefill_progress, reading.eta_seconds, reading.prompt_done_tokens) == (None, None, 42_000)


def test_progress_never_passes_the_whole() -> None:
    assert reading_prompt(9000).prefill_progress == 1.0


def test_a_server_clock_behind_the_request_is_no_negative_time() -> None:
    assert reading_prompt(1000, clock=3.0).seconds == 0.0


def test_a_request_that_the_log_does_not_know(rates: SlotRates) -> None:
    rates.feed(5.0, (slot(0, 0),))
    (reading,) = read_slots((slot(0, 0, processed_tokens=700),), None, rates, 6.0, None)

    assert (reading.prompt_tokens, reading.prefill_progress, reading.prompt_done_tokens) == (None, None, 700)
    assert (reading.seconds, reading.pp_tokens_per_second) == (1.0, 700.0)


def test_a_slot_without_values_is_unknown() -> None:
    bare = Slot(0, True, None, None, None)
    (reading,) = read_slots((bare,), None, SlotRates(), 1.0, None)

    assert (reading.state, reading.context_used_tokens, reading.pp_tokens_per_second) == ("prefill", None, None)
    assert throughput("prefill", (reading,), []).context_used_tokens is None


# -- what was ----------------------------------------------------------------------------------------


def request(began: float, seconds: float, tokens: int, tg: float | None = None, **more: object) -> Request:
    return Request(
        number=1, at=(STARTED + timedelta(seconds=began)).isoformat(), slot=0, task=1, generated_tokens=tokens,
        duration_seconds=seconds, tg_tokens_per_second=tg, generation_seconds=(tokens - 1) / tg if tg else None, **more,  # type: ignore[arg-type]
    )  # fmt: skip


def test_peak_median_and_effective_are_three_numbers() -> None:
    newest_first = [request(60, 10, 300, 30.0), request(20, 10, 200, 20.0), request(0, 10, 400, 40.0)]
    now = throughput("idle", (), newest_first)

    assert (now.tg_peak, now.tg_median) == pytest.approx((40.0, 30.0))
    assert now.effective_tokens_per_second == pytest.approx(900 / 70)  # the pauses are in it
    assert now.tg_tokens_per_second is None


def wall_seconds(finished: list[Request]) -> float | None:
    """From the beginning of the session's first request to the end of its last."""
    effective = throughput("idle", (), finished).effective_tokens_per_second
    return sum(r.generated_tokens or 0 for r in current_session(finished)) / effective if effective else None


def test_a_long_pause_begins_a_new_session() -> None:
    morning = request(0, 10, 1000, 99.0)
    evening = request(10 + GAP_SECONDS + 1, 10, 100, 20.0)
    coffee = request(10 + GAP_SECONDS - 1, 10, 100, 20.0)

    assert current_session([evening, morning]) == [evening]
    assert wall_seconds([evening, morning]) == pytest.approx(10.0)
    assert current_session([coffee, morning]) == [coffee, morning]
    assert throughput("idle", (), [evening, morning]).tg_peak == pytest.approx(20.0)


def test_requests_side_by_side_share_their_wall_time() -> None:
    wall = wall_seconds([request(2, 10, 100), request(1, 3, 100), request(0, 10, 100)])

    assert wall == pytest.approx(12)


def test_a_few_tokens_are_no_peak() -> None:
    assert throughput("idle", (), [request(0, 1, 3, 900.0)]).tg_peak is None


def test_nothing_done_is_unknown() -> None:
    now = throughput("idle", (), [])

    assert (now.tg_peak, now.tg_median, now.effective_tokens_per_second, now.ttft_seconds) == (None, None, None, None)
    assert (current_session([]), wall_seconds([])) == ([], None)
    assert (current_session([request(0, 0, 0)]), wall_seconds([request(0, 0, 0)])) == ([request(0, 0, 0)], None)


def test_acceptance_is_of_the_last_request_that_drafted() -> None:
    plain = request(20, 1, 9)
    drafted = request(0, 1, 9, draft_tokens=41, draft_tokens_accepted=35, mean_accepted_length=3.5)
    now = throughput("idle", (), [plain, drafted])

    assert (now.draft_acceptance, now.mean_accepted_length) == (35 / 41, 3.5)
    assert throughput("idle", (), [plain]).draft_acceptance is None


def test_context_is_of_the_fullest_slot() -> None:
    slots = (SlotReading(0, "idle", None, 10, 4096), SlotReading(1, "idle", None, 900, 2048), SlotReading(2, "idle"))
    now = throughput("idle", slots, [])

    assert (now.context_used_tokens, now.context_size_tokens, now.busy_slots) == (900, 2048, 0)


# -- totals ------------------------------------------------------------------------------------------

COUNTERS = {"prompt_tokens_total": 100.0, "prompt_tokens_cached_total": 40.0, "tokens_predicted_total": 51.0}


def test_totals_are_the_servers_less_gpuboxs_own() -> None:
    log = replace(RequestLog(STARTED), count=7)
    sums = totals(COUNTERS, log, (2, 1))

    assert (sums.requests, sums.prompt_tokens, sums.cached_tokens, sums.generated_tokens) == (7, 98, 40, 50)
    assert (sums.draft_tokens, sums.draft_tokens_accepted) == (None, None)


def test_requests_are_not_counted_where_a_part_of_the_log_was_not_read() -> None:
    assert totals(COUNTERS, RequestLog(STARTED), (0, 0), "a part is lost").requests is None


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
def test_a_counter_that_is_no_number_is_unknown(value: float) -> None:
    assert totals({"prompt_tokens_total": value}, None, (0, 0)).prompt_tokens is None


def test_without_metrics_there_are_no_totals() -> None:
    sums = totals(None, None, (2, 1), "no log")

    assert (sums.requests, sums.prompt_tokens, sums.generated_tokens) == (None, None, None)


def test_a_counter_below_the_probe_is_zero() -> None:
    assert totals({"tokens_predicted_total": 0.0}, None, (0, 1)).generated_tokens == 0


ZERO = STARTED.timestamp()


def generated(ended: float, seconds: float, tokens: int, *, prompt: float = 0.0, **more: object) -> Request:
    """One that generated ``tokens`` + the free first one in ``seconds``, after ``prompt`` seconds of reading."""
    return Request(
        number=1, at=(STARTED + timedelta(seconds=ended - seconds - prompt)).isoformat(), slot=0, task=1,
        generated_tokens=tokens + 1, duration_seconds=seconds + prompt, generation_seconds=seconds,
        tg_tokens_per_second=tokens / seconds, **more,  # type: ignore[arg-type]
    )  # fmt: skip


def newest_first(requests: list[Request]) -> list[Request]:
    return sorted(requests, key=lambda r: (r.at, r.duration_seconds), reverse=True)


def test_one_after_the_other_all_slots_and_one_request_are_the_same() -> None:
    speeds = session_speeds([generated(60, 10, 300), generated(40, 10, 200), generated(20, 10, 400)], [], None)

    assert (speeds.tg_median, speeds.tg_peak) == pytest.approx((30.0, 40.0))
    assert (speeds.request_tg_median, speeds.request_tg_peak) == (30.0, 40.0)


def test_four_at_once_are_four_times_one() -> None:
    speeds = session_speeds([generated(10, 10, 100) for _ in range(4)], [], None)

    assert (speeds.tg_median, speeds.tg_peak) == (40.0, 40.0)
    assert (speeds.request_tg_median, speeds.request_tg_peak) == (10.0, 10.0)
    assert speeds.effective == pytest.approx(404 / 10)


def test_one_that_joins_for_a_second_makes_no_speed_that_never_was() -> None:
    """40 tok/s alone, 25 each for the second in which there are two: never more than 50."""
    alone = generated(60, 60, 59 * 40 + 25)
    joined = generated(30, 1, 25)

    speeds = session_speeds(newest_first([alone, joined]), [], None)

    assert speeds.tg_peak == pytest.approx((59 * 40 + 50) / 60)


@pytest.mark.parametrize("seed", range(40))
def test_whatever_ran_side_by_side_the_sums_are_those_of_the_tokens(seed: int) -> None:
    rng = random.Random(seed)
    items = []
    for _ in range(rng.randrange(1, 30)):
        items.append(
            generated(60 + rng.random() * 60, 0.5 + rng.random() * 9, rng.randrange(20, 400), prompt=rng.random())
        )
    known = session_speeds(newest_first(items), [], None)

    assert known.tg_median is not None and known.tg_peak is not None
    assert known.request_tg_median is not None and known.request_tg_peak is not None
    assert known.effective is not None
    assert known.tg_median <= known.tg_peak
    assert known.request_tg_median <= known.request_tg_peak
    assert known.tg_peak <= sum(r.tg_tokens_per_second or 0 for r in items) + 1e-6
    begin = min(datetime.fromisoformat(r.at).timestamp() for r in items)
    end = max(datetime.fromisoformat(r.at).timestamp() + (r.duration_seconds or 0) for r in items)
    assert known.effective == pytest.approx(sum(r.generated_tokens or 0 for r in items) / (end - begin))


def test_one_of_four_generating_requests_is_not_all() -> None:
    still = [OpenRequest(ZERO, ZERO, 100) for _ in range(3)]

    speeds = session_speeds([generated(10, 10, 100)], still, ZERO + 10)

    assert speeds.tg_median == pytest.approx((100 + 3 * 99) / 10)
    assert speeds.request_tg_median == 10.0
    assert speeds.effective == pytest.approx(401 / 10)


def test_where_it_is_not_known_when_one_began_to_generate_its_stretch_is_left_out() -> None:
    hidden = [OpenRequest(ZERO + 5, None, 50)]

    speeds = session_speeds([generated(10, 10, 100)], hidden, ZERO + 12)

    assert (speeds.tg_median, speeds.tg_peak) == (None, None)
    assert speeds.effective == pytest.approx(151 / 12)
    assert session_speeds([generated(10, 10, 100)], [OpenRequest(ZERO + 5, None, None)], ZERO + 12).effective is None


def test_one_that_reads_its_prompt_takes_nothing_from_the_others() -> None:
    speeds = session_speeds([generated(10, 10, 100)], [OpenRequest(ZERO + 5, None, 0)], ZERO + 20)

    assert speeds.tg_median == 10.0
    assert speeds.effective == pytest.approx(101 / 20)


def test_a_cancelled_one_without_times_leaves_its_stretch_unknown() -> None:
    cut = Request(2, (STARTED + timedelta(seconds=2)).isoformat(), 1, 2, generated_tokens=50, duration_seconds=3.0,
                  stop_reason="cancelled")  # fmt: skip

    speeds = session_speeds(newest_first([generated(10, 10, 100), cut]), [], None)

    assert (speeds.tg_median, speeds.request_tg_median) == (None, 10.0)


def test_embeddings_generate_nothing() -> None:
    embedding = Request(1, STARTED.isoformat(), 0, 1, prompt_tokens=9, duration_seconds=1.0)

    assert session_speeds([embedding], [], None) == SessionSpeeds()


def test_a_new_session_begins_with_the_one_in_flight() -> None:
    speeds = session_speeds([generated(10, 10, 100)], [OpenRequest(ZERO + 500, ZERO + 501, 101)], ZERO + 511)

    assert (speeds.request_tg_median, speeds.tg_median) == (None, 10.0)
    assert speeds.effective == pytest.approx(101 / 11)


def test_tg_now_is_a_sum_only_if_each_slot_has_a_speed() -> None:
    def answering(index: int, tg: float | None, seconds: float) -> SlotReading:
        return SlotReading(index, "answering", 7 + index, generated_tokens=90, tg_tokens_per_second=tg, seconds=seconds)

    both = (answering(0, 20.0, 9.0), answering(1, 10.0, 9.0))
    assert throughput("answering", both, []).tg_tokens_per_second == 30.0
    silent = (answering(0, 20.0, 9.0), answering(1, None, 9.0))
    assert throughput("answering", silent, []).tg_tokens_per_second is None
    new = (answering(0, 20.0, 9.0), answering(1, None, 0.3))
    assert throughput("answering", new, []).tg_tokens_per_second == 20.0


def test_the_peak_is_never_below_tg_now() -> None:
    log = RequestLog(STARTED)
    log.in_flight[0] = RequestInFlight(0, 7, 20.0, first_at=20.0)
    slot = SlotReading(0, "answering", 7, generated_tokens=101, tg_tokens_per_second=60.0, seconds=10.0)

    now = throughput("answering", (slot,), [generated(10, 10, 500)], 0, log, 22.0)

    assert now.tg_tokens_per_second == now.tg_peak == 60.0
    assert now.tg_median == 50.0
