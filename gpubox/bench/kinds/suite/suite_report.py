"""A suite run's results -> its report: the leaderboard, the tasks, the speed, and what is n/a and why."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Mapping, Sequence

from gpubox.bench.kinds.shared import closing_notes, report_flags
from gpubox.bench.kinds.suite.aggregate import WEIGHTS, MeanScore, Standing, TaskScore, standings
from gpubox.bench.kinds.suite.scoring import score_of_values
from gpubox.bench.kinds.suite.tasks import TASKS, SuiteOptions
from gpubox.bench.model import Result, RunInfo, ScoredItems
from gpubox.bench.report.model import Metric, Report, ReportTable, Value
from gpubox.bench.stats import Estimate

TOTAL = "weighted total"
Speeds = dict[str, tuple[float, float | None]]
"""Speed row -> the medians of tg and TTFT over its runs."""


def summarise(options: SuiteOptions, info: RunInfo, results: ScoredItems) -> Report:
    """The report so far."""
    counted = [(item, result) for item, result in results if not item.warmup]
    measured = [(item, result) for item, result in counted if result.ok]
    names = [target.name for target in info.plan.targets]
    scores = {name: _scores(measured, name) for name in names}
    speeds = {name: _speeds(measured, name) for name in names}
    # An unfinished speed category would compare profiles by different rows.
    rates = {
        name: [tg for tg, _ in rows.values()] if len(rows) == _speed_rows(options) else []
        for name, rows in speeds.items()
    }
    boards = {
        compat: standings(scores, rates, compat=compat, ref_tps=options.ref_tps)
        for compat in (options.compat, not options.compat)
    }
    board = boards[options.compat]
    tables = [
        *(
            _leaderboard("Leaderboard as the article counts" if compat else "Leaderboard", rows)
            for compat, rows in boards.items()
        ),
        _task_table(options, names, measured),
        _speed_table(speeds),
    ]
    return Report(
        kind="suite",
        title="The 12-task comparison" + (", as the article counts" if options.compat else ""),
        metrics=tuple(metric for standing in board for metric in _metrics(standing, scores[standing.name])),
        tables=tuple(table for table in tables if table.rows),
        notes=tuple(_notes(options, info, results, counted, board)),
        flags=report_flags(info, results),
    )


def _scores(measured: ScoredItems, target: str) -> dict[str, MeanScore]:
    """By task."""
    scores: dict[str, list[TaskScore]] = {}
    for item, result in measured:
        if item.target == target and "features" in result.values:
            scores.setdefault(item.values["task"], []).append(score_of_values(result.values))
    return {task: MeanScore.of(repeats) for task, repeats in scores.items()}


def _speeds(measured: ScoredItems, target: str) -> Speeds:
    rows: dict[str, list[Result]] = {}
    for item, result in measured:
        if item.target == target and TASKS[item.values["task"]].max_tokens:
            rows.setdefault(item.values["task"], []).append(result)
    speeds: Speeds = {}
    for task, runs in rows.items():
        ttfts = [run.values["ttft_seconds"] for run in runs if run.values.get("ttft_seconds") is not None]
        speeds[task] = (
            statistics.median(run.values["tg"] for run in runs),
            statistics.median(ttfts) if ttfts else None,
        )
    return speeds


def _speed_rows(options: SuiteOptions) -> int:
    return sum(1 for name in options.tasks if TASKS[name].max_tokens)


def _metrics(standing: Standing, scores: Mapping[str, MeanScore]) -> Iterator[Metric]:
    samples = tuple((task, value) for task, score in scores.items() if (value := score.value) is not None)
    if standing.total is not None:
        estimate = Estimate(standing.total, len(samples))
        yield Metric("points", TOTAL, standing.name, "of 100", "higher", estimate, samples)
    for category, value in standing.categories.items():
        if value is not None:
            yield Metric("points", category, standing.name, "of 100", "higher", Estimate(value, 1))


def _leaderboard(title: str, board: Sequence[Standing]) -> ReportTable:
    rows: list[tuple[Value, ...]] = []
    for rank, standing in enumerate(board, 1):
        if standing.total is not None:
            points = [_points(value) for value in standing.categories.values()]
            total, agentic = _points(standing.total), _points(standing.agentic)
            rows.append((rank, standing.name, *points, total, agentic, ", ".join(standing.missing)))
    columns = ("", "profile", *WEIGHTS, TOTAL, "general agentic", "n/a")
    weights = ", ".join(f"{name} {weight:.0%}" for name, weight in WEIGHTS.items())
    return ReportTable(title, columns, tuple(rows), weights)


def _points(value: float | None) -> str | None:
    return None if value is None else f"{value:.1f}"


def _task_table(options: SuiteOptions, names: Sequence[str], measured: ScoredItems) -> ReportTable:
    """Each task's points; the details are its code."""
    rows: list[tuple[Value, ...]] = []
    details: list[str] = []
    for name in names:
        for task in TASKS.values():
            if task.id not in options.tasks or task.max_tokens:
                continue
            repeats = [r for item, r in measured if item.target == name and item.values["task"] == task.id]
            label = f"{task.id} {task.name}"
            if not repeats:
                rows.append((label, name, None, None, "not done"))
                details.append("")
                continue
            points = [value for r in repeats if (value := score_of_values(r.values).value) is not None]
            mean = _points(statistics.fmean(points)) if points else None
            span = f"{min(points):.0f} – {max(points):.0f}" if len(points) > 1 else None
            rows.append((label, name, mean, span, _missed(repeats[-1])))
            details.append(str(repeats[-1].values.get("code", "")))
    columns = ("task", "profile", "of 100", "range", "missed or not applicable")
    return ReportTable("Tasks", columns, tuple(rows), "", tuple(details))


