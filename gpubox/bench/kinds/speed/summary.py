"""A speed run's results -> its report."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Sequence
from dataclasses import replace
from itertools import groupby
from typing import TypeVar

import msgspec

from gpubox.bench import stats
from gpubox.bench.kinds.speed.workloads import PRESETS, SpeedOptions, Workload
from gpubox.bench.model import Item, Result, RunInfo
from gpubox.bench.report.model import Better, Metric, Report, ReportTable
from gpubox.bench.report.noise_history import NoiseHistory
from gpubox.bench.report.prompt_metrics import scale_estimate
from gpubox.bench.start_comparison import Noise
from gpubox.bench.stats import Estimate

T = TypeVar("T")
Rows = list[tuple[Item, Workload, Result]]
# name in the report, value's name, unit, what is better
_MEASURES: tuple[tuple[str, str, str, Better], ...] = (
    ("TTFT", "ttft_seconds", "s", "lower"),
    ("pp", "pp", "tok/s", "higher"),
    ("tg", "tg", "tok/s", "higher"),
    ("mean accepted length", "mean_accepted_length", "tokens/step", ""),
    ("energy", "joules_per_token", "J/token", "lower"),
)


def summarise(
    options: SpeedOptions, info: RunInfo, results: Sequence[tuple[Item, Result]], history: NoiseHistory | None = None
) -> Report:
    """Metrics for each target and cell; what failed or was skipped is told in the notes."""
    rows: Rows = [
        (i, msgspec.convert(i.values, Workload), r) for i, r in results if "prompt" in i.values and not i.warmup
    ]
    metrics: list[Metric] = []
    for target in info.plan.targets:
        own = [row for row in rows if row[0].target == target.name and row[2].ok]
        for group, members in _groups(own).items():
            metrics += _metrics(target.name, group, members, options)
    benches = [(i, r) for i, r in results if "prompt" not in i.values]
    tables = tuple(_bench_table(item, result) for item, result in benches if result.ok)
    return Report(
        kind="speed",
        title=PRESETS[options.preset] if options.preset else "The served path",
        metrics=tuple(metrics),
        tables=tables,
        notes=(*_unit(options, info, metrics, history), *_notes(info, results, rows)),
        flags=(*info.flags, *(flag for item, result in results if not item.warmup for flag in result.flags)),
        text="\n\n".join(str(result.values["markdown"]) for _, result in benches if result.ok),
    )


def _groups(rows: Rows) -> dict[str, Rows]:
    """By line of the report. Where prompts are the sampling unit: their arms, and all of them."""
    found: dict[str, Rows] = {}
    for row in rows:
        cell = row[1]
        names = [cell.arm, "all"] if cell.arm else [f"{cell.prompt}, {cell.prefix}, depth {cell.depth}"]
        for name in names:
            found.setdefault(name, []).append(row)
    return {"all": found.pop("all"), **found} if "all" in found else found


def _metrics(target: str, group: str, rows: Rows, options: SpeedOptions) -> list[Metric]:
    made = []
    for name, key, unit, better in _MEASURES:
        values = [(row, float(row[2].values[key])) for row in rows if row[2].values.get(key) is not None]
        if values:
            samples = tuple((_unit_of(row[0], row[1]), value) for row, value in values)
            same = key == "mean_accepted_length" and rows[0][1].greedy
            made.append(
                Metric(name, group, target, unit, better, _estimate(values, same=same), samples, _starts(values))
            )
    if drafted := [row for row in rows if row[2].values.get("draft_tokens")]:
        made.append(_acceptance(target, group, drafted))
    if options.price:
        made += [_per_price(metric, options.price) for metric in made if metric.name == "tg"]
    return made


def _estimate(values: Sequence[tuple[tuple[Item, Workload, Result], float]], *, same: bool) -> Estimate:
    """Over prompts where there are several; else over starts. ``same``: every repeat is one and the same answer.

    Repeats to one start give a mean and a range, and no interval: they do not know how another start differs.
    """
    if values[0][0][1].arm:
        return stats.mean_over_prompts(_by_prompt(values))
    numbers = [value for _, value in values]
    if same:
        return stats.estimate([statistics.fmean(numbers)])
    means = [mean for _, mean in _starts(values)]
    found = stats.estimate(means if len(means) > 1 else numbers)
    if len(means) > 1:
        return replace(found, method="t over starts")
    return replace(found, low=None, high=None, method="")


def _starts(values: Sequence[tuple[tuple[Item, Workload, Result], float]]) -> tuple[tuple[float, float], ...]:
    """The mean of each start, by its place in the run."""
    found: dict[int, list[float]] = {}
    for (item, _, _), value in values:
        found.setdefault(item.start, []).append(value)
    return tuple((float(place), statistics.fmean(held)) for place, held in sorted(found.items()))


def _unit(options: SpeedOptions, info: RunInfo, metrics: Sequence[Metric], history: NoiseHistory | None) -> list[str]:
    """What the numbers of so many starts leave open."""
    if options.starts > 1 or not metrics:
        return []
    noise = history.between_starts(info.provenance.values(), info.id) if history else Noise()
    measures = "" if any(target.url for target in info.plan.targets) else " (--starts measures it)"
    return [f"One start of each server: ranges are of its repeats, intervals of its prompts; {noise}{measures}."]


def _unit_of(item: Item, cell: Workload) -> str:
    """By what two runs pair their samples: the item without its target."""
    number = item.id.rpartition("/")[2]
    return f"{cell.id}/{item.start}.{number}" if item.start else f"{cell.id}/{number}"


def _prompt_of(cell: Workload) -> str:
    return cell.prompt.rpartition("-s")[0] if cell.arm else cell.prompt


def _by_prompt(values: Iterable[tuple[tuple[Item, Workload, Result], T]]) -> list[list[list[T]]]:
    """Arms, in them prompts, in them what each seed or repeat gave."""
    found: dict[str, dict[str, list[T]]] = {}
    for (_, cell, _), value in values:
        found.setdefault(cell.arm, {}).setdefault(_prompt_of(cell), []).append(value)
    return [list(prompts.values()) for prompts in found.values()]


def _acceptance(target: str, group: str, rows: Rows) -> Metric:
    shares = [
        (row, stats.RatioSample(row[2].values["draft_tokens_accepted"] or 0, row[2].values["draft_tokens"]))
        for row in rows
    ]
    if rows[0][1].arm:
        strata = [
            [stats.RatioSample(sum(s.numerator for s in prompt), sum(s.denominator for s in prompt)) for prompt in arm]
            for arm in _by_prompt(shares)
        ]
    elif rows[0][1].greedy:  # repeats of one greedy prompt are one answer
        strata = [[stats.RatioSample(sum(s.numerator for _, s in shares), sum(s.denominator for _, s in shares))]]
        shares = [(shares[0][0], strata[0][0])]
    else:
        strata = [[share for _, share in shares]]
    samples = tuple((_unit_of(row[0], row[1]), 100 * share.numerator / share.denominator) for row, share in shares)
    return Metric(
        "acceptance",
        group,
        target,
        "%",
        "higher",
        _percent(stats.pooled_ratio(strata, units="prompts" if rows[0][1].arm else "runs")),
        samples,
    )


def _percent(found: Estimate) -> Estimate:
    return scale_estimate(found, 100)


def _per_price(tg: Metric, price: float) -> Metric:
    factor = 1000 / price
    samples = tuple((name, value * factor) for name, value in tg.samples)
    return Metric("tg per $1,000", tg.group, tg.target, "tok/s", "higher", scale_estimate(tg.estimate, factor), samples,
                  tuple((place, value * factor) for place, value in tg.starts))  # fmt: skip


def _bench_table(item: Item, result: Result) -> ReportTable:
    rows = tuple(
        (row["test"] + (f" @ d{row['depth']}" if row["depth"] else ""), row["mean"], row["sd"], len(row["samples"]))
        for row in result.values["rows"]
    )
    return ReportTable(item.target, ("test", "tok/s", "sd", "n"), rows, "no server, no template, no speculation")


def _notes(info: RunInfo, results: Sequence[tuple[Item, Result]], rows: Rows) -> list[str]:
    notes = []
    bad = [(item, result) for item, result in results if result.failed and not item.warmup]
    for why, members in groupby(sorted(bad, key=lambda pair: pair[1].error), key=lambda pair: pair[1].error):
        names = sorted({item.group or item.id for item, _ in members})
        notes.append(f"Not measured: {', '.join(names[:6])}{' ...' if len(names) > 6 else ''}: {why}.")
    if any(result.values.get("timed_by") == "client" for _, _, result in rows):
        notes.append("This server gives no timings: pp and tg are as the client saw them, the network included.")
    if len(results) < info.items:
        notes.append(f"{info.items - len(results)} of {info.items} items are not done yet.")
    return notes
