"""The outcome of a run as values, from which reports, comparisons, exports and charts are made."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from gpubox.bench.model import Doubt, RunInfo
from gpubox.bench.stats import Estimate

Better = Literal["higher", "lower", ""]
Value = str | int | float | None
SPEED_UNITS = frozenset({"tok/s", "s", "ms", "min", "J/token"})
"""Units of metrics that vary from start to start."""


@dataclass(frozen=True, slots=True)
class Metric:
    """One measured quantity: a row of the report, and of a comparison of two runs."""

    name: str
    """``tg``, ``pp``, ``TTFT``, ``acceptance``, ``pass@1``."""
    group: str
    """What it was measured on: ``short, cold, depth 0``. (target, group, name) is unique in a report."""
    target: str
    unit: str
    """``tok/s``, ``s``, ``%``, ``J/token`` ..."""
    better: Better
    estimate: Estimate
    samples: tuple[tuple[str, float], ...] = ()
    """(item or prompt, value). Comparisons of two runs pair them by the first."""
    starts: tuple[tuple[float, float], ...] = ()
    """For a speed: (time, mean) of each server start. Its error is the variance between starts."""


@dataclass(frozen=True, slots=True)
class ReportTable:
    """Rows that are not metrics."""

    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[Value, ...], ...]
    note: str = ""
    details: tuple[str, ...] = ()
    """A longer text for each row (the code of a failed problem): folded in Markdown, left out on a terminal."""


@dataclass(frozen=True, slots=True)
class Series:
    """One line of a chart. Series with the same ``chart`` title share one chart."""

    chart: str
    name: str
    x_label: str
    y_label: str
    points: tuple[tuple[float, float], ...]
    x_names: tuple[str, ...] = ()
    """The names of x = 1, 2, 3, ...; empty: x is a number."""
    intervals: tuple[tuple[float, float, float], ...] = ()
    """(x, low, high) for each point whose 95 % interval is known."""
    mark: tuple[float, str] | None = None
    """An x to mark with a vertical line, and the word beside it."""


@dataclass(frozen=True, slots=True)
class Report:
    """The outcome of a run, computed from its results each time."""

    kind: str
    title: str
    metrics: tuple[Metric, ...] = ()
    tables: tuple[ReportTable, ...] = ()
    series: tuple[Series, ...] = ()
    notes: tuple[str, ...] = ()
    """Sentences that a reader must see, such as what was left out and why."""
    doubts: tuple[Doubt, ...] = ()
    verdict: str = ""
    """The answer as a sentence without figures of statistics: it opens the report. ``notes`` do not repeat it."""


@dataclass(frozen=True, slots=True)
class RunSummary:
    """One run in a list."""

    id: str
    info: RunInfo | None
    """``None`` if it is damaged; ``problem`` says how."""
    done: int = 0
    failed: int = 0
    headline: str = ""
    title: str = ""
    doubts: tuple[str, ...] = ()
    """Kinds of doubts."""
    metrics: tuple[Metric, ...] = ()
    """Without the samples of speeds, which are many."""
    problem: str = ""

    @property
    def state(self) -> str:
        return self.info.state if self.info else "damaged"

    @property
    def kind(self) -> str:
        return self.info.plan.kind if self.info else ""

    @property
    def targets(self) -> tuple[str, ...]:
        """The names of what it measures."""
        return tuple(target.name for target in self.info.plan.targets) if self.info else ()

    @property
    def items(self) -> int | None:
        return self.info.items if self.info else None

    @property
    def seconds(self) -> float | None:
        return self.info.seconds if self.info else None

    @property
    def created_at(self) -> str:
        return self.info.created_at if self.info else ""

    @property
    def restore_pending(self) -> str:
        """The profile that ran before and is still to be restored; empty if there is none."""
        return self.info.previous.profile if self.info and self.info.restore_pending and self.info.previous else ""
