"""Profiles in order of what they reached, of the last finished run of each under one protocol. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from gpubox.bench.report.formatting import format_interval, format_number
from gpubox.bench.report.model import Estimate, Metric
from gpubox.bench.report.noise_history import NoiseHistory, describe_noise, protocol_key
from gpubox.bench.report.plot import StyledRow
from gpubox.bench.report.report_rows import table_rows, wrapped_rows
from gpubox.bench.report.run_comparison import SPEED_UNITS
from gpubox.bench.report.run_summaries import RunSummary
from gpubox.bench.start_comparison import (
    LEVEL,
    MIN_STARTS,
    Noise,
    Start,
    compare_starts,
    compare_unpaired,
    effective_sample_size,
    satterthwaite,
)
from gpubox.bench.stats import t_quantile
from gpubox.sanitize import sanitize_line

RANKING_METRICS = {
    "suite": ("points",),
    "humaneval": ("pass@1",),
    "speed": ("tg",),
    "soak": ("tg",),
}
"""What a kind's runs are ranked by: the first of these names that it has. Other kinds compare by themselves."""
MOST_COLUMNS = 6


@dataclass(frozen=True, slots=True)
class LeaderboardEntry:
    """One profile. ``tied``: it is not surely behind the first."""

    rank: int
    name: str
    run: str
    model: str
    values: tuple[Estimate | None, ...]
    """By the board's groups; the first decides."""
    tied: bool
    flagged: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Leaderboard:
    """Who may be compared with whom: one kind, one protocol."""

    kind: str
    title: str
    metric: str
    unit: str
    groups: tuple[str, ...]
    places: tuple[LeaderboardEntry, ...]
    note: str = ""
    """How ties were told."""


def make_leaderboards(
    heads: Sequence[RunSummary], kind: str = "", history: NoiseHistory | None = None
) -> list[Leaderboard]:
    """One for each protocol that was run, the last one run first. Only finished runs count.

    ``history``: how much this box's runs differ by themselves; without it that is assumed.
    """
    found: dict[tuple[str, str], list[RunSummary]] = {}
    for head in heads:
        plan = head.info.plan if head.info and head.state == "finished" else None
        if plan and head.metrics and plan.kind in RANKING_METRICS and kind in ("", plan.kind):
            found.setdefault((plan.kind, protocol_key(plan.options)), []).append(head)
    made = [_board(kind_, runs, history) for (kind_, _), runs in reversed(found.items())]
    return sorted((board for board in made if board), key=lambda board: list(RANKING_METRICS).index(board.kind))


def leaderboard_rows(found: Sequence[Leaderboard], width: int | None = None) -> Iterator[StyledRow]:
    """For a terminal; where it is narrow, the groups that do not decide give way."""
    if not found:
        yield (("No finished run can be ranked yet.", "quiet"),)
    for number_, board in enumerate(found):
        if number_:
            yield ()
        unit = f", {board.unit}" if board.unit else ""
        yield ((f"{board.kind}: {sanitize_line(board.title)}", "head"), (f"  {board.metric}{unit}", "quiet"))
        shown = len(board.groups)
        made = list(_places(board, shown))
        while shown > 1 and width is not None and max(len(row[0][0]) for row in made) > width:
            shown -= 1
            made = list(_places(board, shown))
        yield from made
    if any(place.tied and place.rank > 1 for board in found for place in board.places):
        yield (("≈ not surely behind the first: they may be equal", "quiet"),)
    for text in dict.fromkeys(board.note for board in found if board.note):
        yield from wrapped_rows(text, "quiet", width)
    for board in found:
        for text in flagged_entries(board):
            yield from wrapped_rows(text, "doubt", width)


def flagged_entries(board: Leaderboard) -> Iterator[str]:
    """A sentence for each place whose run was flagged."""
    for place in board.places:
        if place.flagged:
            yield f"! {board.kind}, {sanitize_line(place.name)} is doubtful: {', '.join(place.flagged)}"


def _places(board: Leaderboard, shown: int) -> Iterator[StyledRow]:
    """A row for each profile, with the first ``shown`` groups."""
    heads = [group or board.metric for group in board.groups[:shown]]
    columns = [("", "PROFILE", heads[0], "95 % CI", "N", "", *heads[1:], "RUN")]
    for place in board.places:
        first = place.values[0]
        mark = " ".join(filter(None, ("≈" if place.tied and place.rank > 1 else "", "!" if place.flagged else "")))
        cells = [format_number(value.value) if value else "—" for value in place.values[:shown]]
        ends, n = (format_interval(first), str(first.n)) if first else ("", "")
        columns.append((str(place.rank), place.name, cells[0], ends, n, mark, *cells[1:], place.run[:15]))
    return table_rows(columns)


