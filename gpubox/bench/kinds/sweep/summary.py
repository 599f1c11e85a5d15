"""A sweep's results -> its report: every cell as metrics, the grid as a table, lines to plot."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from gpubox import units
from gpubox.bench.kinds.sweep.grid import SweepOptions, cell_name
from gpubox.bench.kinds.sweep.notes import notes
from gpubox.bench.kinds.sweep.ranking import RankedCell, Ranking, Scored, rank_cells
from gpubox.bench.model import RunInfo
from gpubox.bench.report.formatting import format_change, validity_suffix
from gpubox.bench.report.model import Better, Metric, Report, ReportTable, Series, Value
from gpubox.bench.report.noise_history import NoiseHistory
from gpubox.bench.report.prompt_metrics import acceptance_metrics, prompt_metrics
from gpubox.bench.start_comparison import Noise
from gpubox.bench.stats import MARGIN
from gpubox.profiles.profile import FlagValue

MEASURES: tuple[tuple[str, str, str, Better], ...] = (
    ("tg", "tg", "tok/s", "higher"),
    ("pp", "pp", "tok/s", "higher"),
    ("TTFT", "ttft_seconds", "s", "lower"),
)
_EFFECTIVE: tuple[tuple[str, str, str, Better], ...] = (("effective", "effective", "tok/s", "higher"),)


def summarise(options: SweepOptions, info: RunInfo, results: Scored, history: NoiseHistory | None = None) -> Report:
    """The whole sweep, as far as it is."""
    targets = info.plan.targets
    noise = history.between_starts(info.provenance.values(), info.id) if history else Noise()
    ranking = rank_cells(options, targets, results, noise)
    metrics: dict[str, list[Metric]] = {}
    measures = MEASURES + (_EFFECTIVE if options.by == "effective" else ())
    for rank in ranking.ranks:
        target, rows = rank.cell.target, rank.cell.rows
        metrics[target.name] = [  # one profile, its cells as the groups
            *prompt_metrics(target.profile, target.name, rows, measures, info.plan.seed),
            *acceptance_metrics(target.profile, target.name, rows, info.plan.seed),
        ]
    flags = (*info.flags, *(flag for item, result in results if not item.warmup for flag in result.flags))
    return Report(
        kind="sweep",
        title=f"{targets[0].profile} over {' and '.join(options.axes)}",
        metrics=tuple(metric for found in metrics.values() for metric in found),
        tables=(_grid(options, ranking, metrics),),
        series=tuple(_lines(options, ranking.ranks, metrics)),
        notes=tuple(notes(options, info, ranking, results, noise, validity_suffix(flags))),
        flags=flags,
    )


def _grid(options: SweepOptions, ranking: Ranking, metrics: dict[str, list[Metric]]) -> ReportTable:
    shown = [
        name for name in ("tg", "pp", "effective", "acceptance") if any(_of(found, name) for found in metrics.values())
    ]
    with_vram = any(rank.cell.vram_bytes for rank in ranking.ranks)
    rows = []
    for rank in ranking.ranks:
        found = metrics[rank.cell.target.name]
        values: list[Value] = [format_flag_value(rank.cell.target.overrides[flag]) for flag in options.axes]
        values += [metric.estimate.value if (metric := _of(found, name)) else None for name in shown]
        if with_vram:
            values.append(units.memory(rank.cell.vram_bytes))
        values.append(units.duration(rank.cell.load_seconds))
        values.append(rank.cell.starts or None)
        ratio = rank.versus.ratio if rank.versus else rank.first_round
        values.append(format_change(ratio) if ratio is not None else "")
        low, high = rank.versus.interval if rank.versus else (None, None)
        values.append(f"{format_change(low)} to {format_change(high)}" if low is not None and high is not None else "")
        values.append(rank.words)
        rows.append(tuple(values))
    head = (*options.axes, *shown, *(["VRAM"] if with_vram else []), "load", "starts", "vs best", "95 % CI", "")
    note = "rates in tok/s"
    if ranking.several and ranking.several.pairs > 1:
        note += f"; verdicts are corrected for all {ranking.several.pairs} pairs of compared cells, intervals are not; "
        note += f"less than {MARGIN:.0%} is never called a difference"
    return ReportTable("Cells", head, tuple(rows), note)


def format_flag_value(value: FlagValue) -> str:
    """A value as the flag is written."""
    return cell_name({"": value}).removeprefix("=")


def _of(found: Sequence[Metric], name: str) -> Metric | None:
    return next((metric for metric in found if metric.name == name), None)


def _lines(options: SweepOptions, ranks: Sequence[RankedCell], metrics: dict[str, list[Metric]]) -> list[Series]:
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
            values_ = tuple((x, metric.estimate.value) for x, metric in points)
            made.append(Series(f"{name} over {flag}", line or name, label, f"{name}, {unit}", values_))
    return made


def _places(flag: str, values: Sequence[FlagValue]) -> tuple[Callable[[FlagValue], float], str]:
    if all(isinstance(value, int | float) and not isinstance(value, bool) for value in values):
        return float, flag  # type: ignore[return-value]
    words = [format_flag_value(value) for value in values]
    label = ", ".join(f"{i}: {word}" for i, word in enumerate(words, 1))
    return (lambda value: float(words.index(format_flag_value(value)) + 1)), f"{flag} ({label})"
