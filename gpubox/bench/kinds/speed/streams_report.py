"""The results of ``speed --streams`` -> their report: a table, the knee, and lines over the number of streams.

The knee is the smallest number of streams that no larger measured number beats by KNEE_MARGIN in aggregate tg.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from gpubox import units
from gpubox.bench.energy import energy_note
from gpubox.bench.kinds.shared import closing_notes, report_doubts, timing_notes
from gpubox.bench.kinds.speed.streams import StreamsWorkload, is_streams_item, streams_of
from gpubox.bench.kinds.speed.workloads import SpeedOptions
from gpubox.bench.model import RunInfo, ScoredItems
from gpubox.bench.report.chart import estimate_series
from gpubox.bench.report.formatting import format_ratio
from gpubox.bench.report.model import Metric, Report, ReportTable, Series, Value
from gpubox.bench.report.prompt_metrics import Measures, start_estimate, start_means
from gpubox.bench.stats import PairedRatio, paired_ratio

KNEE_MARGIN = 0.05
AGGREGATE = "aggregate tg"
_MEASURES: Measures = (
    (AGGREGATE, "aggregate", "tok/s", "higher"),
    ("tg", "tg", "tok/s", "higher"),
    ("TTFT", "ttft_seconds", "s", "lower"),
    ("slowest TTFT", "ttft_slowest_seconds", "s", "lower"),
    ("energy", "joules_per_token", "J/token", "lower"),
)


@dataclass(frozen=True, slots=True)
class StreamsLevel:
    """One number of streams at one depth, on one target."""

    target: str
    workload: StreamsWorkload
    metrics: Mapping[str, Metric]
    waited: int | None
    """Requests that found no free slot; ``None`` if the server does not say how many slots it has."""
    slots: int | None
    acceptance: float | None
    """Accepted over drafted tokens, in %."""

    @property
    def streams(self) -> int:
        return self.workload.streams


def summarise_streams(options: SpeedOptions, info: RunInfo, results: ScoredItems) -> Report:
    """The report so far."""
    levels = list(_levels(info, results))
    curves = [
        own
        for target in info.plan.targets
        for depth in options.depths
        if (own := [level for level in levels if (level.target, level.workload.depth) == (target.name, depth)])
    ]
    counts = ", ".join(map(str, options.streams))
    return Report(
        kind="speed",
        title=f"{counts} streams at once",
        verdict=" ".join(_verdict(curve, several=len(curves) > 1) for curve in curves if len(curve) > 1),
        metrics=tuple(metric for level in levels for metric in level.metrics.values()),
        tables=tuple(_table(curve, several=len(curves) > 1) for curve in curves),
        series=tuple(line for curve in curves for line in _series(curve, several=len(curves) > 1)),
        notes=tuple(_notes(options, info, results, curves)),
        doubts=report_doubts(info, results),
    )


def _verdict(curve: Sequence[StreamsLevel], *, several: bool) -> str:
    """How many streams are worth it."""
    where = f"{curve[0].target}, depth {curve[0].workload.depth:,}: " if several else ""
    knee = _knee(curve)
    if knee is None:
        return f"{where}The more streams, the more tokens in all, up to {_streams(curve[-1].streams)}."
    return f"{where}More than {_streams(knee)} at once give hardly more tokens in all."


def streams_headline(results: ScoredItems) -> str:
    """The best aggregate so far."""
    rates: dict[int, list[float]] = {}
    for item, result in results:
        if result.ok and not item.warmup and is_streams_item(item):
            rates.setdefault(streams_of(item).streams, []).append(result.values["aggregate"])
    if not rates:
        return ""
    count, best = max(((count, statistics.fmean(values)) for count, values in rates.items()), key=lambda pair: pair[1])
    return f"{units.rate(best)} tok/s with {_streams(count)}"


def knee_of(points: Sequence[tuple[int, float]]) -> int | None:
    """The knee of (streams, aggregate tg); ``None`` if the rate still grows at the largest number, or there is one."""
    for place, (count, rate) in enumerate(points[:-1]):
        if all(later < rate * (1 + KNEE_MARGIN) for _, later in points[place + 1 :]):
            return count
    return None


def _levels(info: RunInfo, results: ScoredItems) -> Iterator[StreamsLevel]:
    rows = [(item, result) for item, result in results if is_streams_item(item) and not item.warmup and result.ok]
    for target in info.plan.targets:
        groups: dict[tuple[int, int], list[int]] = {}
        for place, (item, _) in enumerate(rows):
            if item.target == target.name:
                workload = streams_of(item)
                groups.setdefault((workload.depth, workload.streams), []).append(place)
        for (depth, count), places in sorted(groups.items()):
            own = [rows[place] for place in places]
            group = _streams(count) + (f", depth {depth}" if depth else "")
            metrics = {}
            for name, key, unit, better in _MEASURES:
                if estimate := start_estimate(own, key):
                    samples = tuple(
                        (f"{item.id.removeprefix(f'{target.name}:')}", float(result.values[key]))
                        for item, result in own
                        if result.values.get(key) is not None
                    )
                    metrics[name] = Metric(
                        name, group, target.name, unit, better, estimate, samples, start_means(own, key)
                    )
            values = own[-1][1].values
            drafted = sum(result.values.get("draft_tokens") or 0 for _, result in own)
            accepted = sum(result.values.get("draft_tokens_accepted") or 0 for _, result in own)
            yield StreamsLevel(
                target.name, streams_of(own[0][0]), metrics, values.get("waited"), values.get("slots"),
                100 * accepted / drafted if drafted else None,
            )  # fmt: skip


def _table(curve: Sequence[StreamsLevel], *, several: bool) -> ReportTable:
    knee = _knee(curve)
    rows: list[tuple[Value, ...]] = []
    drafted = any(level.acceptance is not None for level in curve)
    energy = any("energy" in level.metrics for level in curve)
    before: StreamsLevel | None = None
    for level in curve:
        own = level.metrics
        gain = _gain(before, level) if before else None
        row: list[Value] = [
            level.streams,
            own[AGGREGATE].estimate.value,
            format_ratio(gain, short=True) if gain else "",
        ]
        row += [own[name].estimate.value if name in own else None for name in ("tg", "TTFT", "slowest TTFT")]
        row += [own["energy"].estimate.value if "energy" in own else None] if energy else []
        row += [level.acceptance] if drafted else []
        row += [level.waited, "knee" if level.streams == knee else ""]
        rows.append(tuple(row))
        before = level
    columns = (
        "streams", AGGREGATE, "gain", "tg of each", "TTFT", "slowest",
        *(["J/token"] if energy else []), *(["acceptance %"] if drafted else []), "had to wait", "",
    )  # fmt: skip
    title = "Streams" + (f", {curve[0].target}" if several else "")
    title += f", depth {curve[0].workload.depth:,}" if curve[0].workload.depth else ""
    tokens = f"{curve[0].workload.max_tokens:,} tokens each"
    return ReportTable(
        title, columns, tuple(rows), f"{tokens}; rates in tok/s, TTFT in s; gain: over the row above, 95 % CI"
    )


def _series(curve: Sequence[StreamsLevel], *, several: bool) -> Iterator[Series]:
    first = curve[0]
    where = f"{first.target}, " if several else ""
    where += f"depth {first.workload.depth:,}, " if first.workload.depth else ""
    knee = _knee(curve)
    for chart, names, unit in (
        ("tg", ((AGGREGATE, "all streams together"), ("tg", "each stream")), "tok/s"),
        ("TTFT", (("TTFT", "mean of the streams"), ("slowest TTFT", "the slowest stream")), "s"),
        ("energy", (("energy", "J per generated token"),), "J/token"),
    ):
        for name, words in names:
            own = [(level.streams, level.metrics[name].estimate) for level in curve if name in level.metrics]
            title = f"{chart} over streams: {where}{first.workload.max_tokens:,} tokens each"
            mark = (float(knee), "knee") if knee and name == AGGREGATE else None
            yield from estimate_series(title, words, "streams at once", f"{chart}, {unit}", own, mark)


def _knee(curve: Sequence[StreamsLevel]) -> int | None:
    return knee_of([(level.streams, level.metrics[AGGREGATE].estimate.value) for level in curve])


def _gain(first: StreamsLevel, second: StreamsLevel) -> PairedRatio | None:
    return paired_ratio(first.metrics[AGGREGATE].starts, second.metrics[AGGREGATE].starts)


def _notes(
    options: SpeedOptions,
    info: RunInfo,
    results: ScoredItems,
    curves: Sequence[Sequence[StreamsLevel]],
) -> Iterator[str]:
    for curve in curves:
        prefix = ""
        if len(curves) > 1:
            prefix = f"{curve[0].target}, depth {curve[0].workload.depth:,}: "
        yield from (prefix + sentence for sentence in _knee_sentences(curve))
        if waiting := [level for level in curve if level.waited]:
            slots = waiting[0].slots or 0
            counts = ", ".join(f"{level.waited} of {level.streams}" for level in waiting)
            yield (
                f"{prefix}The server has {slots} slot{'s' if slots != 1 else ''}: {counts} requests had to wait for a "
                f"free one. parallel={waiting[-1].streams} in the profile's flags gives each stream a slot."
            )
        elif any(level.waited is None for level in curve):
            yield f"{prefix}The server does not say how many slots it has, so waiting requests are not counted."
    if options.starts == 1 and curves:
        yield (
            "One start of each server: ranges are of its repeats, and gains have no interval; "
            "another start may be slower" + ("." if _by_address(info) else " (--starts measures it).")
        )
    rows = [result for item, result in results if result.ok and not item.warmup]
    yield from timing_notes(rows)
    yield from energy_note(rows)
    yield from closing_notes(info, results)


def _by_address(info: RunInfo) -> bool:
    return any(target.url for target in info.plan.targets)


def _knee_sentences(curve: Sequence[StreamsLevel]) -> Iterator[str]:
    if len(curve) < 2:
        return
    rule = f"no larger number measured gives {KNEE_MARGIN:.0%} more".replace("%", " %")
    knee = _knee(curve)
    if knee is None:
        last = _gain(curve[-2], curve[-1])
        grown = f" ({format_ratio(last)} from {curve[-2].streams} to {curve[-1].streams})" if last else ""
        yield f"No knee up to {_streams(curve[-1].streams)}: {AGGREGATE} still grows{grown}."
        return
    level = next(level for level in curve if level.streams == knee)
    beyond = max((own for own in curve if own.streams > knee), key=lambda own: own.metrics[AGGREGATE].estimate.value)
    gain = _gain(level, beyond)
    sentence = f"Knee at {_streams(knee)}, {units.rate(level.metrics[AGGREGATE].estimate.value)} tok/s together: {rule}"
    if gain:
        sentence += f"; {_streams(beyond.streams)}: {format_ratio(gain)}"
        if gain.high is not None and gain.high > 1 + KNEE_MARGIN:
            sentence += f", so {gain.n} starts leave open whether the knee is higher"
    if level.slots == knee:
        sentence += f". The server has {knee} slot{'s' if knee != 1 else ''}, so further streams only wait"
    yield f"{sentence}."


def _streams(count: int) -> str:
    return f"{count} stream{'s' if count != 1 else ''}"