def _missed(result: Result) -> str:
    values = result.values
    if values["source"] == "cut":
        return "max_tokens ended the thinking: no answer"
    if values["source"] == "empty":
        return "no answer"
    parts = [name for name, passed in {**values.get("items", {}), **values.get("checks", {})}.items() if not passed]
    if values.get("penalty", 1.0) < 1:
        parts.insert(0, "does not parse (points × 2/3)")
    if score_of_values(values).keywords_only:
        features = list(values["items"].values())
        parts.insert(0, f"keywords only, {sum(map(bool, features))} of {len(features)}: {values['unavailable']}")
    if values["source"] == "reasoning":
        parts.append("answered in reasoning_content")
    return "; ".join(parts)


def _speed_table(speeds: Mapping[str, Speeds]) -> ReportTable:
    rows: list[tuple[Value, ...]] = [
        (name, task, TASKS[task].name, tg, None if ttft is None else f"{ttft * 1000:.1f} ms")
        for name, own in speeds.items()
        for task, (tg, ttft) in own.items()
    ]
    return ReportTable(
        "Speed", ("profile", "", "length", "tok/s", "TTFT"), tuple(rows), "medians of three, temperature 0"
    )


def _notes(
    options: SuiteOptions, info: RunInfo, results: ScoredItems, counted: ScoredItems, board: Sequence[Standing]
) -> Iterator[str]:
    if any("features" in r.values and score_of_values(r.values).keywords_only for _, r in counted if r.ok):
        yield "A task whose program cannot run here shows a keyword score, which counts in no total."
    for standing in board:
        if standing.missing and standing.total is not None:
            missing = ", ".join(standing.missing)
            yield f"{standing.name} has no points for {missing}: its total is weighted over the rest."
    if len(board) == 1 and _speed_rows(options) and not options.ref_tps:
        yield "Points for speed are relative to the fastest profile: measure several, or give --ref-tps."
    if len(set(options.tasks)) < len(TASKS) or options.speed_tokens:
        yield "This is not the whole suite: the points are not comparable with those of a full run."
    yield from closing_notes(info, results)
