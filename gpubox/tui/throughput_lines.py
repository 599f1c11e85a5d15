"""The throughput pane's lines: what fits into its height. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpubox.tui import axis, graph
from gpubox.tui.dashboard import throughput as view
from gpubox.tui.styled_lines import StyledLine, sanitize_to_width

if TYPE_CHECKING:
    from gpubox.telemetry.history import History
    from gpubox.telemetry.snapshot import Snapshot

MIN_GRAPH_ROWS = 2
WIDE_SECONDS, SECONDS = 600.0, 300.0
WIDE_CELLS = 90


def lines(snapshot: Snapshot, history: History | None, width: int, height: int) -> list[StyledLine]:
    """State, graph, prompt side, speculation, context, busy slots, what could not be read."""
    makers = (view.reading_line, view.draft_line, view.context_line)
    quiet = snapshot.throughput.state in ("down", "loading", "stopping")
    under = [] if quiet else [row for maker in makers if (row := maker(snapshot, width))]
    spare = height - 1 - len(under)
    busy = view.slot_lines(snapshot, width, max(0, min(8, spare - MIN_GRAPH_ROWS - 1)))
    spare -= len(busy)
    problems = view.problem_lines(snapshot, min(2, spare - MIN_GRAPH_ROWS - 1))
    rows = [view.state_line(snapshot, width)]
    rows += _graph(snapshot, history, width, spare - len(problems))
    return (rows + under + busy + problems)[: max(1, height)]


def _graph(snapshot: Snapshot, history: History | None, width: int, rows: int) -> list[StyledLine]:
    """The graph with its time axis, ``rows`` rows in all; nothing where there is no room."""
    columns = width - axis.AXIS_CELLS
    if rows < MIN_GRAPH_ROWS + 1 or columns < 10:
        return []
    seconds = WIDE_SECONDS if columns >= WIDE_CELLS else SECONDS
    now = graph.step_now(snapshot.at, seconds, columns)
    values = history.columns(columns, seconds, now) if history else [None] * columns
    marks = history.mark_columns(columns, seconds, now) if history else {}
    top = graph.nice_top(history.peak if history else None)
    said = {at: (mark.kind, sanitize_to_width(mark.text, 24)) for at, mark in marks.items()}
    reading = history.reading_columns(columns, seconds, now) if history else frozenset[int]()
    return [*graph.graph(values, top, rows - 1, reading), axis.time_axis(columns, seconds, said)]
