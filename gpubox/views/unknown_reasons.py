"""Why a reading is unknown: a short reason for each ``null`` of a Snapshot. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from gpubox.telemetry.snapshot import DeviceMemory, SlotReading, Snapshot

NO_LOG = "gpubox does not have the server's log"
NO_SLOTS = "/slots is off, not polled, or unreadable"
NO_METRICS = "/metrics is off, or the server does not answer"
NO_DRIVER = "the driver does not report it"
NOT_LOGGED = "the log does not show it"
NO_REQUEST = "no request has finished yet"
NO_SPEED = "no request of this session has generated enough tokens for a speed"
_REQUEST_KEYS = ("pp_tokens_per_second", "tg_median", "tg_peak", "request_tg_median", "request_tg_peak")
_DRAFT_KEYS = ("draft_acceptance", "mean_accepted_length")
_PREFILL_KEYS = ("prefill_progress", "eta_seconds")
_PART_KEYS = ("kv_bytes", "recurrent_bytes", "compute_bytes", "draft_bytes", "weights_bytes")
_EXPERT_KEYS = ("expert_layers_on_cpu", "expert_layers_total")
_RATE_KEYS = ("threads_busy", "major_faults_per_second", "read_bytes_per_second")


def unknown_reasons(snapshot: Snapshot, values: Mapping[str, Any]) -> dict[str, str]:
    """A reason for each ``None`` in ``values``, the snapshot's sections, by its path: ``memory.0.kv_bytes``."""
    return {".".join(map(str, path)): unknown_reason(snapshot, path) for path in _unknown(values)}


def unknown_reason(snapshot: Snapshot, path: Sequence[str | int]) -> str:
    """Why the reading at ``path`` is unknown; never empty."""
    section, key = path[0], str(path[-1])
    if snapshot.other_server is not None and snapshot.other_server.not_reported and section != "gpus":
        return snapshot.other_server.not_reported
    index = path[1] if len(path) > 2 and isinstance(path[1], int) else None
    if section == "throughput":
        return _throughput(snapshot, key)
    if section == "offload":
        return _offload(snapshot, key)
    if section == "totals":
        return _totals(snapshot, key)
    if section == "memory" and index is not None:
        return _memory(snapshot.memory[index], snapshot, key)
    if section == "slots" and index is not None:
        return _slot(snapshot.slots[index], snapshot, key)
    return "the card is lost" if index is not None and snapshot.driver.gpus[index].lost else NO_DRIVER


def _unknown(values: Any, path: tuple[str | int, ...] = ()) -> Iterator[tuple[str | int, ...]]:
    if values is None:
        yield path
    elif isinstance(values, Mapping):
        for key, value in values.items():
            yield from _unknown(value, (*path, key))
    elif isinstance(values, Sequence) and not isinstance(values, str):
        for index, value in enumerate(values):
            yield from _unknown(value, (*path, index))


def _not_running(snapshot: Snapshot) -> str:
    """Why nothing can be read at all; empty if something can."""
    state = snapshot.throughput.state
    if state in ("loading", "stopping", "sleeping"):
        return f"the server is {state}"
    return (snapshot.server.message or "nothing runs") if state == "down" else ""


def _throughput(snapshot: Snapshot, key: str) -> str:
    now = snapshot.throughput
    if reason := _not_running(snapshot):
        return reason
    if key in ("busy_slots", "slots", "context_used_tokens", "context_size_tokens"):
        return NO_SLOTS if not snapshot.slots else "the slots do not report it"
    if key == "queued_requests":
        return f"only /metrics reports waiting requests; {NO_METRICS}"
    if key == "tg_tokens_per_second":
        return "a speed needs two readings: use `--watch`" if now.state == "answering" else "no slot is generating now"
    if key in _PREFILL_KEYS:
        return "no prompt is being read" if now.state != "prefill" else "the log does not show the prompt's length yet"
    if key == "effective_tokens_per_second":
        return NO_SPEED if snapshot.server.profile else NO_LOG
    if not snapshot.server.profile:
        return NO_LOG
    if key in _DRAFT_KEYS:
        return "no request has drafted tokens"
    if not snapshot.requests:
        return NO_REQUEST
    if key in _REQUEST_KEYS:
        return "the last request has no speed" if key.startswith("pp") else NO_SPEED
    if key in ("ttft_seconds", "slot_ttft_seconds") and snapshot.requests[0].slot_ttft_seconds is None:
        return "the last request generated nothing"
    return "the log does not show when the last request arrived"


def _offload(snapshot: Snapshot, key: str) -> str:
    if key == "bottleneck":
        return snapshot.offload.bottleneck_reason or "no reading"
    if reason := _not_running(snapshot):
        return reason
    if not snapshot.server.profile:
        return NO_LOG
    if key in _RATE_KEYS:
        hidden = key.startswith("read") and snapshot.process and snapshot.process.read_bytes is None
        return "the kernel does not let gpubox read it" if hidden else "a rate needs two readings of the process"
    if key in _EXPERT_KEYS:
        return "the model has no experts, or override-tensor places them by a pattern"
    if key == "pinned_bytes":
        return "the log shows no memory that the driver pinned"
    return NOT_LOGGED


def _totals(snapshot: Snapshot, key: str) -> str:
    if key == "requests":
        return snapshot.totals.requests_reason or _not_running(snapshot) or NO_LOG
    has_counters = snapshot.totals.generated_tokens is not None or snapshot.totals.prompt_tokens is not None
    return _not_running(snapshot) or ("the server has no such counter" if has_counters else NO_METRICS)


def _memory(device: DeviceMemory, snapshot: Snapshot, key: str) -> str:
    if key in _PART_KEYS:
        used = any(getattr(device, part) is not None for part in _PART_KEYS)
        return "the log shows none on this device" if used else "the log shows no memory of the server on this device"
    if key == "gpu_index":
        return "it is not a card of this machine's driver"
    if device.kind == "host":
        if key == "on_disk_bytes":
            return "the server's process cannot be read"
        if key == "growth_bytes":
            return "growth is known for cards only: RAM that the server took since its load is in unaccounted_bytes"
        return "the server's process cannot be read" if snapshot.host else "the kernel does not report it"
    if key == "on_disk_bytes":
        return "only RAM has mapped weights"
    if device.gpu_index is None:
        return (
            "the driver of this device is on another machine" if device.kind == "rpc" else "no driver reports this card"
        )
    if key == "growth_bytes":
        return "the server's memory after its load, or now, is unknown"
    return NO_DRIVER


def _slot(slot: SlotReading, snapshot: Snapshot, key: str) -> str:
    if slot.state == "idle":
        return "the slot is idle" if not key.startswith("context") else "the slot does not report it"
    if key in (*_PREFILL_KEYS, "pp_tokens_per_second"):
        if slot.state != "prefill":
            return "the slot has already processed its prompt"
        return "the prompt's length or progress is not known yet"
    if key == "tg_tokens_per_second":
        return "the slot is still processing its prompt" if slot.state == "prefill" else "a speed needs two readings"
    return NOT_LOGGED if snapshot.server.profile else NO_LOG
