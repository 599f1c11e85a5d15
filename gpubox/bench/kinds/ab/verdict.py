"""Compares the two sides of an A/B run: a contrast for each row of its table, and when the run may stop. Pure."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from gpubox.bench.kinds.ab.plan import AbOptions, Side, questions_of
from gpubox.bench.kinds.shared import answered_starts
from gpubox.bench.model import ScoredItems
from gpubox.bench.questions import question_of
from gpubox.bench.report.prompt_metrics import Measures
from gpubox.bench.start_comparison import (
    LEVEL,
    Contrast,
    InterimAnalysis,
    Noise,
    compare_prompts,
    compare_starts,
    interim_analyses,
)
from gpubox.bench.stats import MARGIN, Verdict, holm

MEASURES: Measures = (
    ("tg", "tg", "tok/s", "higher"),
    ("effective", "effective", "tok/s", "higher"),
    ("pp", "pp", "tok/s", "higher"),
    ("TTFT", "ttft_seconds", "s", "lower"),
)
MAIN_WEIGHT = 0.8
"""The share of the significance level for tg over all prompts; the other rows of the table share the rest."""


@dataclass(frozen=True, slots=True)
class ContrastRow:
    """One row of the table."""

    name: str
    domain: str
    """``all``, or one of the prompts' domains."""
    contrast: Contrast
    corrected_p: float
    """Corrected for all rows and for the interim analyses."""
    verdict: Verdict


def side_results(side: Side, results: ScoredItems, domain: str = "") -> ScoredItems:
    """The results of ``side`` without warm-ups, of one domain if it is given."""
    return [
        (item, result)
        for item, result in results
        if result.ok and not item.warmup and item.values["side"] == side.name
        and domain in ("", question_of(item).domain)
    ]  # fmt: skip


def contrast_of(
    options: AbOptions,
    results: ScoredItems,
    key: str,
    domain: str = "",
    *,
    noise: Noise | None = None,
    restarted: bool = True,
) -> Contrast | None:
    """The second side over the first; ``None`` if they have no prompt in common."""
    starts = [
        start
        for side in options.sides
        for start in answered_starts(side.name, side_results(side, results, domain), key)
    ]
    domains = {question.name: question.domain for question in questions_of(options)}
    first, second = (side.name for side in options.sides)
    if not options.one_server:
        return compare_starts(starts, first, second, domains=domains, noise=noise, restarted=restarted)
    log_rates = {start.side: start.log_rates for start in starts}
    names = [name for name in log_rates.get(first, {}) if name in log_rates.get(second, {})]
    if not names:
        return None
    gains = [log_rates[second][name] - log_rates[first][name] for name in names]
    return compare_prompts(gains, [domains[name] for name in names])


def contrast_rows(
    options: AbOptions, results: ScoredItems, *, noise: Noise | None = None, restarted: bool = True
) -> list[ContrastRow]:
    """Every row with its verdict, corrected for all rows and for the interim analyses."""
    contrasts: list[tuple[str, str, Contrast]] = []
    for name, key, _, _ in MEASURES:
        for domain in ("", *(options.domains if len(options.domains) > 1 and key == "tg" else ())):
            contrast = contrast_of(options, results, key, domain, noise=noise, restarted=restarted)
            if contrast:
                contrasts.append((name, domain or "all", contrast))
    level = LEVEL if options.one_server else current_analysis(options, results).level
    other_weight = (1 - MAIN_WEIGHT) / max(1, len(contrasts) - 1)
    weights = [MAIN_WEIGHT if (name, domain) == ("tg", "all") else other_weight for name, domain, _ in contrasts]
    p_values = holm([contrast.p_value() for _, _, contrast in contrasts], weights)
    return [
        ContrastRow(name, domain, contrast, min(1.0, p * LEVEL / level), contrast.verdict(p, level))
        for (name, domain, contrast), p in zip(contrasts, p_values, strict=True)
    ]


def main_row(rows: Sequence[ContrastRow]) -> ContrastRow | None:
    """tg over all prompts, on which the verdict rests."""
    return next((row for row in rows if (row.name, row.domain) == ("tg", "all")), None)


def current_analysis(options: AbOptions, results: ScoredItems) -> InterimAnalysis:
    """The interim analysis at which the run ended, or the next one."""
    planned = interim_analyses(options.starts)
    last = max((item.start for item, result in results if result.ok), default=0)
    return next((analysis for analysis in planned if 2 * analysis.starts >= last), planned[-1])


def early_stop_reason(options: AbOptions, results: ScoredItems, starts: int) -> str:
    """Why the run may stop after ``starts`` starts of each side; empty: it continues."""
    main = main_row(contrast_rows(options, [pair for pair in results if pair[0].start <= 2 * starts]))
    if main is None or not main.contrast.enough:
        return ""
    if main.verdict in ("faster", "slower"):
        return f"the verdict is clear after {starts} starts of each"
    low, high = (math.log(end) for end in main.contrast.interval)
    # A half width below MARGIN excludes every difference that would be reported.
    return f"the interval is narrow enough after {starts} starts of each" if (high - low) / 2 < MARGIN else ""
