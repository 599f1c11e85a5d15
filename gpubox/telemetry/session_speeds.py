"""Speeds of the current session: of all slots together, stretch by stretch, and of its requests. Pure.

A stretch is the time in which at least one slot generated without a pause. Its tg is all its tokens over its length:
exact, whatever ran side by side, because the log tells how many tokens each request made and in how many seconds. For
one request after the other a stretch is a request.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime

from gpubox.telemetry.requests import RequestLog
from gpubox.telemetry.snapshot import Request, SlotReading

GAP_SECONDS = 120.0
"""Requests further apart than this belong to different sessions."""
JOINED_SECONDS = 0.005
"""A pause shorter than this is none: the log's times are in milliseconds."""
LEAST_TOKENS = 8
"""Fewer tell no speed."""
LEAST_SECONDS = 1.0


@dataclass(frozen=True, slots=True)
class OpenRequest:
    """A request that is worked on. Times are wall seconds."""

    began: float
    first: float | None
    """When it began to generate; ``None``: not known, or it has not."""
    tokens: int | None
    """Generated so far; ``None``: not known."""


@dataclass(frozen=True, slots=True)
class SessionSpeeds:
    """Tokens per second; ``None`` where nothing tells."""

    effective: float | None = None
    """All tokens of the session over its wall time, gaps included."""
    tg_median: float | None = None
    """Of all slots together: half of the time in which any generated was faster."""
    tg_peak: float | None = None
    """The fastest stretch."""
    request_tg_median: float | None = None
    request_tg_peak: float | None = None
    """Of each request alone."""


def current_session(finished: list[Request]) -> tuple[list[Request], float | None]:
    """The requests of the current session (newest first) and its wall seconds, gaps included."""
    chosen: list[Request] = []
    earliest = latest = None
    for request in finished:
        began, ended = _times(request)
        if earliest is not None and earliest - ended > GAP_SECONDS:
            break
        chosen.append(request)
        earliest = min(began, earliest) if earliest is not None else began
        latest = max(ended, latest) if latest is not None else ended
    wall = latest - earliest if earliest is not None and latest is not None else None
    return chosen, wall or None


def open_requests(log: RequestLog | None, slots: tuple[SlotReading, ...]) -> list[OpenRequest]:
    """Those in flight, as the log and the slots tell of them."""
    if log is None:
        return []
    zero, answering = log.started.timestamp(), {(s.index, s.task): s for s in slots if s.state != "idle"}
    found = []
    for request in log.in_flight.values():
        slot = answering.get((request.slot, request.task))
        tokens = slot.generated_tokens if slot else request.generated
        first = zero + request.first_at if request.first_at is not None else None
        found.append(OpenRequest(zero + request.began, first, tokens))
    return found


@dataclass(frozen=True, slots=True)
class FinishedSession:
    """What the finished requests of a session come to: changes only when one ends."""

    began: float | None
    ended: float | None
    tokens: int
    stretches: tuple[tuple[float, float, int | None], ...]
    """``(begin, end, tokens)`` in order; tokens are ``None`` where not all of them are known."""
    request_tg_median: float | None
    request_tg_peak: float | None


def finished_session(finished: list[Request]) -> FinishedSession:
    """The current session of ``finished``, newest first."""
    recent, _ = current_session(finished)
    times = [_times(request) for request in recent]
    own = sorted(r.tg_tokens_per_second for r in recent if r.tg_tokens_per_second and _made(r) >= LEAST_TOKENS)
    return FinishedSession(
        began=min((began for began, _ in times), default=None),
        ended=max((ended for _, ended in times), default=None),
        tokens=sum(map(_made, recent)),
        stretches=_merged(span for request, at in zip(recent, times, strict=True) if (span := _span(request, *at))),
        request_tg_median=_median([(rate, 1.0) for rate in own]),
        request_tg_peak=own[-1] if own else None,
    )


def session_speeds(
    finished: list[Request], opened: list[OpenRequest], now: float | None, past: FinishedSession | None = None
) -> SessionSpeeds:
    """What the session's requests come to. ``finished`` newest first; ``now`` in wall seconds.

    ``past``: that of ``finished``, where it is known already.
    """
    past = past or finished_session(finished)
    if opened and past.ended is not None and min(o.began for o in opened) - past.ended > GAP_SECONDS:
        past = finished_session([])
    spans: list[tuple[float, float, int | None]] = []
    for o in opened:
        if now is not None and o.tokens != 0:
            known = o.first is not None and o.tokens is not None
            spans.append((o.first or o.began, now, max(0, (o.tokens or 0) - 1) if known else None))
    rates = sorted(
        (tokens / (end - begin), end - begin)
        for begin, end, tokens in (_merged([*past.stretches, *spans]) if spans else past.stretches)
        if tokens is not None and tokens + 1 >= LEAST_TOKENS and end > begin
    )
    return SessionSpeeds(
        effective=_effective(past, opened, now),
        tg_median=_median(rates),
        tg_peak=rates[-1][0] if rates else None,
        request_tg_median=past.request_tg_median,
        request_tg_peak=past.request_tg_peak,
    )


def _effective(past: FinishedSession, opened: list[OpenRequest], now: float | None) -> float | None:
    if any(o.tokens is None for o in opened) or (opened and now is None):
        return None
    begins = [at for at in (past.began, *(o.began for o in opened)) if at is not None]
    ends = [at for at in (past.ended, now if opened else None) if at is not None]
    tokens = past.tokens + sum(o.tokens or 0 for o in opened)
    wall = max(ends, default=0.0) - min(begins, default=0.0)
    return tokens / wall if tokens and wall > 0 and (past.tokens or wall >= LEAST_SECONDS) else None


def _span(request: Request, began: float, ended: float) -> tuple[float, float, int | None] | None:
    """When a request generated, and how many tokens; ``None`` for the tokens of one whose times are not told."""
    if request.generation_seconds and request.generated_tokens is not None:
        # as llama.cpp counts: the first token is free
        return ended - request.generation_seconds, ended, max(0, request.generated_tokens - 1)
    hidden = request.generated_tokens or request.stop_reason in ("cancelled", "error")
    return (began, ended, None) if hidden else None


def _merged(spans: Iterable[tuple[float, float, int | None]]) -> tuple[tuple[float, float, int | None], ...]:
    """The stretches that overlapping spans make."""
    found: list[tuple[float, float, int | None]] = []
    for begin, end, tokens in sorted(spans, key=lambda span: span[:2]):
        if found and begin <= found[-1][1] + JOINED_SECONDS:
            before = found.pop()
            both = before[2] + tokens if before[2] is not None and tokens is not None else None
            found.append((before[0], max(before[1], end), both))
        else:
            found.append((begin, end, tokens))
    return tuple(found)


def _median(rates: list[tuple[float, float]]) -> float | None:
    """The rate in the middle of the weights; ``rates`` are sorted. Between two, their mean."""
    half, weight = sum(w for _, w in rates) / 2, 0.0
    for at, (rate, own) in enumerate(rates):
        weight += own
        if abs(weight - half) < 1e-9 and at + 1 < len(rates):
            return (rate + rates[at + 1][0]) / 2
        if weight > half:
            return rate
    return None


def _made(request: Request) -> int:
    return request.generated_tokens or 0


def _times(request: Request) -> tuple[float, float]:
    began = datetime.fromisoformat(request.at).timestamp()
    return began, began + (request.duration_seconds or 0)
