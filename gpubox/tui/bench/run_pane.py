"""The list of runs, and the pane beside it: a report, a comparison, the leaderboard, or the active run."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from rich.cells import cell_len

from gpubox import units
from gpubox.bench.compare.words import about_time
from gpubox.bench.kinds import all_kinds
from gpubox.bench.report.chart import Chart, StyledRow, plot
from gpubox.bench.report.formatting import format_number, item_words
from gpubox.bench.report.model import Series
from gpubox.sanitize import sanitize_line
from gpubox.tui.bench.tune_lines import starts_words, tune_item_words, tune_lines
from gpubox.tui.styled_lines import (
    ROLE_STYLES,
    StyledLine,
    cell_width,
    gauge,
    join_lines,
    pad_line,
    sanitize_to_width,
    styled_line,
    time_or_date,
    truncate_line,
    wrap,
)
from gpubox.tui.widgets.cursor_rows import CursorRows
from gpubox.views.documents import CHART_COLUMNS, Document, document_rows

if TYPE_CHECKING:
    from gpubox.bench.model import Result, RunInfo
    from gpubox.bench.report.model import RunSummary
    from gpubox.bench.report.run_summaries import RunProgress
    from gpubox.telemetry.snapshot import Throughput

STATES = {
    "running": ("●", "$primary"),
    "finished": ("✓", "$success"),
    "interrupted": ("‖", "$warning"),
    "failed": ("✗", "$error"),
    "damaged": ("✗", "$error"),
}
KIND_CELLS, TIME_CELLS, MOST_NAME_CELLS = 10, 7, 26
BESIDE_NAME_CELLS = 38
"""Cells of the marks, of a result such as ``18/30 writes 57.9 tok/s``, and of the time."""


class RunRows(CursorRows["RunSummary"]):
    """The rows. Enter shows the report of a run alone."""

    EMPTY_TEXT = "No runs yet. n plans one; b measures the active profile."
    KEY = "id"

    marked: tuple[str, ...] = ()
    """Ids of the runs to compare, at most two."""

    _widest_name = MOST_NAME_CELLS

    def show_values(self, values: tuple[RunSummary, ...]) -> None:
        self._widest_name = max((cell_len(_name(run)) for run in values), default=0)
        super().show_values(values)

    def make_row(self, value: RunSummary, width: int) -> StyledLine:
        info = value.info
        glyph, colour = STATES.get(value.state, ("?", "$warning"))
        number = f"{self.marked.index(value.id) + 1}" if value.id in self.marked else " "
        room = width - BESIDE_NAME_CELLS
        name_cells = max(10, min(MOST_NAME_CELLS, self._widest_name, room))
        kind = f" {value.kind:<{KIND_CELLS - 1}.{KIND_CELLS - 1}}" if room - name_cells >= KIND_CELLS else ""
        time = f" {time_or_date(info.created_at) if info else '':>{TIME_CELLS - 1}}"
        style = "$error" if value.problem else "$quiet" if value.state in ("interrupted", "running") else ""
        name = sanitize_to_width(_name(value), name_cells)
        left = (
            *styled_line((number, "bold $accent"), " ", (glyph, colour), " "),
            *pad_line(styled_line((name, "bold")), name_cells),
            (" ", ""),
        )
        cells = width - cell_width(left) - len(kind) - len(time)
        pending = (f"{value.restore_pending} is not restored",) if has_pending_restore(value) else ()
        doubts = f"  ! {sanitize_line(', '.join((*value.doubts, *pending)))}" if value.doubts or pending else ""
        result = _result(value)
        if cell_len(result) + len(doubts) > cells:
            result = result.replace("writes ", "")
            doubts = doubts if cell_len(result) + len(doubts) <= cells else doubts and "  ! doubtful"  # see its report
        middle = styled_line((sanitize_to_width(result, cells - len(doubts)), style), (doubts, "$warning"))
        return (*left, *pad_line(middle, cells), (kind, "$secondary"), (time, "$quiet"))

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


def _name(run: RunSummary) -> str:
    return measured_label(run.info) if run.info else run.id


def _result(run: RunSummary) -> str:
    """What a run has found, in a row; of one without an end also how far it is."""
    result = run.headline.removeprefix("fastest so far ").partition("  ! ")[0] or run.problem
    unfinished = run.state in ("interrupted", "running") and run.kind != "tune"  # it needs few of its items
    return sanitize_line(f"{run.done}/{run.items} {result}".strip() if unfinished else result)


def measured_label(info: RunInfo) -> str:
    """The targets that a run measures; of a sweep or a tune the profile instead of each cell."""
    targets = [target for target in info.plan.targets if not target.stopped]
    profiles = dict.fromkeys(target.profile for target in targets)
    if info.plan.kind == "tune":
        return " ".join(profiles)
    if info.plan.kind != "sweep":
        return ", ".join(target.name for target in targets) or info.id
    return " ".join([*profiles, *map(str, info.plan.options.get("axes", ()))])


def has_best_cell(run: RunSummary) -> bool:
    """Whether the run is a sweep or a tune with flags to save."""
    kind = run.info.plan.kind if run.info and run.headline else ""
    return run.state == "finished" if kind == "tune" else kind == "sweep" and run.state != "running"


def has_pending_restore(run: RunSummary) -> bool:
    """Whether the run was killed before it restored the server that ran before it."""
    return bool(run.info and run.info.restore_pending and run.state != "running")


# -- the pane beside the list -----------------------------------------------------------------------------------------

_SERIES_STYLES = ("$primary", "$accent", "$success", "$mem-kv", "$error", "$secondary")
TEXT_STYLES = ROLE_STYLES | {"": "", "head": "bold"} | {f"s{n}": style for n, style in enumerate(_SERIES_STYLES)}
"""Role of a text in a report -> its style."""
GAUGE_COLUMNS = 60


def document_lines(documents: Sequence[Document], width: int) -> list[StyledLine]:
    """A report, a comparison or the leaderboards of all protocols."""
    lines: list[StyledLine] = []
    for document in documents:
        lines += [
            *([()] if lines else []),
            *_styled(document_rows(document, width, plots=True), width),
        ]
    return lines


def kind_overview_lines(width: int) -> list[StyledLine]:
    """What each kind of run measures; shown while there is no run."""
    rows = [styled_line((f"{kind.name:<11}", "$secondary"), kind.summary) for kind in all_kinds().values()]
    rows += [(), styled_line(("n", "bold $primary"), (" plans any of them", "$quiet"))]
    return [truncate_line(row, width) for row in rows]


def active_run_lines(run: RunProgress, throughput: Throughput | None, width: int) -> list[StyledLine]:
    """The active run: its progress, the speed of the server, each value so far, and the last items."""
    info = run.info
    doubts = [styled_line(("! ", "$warning"), (f"{doubt.kind}: {sanitize_line(doubt.text)}", "$warning"))
             for doubt in info.doubts]  # fmt: skip
    if run.tune:
        now = styled_line(sanitize_line(tune_item_words(run.now)) or units.UNKNOWN, *_server_spans(throughput))
        return [*tune_lines(run.tune, measured_label(info), now, width), *doubts]
    share = run.done / info.items if info.items else 0.0
    left = f"about {about_time(run.seconds_left)} left" if run.seconds_left is not None else "no estimate yet"
    failed = (f"   {run.failed} without a value", "$warning") if run.failed else ("", "")
    title = styled_line((f"{info.plan.kind}  ", "$secondary"), (sanitize_line(measured_label(info)), "bold"))
    item = item_words(sanitize_line(run.now)) or units.UNKNOWN
    rows = [
        truncate_line(title, width),
        (),
        gauge(share, min(width, GAUGE_COLUMNS), "$primary"),
        styled_line((f"{run.done} of {info.items} measurements", "bold"), ("   ", ""), (left, ""), failed),
        (),
        styled_line(("so far   ", "$quiet"), (run.headline or units.UNKNOWN, "bold")),
        *wrap(styled_line(("now      ", "$quiet"), item, *_server_spans(throughput)), width, rest=((" " * 9, ""),)),
    ]
    rows += doubts
    if len(run.values) > 1:
        series = Series(run.value_name, "", "measurement", "", run.values)
        heading = f"{run.value_name}, one measurement after the other"
        chart = plot(Chart(heading, "", "measurement", series=(series,)), min(width, CHART_COLUMNS), height=8)
        rows += [(), *_styled(chart, width)]
    if run.last:
        cells = min(max(cell_len(item_words(sanitize_line(own.item))) for own in run.last), max(16, width - 26))
        rows += [(), styled_line(("Last measurements", "bold"))]
        for result in reversed(run.last):
            rows += wrap(_result_line(result, cells), width, rest=(("  ", ""),))
    return rows


def _result_line(result: Result, name_cells: int) -> StyledLine:
    mark = ("✓ ", "$success") if result.ok else ("✗ ", "$error")
    value, passed = result.values.get("tg"), result.values.get("passed")
    outcome = f"tg {format_number(value)} tok/s" if isinstance(value, float) else sanitize_line(result.error)
    if not outcome and passed in (True, False):
        outcome = "passed" if passed else "failed"
    doubts = "".join(f"  ! {doubt.kind}" for doubt in result.doubts)
    name = f"{sanitize_to_width(item_words(result.item), name_cells):<{name_cells}} "
    seconds = (f"{units.duration(result.seconds):>8}  ", "$quiet")
    return styled_line(mark, name, seconds, (outcome, "" if result.ok else "$error"), (doubts, "$warning"))


def _server_spans(throughput: Throughput | None) -> StyledLine:
    """What the server is doing, in the words of the dashboard."""
    if throughput is None or throughput.state in ("idle", ""):
        return ()
    if throughput.state == "prefill":
        progress = throughput.prefill_progress
        share = f" {progress:.0%}" if progress is not None else ""
        return styled_line((f"   reading{share}, pp {units.rate(throughput.pp_tokens_per_second)} tok/s", "$accent"))
    return styled_line((f"   {throughput.state}, tg {units.rate(throughput.tg_tokens_per_second)} tok/s", "$accent"))


def summary_line(runs: int, active: RunProgress | None, marked: int, width: int) -> StyledLine:
    """The line above the list of runs: how many there are, the active one, and how many are marked."""
    count = styled_line(("Bench", "bold $primary"), (f"   {runs} {'run' if runs == 1 else 'runs'}", "$quiet"))
    progress: StyledLine = ()
    if active:
        # a tune has its own count: of its items nobody knows how many follow
        seconds, most = (active.tune.seconds_left, "at most") if active.tune else (active.seconds_left, "about")
        left = f"  {most} {about_time(seconds)} left" if seconds is not None else ""
        count_words = starts_words(active.tune) if active.tune else active.count
        done = f"{active.info.plan.kind} {count_words}"
        progress = styled_line(("● ", "$primary"), done, (left, "$quiet"))
    marks = styled_line((f"{marked} marked", "$accent")) if marked else ()
    return truncate_line(join_lines([count, progress, marks]), width)


def _styled(rows: Iterable[StyledRow], width: int) -> list[StyledLine]:
    """Rows of a report in the colours of the screen."""
    return [truncate_line(styled_line(*((text, TEXT_STYLES[role]) for text, role in row)), width) for row in rows]
