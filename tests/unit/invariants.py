"""What holds of every Snapshot: sums sum up, an unknown has its reason, a number agrees with its kin."""

from __future__ import annotations

from typing import Any

from gpubox.telemetry.snapshot import DeviceMemory, Snapshot
from gpubox.views.status import status_values


def broken(snapshot: Snapshot) -> list[str]:
    """The rules that a snapshot breaks, each in a sentence; empty where all is well."""
    values = status_values(snapshot)
    return [
        *(message for device in snapshot.memory if (message := _split(device))),
        *_unknowns(values),
        *_speeds(snapshot),
        *_requests(snapshot),
        *_slots(snapshot),
    ]


def _split(device: DeviceMemory) -> str:
    if device.total_bytes is None or device.free_bytes is None:
        return ""
    rest = (device.other_processes_bytes, device.unaccounted_bytes, device.free_bytes)
    total = sum(size for _, size in device.parts) + sum(part or 0 for part in rest)
    return "" if total == device.total_bytes else f"{device.device}: {total} of {device.total_bytes} bytes"


def _unknowns(values: dict[str, Any]) -> list[str]:
    """Each ``null`` of a section has a reason, and nothing else has."""
    reported, nulls = values["unknown"], set()

    def walk(value: Any, path: str) -> None:
        if value is None:
            nulls.add(path)
        elif isinstance(value, dict):
            for key, item in value.items():
                walk(item, f"{path}.{key}" if path else key)
        elif isinstance(value, list | tuple):
            for at, item in enumerate(value):
                walk(item, f"{path}.{at}")

    for section in ("gpus", "memory", "offload", "throughput", "slots", "totals"):
        walk(values[section], section)
    without = [f"{path} is null without a reason" for path in sorted(nulls) if not reported.get(path, "").strip()]
    more = [f"{path} has a reason to be unknown, and is known" for path in sorted(set(reported) - nulls)]
    if not values["offload"]["bottleneck_reason"]:
        without.append("the bottleneck has no reason")
    return without + more


def _speeds(snapshot: Snapshot) -> list[str]:
    now, result = snapshot.throughput, []
    if now.tg_peak is not None and now.tg_peak < max(now.tg_median or 0, now.tg_tokens_per_second or 0) - 1e-6:
        result.append("the peak is below the median, or below what is now")
    if (now.request_tg_peak or 0) < (now.request_tg_median or 0) - 1e-6:
        result.append("the peak of a request is below its median")
    slots = [s.tg_tokens_per_second for s in snapshot.slots if s.tg_tokens_per_second is not None]
    if snapshot.slots and now.tg_tokens_per_second is not None and abs(sum(slots) - now.tg_tokens_per_second) > 1e-6:
        result.append("tg now is not the sum of the slots")
    return result


def _requests(snapshot: Snapshot) -> list[str]:
    items = []
    for request in snapshot.requests:
        parts = (request.queue_seconds, request.slot_ttft_seconds)
        whole = sum(part or 0.0 for part in parts) if None not in parts else None
        if (whole is None) != (request.ttft_seconds is None) or abs((whole or 0) - (request.ttft_seconds or 0)) > 1e-6:
            items.append(f"request {request.number}: its TTFT is not the wait and the slot's time together")
        if request.prompt_tokens is not None and (request.cached_tokens or 0) > request.prompt_tokens:
            items.append(f"request {request.number}: more was reused than there is")
    total = snapshot.totals.requests
    if total is not None and snapshot.requests and snapshot.requests[0].number > total:
        items.append("there are more requests than in all")
    return items


def _slots(snapshot: Snapshot) -> list[str]:
    now, busy = snapshot.throughput, sum(slot.state != "idle" for slot in snapshot.slots)
    if snapshot.slots and (now.busy_slots, now.slots) != (busy, len(snapshot.slots)):
        return ["the slots are not those that are counted"]
    return []
