"""``gpubox requests``."""

from __future__ import annotations

import asyncio
from dataclasses import asdict
from datetime import datetime
from typing import Any

import click

from gpubox import units
from gpubox.cli import output
from gpubox.cli.context import Context
from gpubox.errors import ExitCode, GpuboxError
from gpubox.hardware.nvml import DriverReading
from gpubox.telemetry.model import Request, Snapshot
from gpubox.telemetry.sampler import Sampler

_HEADER = ("TIME", "SLOT", "PROMPT", "OUT", "TTFT", "PP", "TG", "DRAFT", "TOOK", "END", "")


@click.command("requests")
@click.option("--lines", "-n", default=20, show_default=True, help="How many of the last ones.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object.")
@click.pass_obj
def command(context: Context, lines: int, as_json: bool) -> None:
    """The last requests that the active server finished, the newest at the end, as its own log timed them.

    PROMPT is read + reused tokens. TTFT is from its arrival at the server to its first token, the wait for a slot with
    it (≥: the log does not tell how long that was). PP and TG are tokens per second, TOOK is from the slot to the end,
    DRAFT is the share of drafted tokens that was accepted, END why it stopped; what follows says why a cached prompt
    was read again.
    """
    snapshot = asyncio.run(_read(context))
    if snapshot.server.pid is None:
        raise GpuboxError("Nothing is running.", snapshot.server.message, code=ExitCode.NOT_RUNNING)
    found = snapshot.requests[: max(0, lines)][::-1]
    if as_json:
        output.emit_json({"profile": snapshot.server.profile, "requests": [_values(request) for request in found]})
    elif snapshot.requests:
        output.emit_table([_row(request) for request in found], header=_HEADER)
    else:
        output.emit("No request has finished yet.")


async def _read(context: Context) -> Snapshot:
    sampler = Sampler(context.paths, context.config, lambda: DriverReading(()))
    try:
        return await sampler.sample(wait=True)
    finally:
        await sampler.close()


def _values(request: Request) -> dict[str, Any]:
    return {**asdict(request), "draft_acceptance": request.draft_acceptance}


def _row(request: Request) -> tuple[str, ...]:
    acceptance = request.draft_acceptance
    return (
        _local_time(request.at),
        str(request.slot),
        _prompt(request),
        units.tokens(request.generated_tokens),
        units.at_least(request.ttft_seconds, request.slot_ttft_seconds),
        units.rate(request.pp_tokens_per_second),
        units.rate(request.tg_tokens_per_second),
        units.UNKNOWN if acceptance is None else f"{acceptance:.0%}",
        units.seconds(request.duration_seconds),
        request.stop_reason or units.UNKNOWN,
        f"re-read: {request.reread}" if request.reread else "",
    )


def _prompt(request: Request) -> str:
    if request.prompt_tokens is None or request.cached_tokens is None:
        return units.tokens(request.prompt_tokens)
    return f"{units.tokens(request.prompt_tokens - request.cached_tokens)}+{units.tokens(request.cached_tokens)}"


def _local_time(iso: str) -> str:
    return f"{datetime.fromisoformat(iso).astimezone():%H:%M:%S}"
