"""What a card and its driver say, as values: the same for every make of card."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class GpuProcess:
    """One process on one card. ``vram_bytes`` is ``None`` under WSL2 and in most containers."""

    pid: int
    name: str | None
    vram_bytes: int | None


@dataclass(frozen=True, slots=True)
class Gpu:
    """One card as the driver describes it now; ``None`` where it does not say."""

    index: int
    name: str | None
    vram_total_bytes: int | None
    vram_used_bytes: int | None
    """What is not free: allocations, and what the driver keeps for itself."""
    utilization_percent: int | None
    temperature_celsius: int | None
    power_watts: float | None
    power_limit_watts: float | None
    pcie_rx_bytes_per_second: int | None
    """Into the card."""
    pcie_tx_bytes_per_second: int | None
    """Out of the card."""
    processes: tuple[GpuProcess, ...] = field(default=())
    uuid: str | None = None
    bus_id: str | None = None
    """``00000000:01:00.0``: PCI domain, bus, device, function."""
    memory_utilization_percent: int | None = None
    """Share of the time in which memory was read or written; not how full it is."""
    clock_sm_mhz: int | None = None
    clock_memory_mhz: int | None = None
    fan_percent: int | None = None
    throttle_reasons: tuple[str, ...] | None = None
    """Why the clocks are below what they could be, in words; empty when nothing holds them back."""
    pcie_generation: int | None = None
    """Of the link now: a card at rest drops to 1."""
    pcie_width: int | None = None
    pcie_max_generation: int | None = None
    """What card and slot can do together."""
    pcie_max_width: int | None = None
    pcie_link_bytes_per_second: int | None = None
    """What the link carries at most now, each way at the same time."""
    temperature_limit_celsius: int | None = None
    """Where the card begins to slow itself down."""
    vram_reserved_bytes: int | None = None
    """Kept by driver and firmware; part of ``vram_used_bytes``."""
    driver: str = "nvidia"
    """nvidia | amdgpu | i915 | xe"""
    processes_known: bool = True
    """Whether the driver lists the processes of this card; else ``processes`` is empty for want of knowledge."""
    lost: bool = False
    """The card does not answer any more: all else are its last readings."""
    lost_at: str | None = None
    """Since when, ISO-8601 UTC."""


@dataclass(frozen=True, slots=True)
class DriverReading:
    """All cards at one instant, or the reason why there are none."""

    gpus: tuple[Gpu, ...]
    driver_version: str | None = None
    problem: str = ""
    stale_seconds: float | None = None
    """The age of these values while the driver does not answer; ``None`` while it does."""


def unknown_gpu(index: int) -> Gpu:
    """A card of which nothing is known yet."""
    return Gpu(index, None, None, None, None, None, None, None, None, None)
