"""Speeds of the session: of all slots together and of single requests."""

from __future__ import annotations

import random
from datetime import UTC, datetime, timedelta

import pytest

from gpubox.telemetry.requests import RequestInFlight, RequestLog
from gpubox.telemetry.snapshot import Request, SlotReading
from gpubox.telemetry.speeds import OpenRequest, SessionSpeeds, finished_session, session_speeds, throughput

STARTED = datetime(2026, 1, 1, tzinfo=UTC)
ZERO = STARTED.timestamp()


def request(ended: float, seconds: float, tokens: int, *, prompt: float = 0.0, **more: object) -> Request:
    """One that generated ``tokens`` + the free first one in ``seconds``, after ``prompt`` seconds of reading."""
    return Request(
        number=1, at=(STARTED + timedelta(seconds=ended - seconds - prompt)).isoformat(), slot=0, task=1,
        generated_tokens=tokens + 1, duration_seconds=seconds + prompt, generation_seconds=seconds,
        tg_tokens_per_second=tokens / seconds, **more,  # type: ignore[arg-type]
    )  # fmt: skip


def newest_first(requests: list[Request]) -> list[Request]:
    return sorted(requests, key=lambda r: (r.at, r.duration_seconds), reverse=True)


def test_one_after_the_other_all_slots_and_one_request_are_the_same() -> None:
    speeds = session_speeds(
        finished_session([request(60, 10, 300), request(40, 10, 200), request(20, 10, 400)]), [], None
    )

    assert (speeds.tg_median, speeds.tg_peak) == pytest.approx((30.0, 40.0))
    assert (speeds.request_tg_median, speeds.request_tg_peak) == (30.0, 40.0)


def test_four_at_once_are_four_times_one() -> None:
    speeds = session_speeds(finished_session([request(10, 10, 100) for _ in range(4)]), [], None)

    assert (speeds.tg_median, speeds.tg_peak) == (40.0, 40.0)
    assert (speeds.request_tg_median, speeds.request_tg_peak) == (10.0, 10.0)
    assert speeds.effective == pytest.approx(404 / 10)


def test_one_that_joins_for_a_second_makes_no_speed_that_never_was() -> None:
    """40 tok/s alone, 25 each for the second in which there are two: never more than 50."""
    alone = request(60, 60, 59 * 40 + 25)
    joined = request(30, 1, 25)

    speeds = session_speeds(finished_session(newest_first([alone, joined])), [], None)

    assert speeds.tg_peak == pytest.approx((59 * 40 + 50) / 60)


@pytest.mark.parametrize("seed", range(40))
def test_whatever_ran_side_by_side_the_sums_are_those_of_the_tokens(seed: int) -> None:
    rng = random.Random(seed)
    items = []
    for _ in range(rng.randrange(1, 30)):
        items.append(
            request(60 + rng.random() * 60, 0.5 + rng.random() * 9, rng.randrange(20, 400), prompt=rng.random())
        )
    known = session_speeds(finished_session(newest_first(items)), [], None)

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

    speeds = session_speeds(finished_session([request(10, 10, 100)]), still, ZERO + 10)

    assert speeds.tg_median == pytest.approx((100 + 3 * 99) / 10)
    assert speeds.request_tg_median == 10.0
    assert speeds.effective == pytest.approx(401 / 10)


def test_where_it_is_not_known_when_one_began_to_generate_its_stretch_is_left_out() -> None:
    hidden = [OpenRequest(ZERO + 5, None, 50)]

    speeds = session_speeds(finished_session([request(10, 10, 100)]), hidden, ZERO + 12)

    assert (speeds.tg_median, speeds.tg_peak) == (None, None)
    assert speeds.effective == pytest.approx(151 / 12)
    assert (
        session_speeds(
            finished_session([request(10, 10, 100)]), [OpenRequest(ZERO + 5, None, None)], ZERO + 12
        ).effective
        is None
    )


def test_one_that_reads_its_prompt_takes_nothing_from_the_others() -> None:
    speeds = session_speeds(finished_session([request(10, 10, 100)]), [OpenRequest(ZERO + 5, None, 0)], ZERO + 20)

    assert speeds.tg_median == 10.0
    assert speeds.effective == pytest.approx(101 / 20)


def test_a_cancelled_one_without_times_leaves_its_stretch_unknown() -> None:
    cut = Request(2, (STARTED + timedelta(seconds=2)).isoformat(), 1, 2, generated_tokens=50, duration_seconds=3.0,
                  stop_reason="cancelled")  # fmt: skip

    speeds = session_speeds(finished_session(newest_first([request(10, 10, 100), cut])), [], None)

    assert (speeds.tg_median, speeds.request_tg_median) == (None, 10.0)


def test_embeddings_generate_nothing() -> None:
    embedding = Request(1, STARTED.isoformat(), 0, 1, prompt_tokens=9, duration_seconds=1.0)

    assert session_speeds(finished_session([embedding]), [], None) == SessionSpeeds()


def test_a_new_session_begins_with_the_one_in_flight() -> None:
    speeds = session_speeds(
        finished_session([request(10, 10, 100)]), [OpenRequest(ZERO + 500, ZERO + 501, 101)], ZERO + 511
    )

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

    now = throughput("answering", (slot,), [request(10, 10, 500)], 0, log, 22.0)

    assert now.tg_tokens_per_second == now.tg_peak == 60.0
    assert now.tg_median == 50.0
