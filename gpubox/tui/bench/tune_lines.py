"""A tune as lines: what it does now, its candidates with their intervals on one scale, and its outcome. Pure."""

from __future__ import annotations

import textwrap
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from gpubox import units
from gpubox.bench.overrides import format_flag_value
from gpubox.bench.report.chart import tick_text, ticks
from gpubox.bench.report.formatting import format_change
from gpubox.sanitize import sanitize_line
from gpubox.tui.styled_lines import (
    QUIET,
    StyledLine,
    cell_width,
    gauge,
    join_lines,
    labelled_line,
    merge_neighbours,
    pad_line,
    sanitize_to_width,
    styled_line,
    truncate_line,
    wrap_parts,
)

if TYPE_CHECKING:
    from gpubox.bench.kinds.tune.progress import FlagChange, TuneCandidate, TuneProgress

GOALS: Mapping[str, str] = {"tg": "most tg", "pp": "most pp", "agent": "most turns of an agent"}
PHASES: Mapping[str, str] = {
    "screening": "one start of each promising candidate",
    "narrowing": "the slower ones drop out",
    "comparing": "the finalists and the profile's own flags, on fresh starts",
    "finished": "",
}
STATES: Mapping[str, tuple[str, str]] = {
    "best": ("★", "bold $success"),
    "finalist": ("◆", "$primary"),
    "measuring": ("▶", "$accent"),
    "waiting": ("·", ""),
    "out": ("✗", QUIET),
}
"""State of a candidate -> its mark and its style."""
REFERENCE = ("=", "$secondary")
"""Of the profile's own flags while they only serve to compare."""
SHORT_FLAGS: Mapping[str, str] = {
    "n-cpu-moe": "ncmoe", "n-gpu-layers": "ngl", "gpu-layers": "ngl", "threads": "t", "threads-batch": "tb",
    "batch-size": "b", "ubatch-size": "ub", "flash-attn": "fa", "parallel": "np", "cache-type-k": "ctk",
    "cache-type-v": "ctv", "ctx-size": "c", "spec-draft-n-max": "draft", "draft-max": "draft",
}  # fmt: skip
"""llama-server's own short names, for narrow columns."""
OWN_NAME = "own flags"
GAUGE_CELLS, LABEL_CELLS = 60, 10
MIN_SCALE_CELLS, MAX_SCALE_CELLS = 14, 64
NARROW, WIDE = 66, 100
"""Below the first there is no word beside the mark of a state; from the second on there is room for a reason."""
MAX_UNMEASURED = 4
"""Candidates without a start that have a row; the others are counted."""
MAX_REASONS = 6


@dataclass(frozen=True, slots=True)
class RateScale:
    """The one scale of all interval bars."""

    low: float
    high: float
    cells: int
    own: float | None = None
    """The rate of the profile's own flags: a line through all bars."""
    empty: bool = False
    """Nothing has a rate yet."""

    def cell(self, value: float) -> int:
        """The column of ``value``, at the edge if it lies outside."""
        return max(0, min(self.cells - 1, round((value - self.low) / (self.high - self.low) * (self.cells - 1))))


@dataclass(frozen=True, slots=True)
class _Columns:
    """The cells of each column of the candidates."""

    flags: tuple[str, ...]
    """A column each; empty: a column of names."""
    heads: tuple[str, ...]
    sizes: tuple[int, ...]
    names: int
    """Of all flags together, or of the names."""
    rate: int
    scale: int
    starts: int
    state: int


def tune_lines(tune: TuneProgress, label: str, now: StyledLine, width: int) -> list[StyledLine]:
    """A tune that is under way. ``label``: the profile; ``now``: the item and the speed of the server."""
    left = f"at most {units.duration(tune.seconds_left)} left" if tune.seconds_left is not None else "no estimate yet"
    starts = styled_line((f"  {tune.starts_done} of at most {tune.starts_limit} starts", "bold"), f"   {left}")
    share = tune.starts_done / tune.starts_limit if tune.starts_limit else 0.0
    gauge_cells = max(8, min(GAUGE_CELLS, width - cell_width(starts)))
    phase = PHASES[tune.phase]
    gap: list[StyledLine] = [()] if width >= WIDE else []  # a narrow pane is a low one
    return [
        truncate_line(_title(tune, label), width),
        truncate_line((*gauge(share, gauge_cells, "$primary"), *starts), width),
        *gap,
        *_labelled("best", best_so_far(tune), width),
        *_labelled("now", [now, styled_line((phase, QUIET))], width),
        (),
        *candidate_lines(tune, width),
        *_counts(tune, width),
    ]


