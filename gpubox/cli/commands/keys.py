"""``gpubox keys``: who may ask the gateway, and how much."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any, TypeVar

import click

from gpubox.cli import diagnostics, output
from gpubox.cli.context import Context
from gpubox.cli.options import PlainHelpOption, Verbs, json_option
from gpubox.errors import UsageError
from gpubox.gateway.agent_keys import remove_agent_key
from gpubox.gateway.client_keys import ClientKeys, ClientLimits
from gpubox.gateway.ledger import Ledger
from gpubox.profiles.profile import is_loopback
from gpubox.server.state import load_gateway
from gpubox.views.clients import key_values, keys_table
from gpubox.views.fields import json_fields

Command = TypeVar("Command", bound=Callable[..., Any])
_SPAN = re.compile(r"(\d{1,4})([dh])")


def _names(text: str) -> tuple[str, ...]:
    names = () if text == "all" else tuple(name.strip() for name in text.split(","))
    if not all(names):
        raise UsageError(f"--models {text!r} has an empty name.", "Write --models a,b, or all.")
    return names


def _end(text: str) -> str:
    """When a key expires: ISO-8601 UTC; empty: never. Raises UsageError."""
    if text == "never":
        return ""
    if not (match := _SPAN.fullmatch(text)):
        raise UsageError(f"--expires {text!r} is no span of time.", "Write --expires 30d, --expires 12h or never.")
    end = datetime.now(UTC) + timedelta(hours=int(match[1]) * (24 if match[2] == "d" else 1))
    return end.isoformat(timespec="milliseconds").replace("+00:00", "Z")


_LIMITS: tuple[tuple[str, Any, str, str], ...] = (
    ("weight", click.IntRange(1, 100), "N", "Its share where clients wait: 2 gets twice as much as 1, the default."),
    ("requests-at-once", click.IntRange(0), "N", "Have at most N of its requests at servers; the others wait. 0: any."),
    ("tokens-per-day", click.IntRange(0), "N", "Refuse it till midnight after N tokens, read or generated. 0: any."),
    ("models", _names, "A,B", "Let it name only these profiles. all: any."),
    ("expires", _end, "30d", "Refuse it from 30d (days) or 12h (hours) from now on. never: no end."),
)  # fmt: skip


def _limit_options(command: Command) -> Command:
    """The options of all limits; what is not given is None."""
    for flag, kind, metavar, text in reversed(_LIMITS):
        command = click.option(f"--{flag}", type=kind, metavar=metavar, cls=PlainHelpOption, help=text)(command)
    return command


def _given(expires: str | None, limits: dict[str, Any]) -> dict[str, Any]:
    """The fields of ClientLimits that were given."""
    given = {**limits, "expires_at": expires}
    return {name: value or (() if name == "models" else None) for name, value in given.items() if value is not None}


@click.group("keys", cls=Verbs)
def command() -> None:
    """Make, list, change and remove the keys of clients: who may ask the gateway, and how much.

    As soon as there is a key, every request to the gateway needs one. A client sends it as its API key. A running
    gateway heeds every change at once. The box's own API key, which is in ~/.config/gpubox/api-key or
    in $GPUBOX_API_KEY, has no limits.
    """


@command.command("add")
@click.argument("name")
@click.option("--watch", is_flag=True, help="Let it see what this box's screen shows, and ask for no model.")
@_limit_options
@json_option
@click.pass_obj
def add_command(context: Context, /, name: str, as_json: bool, expires: str | None, watch: bool, **limits: Any) -> None:
    """Make a key for the client NAME. It is printed once, alone on stdout: KEY=$(gpubox keys add laptop)"""
    keys, given = ClientKeys(context.paths), ClientLimits(**_given(expires, limits), watch=watch)
    if watch and replace(given, expires_at=None) != ClientLimits(watch=True):
        raise UsageError("A key with --watch asks for no model.", "Of the limits only --expires goes with it.")
    is_first = not keys.any
    secret = keys.add(name, given)
    try:
        output.emit_result(secret, {"name": name, "key": secret, **json_fields(given)}, as_json=as_json)
    except BaseException:
        keys.remove(name)  # nobody has seen it
        raise
    _note_models(context, given)
    if not as_json:
        diagnostics.note(f"  This is {name}'s key. It is stored nowhere and not shown again.")
        if watch:
            diagnostics.note("  With it in GPUBOX_URL_KEY: gpubox --url ADDRESS-OF-THE-GATEWAY")
    if watch and is_first:
        diagnostics.note("  ! It is the first key: from now on every request to the gateway needs one.")


@command.command("list")
@json_option
@click.pass_obj
def list_command(context: Context, as_json: bool) -> None:
    """List the keys, their limits, and what has been used of them today."""
    keys = ClientKeys(context.paths)
    if problem := keys.problem:
        diagnostics.note(f"gpubox: {problem}")
    spent = Ledger(context.paths.ledger).spent_tokens
    used = [(key, spent(key.name), False) for key in keys.clients.values()]
    used += [(key, spent(key.name), True) for key in keys.agents.values()]
    if as_json:
        needed = {"required": keys.any, "box_key": bool(keys.box_key), "problem": problem or None}
        output.emit_json({**needed, "keys": [key_values(*each) for each in used]})
        return
    empty = "The box's own API key is the only one." if keys.box_key else "No client has a key."
    output.emit_table(keys_table(used, empty))
    _note_no_key(keys)


@command.command("change")
@click.argument("name")
@_limit_options
@json_option
@click.pass_obj
def change_command(context: Context, /, name: str, as_json: bool, expires: str | None, **limits: Any) -> None:
    """Change limits of the client NAME. Its key stays, and so do the limits that are not named."""
    if not (given := _given(expires, limits)):
        raise UsageError("Nothing is to be changed.", "Name a limit, such as --weight 2.")
    changed = ClientKeys(context.paths).change(name, **given)
    spent = Ledger(context.paths.ledger).spent_tokens(name)
    output.emit_result(keys_table([(changed, spent, False)]), key_values(changed, spent), as_json=as_json)
    _note_models(context, changed.limits)


@command.command("remove")
@click.argument("name")
@json_option
@click.pass_obj
def remove_command(context: Context, name: str, as_json: bool) -> None:
    """Remove the key of the client NAME.

    A running gateway refuses its next request, and ends an answer that runs for it. That of an agent which gpubox
    starts is removed, too: the next start makes a new one.
    """
    keys = ClientKeys(context.paths)
    was_agent = remove_agent_key(context.paths, name)
    if not was_agent or name in keys.clients:
        keys.remove(name)
    output.emit_result(f"{name}'s key is removed.", {"name": name, "removed": True}, as_json=as_json)
    if was_agent and not keys.any:
        diagnostics.note(f"  ! The gateway needs no key: it still answers {name}. `gpubox keys add NAME` changes that.")
    _note_no_key(keys)


@command.command("reset")
@click.option("--yes", "-y", is_flag=True, help="Do not ask.")
@json_option
@click.pass_obj
def reset_command(context: Context, yes: bool, as_json: bool) -> None:
    """Remove all keys of clients: the gateway asks for none again.

    This also ends the refusal after a key file was deleted or damaged. The box's own API key and those of agents stay.
    """
    question = "Forget all keys? The gateway then answers everybody who reaches it."
    refusal = "Forgetting all keys needs your confirmation."
    if not diagnostics.confirmed(question, refusal, yes=yes, as_json=as_json or not sys.stdin.isatty()):
        return
    keys = ClientKeys(context.paths)
    names = list(keys.clients)
    keys.reset()
    required = keys.any
    text = "All keys are forgotten." + (" The box's own API key is still needed." if required else "")
    output.emit_result(text, {"removed": names, "required": required}, as_json=as_json)
    gateway = load_gateway(context.paths)
    if gateway and not required and not is_loopback(gateway.host):
        diagnostics.note(f"  ! The gateway at {gateway.host}:{gateway.port} answers other machines without a key now.")


def _note_no_key(keys: ClientKeys) -> None:
    """Says it if keys are needed, and nobody has one."""
    if keys.any and not (keys.clients or keys.box_key or keys.problem):
        diagnostics.note("  No key is left: the gateway refuses every client. `gpubox keys add NAME` makes a new key.")
        diagnostics.note("  `gpubox keys reset` lets it answer everybody again.")


def _note_models(context: Context, limits: ClientLimits) -> None:
    """Says which models no profile has: they may be made later."""
    known = {name for profile in context.catalog.profiles.values() for name in (profile.name, *profile.aliases)}
    if unknown := [name for name in limits.models if name not in known]:
        diagnostics.note(f"  ! No profile is called {' or '.join(unknown)}.")
