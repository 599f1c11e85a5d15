"""The throughput pane: state and speed now, the graph, prompt processing, speculation, context and busy slots."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import datetime
from typing import TYPE_CHECKING

from gpubox import units
from gpubox.sanitize import sanitize_line
from gpubox.tui.dashboard import graph
from gpubox.tui.styled_lines import (
    QUIET,
    StyledLine,
    block_bar,
    cell_width,
    fact,
    figure,
    fit_by_priority,
    gauge,
    join_lines,
    labelled_line,
    sanitize_to_width,
    styled_line,
    wrap_text,
)
from gpubox.tui.widgets.header import SERVER_STATES
from gpubox.tui.widgets.lines import SnapshotPane
from gpubox.views.marks import STATE_WORDS
from gpubox.views.requests import context_words

if TYPE_CHECKING:
    from gpubox.gateway.gateway_status import GatewayStatus
    from gpubox.telemetry.history.values import Slowdown
    from gpubox.telemetry.recent import History
    from gpubox.telemetry.snapshot import SlotReading, Snapshot
    from gpubox.tui.dashboard.graph import StoredGraph, Zoom
    from gpubox.tui.remembered import LastSeen

LABEL_CELLS = 9
CHANGED_CELLS = 60
TOGETHER_SECONDS = 2 * 86_400.0
"""tg and pp that fell within this time fell together."""
NOT_SLOWER = "No profile is slower than before, as far as the history goes back."
BAR_CELLS = 6
TOLD_STATES = ("stuck", "lost")
"""Their first line says the first problem."""
MIN_GRAPH_ROWS, MIN_GRAPH_COLUMNS, GRAPH_TITLE_CELLS = 2, 10, 24
READING = "reading the history"
CLIENT_CELLS = 16
NARROW_GRAPH_SECONDS, WIDE_GRAPH_SECONDS, WIDE_GRAPH_COLUMNS = 300.0, 600.0, 90


class ThroughputPane(SnapshotPane):
    """Draws what fits into the pane's height; the graph takes the rows that the text leaves."""

    own_height = False

    def __init__(self) -> None:
        super().__init__()
        self.history: History | None = None
        self.age = ""
        """Of what the screen showed last."""
        self.stuck_keys = ""
        """What the owner can press about a server that is stuck."""
        self.client = ""
        """Whose request the server works on, if it is one client's alone."""

        self.wants_history: Callable[[], object] = lambda: None
        """Called when the graph of ``zoom`` is missing, and there is room for it."""
        self.zoom: Zoom | None = None
        """A zoom into the history; None: the last minutes."""
        self.stored: StoredGraph | None = None
        self.history_problem = ""
        """Why the history cannot be read."""
        self.slowdowns: tuple[Slowdown, ...] = ()
        self._span = self._legend = ""
        self._live_graph: tuple[object, list[StyledLine]] = (None, [])
        """The graph of the last minutes as it was drawn last, and of what."""

    @property
    def graph_columns(self) -> int:
        """How many columns the graph has; 0: there is no room for it."""
        columns = self.content_size.width - graph.AXIS_CELLS
        return columns if columns >= MIN_GRAPH_COLUMNS else 0

    def title(self, snapshot: Snapshot) -> str:
        title = f"Throughput, {self._span}" if self._span else "Throughput"
        return f"{title}   {self._legend}" if self.compact and self._legend else title

    def last_lines(self, last: LastSeen, width: int) -> list[StyledLine]:
        speed = f"{units.rate(last.tokens_per_second)} tok/s" if last.tokens_per_second else None
        state = STATE_WORDS.get(last.state, last.state)
        parts = [(9, fact("", f"… was {state}")), (8, fact("", speed)), (10, fact("", self.age))]
        return [fit_by_priority(parts, width)]

    def lines(self, snapshot: Snapshot, width: int, height: int) -> list[StyledLine]:
        details: list[StyledLine] = []
        if snapshot.throughput.state not in ("down", "loading", "stopping"):
            makers = [_prompt_line, _draft_line, _context_line]
            if snapshot.throughput.state == "sleeping":
                del makers[1:]  # nothing is loaded
            details = [row for make_line in makers if (row := make_line(snapshot, width))]
        state = state_lines(snapshot, width, self.client, self.stuck_keys)
        spare = height - len(state) - len(details) - MIN_GRAPH_ROWS - 1
        slower = self._slower_lines(snapshot, width) if spare > 0 else []
        spare -= len(slower)
        slots = _slot_lines(snapshot, width, max(0, min(8, spare)))
        spare -= len(slots)
        problems = _problem_lines(snapshot, width, max(0, spare))
        rows = spare - len(problems) + MIN_GRAPH_ROWS + 1
        graph_rows = self._graph(snapshot, width, rows)
        texts = [*details, *slower, *slots, *problems]
        return [*state, *graph_rows, *texts][: max(1, height)]

    def draw(self) -> None:
        super().draw()
        if self.border_subtitle != self._legend:
            self.border_subtitle = self._legend

    watch_snapshot = watch_stale = watch_compact = on_resize = on_show = draw

    def _graph(self, snapshot: Snapshot, width: int, height: int) -> list[StyledLine]:
        """The graph with its time axis, ``height`` rows in all; empty if there is no room."""
        rows = self._graph_rows(snapshot, width, height)
        self._legend = graph.legend(rows, width - (GRAPH_TITLE_CELLS if self.compact else 4))
        return rows

    def _graph_rows(self, snapshot: Snapshot, width: int, height: int) -> list[StyledLine]:
        self._span = ""
        if height < MIN_GRAPH_ROWS + 1 or width - graph.AXIS_CELLS < MIN_GRAPH_COLUMNS:
            return []
        if self.zoom is None:
            assert self.history is not None  # set before the first snapshot
            seconds = _live_seconds(width - graph.AXIS_CELLS)
            self._span = f"{seconds / 60:g} min"
            of = (int(snapshot.at), snapshot.throughput.state, snapshot.server.profile, width, height)
            if self._live_graph[0] != of:  # a column is of some seconds: twice a second nobody sees a difference
                self._live_graph = of, _graph_lines(snapshot, self.history, width, height, seconds)
            return self._live_graph[1]
        self._span = self.zoom.name
        rows = self._problem_rows(width)[: height - MIN_GRAPH_ROWS - 1]
        if self.stored and self.stored.zoom is self.zoom:
            rows += graph.stored_lines(self.stored, width, height - len(rows))
        elif not rows:
            rows = [styled_line((READING, QUIET))]
            self.wants_history()
        return [*rows, *[()] * (height - len(rows))]  # the lines below stay where they are

    def _problem_rows(self, width: int) -> list[StyledLine]:
        return _warning(self.history_problem, width) if self.history_problem else []

    def _slower_lines(self, snapshot: Snapshot, width: int) -> list[StyledLine]:
        profile = snapshot.server.profile
        if not self.slowdowns or not profile:
            return []
        line = slower_line(self.slowdowns, profile, width)
        return [line] if line else []