def ended_tune_lines(tune: TuneProgress, label: str, width: int) -> list[StyledLine]:
    """A tune that ended: its verdict, the flags to change, what can be done, and every candidate."""
    changes = tune.changes
    verdict = tune.verdict or "It ended before it could tell; r resumes it."
    rows = [truncate_line(_title(tune, label), width), ()]
    style = "bold" if tune.verdict else "$warning"
    rows += [styled_line((line, style)) for line in textwrap.wrap(sanitize_line(verdict), max(20, width))]
    if changes:
        rows += [(), *(truncate_line(line, width) for line in flag_change_lines(changes))]
    keys: list[StyledLine] = [styled_line(("w", "bold $primary"), " saves it as a profile")] if changes else []
    keys.append(styled_line(("esc", "bold $primary"), " leaves everything as it is"))
    rows += [(), truncate_line(join_lines(keys), width)]
    return [*rows, (), *candidate_lines(tune, width), *_counts(tune, width)]


def _title(tune: TuneProgress, label: str) -> StyledLine:
    return styled_line(
        ("tune  ", "$secondary"), (sanitize_line(label), "bold"), (f"   {GOALS[tune.goal]}, {tune.unit}", QUIET)
    )


def best_so_far(tune: TuneProgress) -> list[StyledLine]:
    """The fastest candidate that was measured: its rate, how it compares with the profile's own flags, its name."""
    measured = [candidate for candidate in tune.candidates if candidate.rate is not None and not candidate.estimated]
    own = next((candidate for candidate in measured if candidate.own), None)
    named = [candidate for candidate in measured if candidate.state == "best"]
    usable = named or [candidate for candidate in measured if candidate.state != "out"]
    if not usable:
        return []
    best = max(usable, key=lambda candidate: candidate.rate or 0.0)
    rate = styled_line((f"{units.rate(best.rate)} {tune.unit}", "bold"))
    if best.own:
        return [rate, styled_line(OWN_NAME)]
    parts = [rate]
    if own and own.rate and best.rate:
        gain = format_change(best.rate / own.rate)
        style = "$success" if best.rate > own.rate else QUIET
        parts.append(styled_line((gain, style), f" against {OWN_NAME} ({units.rate(own.rate)})"))
    return [*parts, styled_line(sanitize_line(best.name))]


def flag_change_lines(changes: Sequence[FlagChange]) -> list[StyledLine]:
    """``n-cpu-moe   22 → 18``, a line for each flag."""
    cells = max(len(change.flag) for change in changes)
    before_cells = max(len(change.before or units.UNKNOWN) for change in changes)
    return [
        styled_line(
            (f"{sanitize_line(change.flag):<{cells}}   ", "$secondary"),
            f"{sanitize_line(change.before or units.UNKNOWN):>{before_cells}}", (" → ", QUIET),
            (sanitize_line(change.after), "bold $success"),
        )
        for change in changes
    ]  # fmt: skip


# -- the candidates ---------------------------------------------------------------------------------------------------


def candidate_lines(tune: TuneProgress, width: int) -> list[StyledLine]:
    """A row for each candidate that was measured, and for the next ones: flags, rate, interval, starts and state."""
    shown, hidden = shown_candidates(tune)
    if not shown:
        return []
    columns = _columns(tune, shown, width)
    scale = rate_scale(tune, shown, columns.scale)
    flag_heads = "  ".join(f"{head:>{size}}" for head, size in zip(columns.heads, columns.sizes, strict=True))
    head = (
        (f"  {flag_heads:<{columns.names}}{tune.unit:>{columns.rate}}  ", QUIET),
        *pad_line(_scale_line(scale), scale.cells),
        (f"{'starts':>{columns.starts}}", QUIET),
    )
    rows: list[StyledLine] = [truncate_line(head, width)]
    for candidate in shown:
        mark, style = REFERENCE if is_reference(candidate) else STATES[candidate.state]
        reason = sanitize_line(candidate.reason)
        row = (
            (f"{mark} ", style),
            *pad_line(_name(candidate, columns), columns.names),
            *_rate(candidate, columns.rate),
            *interval_bar(candidate, scale),
            (f"{candidate.starts or '':>{columns.starts}}", QUIET),
        )
        if columns.state:
            is_short = candidate.state == "out" and 0 < len(reason) <= columns.state
            word = "reference" if is_reference(candidate) else reason if is_short else candidate.state
            row += ((f"  {word}", style),)
        rows.append(truncate_line(row, width))
    counts = [f"{number} {'waits' if number == 1 else 'wait'}" for number in hidden[:1] if number]
    counts += [f"{number} {'is' if number == 1 else 'are'} out" for number in hidden[1:] if number]
    if counts:
        rows.append(truncate_line(styled_line((f"  not shown: {', '.join(counts)}", QUIET)), width))
    return rows


