"""The charts of a report: what is drawn, with round axes. Pure; ``plot`` and ``svg`` draw it."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from gpubox.bench.report.model import Metric, Report, Series

MOST_BARS, MOST_CHARTS = 24, 6
DRAWN_FIRST = ("tg", "pp", "TTFT", "acceptance")
"""Metrics in the order in which a report draws them; others that have a better end come behind."""


@dataclass(frozen=True, slots=True)
class ChartBar:
    """One estimate; ``low`` and ``high`` are the ends of its interval where it has one."""

    label: str
    value: float
    low: float | None = None
    high: float | None = None


@dataclass(frozen=True, slots=True)
class Chart:
    """Either ``bars``, or ``series`` over x."""

    title: str
    y_label: str
    x_label: str = ""
    bars: tuple[ChartBar, ...] = ()
    series: tuple[Series, ...] = ()
    centre: float | None = None
    """Bars are then points with their intervals, beside a line at this value; else they begin at 0."""


def charts(report: Report) -> list[Chart]:
    """The lines that the kind gives, then a bar chart for each metric that has more than one row."""
    lines = [
        Chart(title, found[0].y_label, found[0].x_label, series=tuple(found))
        for title in dict.fromkeys(series.chart for series in report.series)
        if (found := [s for s in report.series if s.chart == title and s.points])
    ]
    kinds = ", ".join(dict.fromkeys(flag.kind for flag in report.flags))
    doubt = f"  ! {kinds}" if kinds else ""
    return [replace(chart, title=chart.title + doubt) for chart in [*lines, *bar_charts(report.metrics)][:MOST_CHARTS]]


def bar_charts(metrics: Sequence[Metric], fewest: int = 2) -> Iterable[Chart]:
    """One for each metric with at least ``fewest`` rows and a better end."""
    names = {metric.name: None for metric in metrics if metric.better}
    several = len({metric.target for metric in metrics}) > 1
    for name in sorted(names, key=lambda n: DRAWN_FIRST.index(n) if n in DRAWN_FIRST else len(DRAWN_FIRST)):
        rows = [metric for metric in metrics if metric.name == name]
        if len(rows) >= fewest and all(math.isfinite(row.estimate.value) and row.estimate.value >= 0 for row in rows):
            bars = [
                ChartBar(_label(row, several), row.estimate.value, row.estimate.low, row.estimate.high)
                for row in rows[:MOST_BARS]
            ]
            yield Chart(f"{name}, {rows[0].unit}" if rows[0].unit else name, rows[0].unit, bars=tuple(bars))


def ticks(low: float, high: float, most: int) -> list[float]:
    """At most ``most`` round numbers that cover ``low`` to ``high``: steps of 1, 2 or 5 times a power of ten."""
    if not (math.isfinite(low) and math.isfinite(high)):
        raise ValueError("an axis needs an end")
    if high <= low:
        high = low + (abs(low) or 1.0)
    most = max(2, most)
    power = 10.0 ** math.floor(math.log10((high - low) / most))
    for step in (power, 2 * power, 5 * power, 10 * power, 20 * power, 50 * power):
        first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
        if last - first + 1 <= most:
            return [round(number * step, 12) for number in range(first, last + 1)]
    return [low, high]


def tick_text(value: float) -> str:
    """A number at an axis: ``8K`` never, ``0.05``, ``250``, ``16,384``."""
    return f"{value:,.0f}" if value == round(value) and abs(value) < 1e12 else f"{value:g}"


def bar_range(chart: Chart) -> tuple[float, float]:
    """Least and highest value of a chart of bars: from 0, or around its centre."""
    if chart.centre is None:
        return 0.0, max(max(bar.value, bar.high or 0.0) for bar in chart.bars) or 1.0
    ends = [end for bar in chart.bars for end in (bar.value, bar.low, bar.high) if end is not None]
    return min(*ends, chart.centre * 0.95), max(*ends, chart.centre * 1.05)


def line_ranges(chart: Chart) -> tuple[float, float, float, float]:
    """Least and highest x and y of a chart of lines; y from 0 where that costs less than half of the height."""
    xs = [x for series in chart.series for x, _ in series.points]
    ys = [y for series in chart.series for _, y in series.points]
    ys += [end for series in chart.series for end in (*series.low, *series.high)]
    low, high = min(ys), max(ys)
    if 0 <= low < high / 2 or low == high >= 0:
        low = 0.0
    return min(xs), max(xs), low, high


def _label(metric: Metric, several: bool) -> str:
    return ", ".join(filter(None, (metric.target if several else "", metric.group))) or metric.name
