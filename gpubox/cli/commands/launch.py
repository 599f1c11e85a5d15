"""``gpubox launch [AGENT] [-- ARGUMENTS]``."""

from __future__ import annotations

import os
import shutil
import signal
import sys
from collections.abc import Mapping
from pathlib import Path

import click

from gpubox.cli import diagnostics, output
from gpubox.cli.context import Context
from gpubox.cli.options import json_option
from gpubox.errors import GpuboxError, UsageError
from gpubox.gateway.agent_keys import agent_key
from gpubox.gateway.gateway_client import read_gateway
from gpubox.gateway.gateway_status import GatewayStatus
from gpubox.gateway.offers import choose_model, gateway_models, offered_models
from gpubox.interchange.agent_launch import LAUNCHED, agent_launch, launched_agent
from gpubox.interchange.client_settings import ClientTarget, usable_models
from gpubox.storage import private_folder, unwritable, write_atomically
from gpubox.views.rows import Table


@click.command("launch")
@click.argument("agent", required=False)
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
@click.option("--model", metavar="PROFILE", help="The profile or alias that it uses. [default: a loaded one]")
@json_option
@click.pass_obj
def command(
    context: Context, agent: str | None, arguments: tuple[str, ...], model: str | None, as_json: bool
) -> None:  # fmt: skip
    """Start the coding agent AGENT here, at the gateway, with ARGUMENTS: gpubox launch claude -- --continue

    It gets the gateway's address, a model with its limits and a key of its own by environment and arguments: no file of
    yours is needed or changed. The gateway is started if none runs. Without AGENT, list the agents that gpubox knows.
    """
    if agent is None:
        if model:
            raise UsageError("An agent is missing.", f"There are: {', '.join(LAUNCHED)}.")
        _list(as_json)
        return
    if as_json:
        raise UsageError("--json is only for the list: it takes no agent.")
    known = launched_agent(agent)
    program = shutil.which(known.name)
    if program is None:
        raise GpuboxError(
            f"{known.title} is not installed: {known.name} is not on PATH.", f"Install it: {known.install}"
        )
    status = read_gateway(context.paths) or _start_gateway(context)
    models = gateway_models(status, context.catalog.profiles)
    chosen = choose_model(models if model else usable_models(known.client, models), model)
    if chosen[0].embeddings:
        raise UsageError(f"{chosen[0].name} serves embeddings.", "Choose a chat profile.")
    offered = usable_models(known.client, offered_models(chosen, chosen[0].name, status))
    target = ClientTarget("gpubox", status.base_url, offered, agent_key(context.paths, known.name))
    folder = context.paths.agent_settings(known.name, chosen[0].name)
    launch = agent_launch(known, target, folder)
    _write(folder, launch.files)
    diagnostics.note(f"  {known.title} uses {chosen[0].name} at {status.base_url}.")
    environment = {name: value for name, value in os.environ.items() if name not in launch.unset}
    _replace_process(program, [known.name, *launch.arguments, *arguments], {**environment, **launch.environment})


def _start_gateway(context: Context) -> GatewayStatus:
    from gpubox.gateway.background import start_detached

    settings = context.config.gateway
    record = start_detached(context.paths, settings.host, settings.port)
    diagnostics.note("  No gateway ran: one is started, and stays. `gpubox serve --stop` ends it.")
    if (status := read_gateway(context.paths)) is None:
        raise GpuboxError(f"The gateway at {record.base_url} does not answer.", "`gpubox clients` says more.")
    return status


def _write(folder: Path, files: Mapping[str, str]) -> None:
    try:
        for name, text in files.items():
            write_atomically(private_folder(folder) / name, text.encode())
    except OSError as error:
        raise unwritable(folder, error) from None


def _replace_process(program: str, words: list[str], environment: dict[str, str]) -> None:
    """The agent takes the place of this process: its terminal, folder, signals and exit code are the agent's."""
    sys.stdout.flush()
    sys.stderr.flush()
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)  # Python ignores it, and a program would inherit that
    try:
        os.execve(program, words, environment)
    except OSError as error:
        raise GpuboxError(f"{program} cannot be started: {error.strerror}.") from None


def _list(as_json: bool) -> None:
    paths = {name: shutil.which(name) for name in LAUNCHED}
    values = [{"name": name, "program": paths[name], "install": agent.install} for name, agent in LAUNCHED.items()]
    rows = [(name, agent.title, paths[name] or f"missing: {agent.install}") for name, agent in LAUNCHED.items()]
    output.emit_result(Table(rows, ("AGENT", "NAME", "PROGRAM")), {"agents": values}, as_json=as_json)
