"""Where the memory is: one stacked bar a device that adds up to the driver's sums, and what its colours mean. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from gpubox import units
from gpubox.tui.styled_lines import QUIET, StyledLine, fit_by_priority, sanitize_to_width, styled_line

if TYPE_CHECKING:
    from gpubox.telemetry.snapshot import DeviceMemory, Snapshot

CELL = 22
"""Width of one entry of the legend."""
MIB = 1024**2

MEMORY_PART_STYLES = {
    "weights": ("weights", "$mem-weights", "█"),
    "kv": ("KV", "$mem-kv", "▓"),
    "recurrent": ("recurrent", "$mem-recurrent", "▚"),
    "compute": ("compute", "$mem-compute", "▒"),
    "draft": ("draft", "$mem-draft", "▞"),
    "growth": ("growth", "$mem-growth", "▲"),
    "other": ("other", "$mem-other", "▪"),
    "unaccounted": ("unaccounted", "$mem-unaccounted", "?"),
    "free": ("free", "$mem-free", "·"),
    "unread": ("not read", "$line", " "),
}
"""Part of memory -> its word, its colour, and the glyph that stands for the colour where there is none."""


@dataclass(frozen=True, slots=True)
class MemoryPart:
    """One part of a bar."""

    kind: str
    word: str
    size: int
    estimated: bool = False


def short_name(name: str | None, width: int = 30) -> str:
    """A card's name without its maker's."""
    bare = (name or "").removeprefix("NVIDIA ").removeprefix("GeForce ").removeprefix("AMD ").removeprefix("Radeon ")
    return sanitize_to_width(bare, width)


def used_bytes(device: DeviceMemory) -> int | None:
    """What is taken on a device: by the driver where it says, else the parts that are known."""
    if device.total_bytes is not None and device.free_bytes is not None:
        return device.total_bytes - device.free_bytes
    parts = sum(size for _, size in device.parts)
    return parts or None


def segments(device: DeviceMemory) -> list[MemoryPart]:
    """The parts of a device in drawing order; parts of nothing are left out."""
    found = [
        MemoryPart(name, MEMORY_PART_STYLES[name][0], size, device.estimated and name == "weights")
        for name, size in device.parts
    ]
    others = device.other_processes_bytes
    if others:
        found.append(MemoryPart("other", _others(device), others))
    if device.unaccounted_bytes and abs(device.unaccounted_bytes) >= MIB:
        found.append(MemoryPart("unaccounted", "unaccounted", device.unaccounted_bytes))
    if device.free_bytes is not None:
        found.append(MemoryPart("free", "free", device.free_bytes))
    return found


def _others(device: DeviceMemory) -> str:
    """The largest other program by name, and how many more there are."""
    if not device.other_processes:
        return "other"
    name = sanitize_to_width(device.other_processes[0][0].rsplit("/", 1)[-1].split(" ")[0], 11)
    more = len(device.other_processes) - 1
    return f"{name} +{more}" if more else name


def bar(device: DeviceMemory, width: int, *, plain: bool = False) -> StyledLine:
    """The stacked bar. ``plain``: a glyph for each part, for a terminal without colours.

    Where the log claims more than the driver counts, the parts share what is really taken: the bar never shows
    less free memory than there is, and the legend says by how much the two differ.
    """
    parts = [s for s in segments(device) if s.kind != "free" and s.size > 0]
    claimed = sum(s.size for s in parts)
    total = device.total_bytes
    free = device.free_bytes
    taken = total - free if total is not None and free is not None else claimed
    if total is None or total < claimed:
        total, taken = max(total or 0, claimed), claimed
    if total <= 0:
        return styled_line(("·" * width, "$line"))
    rest = "free" if device.free_bytes is not None else "unread"
    scale = taken / claimed if claimed else 0
    sizes = [*(s.size * scale for s in parts), total - taken if parts else total]
    if free is not None and not parts:
        sizes = [total - taken, taken]
    kinds = [*(s.kind for s in parts), rest] if parts or free is None else ["free", "unaccounted"]
    return styled_line(*_drawn(kinds, _share(sizes, total, width), plain))


def _drawn(kinds: list[str], counts: list[int], plain: bool) -> Iterable[tuple[str, str]]:
    for kind, count in zip(kinds, counts, strict=True):
        _, colour, glyph = MEMORY_PART_STYLES[kind]
        if kind == "unread":
            yield "·" * count, "$line"
        else:
            yield (glyph if plain else "█") * count, colour


def _share(sizes: list[float], total: float, width: int) -> list[int]:
    """``width`` cells shared out by size, the last entry taking the rest; what has a third of a cell gets one."""
    exact = [size / total * width for size in sizes]
    counts = [max(round(e), 1 if e >= 1 / 3 else 0) for e in exact]
    while sum(counts) > width:
        counts[max(range(len(counts)), key=lambda i: counts[i] - exact[i] + counts[i] / 1000)] -= 1
    counts[-1] += width - sum(counts)
    return counts


def entry(segment: MemoryPart, *, plain: bool = False, width: int = 0) -> StyledLine:
    """One part in words; ``width`` sets its number at the right edge, and cuts the word before it."""
    _, colour, glyph = MEMORY_PART_STYLES[segment.kind]
    mark = (glyph if plain else "■", colour) if segment.kind != "free" else ("□" if not plain else "·", QUIET)
    style = "$warning" if segment.kind == "unaccounted" and segment.size < 0 else ""
    number = ("~" if segment.estimated else "") + _signed(segment.size)
    word = sanitize_to_width(segment.word, width - len(number) - 3) if width else segment.word  # a number is never cut
    gap = max(1, width - len(word) - len(number) - 2)
    return styled_line(mark, " ", (word, QUIET), " " * gap, (number, style))


def _signed(size: int) -> str:
    return f"−{units.memory(-size)}" if size < 0 else units.memory(size)


def head(device: DeviceMemory, lost: bool, width: int) -> StyledLine:
    """A device's name and how full it is, for a pane with several."""
    note = short_name(device.name, 24) if device.kind == "gpu" else ""
    if device.kind == "rpc":
        note = "total as at its start"
    parts = [
        (9, styled_line((sanitize_to_width("RAM" if device.kind == "host" else device.device, 30), "bold"))),
        (8, () if lost else styled_line(amount(used_bytes(device), device.total_bytes))),
        (5, styled_line((note, QUIET))),
    ]
    return fit_by_priority(parts, width)


