"""``gpubox status``."""

from __future__ import annotations

import asyncio
import contextlib
import time
from dataclasses import asdict
from datetime import datetime
from typing import Any

from gpubox import units
from gpubox.cli import output
from gpubox.cli.context import Context, server_url
from gpubox.errors import ExitCode
from gpubox.hardware.nvml import read_driver
from gpubox.paths import MAIN_INSTANCE
from gpubox.server import watcher
from gpubox.server.instance import instance_names, observe, running_servers
from gpubox.server.other_server import LM_STUDIO, OLLAMA, OtherServerModel, OtherServerReading
from gpubox.telemetry.sampler import Sampler
from gpubox.telemetry.snapshot import DeviceMemory, Snapshot, Throughput
from gpubox.telemetry.unknown_reasons import unknown_reasons

_CODES = {"stopped": 3, "crashed": 3, "unreachable": 3, "error": 4, "loading": 0, "stopping": 0}


def __getattr__(name: str) -> Any:
    """Makes ``command`` when click asks for it. A polled `gpubox status` never imports click (``cli.entry``)."""
    if name != "command":
        raise AttributeError(name)
    import click

    from gpubox.cli.options import PlainHelpOption, url_option

    @click.command("status")
    @click.option("--json", "as_json", is_flag=True, help="Print one JSON object; with --watch one in each line.")
    @click.option(
        "--watch", type=click.FloatRange(min=0.1), metavar="S", cls=PlainHelpOption, help="Print again every S seconds."
    )
    @url_option
    @click.pass_obj
    def command(context: Context, as_json: bool, watch: float | None, url: str | None) -> int:
        """Show what runs now.

        Exits 3 if nothing runs, 4 if the server does not answer.
        """
        return show_status(context, as_json, watch, url)

    return command


def show_status(context: Context, as_json: bool, watch: float | None = None, url: str | None = None) -> int:
    """Prints what runs now, every ``watch`` seconds if given. Returns the exit code. Raises GpuboxError."""
    url = server_url(url)
    if watch is not None:
        asyncio.run(_watch(context, url, watch, as_json))
        return ExitCode.OK
    snapshot = asyncio.run(_sample_once(context, url))
    server = snapshot.server
    if not url and (server.pid or server.message) and not server.operation:  # the watcher may have been killed
        watcher.ensure_watcher(context.paths, MAIN_INSTANCE, observe(context.paths, MAIN_INSTANCE).watched)
    _show(snapshot, as_json, one_line=False)
    if not url and not as_json:
        others = (name for name in instance_names(context.paths) if name != MAIN_INSTANCE)
        for running in running_servers(context.paths, *others):
            output.emit(f"  beside   {running.launch.profile} at {running.launch.base_url}")
    if snapshot.throughput.state == "stuck" or (snapshot.server.pid and snapshot.server.state == "unreachable"):
        return ExitCode.UNHEALTHY
    return _CODES.get(snapshot.server.state, ExitCode.OK)


async def _sample_once(context: Context, url: str | None) -> Snapshot:
    reading = read_driver()
    async with Sampler(context.paths, context.config, lambda: reading, url=url) as sampler:
        return await sampler.sample(wait=True)


async def _watch(context: Context, url: str | None, period: float, as_json: bool) -> None:
    """Samples at the screen's interval and prints every ``period`` seconds, until the reader closes the pipe.

    What it samples goes into the history too.
    """
    from gpubox.gateway.ledger_clients import history_writer
    from gpubox.hardware.nvml_reader import DriverReader

    with contextlib.ExitStack() as stack:
        driver = stack.enter_context(DriverReader())
        history = history_writer(context.paths) if url is None else None
        if history:
            stack.callback(history.close)
            history.start()
        async with Sampler(context.paths, context.config, driver.latest, url=url) as sampler:
            due = time.monotonic()
            while True:
                snapshot = await sampler.sample()
                if history:
                    history.push(snapshot)
                if time.monotonic() >= due:
                    _show(snapshot, as_json, one_line=True)
                    due = max(due + period, time.monotonic())
                await asyncio.sleep(min(0.25, period))


def _show(snapshot: Snapshot, as_json: bool, *, one_line: bool) -> None:
    if as_json:
        output.emit_json(status_values(snapshot), one_line=one_line)
    else:
        _print(snapshot)


def status_values(snapshot: Snapshot) -> dict[str, Any]:
    """The documented JSON object without its version. ``unknown`` has the reason of each ``null``, by its path."""
    status, through = snapshot.server, snapshot.throughput
    engine = {"path": status.engine_path, "version": status.engine_version}
    sections: dict[str, Any] = {
        "gpus": [asdict(gpu) for gpu in snapshot.driver.gpus],
        "memory": [_device(device) for device in snapshot.memory],
        "offload": {**asdict(snapshot.offload), "bottleneck_reason": snapshot.offload.bottleneck_reason or None},
        "throughput": asdict(through),
        "slots": [asdict(slot) for slot in snapshot.slots],
        "totals": {name: value for name, value in asdict(snapshot.totals).items() if name != "requests_reason"},
    }
    return {
        "time": snapshot.time,
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
        "driver": {"version": snapshot.driver.driver_version, "problem": snapshot.driver.problem or None},
        **sections,
        "unknown": unknown_reasons(snapshot, sections),
        "other_server": _other_server_values(snapshot.other_server) if snapshot.other_server else None,
        "problems": list(snapshot.problems),
    }


