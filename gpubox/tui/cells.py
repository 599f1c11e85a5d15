"""Lines of styled text as plain tuples: cheap to make, exact to compare, and aligned by helpers. Pure.

Textual's Content compares its text alone; a pane that repaints only what changed has to see a change of colour too.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from rich.cells import cell_len, set_cell_size

from gpubox.tui.text import plain

Span = tuple[str, str]
"""Text, and its style in the words of Textual's markup (``bold $primary``); empty for the pane's own."""
Line = tuple[Span, ...]

QUIET = "$quiet"
GAP = "   "


def line(*spans: Span | str) -> Line:
    """A line of spans; a bare text has the pane's own style. Empty spans are dropped."""
    pairs = [(span, "") if isinstance(span, str) else span for span in spans]
    return tuple(pair for pair in pairs if pair[0])


def cells(found: Line) -> int:
    """How many cells a line takes."""
    return sum(cell_len(text) for text, _ in found)


def join(parts: Iterable[Line], gap: str = GAP) -> Line:
    """The parts that are not empty, with ``gap`` between them."""
    spans: list[Span] = []
    for part in parts:
        if part:
            spans += [(gap, ""), *part] if spans else part
    return tuple(spans)


def fit(found: Line, width: int) -> Line:
    """``found`` cut to ``width`` cells, with an ellipsis where something was cut."""
    if cells(found) <= width:
        return found
    kept: list[Span] = []
    left = max(0, width - 1)
    for text, style in found:
        size = cell_len(text)
        if size > left:
            kept.append((set_cell_size(text, left).rstrip() + "…", style))
            break
        kept.append((text, style))
        left -= size
    return line(*kept) if width > 0 else ()


def pad(found: Line, width: int) -> Line:
    """``found`` cut or filled up to exactly ``width`` cells."""
    found = fit(found, width)
    missing = width - cells(found)
    return (*found, (" " * missing, "")) if missing > 0 else found


def squeeze(parts: Sequence[tuple[int, Line]], width: int, gap: str = GAP) -> Line:
    """The parts in their order, each with its importance; the least important are left out where they do not fit."""
    kept = [(weight, part) for weight, part in parts if part]
    if cells(join([part for _, part in kept], gap)) > width:
        gap = gap[:2]
    while len(kept) > 1 and cells(join([part for _, part in kept], gap)) > width:
        del kept[min(range(len(kept)), key=lambda i: kept[i][0])]
    return fit(join([part for _, part in kept], gap), width)


def flow(parts: Iterable[Line], width: int, gap: str = GAP) -> list[Line]:
    """The parts on as few lines as ``width`` allows, broken between parts only."""
    lines: list[Line] = []
    for part in parts:
        if not part:
            continue
        if lines and cells(lines[-1]) + len(gap) + cells(part) <= width:
            lines[-1] = join([lines[-1], part], gap)
        else:
            lines.append(fit(part, width))
    return lines


def grid(items: Sequence[Line], width: int, cell_width: int) -> list[Line]:
    """``items`` in columns of ``cell_width``, as many beside each other as fit, read along the rows."""
    columns = max(1, (width + len(GAP)) // (cell_width + len(GAP)))
    room = (width - (columns - 1) * len(GAP)) // columns
    room = min(room, cell_width + 6)
    rows = [items[at : at + columns] for at in range(0, len(items), columns)]
    return [join([pad(item, room) for item in row]) for row in rows]


def dim(found: Line) -> Line:
    """The line as an old reading looks."""
    return tuple((text, f"{style} dim".strip()) for text, style in found)


def gauge(share: float, width: int, style: str) -> Line:
    """A bar of ``width`` cells, ``share`` (0 to 1) of them filled."""
    filled = round(max(0.0, min(1.0, share)) * width)
    return line(("━" * filled, style), ("─" * (width - filled), "$line"))


def safe(text: str | None, width: int) -> str:
    """A name that others chose: harmless, and at most ``width`` cells."""
    shown = plain(text or "")
    return shown if cell_len(shown) <= width else set_cell_size(shown, max(0, width - 1)).rstrip() + "…"