def below(snapshot: Snapshot, width: int) -> StyledLine:
    """When does it run out: how much of the KV that is allocated already is filled."""
    through = snapshot.throughput
    allocated = sum(device.kv_bytes or 0 for device in snapshot.memory)
    if not allocated or through.context_size_tokens is None:
        return ()
    used = sum(slot.context_used_tokens or 0 for slot in snapshot.slots)
    room = sum(slot.context_size_tokens or 0 for slot in snapshot.slots) or through.context_size_tokens
    if snapshot.kv_cells is not None:
        room = min(room, snapshot.kv_cells)  # each slot of a unified cache is told the size of the whole one
    said = f"{units.tokens(used)} of {units.tokens(room)}"
    filled = None
    if snapshot.kv_bytes_per_token is not None:
        filled = min(allocated, snapshot.kv_bytes_per_token * used)
    parts = [
        (9, styled_line(("context ", QUIET), said)),
        (8, styled_line(("KV filled ", QUIET), amount(filled, allocated))),
        (5, styled_line(("all allocated at load", QUIET))),
    ]
    return fit_by_priority(parts, width)


def amount(part: float | None, whole: float | None) -> str:
    """``0.6 of 1.9 GiB``: the unit once where both have the same."""
    shown, size = units.memory(part), units.memory(whole)
    number, _, unit = shown.partition(" ")
    return f"{number} of {size}" if unit and size.endswith(unit) else f"{shown} of {size}"


def title(snapshot: Snapshot) -> str:
    """``VRAM 13.4 of 15.9 GiB``: all cards and RPC devices together."""
    cards = [device for device in snapshot.memory if device.kind != "host"]
    if not cards:
        host = next((device for device in snapshot.memory if device.kind == "host"), None)
        used, total = (used_bytes(host), host.total_bytes) if host else (None, None)
        return f"RAM {amount(used, total)}" if used and total else "VRAM"
    used = sum(used_bytes(card) or 0 for card in cards)
    total = sum(card.total_bytes or 0 for card in cards)
    word = "devices" if any(device.kind == "rpc" for device in cards) else "cards"
    count = f" on {len(cards)} {word}" if len(cards) > 1 else ""
    return f"VRAM {amount(used, total)}{count}" if total else "VRAM"
