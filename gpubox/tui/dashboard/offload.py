"""The CPU offload pane: layers and experts on the CPU, RAM, threads, page faults, PCIe traffic and the bottleneck."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpubox import units
from gpubox.tui.dashboard.vram import used_bytes
from gpubox.tui.styled_lines import (
    QUIET,
    StyledLine,
    fit_by_priority,
    labelled_line,
    part_of_total,
    sanitize_to_width,
    styled_line,
    wrap_parts,
)
from gpubox.tui.widgets.lines import SnapshotPane

if TYPE_CHECKING:
    from gpubox.telemetry.snapshot import DeviceMemory, Snapshot

LABEL_CELLS = 11
GB = 1_000_000_000
MANY_FAULTS_PER_SECOND = 50


class OffloadPane(SnapshotPane):
    """Draws labelled lines; in compact mode a single one."""

    def title(self, snapshot: Snapshot) -> str:
        host = _host_memory(snapshot)
        size = sum(size for _, size in host.parts) if host else 0
        return f"CPU offload {units.memory(size)}" if size else "CPU offload"

    def lines(self, snapshot: Snapshot, width: int, height: int) -> list[StyledLine]:
        return [_compact_line(snapshot, width)] if self.compact else _offload_lines(snapshot, width)


def _offload_lines(snapshot: Snapshot, width: int) -> list[StyledLine]:
    width -= LABEL_CELLS
    rows = [
        ("layers", fit_by_priority([(9, _layers(snapshot)), (8, _experts(snapshot))], width)),
        ("RAM", _ram(snapshot)),
        ("weights", _weights(snapshot)),
        *(("" if index else "buffers", row) for index, row in enumerate(wrap_parts(_buffers(snapshot), width))),
        ("threads", fit_by_priority([(9, _threads(snapshot)), (8, _faults(snapshot)), (7, _disk(snapshot))], width)),
        ("PCIe", fit_by_priority(_pcie(snapshot), width)),
        ("bottleneck", _bottleneck(snapshot)),
    ]
    return [labelled_line(label, row, LABEL_CELLS) for label, row in rows if row or label not in ("weights", "PCIe")]


def _compact_line(snapshot: Snapshot, width: int) -> StyledLine:
    offload, ram = snapshot.offload, _ram_bytes(snapshot)
    threads_busy = None if offload.threads_busy is None else round(offload.threads_busy, 1)
    parts: list[tuple[int, StyledLine]] = [
        (9, _count_of("layers", offload.layers_on_gpu, offload.layers_total)),
        (8, _count_of("experts", offload.expert_layers_on_cpu, offload.expert_layers_total)),
        (6, styled_line(("RAM ", QUIET), part_of_total(*ram).replace(" of ", "/")) if ram else ()),
        (5, _count_of("threads", threads_busy, offload.threads_asked)),
        (10, styled_line((offload.bottleneck or "", "bold $accent"))),
    ]
    return fit_by_priority(parts, width)


def _count_of(label: str, part: float | None, total: float | None) -> StyledLine:
    if part is None and total is None:
        return ()
    return styled_line((f"{label} ", QUIET), units.UNKNOWN if part is None else f"{part}", f"/{total}" if total else "")


def _host_memory(snapshot: Snapshot) -> DeviceMemory | None:
    """The part of the server that is in RAM."""
    return next((device for device in snapshot.memory if device.kind == "host"), None)


def _ram_bytes(snapshot: Snapshot) -> tuple[int, int] | None:
    """Used and total RAM. Counts mapped weights as used if the memory breakdown is known."""
    memory, host = _host_memory(snapshot), snapshot.host
    if memory and (used := used_bytes(memory)) is not None and memory.total_bytes is not None:
        return used, memory.total_bytes
    return (host.ram_total_bytes - host.ram_available_bytes, host.ram_total_bytes) if host else None


def _layers(snapshot: Snapshot) -> StyledLine:
    on_gpu, total = snapshot.offload.layers_on_gpu, snapshot.offload.layers_total
    if on_gpu is None and total is None:
        return ()
    counts = [units.UNKNOWN if count is None else str(count) for count in (on_gpu, total)]
    return styled_line(" of ".join(counts), (" on GPU", QUIET))


def _experts(snapshot: Snapshot) -> StyledLine:
    offload = snapshot.offload
    if offload.expert_layers_on_cpu is None:
        return ()
    total = f" of {offload.expert_layers_total}" if offload.expert_layers_total else ""
    return styled_line(("experts ", QUIET), f"{offload.expert_layers_on_cpu}{total}", (" on CPU", QUIET))


def _ram(snapshot: Snapshot) -> StyledLine:
    ram, host = _ram_bytes(snapshot), snapshot.host
    if ram is None:
        return ()
    swap = f"  swap {units.memory(host.swap_used_bytes)}" if host and host.swap_used_bytes > 512 * units.MIB else ""
    return styled_line(part_of_total(*ram), (" of all programs", QUIET), (swap, QUIET))


def _weights(snapshot: Snapshot) -> StyledLine:
    """The model's weights in RAM. Mapped weights cost RAM only where they are resident."""
    host, process = _host_memory(snapshot), snapshot.process
    if host is None or not host.weights_bytes:
        return ()
    if host.on_disk_bytes is None or not process:
        residence = ""
    elif host.on_disk_bytes >= host.weights_bytes * 0.02:
        resident = max(0, host.weights_bytes - host.on_disk_bytes)
        residence = f"{units.memory(resident)} resident, the rest on disk"
    else:
        residence = "mapped, resident" if process.file_bytes > host.weights_bytes / 2 else "resident"
    sign = "~" if host.estimated else ""
    return styled_line(f"{sign}{units.memory(host.weights_bytes)}", (f" {residence}", QUIET))


