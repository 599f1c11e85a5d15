"""The articles' figures beside the owner's: which ``[[reference]]`` is which metric. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from gpubox.bench.model import RunInfo
from gpubox.bench.report.model import Metric, Report
from gpubox.errors import GpuboxError
from gpubox.profiles.model import Profile, Reference

# words of a reference -> the metric's name, and what its group must have (all of them)
_SAME: tuple[tuple[str, str, tuple[str, ...]], ...] = (
    ("generation, short answer", "tg", ("short", "cold", "depth 0")),
    ("generation, medium answer", "tg", ("medium", "cold", "depth 0")),
    ("generation, long answer", "tg", ("long", "cold", "depth 0")),
    ("generation, code", "tg", ("code",)),
    ("generation, math", "tg", ("math",)),
    ("generation at 32K", "tg", ("cold", "depth 32768")),
    ("generation at 64K", "tg", ("cold", "depth 65536")),
    ("generation at 128K", "tg", ("cold", "depth 131072")),
    ("generation at 262K", "tg", ("cold", "depth 262144")),
    ("time to first token, short", "TTFT", ("short", "cold", "depth 0")),
    ("time to first token, medium", "TTFT", ("medium", "cold", "depth 0")),
    ("time to first token, long", "TTFT", ("long", "cold", "depth 0")),
    ("draft acceptance, code", "acceptance", ("code",)),
    ("draft acceptance, math", "acceptance", ("math",)),
    ("draft acceptance", "acceptance", ("all",)),
    ("draft acceptance", "acceptance", ("game",)),
    ("generation, server side", "tg", ("game",)),
    ("generation", "tg", ("all",)),
    ("generation", "tg", ("game",)),
    ("generation", "tg", ("short", "cold", "depth 0")),
    ("HumanEval pass@1, vanilla", "pass@1", ("vanilla",)),
    ("HumanEval pass@1, agentic", "pass@1", ("agentic",)),
    ("effective throughput, agent loop", "effective", ("agentic",)),
    ("coding average", "points", ("coding",)),
    ("reasoning", "points", ("reasoning",)),
    ("tool use", "points", ("tools",)),
    ("weighted total", "points", ("weighted total",)),
)
_FACTORS = {("s", "ms"): 1000.0, ("ms", "s"): 0.001, ("", "%"): 100.0, ("s", "min"): 1 / 60,
            ("of 100", "points"): 1.0, ("of 100", "%"): 1.0}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Beside:
    """One figure of an article and the owner's for the same thing, in the article's unit."""

    target: str
    what: str
    theirs: float
    yours: float
    unit: str
    hardware: str
    article: str
    note: str

    @property
    def ratio(self) -> float | None:
        """The owner's over theirs."""
        return self.yours / self.theirs if self.theirs else None


def beside_articles(info: RunInfo, report: Report, profile_of: Callable[[str], Profile]) -> list[Beside]:
    """Every figure that the run measured as well. A profile that is not there any more has none."""
    found: list[Beside] = []
    for target in info.plan.targets:
        if not target.profile or target.stopped:
            continue
        try:
            profile = profile_of(target.profile)
        except GpuboxError:
            continue
        own = [metric for metric in report.metrics if metric.target == target.name]
        for reference in profile.references:
            found += _pair(target.name, reference, own)
    return found


def _pair(target: str, reference: Reference, metrics: Sequence[Metric]) -> Iterator[Beside]:
    for what, name, needs in _SAME:
        if what != reference.what:
            continue
        for metric in metrics:
            parts = [part.strip() for part in metric.group.split(",")]
            if metric.name != name or not all(need in parts for need in needs):
                continue
            factor = 1.0 if metric.unit == reference.unit else _FACTORS.get((metric.unit, reference.unit))
            if factor is not None:
                yield Beside(
                    target, f"{reference.what} [{metric.group}]" if metric.group else reference.what, reference.value,
                    metric.estimate.value * factor, reference.unit, reference.hardware, reference.article,
                    reference.note,
                )  # fmt: skip
                return