def live_client(gateway: GatewayStatus | None, snapshot: Snapshot) -> str:
    """Whose request the server works on: only if it works on one, and the gateway sent it one."""
    if gateway is None or snapshot.throughput.busy_slots != 1:
        return ""
    profile = snapshot.server.profile
    live = [r.client for r in gateway.requests if r.profile == profile and r.state != "waiting"]
    return live[0] if len(live) == 1 else ""


def _live_seconds(columns: int) -> float:
    return WIDE_GRAPH_SECONDS if columns >= WIDE_GRAPH_COLUMNS else NARROW_GRAPH_SECONDS


def _graph_lines(snapshot: Snapshot, history: History, width: int, height: int, seconds: float) -> list[StyledLine]:
    """The graph of the last ``seconds`` with its time axis, ``height`` rows in all."""
    columns = width - graph.AXIS_CELLS
    now = graph.right_edge(snapshot.at, seconds, columns)
    marks = history.mark_columns(columns, seconds, now)
    events = {column: (mark.kind, sanitize_to_width(mark.text, 24)) for column, mark in marks.items()}
    values, prefill = history.columns(columns, seconds, now), history.reading_columns(columns, seconds, now)
    area = graph.area_graph(values, graph.axis_top(history.peak), height - 1, prefill)
    return [*area, graph.time_axis(columns, seconds, events)]


