"""``gpubox requests``."""

from __future__ import annotations

import asyncio
from dataclasses import asdict
from datetime import datetime
from typing import Any

import click

from gpubox import units
from gpubox.cli import output
from gpubox.cli.context import Context, server_url
from gpubox.errors import ExitCode, GpuboxError
from gpubox.hardware.gpu import DriverReading
from gpubox.telemetry.sampler import Sampler
from gpubox.telemetry.snapshot import Request, Snapshot

_HEADER = ("TIME", "SLOT", "PROMPT", "OUT", "TTFT", "PP", "TG", "DRAFT", "TOOK", "END", "")


@click.command("requests")
@click.option("--lines", "-n", default=20, show_default=True, help="How many of the last ones.")
@click.option("--url", help="A server that gpubox did not start: what runs and waits there.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object.")
@click.pass_obj
def command(context: Context, lines: int, url: str | None, as_json: bool) -> None:
    """The last requests that the active server finished, the newest at the end, as its own log timed them.

    PROMPT is read + reused tokens. TTFT is from its arrival at the server to its first token, the wait for a slot with
    it (≥: the log does not tell how long that was). PP and TG are tokens per second, TOOK is from the slot to the end,
    DRAFT is the share of drafted tokens that was accepted, END why it stopped; what follows says why a cached prompt
    was read again.
    """
    url = server_url(url)
    snapshot = asyncio.run(_read(context, url))
    if url is not None:
        _tell_foreign(snapshot, as_json)
        return
    if snapshot.server.pid is None:
        raise GpuboxError("Nothing is running.", snapshot.server.message, code=ExitCode.NOT_RUNNING)
    found = snapshot.requests[: max(0, lines)][::-1]
    if as_json:
        output.emit_json({"profile": snapshot.server.profile, "requests": [_values(request) for request in found]})
    elif snapshot.requests:
        output.emit_table([_row(request) for request in found], header=_HEADER)
    else:
        output.emit("No request has finished yet.")


def _tell_foreign(snapshot: Snapshot, as_json: bool) -> None:
    """What is known without the server's log. Raises GpuboxError where it does not answer."""
    server, through = snapshot.server, snapshot.throughput
    if not server.up:
        code = ExitCode.UNHEALTHY if server.state == "error" else ExitCode.NOT_RUNNING
        raise GpuboxError(server.message or f"{server.base_url} is {server.state}.", code=code)
    if as_json:
        running = {"running_requests": through.busy_slots, "waiting_requests": through.queued_requests}
        output.emit_json({"profile": None, "base_url": server.base_url, "requests": None, **running})
        return
    output.emit(f"{units.tokens(through.busy_slots)} running, {units.tokens(through.queued_requests)} waiting")
    output.emit("Finished requests are read from a server's log, and the log of this one is not here.")


async def _read(context: Context, url: str | None) -> Snapshot:
    sampler = Sampler(context.paths, context.config, lambda: DriverReading(()), url=url)
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
        units.duration_at_least(request.ttft_seconds, request.slot_ttft_seconds),
        units.rate(request.pp_tokens_per_second),
        units.rate(request.tg_tokens_per_second),
        units.UNKNOWN if acceptance is None else f"{acceptance:.0%}",
        units.duration(request.duration_seconds),
        request.stop_reason or units.UNKNOWN,
        f"re-read: {request.cache_miss}" if request.cache_miss else "",
    )


def _prompt(request: Request) -> str:
    if request.prompt_tokens is None or request.cached_tokens is None:
        return units.tokens(request.prompt_tokens)
    return f"{units.tokens(request.prompt_tokens - request.cached_tokens)}+{units.tokens(request.cached_tokens)}"


def _local_time(iso: str) -> str:
    return f"{datetime.fromisoformat(iso).astimezone():%H:%M:%S}"
