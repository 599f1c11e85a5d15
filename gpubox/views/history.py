"""What this machine's servers did: sums, requests and slowdowns, as words, rows and JSON."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

from gpubox import units
from gpubox.telemetry.history.values import JOULES_PER_KWH, Slowdown, StoredRequest, UsageSum
from gpubox.views.fields import json_fields
from gpubox.views.requests import miss_words, request_words
from gpubox.views.rows import Table

NOTHING_KNOWN = "Nothing is known of this time. The history begins with the first server that gpubox starts."


def usage_table(sums: Sequence[UsageSum], by: str, price: float | None) -> Table:
    """A row for each profile or day; ``price`` of a kWh adds its cost."""
    header = (by.upper(), "REQS", "ERR", "READ", "REUSED", "OUT", "REUSE", "UPTIME", "TG", "PP", "TTFT", "J/TOK", "KWH")
    rows = [_usage_row(usage, price) for usage in sums]
    return Table(rows, (*header, "COST") if price else header, empty=NOTHING_KNOWN)


def _usage_row(usage: UsageSum, price: float | None) -> tuple[str, ...]:
    joules, energy, cost = usage.joules_per_token, usage.energy_joules, usage.cost(price)
    return (
        usage.key or "(no server)",
        *(f"{count:,}" for count in (usage.requests, usage.errors)),
        *(f"{count:,}" for count in (usage.read_tokens, usage.cached_tokens, usage.generated_tokens)),
        units.UNKNOWN if usage.reuse is None else f"{usage.reuse:.0%}",
        units.UNKNOWN if usage.up_seconds is None else units.duration(usage.up_seconds),
        units.rate(usage.tg_median),
        units.rate(usage.pp_median),
        units.duration(usage.ttft_median),
        units.UNKNOWN if joules is None else f"{joules:.1f}",
        units.UNKNOWN if energy is None else f"{energy / JOULES_PER_KWH:.2f}",
        *((units.UNKNOWN if cost is None else f"{cost:.2f}",) if price else ()),
    )


def energy_words(sums: Sequence[UsageSum]) -> str:
    """Of which time the energy is; empty if none is known."""
    observed, up = sum(s.observed_seconds for s in sums), sum(s.up_seconds or 0.0 for s in sums)
    if not observed:
        return ""
    return (
        f"Energy: of the cards alone, for {units.rough_duration(observed)} in which gpubox read their power;"
        f" the servers were up for {units.rough_duration(up)}."
    )


def usage_values(usage: UsageSum, price: float | None) -> dict[str, Any]:
    """A sum as JSON."""
    return {**json_fields(usage, "read_tokens", "reuse", "joules_per_token"), "cost": usage.cost(price)}


def requests_table(requests: Sequence[StoredRequest]) -> Table:
    """A row for each request of the history."""
    header = ("TIME", "PROFILE", "CLIENT", "READ", "REUSED", "OUT", "TTFT", "PP", "TG", "DRAFT", "TOOK", "END", "")
    return Table([_request_row(each) for each in requests], header, empty="No request is known of this time.")


def _request_row(stored: StoredRequest) -> tuple[str, ...]:
    request = stored.request
    restored = f"kept KV: {units.tokens(request.cached_tokens)} reused" if request.restored_tokens else ""
    return (
        units.local_time(request.at, "%Y-%m-%d %H:%M:%S"),
        stored.profile,
        stored.client or units.UNKNOWN,
        *(request_words(request) | ({} if request.stop_reason else {"end": "not watched"})).values(),
        f"reread: {miss_words(request.cache_miss)[0]}" if request.cache_miss else restored,
    )


def request_values(stored: StoredRequest) -> dict[str, Any]:
    """A request of the history as JSON."""
    values = json_fields(stored, without=("at", "launch", "request"))
    return {**values, **json_fields(stored.request, "draft_acceptance")}


def slowdown_figures(slowdown: Slowdown) -> str:
    """What stands under the sentence."""
    low, high = sorted((abs(slowdown.low), abs(slowdown.high)))
    rates = f"{units.rate(slowdown.before)} -> {units.rate(slowdown.after)} tok/s"
    starts = f"{slowdown.later_starts} start{'s' * (slowdown.later_starts != 1)} since"
    return f"{slowdown.rate} {rates}, {-slowdown.change:.0%} less (99% interval {low:.0%} to {high:.0%}), {starts}"


def slowdown_values(slowdown: Slowdown) -> dict[str, Any]:
    """A slowdown as JSON."""
    values = json_fields(slowdown, "change")
    return {**values, "since": iso_second(slowdown.since), "sentence": slowdown.sentence}


def iso_second(at: float) -> str:
    """Unix seconds as ISO-8601 in UTC."""
    return datetime.fromtimestamp(at, UTC).isoformat(timespec="seconds").replace("+00:00", "Z")
