"""An ab run's results -> its report: each arm's figures, the contrasts start by start, and what may be said."""

from __future__ import annotations

import math
from collections.abc import Sequence

from gpubox.bench.kinds.ab.plan import AbOptions, questions_of, start_order
from gpubox.bench.kinds.ab.verdict import (
    MAIN_SHARE,
    MEASURES,
    ContrastRow,
    Scored,
    arm_results,
    contrast_rows,
    current_analysis,
)
from gpubox.bench.lossy_flags import lossy_difference
from gpubox.bench.model import RunInfo
from gpubox.bench.report.formatting import format_change, validity_suffix
from gpubox.bench.report.model import Metric, Report, ReportTable, Value
from gpubox.bench.report.noise_history import NoiseHistory
from gpubox.bench.report.prompt_metrics import acceptance_metrics, prompt_metrics
from gpubox.bench.start_comparison import LEVEL, Contrast, interim_analyses
from gpubox.bench.stats import MARGIN

WORDS = {
    "faster": "{b} is faster than {a}",
    "slower": "{b} is slower than {a}",
    "indistinguishable": "{b} and {a} are indistinguishable",
}


def summarise(options: AbOptions, info: RunInfo, results: Scored, history: NoiseHistory | None = None) -> Report:
    """Each arm's figures by domain and over all, the comparisons, and the loads where servers were restarted."""
    metrics: list[Metric] = []
    for arm in options.arms:
        for domain in ("", *(options.domains if len(options.domains) > 1 else ())):
            rows = arm_results(arm, results, domain)
            measures = MEASURES[:1] if domain else MEASURES
            metrics += prompt_metrics(arm.name, domain or "all", rows, measures, info.plan.seed)
            metrics += acceptance_metrics(arm.name, domain or "all", rows, info.plan.seed)
    noise = history.launches(info.provenance.values(), info.id) if history else None
    compared = contrast_rows(options, results, noise=noise, restarted=_restarted(info))
    flags = (*info.flags, *(flag for item, result in results if not item.warmup for flag in result.flags))
    return Report(
        kind="ab",
        title=" against ".join(arm.name for arm in reversed(options.arms)),
        metrics=tuple(metrics),
        tables=(*_table(options, compared, results), *_loads(options, results)),
        notes=tuple(_notes(options, info, results, compared, validity_suffix(flags))),
        flags=flags,
    )


def _restarted(info: RunInfo) -> bool:
    return not any(target.url for target in info.plan.targets)


def _table(options: AbOptions, compared: Sequence[ContrastRow], results: Scored) -> list[ReportTable]:
    if not compared:
        return []
    first, second = options.arms
    rows: list[tuple[Value, ...]] = []
    for row in compared:
        found = row.contrast
        low, high = found.interval if math.isfinite(found.error) else (None, None)
        rows.append((row.name, row.domain, found.ratio, low, high, found.starts, row.corrected, row.verdict))
    if totals := _totals(options, results):
        rows.append(("tg, tokens over seconds of all", "all", totals, None, None, None, None, ""))
    unit = "prompts" if options.one_server else "starts"
    columns = ("", "prompts", "ratio", "95 % CI from", "to", unit, "p", "verdict")
    reached = [
        str(look.starts)
        for look in interim_analyses(options.starts)
        if look.starts <= current_analysis(options, results).starts
    ]
    several = len(interim_analyses(options.starts)) > 1 and not options.one_server
    after = f", and for the looks at it (after {' and '.join(reached)} starts of each)" if several else ""
    note = (
        f"above 1 where the first is faster; each interval is its row's alone; p is corrected for these "
        f"{len(compared)} rows (Holm, tg over all has {MAIN_SHARE:.0%}){after}; "
        f"less than {MARGIN:.0%} is never called a difference"
    )
    return [ReportTable(f"{second.name} over {first.name}", columns, tuple(rows), note)]


