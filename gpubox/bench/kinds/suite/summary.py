"""A suite run's results -> its report: the leaderboard, the tasks, the speed, and what is n/a and why."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Mapping, Sequence

from gpubox.bench.kinds.suite.aggregate import WEIGHTS, MeanScore, Standing, TaskScore, standings
from gpubox.bench.kinds.suite.scoring import score_of_values
from gpubox.bench.kinds.suite.tasks import TASKS, SuiteOptions
from gpubox.bench.model import Item, Result, RunInfo
from gpubox.bench.report.model import Metric, Report, ReportTable, Value
from gpubox.bench.stats import Estimate

Rows = Sequence[tuple[Item, Result]]
TOTAL = "weighted total"


def summarise(options: SuiteOptions, info: RunInfo, results: Rows) -> Report:
    """Everything of the run so far."""
    counted = [(item, result) for item, result in results if not item.warmup]
    good = [(item, result) for item, result in counted if result.ok]
    names = [target.name for target in info.plan.targets]
    scores = {name: _scores(good, name) for name in names}
    speeds = {name: _speeds(good, name) for name in names}
    rates = {name: [tg for tg, _ in found.values()] for name, found in speeds.items()}
    whole = {name: found if len(found) == _speed_rows(options) else [] for name, found in rates.items()}
    board = standings(scores, whole, compat=options.compat, ref_tps=options.ref_tps)
    other = standings(scores, whole, compat=not options.compat, ref_tps=options.ref_tps)
    titles = ["Leaderboard as the article counts", "Leaderboard"]
    tables = [
        _board(titles[not options.compat], board),
        _board(titles[options.compat], other),
        _tasks(options, names, good),
        _speed(speeds),
    ]
    return Report(
        kind="suite",
        title="The 12-task comparison" + (", as the article counts" if options.compat else ""),
        metrics=tuple(metric for standing in board for metric in _metrics(standing, scores[standing.name])),
        tables=tuple(table for table in tables if table.rows),
        notes=tuple(_notes(options, info, results, counted, board)),
        flags=(*info.flags, *(flag for item, result in counted for flag in result.flags)),
    )


def _scores(good: Rows, target: str) -> dict[str, MeanScore]:
    """By task; of repeats the mean."""
    found: dict[str, list[TaskScore]] = {}
    for item, result in good:
        if item.target == target and "features" in result.values:
            found.setdefault(item.values["task"], []).append(score_of_values(result.values))
    return {task: MeanScore.of(several) for task, several in found.items()}


def _speeds(good: Rows, target: str) -> dict[str, tuple[float, float | None]]:
    """By speed row: the median of its runs' tg, and of their TTFT."""
    found: dict[str, list[Result]] = {}
    for item, result in good:
        if item.target == target and TASKS[item.values["task"]].max_tokens:
            found.setdefault(item.values["task"], []).append(result)
    made = {}
    for task, several in found.items():
        waits = [r.values["ttft_seconds"] for r in several if r.values.get("ttft_seconds") is not None]
        made[task] = (statistics.median(r.values["tg"] for r in several), statistics.median(waits) if waits else None)
    return made


def _speed_rows(options: SuiteOptions) -> int:
    return sum(1 for name in options.tasks if TASKS[name].max_tokens)


def _metrics(standing: Standing, scores: Mapping[str, MeanScore]) -> Iterator[Metric]:
    samples = tuple((task, value) for task, score in scores.items() if (value := score.value) is not None)
    values = {TOTAL: standing.total, **standing.categories}
    for group, value in values.items():
        if value is not None:
            estimate = Estimate(value, len(samples) if group == TOTAL else 1)
            kept = samples if group == TOTAL else ()
            yield Metric("points", group, standing.name, "of 100", "higher", estimate, kept)


