"""A speed run's results -> its report, with lines over the depth, and where tg has halved. Pure.

pp at a depth is the mean rate of reading that whole context from an empty cache. At depth 0 there is hardly anything
to read, so the line of pp begins at the first depth above 0.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby, pairwise
from typing import TypeVar

import msgspec

from gpubox import units
from gpubox.bench import stats
from gpubox.bench.kinds.shared import closing_notes, missing_notes, report_doubts, timing_notes, unfinished_note
from gpubox.bench.kinds.speed.streams import KNEE_MARGIN, is_streams_item, stream_levels
from gpubox.bench.kinds.speed.workloads import PRESETS, QUICK_DEPTH, SpeedOptions, Workload
from gpubox.bench.measured_request import energy_note
from gpubox.bench.model import Item, Result, RunInfo, ScoredItems, Target
from gpubox.bench.report.chart import estimate_series
from gpubox.bench.report.formatting import request_words
from gpubox.bench.report.model import Metric, Report, ReportTable, Series, Value
from gpubox.bench.report.prompt_metrics import Measures, scale_estimate, start_estimate, start_means
from gpubox.bench.stats import Estimate, paired_ratio

HALF = 0.5
_LINES = (("tg", "tg"), ("pp", "pp"), ("energy", "J per generated token"), ("read energy", "J per read token"))


@dataclass(frozen=True, slots=True)
class DepthPoint:
    """One row of a speed report: a prompt at one depth, on one target."""

    target: str
    prompt: str
    prefix: str
    depth: int
    max_tokens: int
    metrics: Mapping[str, Metric]


def depth_curves(points: Sequence[DepthPoint]) -> list[list[DepthPoint]]:
    """The points of each target, prompt and prefix in the order of depth; at least two depths, one of them above 0."""

    def key(point: DepthPoint) -> tuple[str, str, str]:
        return point.target, point.prompt, point.prefix

    order = {key(point): None for point in points}
    curves = {own: sorted(group, key=lambda point: point.depth) for own, group in groupby(sorted(points, key=key), key)}
    return [curves[own] for own in order if len(curves[own]) > 1]


def depth_series(curves: Sequence[Sequence[DepthPoint]]) -> Iterator[Series]:
    """A chart of tg, of pp and of energy; a line for each target and state of the cache."""
    several = len({curve[0].target for curve in curves}) > 1
    for name, label in _LINES:
        for curve in curves:
            own = [
                (point.depth, point.metrics[name].estimate)
                for point in curve
                if name in point.metrics and (point.depth or name in ("tg", "energy"))
            ]
            first = curve[0]
            cache = "cached" if first.prefix == "warm" else "not cached"
            line = f"{first.target}, {cache}" if several else cache
            y_label = f"{name}, tok/s" if name in ("tg", "pp") else f"{name}, J/token"
            chart = f"{label} over depth: {first.prompt} prompt, {first.max_tokens:,} tokens"
            yield from estimate_series(chart, line, "depth, tokens of context before the prompt", y_label, own)


def halving_notes(curves: Sequence[Sequence[DepthPoint]]) -> Iterator[str]:
    """For each target, how far tg falls, and between which depths it has halved, if that was measured.

    Of cold and warm runs the cold ones, if there are any: the state of the cache does not change tg.
    """
    for target in dict.fromkeys(curve[0].target for curve in curves):
        own = [curve for curve in curves if curve[0].target == target]
        curve = next((curve for curve in own if curve[0].prefix == "cold"), own[0])
        rated = [point for point in curve if "tg" in point.metrics]
        if len(rated) > 1:
            yield f"{target}: {_halving(rated)}"


def _halving(curve: Sequence[DepthPoint]) -> str:
    base = curve[0]
    rates = [(point.depth, point.metrics["tg"].estimate.value) for point in curve]
    half = rates[0][1] * HALF
    for (shallow, above), (deep, below) in pairwise(rates):
        if above > half >= below:
            where = round(shallow + (deep - shallow) * (above - half) / (above - below))
            reached = next(point for point in curve if point.depth == deep)
            return (
                f"tg has halved between {shallow:,} and {deep:,} tokens of context (~{where:,} on a straight line): "
                f"{units.rate(below)} tok/s at {deep:,}, {_share(base, reached)} of {units.rate(rates[0][1])} at "
                f"{base.depth:,}."
            )
    deepest = curve[-1]
    return (
        f"tg has not halved up to {deepest.depth:,} tokens of context: {units.rate(rates[-1][1])} tok/s there, "
        f"{_share(base, deepest)} of {units.rate(rates[0][1])} at {base.depth:,}."
    )


def _share(base: DepthPoint, other: DepthPoint) -> str:
    """tg at ``other`` as a share of that at ``base``, with its interval over starts if there are several."""
    ratio = paired_ratio(base.metrics["tg"].starts, other.metrics["tg"].starts)
    if ratio is None:
        return f"{100 * other.metrics['tg'].estimate.value / base.metrics['tg'].estimate.value:.0f} %"
    if ratio.low is None or ratio.high is None:
        return f"{100 * ratio.ratio:.0f} %"
    return f"{100 * ratio.ratio:.0f} % (95 % CI {100 * ratio.low:.0f} to {100 * ratio.high:.0f} %)"


ALL = "all"
"""The row of all prompts together."""
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
    rows = _rows(results)
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
    rates = first_rates(info.plan.targets, results)
    for level in stream_levels(info, results):
        metrics += level.metrics.values()
    return Report(
        kind="speed",
        title=PRESETS[options.preset] if options.preset else "Speed over HTTP",
        verdict=_quick_verdict(info, results) if options.preset == "quick" else _verdict(rates, points),
        metrics=tuple(metrics),
        tables=tuple(_run_tables(rows)),
        series=(*_run_curves(rows), *depth_series(curves)),
        notes=(
            *((LONGER,) if options.preset == "quick" and rates else ()),
            *halving_notes(curves),
            *_notes(options, info, results, rows),
        ),
        doubts=report_doubts(info, results),
    )


def _rows(results: ScoredItems) -> list[Row]:
    return [
        (item, msgspec.convert(item.values, Workload), result)
        for item, result in results
        if not (item.warmup or is_streams_item(item))
    ]


def first_sentence(results: ScoredItems) -> str:
    """What a server does, so far: ``36 tok/s short answers, 29 after 8K tokens; room for 2 users, 24 each``."""
    alone, deep, both, waited = (_mean(results, *key) for key in _QUICK)
    if alone is None:
        return ""
    words = f"{units.rate(alone)} tok/s short answers"
    if deep is not None:
        words += f", {units.rate(deep)} {request_words('', QUICK_DEPTH)}"
    if both is not None and waited == 0 and both >= alone * (1 + KNEE_MARGIN):
        words += f"; room for 2 users, {units.rate(_mean(results, 2, 0, 'tg'))} each"
    return words


_QUICK = ((1, 0, "tg"), (1, QUICK_DEPTH, "tg"), (2, 0, "aggregate"), (2, 0, "waited"))
"""Requests at once, depth, value."""


def _mean(results: ScoredItems, streams: int, depth: int, key: str) -> float | None:
    rows = [
        (item, result)
        for item, result in results
        if result.ok and not item.warmup
        and (item.values.get("streams", 1), item.values.get("depth")) == (streams, depth)
    ]  # fmt: skip
    estimate = start_estimate(rows, key)
    return estimate.value if estimate else None


def _quick_verdict(info: RunInfo, results: ScoredItems) -> str:
    """The first sentence, of each target; then what is missing from it."""
    several = len(info.plan.targets) > 1
    sentences = []
    for target in info.plan.targets:
        own = [(item, result) for item, result in results if item.target == target.name]
        if words := first_sentence(own):
            sentences.append(f"{target.name if several else 'This box'}: {words}.")
    return " ".join([*sentences, *missing_notes(results)])


LONGER_PRESETS = ("lengths", "chat", "game", "")
"""What tells more than ``quick``; empty: all depths."""
LONGER = "Longer presets: `gpubox bench speed --help`; --dry-run says how long one takes."


def first_rates(targets: Sequence[Target], results: ScoredItems) -> dict[str, tuple[str, float]]:
    """tg of each target in the first row of its report, with the name of that row: for lists and sentences alike."""
    rates = {}
    for target in targets:
        own = [row for row in _rows(results) if row[0].target == target.name and row[2].values.get("tg")]
        for group, members in list(_groups(own).items())[:1]:
            if estimate := _estimate(members, "tg"):
                rates[target.name] = (group, estimate.value)
    return rates


def _verdict(rates: Mapping[str, tuple[str, float]], points: Sequence[DepthPoint]) -> str:
    """How fast each target writes, and reads a long prompt: of a short one there is hardly anything to read."""
    sentences = []
    for target, (group, rate) in rates.items():
        read = next((p for p in points if p.target == target and p.depth and "pp" in p.metrics), None)
        asked = f" ({group})" if group != ALL else ""
        reads = f" and reads {units.rate(read.metrics['pp'].estimate.value)} tok/s" if read else ""
        reads += f" ({units.tokens(read.depth)} tokens)" if read else ""
        sentences.append(f"{target} writes {units.rate(rate)} tok/s{asked}{reads}.")
    return " ".join(sentences)


def _groups(rows: Sequence[Row]) -> dict[str, list[Row]]:
    """By row of the report. Where the prompts are the sampling unit: all of them, then each domain."""
    groups: dict[str, list[Row]] = {}
    if rows and rows[0][1].domain:
        groups[ALL] = list(rows)
    for row in rows:
        workload = row[1]
        groups.setdefault(
            workload.domain or request_words(f"{workload.prompt} prompt", workload.depth, workload.prefix), []
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
        columns = ("drafted", "accepted", "acceptance, %") if drafts else ("TTFT, ms", "pp, tok/s")
        yield ReportTable(
            f"{target}, run by run",
            ("run", "tg, tok/s", *columns),
            tuple((_run_name(row), row[2].values.get("tg"), *_run_values(row[2], drafts=drafts)) for row in runs),
        )


def _run_values(result: Result, *, drafts: bool) -> tuple[Value, ...]:
    if not drafts:
        ttft = result.values.get("ttft_seconds")
        return 1000 * ttft if ttft is not None else None, result.values.get("pp")
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
    # of a quick run, what is missing stands beside the first sentence
    yield from (unfinished_note if options.preset == "quick" else closing_notes)(info, results)
