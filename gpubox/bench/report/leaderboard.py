"""Ranks profiles by the last finished run of each under one protocol. Pure."""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass

from gpubox.bench.compare.past_runs import PastFigures, looks_needed, protocol_of
from gpubox.bench.compare.starts import LEVEL
from gpubox.bench.compare.words import runs_tell
from gpubox.bench.model import RunInfo
from gpubox.bench.report.model import SPEED_UNITS, Metric, RunSummary
from gpubox.bench.report.run_comparison import Outcome, compare_row
from gpubox.bench.stats import Estimate

RANKING_METRICS = {"suite": "points", "humaneval": "pass@1", "speed": "tg", "soak": "tg"}
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
    against_first: Outcome
    """``equal`` for the first itself."""
    doubts: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Leaderboard:
    """The profiles that are comparable: one kind, one protocol."""

    kind: str
    title: str
    metric: str
    unit: str
    groups: tuple[str, ...]
    entries: tuple[LeaderboardEntry, ...]
    one_sample: bool = False
    """Each task was asked once: nothing is ranked."""
    looks_needed: int = 0
    """At each of two speeds, before one of them can be told to be higher."""
    tells: str = ""
    """What would tell the first from the next that may be as good."""


@dataclass(frozen=True, slots=True)
class _Candidate:
    """The last run of one profile."""

    name: str
    run: RunSummary
    info: RunInfo
    metrics: dict[str, Metric]
    """By group."""


def make_leaderboards(summaries: Sequence[RunSummary], wanted: Collection[str] = ()) -> list[Leaderboard]:
    """One for each protocol of the runs ``wanted`` (ids; empty: all), the last run first. Only finished runs count."""
    by_protocol: dict[tuple[str, str], list[tuple[RunSummary, RunInfo]]] = {}
    for run in summaries:
        is_wanted = run.kind in RANKING_METRICS and (run.id in wanted or not wanted)
        if run.info and is_wanted and run.state == "finished" and run.metrics:
            by_protocol.setdefault(protocol_of(run.info.plan), []).append((run, run.info))
    past = PastFigures(summaries)
    boards = [_leaderboard(kind, runs, past) for (kind, _), runs in reversed(by_protocol.items())]
    kinds = list(RANKING_METRICS)
    return sorted((board for board in boards if board), key=lambda board: kinds.index(board.kind))


def _leaderboard(kind: str, runs: Sequence[tuple[RunSummary, RunInfo]], past: PastFigures) -> Leaderboard | None:
    last: dict[str, _Candidate] = {}
    for run, info in runs:
        targets: dict[str, dict[str, Metric]] = {}
        for metric in run.metrics:
            if metric.name == RANKING_METRICS[kind]:
                targets.setdefault(metric.target, {}).setdefault(metric.group, metric)
        last |= {name: _Candidate(name, run, info, metrics) for name, metrics in targets.items()}
    if not last:
        return None
    groups = list(dict.fromkeys(group for own in last.values() for group in own.metrics))[:MAX_COLUMNS]
    ranking = groups[0]
    sample = next(metric for own in last.values() for metric in own.metrics.values())
    sign = 1 if sample.better == "lower" else -1
    candidates = sorted(
        last.values(),
        key=lambda own: sign * own.metrics[ranking].estimate.value if ranking in own.metrics else math.inf,
    )
    level = LEVEL / max(1, math.comb(len(candidates), 2))
    one_sample = kind == "suite" and not any(_has_repeats(own.metrics.get(ranking)) for own in candidates)
    entries = []
    for rank, own in enumerate(candidates, 1):
        outcome: Outcome = "equal" if rank == 1 else "cannot tell"
        if rank > 1 and not one_sample:
            outcome = _against(candidates[0], own, ranking, past, level)
        model = own.info.provenance[own.name].model_path.rpartition("/")[2] if own.name in own.info.provenance else ""
        values = tuple(own.metrics[group].estimate if group in own.metrics else None for group in groups)
        entries.append(LeaderboardEntry(rank, own.name, own.run.id, model, values, outcome, own.run.doubts))
    needed = looks_needed(level) if sample.unit in SPEED_UNITS else 0
    open_ = [own for own, entry in zip(candidates, entries, strict=True) if entry.against_first == "cannot tell"]
    sides = [(own.info, own.metrics[ranking]) for own in (candidates[0], *open_) if ranking in own.metrics]
    tells = runs_tell(sides[0], sides[1], needed) if len(sides) > 1 else ""
    return Leaderboard(
        kind, runs[-1][0].title, sample.name, sample.unit, tuple(groups), tuple(entries), one_sample, needed, tells
    )


def _against(first: _Candidate, other: _Candidate, group: str, past: PastFigures, level: float) -> Outcome:
    """``other`` against ``first``. In at most 5 % of leaderboards any of several equal profiles is called behind."""
    one, two = first.metrics.get(group), other.metrics.get(group)
    if one is None or two is None:
        return "cannot tell"
    outcome = compare_row(one, two, (past.of(first.info, one), past.of(other.info, two)), level).outcome
    return "cannot tell" if outcome == "better" else outcome  # its last figure is lower, its other ones are higher


def _has_repeats(metric: Metric | None) -> bool:
    """Whether any task was asked more than once: its samples are numbered, as ``1.1/2``."""
    samples = metric.samples if metric else ()
    return any("/" in name and name.rpartition("/")[2] != "1" for name, _ in samples)


def leaderboard_verdict(board: Leaderboard) -> str:
    """Which profile is the first, if that can be told; else what would tell it."""
    first, *others = board.entries
    best = "the fastest" if board.unit in SPEED_UNITS else "the best"
    if not others:
        return f"{first.name} is the only profile with a finished run of this kind."
    if board.one_sample:
        return f"One sample: no ranking. Each task was asked once. {board.tells}"
    by_outcome: dict[str, list[str]] = {}
    for entry in others:
        by_outcome.setdefault(entry.against_first, []).append(entry.name)
    behind, open_ = by_outcome.get("worse", []), by_outcome.get("cannot tell", [])
    if open_:
        verb = "is" if len(open_) == 1 else "are"
        sentence = f"{first.name} was {best} in its last run"
        sentence += f" and is ahead of {_names(behind)}" if behind else ""
        sentence += f"; whether {_names(open_)} {verb} behind cannot be told from stored runs."
        return f"{sentence} {board.tells}"
    if equal := by_outcome.get("equal"):
        return f"{_names([first.name, *equal])} are equally good" + (f", ahead of {_names(behind)}." if behind else ".")
    return f"{first.name} is {best} of the {len(board.entries)}."


def _names(names: Sequence[str]) -> str:
    """``a, b and c``; of many the first three."""
    shown = [*names[:3], f"{len(names) - 3} more"] if len(names) > 4 else list(names)
    return " and ".join(filter(None, (", ".join(shown[:-1]), shown[-1])))
