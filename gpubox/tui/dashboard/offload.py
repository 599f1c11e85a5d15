"""The CPU offload pane: layers and experts on the CPU, RAM, threads, page faults, PCIe traffic and the bottleneck."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpubox import units
from gpubox.tui.dashboard.vram import used_bytes
from gpubox.tui.styled_lines import (
    QUIET,
    StyledLine,
    fact,
    fit_by_priority,
    labelled_line,
    part_of_total,
    sanitize_to_width,
    styled_line,
    wrap_parts,
)
from gpubox.tui.widgets.lines import SnapshotPane

if TYPE_CHECKING:
    from gpubox.telemetry.snapshot import Snapshot

LABEL_CELLS = 11
MANY_FAULTS_PER_SECOND = 50


class OffloadPane(SnapshotPane):
    """Draws labelled lines; in compact mode a single one."""

    def title(self, snapshot: Snapshot) -> str:
        size = sum(size for _, size in snapshot.host_memory.parts) if snapshot.host_memory else 0
        return f"CPU offload {units.memory(size)}" if size else "CPU offload"

    def lines(self, snapshot: Snapshot, width: int, height: int) -> list[StyledLine]:
        if self.compact:
            return [_compact_line(snapshot, width)]
        width -= LABEL_CELLS
        now, ram, host = snapshot.offload, _ram(snapshot), snapshot.host
        layers = _counts("", now.layers_on_gpu, now.layers_total, " of ", " on GPU", always_total=True)
        experts: StyledLine = ()
        if now.expert_layers_on_cpu is not None:
            experts = _counts("experts ", now.expert_layers_on_cpu, now.expert_layers_total, " of ", " on CPU")
        swap = units.memory(host.swap_used_bytes) if host and host.swap_used_bytes > 512 * units.MIB else ""
        of_all = styled_line((" of all programs", QUIET), (f"  swap {swap}" if swap else "", QUIET))
        faults, reads = now.major_faults_per_second, now.read_bytes_per_second
        fault_style = "bold $warning" if faults and faults >= MANY_FAULTS_PER_SECOND else ""
        threads = [
            (9, _counts("", _tenths(now.threads_busy), now.threads_asked, " of ", " busy")),
            (8, fact("faults ", None if faults is None else f"{faults:.0f}/s", style=fault_style)),
            (7, fact("disk ", f"{units.file_size(reads)}/s" if reads and reads >= 1e6 else None)),
        ]
        rows = [
            ("layers", fit_by_priority([(9, layers), (8, experts)], width)),
            ("RAM", (*styled_line(part_of_total(*ram)), *of_all) if ram else ()),
            ("weights", _weights(snapshot)),
            *(("" if index else "buffers", row) for index, row in enumerate(wrap_parts(_buffers(snapshot), width))),
            ("threads", fit_by_priority(threads, width)),
            ("PCIe", fit_by_priority(_pcie(snapshot), width)),
            ("bottleneck", _bottleneck(snapshot)),
        ]
        return [
            labelled_line(label, row, LABEL_CELLS) for label, row in rows if row or label not in ("weights", "PCIe")
        ]


def _compact_line(snapshot: Snapshot, width: int) -> StyledLine:
    now, ram = snapshot.offload, _ram(snapshot)
    parts = [
        (9, _counts("layers ", now.layers_on_gpu, now.layers_total)),
        (8, _counts("experts ", now.expert_layers_on_cpu, now.expert_layers_total)),
        (6, fact("RAM ", part_of_total(*ram).replace(" of ", "/") if ram else None)),
        (5, _counts("threads ", _tenths(now.threads_busy), now.threads_asked)),
        (10, fact("", now.bottleneck, style="bold $accent")),
    ]
    return fit_by_priority(parts, width)


def _counts(
    label: str, part: object, total: object, between: str = "/", unit: str = "", *, always_total: bool = False
) -> StyledLine:
    """``label part/total unit``; empty if both are unknown."""
    if part is None and total is None:
        return ()
    shown = f"{between}{total or units.UNKNOWN}" if total or always_total else ""
    return styled_line((label, QUIET), f"{units.UNKNOWN if part is None else part}{shown}", (unit, QUIET))


def _tenths(value: float | None) -> str | None:
    return None if value is None else f"{value:.1f}"


def _ram(snapshot: Snapshot) -> tuple[int, int] | None:
    """Used and total RAM. Counts mapped weights as used if the memory breakdown is known."""
    memory, host = snapshot.host_memory, snapshot.host
    if memory and (used := used_bytes(memory)) is not None and memory.total_bytes is not None:
        return used, memory.total_bytes
    return (host.ram_total_bytes - host.ram_available_bytes, host.ram_total_bytes) if host else None


def _weights(snapshot: Snapshot) -> StyledLine:
    """The model's weights in RAM. Mapped weights cost RAM only where they are resident."""
    host, process = snapshot.host_memory, snapshot.process
    if host is None or not host.weights_bytes:
        return ()
    residence = ""
    if host.on_disk_bytes is not None and process:
        residence = "mapped, resident" if process.file_bytes > host.weights_bytes / 2 else "resident"
        if host.on_disk_bytes >= host.weights_bytes * 0.02:
            residence = f"{units.memory(max(0, host.weights_bytes - host.on_disk_bytes))} resident, the rest on disk"
    return styled_line(f"{'~' if host.estimated else ''}{units.memory(host.weights_bytes)}", (f" {residence}", QUIET))


