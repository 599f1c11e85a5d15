"""The VRAM pane: one stacked bar per device, its legend, the card's readings and the KV cache in use.

The parts of a bar add up to what the driver reports as used; free memory fills the rest.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from gpubox import units
from gpubox.tui.styled_lines import (
    GAP,
    QUIET,
    StyledLine,
    block_bar,
    cell_width,
    dimmed,
    fact,
    figure,
    fit_by_priority,
    join_lines,
    part_of_total,
    sanitize_to_width,
    shorten,
    styled_line,
    wrap_parts,
    wrap_text,
)
from gpubox.tui.widgets.lines import SnapshotPane
from gpubox.views.requests import rest_words

if TYPE_CHECKING:
    from gpubox.hardware.gpu import Gpu
    from gpubox.telemetry.snapshot import DeviceMemory, Snapshot
    from gpubox.tui.remembered import LastSeen

LEGEND_CELLS = 22
"""Least width of one entry of the legend."""
COMPACT_DEVICES = 3

MEMORY_PART_STYLES = {
    "weights": ("weights", "$mem-weights", "█"),
    "kv": ("KV", "$mem-kv", "▓"),
    "recurrent": ("recurrent", "$mem-recurrent", "▚"),
    "compute": ("compute", "$mem-compute", "▒"),
    "draft": ("draft", "$mem-draft", "▞"),
    "growth": ("growth", "$mem-growth", "▲"),
    "other": ("other", "$mem-other", "▪"),
    "unaccounted": ("other", "$mem-unaccounted", "?"),
    "free": ("free", "$mem-free", "·"),
    "unread": ("not read", "$line", "·"),
}
"""Part of memory -> its label, its colour, and the glyph that replaces the colour on a terminal without colours."""
_FIGURES = {"kv": "conversations", "draft": "draft memory", "other": "other programs", "unaccounted": "the rest"}
"""Part of memory -> its figure, where that has another name."""
_COMPACT_PRIORITY = {
    "weights": 9, "free": 8, "kv": 7, "draft": 6, "growth": 5, "compute": 4, "other": 3, "unaccounted": 2,
}  # fmt: skip
"""Which parts stay in the one-line legend of a small terminal."""


@dataclass(frozen=True, slots=True)
class MemoryPart:
    """One part of a bar; ``kind`` is a key of MEMORY_PART_STYLES, ``size`` is in bytes."""

    kind: str
    label: str
    size: int
    estimated: bool = False


class VramPane(SnapshotPane):
    """Draws every device; in compact mode a bar per device and one legend for all."""

    def title(self, snapshot: Snapshot) -> str:
        """``VRAM 13.4 of 15.9 GiB``: all cards and RPC devices together."""
        devices = [device for device in snapshot.memory if device.kind != "host"]
        if not devices:
            host = snapshot.host_memory
            used, total = (used_bytes(host), host.total_bytes) if host else (None, None)
            return f"RAM {part_of_total(used, total)}" if used and total else "VRAM"
        used = sum(used_bytes(device) or 0 for device in devices)
        total = sum(device.total_bytes or 0 for device in devices)
        noun = "devices" if any(device.kind == "rpc" for device in devices) else "cards"
        count = f" on {len(devices)} {noun}" if len(devices) > 1 else ""
        return f"VRAM {part_of_total(used, total)}{count}" if total else "VRAM"

    def last_lines(self, last: LastSeen, width: int) -> list[StyledLine]:
        rows = []
        for name, used, total in last.memory:
            figures = f"{shorten(name, 12)}  {part_of_total(used, total)}  "
            bar = block_bar(used / total, max(4, width - len(figures))) if total else ""
            rows.append(styled_line((figures + bar, QUIET)))
        return rows

    def lines(self, snapshot: Snapshot, width: int, height: int) -> list[StyledLine]:
        make_lines = compact_vram_lines if self.compact else vram_lines
        return make_lines(snapshot, width, self.app.no_color)


def vram_lines(snapshot: Snapshot, width: int, no_color: bool) -> list[StyledLine]:
    """Every device with its bar and legend, then the context and KV cache in use."""
    devices = _shown_devices(snapshot)
    rows: list[StyledLine] = []
    for device in devices:
        rows += _device_lines(snapshot, device, width, len(devices) > 1, no_color)
    if not any(device.kind == "gpu" for device in snapshot.memory):
        rows += _no_gpu_lines(snapshot, width)
    rows += conversation_lines(snapshot, width)
    return rows or [styled_line(("not known yet", QUIET))]


def _device_lines(
    snapshot: Snapshot, device: DeviceMemory, width: int, several: bool, no_color: bool
) -> list[StyledLine]:
    gpu = _gpu_of(snapshot, device)
    rows = [_device_heading(device, bool(gpu and gpu.lost), width)] if several or device.kind == "rpc" else []
    if gpu and gpu.lost:
        from gpubox.hardware.gpu import LOST_HELP

        rows += [
            _lost_gpu_line(gpu),
            *wrap_text(f"{LOST_HELP[:1].upper()}{LOST_HELP[1:]}.", width),
            _last_readings_line(gpu),
        ]
    columns = max(1, (width + len(GAP)) // (LEGEND_CELLS + len(GAP)))
    cells = 0 if several else min(LEGEND_CELLS + 6, (width - len(GAP) * (columns - 1)) // columns)
    entries = [legend_entry(part, no_color=no_color, width=cells) for part in memory_parts(device)]
    legend = [join_lines(entries[at : at + columns]) for at in range(0, len(entries), columns)]
    body = [memory_bar(device, width, no_color=no_color), *(wrap_parts(entries, width) if several else legend)]
    if (device.unaccounted_bytes or 0) <= -units.MIB:
        # normal in RAM: the kernel allocates a page when it is first touched
        words = ("is in RAM yet", QUIET) if device.kind == "host" else ("the driver counts", "$warning")
        body += wrap_text(f"the log reports more than {words[0]}", width, words[1])
    if gpu and (gpu.lost or snapshot.driver.stale_seconds):
        body = [dimmed(row) for row in body]
    if gpu and not gpu.processes_known:
        body += wrap_text("the driver lists no processes: other programs are in desktop, driver", width, QUIET)
    return rows + body


def compact_vram_lines(snapshot: Snapshot, width: int, no_color: bool) -> list[StyledLine]:
    """A bar for each of the first COMPACT_DEVICES devices, and a one-line legend for all of them."""
    devices = _shown_devices(snapshot)
    if not devices:
        return _no_gpu_lines(snapshot, width) or [styled_line(("VRAM ", "bold"), (units.UNKNOWN, QUIET))]
    rows: list[StyledLine] = []
    for device in devices[:COMPACT_DEVICES]:
        gpu = _gpu_of(snapshot, device)
        if gpu and gpu.lost:
            rows.append(styled_line(*_lost_gpu_line(gpu), "   ", *_last_readings_line(gpu)))
            continue
        name = "VRAM" if len(devices) == 1 and device.kind == "gpu" else sanitize_to_width(device.device, 8)
        label = styled_line(
            (f"{'RAM' if device.kind == 'host' else name}  ", "bold"),
            f"{part_of_total(used_bytes(device), device.total_bytes)}  ",
        )
        rows.append(label + memory_bar(device, max(4, width - cell_width(label)), no_color=no_color))
    parts = _merged_by_kind([part for device in devices for part in memory_parts(device)])
    legend = fit_by_priority(
        [(_COMPACT_PRIORITY.get(part.kind, 1), legend_entry(part, no_color=no_color)) for part in parts], width, "  "
    )
    all_lost = all((gpu := _gpu_of(snapshot, device)) and gpu.lost for device in devices)
    return [*rows, dimmed(legend) if all_lost else legend]


def _shown_devices(snapshot: Snapshot) -> list[DeviceMemory]:
    """Cards and RPC devices; the host only if there are none."""
    return [device for device in snapshot.memory if device.kind != "host"] or list(snapshot.memory)


def memory_figures(snapshot: Snapshot) -> tuple[tuple[str, int, int], ...]:
    """(device, used bytes, all bytes) of each device whose memory is known."""
    devices = [(device, used_bytes(device), device.total_bytes) for device in _shown_devices(snapshot)]
    names = {"host": "RAM", "gpu": "VRAM" if len(devices) == 1 else ""}
    return tuple((names.get(d.kind) or d.device, used, total) for d, used, total in devices if used and total)


def _gpu_of(snapshot: Snapshot, device: DeviceMemory) -> Gpu | None:
    """The driver's reading of a device."""
    if device.gpu_index is None:
        return None
    return next((gpu for gpu in snapshot.driver.gpus if gpu.index == device.gpu_index), None)


