"""``gpubox ps``."""

from __future__ import annotations

import asyncio
from dataclasses import asdict
from typing import Any

import click

from gpubox import units
from gpubox.cli import output
from gpubox.cli.context import Context
from gpubox.cli.options import json_option
from gpubox.errors import ExitCode
from gpubox.server import watcher
from gpubox.server.instance import instance_names, observe
from gpubox.server.status import ServerStatus, read_status


@click.command("ps")
@json_option
@click.pass_obj
def command(context: Context, as_json: bool) -> int:
    """List gpubox's running servers and their slots."""
    running = [status for status in asyncio.run(_read(context)) if status.pid is not None]
    if as_json:
        output.emit_json({"servers": [_values(status) for status in running]})
    elif running:
        output.emit_table([row for status in running for row in _rows(status)], header=_HEADER)
    else:
        output.emit("Nothing is running.")
    return ExitCode.OK if running else ExitCode.NOT_RUNNING


_HEADER = ("PROFILE", "PID", "ADDRESS", "STATE", "SLOT", "CONTEXT", "GENERATED")


async def _read(context: Context) -> list[ServerStatus]:
    instances = instance_names(context.paths)
    for instance in instances:
        watcher.ensure_watcher(context.paths, instance, observe(context.paths, instance).watched)
    return await asyncio.gather(*(read_status(context.paths, context.config, instance) for instance in instances))


def _rows(status: ServerStatus) -> list[tuple[str, ...]]:
    head = (status.profile or units.UNKNOWN, str(status.pid), status.base_url or units.UNKNOWN, status.state)
    if not status.slots:
        return [(*head, units.UNKNOWN, units.UNKNOWN, units.UNKNOWN)]
    rows: list[tuple[str, ...]] = []
    for slot in status.slots:
        used, size = units.tokens(slot.context_used_tokens), units.tokens(slot.context_size_tokens)
        rows.append(
            (
                *head,
                f"{slot.index} {'busy' if slot.busy else 'idle'}",
                f"{used} of {size}",
                units.tokens(slot.generated_tokens),
            )
        )
        head = ("", "", "", "")
    return rows


def _values(status: ServerStatus) -> dict[str, Any]:
    return {
        "profile": status.profile,
        "instance": status.instance,
        "pid": status.pid,
        "base_url": status.base_url,
        "state": status.state,
        "started_at": status.started_at,
        "slots": None if status.slots is None else [asdict(slot) for slot in status.slots],
    }
