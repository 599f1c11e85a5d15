"""Speeds now and of the session: of slots between polls, of all slots together, of another server's counter. Pure."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from datetime import datetime

from gpubox.server.responses import Slot
from gpubox.telemetry.requests import RequestInFlight, RequestLog
from gpubox.telemetry.snapshot import Request, SlotReading, Throughput, Totals

WINDOW_SECONDS = 3.0
"""As in llama-server's own ``tg_3s``."""
MIN_WINDOW_SECONDS = 0.4
"""Over a shorter time the jitter of the polls dominates."""


@dataclass(slots=True)
class SlotProgress:
    """The last polls of one slot while it works on one request. Times are monotonic seconds."""

    task: int | None = None
    since: float = 0.0
    moved_at: float = 0.0
    """When a counter last changed."""
    counts: tuple[int, ...] = ()
    polls: deque[tuple[float, int]] = field(default_factory=lambda: deque(maxlen=64))
    """(time, generated tokens)"""

    def feed(self, at: float, slot: Slot) -> None:
        """Adds one poll taken at ``at``."""
        generated = slot.generated_tokens or 0
        counts = (generated, slot.context_used_tokens or 0, slot.processed_tokens or 0)
        if slot.task != self.task or (self.polls and (generated < self.polls[-1][1] or at < self.polls[-1][0])):
            self.task, self.since, self.moved_at = slot.task, at, at
            self.counts = ()
            self.polls.clear()
        if counts != self.counts:
            self.counts, self.moved_at = counts, at
        if generated:
            self.polls.append((at, generated))

    def tg(self, at: float) -> float | None:
        """Tokens per second over the last WINDOW_SECONDS; None while it is too short."""
        recent = [poll for poll in self.polls if at - poll[0] <= WINDOW_SECONDS + 0.05]
        if len(recent) < 2 or recent[-1][0] - recent[0][0] < MIN_WINDOW_SECONDS:
            return None
        return (recent[-1][1] - recent[0][1]) / (recent[-1][0] - recent[0][0])


class SlotRates:
    """The progress of all busy slots of one server."""

    def __init__(self) -> None:
        self._slots: dict[int, SlotProgress] = {}

    def feed(self, at: float, slots: tuple[Slot, ...]) -> None:
        """Adds one poll of /slots."""
        for slot in slots:
            if slot.busy:
                self._slots.setdefault(slot.index, SlotProgress()).feed(at, slot)
            else:
                self._slots.pop(slot.index, None)

    def tg(self, index: int, at: float) -> float | None:
        """The speed of one slot now."""
        progress = self._slots.get(index)
        return progress.tg(at) if progress else None

    def seconds(self, index: int, at: float) -> float | None:
        """How long the slot has been seen working on its request."""
        progress = self._slots.get(index)
        return at - progress.since if progress else None

    def seconds_since_step(self, index: int, at: float) -> float:
        """Seconds since the slot's counters changed (while reading a prompt: once for each batch); 0 if never."""
        progress = self._slots.get(index)
        return at - progress.moved_at if progress and progress.moved_at > progress.since else 0.0

    def seconds_unmoved(self, at: float) -> float:
        """Seconds since any busy slot moved; 0 if none is busy."""
        return min((at - progress.moved_at for progress in self._slots.values()), default=0.0)


class CounterRate:
    """The speed of one counter over the last WINDOW_SECONDS."""

    def __init__(self) -> None:
        self._readings: deque[tuple[float, float]] = deque()

    def feed(self, at: float, value: float | None) -> None:
        """Adds a reading. Starts over if the counter decreased or is missing."""
        if value is None or (self._readings and value < self._readings[-1][1]):
            self._readings.clear()
        if value is not None:
            self._readings.append((at, value))
        while len(self._readings) > 2 and self._readings[-1][0] - self._readings[1][0] >= WINDOW_SECONDS:
            self._readings.popleft()

    @property
    def tokens_per_second(self) -> float | None:
        """None before the second reading, and while the counter does not change."""
        if len(self._readings) < 2:
            return None
        (began, first), (ended, last) = self._readings[0], self._readings[-1]
        return (last - first) / (ended - began) if last > first and ended > began else None


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