def _device_heading(device: DeviceMemory, lost: bool, width: int) -> StyledLine:
    """A device's name and memory use, for a pane with several devices."""
    note = _short_gpu_name(device.name, 24) if device.kind == "gpu" else ""
    if device.kind == "rpc":
        note = "total as of its start"
    parts = [
        (9, styled_line((sanitize_to_width("RAM" if device.kind == "host" else device.device, 30), "bold"))),
        (8, () if lost else styled_line(part_of_total(used_bytes(device), device.total_bytes))),
        (5, styled_line((note, QUIET))),
    ]
    return fit_by_priority(parts, width)


def _lost_gpu_line(gpu: Gpu) -> StyledLine:
    at = f" at {units.time_of_day(gpu.lost_at)}" if gpu.lost_at else ""
    return styled_line((f"✗ GPU {gpu.index} LOST{at}", "bold $error"))


def _last_readings_line(gpu: Gpu) -> StyledLine:
    """The last readings of a lost card; its memory numbers are equally old."""
    readings = (
        (gpu.temperature_celsius, "{:.0f}°C"),
        (gpu.power_watts, "{:.0f} W"),
        (gpu.utilization_percent, "{:.0f}% busy"),
    )
    known = ", ".join(form.format(reading) for reading, form in readings if reading is not None)
    return fact("last readings  ", known or units.UNKNOWN)


