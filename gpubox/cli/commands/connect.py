"""``gpubox connect [CLIENT]``."""

from __future__ import annotations

import sys

import click

from gpubox.cli import diagnostics, output
from gpubox.cli.context import Context
from gpubox.cli.options import json_option
from gpubox.errors import ExitCode, GpuboxError, UsageError
from gpubox.gateway.client_keys import ClientKeys
from gpubox.gateway.gateway_client import read_gateway
from gpubox.gateway.snippets import (
    CLIENTS,
    KEY_PLACEHOLDER,
    Snippet,
    choose_model,
    client_models,
    client_name,
    gateway_models,
    gateway_snippet,
    settings_place,
)
from gpubox.gateway.status import GatewayStatus


@click.command("connect")
@click.argument("client", required=False)
@click.option("--model", metavar="PROFILE", help="The profile or alias that the settings name. [default: a loaded one]")
@click.option("--new-key", metavar="NAME", help="Make a key for the client NAME and write it into the settings.")
@click.option("--start", is_flag=True, help="Start a gateway if none runs, and do not ask.")
@json_option
@click.pass_obj
def command(
    context: Context, client: str | None, model: str | None, new_key: str | None, start: bool, as_json: bool
) -> None:
    """Print the settings of CLIENT for the gateway: its live address, a model and a key.

    Without CLIENT, list the clients that gpubox knows.
    """
    if client is None:
        if model or new_key or start:
            raise UsageError("A client is missing.", f"There are: {', '.join(CLIENTS)}.")
        _list(as_json)
        return
    client = client_name(client)
    settings_place(client)  # an unknown client starts nothing
    status = _gateway(context, start=start, may_ask=not as_json)
    profiles = context.catalog.profiles  # of a named model, client_snippet says why this client cannot use it
    models = gateway_models(status, profiles) if model else client_models(client, status, profiles)
    chosen = choose_model(models, model)
    keys = ClientKeys.of(context.paths)
    key = keys.add(new_key) if new_key else ""
    try:
        snippet = gateway_snippet(client, chosen, status.base_url, status, key)
        _print(snippet, chosen[0].name, status.base_url, as_json)
    except BaseException:
        if new_key:
            keys.revoke(new_key)  # nobody has seen it
        raise
    if snippet.needs_key and not as_json:
        diagnostics.note(f"  ! Put the client's key in the place of {KEY_PLACEHOLDER}; --new-key {client} makes one.")


def _print(snippet: Snippet, model: str, base_url: str, as_json: bool) -> None:
    if as_json:
        output.emit_json(
            {
                "client": snippet.client, "model": model, "base_url": base_url, "place": snippet.where,
                "needs_key": snippet.needs_key, "text": snippet.text,
            }
        )  # fmt: skip
    else:
        output.emit_verbatim(snippet.text.rstrip("\n"))
        diagnostics.note(f"  This belongs into: {snippet.where}")


def _list(as_json: bool) -> None:
    if as_json:
        output.emit_json({"clients": [{"name": name, "place": settings_place(name)} for name in CLIENTS]})
    else:
        output.emit_table([(name, settings_place(name)) for name in CLIENTS], header=("CLIENT", "SETTINGS"))


def _gateway(context: Context, *, start: bool, may_ask: bool) -> GatewayStatus:
    """The gateway that runs; if none does, one that is started now if the owner agrees. Raises GpuboxError."""
    status = read_gateway(context.paths)
    if status is None:
        host, port = context.config.gateway.host, context.config.gateway.port
        asks = may_ask and sys.stdin.isatty() and diagnostics.stderr_is_terminal()
        if not start and not (asks and click.confirm(f"No gateway runs. Start one at {host}:{port}?", err=True)):
            raise GpuboxError(
                "No gateway runs.",
                "`gpubox serve --detach` starts one, and so does --start.",
                code=ExitCode.NOT_RUNNING,
            )
        from gpubox.gateway.detach import start_detached

        start_detached(context.paths, host, port)
        status = read_gateway(context.paths)
    if status is None:
        raise GpuboxError(
            "The gateway has ended again.", f"Its log is {context.paths.gateway_log}.", code=ExitCode.NOT_RUNNING
        )
    return status
