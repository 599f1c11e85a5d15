"""The reference figures of a profile next to the owner's: which ``[[reference]]`` is which metric. Pure."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from gpubox.bench.model import RunInfo
from gpubox.bench.report.model import Metric, Report
from gpubox.errors import GpuboxError
from gpubox.profiles.profile import Profile, ReferenceFigure

_LENGTHS = {"short": "short, cold, depth 0", "medium": "medium, cold, depth 0", "long": "long, cold, depth 0"}
_GAME = "game, cold, depth 0"
_CHAT, _TEN_RUNS = "50 prompts", "10 runs"
"""Required in a figure's note, as evidence that it was measured like the presets ``chat`` and ``game``."""
_CONTEXT_SIZES = {"32K": 32768, "64K": 65536, "128K": 131072, "262K": 262144}
"""``generation at 64K`` means --ctx-size 65536 with a short prompt, not a depth of 65,536 tokens."""
_SAME_MEASURE: tuple[tuple[str, str, str, str], ...] = (
    *((f"generation, {name} answer", "tg", group, "") for name, group in _LENGTHS.items()),
    *((f"time to first token, {name}", "TTFT", group, "") for name, group in _LENGTHS.items()),
    ("generation, code", "tg", "code", ""),
    ("generation, math", "tg", "math", ""),
    ("generation", "tg", "all", _CHAT),
    ("draft acceptance, code", "acceptance", "code", ""),
    ("draft acceptance, math", "acceptance", "math", ""),
    ("draft acceptance", "acceptance", "all", "3 seeds"),
    ("draft acceptance", "acceptance", _GAME, _TEN_RUNS),
    ("HumanEval pass@1, vanilla", "pass@1", "vanilla", ""),
    ("HumanEval pass@1, agentic", "pass@1", "agentic", ""),
    ("effective throughput, agent loop", "effective", "agentic", ""),
    ("coding average", "points", "coding", ""),
    ("reasoning", "points", "reasoning", ""),
    ("tool use", "points", "tools", ""),
    ("weighted total", "points", "weighted total", ""),
)
"""(``what`` of a reference, name and group of the metric, required in the note). A speed of unknown prompts is left
out, because it compares with nothing."""
_FACTORS = {("s", "ms"): 1000.0, ("ms", "s"): 0.001, ("", "%"): 100.0, ("s", "min"): 1 / 60,
            ("of 100", "points"): 1.0, ("of 100", "%"): 1.0}  # fmt: skip


@dataclass(frozen=True, slots=True)
class ReferenceComparison:
    """A reference figure and the owner's measurement of the same quantity, in the reference's unit."""

    target: str
    what: str
    reference: float
    measured: float
    unit: str
    hardware: str
    article: str
    note: str

    @property
    def ratio(self) -> float | None:
        """Measured over reference."""
        return self.measured / self.reference if self.reference else None


def compare_with_references(
    info: RunInfo, report: Report, profile_of: Callable[[str], Profile]
) -> list[ReferenceComparison]:
    """Every reference figure that the run measured too. Profiles that no longer exist have none."""
    comparisons: list[ReferenceComparison] = []
    for target in info.plan.targets:
        if not target.profile or target.stopped:
            continue
        try:
            profile = profile_of(target.profile)
        except GpuboxError:
            continue
        metrics = [metric for metric in report.metrics if metric.target == target.name]
        provenance = info.provenance.get(target.name)
        context = provenance.props.get("n_ctx") if provenance else None
        for reference in profile.references:
            metric = next((metric for metric in metrics if _is_same_measure(reference, metric, context)), None)
            if metric:
                what = f"{reference.what} [{metric.group}]" if metric.group else reference.what
                measured = metric.estimate.value * _FACTORS.get((metric.unit, reference.unit), 1.0)
                comparisons.append(ReferenceComparison(
                    target.name, what, reference.value, measured, reference.unit, reference.hardware,
                    reference.article, reference.note,
                ))  # fmt: skip
    return comparisons


def _is_same_measure(reference: ReferenceFigure, metric: Metric, context: object) -> bool:
    """Whether both come from the same prompts, lengths and context size."""
    if metric.unit != reference.unit and (metric.unit, reference.unit) not in _FACTORS:
        return False
    size = reference.what.removeprefix("generation at ")
    if size in _CONTEXT_SIZES and size != reference.what:  # ten runs of one HTML game at each of these sizes
        return (metric.name, metric.group, context) == ("tg", _GAME, _CONTEXT_SIZES[size])
    return any(
        (what, name, group) == (reference.what, metric.name, metric.group) and word in reference.note
        for what, name, group, word in _SAME_MEASURE
    )