def _no_gpu_lines(snapshot: Snapshot, width: int) -> list[StyledLine]:
    """Why no card is shown; empty if one is."""
    if any(not gpu.lost for gpu in snapshot.driver.gpus):
        return []
    problem = snapshot.driver.problem or "no GPU"
    return wrap_text(f"○ {problem[:1].upper()}{problem[1:]}", width, QUIET)


# -- parts, bar and legend ------------------------------------------------------------------------------


def used_bytes(device: DeviceMemory) -> int | None:
    """Used memory of a device: the driver's number if it gives one, else the sum of the known parts."""
    if device.total_bytes is not None and device.free_bytes is not None:
        return device.total_bytes - device.free_bytes
    return sum(size for _, size in device.parts) or None


def memory_parts(device: DeviceMemory) -> list[MemoryPart]:
    """The parts of a device in drawing order, without empty ones."""
    parts = [
        MemoryPart(kind, MEMORY_PART_STYLES[kind][0], size, device.estimated and kind == "weights")
        for kind, size in device.parts
    ]
    if device.other_processes_bytes:
        parts.append(MemoryPart("other", _other_processes_label(device), device.other_processes_bytes))
    if device.unaccounted_bytes and abs(device.unaccounted_bytes) >= units.MIB:
        parts.append(MemoryPart("unaccounted", rest_words(device), device.unaccounted_bytes))
    if device.free_bytes is not None:
        parts.append(MemoryPart("free", "free", device.free_bytes))
    return parts


def _other_processes_label(device: DeviceMemory) -> str:
    """The name of the largest other process, and the number of further ones."""
    if not device.other_processes:
        return "other programs"
    name = sanitize_to_width(device.other_processes[0][0].rsplit("/", 1)[-1].split(" ")[0], 11)
    further = len(device.other_processes) - 1
    return f"{name} +{further}" if further else name


def _merged_by_kind(parts: list[MemoryPart]) -> list[MemoryPart]:
    """One part per kind, the sizes of all devices added up."""
    merged: dict[str, MemoryPart] = {}
    for part in parts:
        if known := merged.get(part.kind):
            part = replace(part, size=part.size + known.size, estimated=part.estimated or known.estimated)
        merged[part.kind] = part
    return [merged[kind] for kind in MEMORY_PART_STYLES if kind in merged]


def memory_bar(device: DeviceMemory, width: int, *, no_color: bool = False) -> StyledLine:
    """The stacked bar; with ``no_color`` a glyph per part instead of its colour.

    If the log reports more than the driver counts, the parts are scaled to what is really used: the bar never shows
    less free memory than there is. The legend shows the difference as a negative unaccounted size.
    """
    parts = [part for part in memory_parts(device) if part.kind != "free" and part.size > 0]
    claimed = sum(part.size for part in parts)
    total, free = device.total_bytes, device.free_bytes
    used = total - free if total is not None and free is not None else claimed
    if total is None or total < claimed:
        total, used = max(total or 0, claimed), claimed
    if total <= 0:
        return styled_line(("·" * width, "$line"))
    scale = used / claimed if claimed else 0
    sizes = [*(part.size * scale for part in parts), total - used if parts else total]
    kinds = [*(part.kind for part in parts), "free" if free is not None else "unread"]
    if free is not None and not parts:
        sizes, kinds = [total - used, used], ["free", "unaccounted"]
    return styled_line(*_bar_spans(kinds, _cells_by_size(sizes, total, width), no_color))


def _bar_spans(kinds: list[str], counts: list[int], no_color: bool) -> Iterable[tuple[str, str]]:
    for kind, count in zip(kinds, counts, strict=True):
        _, colour, glyph = MEMORY_PART_STYLES[kind]
        yield (glyph if no_color or kind == "unread" else "█") * count, colour