def _board(title: str, board: Sequence[Standing]) -> ReportTable:
    rows: list[tuple[Value, ...]] = []
    for rank, one in enumerate(board, 1):
        if one.total is not None:
            shown = [_points(one.categories.get(category)) for category in WEIGHTS]
            rows.append((rank, one.name, *shown, _points(one.total), _points(one.agentic), ", ".join(one.missing)))
    columns = ("", "profile", *WEIGHTS, TOTAL, "general agentic", "n/a")
    weights = ", ".join(f"{name} {weight:.0%}" for name, weight in WEIGHTS.items())
    return ReportTable(title, columns, tuple(rows), weights)


def _points(value: float | None) -> str | None:
    return None if value is None else f"{value:.1f}"


def _tasks(options: SuiteOptions, names: Sequence[str], good: Rows) -> ReportTable:
    """Each task's points; below it, what is missing."""
    rows: list[tuple[Value, ...]] = []
    details: list[str] = []
    for name in names:
        for task in (TASKS[one] for one in TASKS if one in options.tasks and not TASKS[one].max_tokens):
            own = [r for item, r in good if item.target == name and item.values["task"] == task.id]
            if not own:
                rows.append((f"{task.id} {task.name}", name, None, None, "not done"))
                details.append("")
                continue
            points = [value for r in own if (value := score_of_values(r.values).value) is not None]
            mean = _points(statistics.fmean(points)) if points else None
            span = f"{min(points):.0f} – {max(points):.0f}" if len(points) > 1 else None
            rows.append((f"{task.id} {task.name}", name, mean, span, _missed(own[-1])))
            details.append(str(own[-1].values.get("code", "")))
    columns = ("task", "profile", "of 100", "range", "missed, or n/a")
    return ReportTable("Tasks", columns, tuple(rows), "", tuple(details))


def _missed(result: Result) -> str:
    values = result.values
    if values["source"] == "cut":
        return "max_tokens ended the thinking: no answer"
    if values["source"] == "empty":
        return "no answer"
    parts = [name for name, got in {**values.get("items", {}), **values.get("checks", {})}.items() if not got]
    if values.get("penalty", 1.0) < 1:
        parts.insert(0, "does not parse (x 2/3)")
    if score_of_values(values).keywords_only:
        found = list(values["items"].values())
        parts.insert(0, f"keywords only, {sum(map(bool, found))} of {len(found)}: {values['away']}")
    if values["source"] == "reasoning":
        parts.append("answered in reasoning_content")
    return "; ".join(parts)


def _speed(speeds: Mapping[str, Mapping[str, tuple[float, float | None]]]) -> ReportTable:
    rows: list[tuple[Value, ...]] = []
    for name, found in speeds.items():
        for task, (tg, wait) in found.items():
            rows.append((name, task, TASKS[task].name, tg, None if wait is None else f"{wait * 1000:.1f} ms"))
    return ReportTable(
        "Speed", ("profile", "", "length", "tok/s", "TTFT"), tuple(rows), "medians of three, temperature 0"
    )


def _notes(
    options: SuiteOptions, info: RunInfo, results: Rows, counted: Rows, board: Sequence[Standing]
) -> Iterator[str]:
    if any("features" in r.values and score_of_values(r.values).keywords_only for _, r in counted if r.ok):
        yield "A task whose program cannot be run here shows keywords only and has no points: no total counts it."
    for one in board:
        if one.missing and one.total is not None:
            yield f"{one.name} has no points for {', '.join(one.missing)}: its total is weighted over the rest."
    if len(board) == 1 and _speed_rows(options) and not options.ref_tps:
        yield "Speed is in points of the fastest profile: name several, or a reference with --ref-tps."
    if len(set(options.tasks)) < len(TASKS) or options.speed_tokens:
        yield "Not the whole suite: these points are not those of a full run."
    for item, result in counted:
        if not result.ok:
            yield f"{item.id} was not measured: {result.error.rstrip('.')}."
    if len(results) < info.items:
        yield f"{info.items - len(results)} of {info.items} items are not done yet."
