"""A sweep's results -> its report: every cell as metrics, the grid as a table, lines to plot."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from gpubox import units
from gpubox.bench.model import RunInfo
from gpubox.bench.report.metrics import acceptance, over_prompts
from gpubox.bench.report.model import Better, Metric, Report, Series, Table, Value
from gpubox.bench.sweep.plan import Options, cell_name
from gpubox.bench.sweep.ranking import Ranked, Scored, chosen, ranked
from gpubox.profiles.model import FlagValue

MEASURES: tuple[tuple[str, str, str, Better], ...] = (
    ("tg", "tg", "tok/s", "higher"),
    ("pp", "pp", "tok/s", "higher"),
    ("TTFT", "ttft_seconds", "s", "lower"),
)
_EFFECTIVE: tuple[tuple[str, str, str, Better], ...] = (("effective", "effective", "tok/s", "higher"),)


def summarise(options: Options, info: RunInfo, results: Scored) -> Report:
    """The whole sweep, as far as it is."""
    ranks = ranked(options, info.plan.targets, results, info.plan.seed)
    metrics: dict[str, list[Metric]] = {}
    measures = MEASURES + (_EFFECTIVE if options.by == "effective" else ())
    for rank in ranks:
        target, rows = rank.cell.target, rank.cell.rows
        metrics[target.name] = [  # one profile, its cells as the groups
            *over_prompts(target.profile, target.name, rows, measures, info.plan.seed),
            *acceptance(target.profile, target.name, rows, info.plan.seed),
        ]
    profile = info.plan.targets[0].profile
    return Report(
        kind="sweep",
        title=f"{profile} over {' and '.join(options.axes)}",
        metrics=tuple(metric for found in metrics.values() for metric in found),
        tables=(_grid(options, ranks, metrics),),
        series=tuple(_lines(options, ranks, metrics)),
        notes=tuple(_notes(options, info, ranks, results)),
        flags=(*info.flags, *(flag for item, result in results if not item.warmup for flag in result.flags)),
    )


def _grid(options: Options, ranks: Sequence[Ranked], metrics: dict[str, list[Metric]]) -> Table:
    shown = [
        name for name in ("tg", "pp", "effective", "acceptance") if any(_of(found, name) for found in metrics.values())
    ]
    with_vram = any(rank.cell.vram_bytes for rank in ranks)
    rows = []
    for rank in ranks:
        found = metrics[rank.cell.target.name]
        by = _of(found, options.by)
        values: list[Value] = [cell_word(rank.cell.target.overrides[flag]) for flag in options.axes]
        values += [metric.estimate.value if (metric := _of(found, name)) else None for name in shown]
        values.append(_interval(by))
        if with_vram:
            values.append(units.memory(rank.cell.vram_bytes))
        values.append(units.seconds(rank.cell.load_seconds))
        values.append(f"{100 * (rank.versus.ratio - 1):+.1f} %" if rank.versus else "")
        values.append(rank.words)
        rows.append(tuple(values))
    head = (*options.axes, *shown, f"{options.by}, 95 % CI", *(["VRAM"] if with_vram else []), "load", "vs best", "")
    note = "rates in tok/s; each cell against the best prompt by prompt"
    return Table("Cells", head, tuple(rows), note)


def cell_word(value: FlagValue) -> str:
    """A value as the flag is written."""
    return cell_name({"": value}).removeprefix("=")


def _of(found: Sequence[Metric], name: str) -> Metric | None:
    return next((metric for metric in found if metric.name == name), None)


def _interval(metric: Metric | None) -> str:
    from gpubox.bench.report.words import number

    if metric is None or metric.estimate.low is None:
        return units.UNKNOWN
    return f"{number(metric.estimate.low)} – {number(metric.estimate.high)}"


def _lines(options: Options, ranks: Sequence[Ranked], metrics: dict[str, list[Metric]]) -> list[Series]:
    """One line for each combination of the other axes, over the first axis; text values stand at 1, 2, 3, ..."""
    flag, *others = options.axes
    values = list(dict.fromkeys(rank.cell.target.overrides[flag] for rank in ranks))
    place, label = _places(flag, values)
    made = []
    for name, unit in (("tg", "tok/s"), ("pp", "tok/s"), ("acceptance", "%"), ("mean accepted length", "tokens/step")):
        lines: dict[str, list[tuple[float, Metric]]] = {}
        for rank in ranks:
            if metric := _of(metrics[rank.cell.target.name], name):
                line = cell_name({other: rank.cell.target.overrides[other] for other in others})
                lines.setdefault(line, []).append((place(rank.cell.target.overrides[flag]), metric))
        for line, points in lines.items():
            points.sort(key=lambda point: point[0])
            estimates = [metric.estimate for _, metric in points]
            bounded = all(one.low is not None and one.high is not None for one in estimates)
            made.append(
                Series(
                    f"{name} over {flag}", line or name, label, f"{name}, {unit}",
                    tuple((x, metric.estimate.value) for x, metric in points),
                    tuple(one.low or 0.0 for one in estimates) if bounded else (),
                    tuple(one.high or 0.0 for one in estimates) if bounded else (),
                )
            )  # fmt: skip
    return made


def _places(flag: str, values: Sequence[FlagValue]) -> tuple[Callable[[FlagValue], float], str]:
    if all(isinstance(value, int | float) and not isinstance(value, bool) for value in values):
        return float, flag  # type: ignore[return-value]
    words = [cell_word(value) for value in values]
    label = ", ".join(f"{i}: {word}" for i, word in enumerate(words, 1))
    return (lambda value: float(words.index(cell_word(value)) + 1)), f"{flag} ({label})"


def _notes(options: Options, info: RunInfo, ranks: Sequence[Ranked], results: Scored) -> list[str]:
    notes = []
    best = next((rank.cell for rank in ranks if rank.best), None)
    level = [rank.cell.target.name for rank in ranks if rank.level and not rank.best]
    if best:
        also = f"; within noise of it: {_several(level)}" if level else "; every other cell is slower beyond noise"
        if any(rank.versus and rank.versus.verdict == "too few" for rank in ranks):
            also = "; too few prompts to tell it from the others"
        notes.append(f"Best at {options.by}: {best.target.name}, {units.rate(best.rate)} tok/s{also}.")
    kept = chosen(options, ranks)
    if kept and best:
        what = f"{kept.target.name} (the smallest window as fast as the best)" if kept != best else kept.target.name
        notes.append(f"To keep {what}: gpubox bench save {info.id}")
    lost = [rank.cell for rank in ranks if not rank.cell.rows and rank.cell.why]
    for why in dict.fromkeys(cell.why for cell in lost):
        notes.append(f"Not measured: {_several([cell.target.name for cell in lost if cell.why == why])}: {why}.")
    if lost and len(lost) == len(ranks):
        notes.append("No cell could be measured.")
    if best and options.rounds == 1 and len(ranks) > 1:
        notes.append("Each cell ran once: two launches of one command line differ by about 1 %, --rounds 2 tells more.")
    if len(results) < info.items:
        notes.append(f"{info.items - len(results)} of {info.items} items are not done yet.")
    return notes


def _several(names: Sequence[str]) -> str:
    return ", ".join(names[:6]) + (f" and {len(names) - 6} more" if len(names) > 6 else "")
