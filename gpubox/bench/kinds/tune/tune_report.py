"""A tune's results -> its report: the verdict, the changed flags, every measured set of flags as evidence."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from gpubox import units
from gpubox.bench.kinds.shared import name_list, report_flags
from gpubox.bench.kinds.tune.course import Course
from gpubox.bench.kinds.tune.progress import UNITS
from gpubox.bench.kinds.tune.protocol import OWN, TuneOptions, flag_changes, is_final, measured_target, starts_in
from gpubox.bench.kinds.tune.verdict import TuneVerdict, read_verdict, side_interval, verdict_notes
from gpubox.bench.model import Item, Result, RunInfo, ScoredItems
from gpubox.bench.report.formatting import format_change, validity_suffix
from gpubox.bench.report.model import Metric, Report, ReportTable, Value
from gpubox.bench.report.prompt_metrics import Measures, acceptance_metrics, prompt_metrics, start_means
from gpubox.bench.stats import MARGIN, estimate

MEASURES: Measures = (
    ("tg", "tg", "tok/s", "higher"),
    ("pp", "pp", "tok/s", "higher"),
    ("TTFT", "ttft_seconds", "s", "lower"),
)
_LOAD_MEASURES: Measures = (
    ("turns", "agent", "turns/min", "higher"),
    ("time per turn", "turn_seconds", "s", "lower"),
    ("tg", "tg", "tok/s", "higher"),
    ("TTFT", "ttft_seconds", "s", "lower"),
)
_GOALS = {"tg": "generation (tg)", "pp": "prompt processing (pp)", "agent": "agents' turns"}


def summarise(options: TuneOptions, course: Course, info: RunInfo, results: ScoredItems) -> Report:
    """The report so far."""
    verdict = read_verdict(course, UNITS[options.goal])
    flags = report_flags(info, results)
    profile = info.plan.targets[0].profile
    compared = course.finalists if course.final else ()
    by_cell = {cell: rows for cell, rows in _rows(course, results).items() if not compared or cell in compared}
    metrics = [metric for cell, rows in by_cell.items() for metric in _metrics(options, profile, cell, rows, info)]
    notes = list(_notes(options, course, info, verdict, validity_suffix(flags)))
    return Report(
        kind="tune",
        title=f"{profile} tuned for {_GOALS[options.goal]}",
        metrics=tuple(metrics),
        tables=tuple(_tables(options, course, info, verdict, results)),
        notes=tuple(notes),
        flags=flags,
    )


def _rows(course: Course, results: ScoredItems) -> dict[str, list[tuple[Item, Result]]]:
    """The answers of each measured cell: of the comparison if it took part, else of the search."""
    rows: dict[str, dict[bool, list[tuple[Item, Result]]]] = {}
    for _, own in starts_in(results):
        if (cell := measured_target(own)) in course.space.cells:
            measured = [(item, result) for item, result in own if result.ok and not item.warmup]
            rows.setdefault(cell, {}).setdefault(is_final(own[0][0]), []).extend(measured)
    chosen = {cell: parts.get(True) or parts.get(False) or [] for cell, parts in rows.items()}
    return {cell: own for cell, own in chosen.items() if own}


def _metrics(options: TuneOptions, profile: str, cell: str, rows: ScoredItems, info: RunInfo) -> list[Metric]:
    if options.goal != "agent":
        metrics = prompt_metrics(profile, cell, rows, MEASURES, info.plan.seed)
        return [*metrics, *acceptance_metrics(profile, cell, rows, info.plan.seed)]
    answer = []
    for name, key, unit, better in _LOAD_MEASURES:
        values = [(item.id, float(value)) for item, result in rows if (value := result.values.get(key)) is not None]
        if values:
            numbers = estimate([value for _, value in values])
            answer.append(Metric(name, cell, profile, unit, better, numbers, tuple(values), start_means(rows, key)))
    return answer


def _tables(
    options: TuneOptions, course: Course, info: RunInfo, verdict: TuneVerdict, results: ScoredItems
) -> Iterator[ReportTable]:
    overrides = {target.name: target.overrides for target in info.plan.targets}
    if verdict.keep and verdict.keep != OWN:
        rows = [(change.flag, change.before, change.after) for change in flag_changes(options, overrides[verdict.keep])]
        yield ReportTable("Changed flags", ("flag", "your profile", "tuned"), tuple(rows), verdict.keep)
    yield _evidence(options, course, verdict, results)


def _labels(options: TuneOptions, cell: str) -> tuple[str, ...]:
    return tuple(axis.labels[level] for axis, level in zip(options.axes, options.cells[cell], strict=True))


def _evidence(options: TuneOptions, course: Course, verdict: TuneVerdict, results: ScoredItems) -> ReportTable:
    """A row for each set of flags that was started: the compared ones first, then by rate."""
    outlook = course.outlook
    loads: dict[str, Mapping[str, Any]] = {}
    for _, own in starts_in(results):
        values = next((result.values for item, result in own if item.warmup and result.ok), {})
        loads.setdefault(measured_target(own), values)
    with_vram = any(values.get("vram_bytes") for values in loads.values())
    rows: list[tuple[bool, float, tuple[Value, ...]]] = []
    for cell in dict.fromkeys(outcome.cell for outcome in course.outcomes):
        starts = [outcome for outcome in course.outcomes if outcome.cell == cell and not outcome.failure]
        interval = side_interval(outlook, cell)
        rate = interval[0] if interval else sum(outcome.rate for outcome in starts) / len(starts) if starts else None
        contrast = outlook.contrasts.get(cell)
        low, high = contrast.interval if contrast else (None, None)
        between = f"{format_change(low)} to {format_change(high)}" if contrast else ""
        if cell == verdict.keep:
            word = "keep: your flags" if cell == OWN else "keep"
        elif interval:
            word = (
                "faster" if cell in outlook.significant else "your flags" if cell == OWN else "not shown to be faster"
            )
        else:
            word = next((o.failure for o in course.outcomes if o.cell == cell and o.failure), "") if not starts else ""
            word = word or ("left out by the search" if course.final else "")
        load = loads.get(cell, {})
        row: list[Value] = [*_labels(options, cell), len(starts) or None, rate]
        row += [format_change(contrast.ratio) if contrast else "", between]
        row += [units.memory(load.get("vram_bytes"))] if with_vram else []
        row += [units.duration(load.get("load_seconds")), word]
        rows.append((interval is None, -(rate or 0.0), tuple(row)))
    rows.sort(key=lambda row: row[:2])
    unit = UNITS[options.goal]
    columns = (*(axis.flag for axis in options.axes), "starts", unit, "vs yours", "95 % CI",
               *(["VRAM"] if with_vram else []), "load", "")  # fmt: skip
    note = "rows with an interval were compared on fresh starts in random order, a linear drift removed"
    return ReportTable("Evidence", columns, tuple(row for _, _, row in rows), note)


def _notes(options: TuneOptions, course: Course, info: RunInfo, verdict: TuneVerdict, suffix: str) -> Iterator[str]:
    done, limit = len(course.outcomes), options.space.starts_limit
    if verdict.sentence:
        yield f"{verdict.sentence.rstrip('.')}{suffix}."
    else:
        yield f"Not finished: {done} of at most {limit} starts are done (gpubox bench resume {info.id})."
    if verdict.answer in ("faster", "own fails"):
        yield f"To keep it: gpubox bench save {info.id}"
    if verdict.answer:
        yield from verdict_notes(course, verdict)
        yield f"It ended because {course.final_step.reason}; the search ended because {course.search_step.reason}."
    cells = len(options.cells)
    every = f"; comparing every one with four starts each takes {4 * cells}" if 4 * cells > done else ""
    yield (
        f"{done} {'start' if done == 1 else 'starts'} for {cells} sets of flags{every}. "
        f"Less than {MARGIN:.0%} is never called a difference."
    )
    for why, count in options.pruned.items():
        yield f"{count:,} sets of flags were not tried: {why}."
    failed = {outcome.cell: outcome.failure for outcome in course.outcomes if outcome.failure}
    for why in dict.fromkeys(failed.values()):
        yield f"Not measured: {name_list([cell for cell, own in failed.items() if own == why])}: {why}."
    if options.goal == "agent":
        yield (
            f"One start is {options.streams} agents at once with {options.turns} turns each: a shared prefix of "
            f"{options.context_tokens:,} tokens, a file, answers of {options.max_tokens} tokens, tool output between."
        )