def _buffers(snapshot: Snapshot) -> list[StyledLine]:
    """What else the server keeps in RAM: prompt cache, context checkpoints, pinned host buffers."""
    now = snapshot.offload
    cache, limit = now.prompt_cache_bytes, now.prompt_cache_limit_bytes
    parts = [
        ("prompt cache ", None if cache is None else part_of_total(cache, limit) if limit else units.memory(cache)),
        ("checkpoints ", units.memory(now.checkpoints_bytes) if now.checkpoints_bytes else None),
        ("pinned ", units.memory(now.pinned_bytes) if now.pinned_bytes else None),
    ]
    return [fact(label, text) for label, text in parts]


def _pcie(snapshot: Snapshot) -> list[tuple[int, StyledLine]]:
    """Traffic of the busiest card, and the capacity of its link."""
    gpus = [gpu for gpu in snapshot.driver.gpus if gpu.pcie_rx_bytes_per_second is not None]
    if not gpus:
        return []
    gpu = max(gpus, key=lambda gpu: (gpu.pcie_rx_bytes_per_second or 0) + (gpu.pcie_tx_bytes_per_second or 0))
    link = f"gen {gpu.pcie_generation} ×{gpu.pcie_width}" if gpu.pcie_generation and gpu.pcie_width else ""
    index = f", GPU {gpu.index}" if len(snapshot.driver.gpus) > 1 else ""
    capacity = gpu.pcie_link_bytes_per_second
    return [
        (9, fact("↓ ", _traffic(gpu.pcie_rx_bytes_per_second))),
        (8, fact("↑ ", _traffic(gpu.pcie_tx_bytes_per_second))),
        (7, fact("of ", f"{capacity / 1e9:.0f} GB/s" if capacity else None)),
        (6, styled_line((f"{link}{index}", QUIET))),
    ]


def _traffic(bytes_per_second: float | None) -> str:
    return units.UNKNOWN if bytes_per_second is None else f"{bytes_per_second / 1e9:.1f} GB/s"


def _bottleneck(snapshot: Snapshot) -> StyledLine:
    """The bottleneck in one word, and the evidence for it."""
    name, reason = snapshot.offload.bottleneck, sanitize_to_width(snapshot.offload.bottleneck_reason, 120)
    style = "bold $warning" if name in ("paging", "PCIe") else "bold $accent"
    text = (name, style) if name else (units.UNKNOWN, QUIET)
    return styled_line(text, (f"   {reason}" if name and reason else f"  {reason}" if reason else "", QUIET))
