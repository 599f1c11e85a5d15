"""The lines of the VRAM split: the devices, what the driver says of them, and when there is none. Pure."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime
from typing import TYPE_CHECKING

from gpubox import units
from gpubox.tui import memory_view as view
from gpubox.tui.styled_lines import (
    QUIET,
    StyledLine,
    arrange_in_columns,
    cell_width,
    dimmed,
    fit_by_priority,
    sanitize_to_width,
    styled_line,
    wrap_parts,
)

if TYPE_CHECKING:
    from gpubox.hardware.gpu import Gpu
    from gpubox.telemetry.snapshot import DeviceMemory, Snapshot

COMPACT_DEVICES = 3
_WEIGHT = {"weights": 9, "free": 8, "kv": 7, "draft": 6, "growth": 5, "compute": 4, "other": 3, "unaccounted": 2}
"""Which parts stay in the one line of a small terminal."""


def lines(snapshot: Snapshot, width: int, plain: bool) -> list[StyledLine]:
    """Every device with bar and legend. ``plain``: for a terminal without colours."""
    devices = shown_devices(snapshot)
    rows: list[StyledLine] = []
    for device in devices:
        rows += _device(snapshot, device, width, len(devices) > 1, plain)
    if not any(device.kind == "gpu" for device in snapshot.memory) and (why := no_gpu(snapshot)):
        rows.append(why)
    if below := view.below(snapshot, width):
        rows.append(below)
    return rows or [styled_line(("nothing known yet", QUIET))]


def _device(snapshot: Snapshot, device: DeviceMemory, width: int, several: bool, plain: bool) -> list[StyledLine]:
    gpu = card_of(snapshot, device)
    rows: list[StyledLine] = []
    if several or device.kind == "rpc":
        rows.append(view.head(device, bool(gpu and gpu.lost), width))
    if gpu and gpu.lost:
        rows += [lost(gpu), last_seen(gpu)]
    body = [view.bar(device, width, plain=plain)]
    parts = view.segments(device)
    if several:
        body += wrap_parts([view.entry(part, plain=plain) for part in parts], width)
    else:
        columns = max(1, (width + 3) // (view.CELL + 3))
        cell = min(view.CELL + 6, (width - 3 * (columns - 1)) // columns)
        body += arrange_in_columns([view.entry(part, plain=plain, width=cell) for part in parts], width, cell)
    if (device.unaccounted_bytes or 0) <= -view.MIB:
        if device.kind == "host":  # no riddle: pages are taken when they are touched
            body.append(styled_line(("the log claims more than is resident yet", QUIET)))
        else:
            body.append(styled_line(("the log claims more than the driver counts", "$warning")))
    if gpu and (gpu.lost or snapshot.driver.stale_seconds):
        body = [dimmed(row) for row in body]
    if gpu and not gpu.processes_known:
        body.append(styled_line(("the driver lists no processes: other programs are in unaccounted", QUIET)))
    return rows + body


def small(snapshot: Snapshot, width: int, plain: bool) -> list[StyledLine]:
    """A bar for each of the first devices, and one line for all of them together."""
    devices = shown_devices(snapshot)
    if not devices:
        return [no_gpu(snapshot) or styled_line(("VRAM ", "bold"), (units.UNKNOWN, QUIET))]
    rows: list[StyledLine] = []
    for device in devices[:COMPACT_DEVICES]:
        gpu = card_of(snapshot, device)
        if gpu and gpu.lost:
            rows.append(styled_line(*lost(gpu), "   ", *last_seen(gpu)))
            continue
        word = "VRAM" if len(devices) == 1 and device.kind == "gpu" else sanitize_to_width(device.device, 8)
        label = styled_line(
            (f"{'RAM' if device.kind == 'host' else word}  ", "bold"),
            f"{view.amount(view.used_bytes(device), device.total_bytes)}  ",
        )
        rows.append(label + view.bar(device, max(4, width - cell_width(label)), plain=plain))
    parts = _together([part for device in devices for part in view.segments(device)])
    legend = fit_by_priority([(_WEIGHT.get(p.kind, 1), view.entry(p, plain=plain)) for p in parts], width, "  ")
    old = all((gpu := card_of(snapshot, device)) and gpu.lost for device in devices)
    return [*rows, dimmed(legend) if old else legend]


def shown_devices(snapshot: Snapshot) -> list[DeviceMemory]:
    """Cards and RPC devices; the host only where nothing else is there."""
    cards = [device for device in snapshot.memory if device.kind != "host"]
    return cards or list(snapshot.memory)


def card_of(snapshot: Snapshot, device: DeviceMemory) -> Gpu | None:
    """The driver's reading of a device."""
    if device.gpu_index is None:
        return None
    return next((gpu for gpu in snapshot.driver.gpus if gpu.index == device.gpu_index), None)


