"""Results of asked questions -> Metrics, prompts being the sampling unit. What ab and sweep share."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

from gpubox.bench import stats
from gpubox.bench.model import Item, Result
from gpubox.bench.questions import question_of
from gpubox.bench.report.model import Better, Estimate, Metric

Scored = Sequence[tuple[Item, Result]]
Measures = Sequence[tuple[str, str, str, Better]]
"""Name in the report, name of the value, unit, what is better."""
_LENGTH: Measures = (("mean accepted length", "mean_accepted_length", "tokens/step", ""),)


def prompt_metrics(target: str, group: str, rows: Scored, measures: Measures, seed: int = 0) -> list[Metric]:
    """The mean over prompts of each measure that has values, its interval by bootstrap over prompts."""
    made = []
    for name, key, unit, better in measures:
        prompts: dict[str, dict[str, list[float]]] = {}
        for item, result in rows:
            value = result.values.get(key)
            if value is not None:
                question = question_of(item)
                prompts.setdefault(question.domain, {}).setdefault(question.name, []).append(float(value))
        if prompts:
            found = stats.mean_over_prompts([list(domain.values()) for domain in prompts.values()], seed=seed)
            samples = tuple(
                (f"{prompt}/{number}", value)  # repeats are told apart: two runs pair them one by one
                for domain in prompts.values()
                for prompt, values in domain.items()
                for number, value in enumerate(values, 1)
            )
            made.append(Metric(name, group, target, unit, better, found, samples, start_means(rows, key)))
    return made


def start_means(rows: Scored, key: str) -> tuple[tuple[float, float], ...]:
    """The mean of each start, by its place in the run; geometric where all are above 0, as starts are compared."""
    held: dict[int, list[float]] = {}
    for item, result in rows:
        if (value := result.values.get(key)) is not None:
            held.setdefault(item.start, []).append(float(value))
    return tuple(
        (float(place), statistics.geometric_mean(values) if min(values) > 0 else statistics.fmean(values))
        for place, values in sorted(held.items())
    )


def acceptance_metrics(target: str, group: str, rows: Scored, seed: int = 0) -> list[Metric]:
    """Accepted of drafted tokens in %, pooled, the interval by bootstrap over prompts; and tokens per step."""
    strata: dict[str, dict[str, stats.RatioSample]] = {}
    for item, result in rows:
        if result.values.get("draft_tokens"):
            question = question_of(item)
            prompts = strata.setdefault(question.domain, {})
            held = prompts.get(question.name, stats.RatioSample(0, 0))
            part = held.numerator + (result.values.get("draft_tokens_accepted") or 0)
            prompts[question.name] = stats.RatioSample(part, held.denominator + result.values["draft_tokens"])
    if not strata:
        return []
    found = stats.pooled_ratio([list(prompts.values()) for prompts in strata.values()], seed=seed)
    samples = tuple(
        (name, 100 * s.numerator / s.denominator) for prompts in strata.values() for name, s in prompts.items()
    )
    length = prompt_metrics(target, group, rows, _LENGTH, seed)
    return [*length, Metric("acceptance", group, target, "%", "higher", scale_estimate(found, 100), samples)]


def scale_estimate(found: Estimate, factor: float) -> Estimate:
    """``found`` in another unit."""

    def by(value: float | None) -> float | None:
        return None if value is None else value * factor

    return Estimate(
        found.value * factor, found.n, by(found.sd), by(found.median), by(found.low), by(found.high), found.method,
        by(found.least), by(found.most),
    )  # fmt: skip