def _other_server_values(other_server: OtherServerReading) -> dict[str, Any]:
    """Without the counters, which are in ``totals`` under llama-server's names."""
    values = asdict(other_server)
    del values["counters"]
    return values


def _device(device: DeviceMemory) -> dict[str, Any]:
    values = asdict(device)
    values["other_processes"] = [{"name": name, "vram_bytes": size} for name, size in device.other_processes]
    return values


def _print(snapshot: Snapshot) -> None:
    from gpubox.engines.capabilities import display_version

    status, through = snapshot.server, snapshot.throughput
    mark = "●" if status.up else "○"
    state = through.state if status.up or through.state == "stuck" else status.state
    output.emit(f"{mark} {status.profile or status.base_url or 'no server'}  {state}")
    for name, value in (
        ("address", status.base_url and f"{status.base_url}{'  ' + status.exposed if status.exposed else ''}"),
        ("model", status.model_path),
        ("engine", " ".join(filter(None, (status.engine_path, display_version(status.engine_version or ""))))),
        ("pid", status.pid and f"{status.pid}  since {status.started_at}"),
        ("slots", _slots(through)),
        ("speed", _speed(snapshot)),
        ("context", _context(snapshot)),
        ("limit", _bottleneck(snapshot)),
        ("doing", status.operation),
        ("note", "" if snapshot.other_server and status.message == snapshot.other_server.summary else status.message),
    ):
        if value:
            output.emit(f"  {name:8} {value}")
    for label, text in _other_server_lines(snapshot):
        output.emit(f"  {label:8} {text}")
    for device in snapshot.memory:
        output.emit(f"  {_device_line(device)}")
    if snapshot.driver.problem:
        output.emit(f"  {'gpu':8} {units.UNKNOWN}  {snapshot.driver.problem}")
    for problem in snapshot.problems:
        output.emit(f"  {'missing':8} {problem}")


def _slots(through: Throughput) -> str:
    if not through.slots:
        return ""
    waiting = f", {through.queued_requests} waiting" if through.queued_requests else ""
    return f"{through.busy_slots} of {through.slots} busy{waiting}"


def _other_server_lines(snapshot: Snapshot) -> list[tuple[str, str]]:
    """The lines about a server that is not llama-server."""
    server, totals = snapshot.other_server, snapshot.totals
    if server is None:
        return []
    lines = [("loaded", _model(model)) for model in server.models if model.loaded]
    if not lines and server.dialect in (OLLAMA, LM_STUDIO):
        lines = [("loaded", "none")]
    if others := sum(not model.loaded for model in server.models):
        lines.append(("has", f"{others} more model{'s' * (others != 1)}"))
    if server.running_requests is not None:
        waiting = units.tokens(server.waiting_requests)
        lines.append(("requests", f"{server.running_requests} running, {waiting} waiting"))
    if totals.generated_tokens is not None:
        counts = (totals.prompt_tokens, totals.cached_tokens, totals.generated_tokens)
        processed, cached, generated = (units.UNKNOWN if count is None else f"{count:,}" for count in counts)
        lines.append(("tokens", f"{processed} processed, {cached} cached, {generated} generated"))
    if server.kv_cache_used is not None:
        lines.append(("kv cache", f"{server.kv_cache_used:.0%} used"))
    return lines


def _model(model: OtherServerModel) -> str:
    return model.description + (f"  until {_local_time(model.expires_at)}" if model.expires_at else "")


def _local_time(iso: str) -> str:
    try:
        at = datetime.fromisoformat(iso).astimezone()
    except (ValueError, OverflowError):
        return iso[:40]
    return f"{at:%H:%M}" if at.date() == datetime.now().astimezone().date() else f"{at:%Y-%m-%d %H:%M}"


def _speed(snapshot: Snapshot) -> str:
    through = snapshot.throughput
    parts = [
        f"{label} {units.rate(value)} tok/s"
        for label, value in (
            ("tg now", through.tg_tokens_per_second),
            ("tg median", through.tg_median),
            ("pp", through.pp_tokens_per_second),
            ("effective", through.effective_tokens_per_second),
            ("a request", through.request_tg_median),
        )
        if value is not None
    ]
    if through.draft_acceptance is not None:
        parts.append(f"acceptance {through.draft_acceptance:.1%}")
    return "   ".join(parts)


def _bottleneck(snapshot: Snapshot) -> str:
    offload = snapshot.offload
    return f"{offload.bottleneck}  ({offload.bottleneck_reason})" if offload.bottleneck else ""


def _context(snapshot: Snapshot) -> str:
    through = snapshot.throughput
    if through.context_size_tokens is None:
        return ""
    of_slot = " in the fullest slot" if (through.slots or 0) > 1 else ""
    return f"{units.tokens(through.context_used_tokens)} of {units.tokens(through.context_size_tokens)}{of_slot}"


def _device_line(device: DeviceMemory) -> str:
    named = [f"{name} {units.memory(size)}" for name, size in device.parts]
    for name, size in (("other", device.other_processes_bytes), ("unaccounted", device.unaccounted_bytes)):
        if size:
            named.append(f"{name} {units.memory(size)}")
    used = device.total_bytes - device.free_bytes if device.total_bytes and device.free_bytes is not None else None
    total = f"  {units.memory(used)} of {units.memory(device.total_bytes)}" if device.total_bytes else ""
    estimate = "~" if device.estimated else ""
    return f"{'memory':8} {device.device}{total}  {estimate}{'  '.join(named)}".rstrip()
