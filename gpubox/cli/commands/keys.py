"""``gpubox keys``: lists, makes, revokes and forgets the keys of the gateway's clients."""

from __future__ import annotations

import sys

import click

from gpubox import units
from gpubox.cli import diagnostics, output
from gpubox.cli.context import Context
from gpubox.cli.options import json_option
from gpubox.errors import UsageError
from gpubox.gateway.client_keys import BOX, ClientKeys
from gpubox.profiles.profile import is_loopback
from gpubox.server.gateway_record import load_gateway


@click.group("keys", invoke_without_command=True)
@json_option
@click.pass_context
def command(ctx: click.Context, as_json: bool) -> None:
    """List, make, revoke and forget the keys of the gateway's clients.

    As soon as there is a key, every request to the gateway needs one. A client sends it as its API key.
    """
    if ctx.invoked_subcommand is None:
        _list(ctx.obj, as_json)
    elif as_json:
        raise UsageError("--json belongs after the verb.", f"Write: gpubox keys {ctx.invoked_subcommand} --json")


@command.command("list")
@json_option
@click.pass_obj
def list_command(context: Context, as_json: bool) -> None:
    """List the clients that have a key."""
    _list(context, as_json)


@command.command("add")
@click.argument("name")
@json_option
@click.pass_obj
def add_command(context: Context, name: str, as_json: bool) -> None:
    """Make a key for the client NAME. It is printed once, alone on stdout: KEY=$(gpubox keys add laptop)"""
    keys = ClientKeys.of(context.paths)
    secret = keys.add(name)
    try:
        if as_json:
            output.emit_json({"name": name, "key": secret})
        else:
            output.emit(secret)
    except BaseException:
        keys.revoke(name)  # nobody has seen it
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
    keys.revoke(name)
    output.emit_result(f"{name}'s key is revoked.", {"name": name, "revoked": True}, as_json=as_json)
    if not keys.names and not keys.has_box_key:
        diagnostics.note("  No key is left: the gateway refuses every client. `gpubox keys add NAME` makes a new key.")
        diagnostics.note("  `gpubox keys reset` lets it answer everybody again.")


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


def _list(context: Context, as_json: bool) -> None:
    keys = ClientKeys.of(context.paths)
    keys.check()
    if as_json:
        values = [{"name": key.name, "made_at": key.made_at} for key in keys.keys]
        output.emit_json({"keys": values, "box_key": keys.has_box_key, "required": keys.any})
        return
    rows = [(key.name, units.local_time(key.made_at, "%Y-%m-%d")) for key in keys.keys]
    if keys.has_box_key:
        rows.append((BOX, "the box's own API key"))
    if rows:
        output.emit_table(rows, header=("CLIENT", "MADE"))
    elif keys.any:
        output.emit("No client has a key: the gateway refuses every client. `gpubox keys add NAME` makes a key.")
    else:
        output.emit("There are no keys: the gateway answers without one. `gpubox keys add NAME` makes the first.")
