"""What runs now, in words and as JSON."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from gpubox import units
from gpubox.clock import unix_time
from gpubox.server.other_server import LM_STUDIO, OLLAMA, OtherServerModel
from gpubox.server.status import ServerStatus
from gpubox.telemetry.snapshot import DeviceMemory, Snapshot, Throughput
from gpubox.views.fields import json_fields, json_value
from gpubox.views.marks import STATE_WORDS
from gpubox.views.requests import context_words, rest_words
from gpubox.views.rows import Table
from gpubox.views.unknown_reasons import unknown_reasons

_PARTS = {"kv": "KV"}


def status_values(snapshot: Snapshot) -> dict[str, Any]:
    """The documented JSON object without its version. ``unknown`` has the reason of each ``null``, by its path."""
    status = snapshot.server
    engine = {"path": status.engine_path, "version": status.engine_version}
    left_out = ("instance", "engine_path", "engine_version", "has_api_key", "slots")
    sections: dict[str, Any] = {
        "gpus": json_value(snapshot.driver.gpus),
        "memory": [_device_values(device) for device in snapshot.memory],
        "offload": json_fields(snapshot.offload),
        "throughput": json_fields(snapshot.throughput),
        "slots": json_value(snapshot.slots),
        "totals": json_fields(snapshot.totals, without=("requests_reason",)),
    }
    other = snapshot.other_server
    return {
        "time": snapshot.time,
        "server": {**json_fields(status, without=left_out), "engine": engine if any(engine.values()) else None},
        "driver": {"version": snapshot.driver.driver_version, "problem": snapshot.driver.problem or None},
        **sections,
        "unknown": unknown_reasons(snapshot, sections),
        # its counters are in totals, under llama-server's names
        "other_server": json_fields(other, without=("counters",)) if other else None,
        "problems": list(snapshot.problems),
    }


def _device_values(device: DeviceMemory) -> dict[str, Any]:
    others = [{"name": name, "vram_bytes": size} for name, size in device.other_processes]
    return {**json_fields(device), "other_processes": others}


def status_head(snapshot: Snapshot) -> str:
    """What runs, and what it does."""
    status, through = snapshot.server, snapshot.throughput
    name = through.state if status.up or through.state == "stuck" else status.state
    return (
        f"{'●' if status.up else '○'} {status.profile or status.base_url or 'no server'}  {STATE_WORDS.get(name, name)}"
    )


def status_lines(snapshot: Snapshot) -> Iterator[tuple[str, str]]:
    """A label and a text for everything that is known of what runs."""
    from gpubox.engines.capabilities import engine_label

    status, other = snapshot.server, snapshot.other_server
    engine = engine_label(status.engine_path, status.engine_version or "")
    lines = (
        ("address", "  ".join(filter(None, (status.base_url, status.exposed)))),
        ("model", status.model_path),
        ("engine", "  ".join(filter(None, (engine, status.engine_path)))),
        ("pid", status.pid and f"{status.pid}{_since(snapshot)}"),
        ("slots", _slots(snapshot.throughput)),
        ("speed", _speed(snapshot.throughput)),
        ("context", _context(snapshot.throughput)),
        ("slowed by", _bottleneck(snapshot)),
        ("doing", status.operation),
        ("note", "" if other and status.message == other.summary else status.message),
    )
    yield from ((label, text) for label, text in lines if text)
    yield from _other_server_lines(snapshot)
    for device in snapshot.memory:
        yield "memory", _device_text(device)
    if snapshot.driver.problem:
        yield "gpu", f"{units.UNKNOWN}  {snapshot.driver.problem}"
    yield from (("problem", problem) for problem in snapshot.problems)


def _since(snapshot: Snapshot) -> str:
    now, began = unix_time(snapshot.time), unix_time(started := snapshot.server.started_at)
    if not started or now is None or began is None:
        return ""
    form = "%H:%M" if units.local_time(started, "%x") == units.local_time(snapshot.time, "%x") else "%Y-%m-%d %H:%M"
    return f"  since {units.local_time(started, form)}, {units.rough_duration(max(0.0, now - began))}"


def _slots(through: Throughput) -> str:
    if not through.slots:
        return ""
    waiting = f", {through.queued_requests} waiting" if through.queued_requests else ""
    return f"{through.busy_slots} of {through.slots} busy{waiting}"


def _speed(through: Throughput) -> str:
    speeds = (
        ("writing now", through.tg_tokens_per_second),
        ("usual", through.tg_median),
        ("reading" if through.state == "prefill" else "last prompt", through.pp_tokens_per_second),
        ("with waiting", through.effective_tokens_per_second if through.busy_slots else None),
        ("each request", through.request_tg_median if (through.slots or 0) > 1 else None),
    )
    parts = [f"{label} {units.rate(value)} tok/s" for label, value in speeds if value is not None]
    if through.draft_acceptance is not None:
        parts.append(f"draft {through.draft_acceptance:.1%}")
    return "   ".join(parts)


def _context(through: Throughput) -> str:
    return context_words(through.context_used_tokens, through.context_size_tokens, through.slots)


def _bottleneck(snapshot: Snapshot) -> str:
    offload = snapshot.offload
    return f"{offload.bottleneck}  ({offload.bottleneck_reason})" if offload.bottleneck else ""


def _device_text(device: DeviceMemory) -> str:
    rest = (("other programs", device.other_processes_bytes), (rest_words(device), device.unaccounted_bytes))
    named = [f"{_PARTS.get(name, name)} {units.memory(size)}" for name, size in (*device.parts, *rest) if size]
    used = device.total_bytes - device.free_bytes if device.total_bytes and device.free_bytes is not None else None
    total = f"  {units.memory(used)} of {units.memory(device.total_bytes)}" if device.total_bytes else ""
    name = "RAM" if device.kind == "host" else device.device
    return f"{name}{total}  {'~' if device.estimated else ''}{'  '.join(named)}".rstrip()


def _other_server_lines(snapshot: Snapshot) -> Iterator[tuple[str, str]]:
    """The lines about a server that is not llama-server."""
    server, totals = snapshot.other_server, snapshot.totals
    if server is None:
        return
    loaded = [model for model in server.models if model.loaded]
    yield from (("loaded", _model(model)) for model in loaded)
    if not loaded and server.dialect in (OLLAMA, LM_STUDIO):
        yield "loaded", "none"
    if others := len(server.models) - len(loaded):
        yield "has", f"{others} more model{'s' * (others != 1)}"
    if server.running_requests is not None:
        yield "requests", f"{server.running_requests} running, {units.tokens(server.waiting_requests)} waiting"
    if totals.generated_tokens is not None:
        counts = (totals.prompt_tokens, totals.cached_tokens, totals.generated_tokens)
        processed, cached, generated = (units.UNKNOWN if count is None else f"{count:,}" for count in counts)
        yield "tokens", f"{processed} processed, {cached} cached, {generated} generated"
    if server.kv_cache_used is not None:
        yield "kv cache", f"{server.kv_cache_used:.0%} used"


def _model(model: OtherServerModel) -> str:
    until = units.local_time(model.expires_at, "%Y-%m-%d %H:%M") if model.expires_at else ""
    return f"{model.description}  until {until}" if until else model.description


def servers_values(servers: list[ServerStatus]) -> dict[str, Any]:
    """All running servers and their slots, as JSON."""
    return {"servers": [json_fields(server, without=("has_api_key",)) for server in servers]}


def servers_table(servers: list[ServerStatus]) -> Table:
    """A row for each slot of each running server."""
    rows: list[tuple[str, ...]] = []
    for server in servers:
        head = (server.profile or units.UNKNOWN, str(server.pid), server.base_url or units.UNKNOWN, server.state)
        rows += [] if server.slots else [(*head, *[units.UNKNOWN] * 3)]
        for slot in server.slots or ():
            context = context_words(slot.context_used_tokens, slot.context_size_tokens)
            doing = f"{slot.index} {'busy' if slot.busy else 'idle'}"
            rows.append(
                (*head, doing, context or units.UNKNOWN, units.tokens(slot.generated_tokens if slot.busy else None))
            )
            head = ("", "", "", "")
    header = ("PROFILE", "PID", "ADDRESS", "STATE", "SLOT", "CONTEXT", "THIS ANSWER")
    return Table(rows, header, empty="Nothing is running.")
