"""``gpubox clients``: the gateway's clients and their requests."""

from __future__ import annotations

from collections import deque
from datetime import date, datetime, timedelta

import click

from gpubox.cli import diagnostics, output
from gpubox.cli.context import Context
from gpubox.cli.options import PlainHelpOption, Verbs, json_option, list_requests_option, listed_lines_option
from gpubox.errors import GpuboxError, UsageError
from gpubox.gateway.client_keys import ClientKeys
from gpubox.gateway.gateway_client import cancel, read_gateway
from gpubox.gateway.gateway_client import hold as hold_requests
from gpubox.gateway.gateway_status import FinishedRequest, GatewayStatus, LiveRequest
from gpubox.gateway.ledger import KEPT_DAYS, Ledger
from gpubox.views import clients as views
from gpubox.views.fields import json_fields, json_value

_HELD = "New requests wait at the gateway. `gpubox clients --release` lets them go on."


@click.group("clients", cls=Verbs, invoke_without_command=True)
@click.option(
    "--days", type=click.IntRange(1, KEPT_DAYS), default=1, metavar="N", cls=PlainHelpOption,
    help=f"Sum up the last N days, today with them; at most {KEPT_DAYS}. [default: 1]",
)  # fmt: skip
@list_requests_option
@listed_lines_option
@click.option("--hold/--release", default=None, help="Hold all new requests at the gateway, or let them go on.")
@json_option
@click.pass_context
def command(
    ctx: click.Context, days: int, list_requests: bool, lines: int, hold: bool | None, as_json: bool
) -> None:  # fmt: skip
    """List the gateway's clients and what they asked today, and below that who runs and who waits for what now.

    With --hold new requests wait until --release, and requests that run are answered to their end.

    \b
    REQS     finished requests
    READ     prompt tokens that were read
    REUSED   prompt tokens that were in the KV cache
    OUT      generated tokens
    QUEUE    how long they waited for a slot, all together
    SWITCH   how long they waited for their profile to be up
    READING  from there to the first token
    GEN      from the first token to the last
    TTFT     median of the streamed requests, from the request's last byte to the first token
    TG       median tokens per second, as the server reports it
    ERR      requests that failed or were refused
    LEFT     requests whose client went away
    """
    if ctx.invoked_subcommand is not None:
        if as_json:
            raise UsageError("--json belongs after the verb.", f"Write: gpubox clients {ctx.invoked_subcommand} --json")
        return
    context: Context = ctx.obj
    if hold is not None:
        if list_requests:
            raise UsageError("--hold and --release list no requests.", "Leave --requests out.")
        hold_requests(context.paths, hold)
        output.emit_result(_HELD if hold else "Requests go on.", {"paused": hold}, as_json=as_json)
        return
    status, live_known = _running(context)
    problems = status.problems if status else tuple(filter(None, (ClientKeys(context.paths).problem,)))
    for problem in problems:
        diagnostics.note(f"gpubox: {problem}")
    ledger = Ledger(context.paths.ledger)
    today = datetime.now().astimezone().date()
    dates = [today - timedelta(age) for age in range(days)]
    live = status.requests if status else ()
    if list_requests:
        finished = _last_requests(ledger, dates, lines)
        if as_json:
            output.emit_json({"requests": json_value(finished), "live": json_value(live)})
        else:
            output.emit_table(views.finished_table(finished))
            _print_live(live)
        return
    clients = views.collect_clients(ledger.sums_of(dates), live)
    if as_json:
        gateway = {"base_url": status and status.base_url, "paused": status and status.paused}
        values = [views.client_values(client, live_known=live_known) for client in clients]
        now = {"problems": list(problems), "live": json_value(live) if live_known else None}
        output.emit_json({"days": days, **gateway, **now, "clients": values})
        return
    when = "today" if days == 1 else f"in the last {days} days"
    hint = "" if status else " `gpubox serve` starts the gateway."
    output.emit_table(views.clients_table(clients, days, f"No client has sent a request {when}.{hint}"))
    _print_live(live)
    if status and status.paused:
        diagnostics.note(f"  {_HELD}")


def _running(context: Context) -> tuple[GatewayStatus | None, bool]:
    """The gateway now, and whether that is known: the ledger can be read without it."""
    try:
        return read_gateway(context.paths), True
    except GpuboxError as error:
        diagnostics.show_error(error)
        return None, False


def _last_requests(ledger: Ledger, dates: list[date], lines: int) -> list[FinishedRequest]:
    finished: list[FinishedRequest] = []
    for day in dates:
        if len(finished) < lines:
            finished = [*deque(ledger.requests(day), lines - len(finished)), *finished]
    return finished


def _print_live(live: tuple[LiveRequest, ...]) -> None:
    """Below the other rows: what goes on now is what is looked for."""
    if live:
        output.emit()
        output.emit_table(views.live_table(live))


@command.command("cancel")
@click.argument("number", metavar="ID", type=click.IntRange(1))
@json_option
@click.pass_obj
def cancel_command(context: Context, number: int, as_json: bool) -> None:
    """End the request ID, also in the middle of its answer. Its client gets an error.

    `gpubox clients` lists the requests with their ids. The server stops generating within a second.
    """
    request = cancel(context.paths, number)
    output.emit_result(views.cancelled_text(request), json_fields(request), as_json=as_json)
