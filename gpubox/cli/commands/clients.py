"""``gpubox clients``."""

from __future__ import annotations

from collections import Counter
from dataclasses import asdict, dataclass
from datetime import date, datetime, timedelta
from typing import Any

import click

from gpubox import units
from gpubox.cli import diagnostics, output
from gpubox.cli.context import Context
from gpubox.cli.options import PlainHelpOption, json_option, list_requests_option, listed_lines_option
from gpubox.errors import GpuboxError
from gpubox.gateway.client_keys import ClientKeys
from gpubox.gateway.gateway_client import read_gateway
from gpubox.gateway.ledger import KEPT_DAYS, Ledger
from gpubox.gateway.status import ClientSums, FinishedRequest, GatewayStatus, LiveRequest

_HEADER = ("CLIENT", "NOW", "REQS", "READ", "REUSED", "OUT", "QUEUE", "TTFT", "TG", "ERR", "LEFT", "LAST")
_REQUEST_HEADER = ("TIME", "CLIENT", "PROFILE", "STATE", "PROMPT", "OUT", "QUEUE", "TTFT", "TG", "TOOK", "")


@dataclass(frozen=True, slots=True)
class _Client:
    name: str
    sums: ClientSums
    last_at: str | None
    live: tuple[LiveRequest, ...]
    has_key: bool


@click.command("clients")
@click.option(
    "--days", type=click.IntRange(1, KEPT_DAYS), default=1, metavar="N", cls=PlainHelpOption,
    help=f"Sum up the last N days, today with them; at most {KEPT_DAYS}. [default: 1]",
)  # fmt: skip
@list_requests_option
@listed_lines_option
@json_option
@click.pass_obj
def command(context: Context, days: int, list_requests: bool, lines: int, as_json: bool) -> None:
    """List the gateway's clients and what they asked today. Times are as the client saw them.

    \b
    NOW     requests that wait, or that are read or answered now
    REQS    finished requests
    READ    prompt tokens that were read
    REUSED  prompt tokens that were in the KV cache
    OUT     generated tokens
    QUEUE   the longest wait in the gateway
    TTFT    median of the streamed requests, from the request's last byte to the first token
    TG      median tokens per second, as the server reports it
    ERR     requests that failed or were refused
    LEFT    requests whose client went away
    """
    status, answers = _running(context)
    keys = ClientKeys.of(context.paths)
    problems = status.problems if status else tuple(filter(None, (keys.problem,)))
    for problem in problems:
        diagnostics.note(f"gpubox: {problem}")
    ledger = Ledger(context.paths.ledger)
    today = datetime.now().astimezone().date()
    dates = [today - timedelta(age) for age in range(days)]
    if list_requests:
        _print_requests(ledger, dates, status, lines, as_json)
    else:
        clients = _clients(ledger, dates, status, keys.names)
        if as_json:
            base_url, paused = (status.base_url, status.paused) if status else (None, None)
            values = [_client_values(client, answers) for client in clients]
            gateway = {"base_url": base_url, "paused": paused, "problems": list(problems)}
            output.emit_json({"days": days, **gateway, "clients": values})
        else:
            _print_clients(clients, days, has_gateway=status is not None)


def _running(context: Context) -> tuple[GatewayStatus | None, bool]:
    """The gateway now, and whether that is known: the ledger can be read without it."""
    try:
        return read_gateway(context.paths), True
    except GpuboxError as error:
        diagnostics.show_error(error)
        return None, False


def _clients(
    ledger: Ledger, dates: list[date], status: GatewayStatus | None, with_key: tuple[str, ...]
) -> list[_Client]:
    """All that sent a request or have a key: those with live requests first, then by their last request."""
    sums = ledger.sums_of(dates)
    requests = status.requests if status else ()
    names = dict.fromkeys((*sums, *(request.client for request in requests), *with_key))
    clients = []
    for name in names:
        its_sums, last_at = sums.get(name, (ClientSums(), None))
        live = tuple(request for request in requests if request.client == name)
        clients.append(_Client(name, its_sums, last_at, live, name in with_key))
    return sorted(clients, key=lambda client: (bool(client.live), client.last_at or ""), reverse=True)


