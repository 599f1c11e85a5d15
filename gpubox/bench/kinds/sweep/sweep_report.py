"""A sweep's results -> its report: every cell as metrics, the grid as a table, lines to plot, and notes."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence

from gpubox import units
from gpubox.bench.kinds.shared import name_list, report_flags, start_noise, unfinished_note
from gpubox.bench.kinds.sweep.grid import SweepGrid, axis_value
from gpubox.bench.kinds.sweep.ranking import LEFT_OUT, Ranking, SweepCell, cell_to_keep, rank_cells
from gpubox.bench.model import RunInfo, ScoredItems
from gpubox.bench.overrides import LOSSY_FLAGS, MODEL, PROFILE, cell_name, format_flag_value
from gpubox.bench.report.formatting import format_change, validity_suffix
from gpubox.bench.report.model import Metric, Report, ReportTable, Series, Value
from gpubox.bench.report.noise_history import NoiseHistory
from gpubox.bench.report.post_model import billions
from gpubox.bench.report.prompt_metrics import Measures, acceptance_metrics, prompt_metrics
from gpubox.bench.start_comparison import LEVEL, Noise
from gpubox.bench.stats import MARGIN, t_quantile
from gpubox.profiles.profile import FlagValue

MEASURES: Measures = (
    ("tg", "tg", "tok/s", "higher"),
    ("pp", "pp", "tok/s", "higher"),
    ("TTFT", "ttft_seconds", "s", "lower"),
    ("effective", "effective", "tok/s", "higher"),
    ("energy", "joules_per_token", "J/token", "lower"),
)
MIN_CORRECTION = 0.0005
"""A smaller correction of the best rate is not mentioned."""

MetricsByCell = dict[str, dict[str, Metric]]
"""Cell -> name of the metric -> metric."""


def summarise(grid: SweepGrid, info: RunInfo, results: ScoredItems, history: NoiseHistory | None = None) -> Report:
    """The report so far."""
    noise = start_noise(history, info)
    ranking = rank_cells(grid, results, noise)
    whole = grid.options.whole_launches
    measures = [measure for measure in MEASURES if measure[0] != "effective" or grid.options.by == "effective" or whole]
    metrics: MetricsByCell = {}
    for ranked in ranking.cells:
        target, rows = ranked.cell.target, ranked.cell.rows
        own = prompt_metrics(target.profile, target.name, rows, measures, info.plan.seed)  # its cells are the groups
        own += acceptance_metrics(target.profile, target.name, rows, info.plan.seed)
        metrics[target.name] = {metric.name: metric for metric in own}
    flags = report_flags(info, results)
    return Report(
        kind="sweep",
        title=_title(grid),
        metrics=tuple(metric for cell in metrics.values() for metric in cell.values()),
        tables=(_table(grid, ranking, metrics),),
        series=tuple(_curves(grid, ranking, metrics)),
        notes=tuple(_notes(grid, info, ranking, results, noise, validity_suffix(flags))),
        flags=flags,
    )


def _title(grid: SweepGrid) -> str:
    profiles, flags = (list(dict.fromkeys(target.profile for target in grid.targets)), list(grid.options.axes))
    flags = [flag for flag in flags if flag != PROFILE]
    return name_list(profiles) + (f" over {' and '.join(flags)}" if flags else "")


def _table(grid: SweepGrid, ranking: Ranking, metrics: MetricsByCell) -> ReportTable:
    axes = grid.options.axes
    known = {name for own in metrics.values() for name in own}
    measures = [name for name in ("tg", "pp", "effective", "acceptance", "energy") if name in known]
    whole = grid.options.whole_launches
    with_vram = whole or any(ranked.cell.vram_bytes for ranked in ranking.cells)
    rows = []
    for ranked in ranking.cells:
        cell = ranked.cell
        values: list[Value] = [grid.options.text(cell.target, axis) for axis in axes]
        if whole:
            context = f"{cell.context_tokens:,}" if cell.context_tokens else None
            active = f", ~{billions(cell.active_parameters)} active" if cell.active_parameters else ""
            values += [
                cell.quant or None, units.file_size(cell.model_bytes), f"{billions(cell.parameters)}{active}", context,
            ]  # fmt: skip
        for name in measures:
            metric = metrics[cell.name].get(name)
            values.append(metric.estimate.value if metric else None)
        if with_vram:
            values.append(units.memory(cell.vram_bytes))
        values += [units.duration(cell.load_seconds), cell.starts or None]
        ratio = ranked.versus.ratio if ranked.versus else ranked.first_round
        values.append(format_change(ratio) if ratio is not None else "")
        low, high = ranked.versus.interval if ranked.versus else (None, None)
        values.append(f"{format_change(low)} to {format_change(high)}" if low is not None and high is not None else "")
        values.append(ranked.label)
        rows.append(tuple(values))
    columns = (
        *axes, *(["quant", "size", "parameters", "context"] if whole else []),
        *("J/token" if name == "energy" else name for name in measures),
        *(["VRAM"] if with_vram else []), "load", "starts", "vs best", "95 % CI", "",
    )  # fmt: skip
    note = "rates in tok/s" + ("; effective: with the time of reading the prompt" if "effective" in measures else "")
    if ranking.comparison and ranking.comparison.pairs > 1:
        note += (
            f"; verdicts are corrected for all {ranking.comparison.pairs} pairs of compared cells, intervals are not; "
            f"less than {MARGIN:.0%} is never called a difference"
        )
    return ReportTable("Cells", columns, tuple(rows), note)


def _curves(grid: SweepGrid, ranking: Ranking, metrics: MetricsByCell) -> Iterator[Series]:
    """For each combination of the other axes, one curve over the first axis."""
    flags = [axis for axis in grid.options.axes if axis not in (MODEL, PROFILE)]
    if not flags:
        return  # the bars of the metrics show models and profiles side by side
    flag, *others = [*flags, *(axis for axis in grid.options.axes if axis not in flags)]
    cells = [ranked.cell for ranked in ranking.cells]
    x_of, x_names = _x_axis(list(dict.fromkeys(axis_value(cell.target, flag) for cell in cells)))
    for name, unit in (("tg", "tok/s"), ("pp", "tok/s"), ("acceptance", "%"), ("mean accepted length", "tokens/step")):
        curves: dict[str, list[tuple[float, float]]] = {}
        for cell in cells:
            if metric := metrics[cell.name].get(name):
                curve = cell_name({other: axis_value(cell.target, other) for other in others}, grid.options.labels)
                curves.setdefault(curve, []).append((x_of(axis_value(cell.target, flag)), metric.estimate.value))
        for curve, points in curves.items():
            points.sort(key=lambda point: point[0])
            line = curve or cells[0].target.profile
            yield Series(f"{name} over {flag}", line, flag, f"{name}, {unit}", tuple(points), x_names)


def _x_axis(values: Sequence[FlagValue]) -> tuple[Callable[[FlagValue], float], tuple[str, ...]]:
    """The x of a value. Values that are not numbers stand at 1, 2, 3, ... and have names."""
    if all(isinstance(value, int | float) and not isinstance(value, bool) for value in values):
        return float, ()  # type: ignore[return-value]
    texts = tuple(format_flag_value(value) for value in values)
    return (lambda value: float(texts.index(format_flag_value(value)) + 1)), texts


def _notes(
    grid: SweepGrid, info: RunInfo, ranking: Ranking, results: ScoredItems, noise: Noise, suffix: str
) -> Iterator[str]:
    """The best cell, what to keep and why, what could not be measured, how cells were compared."""
    best, comparison = ranking.best, ranking.comparison
    unmeasured = [ranked.cell for ranked in ranking.cells if not ranked.cell.rows and ranked.cell.why]
    left_out = sum(ranked.label == LEFT_OUT for ranked in ranking.cells)
    if best:
        others = "".join(f"; {part}" for part in _other_cells(ranking, left_out, len(unmeasured)))
        yield f"Best at {grid.options.by}: {best.name}, {_best_rate(ranking, best)}{others}{suffix}."
    if best and comparison:
        yield from _recommendation(grid, info, ranking, best)
    for why in dict.fromkeys(cell.why for cell in unmeasured):
        yield f"Not measured: {name_list([cell.name for cell in unmeasured if cell.why == why])}: {why}."
    if unmeasured and len(unmeasured) == len(ranking.cells):
        yield "No cell could be measured."
    if comparison and len(comparison.ancova.means) > 1:
        counts = comparison.ancova.counts
        yield (
            f"{len(counts)} cells were compared, with {min(counts.values())} starts of each in random order; a linear "
            "drift is removed."
        )
        too_few = [ranked.versus for ranked in ranking.cells if ranked.verdict == "too few" and ranked.versus]
        if too_few:
            least = max(contrast.detectable_difference(LEVEL / comparison.pairs) for contrast in too_few)
            yield f"Too few starts: differences under about {100 * least:.0f} % cannot be detected ({noise})."
    if left_out:
        half = t_quantile(LEVEL / left_out, noise.dof) * noise.sd * math.sqrt(2) + math.log1p(MARGIN)
        yield (
            f"{left_out} cells had one start each and were left out as slower than the compared ones: one start cannot "
            f"detect differences under about {100 * math.expm1(half):.0f} % ({noise}). --finalists compares more."
        )
    yield from unfinished_note(info, results)


def _best_rate(ranking: Ranking, best: SweepCell) -> str:
    corrected = ranking.best_rate
    rate = f"{units.rate(corrected)} tok/s"
    if abs(corrected / best.rate - 1) < MIN_CORRECTION or units.rate(corrected) == units.rate(best.rate):
        return rate
    return f"{rate} ({units.rate(best.rate)} as measured, corrected for picking the best)"


def _other_cells(ranking: Ranking, left_out: int, unmeasured: int) -> Iterator[str]:
    """How the best compares with every other cell, including those left out or not measured."""
    others = [ranked for ranked in ranking.cells if ranked.versus and not ranked.best]
    within_noise = [ranked.cell.name for ranked in others if ranked.within_noise]
    if any(ranked.verdict == "too few" for ranked in others):
        yield "too few starts to tell it from the others"
    elif within_noise:
        yield f"within noise of it: {name_list(within_noise)}"
    elif others:
        yield (
            f"the {len(others)} others compared are slower" if len(others) > 1 else "the other compared cell is slower"
        )
    if left_out:
        yield f"{left_out} left out after one start each"
    if unmeasured:
        yield f"{unmeasured} could not be measured"


def _recommendation(grid: SweepGrid, info: RunInfo, ranking: Ranking, best: SweepCell) -> Iterator[str]:
    """Which cell to keep. A setting that changes answers is never recommended for its speed."""
    cell = cell_to_keep(grid, ranking)
    if PROFILE in grid.options.axes:
        yield "Profiles may differ in their answers, too: none is recommended for being faster."
        return
    lossy = sorted(set(grid.options.axes) & LOSSY_FLAGS)
    if lossy:
        yield (
            f"{' and '.join(lossy)} changes the answers, not only their speed: no value is recommended for being "
            "faster. `gpubox bench humaneval` and `suite` measure what it costs."
        )
    if cell is None:
        yield (
            "Every compared cell changes the profile's answers: choose one with gpubox bench save "
            f"{info.id} --cell NAME"
        )
    elif cell.target == grid.current:
        reason = "" if cell.name == best.name else ": no cell with the same answers is significantly faster"
        yield f"Keep the profile's own {cell.name}{reason}."
    else:
        smallest = cell.name != best.name and not lossy
        name = f"{cell.name} (the smallest window as fast as the best)" if smallest else cell.name
        yield f"To keep {name}: gpubox bench save {info.id}"
