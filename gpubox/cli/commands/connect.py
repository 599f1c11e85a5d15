"""``gpubox connect [CLIENT]``."""

from __future__ import annotations

import shlex

import click

from gpubox.cli import diagnostics, output
from gpubox.cli.context import Context
from gpubox.cli.options import json_option
from gpubox.errors import ExitCode, GpuboxError, UsageError
from gpubox.gateway.client_keys import ClientKeys
from gpubox.gateway.gateway_client import read_gateway
from gpubox.gateway.offers import choose_model, gateway_models, gateway_snippet
from gpubox.interchange.client_settings import (
    CLIENTS,
    KEY_PLACEHOLDER,
    ClientTarget,
    Snippet,
    client_model,
    client_name,
    client_snippet,
    context_per_slot,
    settings_place,
    usable_models,
)
from gpubox.interchange.settings_file import settings_change, write_settings
from gpubox.profiles.profile import Profile
from gpubox.server.instance import instance_names, observe
from gpubox.server.status import context_of
from gpubox.views.fields import json_fields
from gpubox.views.rows import Table


@click.command("connect")
@click.argument("client", required=False)
@click.option("--model", metavar="PROFILE", help="The profile or alias that the settings name. [default: a loaded one]")
@click.option("--url", metavar="URL", help="The address of a server, in place of the gateway's; needs --model.")
@click.option("--new-key", metavar="NAME", help="Make a key for the client NAME and write it into the settings.")
@click.option("--write", is_flag=True, help="Write the settings into the file that CLIENT reads; all else in it stays.")
@json_option
@click.pass_obj
def command(
    context: Context, client: str | None, model: str | None, url: str | None, new_key: str | None, write: bool,
    as_json: bool,
) -> None:  # fmt: skip
    """Print the settings of CLIENT: the gateway's live address, a model and a key.

    If no gateway runs but a server does, the settings name the server's own address. Without CLIENT, list the clients
    that gpubox knows.
    """
    if client is None:
        if model or url or new_key or write:
            raise UsageError("A client is missing.", f"There are: {', '.join(CLIENTS)}.")
        _list(as_json)
        return
    client = client_name(client)
    settings_place(client)  # an unknown client starts nothing
    status = None if url else read_gateway(context.paths)
    if status is None:
        if new_key or not (server := _server(context, model, url)):
            raise GpuboxError(
                "No gateway runs." if new_key else "Neither a gateway nor such a server runs.",
                "`gpubox serve --detach` starts a gateway; --url names a server.",
                code=ExitCode.NOT_RUNNING,
            )
        said = context_of(context.paths, context.config, server[1])
        _print_of_server(client, *server, said, write, as_json)
        return
    models = gateway_models(status, context.catalog.profiles)
    chosen = choose_model(models if model else usable_models(client, models), model)  # a named one is refused below
    keys = ClientKeys(context.paths)
    key = keys.add(new_key) if new_key else ""
    try:
        snippet = gateway_snippet(client, chosen, status.base_url, status, key)
        _print(snippet, chosen[0].name, status.base_url, write, as_json)
    except BaseException:
        if new_key:
            keys.remove(new_key)  # nobody has seen it
        raise
    if snippet.needs_key and not as_json:
        diagnostics.note(f"  ! Put the client's key in the place of {KEY_PLACEHOLDER}; --new-key {client} makes one.")


def _server(context: Context, model: str | None, url: str | None) -> tuple[Profile, str] | None:
    """The profile and the address of a server that answers without the gateway; ``None``: there is none.

    Raises UsageError if ``url`` has no profile, or if there is no such profile.
    """
    if url:
        if not model:
            raise UsageError("--url needs --model.", "The settings name a profile: --model PROFILE.")
        return context.profile(model), url
    if model in context.catalog.profiles and (profile := context.profile(model)).upstream:
        return profile, profile.upstream
    views = (observe(context.paths, instance) for instance in instance_names(context.paths))
    launches = {view.running.launch.profile: view.running.launch for view in views if view.running}
    name = model or next(iter(launches), None)
    if name not in launches or name not in context.catalog.profiles:
        return None
    return context.profile(name), launches[name].base_url


def _print_of_server(client: str, profile: Profile, url: str, said: int | None, write: bool, as_json: bool) -> None:
    base_url = url.rstrip("/").removesuffix("/v1")
    model = client_model(profile, context=said or context_per_slot(profile))
    key = "" if profile.loopback else KEY_PLACEHOLDER
    snippet = client_snippet(client, ClientTarget("llama-server (gpubox)", base_url, (model,), key))
    _print(snippet, model.name, base_url, write, as_json)
    if not as_json:
        changing = "" if profile.port or profile.upstream else " Its port changes at each start: write `port` into it."
        diagnostics.note(f"  This is {profile.name}'s own address.{changing} `gpubox serve` has one for all profiles.")


def _print(snippet: Snippet, model: str, base_url: str, write: bool, as_json: bool) -> None:
    values = {"model": model, "base_url": base_url, **json_fields(snippet, "needs_key")}
    if write:
        if (change := settings_change(snippet)) is None:
            raise UsageError(f"gpubox cannot write the settings of {snippet.title}.", f"Put them into {snippet.where}.")
        backup = write_settings(change)
        values |= {"file": str(change.path), "backup": backup and str(backup)}
        if not as_json:
            output.emit_text("\n".join(change.diff()) + "\n")
            undo = f"`cp {shlex.quote(str(backup))} {shlex.quote(str(change.path))}` undoes it" if backup else "new"
            diagnostics.note(f"  {snippet.title} is connected: {change.path} is written ({undo}).")
    elif not as_json:
        output.emit_verbatim(snippet.text.rstrip("\n"))
        diagnostics.note(f"  Put this into: {snippet.where}")
    if as_json:
        output.emit_json(values)


def _list(as_json: bool) -> None:
    places = {name: settings_place(name) for name in CLIENTS}
    values = {"clients": [{"name": name, "where": where} for name, where in places.items()]}
    output.emit_result(Table([*places.items()], ("CLIENT", "SETTINGS")), values, as_json=as_json)
