"""``gpubox requests``."""

from __future__ import annotations

import asyncio
from dataclasses import asdict

import click

from gpubox import units
from gpubox.cli import output
from gpubox.cli.context import Context, server_url
from gpubox.cli.options import json_option, url_option
from gpubox.errors import ExitCode, GpuboxError
from gpubox.hardware.gpu import DriverReading
from gpubox.telemetry.sampler import Sampler
from gpubox.telemetry.snapshot import Request, Snapshot

_HEADER = ("TIME", "SLOT", "PROMPT", "OUT", "TTFT", "PP", "TG", "DRAFT", "TOOK", "END", "")


@click.command("requests")
@click.option("--lines", "-n", type=int, default=20, metavar="N", help="Print the last N requests. [default: 20]")
@url_option
@json_option
@click.pass_obj
def command(context: Context, lines: int, url: str | None, as_json: bool) -> None:
    """List the last finished requests of the active server, the newest last. Times are from the server's log.

    \b
    PROMPT  processed + cached tokens
    OUT     generated tokens
    TTFT    from arrival to the first token; ≥ if the wait for a slot is unknown
    PP, TG  tokens per second
    DRAFT   share of drafted tokens that were accepted
    TOOK    from the start in a slot to the end
    END     stop reason, and the cause of a cache miss

    With --url, gpubox cannot read that server's log, so it shows counts only: how many requests run and wait.
    """
    url = server_url(url)
    snapshot = asyncio.run(_read(context, url))
    if url is not None:
        _print_counts(snapshot, as_json)
        return
    if snapshot.server.pid is None:
        raise GpuboxError("Nothing is running.", snapshot.server.message, code=ExitCode.NOT_RUNNING)
    requests = snapshot.requests[: max(0, lines)][::-1]
    if as_json:
        values = [{**asdict(request), "draft_acceptance": request.draft_acceptance} for request in requests]
        output.emit_json({"profile": snapshot.server.profile, "requests": values})
    elif snapshot.requests:
        output.emit_table([_row(request) for request in requests], header=_HEADER)
    else:
        output.emit("No request has finished yet.")


def _print_counts(snapshot: Snapshot, as_json: bool) -> None:
    """Prints what is known without the server's log. Raises GpuboxError if the server does not answer."""
    server, through = snapshot.server, snapshot.throughput
    if not server.up:
        code = ExitCode.UNHEALTHY if server.state == "error" else ExitCode.NOT_RUNNING
        raise GpuboxError(server.message or f"{server.base_url} is {server.state}.", code=code)
    if as_json:
        running = {"running_requests": through.busy_slots, "waiting_requests": through.queued_requests}
        output.emit_json({"profile": None, "base_url": server.base_url, "requests": None, **running})
        return
    output.emit(f"{units.tokens(through.busy_slots)} running, {units.tokens(through.queued_requests)} waiting")
    output.emit("gpubox cannot read this server's log, so it does not list its requests.")


async def _read(context: Context, url: str | None) -> Snapshot:
    async with Sampler(context.paths, context.config, lambda: DriverReading(()), url=url) as sampler:
        return await sampler.sample(wait=True)


def _row(request: Request) -> tuple[str, ...]:
    acceptance = request.draft_acceptance
    return (
        units.time_of_day(request.at),
        str(request.slot),
        units.token_sum(request.prompt_tokens, request.read_tokens, request.cached_tokens),
        units.tokens(request.generated_tokens),
        units.duration_at_least(request.ttft_seconds, request.slot_ttft_seconds),
        units.rate(request.pp_tokens_per_second),
        units.rate(request.tg_tokens_per_second),
        units.UNKNOWN if acceptance is None else f"{acceptance:.0%}",
        units.duration(request.duration_seconds),
        request.stop_reason or units.UNKNOWN,
        f"cache miss: {request.cache_miss}" if request.cache_miss else _kept(request),
    )


def _kept(request: Request) -> str:
    return f"kept KV: {units.tokens(request.restored_tokens)} restored" if request.restored_tokens else ""
