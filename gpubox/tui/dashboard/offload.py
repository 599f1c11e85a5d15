"""What the CPU carries: layers, RAM, threads, the PCIe link, and the part that the others wait for."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpubox import units
from gpubox.tui.memory_view import amount, used_bytes
from gpubox.tui.styled_lines import QUIET, StyledLine, fit_by_priority, sanitize_to_width, styled_line, wrap_parts

if TYPE_CHECKING:
    from gpubox.hardware.gpu import Gpu
    from gpubox.telemetry.snapshot import DeviceMemory, Snapshot

LABEL = 11
GB = 1_000_000_000
MANY_FAULTS = 50
MIB = 1024**2


def title(snapshot: Snapshot) -> str:
    """``CPU offload 10.7 GiB``: what of the server is in RAM."""
    size = host_bytes(snapshot)
    return f"CPU offload {units.memory(size)}" if size else "CPU offload"


def lines(snapshot: Snapshot, width: int) -> list[StyledLine]:
    """The labelled lines."""
    room = width - LABEL
    rows = [
        ("layers", fit_by_priority([(9, _layers(snapshot)), (8, _experts(snapshot))], room)),
        ("RAM", _ram(snapshot)),
        ("weights", _weights(snapshot)),
        *(("beside" if not at else "", row) for at, row in enumerate(wrap_parts(_beside(snapshot), room))),
        ("threads", fit_by_priority([(9, _threads(snapshot)), (8, _faults(snapshot)), (7, _disk(snapshot))], room)),
        ("PCIe", fit_by_priority(_pcie(snapshot), room)),
        ("bottleneck", _limit(snapshot)),
    ]
    return [styled_line((name.ljust(LABEL), QUIET)) + (row or styled_line((units.UNKNOWN, QUIET))) for name, row in rows
            if row or name not in ("weights", "PCIe")]  # fmt: skip


def host_of(snapshot: Snapshot) -> DeviceMemory | None:
    """The part of the server that is in RAM."""
    return next((device for device in snapshot.memory if device.kind == "host"), None)


def host_bytes(snapshot: Snapshot) -> int:
    """How much of the server is in RAM: what its log tells of, less what is on disk now."""
    host = host_of(snapshot)
    return sum(size for _, size in host.parts) if host else 0


def _used(snapshot: Snapshot) -> tuple[int, int] | None:
    """RAM in use and in all: as in the split where there is one, mapped weights and all."""
    host, reading = host_of(snapshot), snapshot.host
    if host and (used := used_bytes(host)) is not None and host.total_bytes is not None:
        return used, host.total_bytes
    return (reading.ram_total_bytes - reading.ram_available_bytes, reading.ram_total_bytes) if reading else None


def small(snapshot: Snapshot, width: int) -> StyledLine:
    """All of it in one line."""
    offload, used = snapshot.offload, _used(snapshot)
    ram = amount(*used).replace(" of ", "/") if used else ""
    parts: list[tuple[int, StyledLine]] = [
        (9, _pair("layers", offload.layers_on_gpu, offload.layers_total)),
        (8, _pair("experts", offload.expert_layers_on_cpu, offload.expert_layers_total)),
        (6, styled_line(("RAM ", QUIET), ram) if ram else ()),
        (5, _pair("threads", _rounded(offload.threads_busy), offload.threads_asked)),
        (10, styled_line((offload.bottleneck or "", "bold $accent"))),
    ]
    return fit_by_priority(parts, width)


def _pair(word: str, part: float | None, whole: float | None) -> StyledLine:
    if part is None and whole is None:
        return ()
    return styled_line((f"{word} ", QUIET), f"{units.UNKNOWN if part is None else part}", f"/{whole}" if whole else "")


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 1)


def _layers(snapshot: Snapshot) -> StyledLine:
    offload = snapshot.offload
    if offload.layers_on_gpu is None and offload.layers_total is None:
        return ()
    count = units.UNKNOWN if offload.layers_on_gpu is None else str(offload.layers_on_gpu)
    total = units.UNKNOWN if offload.layers_total is None else str(offload.layers_total)
    return styled_line(f"{count} of {total}", (" on GPU", QUIET))


def _experts(snapshot: Snapshot) -> StyledLine:
    offload = snapshot.offload
    if offload.expert_layers_on_cpu is None:
        return ()
    total = f" of {offload.expert_layers_total}" if offload.expert_layers_total else ""
    return styled_line(("experts ", QUIET), f"{offload.expert_layers_on_cpu}{total}", (" on CPU", QUIET))


def _ram(snapshot: Snapshot) -> StyledLine:
    used, host = _used(snapshot), snapshot.host
    if used is None:
        return ()
    swap = f"  swap {units.memory(host.swap_used_bytes)}" if host and host.swap_used_bytes > 512 * MIB else ""
    return styled_line(amount(*used), (" of all programs", QUIET), (swap, QUIET))


def _weights(snapshot: Snapshot) -> StyledLine:
    """The model's weights in RAM; of mapped ones only what is resident costs RAM."""
    host, process = host_of(snapshot), snapshot.process
    if host is None or not host.weights_bytes:
        return ()
    sign = "~" if host.estimated else ""
    if host.on_disk_bytes is None or not process:
        how = ""
    elif host.on_disk_bytes >= host.weights_bytes * 0.02:
        how = f"{units.memory(max(0, host.weights_bytes - host.on_disk_bytes))} resident, the rest on disk"
    else:
        how = "mapped, resident" if process.file_bytes > host.weights_bytes / 2 else "resident"
    return styled_line(f"{sign}{units.memory(host.weights_bytes)}", (f" {how}", QUIET))


