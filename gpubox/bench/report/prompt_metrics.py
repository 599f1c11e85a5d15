"""Metrics of replies to questions, with the prompt as the sampling unit. Shared by ab and sweep."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import replace

from gpubox.bench import stats
from gpubox.bench.model import ScoredItems
from gpubox.bench.questions import question_of
from gpubox.bench.report.model import Better, Metric
from gpubox.bench.stats import Estimate, RatioSample

Measures = Sequence[tuple[str, str, str, Better]]
"""(name in the report, key of the value, unit, which is better)."""
_LENGTH: Measures = (("mean accepted length", "mean_accepted_length", "tokens/step", ""),)


def prompt_metrics(target: str, group: str, rows: ScoredItems, measures: Measures, seed: int = 0) -> list[Metric]:
    """The mean over prompts of each measure that has values, with a bootstrap interval over prompts."""
    metrics = []
    for name, key, unit, better in measures:
        domains: dict[str, dict[str, list[float]]] = {}
        for item, result in rows:
            if (value := result.values.get(key)) is not None:
                question = question_of(item)
                domains.setdefault(question.domain, {}).setdefault(question.name, []).append(float(value))
        if domains:
            estimate = stats.mean_over_prompts([list(prompts.values()) for prompts in domains.values()], seed=seed)
            samples = tuple(
                (f"{prompt}/{number}", value)  # numbered, so that two runs are compared repeat by repeat
                for prompts in domains.values()
                for prompt, values in prompts.items()
                for number, value in enumerate(values, 1)
            )
            metrics.append(Metric(name, group, target, unit, better, estimate, samples, start_means(rows, key)))
    return metrics


def start_means(rows: ScoredItems, key: str) -> tuple[tuple[float, float], ...]:
    """(number, mean) of each start; the geometric mean if all values are positive, as in comparisons of starts."""
    starts: dict[int, list[float]] = {}
    for item, result in rows:
        if (value := result.values.get(key)) is not None:
            starts.setdefault(item.start, []).append(float(value))
    return tuple(
        (float(start), statistics.geometric_mean(values) if min(values) > 0 else statistics.fmean(values))
        for start, values in sorted(starts.items())
    )


def start_estimate(rows: ScoredItems, key: str) -> Estimate | None:
    """The mean over starts, with a t interval if there are several; ``None`` without values.

    Repeats within one start give a mean and a range but no interval, because they do not show how starts differ.
    """
    numbers = [float(result.values[key]) for _, result in rows if result.values.get(key) is not None]
    if not numbers:
        return None
    means = [mean for _, mean in start_means(rows, key)]
    if len(means) > 1:
        return replace(stats.estimate(means), method="t over starts")
    return replace(stats.estimate(numbers), low=None, high=None, method="")


def acceptance_metrics(target: str, group: str, rows: ScoredItems, seed: int = 0) -> list[Metric]:
    """Accepted over drafted tokens in %, pooled, with a bootstrap interval over prompts; and tokens per step."""
    domains: dict[str, dict[str, RatioSample]] = {}
    for item, result in rows:
        if drafted := result.values.get("draft_tokens"):
            question = question_of(item)
            prompts = domains.setdefault(question.domain, {})
            sample = prompts.get(question.name, RatioSample(0, 0))
            accepted = sample.numerator + (result.values.get("draft_tokens_accepted") or 0)
            prompts[question.name] = RatioSample(accepted, sample.denominator + drafted)
    if not domains:
        return []
    estimate = stats.pooled_ratio([list(prompts.values()) for prompts in domains.values()], seed=seed)
    samples = tuple(
        (name, 100 * sample.numerator / sample.denominator)
        for prompts in domains.values()
        for name, sample in prompts.items()
    )
    length = prompt_metrics(target, group, rows, _LENGTH, seed)
    return [*length, Metric("acceptance", group, target, "%", "higher", scale_estimate(estimate, 100), samples)]


def scale_estimate(estimate: Estimate, factor: float) -> Estimate:
    """``estimate`` in another unit."""
    fields = ("value", "sd", "median", "low", "high", "minimum", "maximum")
    values = {name: getattr(estimate, name) for name in fields}
    return replace(estimate, **{name: value * factor for name, value in values.items() if value is not None})
