"""The list of runs, the newest first: what was measured, its headline, and how it ended."""

from __future__ import annotations

from collections.abc import Hashable
from typing import TYPE_CHECKING

from gpubox.tui.styled_lines import StyledLine, cell_width, pad_line, sanitize_to_width, styled_line, time_or_date
from gpubox.tui.widgets.cursor_rows import CursorRows

if TYPE_CHECKING:
    from gpubox.bench.model import RunInfo
    from gpubox.bench.report.model import RunSummary

STATES = {
    "running": ("●", "$primary"),
    "finished": ("✓", "$success"),
    "interrupted": ("◐", "$warning"),
    "failed": ("✗", "$error"),
    "damaged": ("✗", "$error"),
}
KIND_CELLS = 9
BESIDE_NAME_CELLS = 38
"""Cells of everything beside a name, with a headline such as ``tg 57.9 tok/s``."""


class RunRows(CursorRows["RunSummary"]):
    """The rows. Enter shows the report of a run alone."""

    EMPTY_TEXT = "No runs yet. n plans one; b measures the active profile."
    CURSOR_RETURNS_TO_TOP = False

    marked: tuple[str, ...] = ()
    """Ids of the runs to compare, at most two."""

    def make_row(self, value: RunSummary, width: int) -> StyledLine:
        info = value.info
        glyph, colour = STATES.get(value.state, ("?", "$warning"))
        number = f"{self.marked.index(value.id) + 1}" if value.id in self.marked else " "
        kind = info.plan.kind if info else ""
        time = time_or_date(info.created_at) if info else ""
        result = value.headline.removeprefix("best so far ").removeprefix("fastest start so far ") or value.problem
        style = "$error" if value.problem else ""
        if value.state in ("interrupted", "running") and info:
            count = f"{value.done}/{info.items} " if info.plan.kind != "tune" else ""  # it needs few of its items
            result, style = f"{count}{result}".strip(), "$quiet"
        restore_pending = value.restore_pending and value.state != "running"  # a running one restores at its end
        flag = ("! ", "$warning") if value.flags or restore_pending else ("  ", "")
        name_cells = max(10, min(26, width - BESIDE_NAME_CELLS))
        name = sanitize_to_width(measured_label(info) if info else value.id, name_cells)
        title = f"{kind:<{KIND_CELLS}.{KIND_CELLS}} "
        left = (
            *styled_line((number, "bold $accent"), " ", (glyph, colour), " ", (title, "$secondary")),
            *pad_line(styled_line((name, "bold")), name_cells),
            (" ", ""),
        )
        result_cells = width - cell_width(left) - len(time) - 4
        middle = pad_line(styled_line((sanitize_to_width(result, result_cells), style)), result_cells)
        return (*left, *middle, (" ", ""), flag, (time, "$quiet"))

    def key(self, value: RunSummary) -> Hashable:
        return value.id

    def toggle_mark(self) -> None:
        """Marks or unmarks the run under the cursor; a third mark replaces the first."""
        if self.value is None:
            return
        name = self.value.id
        if name in self.marked:
            self.marked = tuple(run for run in self.marked if run != name)
        else:
            self.marked = (*self.marked, name)[-2:]
        self.redraw()


def measured_label(info: RunInfo) -> str:
    """The targets that a run measures; of a sweep or a tune the profile instead of each cell."""
    targets = [target for target in info.plan.targets if not target.stopped]
    profiles = dict.fromkeys(target.profile for target in targets)
    if info.plan.kind == "tune":
        return " ".join(profiles)
    if info.plan.kind != "sweep":
        return ", ".join(target.name for target in targets) or info.id
    return " ".join([*profiles, *map(str, info.plan.options.get("axes", ()))])
