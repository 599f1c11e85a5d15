"""Ranks profiles by the last finished run of each under one protocol. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from gpubox.bench.model import RunInfo
from gpubox.bench.report.formatting import format_interval, format_number, interval_title
from gpubox.bench.report.model import Metric
from gpubox.bench.report.noise_history import NO_HISTORY, NoiseHistory, describe_noise, protocol_of
from gpubox.bench.report.plot import StyledRow
from gpubox.bench.report.report_rows import table_rows, wrapped_rows
from gpubox.bench.report.run_comparison import BETWEEN_RUNS, SPEED_UNITS
from gpubox.bench.report.run_summaries import RunSummary
from gpubox.bench.start_comparison import (
    LEVEL,
    MIN_STARTS,
    Noise,
    Start,
    compare_starts,
    compare_unpaired,
    effective_sample_size,
)
from gpubox.bench.stats import Estimate, satterthwaite, t_quantile
from gpubox.sanitize import sanitize_line

RANKING_METRICS = {
    "suite": "points",
    "humaneval": "pass@1",
    "speed": "tg",
    "soak": "tg",
}
"""Kind -> the metric that ranks its runs. Other kinds have no leaderboard."""
MAX_COLUMNS = 6


@dataclass(frozen=True, slots=True)
class LeaderboardEntry:
    """One profile."""

    rank: int
    name: str
    run: str
    model: str
    values: tuple[Estimate | None, ...]
    """By the leaderboard's groups; the first one ranks."""
    tied: bool
    """Not significantly behind the first."""
    flagged: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Leaderboard:
    """The profiles that are comparable: one kind, one protocol."""

    kind: str
    title: str
    metric: str
    unit: str
    groups: tuple[str, ...]
    entries: tuple[LeaderboardEntry, ...]
    note: str = ""
    """How ties were determined."""


@dataclass(frozen=True, slots=True)
class _Figure:
    """One figure of a profile. The error of a speed is the variation between runs, not between answers."""

    metric: Metric
    noise: Noise

    @property
    def error(self) -> tuple[float, float]:
        """The variance of the log of the figure, and its degrees of freedom.

        Known noise includes the noise of repeats; to an assumed one it is added.
        """
        estimate, noise = self.metric.estimate, self.noise
        prior = (noise.sd**2, noise.dof)
        if noise.runs or estimate.sd is None or estimate.value <= 0 or "prompts" in estimate.method:
            return prior
        repeats = (estimate.sd / estimate.value) ** 2 / effective_sample_size(estimate.n)
        return satterthwaite([prior, (repeats, estimate.n - 1)])

    @property
    def estimate(self) -> Estimate:
        """A speed has the interval between runs."""
        value = self.metric.estimate.value
        if self.metric.unit not in SPEED_UNITS or value <= 0:
            return self.metric.estimate
        variance, dof = self.error
        factor = math.exp(t_quantile(LEVEL, dof) * math.sqrt(variance))
        return replace(self.metric.estimate, low=value / factor, high=value * factor, method=BETWEEN_RUNS)


@dataclass(frozen=True, slots=True)
class _Candidate:
    """The last run of one profile."""

    name: str
    run: RunSummary
    model: str
    figures: tuple[_Figure | None, ...]
    """By group."""

    @property
    def ranking(self) -> _Figure | None:
        return self.figures[0]


def make_leaderboards(
    summaries: Sequence[RunSummary], kind: str = "", history: NoiseHistory = NO_HISTORY
) -> list[Leaderboard]:
    """One for each protocol, the last one run first. Only finished runs count."""
    runs_by_protocol: dict[tuple[str, str], list[tuple[RunSummary, RunInfo]]] = {}
    for run in summaries:
        if run.info and run.state == "finished" and run.metrics:
            own_kind = run.info.plan.kind
            if own_kind in RANKING_METRICS and kind in ("", own_kind):
                runs_by_protocol.setdefault(protocol_of(run.info.plan), []).append((run, run.info))
    boards = [_leaderboard(own_kind, runs, history) for (own_kind, _), runs in reversed(runs_by_protocol.items())]
    kinds = list(RANKING_METRICS)
    return sorted((board for board in boards if board), key=lambda board: kinds.index(board.kind))


