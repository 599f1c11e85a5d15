"""A suite run's results -> its report: who did best, the leaderboard, the tasks, the speed, what is n/a and why.

A category is the mean of its tasks, a task the mean of its answers, from 0 to 100. The total weighs the categories that
have points.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from gpubox.bench import stats
from gpubox.bench.compare.words import more_answers
from gpubox.bench.kinds.shared import closing_notes, ranking_verdict, report_doubts
from gpubox.bench.kinds.suite.tasks import TASKS
from gpubox.bench.model import Item, Result, RunInfo, ScoredItems
from gpubox.bench.report.model import Metric, Report, ReportTable, Value
from gpubox.bench.stats import Estimate

WEIGHTS = {"coding": 0.4, "reasoning": 0.2, "tools": 0.2, "speed": 0.2}
TOTAL = "weighted total"
MIN_REPEATS = 2
"""With fewer answers to each task nothing is ranked: one answer does not show how the next one would be."""


@dataclass(frozen=True, slots=True)
class Standing:
    """One profile on the leaderboard. ``None``: n/a."""

    name: str
    answers: Mapping[str, Sequence[float]]
    """Task -> the points of each answer, 0 to 100; without those that cannot be graded here."""
    speeds: Mapping[str, tuple[float, float | None]]
    """Speed row -> the medians of tg and TTFT over its runs."""
    categories: Mapping[str, float | None]
    """By name, as in WEIGHTS: 0 to 100."""

    @property
    def missing(self) -> tuple[str, ...]:
        """Categories without points."""
        return tuple(name for name, value in self.categories.items() if value is None)

    @property
    def total(self) -> float | None:
        """Weighted over the categories that have points."""
        known = {name: value for name, value in self.categories.items() if value is not None}
        return statistics.fmean(known.values(), [WEIGHTS[name] for name in known]) if known else None

    @property
    def repeats(self) -> int:
        """The fewest answers to one of its tasks."""
        return min(map(len, self.answers.values()), default=0)


def summarise(tasks: Sequence[str], ref_tps: float | None, info: RunInfo, results: ScoredItems) -> Report:
    """The report so far. ``tasks``: those of the run. ``ref_tps``: the tok/s that are worth 100 points."""
    counted = [(item, result) for item, result in results if not item.warmup]
    names = [target.name for target in info.plan.targets]
    own = {name: [row for row in counted if row[0].target == name and row[1].ok] for name in names}
    board = standings(own, [task for task in tasks if TASKS[task].max_tokens], ref_tps)
    tables = (
        _leaderboard(board),
        ReportTable(
            "Tasks", ("task", "profile", "of 100", "range", "missed or not applicable"), *_task_rows(tasks, own)
        ),
        _speed_table(board),
    )
    return Report(
        kind="suite",
        title="The 12-task comparison",
        verdict=verdict_of(board, more_answers(info)),
        metrics=tuple(metric for standing in board for metric in _metrics(standing)),
        tables=tuple(table for table in tables if table.rows),
        notes=tuple(_notes(tasks, ref_tps, info, results, board)),
        doubts=report_doubts(info, results),
    )


def standings(own: Mapping[str, ScoredItems], speed_tasks: Sequence[str], ref_tps: float | None) -> list[Standing]:
    """The leaderboard of the results ``own`` by profile, best total first.

    100 points of speed are ``ref_tps``, else the fastest of several profiles; a single profile without ``ref_tps`` has
    no points for speed. An unfinished speed category has none, because it would compare profiles by different rows.
    """
    answers = {name: _answers(rows) for name, rows in own.items()}
    speeds = {name: _speeds(rows) for name, rows in own.items()}
    means = {
        name: statistics.fmean(tg for tg, _ in rows.values())
        for name, rows in speeds.items()
        if speed_tasks and len(rows) == len(speed_tasks)
    }
    best = ref_tps or (max(means.values()) if len(means) > 1 else None)
    board = []
    for name, tasks in answers.items():
        points = [(TASKS[task].category, statistics.fmean(values)) for task, values in tasks.items()]
        categories = {key: _mean(value for category, value in points if category == key) for key in WEIGHTS}
        categories["speed"] = 100 * means[name] / best if name in means and best else None
        board.append(Standing(name, tasks, speeds[name], categories))
    return sorted(board, key=lambda standing: -1.0 if standing.total is None else standing.total, reverse=True)


def _answers(rows: ScoredItems) -> dict[str, list[float]]:
    answers: dict[str, list[float]] = {}
    for item, result in rows:
        if result.values.get("share") is not None:
            answers.setdefault(item.values["task"], []).append(100 * result.values["share"])
    return answers


def _speeds(rows: ScoredItems) -> dict[str, tuple[float, float | None]]:
    runs: dict[str, list[Result]] = {}
    for item, result in rows:
        if TASKS[item.values["task"]].max_tokens:
            runs.setdefault(item.values["task"], []).append(result)
    speeds: dict[str, tuple[float, float | None]] = {}
    for task, own in runs.items():
        ttfts = [run.values["ttft_seconds"] for run in own if run.values.get("ttft_seconds") is not None]
        median_ttft = statistics.median(ttfts) if ttfts else None
        speeds[task] = statistics.median(run.values["tg"] for run in own), median_ttft
    return speeds


def _mean(values: Iterable[float]) -> float | None:
    known = list(values)
    return statistics.fmean(known) if known else None


def task_weights() -> dict[str, float]:
    """How much the points of each task count."""
    return {
        task.id: WEIGHTS[task.category] / sum(other.category == task.category for other in TASKS.values())
        for task in TASKS.values()
    }


def verdict_of(board: Sequence[Standing], tells: str = "") -> str:
    """Who gave the better answers, as a sentence; empty for one profile. Speed is not in it: it is measured, not asked.
    ``tells``: what tells more, where it cannot be told.

    Two equal profiles are called different in at most one of twenty runs, however many profiles there are.
    """
    ranked = [standing for standing in board if standing.answers]
    if len(ranked) < 2:
        return ""
    if min(standing.repeats for standing in ranked) < MIN_REPEATS:
        return f"One sample of each task: no ranking. {tells}".rstrip()
    weights = task_weights()

    def mean(standing: Standing) -> float:
        return sum(weights[task] * statistics.fmean(values) for task, values in standing.answers.items())

    ranked.sort(key=mean, reverse=True)
    pairs = len(ranked) * (len(ranked) - 1) / 2
    best, *others = ranked
    behind = [
        other.name for other in others if pairs * stats.permutation_p(best.answers, other.answers, weights) <= 0.05
    ]
    names = [standing.name for standing in ranked]
    return ranking_verdict(
        names, behind, "gave the best answers", "gave better answers than", "whose answers are best", tells
    )


def _metrics(standing: Standing) -> Iterator[Metric]:
    if standing.total is not None:
        samples = tuple(
            (f"{task}/{number}", value)
            for task, values in standing.answers.items()
            for number, value in enumerate(values, 1)
        )
        estimate = Estimate(standing.total, len(standing.answers))
        yield Metric("points", TOTAL, standing.name, "of 100", "higher", estimate, samples)
    for category, value in standing.categories.items():
        if value is not None:
            yield Metric("points", category, standing.name, "of 100", "higher", Estimate(value, 1))


def _leaderboard(board: Sequence[Standing]) -> ReportTable:
    rows: list[tuple[Value, ...]] = [
        (
            standing.name,
            *map(_points, standing.categories.values()),
            _points(standing.total),
            ", ".join(standing.missing),
        )
        for standing in board
        if standing.total is not None
    ]
    weights = ", ".join(f"{name} {weight:.0%}" for name, weight in WEIGHTS.items())
    return ReportTable("Leaderboard", ("profile", *WEIGHTS, TOTAL, "n/a"), tuple(rows), weights)


def _points(value: float | None) -> str | None:
    return None if value is None else f"{value:.1f}"


def _task_rows(
    tasks: Sequence[str], own: Mapping[str, Sequence[tuple[Item, Result]]]
) -> tuple[tuple[tuple[Value, ...], ...], str, tuple[str, ...]]:
    """Each task's points, no note, and its code for the details."""
    rows: list[tuple[Value, ...]] = []
    details: list[str] = []
    for name, results in own.items():
        for task in TASKS.values():
            if task.id not in tasks or task.max_tokens:
                continue
            answers = [result for item, result in results if item.values["task"] == task.id]
            points = [100 * result.values["share"] for result in answers if result.values["share"] is not None]
            span = f"{min(points):.0f} – {max(points):.0f}" if len(points) > 1 else None
            missed = _missed(answers[-1]) if answers else "not done"
            rows.append((f"{task.id} {task.name}", name, _points(_mean(points)), span, missed))
            details.append(str(answers[-1].values.get("code", "")) if answers else "")
    return tuple(rows), "", tuple(details)