def _beside(snapshot: Snapshot) -> list[StyledLine]:
    """What the server keeps in RAM beside the model."""
    offload = snapshot.offload
    found: list[StyledLine] = []
    if offload.prompt_cache_bytes is not None:
        limit = offload.prompt_cache_limit_bytes
        size = amount(offload.prompt_cache_bytes, limit) if limit else units.memory(offload.prompt_cache_bytes)
        found.append(styled_line(("prompt cache ", QUIET), size))
    if offload.checkpoints_bytes:
        found.append(styled_line(("checkpoints ", QUIET), units.memory(offload.checkpoints_bytes)))
    if offload.pinned_bytes:
        found.append(styled_line(("pinned ", QUIET), units.memory(offload.pinned_bytes)))
    return found


def _threads(snapshot: Snapshot) -> StyledLine:
    offload = snapshot.offload
    if offload.threads_busy is None and offload.threads_asked is None:
        return ()
    busy = units.UNKNOWN if offload.threads_busy is None else f"{offload.threads_busy:.1f}"
    asked = f" of {offload.threads_asked}" if offload.threads_asked is not None else ""
    return styled_line(f"{busy}{asked}", (" busy", QUIET))


def _faults(snapshot: Snapshot) -> StyledLine:
    faults = snapshot.offload.major_faults_per_second
    if faults is None:
        return ()
    style = "bold $warning" if faults >= MANY_FAULTS else ""
    return styled_line(("faults ", QUIET), (f"{faults:.0f}/s", style))


def _disk(snapshot: Snapshot) -> StyledLine:
    reads = snapshot.offload.read_bytes_per_second
    return styled_line(("disk ", QUIET), f"{units.file_size(reads)}/s") if reads and reads >= 1e6 else ()


def _pcie(snapshot: Snapshot) -> list[tuple[int, StyledLine]]:
    """Traffic of the busiest card against what its link carries."""
    cards: list[Gpu] = [gpu for gpu in snapshot.driver.gpus if gpu.pcie_rx_bytes_per_second is not None]
    if not cards:
        return []
    gpu = max(cards, key=lambda card: (card.pcie_rx_bytes_per_second or 0) + (card.pcie_tx_bytes_per_second or 0))
    link = gpu.pcie_link_bytes_per_second
    shape = f"gen {gpu.pcie_generation} ×{gpu.pcie_width}" if gpu.pcie_generation and gpu.pcie_width else ""
    many = len(snapshot.driver.gpus) > 1
    return [
        (9, styled_line(("↓ ", QUIET), _speed(gpu.pcie_rx_bytes_per_second))),
        (8, styled_line(("↑ ", QUIET), _speed(gpu.pcie_tx_bytes_per_second))),
        (7, styled_line(("of ", QUIET), f"{link / GB:.0f} GB/s") if link else ()),
        (6, styled_line((f"{shape}{f', GPU {gpu.index}' if many else ''}", QUIET))),
    ]


def _speed(value: float | None) -> str:
    return units.UNKNOWN if value is None else f"{value / GB:.1f} GB/s"


def _limit(snapshot: Snapshot) -> StyledLine:
    """The bottleneck in a word, and what says so."""
    offload = snapshot.offload
    reason = sanitize_to_width(offload.bottleneck_reason, 120)
    if offload.bottleneck is None:
        return styled_line((units.UNKNOWN, QUIET), (f"  {reason}" if reason else "", QUIET))
    style = "bold $warning" if offload.bottleneck in ("paging", "PCIe") else "bold $accent"
    return styled_line((offload.bottleneck, style), (f"   {reason}" if reason else "", QUIET))
