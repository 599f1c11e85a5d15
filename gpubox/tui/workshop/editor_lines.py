"""What the editor draws: its options, the command line, and the planned memory beside what runs. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from rich.cells import cell_len, chop_cells

from gpubox import units
from gpubox.planner.verdict import judge
from gpubox.sanitize import sanitize_line
from gpubox.telemetry.snapshot import DeviceMemory
from gpubox.tui.dashboard.vram import MEMORY_PART_STYLES, memory_bar, used_bytes
from gpubox.tui.styled_lines import (
    QUIET,
    StyledLine,
    cell_width,
    marked,
    pad_line,
    part_of_total,
    sanitize_to_width,
    styled_line,
    truncate_line,
    wrap_parts,
)
from gpubox.tui.workshop.edit_session import EDIT_MARKS, OptionRow
from gpubox.views.marks import MEMORY
from gpubox.views.profile import value_text

if TYPE_CHECKING:
    from gpubox.planner.plan import DevicePlan, MemoryPlan

LABEL_CELLS = 8


def plan_lines(
    plan: MemoryPlan | None, running: Sequence[DeviceMemory], width: int, *, devices: int, no_color: bool = False
) -> list[StyledLine]:
    """The devices of a plan, and the verdict."""
    if plan is None:
        return [styled_line(("the memory is being planned …", QUIET))]
    return [*device_lines(plan, running, width, devices=devices, no_color=no_color), verdict_line(plan, width)]


def device_lines(
    plan: MemoryPlan, running: Sequence[DeviceMemory], width: int, *, devices: int, no_color: bool = False
) -> list[StyledLine]:
    """The bars of at most ``devices`` devices, cards first, and their parts beside those of the running server."""
    lines: list[StyledLine] = []
    shown = [device for device in plan.devices if device.kind != "host"] or list(plan.devices)
    for device in shown[:devices]:
        now = next((memory for memory in running if _same_device(memory, device)), None)
        lines += _device_lines(device, now, width, len(shown) > 1, no_color, "~" if plan.is_estimated else "")
    return lines


def verdict_line(plan: MemoryPlan, width: int) -> StyledLine:
    """Whether it fits, and what would."""
    verdict = judge(plan)
    glyph, style = marked(MEMORY[verdict.fit])
    text = styled_line((f"{glyph} ", style), (sanitize_line(verdict.words), style if verdict.fit != "fits" else ""))
    return truncate_line(text, width)


def planned_memory(device: DevicePlan) -> DeviceMemory:
    """The plan of a device in the form in which the VRAM pane draws a reading."""
    total, free = device.total_memory_bytes, device.free_bytes
    return DeviceMemory(
        device.device,
        device.kind,
        total_bytes=total,
        weights_bytes=device.weights_bytes or None,
        kv_bytes=device.kv_bytes or None,
        recurrent_bytes=device.recurrent_bytes or None,
        compute_bytes=device.compute_bytes or None,
        draft_bytes=device.draft_bytes or None,
        other_processes_bytes=max(0, total - free) if total is not None and free is not None else None,
        unaccounted_bytes=device.unaccounted_bytes or None,
        free_bytes=max(0, device.spare_bytes) if device.spare_bytes is not None else None,
    )


def _same_device(memory: DeviceMemory, device: DevicePlan) -> bool:
    return memory.device == device.device or memory.kind == device.kind == "host"


def _device_lines(
    device: DevicePlan, now: DeviceMemory | None, width: int, several: bool, no_color: bool, compute_mark: str
) -> list[StyledLine]:
    planned = planned_memory(device)
    name = "RAM" if device.kind == "host" else sanitize_line(device.device)
    lines = [styled_line((name, "bold"))] if several else []
    total = planned.total_bytes
    used = device.total_bytes + (planned.other_processes_bytes or 0)
    labels = ("now", "planned") if several else (f"{name} now", "planned" if now else name)
    cells = max(LABEL_CELLS, len(labels[0]) + 1)
    if now and now.total_bytes:
        amount = part_of_total(used_bytes(now), now.total_bytes)
        lines.append(_bar_line(labels[0], amount, now, width, cells, no_color))
    amount = part_of_total(used, total)
    if total is None:
        amount = units.need_and_free(device.total_bytes, device.free_bytes)
    lines.append(_bar_line(labels[1], amount, planned, width, cells, no_color))
    lines += wrap_parts(_parts(planned, now, compute_mark), width, "  ")
    return lines


def _bar_line(
    label: str, amount: str, memory: DeviceMemory, width: int, label_cells: int, no_color: bool
) -> StyledLine:
    text = styled_line((f"  {amount}", ""))
    head = pad_line(styled_line((label, QUIET)), label_cells)
    bar = memory_bar(memory, max(4, width - label_cells - max(20, cell_width(text))), no_color=no_color)
    return (*head, *bar, *text)


def _parts(planned: DeviceMemory, now: DeviceMemory | None, compute_mark: str) -> list[StyledLine]:
    """``weights 10.4 → 12.6 GiB``: each part, with the running server's where it differs."""
    before = dict(now.parts) if now else {}
    parts = []
    for kind, size in planned.parts:
        label, colour, _ = MEMORY_PART_STYLES[kind]
        mark = compute_mark if kind == "compute" else ""
        old = before.get(kind)
        differs = old is not None and abs(old - size) > max(units.MIB * 8, size // 200)
        was = f"{units.memory(old)} → " if differs else ""
        parts.append(styled_line(("■ ", colour), (f"{label} ", QUIET), (was, QUIET), f"{mark}{units.memory(size)}"))
    return parts


# -- options and command line -----------------------------------------------------------------------------------------


def option_line(row: OptionRow, refused: bool, width: int) -> StyledLine:
    """One row, ``width`` cells wide."""
    mark = "!" if refused and not row.unknown else row.mark
    colour = EDIT_MARKS[mark][0] if mark else ""
    name_cells, value_cells, default_cells = _columns(width)
    new, old = value_text(row.value), value_text(row.saved)
    value = f"{old} → {new or 'not set'}" if row.changed and old else new
    value_style = f"bold {colour}" if row.changed or refused else "" if new else "$quiet"
    name_style = colour or ("bold" if row.saved is not None else "$quiet")
    return styled_line(
        (mark or " ", colour),
        " ",
        (sanitize_to_width(row.name, name_cells).ljust(name_cells), name_style),
        " ",
        (sanitize_to_width(value or "·", value_cells).ljust(value_cells), value_style),
        " ",
        (sanitize_to_width(row.default, default_cells).ljust(default_cells), "$quiet"),
        " ",
        (sanitize_to_width(row.about, max(0, width - name_cells - value_cells - default_cells - 5)), "$secondary"),
    )


def _columns(width: int) -> tuple[int, int, int]:
    """The cells of name, value and default."""
    return (20, 16, 8) if width < 90 else (27, 24, 14)


def column_titles(width: int) -> str:
    """The titles of the columns, drawn into the frame above them."""
    name, value, default = _columns(width)
    return f"{'flag ':─<{name}}─ {'value ':─<{value - 1}}─ {'default ':─<{default - 1}}─ help"


def command_lines(words: Sequence[tuple[str, bool]], width: int, rows: int) -> list[StyledLine]:
    """The command line on at most ``rows`` lines. If they are too few, those around the first change."""
    lines: list[StyledLine] = []
    first_change = 0
    for text, new in words:
        style = "bold underline $accent" if new else "$secondary"
        for part in _pieces(sanitize_line(text), width):
            if lines and cell_width(lines[-1]) + 1 + cell_len(part) <= width:
                lines[-1] = (*lines[-1], (" ", ""), (part, style))
            else:
                lines.append(((part, style),))
            if new and not first_change:
                first_change = len(lines)
    top = max(0, min(first_change - 2, len(lines) - rows))
    return lines[top : top + rows]


def _pieces(text: str, width: int) -> list[str]:
    """An option with its values in one piece if it fits a line; else word by word, and a long word cut in pieces."""
    if cell_len(text) <= width:
        return [text]
    words = text.split(" ")
    return [piece for word in words for piece in chop_cells(word, max(1, width))]