def _cells_by_size(sizes: list[float], total: float, width: int) -> list[int]:
    """``width`` cells divided in proportion to ``sizes``; a third of a cell rounds up, the last takes the rest."""
    exact = [size / total * width for size in sizes]
    counts = [max(round(cells), 1 if cells >= 1 / 3 else 0) for cells in exact]
    while sum(counts) > width:
        counts[max(range(len(counts)), key=lambda i: counts[i] - exact[i] + counts[i] / 1000)] -= 1
    counts[-1] += width - sum(counts)
    return counts


def legend_entry(part: MemoryPart, *, no_color: bool = False, width: int = 0) -> StyledLine:
    """Mark, label and size of a part. ``width`` right-aligns the size; a long label loses its first word."""
    _, colour, glyph = MEMORY_PART_STYLES[part.kind]
    mark = (glyph if no_color else "■", colour) if part.kind != "free" else ("·" if no_color else "□", QUIET)
    style = "$warning" if part.kind == "unaccounted" and part.size < 0 else ""
    size = f"−{units.memory(-part.size)}" if part.size < 0 else units.memory(part.size)
    if part.estimated:
        size = f"~{size}"
    label, room = part.label, width - len(size) - 3 if width else 100
    label = label if len(label) <= room else sanitize_to_width(label.rpartition(": ")[2].replace(", ", "+"), room)
    gap = max(1, width - len(label) - len(size) - 2)
    entry = styled_line(mark, " ", (label, QUIET), " " * gap, (size, style))
    return figure(_FIGURES.get(part.kind, part.kind), entry)


def conversation_lines(snapshot: Snapshot, width: int) -> list[StyledLine]:
    """How much of the reserved KV cache the conversations of all slots fill, in bytes and in tokens."""
    throughput = snapshot.throughput
    reserved = sum(device.kv_bytes or 0 for device in snapshot.memory)
    if not reserved or throughput.context_size_tokens is None:
        return []
    known = [slot.context_used_tokens for slot in snapshot.slots if slot.context_used_tokens is not None]
    used = sum(known) if known else None
    size = sum(slot.context_size_tokens or 0 for slot in snapshot.slots) or throughput.context_size_tokens
    if snapshot.kv_cells is not None:
        size = min(size, snapshot.kv_cells)  # with a unified cache every slot reports the size of the whole cache
    per_token = snapshot.kv_bytes_per_token
    filled = None if per_token is None or used is None else min(reserved, per_token * used)
    tokens = f"{units.UNKNOWN if used is None else f'{used:,}'} of {size:,} tokens" + (
        " in all slots" if len(snapshot.slots) > 1 else ""
    )
    parts = [
        fact("conversations ", part_of_total(filled, reserved), " (reserved at load)"),
        styled_line((tokens, QUIET)),
    ]
    return wrap_parts([figure("conversations", part) for part in parts], width)


# -- the header's readings ------------------------------------------------------------------------------


def gpu_readings(snapshot: Snapshot) -> tuple[tuple[str, str], ...]:
    """``RTX 5060 Ti  64°C  142/180 W`` as (text, style): the hottest temperature and the power of all cards."""
    if not snapshot.driver.gpus:
        return ()
    gpus = [gpu for gpu in snapshot.driver.gpus if not gpu.lost]
    lost = len(snapshot.driver.gpus) - len(gpus)
    names = {_short_gpu_name(gpu.name) for gpu in gpus}
    times = f"{len(gpus)}× " if len(gpus) > 1 else ""
    name = f"{times}{names.pop()}" if len(names) == 1 else f"{len(gpus)} GPUs" if gpus else ""
    readings: list[tuple[str, str]] = []
    if lost:
        readings.append((f"✗ {lost} GPUs LOST" if lost > 1 else "✗ GPU LOST", "bold $error"))
    temperatures = [gpu.temperature_celsius for gpu in gpus if gpu.temperature_celsius is not None]
    if temperatures:
        limits = [(gpu.temperature_celsius or 0, gpu.temperature_limit_celsius) for gpu in gpus]
        hot = any(limit is not None and celsius >= limit for celsius, limit in limits)
        readings.append((f"{max(temperatures)}°C", "bold $warning" if hot else ""))
    power = [gpu.power_watts for gpu in gpus if gpu.power_watts is not None]
    power_limits = [gpu.power_limit_watts for gpu in gpus if gpu.power_limit_watts is not None]
    if power:
        limit = f"/{sum(power_limits):.0f}" if len(power_limits) == len(power) else ""
        readings.append((f"{sum(power):.0f}{limit} W", ""))
    return ((name, "$quiet"), *readings)


def _short_gpu_name(name: str | None, width: int = 30) -> str:
    """A card's name without the vendor."""
    for vendor in ("NVIDIA ", "GeForce ", "AMD ", "Radeon "):
        name = (name or "").removeprefix(vendor)
    return sanitize_to_width(name, width)
