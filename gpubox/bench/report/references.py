"""The articles' figures beside the owner's: which ``[[reference]]`` is which metric. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from gpubox.bench.model import RunInfo
from gpubox.bench.report.model import Metric, Report
from gpubox.errors import GpuboxError
from gpubox.profiles.profile import Profile, ReferenceFigure

_LENGTHS = {"short": "short, cold, depth 0", "medium": "medium, cold, depth 0", "long": "long, cold, depth 0"}
_GAME = "game, cold, depth 0"
_CHAT, _TEN_RUNS = "50 prompts", "10 runs"
"""What the note of a figure must say before it counts as measured by the presets ``chat`` and ``game``."""
_CONTEXTS = {"32K": 32768, "64K": 65536, "128K": 131072, "262K": 262144}
"""``generation at 64K`` was measured at --ctx-size 65536, on a short prompt: that is no depth of 65,536 tokens."""
# words of a reference -> the metric's name, its group, and a word that the note must have
_SAME: tuple[tuple[str, str, str, str], ...] = (
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
"""Only figures whose way of measuring is known. Speed of an unknown prompt stands beside nothing."""
_FACTORS = {("s", "ms"): 1000.0, ("ms", "s"): 0.001, ("", "%"): 100.0, ("s", "min"): 1 / 60,
            ("of 100", "points"): 1.0, ("of 100", "%"): 1.0}  # fmt: skip


@dataclass(frozen=True, slots=True)
class ReferenceComparison:
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


def compare_with_references(
    info: RunInfo, report: Report, profile_of: Callable[[str], Profile]
) -> list[ReferenceComparison]:
    """Every figure that the run measured as well. A profile that is not there any more has none."""
    found: list[ReferenceComparison] = []
    for target in info.plan.targets:
        if not target.profile or target.stopped:
            continue
        try:
            profile = profile_of(target.profile)
        except GpuboxError:
            continue
        own = [metric for metric in report.metrics if metric.target == target.name]
        for reference in profile.references:
            found += _pair(target.name, reference, own, _context_of(info, target.name))
    return found


def _pair(
    target: str, reference: ReferenceFigure, metrics: Sequence[Metric], context: int | None
) -> Iterator[ReferenceComparison]:
    for metric in metrics:
        factor = 1.0 if metric.unit == reference.unit else _FACTORS.get((metric.unit, reference.unit))
        if factor is not None and _measured_alike(reference, metric, context):
            yield ReferenceComparison(
                target, f"{reference.what} [{metric.group}]" if metric.group else reference.what, reference.value,
                metric.estimate.value * factor, reference.unit, reference.hardware, reference.article,
                reference.note,
            )  # fmt: skip
            return


def _measured_alike(reference: ReferenceFigure, metric: Metric, context: int | None) -> bool:
    """Whether the article's figure and this row come from the same prompts, lengths and context."""
    at = reference.what.removeprefix("generation at ")
    if at in _CONTEXTS and at != reference.what:  # its ten runs of one HTML game, at contexts of these sizes
        return (metric.name, metric.group, context) == ("tg", _GAME, _CONTEXTS[at])
    return any(
        (what, name, group) == (reference.what, metric.name, metric.group) and word in reference.note
        for what, name, group, word in _SAME
    )


def _context_of(info: RunInfo, target: str) -> int | None:
    """The size of a slot's context; ``None`` where the run does not know it."""
    found = info.provenance.get(target)
    size = found.props.get("n_ctx") if found else None
    return size if isinstance(size, int) else None
