"""What an ab run's results say of its two arms: a contrast for each row of its table, and when it may end. Pure."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from gpubox.bench.kinds.ab.plan import AbOptions, Arm, questions_of
from gpubox.bench.model import Item, Result
from gpubox.bench.questions import question_of
from gpubox.bench.report.model import Better
from gpubox.bench.start_comparison import (
    LEVEL,
    Contrast,
    InterimAnalysis,
    Noise,
    Start,
    compare_prompts,
    compare_starts,
    interim_analyses,
)
from gpubox.bench.stats import MARGIN, Verdict, holm

Scored = Sequence[tuple[Item, Result]]
# name in the report, value's name, unit, what is better
MEASURES: tuple[tuple[str, str, str, Better], ...] = (
    ("tg", "tg", "tok/s", "higher"),
    ("effective", "effective", "tok/s", "higher"),
    ("pp", "pp", "tok/s", "higher"),
    ("TTFT", "ttft_seconds", "s", "lower"),
)
MAIN_SHARE = 0.8
"""Of the level: tg over all prompts is what was asked, the other rows of the table share the rest."""
NARROW = MARGIN
"""Half of a 95 % interval: narrower tells nothing that is called a difference."""


@dataclass(frozen=True, slots=True)
class ContrastRow:
    """One row of the table."""

    name: str
    domain: str
    """``all``, or one of the prompts' domains."""
    contrast: Contrast
    corrected: float
    """The p after the whole table, 0 to 1, at the level ``look`` has."""
    verdict: Verdict


def arm_results(arm: Arm, results: Scored, domain: str = "") -> list[tuple[Item, Result]]:
    """What ``arm`` measured, warm-ups left out; of one domain where it is named."""
    return [
        (item, result)
        for item, result in results
        if result.ok and not item.warmup and item.values["arm"] == arm.name
        and domain in ("", question_of(item).domain)
    ]  # fmt: skip


def starts_of(options: AbOptions, results: Scored, key: str, domain: str = "") -> list[Start]:
    """Every start that answered something, in order. Of times the inverse, so that higher is faster."""
    found: dict[tuple[int, str], dict[str, list[float]]] = {}
    for arm in options.arms:
        for item, result in arm_results(arm, results, domain):
            if value := result.values.get(key):
                rate = 1 / value if key == "ttft_seconds" else value
                found.setdefault((item.start, arm.name), {}).setdefault(question_of(item).name, []).append(rate)
    return [
        Start(arm, place, {name: statistics.fmean(map(math.log, rates)) for name, rates in prompts.items()})
        for (place, arm), prompts in sorted(found.items())
    ]


def contrast_of(
    options: AbOptions,
    results: Scored,
    key: str,
    domain: str = "",
    *,
    noise: Noise | None = None,
    restarted: bool = True,
) -> Contrast | None:
    """The second arm over the first; ``None`` where they answered no prompt in common."""
    starts = starts_of(options, results, key, domain)
    domains = {question.name: question.domain for question in questions_of(options)}
    first, second = (arm.name for arm in options.arms)
    if not options.one_server:
        return compare_starts(starts, first, second, domains=domains, noise=noise, restarted=restarted)
    sides = {start.arm: start.logs for start in starts}
    names = [name for name in sides.get(first, {}) if name in sides.get(second, {})]
    if not names:
        return None
    gains = [sides[second][name] - sides[first][name] for name in names]
    return compare_prompts(gains, [domains[name] for name in names])


def contrast_rows(
    options: AbOptions, results: Scored, *, noise: Noise | None = None, restarted: bool = True
) -> list[ContrastRow]:
    """Every row with its verdict, corrected for all of them and for the looks at the run."""
    found: list[tuple[str, str, Contrast]] = []
    for name, key, _, _ in MEASURES:
        for domain in ("", *(options.domains if len(options.domains) > 1 and key == "tg" else ())):
            contrast = contrast_of(options, results, key, domain, noise=noise, restarted=restarted)
            if contrast:
                found.append((name, domain or "all", contrast))
    if not found:
        return []
    level = LEVEL if options.one_server else current_analysis(options, results).level
    main = [(name, domain) == ("tg", "all") for name, domain, _ in found]
    others = (1 - MAIN_SHARE) / max(1, len(found) - 1)
    weights = [MAIN_SHARE if is_main else others for is_main in main]
    corrected = holm([contrast.tail() for _, _, contrast in found], weights)
    return [
        ContrastRow(name, domain, contrast, min(1.0, p * LEVEL / level), contrast.verdict(p, level))
        for (name, domain, contrast), p in zip(found, corrected, strict=True)
    ]


def current_analysis(options: AbOptions, results: Scored) -> InterimAnalysis:
    """The look at which the run ended, or to which it goes on."""
    planned = interim_analyses(options.starts)
    last = max((item.start for item, result in results if result.ok), default=0)
    return next((look for look in planned if 2 * look.starts >= last), planned[-1])


def early_stop_reason(options: AbOptions, results: Scored, after: int, *, restarted: bool = True) -> str:
    """Why nothing is needed after so many starts of each arm; empty: more are."""
    planned = interim_analyses(options.starts)
    look = next((look for look in planned[:-1] if look.starts == after), None)
    if look is None:
        return ""
    before = [(item, result) for item, result in results if item.start <= 2 * after]
    rows = contrast_rows(options, before, restarted=restarted)
    main = next((row for row in rows if (row.name, row.domain) == ("tg", "all")), None)
    if main is None or not main.contrast.enough:
        return ""
    low, high = (math.log(end) for end in main.contrast.interval)
    if main.verdict in ("faster", "slower"):
        return f"the verdict is clear after {after} starts of each"
    if (high - low) / 2 < NARROW:
        return f"the interval is narrow enough after {after} starts of each"
    return ""
