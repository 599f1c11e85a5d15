"""Which of two launches is faster, told from this box's stored runs; and which launches are the same. Pure.

Past runs are not randomised: an owner measures when he likes, one start in ten is bad, a box has two speeds, and it
changes from week to week. So nothing is assumed about the noise but that both sides had the same. Runs of one side
that follow each other count once, because the box may have changed since the other side was measured: with A A A B B B
there is one look at each, with A B A B A B there are three. The looks are compared by their ranks (Wilcoxon 1945, Mann
and Whitney 1947), whose error is exact for noise of any form; the interval of the ratio is that of Hodges and Lehmann
(1963). A table's rows share its level (Bonferroni).
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from itertools import groupby
from typing import Literal

from gpubox.bench.compare.starts import LEVEL, limit_of
from gpubox.bench.model import Plan, Provenance, RunInfo
from gpubox.bench.provenance import comparable_argv
from gpubox.bench.report.model import Metric, RunSummary
from gpubox.bench.stats import MARGIN

Direction = Literal["higher", "lower", "equal", "cannot tell"]
"""Of the second value over the first. Whether higher is faster depends on the value: a higher TTFT is slower."""
MAX_LOOKS = 20
"""Of each side; the newest count."""
Past = Sequence[tuple[float, float]]
"""(time, value) of each run of one launch, values above 0. Only the order of the times counts."""


@dataclass(frozen=True, slots=True)
class PastComparison:
    """The second launch over the first."""

    direction: Direction
    ratio: float
    low: float | None
    """The interval of ``ratio`` at the level of this row; ``None``: too few looks for one."""
    high: float | None
    looks: int
    """Of the side that has fewer."""


def told(low: float | None, high: float | None) -> Direction:
    """What the interval of a ratio says; a difference below MARGIN is none."""
    if low is None or high is None:
        return "cannot tell"
    if low > 1 + MARGIN:
        return "higher"
    if high < 1 - MARGIN:
        return "lower"
    return "equal" if limit_of(low, high) else "cannot tell"


def compare_past(first: Past, second: Past, level: float = LEVEL) -> PastComparison:
    """``second`` over ``first``. ``level``: this row's share of the table's. Raises ValueError if a side is empty."""
    sides = looks(first, second)
    gains = sorted(after - before for before in sides[0] for after in sides[1])
    ratio = math.exp(statistics.median(gains))
    fewest = min(map(len, sides))
    rank = _interval_rank(*map(len, sides), level)
    if not rank:
        return PastComparison("cannot tell", ratio, None, None, fewest)
    low, high = math.exp(gains[rank - 1]), math.exp(gains[-rank])
    return PastComparison(told(low, high), ratio, low, high, fewest)


def looks(first: Past, second: Past) -> tuple[list[float], list[float]]:
    """The logs of each side: one for each row of runs of it that no run of the other side interrupts."""
    sides: tuple[list[float], list[float]] = ([], [])
    runs = [(time, 0, value) for time, value in first] + [(time, 1, value) for time, value in second]
    for side, own in groupby(sorted(runs), key=lambda run: run[1]):
        sides[side].append(statistics.median(math.log(value) for _, _, value in own))
    return sides[0][-MAX_LOOKS:], sides[1][-MAX_LOOKS:]


def looks_needed(level: float = LEVEL) -> int:
    """The fewest looks at each side with which anything can be told."""
    return next(n for n in range(2, MAX_LOOKS + 1) if _interval_rank(n, n, level))


@cache
def _interval_rank(first: int, second: int, level: float) -> int:
    """The rank, from either end, of the differences that end the interval; 0: there are too few."""
    arrangements = math.comb(first + second, first)
    below, rank = 0, 0
    while rank < first * second // 2:
        below += _arrangements(first, second, rank)
        if 2 * below > level * arrangements:
            break
        rank += 1
    return rank


@cache
def _arrangements(first: int, second: int, wins: int) -> int:
    """In how many orders of both sides the second wins ``wins`` of all pairs (the distribution of Mann and Whitney)."""
    if wins < 0 or first == 0 or second == 0:
        return int(wins == 0)
    return _arrangements(first - 1, second, wins - second) + _arrangements(first, second - 1, wins)


def target_identity(provenance: Provenance) -> str:
    """Equal for starts that are the same: model, engine, command line (see ``comparable_argv``), environment."""
    model = provenance.model_sha256 or provenance.model_path
    engine = provenance.engine_sha256 or provenance.engine_version or provenance.dialect
    return repr((model, engine, comparable_argv(provenance.argv)[1:], dict(provenance.env)))


def protocol_of(plan: Plan) -> tuple[str, str]:
    """Equal for runs whose figures are comparable."""
    options = {name: repr(value) for name, value in plan.options.items()}
    return plan.kind, repr(sorted(options.items()))


def launch_identity(info: RunInfo, target: str) -> str:
    """Equal for launches whose speeds differ by chance alone: the same target on the same cards and driver."""
    machine = info.machine
    box = (machine.driver, [dict(gpu) for gpu in machine.gpus]) if machine else ()
    return repr((target_identity(info.provenance[target]), box)) if target in info.provenance else ""


class PastFigures:
    """The figures of finished runs, by launch and row."""

    def __init__(self, summaries: Sequence[RunSummary]) -> None:
        """``summaries``: the newest last."""
        self._figures: dict[tuple[str, tuple[str, str], str, str], list[tuple[int, str, Metric]]] = {}
        for number, run in enumerate(summaries):
            if run.info and run.info.state == "finished":
                for metric in run.metrics:
                    row = self._row(run.info, metric)
                    self._figures.setdefault(row, []).append((number, run.id, metric))

    def of(self, info: RunInfo, row: Metric, *, alone: bool = False) -> Past:
        """What ``row`` was in each run of its launch; ``alone``: in the run ``info`` only."""
        own = self._figures.get(self._row(info, row), []) if row.target in info.provenance else []
        return [
            (number + start / 1e6, value)
            for number, run, metric in own
            if run == info.id or not alone
            for start, value in metric.starts or ((0.0, metric.estimate.value),)
            if value > 0
        ]

    @staticmethod
    def _row(info: RunInfo, metric: Metric) -> tuple[str, tuple[str, str], str, str]:
        return launch_identity(info, metric.target), protocol_of(info.plan), metric.group, metric.name
