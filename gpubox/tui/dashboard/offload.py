"""The CPU offload pane: layers and experts on the CPU, RAM, threads, disk reads, PCIe traffic and the bottleneck."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpubox import units
from gpubox.sanitize import sanitize_line
from gpubox.tui.dashboard.vram import used_bytes
from gpubox.tui.styled_lines import (
    QUIET,
    StyledLine,
    fact,
    figure,
    fit_by_priority,
    labelled_line,
    part_of_total,
    styled_line,
    wrap_parts,
    wrap_text,
)
from gpubox.tui.widgets.lines import SnapshotPane

if TYPE_CHECKING:
    from gpubox.telemetry.snapshot import Snapshot

LABEL_CELLS = 11


class OffloadPane(SnapshotPane):
    """Draws labelled lines; in compact mode a single one."""

    def title(self, snapshot: Snapshot) -> str:
        size = sum(size for _, size in snapshot.host_memory.parts) if snapshot.host_memory else 0
        name = "CPU offload" if snapshot.driver.gpus or snapshot.offload.layers_on_gpu else "CPU"
        return f"{name} {units.memory(size)}" if size else name

    def lines(self, snapshot: Snapshot, width: int, height: int) -> list[StyledLine]:
        if self.compact:
            return [_compact_line(snapshot, width)]
        width -= LABEL_CELLS
        now = snapshot.offload
        layers = _counts("", now.layers_on_gpu, now.layers_total, " of ", " on GPU", always_total=True)
        threads = _counts("", _tenths(now.threads_busy), now.threads_asked, " of ", " busy")
        rows: list[tuple[str, list[StyledLine]]] = [
            ("layers", wrap_parts([figure("layers", layers), _experts(snapshot, " of ")], width)),
            ("RAM", wrap_parts([figure("RAM", part) for part in _ram_parts(snapshot)], width)),
            ("weights", wrap_parts([figure("model file in RAM", _weights(snapshot)), _rest(snapshot)], width)),
            ("besides", wrap_parts(_buffers(snapshot), width)),
            ("threads", wrap_parts([figure("threads", threads), *_disk_reads(snapshot)], width)),
            ("PCIe", wrap_parts([figure("PCIe", fit_by_priority(_pcie(snapshot), width))], width)),
            ("slowed by", _slowed_by(snapshot, width)),
        ]
        return [
            labelled_line("" if at else label, line, LABEL_CELLS)
            for label, lines in rows
            for at, line in enumerate(lines or ([()] if label not in ("weights", "PCIe") else []))
        ]


def _compact_line(snapshot: Snapshot, width: int) -> StyledLine:
    """One line; what does not fit falls away as a whole, the reason before the name of the bottleneck."""
    now, ram = snapshot.offload, _ram(snapshot)
    amount = part_of_total(*ram).replace(" of ", "/") if ram else None
    said = f"threads {_tenths(now.threads_busy)} of {now.threads_asked}"  # beside it
    tells = now.bottleneck and now.bottleneck_reason != said
    reason = styled_line((sanitize_line(now.bottleneck_reason), QUIET)) if tells else ()
    parts = [
        (9, figure("layers", _counts("on GPU ", now.layers_on_gpu, now.layers_total, unit=" layers"))),
        (8, _experts(snapshot, "/")),
        (6, figure("RAM", fact("RAM ", amount))),
        (5, figure("threads", _counts("threads ", _tenths(now.threads_busy), now.threads_asked))),
        (10, figure("slowed by", fact("slowed by: ", now.bottleneck, style="bold $accent"))),
        (7, figure("slowed by", reason)),
    ]
    return fit_by_priority(parts, width)


def _experts(snapshot: Snapshot, between: str) -> StyledLine:
    now = snapshot.offload
    if now.expert_layers_on_cpu is None:
        return ()
    counts = _counts("experts on CPU ", now.expert_layers_on_cpu, now.expert_layers_total, between)
    return figure("experts on CPU", counts)


def _disk_reads(snapshot: Snapshot) -> list[StyledLine]:
    now = snapshot.offload
    faults, reads = now.major_faults_per_second, now.read_bytes_per_second
    style = "bold $warning" if now.bottleneck == "paging" else ""
    count = fact("disk reads of the model ", None if faults is None else f"{faults:.0f}/s", style=style)
    return [
        figure("disk reads", count),
        figure("disk reads", fact("disk ", f"{units.file_size(reads)}/s" if reads and reads >= 1e6 else None)),
    ]


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


def _ram_parts(snapshot: Snapshot) -> list[StyledLine]:
    ram, host = _ram(snapshot), snapshot.host
    if ram is None:
        return []
    swap = units.memory(host.swap_used_bytes) if host and host.swap_used_bytes > 512 * units.MIB else None
    return [fact("", part_of_total(*ram), " of all programs"), fact("swap ", swap)]


def _weights(snapshot: Snapshot) -> StyledLine:
    """The model's weights in RAM. A mapped file costs RAM only where it is resident."""
    host, process = snapshot.host_memory, snapshot.process
    if host is None or not host.weights_bytes:
        return ()
    residence = ""
    if host.on_disk_bytes is not None and process:
        residence = "model file in RAM" if process.file_bytes > host.weights_bytes / 2 else "in RAM"
        if host.on_disk_bytes >= host.weights_bytes * 0.02:
            residence = f"{units.memory(max(0, host.weights_bytes - host.on_disk_bytes))} in RAM, the rest on disk"
    return styled_line(f"{'~' if host.estimated else ''}{units.memory(host.weights_bytes)}", (f" {residence}", QUIET))


def _rest(snapshot: Snapshot) -> StyledLine:
    """What the title counts beside the weights."""
    host = snapshot.host_memory
    size = sum(size for _, size in host.parts) - (host.weights_bytes or 0) if host else 0
    return fact("KV, buffers ", units.memory(size) if size else None)


def _buffers(snapshot: Snapshot) -> list[StyledLine]:
    """What the server keeps in RAM beside the model: saved prompts, context checkpoints, pinned host buffers."""
    now = snapshot.offload
    cache, limit = now.prompt_cache_bytes, now.prompt_cache_limit_bytes
    parts = [
        ("saved prompts ", None if cache is None else part_of_total(cache, limit) if limit else units.memory(cache)),
        ("checkpoints ", units.memory(now.checkpoints_bytes) if now.checkpoints_bytes else None),
        ("pinned RAM ", units.memory(now.pinned_bytes) if now.pinned_bytes else None),
    ]
    return [figure(label.strip(), fact(label, text)) for label, text in parts]


def _pcie(snapshot: Snapshot) -> list[tuple[int, StyledLine]]:
    """Traffic of the busiest card, and the capacity of its link; nothing if the CPU has the whole model."""
    gpus = [gpu for gpu in snapshot.driver.gpus if gpu.pcie_rx_bytes_per_second is not None and not gpu.lost]
    on_cpu_only = any(device.parts for device in snapshot.memory) and not any(
        device.parts for device in snapshot.memory if device.kind == "gpu"
    )
    if not gpus or on_cpu_only:
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


def _slowed_by(snapshot: Snapshot, width: int) -> list[StyledLine]:
    """The bottleneck, and the whole evidence for it."""
    name, reason = snapshot.offload.bottleneck, snapshot.offload.bottleneck_reason
    style = "bold $warning" if name in ("paging", "PCIe") else "bold $accent" if name else QUIET
    head = styled_line((name or units.UNKNOWN, style))
    return [figure("slowed by", line) for line in wrap_text(reason, width, QUIET, head)]
