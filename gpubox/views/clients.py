"""The gateway's clients, their requests and keys: rows, JSON, and a line for each event."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from gpubox import units
from gpubox.gateway.client_keys import ClientKey
from gpubox.gateway.gateway_status import (
    ClientSums,
    FinishedRequest,
    GatewayEvent,
    GatewayListening,
    GatewayStopped,
    GatewaySwitch,
    LiveRequest,
    RequestState,
)
from gpubox.views.fields import json_fields
from gpubox.views.rows import Table

LIVE_STATES: tuple[RequestState, ...] = ("generating", "reading", "waiting")


@dataclass(frozen=True, slots=True)
class ClientUsage:
    """One client: what it asked in some days, and what it asks now."""

    name: str
    sums: ClientSums
    last_at: str | None
    live: tuple[LiveRequest, ...]


def collect_clients(
    sums: Mapping[str, tuple[ClientSums, str | None]], live: Sequence[LiveRequest]
) -> list[ClientUsage]:
    """All that sent a request, or have one under way: busy ones first, then the last used."""
    clients = [
        ClientUsage(name, *sums.get(name, (ClientSums(), None)), tuple(r for r in live if r.client == name))
        for name in dict.fromkeys((*sums, *(request.client for request in live)))
    ]
    return sorted(clients, key=lambda client: (bool(client.live), client.last_at or ""), reverse=True)


def client_values(client: ClientUsage, *, live_known: bool) -> dict[str, Any]:
    """``live_known``: whether the gateway said what is live; its own silence makes that unknown."""
    live = Counter(request.state for request in client.live)
    return {
        **json_fields(client, without=("sums", "live")),
        **{f"{state}_requests": live[state] if live_known else None for state in LIVE_STATES},
        **json_fields(client.sums, "read_tokens"),
    }


def clients_table(clients: Sequence[ClientUsage], days: int, empty: str) -> Table:
    """One row for each client."""
    header = ("CLIENT", "NOW", "REQS", "READ", "REUSED", "OUT", "QUEUE", "TTFT", "TG", "ERR", "LEFT", "LAST")
    return Table([_client_row(client, days) for client in clients], header, empty)


def _client_row(client: ClientUsage, days: int) -> tuple[str, ...]:
    sums, states = client.sums, Counter(request.state for request in client.live)
    now = ", ".join(f"{states[state]} {state}" for state in LIVE_STATES if states[state])
    counts = (sums.requests, sums.read_tokens, sums.cached_tokens, sums.generated_tokens)
    return (
        client.name,
        now or units.UNKNOWN,
        *(f"{count:,}" for count in counts),
        units.duration(sums.queue_seconds_max) if sums.requests else units.UNKNOWN,
        units.duration(sums.ttft_seconds_median),
        units.rate(sums.tg_tokens_per_second_median),
        f"{sums.errors:,}",
        f"{sums.left:,}",
        units.local_time(client.last_at or "", "%H:%M:%S" if days == 1 else "%Y-%m-%d %H:%M"),
    )


def client_requests_table(finished: Iterable[FinishedRequest], live: Iterable[LiveRequest]) -> Table:
    """The finished requests, then those that are not over."""
    header = ("TIME", "CLIENT", "PROFILE", "STATE", "PROMPT", "OUT", "QUEUE", "TTFT", "TG", "TOOK", "")
    rows = [
        *(
            _request_row(
                units.time_of_day(request.at), end_words(request),
                units.token_sum(request.prompt_tokens, request.cached_tokens, request.read_tokens),
                request.tg_tokens_per_second, request.error, request,
            )
            for request in finished
        ),
        *(_request_row("now", request.state, units.UNKNOWN, None, "", request) for request in live),
    ]  # fmt: skip
    return Table(rows, header, empty="No request has finished yet.")


def end_words(request: FinishedRequest) -> str:
    """How a request ended: ``done``, ``left``, ``failed 503``."""
    said_by_status = request.outcome in ("failed", "refused")
    return f"{request.outcome} {request.status}" if said_by_status else request.outcome


def _request_row(
    when: str, state: str, prompt: str, tg: float | None, error: str, request: FinishedRequest | LiveRequest
) -> tuple[str, ...]:
    return (
        when, request.client, request.profile or units.UNKNOWN, state, prompt, units.tokens(request.generated_tokens),
        units.duration(request.queue_seconds), units.duration(request.ttft_seconds), units.rate(tg),
        units.duration(request.seconds), error,
    )  # fmt: skip


def event_text(event: GatewayEvent) -> str:
    """One line for an event; empty for those that say nothing to a reader."""
    if isinstance(event, GatewayListening):
        up = f"  {', '.join(event.profiles_up)} up" if event.profiles_up else ""
        who = f"  {event.exposed}" if event.exposed else ""
        return f"listening on {event.base_url}  (OpenAI base URL {event.base_url}/v1){who}{up}"
    if isinstance(event, FinishedRequest):
        return _request_text(event)
    if isinstance(event, GatewaySwitch):
        return _switch_text(event)
    return event.message if isinstance(event, GatewayStopped) else ""


def _switch_text(event: GatewaySwitch) -> str:
    what = f"{event.kind} {event.profile}" + (f" for {event.asked_by}" if event.asked_by else "")
    if event.step == "wait":
        return f"{what}: waits for the requests of {', '.join(event.displaces)}"
    if event.step in ("begin", "done", "failed"):
        return f"{what}: {event.step}  {units.duration(event.seconds)}  {event.message}".replace(": begin  0 ms  ", "")
    return f"{what}: {event.step}"


def _request_text(event: FinishedRequest) -> str:
    tokens = ""
    if event.prompt_tokens is not None:
        cached = event.cached_tokens or 0
        tokens = f"{cached}+{event.prompt_tokens - cached} → {event.generated_tokens}"
    ttft = f"TTFT {units.duration(event.ttft_seconds)}" if event.ttft_seconds is not None else ""
    speed = f"tg {event.tg_tokens_per_second:.1f} tok/s" if event.tg_tokens_per_second else ""
    queue = f"queue {units.duration(event.queue_seconds)}" if event.queue_seconds >= 0.01 else ""
    outcome = "" if event.outcome == "done" else f"{event.outcome} {event.status or ''} {event.error}".strip()
    parts = (event.client, event.profile, event.path, tokens, queue, ttft, speed, outcome)
    return "  ".join(part for part in parts if part)


def key_values(key: ClientKey, tokens_today: int) -> dict[str, Any]:
    """A key for JSON: its limits, and what has been used of them."""
    limits = json_fields(key.limits, "expired")
    return {"name": key.name, "made_at": key.made_at, **limits, "tokens_today": tokens_today}


def keys_table(keys: Iterable[tuple[ClientKey, int]], empty: str = "") -> Table:
    """One row for each key, with the tokens that were used today."""
    header = ("CLIENT", "WEIGHT", "AT ONCE", "TOKENS/DAY", "MODELS", "EXPIRES", "MADE")
    return Table([_key_row(*each) for each in keys], header, empty)


def _key_row(key: ClientKey, used: int) -> tuple[str, ...]:
    limits = key.limits
    ends = units.local_time(limits.expires_at or "", "%Y-%m-%d %H:%M")
    return (
        key.name,
        f"{limits.weight:g}",
        f"{limits.requests_at_once or 'any'}",
        f"{used:,} of {limits.tokens_per_day:,}" if limits.tokens_per_day else "any",
        ", ".join(limits.models) or "all",
        f"expired {ends}" if limits.expired else ends if limits.expires_at else "never",
        units.local_time(key.made_at, "%Y-%m-%d"),
    )
