"""``gpubox history``."""

from __future__ import annotations

import re
import time
from datetime import datetime, timedelta
from typing import cast

import click

from gpubox.cli import diagnostics, output
from gpubox.cli.context import Context
from gpubox.cli.options import PlainHelpOption, json_option, list_requests_option, listed_lines_option
from gpubox.errors import UsageError
from gpubox.gateway.request_clients import history_writer
from gpubox.telemetry.history.queries import HistoryQueries
from gpubox.telemetry.history.values import UsageKey
from gpubox.views import history as views

CATCH_UP_SECONDS = 10.0
_SPAN = re.compile(r"(\d{1,4})([hd])")


@click.command("history")
@click.option(
    "--since", default="7d", metavar="WHEN", cls=PlainHelpOption,
    help="The last 7d (days, today is one) or 12h (hours), or from a day on, such as 2026-11-01. [default: 7d]",
)  # fmt: skip
@click.option(
    "--by", type=click.Choice(("profile", "day")), default="profile", cls=PlainHelpOption,
    help="Sum up by profile or day. [default: profile]",
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
    UPTIME  how long the servers ran
    TG, PP  median tokens per second of the requests
    TTFT    median
    J/TOK   energy of the cards for each generated token, idle time with it
    KWH     energy of the cards while gpubox watched them; its cost with price-per-kwh in config.toml

    \b
    DRAFT   with --requests: share of drafted tokens that were accepted
    TOOK    from the start in a slot to the end
    END     why it ended; where gpubox did not watch nobody knows: the log does not say it

    Requests are also counted if no gpubox ran when they ended, as long as the log of their launch was still there.
    """
    now = time.time()
    begin = _begin(since, now)
    history_writer(context.paths, lambda problem: diagnostics.note(f"gpubox: {problem}")).catch_up(CATCH_UP_SECONDS)
    queries = HistoryQueries(context.paths.history)
    if list_requests:
        requests = queries.requests(begin, now, limit=lines)[::-1]
        values = {"requests": [views.request_values(stored) for stored in requests]}
        output.emit_result(views.requests_table(requests), values, as_json=as_json)
        return
    sums = queries.sums(begin, now, cast("UsageKey", by))
    slowdowns, price = queries.slowdowns(now), context.config.price_per_kwh
    if as_json:
        asked = {"since": views.iso_second(begin), "until": views.iso_second(now), "by": by, "price_per_kwh": price}
        usages = [views.usage_values(usage, price) for usage in sums]
        output.emit_json({**asked, "sums": usages, "slowdowns": [*map(views.slowdown_values, slowdowns)]})
        return
    output.emit_table(views.usage_table(sums, by, price))
    if words := views.energy_words(sums):
        output.emit(words)
    for slowdown in slowdowns:
        output.emit(slowdown.sentence)
        output.emit(f"  {views.slowdown_figures(slowdown)}")


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
        hint = "Write --since 7d, --since 12h or --since 2026-11-01."
        raise UsageError(f"--since {text!r} is no time.", hint) from None
    return begin.timestamp()
