"""A speed run's results -> its report."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import TypeVar

import msgspec

from gpubox import units
from gpubox.bench import stats
from gpubox.bench.energy import energy_note
from gpubox.bench.kinds.shared import closing_notes, report_doubts, timing_notes
from gpubox.bench.kinds.speed.depth_curves import DepthPoint, depth_curves, depth_series, halving_notes
from gpubox.bench.kinds.speed.workloads import PRESETS, SpeedOptions, Workload
from gpubox.bench.model import Item, Result, RunInfo, ScoredItems
from gpubox.bench.report.model import Metric, Report, ReportTable, Series, Value
from gpubox.bench.report.prompt_metrics import Measures, scale_estimate, start_estimate, start_means
from gpubox.bench.stats import Estimate

T = TypeVar("T")
Row = tuple[Item, Workload, Result]
_MEASURES: Measures = (
    ("TTFT", "ttft_seconds", "s", "lower"),
    ("pp", "pp", "tok/s", "higher"),
    ("tg", "tg", "tok/s", "higher"),
    ("mean accepted length", "mean_accepted_length", "tokens/step", ""),
    ("energy", "joules_per_token", "J/token", "lower"),
    ("read energy", "joules_per_prompt_token", "J/read token", "lower"),
)


def summarise(options: SpeedOptions, info: RunInfo, results: ScoredItems) -> Report:
    """The metrics of each target and workload; notes say what failed or was skipped."""
    rows: list[Row] = [
        (item, msgspec.convert(item.values, Workload), result)
        for item, result in results
        if "prompt" in item.values and not item.warmup
    ]
    metrics: list[Metric] = []
    points: list[DepthPoint] = []
    for target in info.plan.targets:
        measured = [row for row in rows if row[0].target == target.name and row[2].ok]
        for group, members in _groups(measured).items():
            own, workload = _metrics(target.name, group, members), members[0][1]
            metrics += own
            if not workload.domain:
                named = {metric.name: metric for metric in own}
                size = workload.max_tokens
                points.append(DepthPoint(target.name, workload.prompt, workload.prefix, workload.depth, size, named))
    curves = depth_curves(points)
    benches = [(item, result) for item, result in results if "prompt" not in item.values and result.ok]
    return Report(
        kind="speed",
        title=PRESETS[options.preset] if options.preset else "Speed over HTTP",
        verdict=_verdict(info, metrics),
        metrics=tuple(metrics),
        tables=(*_run_tables(rows), *(_llama_bench_table(item, result) for item, result in benches)),
        series=(*_run_curves(rows), *depth_series(curves)),
        notes=(*halving_notes(curves), *_notes(options, info, results, rows)),
        doubts=report_doubts(info, results),
        text="\n\n".join(str(result.values["markdown"]) for _, result in benches),
    )


def _verdict(info: RunInfo, metrics: Sequence[Metric]) -> str:
    """How fast each target writes and reads, in words."""
    sentences = []
    for target in info.plan.targets:
        rates = {metric.name: metric.estimate.value for metric in reversed(metrics) if metric.target == target.name}
        if "tg" in rates:
            reads = f" and reads {units.rate(rates['pp'])}" if "pp" in rates else ""
            sentences.append(f"{target.name} writes {units.rate(rates['tg'])} tokens a second{reads}.")
    return " ".join(sentences)


def _groups(rows: Sequence[Row]) -> dict[str, list[Row]]:
    """By row of the report. Where the prompts are the sampling unit: all of them, then each domain."""
    groups: dict[str, list[Row]] = {}
    if rows and rows[0][1].domain:
        groups["all"] = list(rows)
    for row in rows:
        workload = row[1]
        groups.setdefault(
            workload.domain or f"{workload.prompt}, {workload.prefix}, depth {workload.depth}", []
        ).append(row)
    return groups


def _metrics(target: str, group: str, rows: Sequence[Row]) -> list[Metric]:
    metrics = []
    for name, key, unit, better in _MEASURES:
        if estimate := _estimate(rows, key):
            own = [row for row in rows if row[2].values.get(key) is not None]
            samples = tuple((_sample_name(row), float(row[2].values[key])) for row in own)
            starts = start_means([(item, result) for item, _, result in rows], key)
            metrics.append(Metric(name, group, target, unit, better, estimate, samples, starts))
    if drafted := [row for row in rows if row[2].values.get("draft_tokens")]:
        metrics.append(_acceptance(target, group, drafted))
    return metrics


def _estimate(rows: Sequence[Row], key: str) -> Estimate | None:
    """As ``start_estimate``, where the prompts of one start, not their seeds, are what its range is of."""
    values = [(row, float(row[2].values[key])) for row in rows if row[2].values.get(key) is not None]
    _, workload, _ = rows[0]
    if values and key == "mean_accepted_length" and workload.greedy and not workload.domain:
        return stats.estimate([statistics.fmean(value for _, value in values)])  # one and the same answer
    if values and workload.domain and len({item.start for item, _, _ in rows}) == 1:
        prompts = [statistics.median(seeds) for prompts in _by_prompt(values) for seeds in prompts]
        return replace(stats.estimate(prompts), low=None, high=None, method="")
    return start_estimate([(item, result) for item, _, result in rows], key)


def _sample_name(row: Row) -> str:
    """By what two runs pair their samples: the item's id without its target."""
    item, workload, _ = row
    number = item.id.rpartition("/")[2]
    return f"{workload.id}/{item.start}.{number}" if item.start else f"{workload.id}/{number}"


