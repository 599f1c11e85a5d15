"""Lines of styled text as plain tuples: cheap to make, exact to compare, and aligned by helpers. Pure.

Textual's Content compares its text alone; a pane that repaints only what changed has to see a change of colour too.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from rich.cells import cell_len, set_cell_size

from gpubox.sanitize import sanitize_line

StyledText = tuple[str, str]
"""Text, and its style in the words of Textual's markup (``bold $primary``); empty for the pane's own."""
StyledLine = tuple[StyledText, ...]

QUIET = "$quiet"
GAP = "   "


def styled_line(*spans: StyledText | str) -> StyledLine:
    """A line of spans; a bare text has the pane's own style. Empty spans are dropped."""
    pairs = [(span, "") if isinstance(span, str) else span for span in spans]
    return tuple(pair for pair in pairs if pair[0])


def cell_width(found: StyledLine) -> int:
    """How many cells a line takes."""
    return sum(cell_len(text) for text, _ in found)


def join_lines(parts: Iterable[StyledLine], gap: str = GAP) -> StyledLine:
    """The parts that are not empty, with ``gap`` between them."""
    spans: list[StyledText] = []
    for part in parts:
        if part:
            spans += [(gap, ""), *part] if spans else part
    return tuple(spans)


def truncate_line(found: StyledLine, width: int) -> StyledLine:
    """``found`` cut to ``width`` cells, with an ellipsis where something was cut."""
    if cell_width(found) <= width:
        return found
    kept: list[StyledText] = []
    left = max(0, width - 1)
    for text, style in found:
        size = cell_len(text)
        if size > left:
            kept.append((set_cell_size(text, left).rstrip() + "…", style))
            break
        kept.append((text, style))
        left -= size
    return styled_line(*kept) if width > 0 else ()


def pad_line(found: StyledLine, width: int) -> StyledLine:
    """``found`` cut or filled up to exactly ``width`` cells."""
    found = truncate_line(found, width)
    missing = width - cell_width(found)
    return (*found, (" " * missing, "")) if missing > 0 else found


def fit_by_priority(parts: Sequence[tuple[int, StyledLine]], width: int, gap: str = GAP) -> StyledLine:
    """The parts in their order, each with its importance; the least important are left out where they do not fit."""
    kept = [(weight, part) for weight, part in parts if part]
    if cell_width(join_lines([part for _, part in kept], gap)) > width:
        gap = gap[:2]
    while len(kept) > 1 and cell_width(join_lines([part for _, part in kept], gap)) > width:
        del kept[min(range(len(kept)), key=lambda i: kept[i][0])]
    return truncate_line(join_lines([part for _, part in kept], gap), width)


def wrap_parts(parts: Iterable[StyledLine], width: int, gap: str = GAP) -> list[StyledLine]:
    """The parts on as few lines as ``width`` allows, broken between parts only."""
    lines: list[StyledLine] = []
    for part in parts:
        if not part:
            continue
        if lines and cell_width(lines[-1]) + len(gap) + cell_width(part) <= width:
            lines[-1] = join_lines([lines[-1], part], gap)
        else:
            lines.append(truncate_line(part, width))
    return lines


def arrange_in_columns(items: Sequence[StyledLine], width: int, cell_width: int) -> list[StyledLine]:
    """``items`` in columns of ``cell_width``, as many beside each other as fit, read along the rows."""
    columns = max(1, (width + len(GAP)) // (cell_width + len(GAP)))
    room = (width - (columns - 1) * len(GAP)) // columns
    room = min(room, cell_width + 6)
    rows = [items[at : at + columns] for at in range(0, len(items), columns)]
    return [join_lines([pad_line(item, room) for item in row]) for row in rows]


def dimmed(found: StyledLine) -> StyledLine:
    """The line as an old reading looks."""
    return tuple((text, f"{style} dim".strip()) for text, style in found)


def gauge(share: float, width: int, style: str) -> StyledLine:
    """A bar of ``width`` cells, ``share`` (0 to 1) of them filled."""
    filled = round(max(0.0, min(1.0, share)) * width)
    return styled_line(("━" * filled, style), ("─" * (width - filled), "$line"))


def sanitize_to_width(text: str | None, width: int) -> str:
    """A name that others chose: harmless, and at most ``width`` cells."""
    shown = sanitize_line(text or "")
    return shown if cell_len(shown) <= width else set_cell_size(shown, max(0, width - 1)).rstrip() + "…"
