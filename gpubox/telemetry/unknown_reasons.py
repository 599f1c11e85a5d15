"""Why a reading is not known: a short reason for each ``null`` of a Snapshot. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from gpubox.telemetry.snapshot import DeviceMemory, SlotReading, Snapshot

NO_LOG = "the server's log is not known here"
NO_SLOTS = "/slots is off, not asked, or unreadable"
NO_METRICS = "/metrics is off, or the server does not answer"
NO_REQUEST = "no request has finished yet"
NO_SPEED = "no request of this session has generated enough for a speed"
_OF_REQUESTS = ("pp_tokens_per_second", "tg_median", "tg_peak", "request_tg_median", "request_tg_peak")
_OF_DRAFTS = ("draft_acceptance", "mean_accepted_length")
_OF_PREFILL = ("prefill_progress", "eta_seconds")
_OF_PARTS = ("kv_bytes", "recurrent_bytes", "compute_bytes", "draft_bytes", "weights_bytes")
_OF_EXPERTS = ("expert_layers_on_cpu", "expert_layers_total")
_OF_PACE = ("threads_busy", "major_faults_per_second", "read_bytes_per_second")


def unknown_reasons(snapshot: Snapshot, values: Mapping[str, Any]) -> dict[str, str]:
    """A reason for each ``None`` in ``values``, the snapshot's sections, by its path: ``memory.0.kv_bytes``."""
    return {".".join(map(str, path)): unknown_reason(snapshot, path) for path in _unknown(values)}


def unknown_reason(snapshot: Snapshot, path: Sequence[str | int]) -> str:
    """Why the reading at ``path`` is not known; never empty."""
    section, key = path[0], str(path[-1])
    if snapshot.other_server is not None and snapshot.other_server.not_reported and section != "gpus":
        return snapshot.other_server.not_reported
    at = path[1] if len(path) > 2 and isinstance(path[1], int) else None
    if section == "throughput":
        return _throughput(snapshot, key)
    if section == "offload":
        return _offload(snapshot, key)
    if section == "totals":
        return _totals(snapshot, key)
    if section == "memory" and at is not None:
        return _memory(snapshot.memory[at], snapshot, key)
    if section == "slots" and at is not None:
        return _slot(snapshot.slots[at], snapshot, key)
    return "the card is lost" if at is not None and snapshot.driver.gpus[at].lost else "the driver does not tell"


def _unknown(values: Any, path: tuple[str | int, ...] = ()) -> Iterator[tuple[str | int, ...]]:
    if values is None:
        yield path
    elif isinstance(values, Mapping):
        for key, value in values.items():
            yield from _unknown(value, (*path, key))
    elif isinstance(values, Sequence) and not isinstance(values, str):
        for at, value in enumerate(values):
            yield from _unknown(value, (*path, at))


def _nothing(snapshot: Snapshot) -> str:
    """Why there is nothing to read at all; empty where there is."""
    state = snapshot.throughput.state
    if state in ("loading", "stopping"):
        return f"the server is {state}"
    return (snapshot.server.message or "nothing runs") if state == "down" else ""


def _throughput(snapshot: Snapshot, key: str) -> str:
    now = snapshot.throughput
    if nothing := _nothing(snapshot):
        return nothing
    if key in ("busy_slots", "slots", "context_used_tokens", "context_size_tokens"):
        return NO_SLOTS if not snapshot.slots else "its slots do not tell"
    if key == "queued_requests":
        return f"whether requests wait, only /metrics tells; {NO_METRICS}"
    if key == "tg_tokens_per_second":
        working = now.state in ("answering", "thinking")
        return "a speed is measured between two looks: `--watch` takes them" if working else "nothing is generated now"
    if key in _OF_PREFILL:
        return "no prompt is being read" if now.state != "prefill" else "the log has not told how long the prompt is"
    if key == "effective_tokens_per_second":
        return NO_SPEED if snapshot.server.profile else NO_LOG
    if not snapshot.server.profile:
        return NO_LOG
    if key in _OF_DRAFTS:
        return "no request has drafted tokens"
    if not snapshot.requests:
        return NO_REQUEST
    if key in _OF_REQUESTS:
        return "the last request tells no speed" if key.startswith("pp") else NO_SPEED
    if key in ("ttft_seconds", "slot_ttft_seconds") and snapshot.requests[0].slot_ttft_seconds is None:
        return "the last request generated nothing"
    return "the log does not tell when the last request arrived"


def _offload(snapshot: Snapshot, key: str) -> str:
    if key == "bottleneck":
        return snapshot.offload.bottleneck_reason or "no reading"
    if nothing := _nothing(snapshot):
        return nothing
    if not snapshot.server.profile:
        return NO_LOG
    if key in _OF_PACE:
        hidden = key.startswith("read") and snapshot.process and snapshot.process.read_bytes is None
        return "the kernel hides it" if hidden else "a pace is measured between two readings of the process"
    if key in _OF_EXPERTS:
        return "the model has no experts, or a pattern (override-tensor) decides"
    if key == "pinned_bytes":
        return "the log tells of no memory that the driver pinned"
    return "the log does not tell"


def _totals(snapshot: Snapshot, key: str) -> str:
    if key == "requests":
        return snapshot.totals.requests_reason or _nothing(snapshot) or NO_LOG
    told = snapshot.totals.generated_tokens is not None or snapshot.totals.prompt_tokens is not None
    return _nothing(snapshot) or ("the server keeps no such counter" if told else NO_METRICS)


def _memory(device: DeviceMemory, snapshot: Snapshot, key: str) -> str:
    if key in _OF_PARTS:
        used = any(getattr(device, part) is not None for part in _OF_PARTS)
        return "there is none on this device" if used else "the server is not on this device, as far as its log tells"
    if key == "gpu_index":
        return "it is no card of this machine's driver"
    if device.kind == "host":
        if key == "on_disk_bytes":
            return "the server's process cannot be read"
        if key == "growth_bytes":
            return "growth is told of cards only: what the server took in RAM since its load is in unaccounted"
        return "the server's process cannot be read" if snapshot.host else "the kernel does not tell"
    if key == "on_disk_bytes":
        return "only RAM has mapped weights"
    if device.gpu_index is None:
        return "the driver of this device is not here" if device.kind == "rpc" else "no driver tells of this card"
    if key == "growth_bytes":
        return "what the server held after its load, or holds now, is not known"
    return "the driver does not tell"


def _slot(slot: SlotReading, snapshot: Snapshot, key: str) -> str:
    if slot.state == "idle":
        return "the slot is idle" if not key.startswith("context") else "the slot does not tell"
    if key in (*_OF_PREFILL, "pp_tokens_per_second"):
        if slot.state != "prefill":
            return "its prompt is read"
        return "its prompt's length, or a first step of it, is not known yet"
    if key == "tg_tokens_per_second":
        return "it reads its prompt" if slot.state == "prefill" else "a speed is measured between two looks"
    return "the log does not tell" if snapshot.server.profile else NO_LOG