def _missed(result: Result) -> str:
    values = result.values
    if values["source"] in ("cut", "empty"):
        return "max_tokens ended the thinking: no answer" if values["source"] == "cut" else "no answer"
    parts = [name for name, points in values["points"].items() if not points]
    if values["share"] is None:
        parts.append(f"it cannot run here: {values['unavailable']}")
    if values["source"] == "reasoning":
        parts.append("answered in reasoning_content")
    return "; ".join(parts)


def _speed_table(board: Sequence[Standing]) -> ReportTable:
    rows: list[tuple[Value, ...]] = [
        (standing.name, task, TASKS[task].name, tg, None if ttft is None else f"{ttft * 1000:.1f} ms")
        for standing in board
        for task, (tg, ttft) in standing.speeds.items()
    ]
    columns = ("profile", "", "length", "tok/s", "TTFT")
    return ReportTable("Speed", columns, tuple(rows), "medians of three, temperature 0")


def _notes(
    tasks: Sequence[str], ref_tps: float | None, info: RunInfo, results: ScoredItems, board: Sequence[Standing]
) -> Iterator[str]:
    for standing in board:
        if standing.missing and standing.total is not None:
            missing = ", ".join(standing.missing)
            yield f"{standing.name} has no points for {missing}: its total is weighted over the rest."
    if len(board) == 1 and board[0].speeds and not ref_tps:
        yield "Points for speed are relative to the fastest profile: measure several, or give --ref-tps."
    if len(set(tasks)) < len(TASKS) or info.plan.options.get("speed_tokens"):
        yield "This is not the whole suite: the points are not comparable with those of a full run."
    yield from closing_notes(info, results)