# -- the first line -------------------------------------------------------------------------------------


def state_lines(snapshot: Snapshot, width: int, client: str = "", keys: str = "") -> list[StyledLine]:
    """What the server does now, how fast, and for whom if that is known. Why it does nothing is never cut."""
    asked_by = fact("for ", sanitize_to_width(client, CLIENT_CELLS))
    throughput, server = snapshot.throughput, snapshot.server
    state = throughput.state
    if state == "down" and server.state == "crashed":
        return wrap_text(server.message, width, "", styled_line(("✗ crashed", "bold $error")))
    if state == "prefill":
        return [_prefill_line(snapshot, width, asked_by)]
    glyph, colour, meaning = SERVER_STATES.get(state, ("●", "$primary", ""))
    head = styled_line((f"{glyph} {STATE_WORDS.get(state, state)}", f"bold {colour}"))
    median = None if throughput.tg_median is None else units.rate(throughput.tg_median)
    if state == "answering":
        now = fact("", units.rate(throughput.tg_tokens_per_second), " tok/s", "bold $primary")
        usual = figure("usual", fact("usual ", median))
        return [fit_by_priority([(1, head), (9, figure("tg", now)), (8, usual), (6, asked_by)], width)]
    if state == "idle" and median:
        return [fit_by_priority([(9, head), (8, figure("usual", fact("usual ", median, " tok/s")))], width)]
    told = snapshot.problems[:1] if state in TOLD_STATES else ()
    reason = "; ".join(filter(None, [*told, keys if state == "stuck" else ""]))
    if state == "down" and server.state in ("stopped", "unreachable", "error"):
        head = styled_line((f"{glyph} {server.state}", f"bold {colour}"))
        reason = server.message
    if reason:
        return wrap_text(reason, width, "", head)
    return [fit_by_priority([(10, head), (5, styled_line((meaning, QUIET)))], width)]


def _prefill_line(snapshot: Snapshot, width: int, asked_by: StyledLine) -> StyledLine:
    """``reading ▓▓▓▓░░ 62%  41.2k of 66.3k  548 tok/s  ETA 0:46``."""
    throughput = snapshot.throughput
    slot = next((slot for slot in snapshot.slots if slot.state == "prefill"), None)
    progress, eta = throughput.prefill_progress, throughput.eta_seconds
    done, total = (slot.prompt_done_tokens, slot.prompt_tokens) if slot else (None, None)
    amount = f"{units.tokens(done)} of {units.tokens(total)}" if total else f"{units.tokens(done)} tokens"
    parts = [
        (10, fact("", "● reading", style="bold $accent")),
        (9, fact("", None if progress is None else f"{progress:.0%}", style="bold $accent")),
        (6, fact("", amount)),
        (7, figure("pp", fact("", units.rate(throughput.pp_tokens_per_second), " tok/s"))),
        (8, fact("ETA ", None if eta is None else _minutes(eta), style="bold")),
        (5, asked_by),
    ]
    if progress is None:
        return fit_by_priority(parts, width)
    if width < 30:
        return fit_by_priority(parts, width, "  ")
    # The bar is reserved before the other parts: it is read fastest.
    room = width - cell_width(join_lines([part for _, part in parts], "  ")) - 1
    bar = block_bar(progress, max(BAR_CELLS, min(room, 30)))
    text = fit_by_priority(parts, width - len(bar) - 1, "  ")
    return (text[0], (f" {bar}", "$accent"), *text[1:])