def _board(kind: str, heads: Sequence[RunSummary], history: NoiseHistory | None) -> Leaderboard | None:
    last: dict[str, tuple[RunSummary, list[Metric]]] = {}
    deciding = next(
        (name for name in RANKING_METRICS[kind] if any(m.name == name for h in heads for m in h.metrics)), None
    )
    for head in heads:  # the newest of a profile stands
        for target in dict.fromkeys(metric.target for metric in head.metrics):
            own = [metric for metric in head.metrics if metric.target == target and metric.name == deciding]
            if own:
                last[target] = (head, own)
    if deciding is None or not last:
        return None
    groups = list(dict.fromkeys(m.group for _, own in last.values() for m in own))[:MOST_COLUMNS]
    ranked = {
        name: _Entry(name, head, tuple(next((m for m in own if m.group == group), None) for group in groups), history)
        for name, (head, own) in last.items()
    }
    some = next(m for _, own in last.values() for m in own)
    order = sorted(ranked.values(), key=lambda entry: _key(entry.deciding, some.better))
    speeds = some.unit in SPEED_UNITS
    pairs = len(order) * (len(order) - 1) // 2
    places = tuple(
        LeaderboardEntry(rank, entry.name, entry.head.id, _model(entry.head, entry.name), entry.values,
              _tied(order[0], entry, pairs) if speeds else _reaches(order[0].deciding, entry.deciding),
              entry.head.flags)
        for rank, entry in enumerate(order, 1)
    )  # fmt: skip
    note = ""
    if speeds:
        noise = describe_noise([entry.noise for entry in order if entry.deciding])
        note = f"Intervals: {noise}. Ties are corrected for every pair of places ({pairs})." if pairs else f"{noise}."
    return Leaderboard(kind, heads[-1].title, some.name, some.unit, tuple(groups), places, note)


class _Entry:
    """One profile's last run. A speed's interval is that of runs, not that of the answers of one of them."""

    def __init__(
        self, name: str, head: RunSummary, metrics: tuple[Metric | None, ...], history: NoiseHistory | None
    ) -> None:
        self.name, self.head, self.metrics = name, head, metrics
        self.deciding = metrics[0].estimate if metrics[0] else None
        info, noises = head.info, []
        known = info.provenance.get(name) if info else None
        for metric in metrics:
            found = Noise()
            if history and info and known and metric and metric.unit in SPEED_UNITS:
                found = history.runs(known, (head.id,), info.plan.kind, info.plan.options, metric)
            noises.append(found)
        self.noise = noises[0]
        self.errors = [_error(metric, noise) for metric, noise in zip(metrics, noises, strict=True)]
        self.values = tuple(_widened(metric, error) for metric, error in zip(metrics, self.errors, strict=True))


def _error(metric: Metric | None, noise: Noise) -> tuple[float, float]:
    """The variance of the log of one run's figure, and its degrees of freedom.

    Past runs have the noise of the repeats in them. Where a spread is assumed, that is added.
    """
    found = metric.estimate if metric else None
    repeats = found and found.sd is not None and found.value > 0 and "prompts" not in found.method
    if noise.runs or not found or not repeats or found.sd is None:
        return noise.sd**2, noise.dof
    return satterthwaite(
        [(noise.sd**2, noise.dof), ((found.sd / found.value) ** 2 / effective_sample_size(found.n), found.n - 1)]
    )


def _widened(metric: Metric | None, error: tuple[float, float]) -> Estimate | None:
    if metric is None or metric.unit not in SPEED_UNITS or metric.estimate.value <= 0:
        return metric.estimate if metric else None
    variance, freedom = error
    factor = math.exp(t_quantile(LEVEL, freedom) * math.sqrt(variance))
    value = metric.estimate.value
    return replace(metric.estimate, low=value / factor, high=value * factor, method="run to run")


def _tied(best: _Entry, other: _Entry, pairs: int) -> bool:
    """Whether ``other`` may be as fast as ``best``: any two of the board differ by chance in at most 5 % of boards."""
    if best is other:
        return True
    mine, theirs = best.metrics[0], other.metrics[0]
    if mine is None or theirs is None or min(mine.estimate.value, theirs.estimate.value) <= 0:
        return False
    found = None
    if best.head is other.head and min(len(mine.starts), len(theirs.starts)) >= MIN_STARTS:  # measured in turn
        starts = [
            Start(name, place, {"": math.log(value)})
            for name, metric in ((best.name, mine), (other.name, theirs)) for place, value in metric.starts
        ]  # fmt: skip
        found = compare_starts(starts, best.name, other.name)
    found = found or compare_unpaired(
        mine.estimate.value, theirs.estimate.value,
        best.errors[0], other.errors[0],
    )  # fmt: skip
    return found.tail() * pairs > LEVEL


def _key(found: Estimate | None, better: str) -> float:
    if found is None:
        return float("inf")
    return found.value if better == "lower" else -found.value


def _reaches(best: Estimate | None, other: Estimate | None) -> bool:
    ends = [end for one in (best, other) if one for end in (one.low, one.high) if end is not None]
    if best is None or other is None or len(ends) < 4:
        return False
    return ends[2] <= ends[1] and ends[0] <= ends[3]


def _model(head: RunSummary, target: str) -> str:
    found = head.info.provenance.get(target) if head.info else None
    return found.model_path.rpartition("/")[2] if found else ""
