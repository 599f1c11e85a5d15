"""Dialogs about profiles: what a new one is made of, and two of them side by side."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from textual import events
from textual.app import ComposeResult
from textual.binding import BindingType
from textual.containers import Vertical
from textual.content import Content
from textual.message import Message
from textual.widgets import Static, TextArea

from gpubox import units
from gpubox.bench.report.formatting import format_number
from gpubox.planner.verdict import judge
from gpubox.sanitize import sanitize_line
from gpubox.telemetry.device_memory import HOST
from gpubox.tui.dialogs import Dialog
from gpubox.tui.styled_lines import (
    QUIET,
    StyledLine,
    marked,
    sanitize_to_width,
    styled_line,
    time_or_date,
    truncate_line,
)
from gpubox.tui.widgets.lines import ScrollableLines
from gpubox.views.marks import MEMORY
from gpubox.views.memory import short_words
from gpubox.views.profile import value_text

if TYPE_CHECKING:
    from gpubox.bench.report.model import Metric, RunSummary
    from gpubox.planner.plan import MemoryPlan
    from gpubox.profiles.comparison import ComparedKey
    from gpubox.tui.workshop.profile_files import ProfileComparison

SOURCES = "A .gguf file, hf:USER/REPO:QUANT, or a llama-server command line, pasted as it is."
Row = tuple[str, str, str, str, str]
"""Label, both texts, and both styles."""


class SourceText(TextArea):
    """Takes a pasted text of several lines. Enter confirms it."""

    class Confirmed(Message):
        """Enter was pressed."""

    async def _on_key(self, event: events.Key) -> None:
        if event.key == "enter":
            event.stop()
            event.prevent_default()
            self.post_message(self.Confirmed())
        else:
            await super()._on_key(event)


class SourceScreen(Dialog[str | None]):
    """Returns the source, ``None`` for esc or an empty text."""

    DEFAULT_CSS = """
    SourceScreen > Vertical { width: 96; max-width: 96%; height: auto; padding: 1 2; }
    SourceScreen Static { height: auto; margin-bottom: 1; color: $secondary; }
    SourceScreen #source-problem { color: $error; }
    SourceScreen TextArea {
        height: 8; border: none; padding: 0 1; background: $line; scrollbar-size-vertical: 1;
        & .text-area--cursor-line { background: $line; }
    }
    """

    def __init__(self, source: str = "", problem: str = "") -> None:
        super().__init__()
        self.problem = problem
        self.source = SourceText(
            source, soft_wrap=True, tab_behavior="focus", show_line_numbers=False, highlight_cursor_line=False
        )
        self.source.cursor_blink = False

    def compose(self) -> ComposeResult:
        with Vertical() as box:
            box.border_title, box.border_subtitle = "New profile", "⏎ goes on, esc cancels"
            yield Static(SOURCES, markup=False)
            if self.problem:
                yield Static(Content(sanitize_line(self.problem)), id="source-problem", markup=False)
            yield self.source

    def on_mount(self) -> None:
        self.set_focus(self.source)
        self.source.move_cursor(self.source.document.end)

    def on_source_text_confirmed(self) -> None:
        self.dismiss(self.source.text.strip() or None)


class ComparisonScreen(Dialog[None]):
    """Shows a ProfileComparison. ``a`` shows what is the same, too."""

    DEFAULT_CSS = """
    ComparisonScreen > Vertical { width: 120; height: auto; padding: 0 1; }
    ComparisonScreen ScrollableLines { background: $panel; max-height: 1fr; }
    """
    BINDINGS: ClassVar[list[BindingType]] = [("q,equals_sign", "dismiss", "Close"), ("a", "toggle_all", "All")]

    def __init__(self, comparison: ProfileComparison) -> None:
        super().__init__()
        self.comparison = comparison
        self.shows_all = False
        self.view = ScrollableLines(self._lines)

    def compose(self) -> ComposeResult:
        with Vertical() as box:
            box.border_title = Content(" and ".join(map(sanitize_line, self.comparison.names)))
            box.border_subtitle = "a shows what is the same, too; esc closes"
            yield self.view

    def on_mount(self) -> None:
        self.view.focus()

    def _lines(self, width: int) -> list[StyledLine]:
        return profile_comparison_lines(self.comparison, width, show_all=self.shows_all)

    def action_toggle_all(self) -> None:
        self.shows_all = not self.shows_all
        self.view.make_again()
        self.view.refresh(layout=True)


def profile_comparison_lines(comparison: ProfileComparison, width: int, *, show_all: bool) -> list[StyledLine]:
    """Three tables: flags and keys that differ, memory, measured speeds."""
    left, right = comparison.names
    keys = [key for key in comparison.keys if show_all or not key.same]
    same = len(comparison.keys) - sum(not key.same for key in comparison.keys)
    tables: list[tuple[str, list[Row]]] = [
        ("Flags and keys", [_key_row(key) for key in keys]),
        ("Memory, if it replaced what runs", _memory_rows(*comparison.plans)),
        ("Measured", _measured_rows(*comparison.measured)),
    ]
    label_cells = max([12, *(len(row[0]) for _, rows in tables for row in rows)])
    label_cells = min(label_cells, max(12, width // 3))
    cells = max(8, (width - label_cells - 4) // 2)
    lines = [_line(("", left, right, "bold $primary", "bold $primary"), label_cells, cells)]
    for title, rows in tables:
        lines += [(), styled_line((title, "bold"))]
        lines += [_line(row, label_cells, cells) for row in rows] or [styled_line((_NOTHING[title], QUIET))]
        if title == "Flags and keys" and same and not show_all:
            lines.append(styled_line((f"{same} other flags and keys are the same in both; a shows them", QUIET)))
    return [truncate_line(line, width) for line in lines]


_NOTHING = {
    "Flags and keys": "Both have the same flags and keys.",
    "Memory, if it replaced what runs": "Not planned.",
    "Measured": "No speed run of either is stored. On the dashboard, b measures what runs.",
}


def _line(row: Row, label_cells: int, cells: int) -> StyledLine:
    label, left, right, left_style, right_style = row
    return styled_line(
        (sanitize_to_width(label, label_cells).ljust(label_cells), QUIET),
        "  ",
        (sanitize_to_width(left, cells).ljust(cells), left_style),
        "  ",
        (sanitize_to_width(right, cells), right_style),
    )


def _key_row(key: ComparedKey) -> Row:
    style = QUIET if key.same else "$accent"
    texts = [value_text(value, units.UNKNOWN) for value in (key.left, key.right)]
    styles = [QUIET if value is None else style for value in (key.left, key.right)]
    return key.label, texts[0], texts[1], styles[0], styles[1]


def _memory_rows(left: MemoryPlan | None, right: MemoryPlan | None) -> list[Row]:
    if left is None or right is None:
        return []
    rows: list[Row] = []
    names = list(dict.fromkeys(device.device for plan in (left, right) for device in plan.devices))
    for name in names:
        texts = []
        for plan in (left, right):
            device = next((device for device in plan.devices if device.device == name), None)
            texts.append(units.need_and_free(device.total_bytes, device.free_bytes) if device else units.UNKNOWN)
        rows.append(("RAM" if name == HOST else name, texts[0], texts[1], "", ""))
    marks = [(MEMORY[judge(plan).fit], plan) for plan in (left, right)]
    verdicts = [(mark.before(short_words(plan)), marked(mark)[1]) for mark, plan in marks]
    rows.append(("verdict", verdicts[0][0], verdicts[1][0], verdicts[0][1], verdicts[1][1]))
    return rows


def _measured_rows(left: RunSummary | None, right: RunSummary | None) -> list[Row]:
    if left is None and right is None:
        return []
    rows: list[Row] = [("run", _run_text(left), _run_text(right), QUIET, QUIET)]
    metrics = [{(metric.name, metric.group): metric for metric in run.metrics} if run else {} for run in (left, right)]
    for key in dict.fromkeys((*metrics[0], *metrics[1])):
        one, two = (side.get(key) for side in metrics)
        rows.append((" ".join(filter(None, key)), _metric_text(one), _metric_text(two), "", ""))
    return rows


def _run_text(run: RunSummary | None) -> str:
    return f"{run.id}, {time_or_date(run.info.created_at)}" if run and run.info else "not measured"


def _metric_text(metric: Metric | None) -> str:
    return f"{format_number(metric.estimate.value)} {metric.unit}" if metric else units.UNKNOWN
