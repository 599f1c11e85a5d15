"""The gateway's clients, their requests and keys: rows, JSON, and a line for each event."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from gpubox import units
from gpubox.gateway.client_keys import ClientKey
from gpubox.gateway.gateway_status import (
    STAGES,
    ClientSums,
    FinishedRequest,
    GatewayEvent,
    GatewayListening,
    GatewayStopped,
    GatewaySwitch,
    LiveRequest,
    RequestState,
    WaitKind,
)
from gpubox.views.fields import json_fields
from gpubox.views.rows import Table

LIVE_STATES: tuple[RequestState, ...] = ("generating", "reading", "waiting")
STAGE_HEADS = ("QUEUE", "SWITCH", "READING", "GEN")
_WAITS: Mapping[WaitKind, tuple[str, str, str]] = {
    "slot": ("for a slot", "behind", "of"),
    "limit": ("at its key's limit", "behind", "of"),
    "swap": ("for its turn", "after", "for"),
    "load": ("for its model to load", "after", "for"),
}
"""What it waits for, the word before those that go first, and the word between their number and their name."""
_NAMED = 3


@dataclass(frozen=True, slots=True)
class ClientUsage:
    """One client: what it asked in some days, and what it asks now."""

    name: str
    sums: ClientSums
    live: tuple[LiveRequest, ...]


def collect_clients(sums: Mapping[str, ClientSums], live: Sequence[LiveRequest]) -> list[ClientUsage]:
    """All that sent a request, or have one under way: busy ones first, then the last used."""
    clients = [
        ClientUsage(name, sums.get(name, ClientSums()), tuple(r for r in live if r.client == name))
        for name in dict.fromkeys((*sums, *(request.client for request in live)))
    ]
    return sorted(clients, key=lambda client: (bool(client.live), client.sums.last_at), reverse=True)


def client_values(client: ClientUsage, *, live_known: bool) -> dict[str, Any]:
    """``live_known``: whether the gateway said what is live; its own silence makes that unknown."""
    live = Counter(request.state for request in client.live)
    counts = {f"{state}_requests": live[state] if live_known else None for state in LIVE_STATES}
    return {"name": client.name, **counts, **json_fields(client.sums, "read_tokens")}


def clients_table(clients: Sequence[ClientUsage], days: int, empty: str) -> Table:
    """One row for each client."""
    header = ("CLIENT", "REQS", "READ", "REUSED", "OUT", *STAGE_HEADS, "TTFT", "TG", "ERR", "LEFT", "LAST")
    return Table([_client_row(client, days) for client in clients], header, empty)


def _client_row(client: ClientUsage, days: int) -> tuple[str, ...]:
    sums = client.sums
    counts = (sums.requests, sums.read_tokens, sums.cached_tokens, sums.generated_tokens)
    return (
        client.name,
        *(f"{count:,}" for count in counts),
        *stage_texts(sums),
        units.duration(sums.ttft_seconds_median),
        units.rate(sums.tg_tokens_per_second_median),
        f"{sums.errors:,}",
        f"{sums.left:,}",
        units.local_time(sums.last_at, "%H:%M:%S" if days == 1 else "%Y-%m-%d %H:%M"),
    )


def stage_texts(timed: FinishedRequest | LiveRequest | ClientSums) -> tuple[str, ...]:
    """How long it was in each of STAGES."""
    return tuple(units.duration(getattr(timed, f"{stage}_seconds")) for stage in STAGES)


def finished_table(finished: Iterable[FinishedRequest]) -> Table:
    """One row for each request that is over, in the order in which they began."""
    header = ("TIME", "CLIENT", "PROFILE", "END", "READ", "REUSED", "OUT", *STAGE_HEADS, "TTFT", "TG", "TOOK", "")
    rows = [
        (
            units.time_of_day(done.began_at), done.client, done.profile or units.UNKNOWN, end_words(done),
            units.tokens(done.read_tokens), units.tokens(done.cached_tokens),
            units.tokens(done.generated_tokens), *stage_texts(done), units.duration(done.ttft_seconds),
            units.rate(done.tg_tokens_per_second), units.duration(done.seconds), done.error,
        )
        for done in sorted(finished, key=lambda each: each.began_at)
    ]  # fmt: skip
    return Table(rows, header, empty="No request has finished yet.")


def live_table(live: Iterable[LiveRequest]) -> Table:
    """One row for each request that is not over."""
    rows = [
        (str(r.id), r.client, r.profile or units.UNKNOWN, units.duration(r.seconds), live_words(r))
        for r in in_order(live)
    ]
    return Table(rows, ("ID", "CLIENT", "PROFILE", "AGE", "NOW"))


def in_order(live: Iterable[LiveRequest]) -> list[LiveRequest]:
    """Those that run, then those that wait, each as they came."""
    return sorted(live, key=lambda request: request.state == "waiting")


def live_words(request: LiveRequest, tokens_per_second: float | None = None) -> str:
    """``generating 61.0 tok/s, 412 out``, ``reading 3 s``, ``waiting 8 s for a slot behind 2 requests of aider``.

    ``tokens_per_second``: as it was measured lately; else that of the whole answer.
    """
    waited = request.queue_seconds + request.swap_seconds
    if request.state == "waiting":
        held = request.waits_for is not None and request.waits_for.kind == "hold"
        words = f"waiting {units.rough_duration(waited)} {wait_words(request)}".rstrip()
        return f"held {units.rough_duration(waited)}, paused" if held else words
    if request.state == "reading":
        word = "reading" if request.stream else "working"  # not streamed: the gateway sees no token before the end
        return f"{word} {units.rough_duration(max(0.0, request.seconds - waited))}"
    out = request.generated_tokens
    if tokens_per_second is None and out and (request.generation_seconds or 0.0) >= 0.5:
        tokens_per_second = (out - 1) / (request.generation_seconds or 1.0)
    count = f", {units.tokens(out)} out" if out is not None else ""
    return f"generating {units.rate(tokens_per_second)} tok/s{count}"


def wait_words(request: LiveRequest) -> str:
    """What a request waits for, behind whom: ``for a slot behind 2 requests of aider and 1 of cline``."""
    waits = request.waits_for
    if waits is None:
        return f"for {request.profile}" if request.profile else ""
    what, link, of = _WAITS.get(waits.kind, ("", "behind", "of"))
    named = waits.behind[:_NAMED]
    nouns = [f" request{'s' * (count != 1)}" for _, count in named[:1]] + [""] * _NAMED
    names = [f"{count}{noun} {of} {name}" if count else name for (name, count), noun in zip(named, nouns, strict=False)]
    if rest := sum(count for _, count in waits.behind[_NAMED:]):
        names.append(f"{rest} {of} others")
    after = " and ".join(filter(None, (", ".join(names[:-1]), *names[-1:])))
    return f"{what} {link} {after}" if after else what


def cancelled_text(request: LiveRequest) -> str:
    """What was done to a request that the owner cancelled."""
    return f"Request {request.id} of {request.client} is cancelled; it was {live_words(request)}."


def end_words(request: FinishedRequest) -> str:
    """How a request ended: ``answered``, ``client left``, ``failed 503``."""
    if request.outcome in ("failed", "refused") and request.status >= 400:  # a stream that fails began with 200
        return f"{request.outcome} {request.status}"
    return {"done": "answered", "left": "client left"}.get(request.outcome, request.outcome)


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
        tokens = f"{event.prompt_tokens - cached:,} read, {cached:,} reused, {units.tokens(event.generated_tokens)} out"
    ttft = f"TTFT {units.duration(event.ttft_seconds)}" if event.ttft_seconds is not None else ""
    speed = f"tg {event.tg_tokens_per_second:.1f} tok/s" if event.tg_tokens_per_second else ""
    waits = (("queue", event.queue_seconds), ("switch", event.swap_seconds))
    waited = "  ".join(f"{name} {units.duration(seconds)}" for name, seconds in waits if seconds >= 0.01)
    outcome = "" if event.outcome == "done" else f"{end_words(event)} {event.error}".strip()
    parts = (event.client, event.profile, event.path, tokens, waited, ttft, speed, outcome)
    return "  ".join(part for part in parts if part)


def key_values(key: ClientKey, tokens_today: int, is_agent: bool = False) -> dict[str, Any]:
    """A key for JSON: its limits, and what has been used of them."""
    limits = json_fields(key.limits, "expired")
    return {"name": key.name, "agent": is_agent, "made_at": key.made_at, **limits, "tokens_today": tokens_today}


def keys_table(keys: Iterable[tuple[ClientKey, int, bool]], empty: str = "") -> Table:
    """One row for each key, with the tokens that were used today, and whether it is an agent's."""
    header = ("CLIENT", "WEIGHT", "AT ONCE", "TOKENS/DAY", "MODELS", "EXPIRES", "MADE")
    return Table([_key_row(*each) for each in keys], header, empty)


def _key_row(key: ClientKey, used: int, is_agent: bool) -> tuple[str, ...]:
    limits = key.limits
    ends = units.local_time(limits.expires_at or "", "%Y-%m-%d %H:%M")
    return (
        f"{key.name} (agent)" if is_agent else key.name,
        f"{limits.weight:g}",
        f"{limits.requests_at_once or 'any'}",
        f"{used:,} of {limits.tokens_per_day:,}" if limits.tokens_per_day else "any",
        "none: it watches" if limits.watch else ", ".join(limits.models) or "all",
        f"expired {ends}" if limits.expired else ends if limits.expires_at else "never",
        units.local_time(key.made_at, "%Y-%m-%d"),
    )
