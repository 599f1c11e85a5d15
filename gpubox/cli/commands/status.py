"""``gpubox status``."""

from __future__ import annotations

import asyncio
import time
from dataclasses import asdict
from typing import Any

import click

from gpubox import units
from gpubox.cli import output
from gpubox.cli.context import Context, check_url
from gpubox.config import foreign_key
from gpubox.errors import ExitCode
from gpubox.hardware.nvml import DriverReading, read_driver
from gpubox.paths import MAIN_SLOT
from gpubox.server.status import ServerStatus, read_foreign, read_status

_CODES = {"stopped": 3, "crashed": 3, "unreachable": 3, "error": 4, "loading": 0, "stopping": 0}
# Documented, and not read by this version.
_OFFLOAD = ("layers_on_gpu", "layers_total", "expert_layers_on_cpu", "major_faults_per_second", "bottleneck")
_THROUGHPUT = (
    "state",
    "tg_tokens_per_second",
    "pp_tokens_per_second",
    "prefill_progress",
    "draft_acceptance",
    "mean_accepted_length",
)
_TOTALS = (
    "requests",
    "prompt_tokens",
    "cached_tokens",
    "generated_tokens",
    "draft_tokens",
    "draft_tokens_accepted",
)


@click.command("status")
@click.option("--json", "as_json", is_flag=True, help="One JSON object; with --watch one a line.")
@click.option("--watch", type=click.FloatRange(min=0.1), metavar="S", help="Again every S seconds.")
@click.option("--url", help="A server that gpubox did not start, read only.")
@click.pass_obj
def command(context: Context, as_json: bool, watch: float | None, url: str | None) -> int:
    """What runs now. Exits 3 when nothing does, 4 when it runs but does not answer."""
    check_url(url)
    while True:
        status = asyncio.run(_read(context, url))
        driver = read_driver()
        if as_json:
            output.emit_json(as_values(status, driver), one_line=watch is not None)
        else:
            _print(status, driver)
        if watch is None:
            return _CODES.get(status.state, ExitCode.OK)
        time.sleep(watch)


async def _read(context: Context, url: str | None) -> ServerStatus:
    if url:
        return await read_foreign(url, foreign_key(context.paths, url))
    return await read_status(context.paths, context.config, MAIN_SLOT)


def as_values(status: ServerStatus, driver: DriverReading) -> dict[str, Any]:
    """The documented JSON object, without its version. ``null``: not known, or not read by this version."""
    used = [s.context_used_tokens for s in status.slots or () if s.context_used_tokens is not None]
    busy = [s for s in status.slots if s.busy] if status.slots is not None else None
    sized = next((s for s in status.slots or () if s.context_size_tokens), None)
    engine = {"path": status.engine_path, "version": status.engine_version}
    return {
        "server": {
            "state": status.state,
            "profile": status.profile,
            "pid": status.pid,
            "base_url": status.base_url,
            "model_path": status.model_path,
            "engine": engine if status.engine_path or status.engine_version else None,
            "started_at": status.started_at,
            "load_seconds": status.load_seconds,
            "exposed": status.exposed or None,
            "message": status.message or None,
            "operation": status.operation or None,
        },
        "gpus": [asdict(gpu) for gpu in driver.gpus],
        "driver": {"version": driver.driver_version, "problem": driver.problem or None},
        "memory": [],
        "offload": dict.fromkeys(_OFFLOAD),
        "throughput": {
            **dict.fromkeys(_THROUGHPUT),
            "state": status.state,
            "busy_slots": len(busy) if busy is not None else None,
            "slots": len(status.slots) if status.slots is not None else None,
            "context_used_tokens": max(used, default=None),
            "context_size_tokens": sized.context_size_tokens if sized else None,
        },
        "totals": dict.fromkeys(_TOTALS),
    }


def _print(status: ServerStatus, driver: DriverReading) -> None:
    mark = "●" if status.up else "○"
    output.emit(f"{mark} {status.profile or status.base_url or 'no server'}  {status.state}")
    for name, value in (
        ("address", status.base_url and f"{status.base_url}{'  ' + status.exposed if status.exposed else ''}"),
        ("model", status.model_path),
        ("engine", " ".join(filter(None, (status.engine_path, status.engine_version)))),
        ("pid", status.pid and f"{status.pid}  since {status.started_at}"),
        ("slots", _slots(status)),
        ("doing", status.operation),
        ("note", status.message),
    ):
        if value:
            output.emit(f"  {name:8} {value}")
    for gpu in driver.gpus:
        used = f"{units.memory(gpu.vram_used_bytes)} of {units.memory(gpu.vram_total_bytes)}"
        output.emit(f"  {'gpu ' + str(gpu.index):8} {gpu.name or units.UNKNOWN}  VRAM {used}")
    if driver.problem:
        output.emit(f"  {'gpu':8} {units.UNKNOWN}  {driver.problem}")


def _slots(status: ServerStatus) -> str:
    if not status.slots:
        return ""
    busy = sum(s.busy for s in status.slots)
    return f"{busy} of {len(status.slots)} busy"
