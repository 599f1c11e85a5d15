"""Slots, speeds and totals now, from the log, the polls and the counters. Pure."""

from __future__ import annotations

import math
from dataclasses import replace

from gpubox.server.responses import Slot
from gpubox.telemetry.requests import RequestInFlight, RequestLog
from gpubox.telemetry.session_speeds import FinishedSession, finished_session, open_requests, session_speeds
from gpubox.telemetry.slot_rates import SlotRates
from gpubox.telemetry.snapshot import Request, SlotReading, Throughput, Totals

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
    past: FinishedSession | None = None,
) -> Throughput:
    """The speeds of now and of the session. ``finished`` is newest first.

    ``past`` is ``finished_session(finished)``, if the caller has it already.
    """
    reading = next((s for s in slots if s.state == "prefill"), None)
    last = finished[0] if finished else None
    drafted = next((r for r in finished if r.draft_tokens), None)
    now = log.started.timestamp() + server_clock if log and server_clock is not None else None
    speeds = session_speeds(past or finished_session(finished), open_requests(log, slots), now)
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
