"""The report of an A/B run: each side's figures, the contrasts, and what they allow to conclude."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from gpubox.bench.kinds.ab.plan import AbOptions, questions_of, start_order
from gpubox.bench.kinds.ab.verdict import (
    MAIN_WEIGHT,
    MEASURES,
    ContrastRow,
    contrast_rows,
    current_analysis,
    main_row,
    side_results,
)
from gpubox.bench.kinds.shared import closing_notes, report_flags, start_noise
from gpubox.bench.model import RunInfo, ScoredItems
from gpubox.bench.overrides import lossy_difference
from gpubox.bench.report.formatting import format_change, validity_suffix
from gpubox.bench.report.model import Metric, Report, ReportTable, Value
from gpubox.bench.report.noise_history import NoiseHistory
from gpubox.bench.report.prompt_metrics import acceptance_metrics, prompt_metrics
from gpubox.bench.start_comparison import LEVEL, Contrast, interim_analyses
from gpubox.bench.stats import MARGIN

VERDICTS = {
    "faster": "{b} is faster than {a}",
    "slower": "{b} is slower than {a}",
    "indistinguishable": "{b} and {a} are indistinguishable",
}


def summarise(options: AbOptions, info: RunInfo, results: ScoredItems, history: NoiseHistory | None = None) -> Report:
    """Each side's figures by domain and over all prompts, the contrasts, and the load times."""
    metrics: list[Metric] = []
    for side in options.sides:
        for domain in ("", *(options.domains if len(options.domains) > 1 else ())):
            own = side_results(side, results, domain)
            measures = MEASURES[:1] if domain else MEASURES
            metrics += prompt_metrics(side.name, domain or "all", own, measures, info.plan.seed)
            metrics += acceptance_metrics(side.name, domain or "all", own, info.plan.seed)
    rows = contrast_rows(options, results, noise=start_noise(history, info), restarted=_is_restarted(info))
    flags = report_flags(info, results)
    return Report(
        kind="ab",
        title=" against ".join(side.name for side in reversed(options.sides)),
        metrics=tuple(metrics),
        tables=(*_contrast_table(options, rows, results), *_load_table(options, results)),
        notes=tuple(_notes(options, info, results, rows, validity_suffix(flags))),
        flags=flags,
    )


def _is_restarted(info: RunInfo) -> bool:
    return not any(target.url for target in info.plan.targets)


def _contrast_table(options: AbOptions, rows: Sequence[ContrastRow], results: ScoredItems) -> list[ReportTable]:
    if not rows:
        return []
    first, second = options.sides
    cells: list[tuple[Value, ...]] = []
    for row in rows:
        contrast = row.contrast
        low, high = contrast.interval if math.isfinite(contrast.error) else (None, None)
        cells.append((row.name, row.domain, contrast.ratio, low, high, contrast.starts, row.corrected_p, row.verdict))
    if ratio := _total_ratio(options, results):
        cells.append(("tg, tokens over seconds of all", "all", ratio, None, None, None, None, ""))
    columns = ("", "prompts", "ratio", "95 % CI from", "to", "prompts" if options.one_server else "starts", "p",
               "verdict")  # fmt: skip
    planned, current = interim_analyses(options.starts), current_analysis(options, results)
    interim = ""
    if len(planned) > 1 and not options.one_server:
        reached = " and ".join(str(analysis.starts) for analysis in planned if analysis.starts <= current.starts)
        interim = f", and for the interim analyses (after {reached} starts of each)"
    note = (
        f"above 1 where the first is faster; the intervals are not corrected; p is corrected for these "
        f"{len(rows)} rows (Holm, tg over all has {MAIN_WEIGHT:.0%}){interim}; "
        f"less than {MARGIN:.0%} is never called a difference"
    )
    return [ReportTable(f"{second.name} over {first.name}", columns, tuple(cells), note)]


def _total_ratio(options: AbOptions, results: ScoredItems) -> float | None:
    """The ratio of all generated tokens over all generation seconds."""
    rates = []
    for side in options.sides:
        values = [result.values for _, result in side_results(side, results) if result.values.get("generation_seconds")]
        seconds = sum(value["generation_seconds"] for value in values)
        rates.append(sum(value["generated_tokens"] for value in values) / seconds if seconds else 0.0)
    return rates[1] / rates[0] if all(rates) else None


def _load_table(options: AbOptions, results: ScoredItems) -> list[ReportTable]:
    """The load times, which mmap and load modes change as well."""
    rows: list[tuple[Value, ...]] = []
    for side in [] if options.one_server else options.sides:
        loads = [r.values.get("load_seconds") for i, r in results if i.warmup and i.values["side"] == side.name]
        seconds = [float(load) for load in loads if load is not None]
        if seconds:
            rows.append((side.name, len(seconds), min(seconds), max(seconds)))
    return [ReportTable("Loads", ("", "starts", "s, least", "s, most"), tuple(rows))] if rows else []


def _notes(
    options: AbOptions, info: RunInfo, results: ScoredItems, rows: Sequence[ContrastRow], doubt: str
) -> Iterator[str]:
    if main := main_row(rows):
        yield _verdict_note(options, main, doubt)
        if main.contrast.enough and not options.one_server:
            yield _more_starts_note(main.contrast)
        if difference := lossy_difference(info):
            yield difference
    if options.one_server:
        yield "Both sides asked one server, prompt by prompt; nothing was restarted."
    else:
        letters = {side.name: letter for side, letter in zip(options.sides, "AB", strict=True)}
        order = "".join(letters[side.name] for side in start_order(options, info.plan.seed))
        yield f"Order of the starts, randomised in blocks of four: {order}."
        if not _is_restarted(info):
            yield "gpubox cannot restart a server given by its address: each was measured in a single start."
    unneeded = [(item, result) for item, result in results if result.unneeded]
    if unneeded:
        count = len({item.start for item, _ in unneeded})
        yield f"Ended early, {unneeded[0][1].error}: {count} of {2 * options.starts} starts were not needed."
    yield from closing_notes(info, results)


def _verdict_note(options: AbOptions, row: ContrastRow, doubt: str) -> str:
    contrast = row.contrast
    first, second = (side.name for side in options.sides)
    if not math.isfinite(contrast.error):
        return f"Too few prompts to compare {second} with {first}: {format_change(contrast.ratio)}{doubt}."
    low, high = (format_change(end) for end in contrast.interval)
    sample = f"{contrast.starts} prompts"
    if not options.one_server:
        sample = f"{contrast.starts} starts of each, {len(questions_of(options))} prompts a start"
    figures = f"{format_change(contrast.ratio)}, 95 % interval {low} to {high}, over {sample}{doubt}"
    if row.verdict != "too few":
        return f"In tg {VERDICTS[row.verdict].format(a=first, b=second)}: {figures}."
    limit = 100 * contrast.detectable_difference(LEVEL * MAIN_WEIGHT)
    assumed = contrast.noise is not None and not contrast.noise.runs
    needed = ", and a larger one needs 4 starts of each" if assumed else ""
    return (
        f"Too few starts to compare {second} with {first} in tg: differences under about {limit:.0f} % cannot be "
        f"detected{needed} ({contrast.noise}). Measured: {figures}."
    )


def _more_starts_note(contrast: Contrast) -> str:
    """How much narrower the interval would be with more starts."""
    now, one, four = (100 * math.expm1(contrast.half_width(contrast.starts + more)) for more in (0, 1, 4))
    return (
        f"One more start of each would narrow the interval from about ± {now:.1f} % to ± {one:.1f} %, "
        f"four more to ± {four:.1f} % (--starts)."
    )