def _leaderboard(kind: str, runs: Sequence[tuple[RunSummary, RunInfo]], history: NoiseHistory) -> Leaderboard | None:
    last: dict[str, tuple[RunSummary, RunInfo, dict[str, Metric]]] = {}
    for run, info in runs:
        targets: dict[str, dict[str, Metric]] = {}
        for metric in run.metrics:
            if metric.name == RANKING_METRICS[kind]:
                targets.setdefault(metric.target, {}).setdefault(metric.group, metric)
        last |= {name: (run, info, metrics) for name, metrics in targets.items()}
    if not last:
        return None
    groups = list(dict.fromkeys(group for _, _, metrics in last.values() for group in metrics))[:MAX_COLUMNS]
    candidates = []
    for name, (run, info, metrics) in last.items():
        own = [metrics.get(group) for group in groups]
        figures = [_Figure(metric, history.between_runs(info, metric, {run.id})) if metric else None for metric in own]
        model = info.provenance[name].model_path.rpartition("/")[2] if name in info.provenance else ""
        candidates.append(_Candidate(name, run, model, tuple(figures)))
    sample = next(metric for _, _, metrics in last.values() for metric in metrics.values())
    sign = 1 if sample.better == "lower" else -1
    candidates.sort(key=lambda own: sign * own.ranking.metric.estimate.value if own.ranking else math.inf)
    is_speed = sample.unit in SPEED_UNITS
    pairs = math.comb(len(candidates), 2)
    best = candidates[0]
    entries = tuple(
        LeaderboardEntry(
            rank,
            own.name,
            own.run.id,
            own.model,
            tuple(figure.estimate if figure else None for figure in own.figures),
            _tied_speed(best, own, pairs) if is_speed else _intervals_overlap(best.ranking, own.ranking),
            own.run.flags,
        )
        for rank, own in enumerate(candidates, 1)
    )
    note = ""
    if is_speed:
        noise = describe_noise([own.ranking.noise for own in candidates if own.ranking])
        note = f"Intervals: {noise}. Ties are corrected for all {pairs} pairs of entries." if pairs else f"{noise}."
    return Leaderboard(kind, runs[-1][0].title, sample.name, sample.unit, tuple(groups), entries, note)


def _tied_speed(best: _Candidate, other: _Candidate, pairs: int) -> bool:
    """Whether ``other`` may be as fast as ``best``. In at most 5 % of leaderboards two equal profiles are not tied."""
    if best is other:
        return True
    first, second = best.ranking, other.ranking
    if first is None or second is None:
        return False
    values = first.metric.estimate.value, second.metric.estimate.value
    if min(values) <= 0:
        return False
    contrast = None
    if best.run is other.run and min(len(first.metric.starts), len(second.metric.starts)) >= MIN_STARTS:
        starts = [  # measured in alternation
            Start(own.name, time, {"": math.log(value)})
            for own, figure in ((best, first), (other, second)) for time, value in figure.metric.starts
        ]  # fmt: skip
        contrast = compare_starts(starts, best.name, other.name)
    contrast = contrast or compare_unpaired(*values, first.error, second.error)
    return contrast.p_value() * pairs > LEVEL


def _intervals_overlap(best: _Figure | None, other: _Figure | None) -> bool:
    if best is None or other is None:
        return False
    a, b = best.metric.estimate, other.metric.estimate
    if a.low is None or a.high is None or b.low is None or b.high is None:
        return False
    return b.low <= a.high and a.low <= b.high


def leaderboard_rows(boards: Sequence[Leaderboard], width: int | None = None) -> Iterator[StyledRow]:
    """For a terminal. If it is narrow, groups that do not rank are left out."""
    if not boards:
        yield (("No finished run can be ranked yet.", "quiet"),)
    for number, board in enumerate(boards):
        if number:
            yield ()
        unit = f", {board.unit}" if board.unit else ""
        yield ((f"{board.kind}: {sanitize_line(board.title)}", "head"), (f"  {board.metric}{unit}", "quiet"))
        for count in range(len(board.groups), 0, -1):
            rows = list(_entry_rows(board, count))
            if width is None or max(len(row[0][0]) for row in rows) <= width:
                break
        yield from rows
    if any(entry.tied and entry.rank > 1 for board in boards for entry in board.entries):
        yield (("≈ not significantly behind the first", "quiet"),)
    for note in dict.fromkeys(board.note for board in boards if board.note):
        yield from wrapped_rows(note, "quiet", width)
    for board in boards:
        for warning in flagged_entries(board):
            yield from wrapped_rows(warning, "doubt", width)


def flagged_entries(board: Leaderboard) -> Iterator[str]:
    """A sentence for each entry whose run was flagged."""
    for entry in board.entries:
        if entry.flagged:
            yield f"! {board.kind}, {sanitize_line(entry.name)} is doubtful: {', '.join(entry.flagged)}"


def board_intervals(board: Leaderboard) -> list[str]:
    """The interval of the group that ranks, for each entry."""
    return [format_interval(entry.values[0]) if entry.values[0] else "" for entry in board.entries]


def _entry_rows(board: Leaderboard, groups: int) -> Iterator[StyledRow]:
    """A row for each entry, with the first ``groups`` groups."""
    titles = [group or board.metric for group in board.groups[:groups]]
    intervals = board_intervals(board)
    cells = [("", "PROFILE", titles[0], interval_title(intervals), "N", "", *titles[1:], "RUN")]
    for entry, interval in zip(board.entries, intervals, strict=True):
        first = entry.values[0]
        mark = " ".join(filter(None, ("≈" if entry.tied and entry.rank > 1 else "", "!" if entry.flagged else "")))
        values = [format_number(value.value) if value else "—" for value in entry.values[:groups]]
        n = str(first.n) if first else ""
        cells.append((str(entry.rank), entry.name, values[0], interval, n, mark, *values[1:], entry.run[:15]))
    return table_rows(cells)