def session_speeds(finished: list[Request], in_progress: list[OpenRequest], now: float | None) -> SessionSpeeds:
    """The speeds of the current session. ``finished``: newest first; ``now`` in wall seconds."""
    session = current_session(finished)
    times = [_times(request) for request in session]
    # The requests in progress can be those of a new session.
    if in_progress and times and min(r.began for r in in_progress) - max(end for _, end in times) > GAP_SECONDS:
        session, times = [], []
    spans = [span for request, own in zip(session, times, strict=True) if (span := _span(request, *own))]
    for each in in_progress:
        if now is not None and each.tokens != 0:
            known = each.first is not None and each.tokens is not None
            spans.append((each.first or each.began, now, max(0, (each.tokens or 0) - 1) if known else None))
    rates = sorted(
        (tokens / (end - begin), end - begin)
        for begin, end, tokens in _merged(spans)
        if tokens is not None and tokens + 1 >= MIN_TOKENS and end > begin
    )
    own_rates = sorted(
        r.tg_tokens_per_second for r in session if r.tg_tokens_per_second and (r.generated_tokens or 0) >= MIN_TOKENS
    )
    return SessionSpeeds(
        effective=_effective(session, times, in_progress, now),
        tg_median=_weighted_median(rates),
        tg_peak=rates[-1][0] if rates else None,
        request_tg_median=_weighted_median([(rate, 1.0) for rate in own_rates]),
        request_tg_peak=own_rates[-1] if own_rates else None,
    )


def _effective(
    session: list[Request], times: list[tuple[float, float]], in_progress: list[OpenRequest], now: float | None
) -> float | None:
    if any(r.tokens is None for r in in_progress) or (in_progress and now is None):
        return None
    began = min([begin for begin, _ in times] + [r.began for r in in_progress], default=0.0)
    ended = max([end for _, end in times] + [now or 0.0] * bool(in_progress), default=0.0)
    past, wall = sum(r.generated_tokens or 0 for r in session), ended - began
    tokens = past + sum(r.tokens or 0 for r in in_progress)
    return tokens / wall if tokens and wall > 0 and (past or wall >= MIN_SECONDS) else None


def _span(request: Request, began: float, ended: float) -> Stretch | None:
    """When a request generated, and how many tokens; None if it generated nothing."""
    if request.generation_seconds and request.generated_tokens is not None:
        # llama.cpp does not count the first token: it comes out of the prompt processing.
        return ended - request.generation_seconds, ended, max(0, request.generated_tokens - 1)
    generated = request.generated_tokens or request.stop_reason in ("cancelled", "error")
    return (began, ended, None) if generated else None


def _merged(spans: Iterable[Stretch]) -> list[Stretch]:
    """The stretches that overlapping spans make, in order."""
    stretches: list[Stretch] = []
    for begin, end, tokens in sorted(spans, key=lambda span: span[:2]):
        if stretches and begin <= stretches[-1][1] + JOINED_SECONDS:
            before = stretches.pop()
            both = before[2] + tokens if before[2] is not None and tokens is not None else None
            stretches.append((before[0], max(before[1], end), both))
        else:
            stretches.append((begin, end, tokens))
    return stretches


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


NEW_SECONDS = 1.0
"""A younger request may have no speed yet, and adds little to the sum."""
LOG_SPEED_SECONDS = 4.0
"""How long the speed of a ``tg_3s`` line is current; the server writes one every 3 s."""


def read_slots(
    slots: tuple[Slot, ...], log: RequestLog | None, rates: SlotRates, at: float, server_clock: float | None
) -> tuple[SlotReading, ...]:
    """One reading for each slot. ``at`` is monotonic; ``server_clock`` is the server's own second now, if known."""
    return tuple(_slot(slot, _request_in(slot, log), rates, at, server_clock) for slot in slots)


def _request_in(slot: Slot, log: RequestLog | None) -> RequestInFlight | None:
    request = log.in_flight.get(slot.index) if log else None
    if request and slot.busy and slot.task is not None and request.task == slot.task:
        request.predict_limit = slot.predict_limit
        return request
    return None


def _slot(
    slot: Slot, request: RequestInFlight | None, rates: SlotRates, at: float, server_clock: float | None
) -> SlotReading:
    used, size = slot.context_used_tokens, slot.context_size_tokens
    if not slot.busy:
        return SlotReading(slot.index, "idle", context_used_tokens=used, context_size_tokens=size)
    generated = slot.generated_tokens or 0
    elapsed = rates.seconds(slot.index, at)
    if request and server_clock is not None:
        elapsed = max(0.0, server_clock - request.began)
    prompt, cached = (request.prompt_tokens, request.cached_tokens) if request else (None, None)
    reading = SlotReading(
        index=slot.index,
        state="answering" if generated else "prefill",
        task=slot.task,
        context_used_tokens=used,
        context_size_tokens=size,
        prompt_tokens=prompt,
        prompt_done_tokens=prompt,
        cached_tokens=cached,
        generated_tokens=generated,
        seconds=elapsed,
    )
    if generated:
        tg = rates.tg(slot.index, at)
        return replace(reading, tg_tokens_per_second=_logged_tg(request, server_clock) if tg is None else tg)
    read = slot.processed_tokens
    done = read + (cached or 0) if read is not None else used
    # The counter stands still between two batches: take the speed up to the last step, or the log's own.
    waited = rates.seconds_since_step(slot.index, at)
    worked = elapsed - waited if elapsed is not None else 0.0
    pp = (request.pp if request else None) or (read / worked if read and worked > 0.2 else None)
    left = prompt - done if prompt is not None and done is not None else None
    return replace(
        reading,
        prompt_done_tokens=done,
        pp_tokens_per_second=pp,
        prefill_progress=min(1.0, done / prompt) if prompt and done is not None else None,
        eta_seconds=max(0.0, left / pp - waited) if left is not None and pp else None,
    )