def _totals(options: AbOptions, results: Scored) -> float | None:
    rates = []
    for arm in options.arms:
        values = [result.values for _, result in arm_results(arm, results) if result.values.get("generation_seconds")]
        seconds = sum(value["generation_seconds"] for value in values)
        rates.append(sum(value["generated_tokens"] for value in values) / seconds if seconds else 0.0)
    return rates[1] / rates[0] if all(rates) else None


def _loads(options: AbOptions, results: Scored) -> list[ReportTable]:
    """How long each start took: what mmap and load modes change beside the rates."""
    rows: list[tuple[Value, ...]] = []
    for arm in options.arms:
        warm = [r.values.get("load_seconds") for i, r in results if i.warmup and i.values["arm"] == arm.name]
        seconds = [float(value) for value in warm if value is not None]
        if seconds and not options.one_server:
            rows.append((arm.name, len(seconds), min(seconds), max(seconds)))
    return [ReportTable("Loads", ("", "starts", "s, least", "s, most"), tuple(rows))] if rows else []


def _notes(
    options: AbOptions, info: RunInfo, results: Scored, compared: Sequence[ContrastRow], doubt: str
) -> list[str]:
    notes = []
    main = next((row for row in compared if (row.name, row.domain) == ("tg", "all")), None)
    if main:
        notes.append(_verdict(options, main, doubt))
        if main.contrast.enough and not options.one_server:
            notes.append(_narrowing(main.contrast))
        if words := lossy_difference(info):
            notes.append(words)
    if options.one_server:
        notes.append("Both arms asked one server, prompt by prompt; nothing was restarted.")
    else:
        letters = {arm.name: letter for arm, letter in zip(options.arms, "AB", strict=True)}
        drawn = "".join(letters[arm.name] for arm in start_order(options, info.plan.seed))
        notes.append(f"Order of the starts, drawn at random in blocks of four: {drawn}.")
        if not _restarted(info):
            notes.append("gpubox cannot restart a server by its address: each was measured in one and the same launch.")
    unneeded = next((result.error for _, result in results if result.unneeded), "")
    if unneeded:
        count = len({item.start for item, result in results if result.unneeded})
        notes.append(f"Ended early, {unneeded}: {count} of {2 * options.starts} starts were not needed.")
    failed = [(item, result) for item, result in results if result.failed and not item.warmup]
    notes += [f"Not measured: {item.id}: {result.error}." for item, result in failed[:3]]
    if len(failed) > 3:
        notes.append(f"And {len(failed) - 3} more were not measured.")
    if len(results) < info.items:
        notes.append(f"{info.items - len(results)} of {info.items} items are not done yet.")
    return notes


def _verdict(options: AbOptions, row: ContrastRow, doubt: str) -> str:
    found = row.contrast
    first, second = (arm.name for arm in options.arms)
    if not math.isfinite(found.error):
        return f"Too few prompts to compare {second} with {first}: {format_change(found.ratio)}{doubt}."
    low, high = found.interval
    over = (
        f"over {found.starts} prompts" if options.one_server
        else f"over {found.starts} starts of each, {len(questions_of(options))} prompts a start"
    )  # fmt: skip
    figures = (
        f"{format_change(found.ratio)}, 95 % interval {format_change(low)} to {format_change(high)}, {over}{doubt}"
    )
    if row.verdict != "too few":
        return f"In tg {WORDS[row.verdict].format(a=first, b=second)}: {figures}."
    larger = "" if found.noise is None or found.noise.runs else ", and a larger one needs 4 starts of each"
    return (
        f"Too few starts to compare {second} with {first} in tg: differences under about "
        f"{100 * found.least(LEVEL * MAIN_SHARE):.0f} % cannot be told{larger} ({found.noise}). Seen: {figures}."
    )


def _narrowing(found: Contrast) -> str:
    """What more starts would be worth."""
    now, more = (100 * math.expm1(found.with_starts(found.starts + extra)) for extra in (0, 1))
    four = 100 * math.expm1(found.with_starts(found.starts + 4))
    return (
        f"One more start of each would narrow the interval from about ± {now:.1f} % to ± {more:.1f} %, "
        f"four more to ± {four:.1f} % (--starts)."
    )