def _by_prompt(values: Sequence[tuple[Row, T]]) -> list[list[list[T]]]:
    """Domains, in them prompts, in them the value of each seed."""
    domains: dict[str, dict[str, list[T]]] = {}
    for (_, workload, _), value in values:
        domains.setdefault(workload.domain, {}).setdefault(workload.prompt.rpartition("-s")[0], []).append(value)
    return [list(prompts.values()) for prompts in domains.values()]


def _acceptance(target: str, group: str, rows: Sequence[Row]) -> Metric:
    drafts = [
        (row, stats.RatioSample(row[2].values["draft_tokens_accepted"] or 0, row[2].values["draft_tokens"]))
        for row in rows
    ]
    workload = rows[0][1]
    if workload.domain:
        strata = [[_total(prompt) for prompt in prompts] for prompts in _by_prompt(drafts)]
    elif workload.greedy:  # repeats of one greedy prompt are one observation
        strata = [[_total([ratio for _, ratio in drafts])]]
        drafts = [(drafts[0][0], strata[0][0])]
    else:
        strata = [[ratio for _, ratio in drafts]]
    samples = tuple((_sample_name(row), 100 * ratio.numerator / ratio.denominator) for row, ratio in drafts)
    pooled = scale_estimate(stats.pooled_ratio(strata, units="prompts" if workload.domain else "runs"), 100)
    return Metric("acceptance", group, target, "%", "higher", pooled, samples)


def _total(ratios: Sequence[stats.RatioSample]) -> stats.RatioSample:
    return stats.RatioSample(sum(ratio.numerator for ratio in ratios), sum(ratio.denominator for ratio in ratios))


def _sampled_runs(rows: Sequence[Row]) -> dict[str, list[Row]]:
    """By target, the repeats of a prompt whose answers differ: each of them is a result of its own."""
    runs: dict[str, list[Row]] = {}
    for row in rows:
        if not row[1].greedy and not row[1].domain:
            runs.setdefault(row[0].target, []).append(row)
    return runs


def _run_tables(rows: Sequence[Row]) -> Iterator[ReportTable]:
    """Every such run of each target as a row, also one that has no figures."""
    for target, runs in _sampled_runs(rows).items():
        drafts = any(result.values.get("draft_tokens") for _, _, result in runs)
        columns = ("drafted", "accepted", "acceptance, %") if drafts else ("TTFT, s", "pp, tok/s")
        yield ReportTable(
            f"{target}, run by run",
            ("run", "tg, tok/s", *columns),
            tuple((_run_name(row), row[2].values.get("tg"), *_run_values(row[2], drafts=drafts)) for row in runs),
        )


def _run_values(result: Result, *, drafts: bool) -> tuple[Value, ...]:
    if not drafts:
        return result.values.get("ttft_seconds"), result.values.get("pp")
    drafted, accepted = result.values.get("draft_tokens"), result.values.get("draft_tokens_accepted")
    return drafted, accepted, 100 * accepted / drafted if drafted and accepted is not None else None


def _run_name(row: Row) -> str:
    """``7``; with several prompts or starts also which one."""
    return row[0].id.rpartition(":")[2].removeprefix(f"{row[1].id}/")


def _run_curves(rows: Sequence[Row]) -> Iterator[Series]:
    for target, runs in _sampled_runs(rows).items():
        rates = [(float(n), row[2].values["tg"]) for n, row in enumerate(runs, 1) if row[2].values.get("tg")]
        if len(rates) > 1:
            yield Series("tg, run by run", target, "run", "tg, tok/s", tuple(rates))


def _llama_bench_table(item: Item, result: Result) -> ReportTable:
    rows = tuple(
        (row["test"] + (f" @ d{row['depth']}" if row["depth"] else ""), row["mean"], row["sd"], len(row["samples"]))
        for row in result.values["rows"]
    )
    note = "without server, template and speculative decoding"
    return ReportTable(item.target, ("test", "tok/s", "sd", "n"), rows, note)


def _notes(options: SpeedOptions, info: RunInfo, results: ScoredItems, rows: Sequence[Row]) -> Iterator[str]:
    """What the numbers of a single start leave open, who measured them, and what was not measured."""
    if options.starts == 1 and any(result.ok for _, _, result in rows):
        option = "" if any(target.url for target in info.plan.targets) else " (--starts measures it)"
        prompts = len({workload.prompt.rpartition("-s")[0] for _, workload, _ in rows if workload.domain})
        of = f"the range of {prompts} prompts" if prompts else "the range of its repeats"
        yield (f"One start of each server: what stands beside a mean is {of}; another start may be slower{option}.")
    measured = [result for _, _, result in rows if result.ok]
    yield from timing_notes(measured)
    yield from energy_note(measured)
    yield from closing_notes(info, results)
