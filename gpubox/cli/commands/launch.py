"""``gpubox launch [AGENT] [-- ARGUMENTS]``."""

from __future__ import annotations

import os
import shlex
import shutil
import signal
import sys
from collections.abc import Mapping
from contextlib import aclosing
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
from gpubox.interchange.agent_launch import LAUNCHED, LaunchedAgent, agent_launch, launched_agent
from gpubox.interchange.client_settings import ClientTarget, usable_models
from gpubox.storage import private_folder, unwritable, write_atomically
from gpubox.views.rows import Table


@click.command("launch")
@click.argument("agent", required=False)
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
@click.option("--model", metavar="PROFILE", help="The profile or alias that it uses. [default: a loaded one]")
@click.option("--confined", is_flag=True, help="Run it in walls: it sees this folder's copy, and only the gateway.")
@json_option
@click.pass_obj
def command(
    context: Context, agent: str | None, arguments: tuple[str, ...], model: str | None, confined: bool, as_json: bool
) -> None:  # fmt: skip
    """Start the coding agent AGENT here, at the gateway, with ARGUMENTS: gpubox launch claude -- --continue

    It gets the gateway's address, a model with its limits and a key of its own by environment and arguments: no file of
    yours is needed or changed. The gateway is started if none runs. Without AGENT, list the agents that gpubox knows.

    --confined: nothing of yours is written. At its end you are told what it changed: look at it, and take it.
    """
    if agent is None:
        if model or confined:
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
    if confined:
        raise SystemExit(_in_walls(context, known, arguments, model))
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


def _in_walls(context: Context, agent: LaunchedAgent, arguments: tuple[str, ...], model: str | None) -> int:
    """Runs the agent as the one turn of a new chat. Returns its exit code."""
    from gpubox.acp.in_terminal import in_terminal
    from gpubox.agent.chat import Chat
    from gpubox.agent.chat_files import chat_path, free_name, layers_folder, remove_chat
    from gpubox.agent.chat_log import ChatSettings
    from gpubox.agent.events import FilesChanged, Notice, TurnFailed
    from gpubox.concurrency import run_cancellable
    from gpubox.sandbox.confined_run import finish

    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        raise UsageError("A confined agent needs a terminal.", "Run it in one, without redirecting its output.")
    walled = in_terminal(context.paths, context.config, agent, arguments, model)
    chat = Chat(context.paths, context.config, host=lambda *_: walled)
    began, changed = False, 0

    async def run() -> None:
        nonlocal began, changed
        try:
            folder = Path.cwd()
            chat.change_settings(ChatSettings(workdir=str(folder), agent=agent.name))
            chat.rename_to(free_name(context.paths, f"{agent.name} {folder.name}"))
            async with aclosing(
                chat.send(shlex.join(["gpubox", "launch", agent.name, "--confined", *arguments]))
            ) as turn:
                async for event in turn:
                    began = True
                    if isinstance(event, FilesChanged):
                        changed = len(event.files)
                    elif isinstance(event, Notice):
                        diagnostics.note(f"  {event.text}")
                    elif isinstance(event, TurnFailed):
                        raise GpuboxError(event.message, event.hint)
        finally:
            await finish(end())

    async def end() -> None:
        nonlocal changed
        try:
            if began and not changed:
                changed = len(await chat.changes())
        finally:
            await chat.close()
        if walled.lost:
            folder = layers_folder(chat_path(context.paths, chat.name)) / "agent"
            diagnostics.note(f"  What it changed could not be read. It is in {folder}.")
        elif began and not changed:
            remove_chat(context.paths, chat.name)

    try:
        run_cancellable(run())
    finally:
        if changed:
            what = "1 file" if changed == 1 else f"{changed:,} files"
            diagnostics.note(f"  It changed {what}: `gpubox chat diff {chat.name}`, `gpubox chat take {chat.name}`.")
    return walled.exit_code


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
