"""``gpubox history``."""

from __future__ import annotations

import re
import time
from dataclasses import asdict
from datetime import UTC, datetime, timedelta
from typing import Any, cast

import click

from gpubox import units
from gpubox.cli import diagnostics, output
from gpubox.cli.context import Context
from gpubox.cli.options import PlainHelpOption, json_option, list_requests_option, listed_lines_option
from gpubox.errors import UsageError
from gpubox.gateway.ledger import KEPT_DAYS, Ledger
from gpubox.gateway.ledger_clients import history_writer
from gpubox.telemetry.history_queries import UNKNOWN_CLIENT, HistoryQueries
from gpubox.telemetry.history_values import Slowdown, StoredRequest, UsageKey, UsageSum
from gpubox.telemetry.slowdowns import slowdown_sentence
from gpubox.views.fields import json_fields
from gpubox.views.rows import Table

CATCH_UP_SECONDS = 10.0
JOULES_PER_KWH = 3.6e6
_HEADER = ("REQS", "ERR", "READ", "REUSED", "OUT", "REUSE", "UP", "TG", "PP", "TTFT", "J/TOK", "KWH")
_REQUEST_HEADER = ("TIME", "PROFILE", "CLIENT", "PROMPT", "OUT", "TTFT", "PP", "TG", "DRAFT", "TOOK", "END", "")
_SPAN = re.compile(r"(\d{1,4})([hd])")


@click.command("history")
@click.option(
    "--since", default="7d", metavar="WHEN", cls=PlainHelpOption,
    help="The last 7d (days, today is one) or 12h (hours), or from a day on, such as 2026-11-01. [default: 7d]",
)  # fmt: skip
@click.option(
    "--by", type=click.Choice(("profile", "client", "day")), default="profile", cls=PlainHelpOption,
    help="Sum up by profile, client or day. [default: profile]",
)  # fmt: skip
@list_requests_option
@listed_lines_option
@json_option
@click.pass_obj
def command(context: Context, since: str, by: str, list_requests: bool, lines: int, as_json: bool) -> None:
    """Sum up the requests of the last days, and say which profile became slower and what changed then.

    \b
    READ    prompt tokens that were read
    REUSED  prompt tokens that were in the KV cache; REUSE is their share
    OUT     generated tokens
    UP      how long the servers ran
    TG, PP  median tokens per second of the requests
    TTFT    median; of a client as it saw it
    J/TOK   energy of the cards for each generated token, idle time with it
    KWH     energy of the cards while gpubox watched them; its cost with price-per-kwh in config.toml

    \b
    PROMPT  with --requests: processed + cached tokens
    DRAFT   share of drafted tokens that were accepted
    TOOK    from the start in a slot to the end

    Requests are also counted if no gpubox ran when they ended, as long as the log of their launch was still there.
    """
    now = time.time()
    begin = _begin(since, now)
    history_writer(context.paths, _note_problem).catch_up(CATCH_UP_SECONDS)
    queries = HistoryQueries(context.paths.history)
    if list_requests:
        _print_requests(queries.requests(begin, now, limit=lines)[::-1], as_json)
        return
    key = cast("UsageKey", by)
    sums = queries.sums(begin, now, key)
    if by == "client":
        sums = _with_ledger(sums, Ledger(context.paths.ledger), begin, now)
    slowdowns = queries.slowdowns(now)
    price = context.config.price_per_kwh
    if as_json:
        output.emit_json(
            {
                "since": _iso(begin),
                "until": _iso(now),
                "by": by,
                "price_per_kwh": price,
                "sums": [_values(usage, price) for usage in sums],
                "slowdowns": [_slowdown_values(slowdown) for slowdown in slowdowns],
            }
        )
        return
    _print_sums(sums, by, price)
    for slowdown in slowdowns:
        output.emit(slowdown_sentence(slowdown))


def _note_problem(problem: str) -> None:
    diagnostics.note(f"gpubox: {problem}")


def _begin(text: str, now: float) -> float:
    """The unix time that ``--since`` means. Raises UsageError."""
    midnight = datetime.fromtimestamp(now).replace(hour=0, minute=0, second=0, microsecond=0)
    if match := _SPAN.fullmatch(text.strip()):
        count = int(match[1])
        if match[2] == "h":
            return now - 3600.0 * count
        return (midnight - timedelta(days=max(1, count) - 1)).timestamp()
    try:
        begin = datetime.strptime(text.strip(), "%Y-%m-%d")
    except ValueError:
        raise UsageError(
            f"--since {text!r} is no time.", "Write --since 7d, --since 12h or --since 2026-11-01."
        ) from None
    return begin.timestamp()


