"""A quality run's results -> its report: distances from the reference, paired differences. Pure."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterator, Mapping
from dataclasses import replace

from gpubox import units
from gpubox.bench import stats
from gpubox.bench.compare.words import more_answers
from gpubox.bench.kinds.quality.figures import (
    TargetFigures,
    differences,
    figures_of,
    over_chunks,
    percentile_of,
    perplexity_of,
)
from gpubox.bench.kinds.quality.program import scored_tokens
from gpubox.bench.kinds.quality.quality_options import QualityOptions
from gpubox.bench.kinds.shared import closing_notes, ranking_verdict, report_doubts
from gpubox.bench.model import RunInfo, ScoredItems
from gpubox.bench.report.formatting import format_interval
from gpubox.bench.report.model import Metric, Report, ReportTable, Value
from gpubox.bench.stats import Estimate

MAX_PAIRS = 15
"""Rows of the table of paired differences."""


def summarise(options: QualityOptions, info: RunInfo, results: ScoredItems) -> Report:
    """The report so far."""
    figures = figures_of(results)
    by_target = {label: {own.name: own for own in _metrics(label, figures[label])} for label in figures}
    return Report(
        kind="quality",
        title=f"Quality against {options.reference}",
        verdict=_verdict(options, figures, more_answers(info)),
        metrics=tuple(metric for own in by_target.values() for metric in own.values()),
        tables=(*_distances(options, figures, by_target), *_pairs(figures)),
        notes=tuple([*_notes(options, figures), *closing_notes(info, results)]),
        doubts=report_doubts(info, results),
    )


def _verdict(options: QualityOptions, figures: Mapping[str, TargetFigures], tells: str) -> str:
    """Which target is closest to the reference, and how often it expects the same."""
    means = {label: over_chunks(list(own.kl.values())).value for label, own in figures.items() if own.kl}
    ranked = sorted(means, key=lambda label: means[label])
    if not ranked:
        return ""
    best, same = ranked[0], statistics.fmean(figures[ranked[0]].same_top.values())
    sentence = f"{best} expects the same next word as {options.reference} in {100 * same:.0f} of 100 places."
    if len(ranked) == 1:
        return sentence
    behind = [
        pair.second if pair.first == best else pair.first
        for pair in differences(figures)
        if best in (pair.first, pair.second)
        and pair.kl
        and pair.verdict == ("farther" if pair.first == best else "closer")
    ]
    closest = f"is closest to {options.reference}"
    order = ranking_verdict(ranked, behind, closest, "is closer than", f"which {closest}", tells)
    return f"{order} {sentence}"


def _metrics(label: str, own: TargetFigures) -> Iterator[Metric]:
    group = "text"
    if own.kl:
        samples = tuple((str(chunk), value) for chunk, value in own.kl.items())
        yield Metric("KL", group, label, "nat", "lower", over_chunks(list(own.kl.values())), samples)
        for title, total in (("KL, median", "kl_median"), ("KL, 99 %", "kl_99")):
            if estimate := percentile_of(own, total):
                yield Metric(title, group, label, "nat", "lower", estimate)
        shares = over_chunks(list(own.same_top.values()), 100)
        if shares.high is not None:
            shares = replace(shares, high=min(100.0, shares.high))
        same = tuple((str(chunk), 100 * value) for chunk, value in own.same_top.items())
        yield Metric("same top token", group, label, "%", "higher", shares, same)
    yield Metric("perplexity", group, label, "", "lower", perplexity_of(own))


def _distances(
    options: QualityOptions, figures: Mapping[str, TargetFigures], by_target: Mapping[str, Mapping[str, Metric]]
) -> Iterator[ReportTable]:
    """One row for each target, of its metrics by name."""
    if not figures:
        return
    rows: list[tuple[Value, ...]] = []
    for label, own in figures.items():
        metrics = by_target[label]
        ppl = metrics["perplexity"].estimate
        if label == options.reference:
            rows.append((label, "reference", "", "", "", "", ppl.value, format_interval(ppl)))
            continue
        if not own.kl:
            rows.append((label, units.UNKNOWN, "", "", "", "", ppl.value, format_interval(ppl)))
            continue
        kl, same = metrics["KL"].estimate, metrics["same top token"].estimate
        median, high = (metrics.get(f"KL, {share}") for share in ("median", "99 %"))
        rows.append(
            (
                label, _kl_text(kl.value), _kl_interval(kl), _kl_text(median.estimate.value if median else None),
                _kl_text(high.estimate.value if high else None), f"{same.value:.2f} %", ppl.value,
                format_interval(ppl),
            )
        )  # fmt: skip
    chunks = max(len(own.log_perplexity) for own in figures.values())
    yield ReportTable(
        f"Distance from {options.reference}",
        ("", "KL, mean", "95 % CI", "median", "99 %", "same top", "perplexity", "95 % CI"),
        tuple(rows),
        f"llama-perplexity; {chunks} chunks of {options.context} tokens, {scored_tokens(options.context)} predicted "
        "tokens each; KL in nats; intervals over chunks",
    )


def _pairs(figures: Mapping[str, TargetFigures]) -> Iterator[ReportTable]:
    pairs = differences(figures)  # a pair with the reference has no KL: that is in the table above
    rows: list[tuple[Value, ...]] = []
    for pair in pairs[:MAX_PAIRS]:
        kl_cells = (f"{pair.kl.value:+.4f}", _signed_interval(pair.kl)) if pair.kl else ("", "")
        ratio = pair.log_perplexity
        rows.append(
            (
                f"{pair.second} − {pair.first}", *kl_cells, f"× {math.exp(ratio.value):.4f}", _ratio_interval(ratio),
                pair.verdict,
            )
        )  # fmt: skip
    if rows:
        left_out = f"; {len(pairs) - MAX_PAIRS} more pairs" if len(pairs) > MAX_PAIRS else ""
        yield ReportTable(
            "Paired differences",
            ("", "KL", "95 % CI", "perplexity", "95 % CI", ""),
            tuple(rows),
            "chunk by chunk, on the same text"
            + (f"; verdicts corrected for all {len(pairs)} pairs{left_out}" if len(pairs) > 1 else ""),
        )


def _kl_text(value: float | None) -> str | None:
    """Small distances need more digits than four."""
    if value is None:
        return None
    return f"{value:.6f}" if abs(value) < 0.001 else f"{value:.4f}"


def _kl_interval(estimate: Estimate) -> str:
    if estimate.low is None or estimate.high is None:
        return format_interval(estimate)
    return f"{_kl_text(estimate.low)} – {_kl_text(estimate.high)}"


def _signed_interval(estimate: Estimate) -> str:
    if estimate.low is None or estimate.high is None:
        return units.UNKNOWN
    return f"{estimate.low:+.4f} to {estimate.high:+.4f}"


def _ratio_interval(log_ratio: Estimate) -> str:
    if log_ratio.low is None or log_ratio.high is None:
        return units.UNKNOWN
    return f"{math.exp(log_ratio.low):.4f} – {math.exp(log_ratio.high):.4f}"


# -- notes ----------------------------------------------------------------------------------------------------------


def _notes(options: QualityOptions, figures: Mapping[str, TargetFigures]) -> Iterator[str]:
    if any(own.kl for own in figures.values()):
        yield (
            "The reference's log probabilities have 16 bits on the disk: between tokens of nearly the same probability "
            "the first one can change."
        )
    for own in figures.values():
        if own.totals is not None and (error := _disagreement(own)):
            yield error
    if options.text:
        yield f"The text is the owner's own ({options.text_sha256[:12]})."
    chunks = max((len(own.log_perplexity) for own in figures.values()), default=0)
    if 0 < chunks < stats.MIN_CLUSTERS:
        yield f"{chunks} chunks are few: their intervals are wide."


def _disagreement(own: TargetFigures) -> str:
    """A sentence if the chunks do not add up to what the program printed over all tokens."""
    total = own.totals.total("kl") if own.totals else None
    if total is None or not own.kl:
        return ""
    mean = sum(own.kl.values()) / len(own.kl)
    return "" if abs(mean - total) < 2e-5 else f"The chunks give a KL of {mean:.6f}, the program says {total:.6f}."
