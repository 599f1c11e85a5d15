"""The pane beside the list of models: what is known of one, and its planned memory. Pure, and the widget."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from textual.content import Content

from gpubox import units
from gpubox.planner.verdict import judge
from gpubox.sanitize import sanitize_line
from gpubox.tui.styled_lines import StyledLine, gauge, marked, sanitize_to_width, styled_line
from gpubox.tui.widgets.scrollable_lines import ScrollableLines
from gpubox.tui.workshop.finder_rows import FinderRow
from gpubox.views.marks import MEMORY
from gpubox.views.memory import solution_line

if TYPE_CHECKING:
    from gpubox.models.hub_download import HubProgress
    from gpubox.planner.plan import DevicePlan, MemoryPlan

_LABEL_CELLS = 10
_GAUGE_CELLS = 24
_MAX_FILES = 8


class FinderDetails(ScrollableLines):
    """Shows the lines that ``put`` was given last."""

    DEFAULT_CSS = """
    FinderDetails {
        height: 1fr; width: 1fr; overflow-y: scroll; border: round $line; padding: 0 1; background: $background;
        border-title-color: $secondary; border-title-style: bold;
        &:focus { border: round $line-focus; border-title-color: $foreground; }
    }
    """

    def put(self, title: str, make: Callable[[int], list[StyledLine]]) -> None:
        """Replaces the lines."""
        self.border_title = Content(sanitize_line(title))
        self.scroll_to(y=0, animate=False, immediate=True)
        self.make_again(make)


def detail_lines(row: FinderRow | None, width: int) -> list[StyledLine]:
    """Everything about one row, its verdict first."""
    if row is None or row.kind == "heading":
        return _legend()
    lines = _heading(row, width)
    if row.plan:
        lines += [*_verdict_lines(row.plan, width), (), *_memory_lines(row.plan, width)]
    elif row.planning:
        lines += [styled_line(("Its header is being read …", "$quiet")), ()]
    return lines + _facts(row, width)


def _legend() -> list[StyledLine]:
    marks = [styled_line(marked(mark), "  ", mark.meaning) for mark in MEMORY.values()]
    words = ("The verdict is for a new profile. gpubox reads", "the header only; it downloads no model.")
    return [*marks, (), *(styled_line((line, "$quiet")) for line in words)]


def _heading(row: FinderRow, width: int) -> list[StyledLine]:
    """Name and size."""
    if row.local:
        return [_pair("size", units.file_size(row.local.size_bytes), width)]
    if row.repository and row.quant:
        return [
            _pair("model", row.repository.reference(row.quant), width),
            _pair("size", units.file_size(row.quant.size_bytes), width),
        ]
    return []


def _facts(row: FinderRow, width: int) -> list[StyledLine]:
    pairs: list[tuple[str, str]] = []
    if row.local:
        pairs = [("file", str(row.local.path))]
        if row.local.shards > 1:
            pairs.append(("", f"and {row.local.shards - 1} more shards"))
    elif repository := row.repository:
        if row.quant:
            files = [file.name for file in row.quant.files]
            pairs += [("files" if index == 0 else "", name) for index, name in enumerate(files[:_MAX_FILES])]
            if len(files) > _MAX_FILES:
                pairs.append(("", f"and {len(files) - _MAX_FILES} more"))
        else:
            pairs.append(("quants", f"{len(repository.quants)}"))
        extras = [("vision", file.name, file.size_bytes) for file in repository.projectors]
        extras += [("draft", draft.files[0].name, draft.size_bytes) for draft in repository.drafts]
        pairs += [(kind, f"{name}  {units.file_size(size)}") for kind, name, size in extras]
        pairs.append(("updated", repository.updated or units.UNKNOWN))
        if repository.gated:
            pairs.append(("access", "gated: ask its owner for access, then set HF_TOKEN"))
    return [_pair(label, text, width) for label, text in pairs]


def _pair(label: str, text: str, width: int) -> StyledLine:
    return styled_line((label.ljust(_LABEL_CELLS), "$quiet"), (sanitize_to_width(text, width - _LABEL_CELLS), ""))


def _verdict_lines(plan: MemoryPlan, width: int) -> list[StyledLine]:
    """The verdict, and what would make the model fit."""
    verdict = judge(plan)
    mark, colour = marked(MEMORY[verdict.fit])
    lines = _wrapped(f"{mark} {verdict.words}", colour, width)
    for solution in plan.solutions:
        lines += _wrapped(f"  {solution_line(solution)}", "", width)
    for note in (*plan.notes, *verdict.helps):
        lines += _wrapped(f"  {note}", "$quiet", width)
    return lines + (_wrapped(f"unclear: {'; '.join(plan.doubts)}", "$warning", width) if plan.doubts else [])


def _memory_lines(plan: MemoryPlan, width: int) -> list[StyledLine]:
    """A bar and the parts for each device."""
    estimated = plan.compute_certainty in ("near", "unknown")
    lines: list[StyledLine] = []
    for device in plan.devices:
        lines += _device_lines(device, estimated, width)
    if plan.devices and estimated:
        lines += _wrapped("~ the compute buffers are estimated; f measures them in a dry run", "$quiet", width)
        lines.append(())
    return lines


def _device_lines(device: DevicePlan, estimated: bool, width: int) -> list[StyledLine]:
    free = units.memory(device.free_bytes)
    head = f"{device.device}  {units.memory(device.total_bytes)} of {free} free"
    parts = [
        ("weights", device.weights_bytes), ("KV", device.kv_bytes), ("state", device.recurrent_bytes),
        (f"{'~' if estimated else ''}compute", device.compute_bytes), ("draft", device.draft_bytes),
    ]  # fmt: skip
    shown = "  ".join(f"{name} {units.memory(size)}" for name, size in parts if size)
    fraction = device.total_bytes / device.free_bytes if device.free_bytes else 0.0
    bar = gauge(fraction, min(_GAUGE_CELLS, width), "$error" if fraction > 1 else "$primary")
    return [styled_line((sanitize_to_width(head, width), "bold")), bar, *_wrapped(shown, "$quiet", width), ()]


def _wrapped(text: str, style: str, width: int) -> list[StyledLine]:
    import textwrap

    indent = " " * (len(text) - len(text.lstrip()) + 2)
    rows = textwrap.wrap(sanitize_line(text), max(20, width), subsequent_indent=indent, drop_whitespace=True)
    return [styled_line((row, style)) for row in rows]


def download_line(name: str, progress: HubProgress | None, width: int) -> StyledLine:
    """``↓ name:Q4_K_M ━━━── 3.1 GB of 17.3 GB  82 MB/s  ~3 min left``."""
    name = name.rsplit("/", 1)[-1]
    if progress is None:
        return styled_line(("↓ ", "$accent"), (sanitize_to_width(name, max(8, width - 20)), "bold"), (" …", "$quiet"))
    total = progress.total_bytes
    amount = f" {units.file_size(progress.done_bytes)}" + (f" of {units.file_size(total)}" if total else "")
    rate = f"  {units.file_size(progress.bytes_per_second)}/s" if progress.bytes_per_second else ""
    left = f"  ~{units.rough_duration(progress.seconds_left)} left" if progress.seconds_left is not None else ""
    note = "  checking what is here" if progress.phase == "check" else rate + left
    if progress.waiting:
        note = f"  {sanitize_to_width(progress.waiting, max(8, width - len(amount) - 34))}"
    name_cells = max(8, width - len(amount) - len(note) - 20)
    bar = gauge(progress.done_bytes / total, 14, "$accent") if total else ()
    shown = (sanitize_to_width(name, name_cells) + " ", "bold")
    return (*styled_line(("↓ ", "$accent"), shown), *bar, (amount, ""), (note, "$quiet"))