def _minutes(value: float) -> str:
    """``0:46`` or ``1:02:46``."""
    minutes, seconds = divmod(max(0, round(value)), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{seconds:02d}" if hours else f"{minutes}:{seconds:02d}"


# -- the lines below the graph --------------------------------------------------------------------------


def _prompt_line(snapshot: Snapshot, width: int) -> StyledLine:
    """Prompt processing of one request: the one being read, else the last finished one."""
    throughput = snapshot.throughput
    slot = next((slot for slot in snapshot.slots if slot.state == "prefill"), None)
    source = slot or next(iter(snapshot.requests), None)
    ttft = units.duration_at_least(throughput.ttft_seconds, throughput.slot_ttft_seconds)
    reused: StyledLine = ()
    if source and source.prompt_tokens and source.cached_tokens is not None:
        share = f"{source.cached_tokens / source.prompt_tokens:.0%} of {units.tokens(source.prompt_tokens)}"
        reused = fact("reused ", share)
    speed = throughput.pp_tokens_per_second
    parts = [
        (9, figure("pp", fact("" if slot else "last ", units.rate(speed) if slot or speed else None, " tok/s"))),
        (8, figure("TTFT", fact("TTFT ", ttft if ttft != units.UNKNOWN and not slot else None))),
        (7, figure("reused", reused)),
    ]
    return labelled_line("reading" if slot else "prompt", fit_by_priority(parts, width - LABEL_CELLS), LABEL_CELLS)


def _draft_line(snapshot: Snapshot, width: int) -> StyledLine:
    """Speculative decoding: acceptance, mean accepted length, acceptance per draft position."""
    throughput = snapshot.throughput
    if throughput.draft_acceptance is None:
        return ()
    last = next((request for request in snapshot.requests if request.draft_tokens), None)
    acceptance = f"{throughput.draft_acceptance:.1%}"
    counts = f"last {last.draft_tokens_accepted:,} of {last.draft_tokens:,} " if last else ""
    length = throughput.mean_accepted_length
    positions = "  ".join(f"{at}: {share:.0%}" for at, share in enumerate(throughput.accepted_per_position[:8], 1))
    parts = [
        (9, styled_line(counts, (f"({acceptance})" if counts else acceptance, "bold"))),
        (8, fact("", None if length is None else f"{length:.2f}", " tokens/step")),
        (7, fact("drafted token ", positions)),
    ]
    parts = [(priority, figure("draft", part)) for priority, part in parts]
    return labelled_line("draft", fit_by_priority(parts, width - LABEL_CELLS), LABEL_CELLS)


def _context_line(snapshot: Snapshot, width: int) -> StyledLine:
    """Context used by the fullest slot, busy slots and queued requests."""
    throughput = snapshot.throughput
    used, size = throughput.context_used_tokens, throughput.context_size_tokens
    slots: StyledLine = ()
    if throughput.slots is not None:
        queued = f"  ◌ {throughput.queued_requests} queued" if throughput.queued_requests else ""
        busy = f"{units.UNKNOWN if throughput.busy_slots is None else throughput.busy_slots} of {throughput.slots}"
        slots = styled_line(("slots ", QUIET), busy, (" busy", QUIET), (queued, "bold $warning"))
        slots = figure("slots", slots)
    if size is None:
        return labelled_line("context", slots, LABEL_CELLS)
    share = (used or 0) / size if size else 0
    known = used is not None
    amount = figure("context", styled_line(context_words(used, size, throughput.slots)))
    percent = styled_line((f"{share:.0%}".rjust(4) if known else "", "$warning" if share >= 0.9 else ""))
    room = width - LABEL_CELLS - cell_width(join_lines([amount, percent, slots])) - 3
    bar = gauge(share, min(room, 24), "$warning" if share >= 0.9 else "$secondary") if known and room >= 5 else ()
    parts = [(8, amount), (5, join_lines([bar, percent], " ")), (9, slots)]
    return labelled_line("context", fit_by_priority(parts, width - LABEL_CELLS), LABEL_CELLS)


def _slot_lines(snapshot: Snapshot, width: int, height: int) -> list[StyledLine]:
    """One line per busy slot if several are busy; the last line counts those without room."""
    busy = [slot for slot in snapshot.slots if slot.state != "idle"]
    if len(busy) < 2 or height < 1:
        return []
    shown = busy if len(busy) <= height else busy[: height - 1]
    rows = [labelled_line(f"slot {slot.index}", _slot_parts(slot, width - LABEL_CELLS), LABEL_CELLS) for slot in shown]
    if len(shown) < len(busy):
        rows.append(styled_line((f"{len(busy) - len(shown)} more busy slots", QUIET)))
    return rows


def _slot_parts(slot: SlotReading, width: int) -> StyledLine:
    glyph, colour, _ = SERVER_STATES.get(slot.state, ("●", "$primary", ""))
    if slot.state == "prefill":
        progress = f"{slot.prefill_progress:.0%}" if slot.prefill_progress is not None else units.UNKNOWN
        total = f" of {units.tokens(slot.prompt_tokens)}" if slot.prompt_tokens else ""
        work = [(8, fact("", f"{progress:>5}{total}")), (7, fact("", units.rate(slot.pp_tokens_per_second), " tok/s"))]
    else:
        speed = units.rate(slot.tg_tokens_per_second).rjust(5)
        work = [(8, fact("", speed, " tok/s")), (7, fact("", units.tokens(slot.generated_tokens), " out"))]
    used, size = slot.context_used_tokens, slot.context_size_tokens
    context = figure("context", fact("context ", context_words(used, size) if used is not None else None))
    state = STATE_WORDS.get(slot.state, slot.state)
    return fit_by_priority([(9, fact("", f"{glyph} {state:9}", style=colour)), *work, (6, context)], width)


def _problem_lines(snapshot: Snapshot, width: int, height: int) -> list[StyledLine]:
    """What could not be read, as far as it fits whole; the first line may show the first problem already."""
    problems = snapshot.problems
    if snapshot.throughput.state in TOLD_STATES:
        problems = tuple(problem for problem in problems if problem != problems[0])
    rows: list[StyledLine] = []
    for problem in problems[:2]:
        lines = _warning(problem, width)
        rows += lines if len(rows) + len(lines) <= height else []
    return rows


def _warning(text: str, width: int) -> list[StyledLine]:
    return [((" !"[not at] + " ", "$warning"), *line) for at, line in enumerate(wrap_text(text, width - 2, QUIET))]


# -- slower than before ---------------------------------------------------------------------------------


def slower_line(slowdowns: Sequence[Slowdown], profile: str, width: int) -> StyledLine:
    """The newest slowdown of ``profile``, tg and pp together if both fell at that time; empty if there is none."""
    own = [slowdown for slowdown in slowdowns if slowdown.profile == profile]
    if not own:
        return ()
    newest = max(slowdown.since for slowdown in own)
    together = sorted((s for s in own if newest - s.since <= TOGETHER_SECONDS), key=lambda s: s.rate != "tg")
    first = together[0]
    rates = ", ".join(f"{slowdown.rate} {-slowdown.change:.0%}" for slowdown in together)
    changed = sanitize_to_width(first.changed[0], CHANGED_CELLS) if first.changed else ""
    parts: list[tuple[int, StyledLine]] = [
        (10, styled_line(("↓ ", "$warning"), f"{rates} slower")),
        (9, styled_line(("since " if first.later_starts > 1 else "since this start, ", QUIET), _moment(first.since))),
        (6, styled_line((f"{units.rate(first.before)} → {units.rate(first.after)} tok/s", QUIET))),
        (7, styled_line((changed, QUIET))),
        (8, styled_line(("why: menu (x)", QUIET))),
    ]
    return fit_by_priority(parts, width)


def slower_fields(slowdowns: Sequence[Slowdown]) -> list[tuple[str, str]]:
    """The sentence and the figures of all slowdowns, the newest first: (name, value)."""
    from gpubox.views.history import slowdown_figures  # not before the first paint

    fields: list[tuple[str, str]] = []
    for slowdown in sorted(slowdowns, key=lambda slowdown: slowdown.since, reverse=True):
        name = sanitize_to_width(slowdown.profile, CHANGED_CELLS)
        fields += [(name, sanitize_line(slowdown.sentence)), ("", slowdown_figures(slowdown)), ("", "")]
    return fields[:-1]


def _moment(at: float) -> str:
    return f"{datetime.fromtimestamp(at):%a %d %b %H:%M}"