def is_reference(candidate: TuneCandidate) -> bool:
    """Whether it is only there to be compared with: the profile's own flags are never left out."""
    return candidate.own and candidate.state in ("waiting", "out")


def shown_candidates(tune: TuneProgress) -> tuple[list[TuneCandidate], tuple[int, int]]:
    """The profile's own flags, those in the race, the next ones, those that were measured and are out.

    And how many more wait, and are out.

    Within each group the order is that of the tune: the best rate first.
    """
    own = [candidate for candidate in tune.candidates if candidate.own]
    others = [candidate for candidate in tune.candidates if not candidate.own]
    racing = [c for c in others if c.state in ("best", "finalist", "measuring") or (c.state == "waiting" and c.starts)]
    waiting = [c for c in others if c.state == "waiting" and not c.starts]
    promising = [candidate for candidate in waiting if candidate.rate is not None][:MAX_UNMEASURED]
    out = [candidate for candidate in others if candidate.state == "out"]
    measured = [candidate for candidate in out if candidate.starts]
    hidden = len(waiting) - len(promising), len(out) - len(measured)
    return [*own, *racing, *promising, *measured], hidden


def rate_scale(tune: TuneProgress, shown: Sequence[TuneCandidate], cells: int) -> RateScale:
    """Covers the candidates in the race with their intervals, and others no further below than the race is wide.

    The intervals of estimates are wide: they may be cut.
    """
    racing: list[float] = []
    others: list[float] = []
    for candidate in shown:
        if candidate.rate is None:
            continue
        is_racing = not candidate.estimated and (candidate.own or candidate.state != "out")
        ends = [end for end in (candidate.low, candidate.high) if end is not None]
        (racing if is_racing else others).extend([candidate.rate, *(ends if is_racing else ())])
    values = racing or others or [0.0, 1.0]
    low, high = min(values), max(values)
    span = high - low or 0.1 * abs(high) or 1.0
    low, high = max(low - span, min([low, *others])), min(high + span, max([high, *others]))
    margin = 0.04 * (high - low) or 0.05 * abs(high) or 1.0
    own = next((c.rate for c in shown if c.own and not c.estimated), None)
    return RateScale(max(0.0, low - margin), high + margin, cells, own, not (racing or others))


def interval_bar(candidate: TuneCandidate, scale: RateScale) -> StyledLine:
    """The rate as a point in its interval; estimates are drawn with dashes. An interval that is cut has no end.

    ``‹``: the rate lies below the scale.
    """
    cells: list[tuple[str, str]] = [(" ", "")] * scale.cells
    if scale.own is not None:
        cells[scale.cell(scale.own)] = ("┊", QUIET)
    if candidate.rate is not None and not scale.low <= candidate.rate <= scale.high:
        cells[scale.cell(candidate.rate)] = ("‹" if candidate.rate < scale.low else "›", QUIET)
    elif candidate.rate is not None:
        is_quiet = candidate.estimated or candidate.state == "out"
        style = REFERENCE[1] if is_reference(candidate) else QUIET if is_quiet else STATES[candidate.state][1]
        line, point = ("┄", "○") if candidate.estimated else ("─", "●")
        if candidate.low is not None and candidate.high is not None:
            first, last = scale.cell(candidate.low), scale.cell(candidate.high)
            cells[first : last + 1] = [(line, style)] * (last + 1 - first)
            if last > first:
                cells[first] = ("├" if candidate.low >= scale.low else line, style)
                cells[last] = ("┤" if candidate.high <= scale.high else line, style)
        cells[scale.cell(candidate.rate)] = (point, style)
    return merge_neighbours(cells)