def _buffers(snapshot: Snapshot) -> list[StyledLine]:
    """What else the server keeps in RAM: prompt cache, context checkpoints, pinned host buffers."""
    offload = snapshot.offload
    parts: list[StyledLine] = []
    if offload.prompt_cache_bytes is not None:
        limit = offload.prompt_cache_limit_bytes
        used = offload.prompt_cache_bytes
        parts.append(styled_line(("prompt cache ", QUIET), part_of_total(used, limit) if limit else units.memory(used)))
    if offload.checkpoints_bytes:
        parts.append(styled_line(("checkpoints ", QUIET), units.memory(offload.checkpoints_bytes)))
    if offload.pinned_bytes:
        parts.append(styled_line(("pinned ", QUIET), units.memory(offload.pinned_bytes)))
    return parts


def _threads(snapshot: Snapshot) -> StyledLine:
    offload = snapshot.offload
    if offload.threads_busy is None and offload.threads_asked is None:
        return ()
    busy = units.UNKNOWN if offload.threads_busy is None else f"{offload.threads_busy:.1f}"
    total = f" of {offload.threads_asked}" if offload.threads_asked is not None else ""
    return styled_line(f"{busy}{total}", (" busy", QUIET))


def _faults(snapshot: Snapshot) -> StyledLine:
    faults = snapshot.offload.major_faults_per_second
    if faults is None:
        return ()
    style = "bold $warning" if faults >= MANY_FAULTS_PER_SECOND else ""
    return styled_line(("faults ", QUIET), (f"{faults:.0f}/s", style))


def _disk(snapshot: Snapshot) -> StyledLine:
    reads = snapshot.offload.read_bytes_per_second
    return styled_line(("disk ", QUIET), f"{units.file_size(reads)}/s") if reads and reads >= 1e6 else ()


def _pcie(snapshot: Snapshot) -> list[tuple[int, StyledLine]]:
    """Traffic of the busiest card, and the capacity of its link."""
    gpus = [gpu for gpu in snapshot.driver.gpus if gpu.pcie_rx_bytes_per_second is not None]
    if not gpus:
        return []
    gpu = max(gpus, key=lambda gpu: (gpu.pcie_rx_bytes_per_second or 0) + (gpu.pcie_tx_bytes_per_second or 0))
    capacity = gpu.pcie_link_bytes_per_second
    link = f"gen {gpu.pcie_generation} ×{gpu.pcie_width}" if gpu.pcie_generation and gpu.pcie_width else ""
    index = f", GPU {gpu.index}" if len(snapshot.driver.gpus) > 1 else ""
    return [
        (9, styled_line(("↓ ", QUIET), _traffic(gpu.pcie_rx_bytes_per_second))),
        (8, styled_line(("↑ ", QUIET), _traffic(gpu.pcie_tx_bytes_per_second))),
        (7, styled_line(("of ", QUIET), f"{capacity / GB:.0f} GB/s") if capacity else ()),
        (6, styled_line((f"{link}{index}", QUIET))),
    ]


def _traffic(bytes_per_second: float | None) -> str:
    return units.UNKNOWN if bytes_per_second is None else f"{bytes_per_second / GB:.1f} GB/s"


def _bottleneck(snapshot: Snapshot) -> StyledLine:
    """The bottleneck in one word, and the evidence for it."""
    offload = snapshot.offload
    reason = sanitize_to_width(offload.bottleneck_reason, 120)
    if offload.bottleneck is None:
        return styled_line((units.UNKNOWN, QUIET), (f"  {reason}" if reason else "", QUIET))
    style = "bold $warning" if offload.bottleneck in ("paging", "PCIe") else "bold $accent"
    return styled_line((offload.bottleneck, style), (f"   {reason}" if reason else "", QUIET))
