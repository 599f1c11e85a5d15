"""Does it fit? The one judgement of a memory plan and its one wording, for every verb, screen and service. Pure."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

from gpubox import units
from gpubox.planner.plan import DevicePlan, MemoryPlan

Fit = Literal["fits", "tight", "disk", "short", "unknown"]
"""short: a device has too little memory. disk: it starts, but reads weights from the disk for each token. tight: it
fits, but not with ``keep_free_bytes`` to spare, or the engine reduces it until it does."""
DISK_BYTES_PER_SECOND = 3_000_000_000
"""What an NVMe disk reads: for the estimate of what reading weights costs."""
_LEAST_READ_BYTES = units.MIB
"""Less for each token costs no time that anybody sees."""


@dataclass(frozen=True, slots=True)
class MemoryVerdict:
    """Whether a launch fits."""

    fit: Fit
    words: str
    """In a few words, without a full stop."""
    device: str | None = None
    """The device that decides."""
    spare_bytes: int | None = None
    """What stays free on that device; negative: what is missing there, or does not stay in the RAM."""
    read_bytes_per_token: int = 0
    """What is read from the disk for each token, about."""
    remarks: tuple[str, ...] = ()
    """What it rests on, and what would help apart from flags; a clause each."""


_REDUCES = {
    "context": "llama-server shortens the context",
    "layers": "llama-server moves layers into RAM, which is slower",
}
"""What the engine does to a plan that ``adapts``."""


def judge(plan: MemoryPlan) -> MemoryVerdict:
    """The verdict on a plan.

    It is short only if that is certain: without the compute buffers, if those are not measured.
    """
    verdict = _judge(plan)
    if assumed := next((device.unaccounted_bytes for device in plan.devices if device.driver_assumed), 0):
        remark = f"{units.memory(assumed)} assumed for the driver until this card has been seen"
        return replace(verdict, remarks=(*verdict.remarks, remark))
    return verdict


def _judge(plan: MemoryPlan) -> MemoryVerdict:
    device = _tightest(plan)
    if not plan.devices or plan.problem or device is None:
        return _unknown(plan)
    spare = _hard_spare(device) or 0
    least = [_hard_spare(each, with_compute=not plan.is_estimated) for each in plan.devices]
    if plan.doubts:
        return _unknown(plan, device)
    if any(left is not None and left < 0 for left in least):
        if _engine_makes_it_fit(plan, device):
            words = f"{units.memory(-spare)} too large for {device.device} alone: {_REDUCES[plan.adapts]}"
            return MemoryVerdict("tight", words, device.device, spare)
        return MemoryVerdict("short", f"short by {units.memory(-spare)} on {device.device}", device.device, spare)
    if None in least:
        return _unknown(plan, device)
    if (host := plan.devices[-1]).kind == "host" and _read_bytes(host) >= _LEAST_READ_BYTES:
        return _from_disk(plan, host)
    for each in plan.devices:
        if each.kind == "host" and (each.spare_bytes or 0) + each.mapped_bytes < 0:
            swapped = -(each.spare_bytes or 0) - each.mapped_bytes
            words = f"tight, {units.memory(swapped)} of {each.device} would be swapped out"
            return MemoryVerdict("tight", words, each.device, each.spare_bytes)
    tight = any((_hard_spare(each) or 0) < _reserve(plan, each) for each in plan.devices)
    about = "about " if plan.is_estimated else ""
    fit: Fit = "tight" if tight else "fits"
    spare = max(0, device.spare_bytes or 0) or spare  # for whom nothing needs to be dropped: as in the table
    return MemoryVerdict(fit, f"{fit}, {about}{units.memory(max(0, spare))} to spare", device.device, spare)


def _unknown(plan: MemoryPlan, device: DevicePlan | None = None) -> MemoryVerdict:
    why = plan.problem or "; ".join(plan.doubts or plan.notes)
    words = f"memory unknown: {why}" if why else "memory unknown"
    spare = _hard_spare(device) if device else None
    return MemoryVerdict("unknown", words, device.device if device else None, spare)


def _from_disk(plan: MemoryPlan, host: DevicePlan) -> MemoryVerdict:
    """It starts, and does not stay in the RAM."""
    read, missing = _read_bytes(host), -(host.spare_bytes or 0)
    rate = DISK_BYTES_PER_SECOND / read
    speed = f"{rate:.1f}" if rate < 10 else f"{rate:.0f}"
    words = f"reads ~{units.memory(read)} from the disk for each token: at most ~{speed} tok/s at 3 GB/s"
    weights = sum(device.weights_bytes for device in plan.devices)
    smaller = weights * max(0, host.mapped_bytes - missing) // host.mapped_bytes
    remarks = (
        f"with these flags a quant of at most {units.memory(smaller)} (this: {units.memory(weights)}) stays in memory",
        f"with no-mmap it would not start: {units.memory(missing)} too little RAM",
    )
    return MemoryVerdict("disk", words, host.device, host.spare_bytes, read, remarks)


def _read_bytes(host: DevicePlan) -> int:
    """What one token reads from the disk: of the mapped weights that it needs the share that does not stay in RAM."""
    missing = min(host.mapped_bytes, max(0, -(host.spare_bytes or 0)))
    return host.touched_bytes * missing // host.mapped_bytes if missing else 0


def _reserve(plan: MemoryPlan, device: DevicePlan) -> int:
    """What must stay free: more if the compute buffers are those of a similar structure only."""
    doubt = (device.compute_bytes // 2 if plan.is_estimated else 0) + device.unmeasured_bytes
    return doubt + (0 if device.kind == "host" else plan.keep_free_bytes)


def _engine_makes_it_fit(plan: MemoryPlan, tightest: DevicePlan) -> bool:
    """Whether the engine can reduce it until it fits. Layers only move to the host, which must have room."""
    if not plan.adapts or tightest.kind == "host":
        return False
    spares = [_hard_spare(device, with_compute=False) for device in plan.devices]
    room = sum(spare for spare in spares if spare is not None)
    moved = sum(device.weights_bytes for device in plan.devices if device.kind != "host")  # may be mapped there
    return plan.adapts == "context" or room + moved >= 0


def _tightest(plan: MemoryPlan) -> DevicePlan | None:
    """The device with the least to spare. The host only if it is short, or there is no card."""
    known = [device for device in plan.devices if device.spare_bytes is not None]
    cards = [device for device in known if device.kind != "host"]
    short = [device for device in known if (_hard_spare(device) or 0) < 0]
    return min(short or cards or known, key=lambda device: _hard_spare(device) or 0, default=None)


def _hard_spare(device: DevicePlan, *, with_compute: bool = True) -> int | None:
    """What is left if the kernel drops what it can read again from the disk, and swaps."""
    if (spare := device.spare_bytes) is None:
        return None
    computed = 0 if with_compute else device.compute_bytes + device.draft_compute_bytes
    return spare + device.mapped_bytes + device.elastic_bytes + computed
