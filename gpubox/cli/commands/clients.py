"""``gpubox clients``: the gateway's clients, their requests and their keys."""

from __future__ import annotations

import sys
from datetime import date, datetime, timedelta

import click

from gpubox.cli import diagnostics, output
from gpubox.cli.context import Context
from gpubox.cli.options import PlainHelpOption, json_option, list_requests_option, listed_lines_option
from gpubox.errors import GpuboxError, UsageError
from gpubox.gateway.client_keys import ClientKeys
from gpubox.gateway.gateway_client import pause, read_gateway, resume
from gpubox.gateway.gateway_status import FinishedRequest, GatewayStatus
from gpubox.gateway.ledger import KEPT_DAYS, Ledger
from gpubox.profiles.profile import is_loopback
from gpubox.server.state import load_gateway
from gpubox.views.clients import client_requests_table, client_values, clients_table, collect_clients
from gpubox.views.fields import json_value

_HELD = "New requests wait at the gateway. `gpubox clients --release` lets them go on."


@click.group("clients", invoke_without_command=True)
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
    """List the gateway's clients and what they asked today. Times are as the client saw them.

    As soon as there is a key, every request to the gateway needs one. A client sends it as its API key.

    With --hold new requests wait until --release, and requests that run are answered to their end.

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
    KEY     when its key was made
    """
    if ctx.invoked_subcommand is not None:
        if as_json:
            raise UsageError("--json belongs after the verb.", f"Write: gpubox clients {ctx.invoked_subcommand} --json")
        return
    context: Context = ctx.obj
    if hold is not None:
        if list_requests:
            raise UsageError("--hold and --release list no requests.", "Leave --requests out.")
        (pause if hold else resume)(context.paths)
        output.emit_result(_HELD if hold else "Requests go on.", {"paused": hold}, as_json=as_json)
        return
    status, live_known = _running(context)
    keys = ClientKeys.of(context.paths)
    problems = status.problems if status else tuple(filter(None, (keys.problem,)))
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
            output.emit_table(client_requests_table(finished, live))
        return
    clients = collect_clients(ledger.sums_of(dates), live, {key.name: key.made_at for key in keys.keys})
    if as_json:
        gateway = {"base_url": status and status.base_url, "paused": status and status.paused}
        needed = {"key_required": keys.any, "box_key": keys.has_box_key, "problems": list(problems)}
        values = [client_values(client, live_known=live_known) for client in clients]
        output.emit_json({"days": days, **gateway, **needed, "clients": values})
        return
    when = "today" if days == 1 else f"in the last {days} days"
    hint = "" if status else " `gpubox serve` starts the gateway."
    output.emit_table(clients_table(clients, days, f"No client has sent a request {when}.{hint}"))
    _note_no_key(keys)
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
            finished = [*ledger.last_requests(day, lines - len(finished)), *finished]
    return finished


def _note_no_key(keys: ClientKeys) -> None:
    """Says it if keys are needed, and nobody has one."""
    if keys.any and not (keys.names or keys.has_box_key or keys.problem):
        diagnostics.note(
            "  No key is left: the gateway refuses every client. `gpubox clients add NAME` makes a new key."
        )
        diagnostics.note("  `gpubox clients reset` lets it answer everybody again.")


@command.command("add")
@click.argument("name")
@json_option
@click.pass_obj
def add_command(context: Context, name: str, as_json: bool) -> None:
    """Make a key for the client NAME. It is printed once, alone on stdout: KEY=$(gpubox clients add laptop)"""
    keys = ClientKeys.of(context.paths)
    secret = keys.add(name)
    try:
        output.emit_result(secret, {"name": name, "key": secret}, as_json=as_json)
    except BaseException:
        keys.remove(name)  # nobody has seen it
        raise
    if not as_json:
        diagnostics.note(f"  This is {name}'s key. It is stored nowhere and not shown again.")


@command.command("revoke")
@click.argument("name")
@json_option
@click.pass_obj
def revoke_command(context: Context, name: str, as_json: bool) -> None:
    """Revoke the key of the client NAME.

    A running gateway refuses its next request, and ends an answer that runs for it.
    """
    keys = ClientKeys.of(context.paths)
    keys.remove(name)
    output.emit_result(f"{name}'s key is revoked.", {"name": name, "revoked": True}, as_json=as_json)
    _note_no_key(keys)


@command.command("reset")
@click.option("--yes", "-y", is_flag=True, help="Do not ask.")
@json_option
@click.pass_obj
def reset_command(context: Context, yes: bool, as_json: bool) -> None:
    """Forget all keys of clients, and that there were any: the gateway answers without a key again.

    This also ends the refusal after a key file was deleted or damaged. The box's own API key stays.
    """
    if not yes:
        if as_json or not (sys.stdin.isatty() and diagnostics.stderr_is_terminal()):
            raise UsageError("Forgetting all keys needs your confirmation.", "Add --yes.")
        if not click.confirm("Forget all keys? The gateway then answers everybody who reaches it.", err=True):
            return
    keys = ClientKeys.of(context.paths)
    names = keys.names
    keys.reset()
    required = keys.any
    text = "All keys are forgotten." + (" The box's own API key is still needed." if required else "")
    output.emit_result(text, {"removed": list(names), "required": required}, as_json=as_json)
    gateway = load_gateway(context.paths)
    if gateway and not required and not is_loopback(gateway.host):
        diagnostics.note(f"  ! The gateway at {gateway.host}:{gateway.port} answers other machines without a key now.")
