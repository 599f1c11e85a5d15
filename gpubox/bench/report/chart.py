"""The charts of a report: their contents and axes. Pure; ``plot`` draws them."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from gpubox.bench.report.model import Metric, Report, Series
from gpubox.bench.stats import Estimate

MAX_BARS, MAX_CHARTS = 24, 10
INTERVAL_ROOM = 0.5
"""How far the intervals of a line chart may widen its y axis, as a share of its highest point."""
METRIC_ORDER = ("tg", "pp", "TTFT", "acceptance", "energy", "read energy")
"""The metrics that a report draws first; all others follow."""
MEANINGS: Mapping[str, str] = {
    "tg": "token generation",
    "pp": "prompt processing",
    "TTFT": "time to first token",
    "effective": "generated tokens over wall time",
    "acceptance": "accepted of the drafted tokens",
    "mean accepted length": "tokens per verification step",
    "energy": "energy of the GPU for a generated token",
    "read energy": "energy of the GPU for a token of the prompt",
    "aggregate tg": "token generation of all streams together",
    "slowest TTFT": "time to first token of the slowest stream",
    "pass@1": "problems solved with the first program",
}
"""Metric -> what was measured, for the titles of charts."""
MAX_MEASURED_TICKS = 12
"""With more values of x, the axis has round numbers."""


@dataclass(frozen=True, slots=True)
class ChartBar:
    """One estimate; ``low`` and ``high`` are the ends of its interval, if it has one."""

    label: str
    value: float
    low: float | None = None
    high: float | None = None


@dataclass(frozen=True, slots=True)
class ChartPoint:
    """A point with a letter, which a table explains."""

    letter: str
    x: float
    y: float
    stands_out: bool = True


@dataclass(frozen=True, slots=True)
class Chart:
    """Either ``bars``, or ``series`` and ``points`` over x."""

    title: str
    y_label: str
    x_label: str = ""
    bars: tuple[ChartBar, ...] = ()
    series: tuple[Series, ...] = ()
    points: tuple[ChartPoint, ...] = ()
    centre: float | None = None
    """If set, bars are drawn as points with intervals around a line at this value; otherwise they begin at 0."""

    @property
    def legend(self) -> tuple[str, ...]:
        """The names of the lines; empty for a single line, which the title names."""
        return tuple(series.name for series in self.series) if len(self.series) > 1 else ()


def estimate_series(
    chart: str, name: str, x_label: str, y_label: str, points: Sequence[tuple[int, Estimate]],
    mark: tuple[float, str] | None = None,
) -> Iterator[Series]:  # fmt: skip
    """A line through estimates with their intervals; none for fewer than two points."""
    if len(points) < 2:
        return
    intervals = tuple((float(x), e.low, e.high) for x, e in points if e.low is not None and e.high is not None)
    y_label += ", 95 % CI" if intervals else ""
    values = tuple((float(x), estimate.value) for x, estimate in points)
    yield Series(chart, name, x_label, y_label, values, intervals=intervals, mark=mark)


def charts(report: Report) -> list[Chart]:
    """The line charts of the kind, then a bar chart for each metric that has several rows."""
    lines = []
    for title in dict.fromkeys(series.chart for series in report.series):
        if own := [series for series in report.series if series.chart == title and series.points]:
            named = f"{title}, {own[0].name}" if len(own) == 1 and own[0].name else title
            lines.append(Chart(named, own[0].y_label, own[0].x_label, series=tuple(own)))
    kinds = ", ".join(dict.fromkeys(doubt.kind for doubt in report.doubts))
    suffix = f"  ! {kinds}" if kinds else ""
    return [replace(chart, title=chart.title + suffix) for chart in [*lines, *_bar_charts(report.metrics)][:MAX_CHARTS]]


def _bar_charts(metrics: Sequence[Metric]) -> Iterable[Chart]:
    """One for each metric that has several rows and a better direction."""
    names = {metric.name: None for metric in metrics if metric.better}
    targets = dict.fromkeys(metric.target for metric in metrics)
    several = len(targets) > 1
    for name in sorted(names, key=lambda name: METRIC_ORDER.index(name) if name in METRIC_ORDER else len(METRIC_ORDER)):
        rows = [metric for metric in metrics if metric.name == name]
        if len(rows) > 1 and all(math.isfinite(row.estimate.value) and row.estimate.value >= 0 for row in rows):
            bars = []
            for row in rows[:MAX_BARS]:
                label = ", ".join(filter(None, (row.target if several else "", row.group))) or row.name
                bars.append(ChartBar(label, row.estimate.value, row.estimate.low, row.estimate.high))
            title = metric_title(name, rows[0].unit, "" if several else rows[0].target)
            yield Chart(interval_suffix(title, bars), rows[0].unit, bars=tuple(bars))


def metric_title(name: str, unit: str, target: str = "") -> str:
    """What was measured: ``tg, tok/s: token generation, qwen36``."""
    title = f"{name}, {unit}" if unit else name
    measured = ", ".join(filter(None, (MEANINGS.get(name, ""), target)))
    return f"{title}: {measured}" if measured else title


def interval_suffix(title: str, bars: Iterable[ChartBar]) -> str:
    """``title``, and what the whiskers of the bars are."""
    return f"{title}, 95 % CI" if any(bar.low is not None for bar in bars) else title


def ticks(low: float, high: float, max_ticks: int) -> list[float]:
    """At most ``max_ticks`` round numbers that cover ``low`` to ``high``: steps of 1, 2 or 5 times a power of ten."""
    if not (math.isfinite(low) and math.isfinite(high)):
        raise ValueError("an axis must be finite")
    if high <= low:
        high = low + (abs(low) or 1.0)
    max_ticks = max(2, max_ticks)
    power = 10.0 ** math.floor(math.log10((high - low) / max_ticks))
    for step in (power, 2 * power, 5 * power, 10 * power, 20 * power, 50 * power):
        first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
        if last - first + 1 <= max_ticks:
            return [round(number * step, 12) for number in range(first, last + 1)]
    return [low, high]


def tick_text(value: float) -> str:
    """The label of a tick: ``0.05``, ``250``, ``16,384``."""
    return f"{value:,.0f}" if value == round(value) and abs(value) < 1e12 else f"{value:g}"


def bar_range(chart: Chart) -> tuple[float, float]:
    """The least and the greatest value of a bar chart: from 0, or around its centre."""
    if chart.centre is None:
        return 0.0, max(max(bar.value, bar.high or 0.0) for bar in chart.bars) or 1.0
    ends = [end for bar in chart.bars for end in (bar.value, bar.low, bar.high) if end is not None]
    return min(*ends, chart.centre * 0.95), max(*ends, chart.centre * 1.05)


def line_ranges(chart: Chart) -> tuple[float, float, float, float]:
    """The least and the greatest x and y of a line chart; y begins at 0 if that costs less than half of the height."""
    xs = [*(x for series in chart.series for x, _ in series.points), *(point.x for point in chart.points)]
    ys = [*(y for series in chart.series for _, y in series.points), *(point.y for point in chart.points)]
    low, high = min(ys), max(ys)
    ends = [end for series in chart.series for _, *both in series.intervals for end in both]
    room = INTERVAL_ROOM * abs(
        high
    )  # a line must not be flattened by the interval of two starts; longer ones are cut off
    low, high = max(low - room, min([low, *ends])), min(high + room, max([high, *ends]))
    if 0 <= low < high / 2 or low == high >= 0:
        low = 0.0
    margin = ((max(xs) - min(xs)) or max(xs)) / 8 if chart.points else 0.0  # a point has a name beside it
    return max(0.0, min(xs) - margin) if chart.points else min(xs), max(xs) + margin, low, high


def x_ticks(chart: Chart, max_ticks: int) -> list[tuple[float, str]]:
    """The places and labels of the x axis of a line chart: names, the few values that were measured, or round numbers.

    The labels may overlap: who draws them leaves some out.
    """
    if names := chart.series[0].x_names if chart.series else ():
        return [(float(place), name) for place, name in enumerate(names, 1)]
    xs = sorted({x for series in chart.series for x, _ in series.points})
    if chart.points:
        left, right, _, _ = line_ranges(chart)
        return [(tick, tick_text(tick)) for tick in ticks(left, right, max_ticks) if left <= tick <= right]
    if len(xs) <= MAX_MEASURED_TICKS and all(x == round(x) for x in xs):
        return [(x, tick_text(x)) for x in xs]
    inside = [tick for tick in ticks(xs[0], xs[-1], max_ticks) if xs[0] <= tick <= xs[-1]]
    return [(tick, tick_text(tick)) for tick in inside or (xs[0], xs[-1])]