def lost(gpu: Gpu) -> StyledLine:
    """The words for a card that is gone."""
    at = f" at {datetime.fromisoformat(gpu.lost_at).astimezone():%H:%M:%S}" if gpu.lost_at else ""
    return styled_line((f"✗ GPU {gpu.index} LOST{at}", "bold $error"))


def last_seen(gpu: Gpu) -> StyledLine:
    """What it last said; so are the numbers below."""
    heat = f"{gpu.temperature_celsius}°C" if gpu.temperature_celsius is not None else ""
    watts = f"{gpu.power_watts:.0f} W" if gpu.power_watts is not None else ""
    busy = f"{gpu.utilization_percent}% busy" if gpu.utilization_percent is not None else ""
    last = ", ".join(word for word in (heat, watts, busy) if word)
    return styled_line(("last readings  ", QUIET), last or units.UNKNOWN)


def no_gpu(snapshot: Snapshot) -> StyledLine:
    """Why no card is shown."""
    if any(not gpu.lost for gpu in snapshot.driver.gpus):
        return ()
    problem = snapshot.driver.problem or "no GPU"
    return styled_line(("○ ", QUIET), (sanitize_to_width(problem[:1].upper() + problem[1:], 200), QUIET))


def _together(parts: list[view.MemoryPart]) -> list[view.MemoryPart]:
    """One entry for each kind."""
    found: dict[str, view.MemoryPart] = {}
    for part in parts:
        known = found.get(part.kind)
        found[part.kind] = (
            replace(part, size=part.size + known.size, estimated=part.estimated or known.estimated) if known else part
        )
    order = list(view.MEMORY_PART_STYLES)
    return sorted(found.values(), key=lambda part: order.index(part.kind))


def gpu_readings(snapshot: Snapshot) -> tuple[tuple[str, str], ...]:
    """``RTX 5060 Ti  64°C  142/180 W``: of all cards together where there are several."""
    cards = [gpu for gpu in snapshot.driver.gpus if not gpu.lost]
    lost = len(snapshot.driver.gpus) - len(cards)
    if not snapshot.driver.gpus:
        return ()
    names = {view.short_name(gpu.name) for gpu in cards}
    times = f"{len(cards)}× " if len(cards) > 1 else ""
    found = [(f"{times}{names.pop()}" if len(names) == 1 else f"{len(cards)} GPUs" if cards else "", "$quiet")]
    if lost:
        found.append((f"✗ {lost} GPUs LOST" if lost > 1 else "✗ GPU LOST", "bold $error"))
    heat = [gpu.temperature_celsius for gpu in cards if gpu.temperature_celsius is not None]
    hot = any(_hot(gpu) for gpu in cards)
    found.append((f"{max(heat)}°C" if heat else "", "bold $warning" if hot else ""))
    drawn = [gpu.power_watts for gpu in cards if gpu.power_watts is not None]
    limits = [gpu.power_limit_watts for gpu in cards if gpu.power_limit_watts is not None]
    limit = f"/{sum(limits):.0f}" if len(limits) == len(drawn) else ""
    found.append((f"{sum(drawn):.0f}{limit} W" if drawn else "", ""))
    return (found[0], *[part for part in found[1:] if part[0]])


def _hot(gpu: Gpu) -> bool:
    limit = gpu.temperature_limit_celsius
    return limit is not None and gpu.temperature_celsius is not None and gpu.temperature_celsius >= limit