def _print_clients(clients: list[_Client], days: int, *, has_gateway: bool) -> None:
    if clients:
        output.emit_table([_client_row(client, days) for client in clients], header=_HEADER)
    else:
        when = "today" if days == 1 else f"in the last {days} days"
        output.emit(
            f"No client has sent a request {when}.{'' if has_gateway else ' `gpubox serve` starts the gateway.'}"
        )


def _client_values(client: _Client, answers: bool) -> dict[str, Any]:
    """``answers``: whether the gateway said what is live; its own silence makes that unknown."""
    sums = client.sums
    live = Counter(request.state for request in client.live)
    return {
        "name": client.name,
        "has_key": client.has_key,
        **{f"{state}_requests": live[state] if answers else None for state in ("waiting", "reading", "generating")},
        **asdict(sums),
        "read_tokens": sums.read_tokens,
        "last_at": client.last_at,
    }


def _client_row(client: _Client, days: int) -> tuple[str, ...]:
    sums = client.sums
    states = Counter(request.state for request in client.live)
    now = ", ".join(f"{states[state]} {state}" for state in ("generating", "reading", "waiting") if states[state])
    none = not sums.requests
    return (
        client.name,
        now or units.UNKNOWN,
        f"{sums.requests:,}",
        *(f"{n:,}" for n in (sums.read_tokens, sums.cached_tokens, sums.generated_tokens)),
        units.UNKNOWN if none else units.duration(sums.queue_seconds_max),
        units.duration(sums.ttft_seconds_median),
        units.rate(sums.tg_tokens_per_second_median),
        f"{sums.errors:,}",
        f"{sums.left:,}",
        _last(client.last_at, days),
    )


def _last(at: str | None, days: int) -> str:
    if not at:
        return units.UNKNOWN
    return units.time_of_day(at) if days == 1 else units.local_time(at, "%Y-%m-%d %H:%M")


def _print_requests(ledger: Ledger, dates: list[date], status: GatewayStatus | None, lines: int, as_json: bool) -> None:
    """Prints the last finished requests, then the live ones."""
    finished: list[FinishedRequest] = []
    for day in dates:
        if len(finished) < lines:
            finished = [*ledger.last_requests(day, lines - len(finished)), *finished]
    live = status.requests if status else ()
    if as_json:
        values = {"requests": [asdict(request) for request in finished], "live": [asdict(request) for request in live]}
        output.emit_json(values)
    elif finished or live:
        rows = [*map(_finished_row, finished), *map(_live_row, live)]
        output.emit_table(rows, header=_REQUEST_HEADER)
    else:
        output.emit("No request has finished yet.")


def _finished_row(request: FinishedRequest) -> tuple[str, ...]:
    return (
        units.time_of_day(request.at),
        request.client,
        request.profile or units.UNKNOWN,
        request.outcome if request.outcome in ("done", "left") else f"{request.outcome} {request.status}",
        units.token_sum(request.prompt_tokens, request.cached_tokens, request.read_tokens),  # as the screen has it
        units.tokens(request.generated_tokens),
        units.duration(request.queue_seconds),
        units.duration(request.ttft_seconds),
        units.rate(request.tg_tokens_per_second),
        units.duration(request.seconds),
        request.error,
    )


def _live_row(request: LiveRequest) -> tuple[str, ...]:
    return (
        "now", request.client, request.profile or units.UNKNOWN, request.state, units.UNKNOWN,
        units.tokens(request.generated_tokens), units.duration(request.queue_seconds),
        units.duration(request.ttft_seconds), units.UNKNOWN, units.duration(request.seconds), "",
    )  # fmt: skip