def _with_ledger(sums: list[UsageSum], ledger: Ledger, begin: float, now: float) -> list[UsageSum]:
    """The clients as the gateway's ledger has them, as in `gpubox clients`; the rest is from the history.

    Raises UsageError for a part of a day, which the ledger does not sum up.
    """
    first, last = datetime.fromtimestamp(begin), datetime.fromtimestamp(now)
    if first.time() != datetime.min.time():
        raise UsageError("--by client counts whole days.", "Write --since 1d for today.")
    days = min((last.date() - first.date()).days + 1, KEPT_DAYS)
    dates = [last.date() - timedelta(days=age) for age in range(days)]
    logged = {usage.key: usage for usage in sums}
    clients = []
    for name, (counted, _) in ledger.sums_of(dates).items():
        own = logged.pop(name, None)
        clients.append(
            UsageSum(
                name,
                counted.requests,
                counted.errors,
                counted.prompt_tokens,
                counted.cached_tokens,
                counted.generated_tokens,
                tg_median=counted.tg_tokens_per_second_median,
                pp_median=own.pp_median if own else None,
                ttft_median=counted.ttft_seconds_median,
            )
        )
    return [*sorted(clients, key=lambda usage: -usage.requests), *logged.values()]


def _print_sums(sums: list[UsageSum], by: str, price: float | None) -> None:
    if not sums:
        output.emit("Nothing is known of this time. The history begins with the first server that gpubox starts.")
        return
    header = (by.upper(), *_HEADER, *(("COST",) if price else ()))
    output.emit_table(Table([_row(usage, by, price) for usage in sums], header))
    observed, up = sum(s.observed_seconds for s in sums), sum(s.up_seconds or 0.0 for s in sums)
    if observed:
        output.emit(
            f"Energy: of the cards alone, for {units.rough_duration(observed)} in which gpubox read their power;"
            f" the servers were up for {units.rough_duration(up)}."
        )


def _row(usage: UsageSum, by: str, price: float | None) -> tuple[str, ...]:
    joules, energy = usage.joules_per_token, usage.energy_joules
    cost = _cost(usage, price)
    return (
        usage.key or ("(no client known)" if by == "client" else "(no server)"),
        f"{usage.requests:,}",
        f"{usage.errors:,}",
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


def _cost(usage: UsageSum, price: float | None) -> float | None:
    if price is None or usage.energy_joules is None:
        return None
    return usage.energy_joules / JOULES_PER_KWH * price


def _values(usage: UsageSum, price: float | None) -> dict[str, Any]:
    values = asdict(usage)
    return {
        **values,
        "key": usage.key if usage.key != UNKNOWN_CLIENT else None,
        "read_tokens": usage.read_tokens,
        "reuse": usage.reuse,
        "joules_per_token": usage.joules_per_token,
        "cost": _cost(usage, price),
    }


def _slowdown_values(slowdown: Slowdown) -> dict[str, Any]:
    return {**asdict(slowdown), "since": _iso(slowdown.since), "sentence": slowdown_sentence(slowdown)}


def _print_requests(requests: list[StoredRequest], as_json: bool) -> None:
    if as_json:
        values = [
            {"profile": stored.profile, "client": stored.client, **json_fields(stored.request, "draft_acceptance")}
            for stored in requests
        ]
        output.emit_json({"requests": values})
    else:
        rows = [_request_row(stored) for stored in requests]
        output.emit_table(Table(rows, _REQUEST_HEADER, empty="No request is known of this time."))


def _request_row(stored: StoredRequest) -> tuple[str, ...]:
    request, acceptance = stored.request, stored.request.draft_acceptance
    restored = f"kept KV: {units.tokens(request.restored_tokens)} restored" if request.restored_tokens else ""
    return (
        units.local_time(request.at, "%Y-%m-%d %H:%M:%S"),
        stored.profile,
        stored.client or units.UNKNOWN,
        units.token_sum(request.prompt_tokens, request.read_tokens, request.cached_tokens),
        units.tokens(request.generated_tokens),
        units.duration_at_least(request.ttft_seconds, request.slot_ttft_seconds),
        units.rate(request.pp_tokens_per_second),
        units.rate(request.tg_tokens_per_second),
        units.UNKNOWN if acceptance is None else f"{acceptance:.0%}",
        units.duration(request.duration_seconds),
        request.stop_reason or units.UNKNOWN,
        f"cache miss: {request.cache_miss}" if request.cache_miss else restored,
    )


def _iso(at: float) -> str:
    return datetime.fromtimestamp(at, UTC).isoformat(timespec="seconds").replace("+00:00", "Z")
