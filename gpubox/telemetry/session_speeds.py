"""Speeds of the current session: of all slots together, and of its requests one by one. Pure.

A stretch is a time in which at least one slot generated without a pause. Its tg is all its tokens over its length. That
is exact for any number of slots, because the log has the tokens and the seconds of each request. For requests one after
the other, a stretch is a request.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime

from gpubox.telemetry.requests import RequestLog
from gpubox.telemetry.snapshot import Request, SlotReading

GAP_SECONDS = 120.0
"""Requests further apart belong to different sessions."""
JOINED_SECONDS = 0.005
"""A shorter pause does not count: the log's times are in milliseconds."""
MIN_TOKENS = 8
"""Fewer tokens give no meaningful speed."""
MIN_SECONDS = 1.0
Stretch = tuple[float, float, int | None]
"""``(begin, end, tokens)`` in wall seconds; the tokens are None if not all of them are known."""


@dataclass(frozen=True, slots=True)
class OpenRequest:
    """A request in progress. Times are wall seconds."""

    began: float
    first: float | None
    """When it began to generate; None: unknown, or it has not."""
    tokens: int | None
    """Generated so far; None: unknown."""


@dataclass(frozen=True, slots=True)
class SessionSpeeds:
    """Tokens per second; None if unknown."""

    effective: float | None = None
    """All tokens of the session over its wall time, gaps included."""
    tg_median: float | None = None
    """Of all slots together, weighted by time."""
    tg_peak: float | None = None
    """The fastest stretch."""
    request_tg_median: float | None = None
    request_tg_peak: float | None = None
    """Of each request alone."""


@dataclass(frozen=True, slots=True)
class FinishedSession:
    """The finished requests of a session, summed up. Changes only when a request ends."""

    began: float | None
    ended: float | None
    tokens: int
    stretches: tuple[Stretch, ...]
    request_tg_median: float | None
    request_tg_peak: float | None


def current_session(finished: list[Request]) -> list[Request]:
    """The requests of the current session, newest first as in ``finished``."""
    session: list[Request] = []
    earliest = float("inf")
    for request in finished:
        began, ended = _times(request)
        if session and earliest - ended > GAP_SECONDS:
            break
        session.append(request)
        earliest = min(began, earliest)
    return session


def open_requests(log: RequestLog | None, slots: tuple[SlotReading, ...]) -> list[OpenRequest]:
    """The requests in flight, from the log and the slots."""
    if log is None:
        return []
    zero, working = log.started.timestamp(), {(s.index, s.task): s for s in slots if s.state != "idle"}
    requests = []
    for request in log.in_flight.values():
        slot = working.get((request.slot, request.task))
        tokens = slot.generated_tokens if slot else request.generated
        first = zero + request.first_at if request.first_at is not None else None
        requests.append(OpenRequest(zero + request.began, first, tokens))
    return requests


def finished_session(finished: list[Request]) -> FinishedSession:
    """Sums up the current session of ``finished``, newest first."""
    session = current_session(finished)
    times = [_times(request) for request in session]
    rates = sorted(
        r.tg_tokens_per_second for r in session if r.tg_tokens_per_second and (r.generated_tokens or 0) >= MIN_TOKENS
    )
    spans = (_span(request, *span) for request, span in zip(session, times, strict=True))
    return FinishedSession(
        began=min((began for began, _ in times), default=None),
        ended=max((ended for _, ended in times), default=None),
        tokens=sum(request.generated_tokens or 0 for request in session),
        stretches=_merged(span for span in spans if span),
        request_tg_median=_weighted_median([(rate, 1.0) for rate in rates]),
        request_tg_peak=rates[-1] if rates else None,
    )


def session_speeds(past: FinishedSession, in_progress: list[OpenRequest], now: float | None) -> SessionSpeeds:
    """The speeds of the current session. ``past`` has its finished requests; ``now`` in wall seconds."""
    # The requests in progress can be those of a new session.
    if in_progress and past.ended is not None and min(r.began for r in in_progress) - past.ended > GAP_SECONDS:
        past = finished_session([])
    spans: list[Stretch] = []
    for request in in_progress:
        if now is not None and request.tokens != 0:
            known = request.first is not None and request.tokens is not None
            tokens = max(0, (request.tokens or 0) - 1) if known else None
            spans.append((request.first or request.began, now, tokens))
    rates = sorted(
        (tokens / (end - begin), end - begin)
        for begin, end, tokens in (_merged([*past.stretches, *spans]) if spans else past.stretches)
        if tokens is not None and tokens + 1 >= MIN_TOKENS and end > begin
    )
    return SessionSpeeds(
        effective=_effective(past, in_progress, now),
        tg_median=_weighted_median(rates),
        tg_peak=rates[-1][0] if rates else None,
        request_tg_median=past.request_tg_median,
        request_tg_peak=past.request_tg_peak,
    )


def _effective(past: FinishedSession, in_progress: list[OpenRequest], now: float | None) -> float | None:
    if any(r.tokens is None for r in in_progress) or (in_progress and now is None):
        return None
    begins = [at for at in (past.began, *(r.began for r in in_progress)) if at is not None]
    ends = [at for at in (past.ended, now if in_progress else None) if at is not None]
    tokens = past.tokens + sum(r.tokens or 0 for r in in_progress)
    wall = max(ends, default=0.0) - min(begins, default=0.0)
    return tokens / wall if tokens and wall > 0 and (past.tokens or wall >= MIN_SECONDS) else None


def _span(request: Request, began: float, ended: float) -> Stretch | None:
    """When a request generated, and how many tokens; None if it generated nothing."""
    if request.generation_seconds and request.generated_tokens is not None:
        # llama.cpp does not count the first token: it comes out of the prompt processing.
        return ended - request.generation_seconds, ended, max(0, request.generated_tokens - 1)
    generated = request.generated_tokens or request.stop_reason in ("cancelled", "error")
    return (began, ended, None) if generated else None


def _merged(spans: Iterable[Stretch]) -> tuple[Stretch, ...]:
    """The stretches that overlapping spans make, in order."""
    stretches: list[Stretch] = []
    for begin, end, tokens in sorted(spans, key=lambda span: span[:2]):
        if stretches and begin <= stretches[-1][1] + JOINED_SECONDS:
            before = stretches.pop()
            both = before[2] + tokens if before[2] is not None and tokens is not None else None
            stretches.append((before[0], max(before[1], end), both))
        else:
            stretches.append((begin, end, tokens))
    return tuple(stretches)


def _weighted_median(rates: list[tuple[float, float]]) -> float | None:
    """The weighted median of sorted (rate, weight); between two rates, their mean."""
    half, weight = sum(w for _, w in rates) / 2, 0.0
    for index, (rate, own) in enumerate(rates):
        weight += own
        if abs(weight - half) < 1e-9 and index + 1 < len(rates):
            return (rate + rates[index + 1][0]) / 2
        if weight > half:
            return rate
    return None


def _times(request: Request) -> tuple[float, float]:
    began = datetime.fromisoformat(request.at).timestamp()
    return began, began + (request.duration_seconds or 0)
