"""A finished run as values: what reports, comparisons, exports and charts are all made of."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from gpubox.bench.model import Flag

Better = Literal["higher", "lower", ""]
Value = str | int | float | None


@dataclass(frozen=True, slots=True)
class Estimate:
    """One number and how sure it is. ``None``: cannot be said from so few."""

    value: float
    n: int
    sd: float | None = None
    """Of the sample (n-1)."""
    median: float | None = None
    low: float | None = None
    high: float | None = None
    """The ends of the 95 % interval."""
    method: str = ""
    """How the interval was made: ``t``, ``Wilson``, ``bootstrap over prompts``."""
    least: float | None = None
    most: float | None = None
    """The range of the sample."""


@dataclass(frozen=True, slots=True)
class Metric:
    """One measured quantity: a row of the report, and what two runs are compared by."""

    name: str
    """In the field's words: ``tg``, ``pp``, ``TTFT``, ``acceptance``, ``pass@1``."""
    group: str
    """What it was measured on: ``short, cold, depth 0``. (target, group, name) is unique in a report."""
    target: str
    unit: str
    """``tok/s``, ``s``, ``%``, ``J/token`` ..."""
    better: Better
    estimate: Estimate
    samples: tuple[tuple[str, float], ...] = ()
    """(item or prompt, value): two runs pair them by the first."""
    starts: tuple[tuple[float, float], ...] = ()
    """Of a speed: (place in time, mean) of each start of the server. What differs from start to start is its error."""


@dataclass(frozen=True, slots=True)
class ReportTable:
    """Anything a reader wants as rows beside the metrics."""

    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[Value, ...], ...]
    note: str = ""
    details: tuple[str, ...] = ()
    """A longer text for each row (the code of a failed problem): folded in an export, left out on a terminal."""


@dataclass(frozen=True, slots=True)
class Series:
    """One line of a chart. Equal ``chart`` titles are drawn in one picture."""

    chart: str
    name: str
    x_label: str
    y_label: str
    points: tuple[tuple[float, float], ...]
    low: tuple[float, ...] = ()
    high: tuple[float, ...] = ()


@dataclass(frozen=True, slots=True)
class Report:
    """The whole of a run's outcome, always recomputed from its results."""

    kind: str
    title: str
    metrics: tuple[Metric, ...] = ()
    tables: tuple[ReportTable, ...] = ()
    series: tuple[Series, ...] = ()
    notes: tuple[str, ...] = ()
    """Sentences a reader must see: what was left out and why."""
    flags: tuple[Flag, ...] = field(default=())
    text: str = ""
    """Words of another tool as they stand (llama-bench's Markdown)."""