def _scale_line(scale: RateScale) -> StyledLine:
    """The round numbers of the scale, each above its column."""
    text = [" "] * (scale.cells + 8)
    end = -1
    for tick in [] if scale.empty else ticks(scale.low, scale.high, max(4, scale.cells // 6)):
        label = tick_text(tick)
        first = scale.cell(tick) - len(label) // 2
        if scale.low <= tick <= scale.high and first > end and first + len(label) <= scale.cells:
            text[first : first + len(label)] = label
            end = first + len(label)
    return styled_line(("".join(text)[: scale.cells], QUIET))


def _rate(candidate: TuneCandidate, cells: int) -> StyledLine:
    text = f"~{units.rate(candidate.rate)}" if candidate.estimated else units.rate(candidate.rate)
    is_quiet = candidate.estimated or (candidate.state == "out" and not candidate.own)
    return styled_line((f"{text:>{cells}}  ", QUIET if is_quiet else "bold"))


def _columns(tune: TuneProgress, shown: Sequence[TuneCandidate], width: int) -> _Columns:
    """A column for each flag, under its full or its short name, as far as that leaves room for the bars.

    Otherwise one column of names.
    """
    rate, starts = max(7, len(tune.unit) + 1), 7
    state = 0 if width < NARROW else 9 if width < WIDE else 26
    room = width - 2 - rate - 2 - starts - (state + 2 if state else 0)
    by_name = sorted(tune.candidates, key=lambda candidate: (-len(candidate.flags), candidate.name))  # stays the same
    flags = tuple(dict.fromkeys(flag for candidate in by_name for flag in candidate.flags))
    for is_full, heads in enumerate(
        (tuple(SHORT_FLAGS.get(flag, sanitize_line(flag)) for flag in flags), tuple(map(sanitize_line, flags)))
    ):
        sizes = tuple(
            max(len(head), *(len(_flag_cell(candidate, flag)) for candidate in shown))
            for flag, head in zip(flags, heads, strict=True)
        )
        names = max(len(OWN_NAME), sum(sizes) + 2 * (len(sizes) - 1))
        scale = min(MAX_SCALE_CELLS, room - names)
        if flags and scale >= (MAX_SCALE_CELLS // 2 if is_full else MIN_SCALE_CELLS):
            columns = _Columns(flags, heads, sizes, names, rate, scale, starts, state)
        elif not is_full:
            longest = max(len(candidate.name) for candidate in shown)
            names = max(len(OWN_NAME), min(room - MIN_SCALE_CELLS, longest))
            return _Columns((), (), (), names, rate, max(1, min(MAX_SCALE_CELLS, room - names)), starts, state)
    return columns


def _name(candidate: TuneCandidate, columns: _Columns) -> StyledLine:
    if candidate.own:
        return styled_line((OWN_NAME, "bold"))
    if not columns.flags:
        return styled_line(sanitize_to_width(candidate.name, columns.names))
    cells = zip(columns.flags, columns.sizes, strict=True)
    return styled_line("  ".join(f"{_flag_cell(candidate, flag):>{size}}" for flag, size in cells))


def _flag_cell(candidate: TuneCandidate, flag: str) -> str:
    """The value, or a dot where it is the profile's own."""
    return sanitize_line(format_flag_value(candidate.flags[flag])) if flag in candidate.flags else "·"


def _counts(tune: TuneProgress, width: int) -> list[StyledLine]:
    """Why candidates are out, and which sets of flags were none, each reason with its number."""
    reasons = Counter(
        candidate.reason or "out" for candidate in tune.candidates if candidate.state == "out" and not candidate.own
    )
    rows: list[StyledLine] = []
    for label, counts in (("out", reasons.most_common()), ("not tried", list(tune.pruned))):
        shown = counts[:MAX_REASONS]
        parts = [styled_line((f"{number} ", "bold"), (sanitize_line(reason), QUIET)) for reason, number in shown]
        if rest := sum(number for _, number in counts[MAX_REASONS:]):
            parts.append(styled_line((f"{rest} ", "bold"), ("for other reasons", QUIET)))
        rows += _labelled(label, parts, width)
    return [(), *rows] if rows else []


def _labelled(label: str, parts: Sequence[StyledLine], width: int) -> list[StyledLine]:
    """The parts behind a label, on as few lines as possible; a dash if there are none and the label is not optional."""
    lines = wrap_parts(parts, width - LABEL_CELLS) or ([()] if label == "best" else [])
    return [labelled_line("" if at else label, line, LABEL_CELLS) for at, line in enumerate(lines)]
