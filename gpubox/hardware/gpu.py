"""The readings of a card as values, the same for every manufacturer."""

from __future__ import annotations

import re
from dataclasses import dataclass

LOST_HELP = "reboot, or look in `dmesg` for Xid"


@dataclass(frozen=True, slots=True)
class GpuProcess:
    """One process on one card. ``vram_bytes`` is ``None`` under WSL2 and in most containers."""

    pid: int
    name: str | None
    vram_bytes: int | None


@dataclass(frozen=True, slots=True)
class Gpu:
    """One card now. ``None``: the driver does not report it."""

    index: int
    name: str | None = None
    vram_total_bytes: int | None = None
    vram_used_bytes: int | None = None
    """All that is not free: allocations, and what the driver reserves."""
    utilization_percent: int | None = None
    temperature_celsius: int | None = None
    power_watts: float | None = None
    power_limit_watts: float | None = None
    pcie_rx_bytes_per_second: int | None = None
    """Into the card."""
    pcie_tx_bytes_per_second: int | None = None
    """Out of the card."""
    processes: tuple[GpuProcess, ...] = ()
    uuid: str | None = None
    bus_id: str | None = None
    """``00000000:01:00.0``: PCI domain, bus, device, function."""
    memory_utilization_percent: int | None = None
    """Share of the time in which memory was read or written. It does not say how full the memory is."""
    clock_sm_mhz: int | None = None
    clock_memory_mhz: int | None = None
    fan_percent: int | None = None
    throttle_reasons: tuple[str, ...] | None = None
    """Why the clocks are reduced; empty if they are not."""
    pcie_generation: int | None = None
    """Of the link now; an idle card drops to 1."""
    pcie_width: int | None = None
    pcie_max_generation: int | None = None
    """The maximum of card and PCIe slot together."""
    pcie_max_width: int | None = None
    pcie_link_bytes_per_second: int | None = None
    """The most that the link can carry now, in each direction."""
    temperature_limit_celsius: int | None = None
    """The temperature at which the card begins to reduce its clocks."""
    shared_total_bytes: int | None = None
    """The part of ``vram_total_bytes`` that is the host's RAM (GTT of a GPU in the processor); None: all is its own."""
    shared_used_bytes: int | None = None
    vram_reserved_bytes: int | None = None
    """Reserved by driver and firmware; part of ``vram_used_bytes``."""
    driver: str = "nvidia"
    """nvidia | amdgpu | i915 | xe"""
    processes_known: bool = True
    """Whether the driver lists the processes of this card; if not, ``processes`` is empty."""
    compute_capability: str | None = None
    """What CUDA programs are compiled for: ``8.9``."""
    lost: bool = False
    """The card does not answer any more; the other fields are its last readings."""
    lost_at: str | None = None
    """ISO-8601 UTC."""


@dataclass(frozen=True, slots=True)
class DriverReading:
    """All cards at one time, or the reason why there are none."""

    gpus: tuple[Gpu, ...]
    driver_version: str | None = None
    problem: str = ""
    stale_seconds: float | None = None
    """The age of these readings while the driver does not answer; ``None`` while it does."""


def pci_address(text: str | None) -> tuple[int, ...] | None:
    """The same numbers for ``00000000:01:00.0`` of NVML, ``0000:01:00.0`` of sysfs and llama.cpp, and ``01:00``."""
    match = re.fullmatch(r"(?:([0-9a-f]{1,8}):)?([0-9a-f]{1,2}):([0-9a-f]{1,2})(?:\.([0-9a-f]))?", (text or "").lower())
    return tuple(int(part or "0", 16) for part in match.groups()) if match else None


def scaled(value: float | None, divisor: float) -> float | None:
    """``value`` in a unit that is ``divisor`` times larger; an unknown value stays unknown."""
    return None if value is None else value / divisor
