"""How a finished request becomes a row of the history, and a row the request again. Pure."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Any

from gpubox.telemetry.snapshot import Request

COLUMNS = (
    "task", "at", "number", "slot", "prompt", "cached", "generated", "queue", "slot_ttft", "reading", "generation",
    "duration", "pp", "tg", "drafted", "accepted", "accepted_length", "positions", "stop", "miss", "restored",
)  # fmt: skip
"""Of the table ``requests``, without launch and client."""
POSITION_UNIT = 10_000
_MAX = 2**62


def milliseconds(at: str) -> int | None:
    """The unix time of an ISO-8601 text in milliseconds; None if it is none."""
    try:
        return round(datetime.fromisoformat(at).timestamp() * 1000)
    except (ValueError, OverflowError):
        return None


def iso_time(at: float) -> str:
    """Unix seconds as ISO-8601 in UTC with milliseconds."""
    return datetime.fromtimestamp(at, UTC).isoformat(timespec="milliseconds")


def scaled(value: float | None, unit: float) -> int | None:
    """``value`` in so many parts of its unit. None if it is unknown, or no number that a row can hold."""
    if value is None or not -_MAX < value * unit < _MAX:
        return None
    return round(value * unit)


def unscaled(value: int | None, unit: float) -> float | None:
    return None if value is None else value / unit


def request_row(request: Request, at: int, word: Callable[[str | None], int | None]) -> tuple[Any, ...]:
    """The values of COLUMNS. ``word`` gives the id of a text."""
    rates = array(
        "H", (min(POSITION_UNIT, max(0, round(rate * POSITION_UNIT))) for rate in request.accepted_per_position)
    )
    return (
        request.task,
        at,
        request.number,
        request.slot,
        *(scaled(n, 1) for n in (request.prompt_tokens, request.cached_tokens, request.generated_tokens)),
        scaled(request.queue_seconds, 1e6),
        scaled(request.slot_ttft_seconds, 1e6),
        scaled(request.prompt_seconds, 1e6),
        scaled(request.generation_seconds, 1e6),
        scaled(request.duration_seconds, 1e6),
        scaled(request.pp_tokens_per_second, 1e3),
        scaled(request.tg_tokens_per_second, 1e3),
        scaled(request.draft_tokens, 1),
        scaled(request.draft_tokens_accepted, 1),
        scaled(request.mean_accepted_length, 1e3),
        rates.tobytes() or None,
        word(request.stop_reason),
        word(request.cache_miss),
        scaled(request.restored_tokens, 1),
    )


def request_of(row: tuple[Any, ...], words: Mapping[int, str]) -> Request:
    """The request of the values of COLUMNS."""
    (
        task, at, number, slot, prompt, cached, generated, queue, slot_ttft, reading, generation,
        duration, pp, tg, drafted, accepted, accepted_length, positions, stop, miss, restored,
    ) = row  # fmt: skip
    rates = array("H")
    rates.frombytes(positions or b"")
    known = queue is not None and slot_ttft is not None
    return Request(
        number=number,
        at=iso_time(at / 1000),
        slot=slot,
        task=task,
        prompt_tokens=prompt,
        cached_tokens=cached,
        generated_tokens=generated,
        ttft_seconds=(queue + slot_ttft) / 1e6 if known else None,
        pp_tokens_per_second=unscaled(pp, 1e3),
        tg_tokens_per_second=unscaled(tg, 1e3),
        prompt_seconds=unscaled(reading, 1e6),
        generation_seconds=unscaled(generation, 1e6),
        duration_seconds=unscaled(duration, 1e6),
        draft_tokens=drafted,
        draft_tokens_accepted=accepted,
        mean_accepted_length=unscaled(accepted_length, 1e3),
        accepted_per_position=tuple(rate / POSITION_UNIT for rate in rates),
        stop_reason=words.get(stop),
        cache_miss=words.get(miss),
        queue_seconds=unscaled(queue, 1e6),
        slot_ttft_seconds=unscaled(slot_ttft, 1e6),
        restored_tokens=restored,
    )