def _logged_tg(request: RequestInFlight | None, server_clock: float | None) -> float | None:
    if request is None or request.tg_3s is None or request.tg_at is None or server_clock is None:
        return None
    return request.tg_3s if server_clock - request.tg_at <= LOG_SPEED_SECONDS else None


def throughput(
    state: str,
    slots: tuple[SlotReading, ...],
    finished: list[Request],
    queued: int | None = None,
    log: RequestLog | None = None,
    server_clock: float | None = None,
) -> Throughput:
    """The speeds of now and of the session. ``finished`` is newest first."""
    reading = next((s for s in slots if s.state == "prefill"), None)
    last = finished[0] if finished else None
    drafted = next((r for r in finished if r.draft_tokens), None)
    now = log.started.timestamp() + server_clock if log and server_clock is not None else None
    speeds = session_speeds(finished, open_requests(log, slots), now)
    tg = _all_slots_tg(slots)
    fullest = max(slots, key=lambda s: s.context_used_tokens or 0, default=None)
    return Throughput(
        state=state,
        tg_tokens_per_second=tg,
        tg_peak=max((rate for rate in (speeds.tg_peak, tg) if rate is not None), default=None),
        tg_median=speeds.tg_median,
        effective_tokens_per_second=speeds.effective,
        pp_tokens_per_second=reading.pp_tokens_per_second if reading else last.pp_tokens_per_second if last else None,
        prefill_progress=reading.prefill_progress if reading else None,
        eta_seconds=reading.eta_seconds if reading else None,
        queue_seconds=last.queue_seconds if last else None,
        slot_ttft_seconds=last.slot_ttft_seconds if last else None,
        ttft_seconds=last.ttft_seconds if last else None,
        draft_acceptance=drafted.draft_acceptance if drafted else None,
        mean_accepted_length=drafted.mean_accepted_length if drafted else None,
        accepted_per_position=drafted.accepted_per_position if drafted else (),
        context_used_tokens=fullest.context_used_tokens if fullest else None,
        context_size_tokens=fullest.context_size_tokens if fullest else None,
        busy_slots=sum(s.state != "idle" for s in slots) if slots else None,
        slots=len(slots) or None,
        queued_requests=queued,
        request_tg_peak=speeds.request_tg_peak,
        request_tg_median=speeds.request_tg_median,
    )


def _all_slots_tg(slots: tuple[SlotReading, ...]) -> float | None:
    """The sum of the slots' speeds; None if the speed of a slot that has generated for a while is unknown."""
    generating = [slot for slot in slots if slot.state == "answering"]
    known = [slot.tg_tokens_per_second for slot in generating if slot.tg_tokens_per_second is not None]
    unknown = any(s.tg_tokens_per_second is None and (s.seconds or 0.0) >= NEW_SECONDS for s in generating)
    return sum(known) if known and not unknown else None


def totals(
    counters: dict[str, float] | None, log: RequestLog | None, probe: tuple[int, int], uncounted: str = ""
) -> Totals:
    """The server's own counters, and the requests that its log counts.

    ``probe`` has the prompt and generated tokens of the readiness probe, which are subtracted. ``uncounted``: why the
    log cannot count the requests.
    """

    def count(name: str, own: int = 0) -> int | None:
        value = (counters or {}).get(name)
        return max(0, int(value) - own) if value is not None and math.isfinite(value) else None

    return Totals(
        requests=log.count if log and not uncounted else None,
        prompt_tokens=count("prompt_tokens_total", probe[0]),
        cached_tokens=count("prompt_tokens_cached_total"),
        generated_tokens=count("tokens_predicted_total", probe[1]),
        draft_tokens=count("spec_decode_num_draft_tokens_total"),
        draft_tokens_accepted=count("spec_decode_num_accepted_tokens_total"),
        requests_reason=uncounted,
    )
