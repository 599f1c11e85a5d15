"""What a tune has found out, in one sentence and in numbers. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from gpubox import units
from gpubox.bench.kinds.tune.course import Course
from gpubox.bench.kinds.tune.final import Outlook
from gpubox.bench.kinds.tune.search import Clock, enough_starts
from gpubox.bench.report.formatting import format_change
from gpubox.bench.start_comparison import LEVEL
from gpubox.bench.stats import t_quantile

Answer = Literal["", "faster", "as good", "unclear", "too few", "own fails", "nothing runs"]
AS_GOOD = 0.10
"""The largest possible gain with which other flags are called no better."""
_Z95 = t_quantile(LEVEL, math.inf)


@dataclass(frozen=True, slots=True)
class TuneVerdict:
    """The outcome; ``answer`` is empty as long as the tune goes on."""

    answer: Answer = ""
    keep: str = ""
    """The cell to keep: another one than the profile's own flags only if it is faster beyond doubt."""
    sentence: str = ""
    low: float | None = None
    """The 95 % interval of the rate of the fastest finalist over that of the profile's own flags."""
    high: float | None = None
    unmeasured_within: float | None = None
    """The most that a cell that was not compared can win over the profile's own flags, as the surface estimates it:
    0.02 is 2 %. ``None``: there are none."""


def read_verdict(course: Course, unit: str) -> TuneVerdict:
    """The outcome of ``course``. ``unit``: of its rates."""
    if course.phase != "finished":
        return TuneVerdict()
    own = course.space.own
    outlook, knowledge = course.outlook, course.knowledge
    why_own = knowledge.out.get(own) or next((o.failure for o in course.outcomes if o.cell == own and o.failure), "")
    if not outlook.best or not outlook.own:
        return _without_comparison(course, unit, why_own)
    rate = _text(_rate(outlook, outlook.best), unit)
    contrast = outlook.contrasts[outlook.best]
    low, high = contrast.interval
    within = outlook.gain_at_most
    numbers = (low, high, _unmeasured_within(course))
    interval = f"95 % interval {format_change(low)} to {format_change(high)}"
    if outlook.best in outlook.significant:
        change = f"{100 * (contrast.ratio - 1):.1f} %"
        return TuneVerdict(
            "faster", outlook.best, f"{outlook.best} is faster by {change} ({interval}): {rate}.", *numbers
        )
    if not contrast.enough:
        sentence = (
            f"Too few starts to tell: {outlook.best} measured {format_change(contrast.ratio)} against your flags "
            f"({interval}). {_enough_time(course)}"
        )
        return TuneVerdict("too few", own, sentence, *numbers)
    if within is None or within > AS_GOOD:
        most = format_change(1 + within) if within is not None else "any size"
        sentence = (
            f"No other flags were shown to be faster, but starts differ so much that a gain of {most} stays possible. "
            "Keep your flags, or tune again while the box is quiet."
        )
        return TuneVerdict("unclear", own, sentence, *numbers)
    sentence = f"Your flags are as good as any: within {100 * within:.1f} %."
    return TuneVerdict("as good", own, sentence, *numbers)


def _without_comparison(course: Course, unit: str, why_own: str) -> TuneVerdict:
    """The outcome if no finalist could be compared with the profile's own flags."""
    own, knowledge, outlook = course.space.own, course.knowledge, course.outlook
    lossless = [side for side in course.finalists if side != own and side not in course.space.lossy]
    searched = [side for side in lossless if side in knowledge.measured]
    best = outlook.best or (searched[0] if searched else "")
    why = f" ({why_own})" if why_own else ""
    if own in knowledge.measured:
        if best in knowledge.measured:
            gain = knowledge.surface.differences([course.space.cells[best]], course.space.cells[own])[0]
            look = f"{best} is ~{format_change(math.exp(gain.mean))} in the search, which is no proof"
            return TuneVerdict("too few", own, f"Too few starts to tell: {look}. {_enough_time(course)}")
        started = {outcome.cell for outcome in course.outcomes}
        if best or any(cell not in started for cell in knowledge.alive):
            look = "" if best else ": only your own flags could be measured in time"
            return TuneVerdict("too few", own, f"Too few starts to tell{look}. {_enough_time(course)}")
        alike = " that answers as yours do" if outlook.fastest else ""
        return TuneVerdict("as good", own, f"No other set of flags{alike} could be measured: keep your flags.")
    if not best:
        return TuneVerdict("nothing runs", "", f"No set of flags could be measured{why}.")
    log_rate = _rate(outlook, best) if outlook.best else knowledge.surface.estimate(course.space.cells[best]).mean
    sentence = f"Your own flags could not be measured{why}. The best that could: {best}, ~{_text(log_rate, unit)}."
    return TuneVerdict("own fails", best, sentence)


def _enough_time(course: Course) -> str:
    """What the owner can do if the time was too short."""
    per_start = Clock(course.budget_seconds, course.outcomes).per_start
    if not per_start:
        return "Keep your flags."
    minutes = math.ceil(per_start * enough_starts(course.space) / 60)
    return f"Keep your flags: a start takes ~{units.duration(per_start)}, so a tune needs about --minutes {minutes}."


def _text(log_rate: float, unit: str) -> str:
    return f"{units.rate(math.exp(log_rate))} {unit}"


def verdict_notes(course: Course, verdict: TuneVerdict) -> Iterator[str]:
    """What else a reader must know about the verdict."""
    outlook = course.outlook
    if outlook.fastest != outlook.best and outlook.fastest in outlook.contrasts:
        contrast = outlook.contrasts[outlook.fastest]
        yield (
            f"{outlook.fastest} measured {format_change(contrast.ratio)}, but changes the answers, not only their "
            "speed: `gpubox bench quality` compares it with your flags before you keep it."
        )
    if verdict.unmeasured_within is not None:
        most = f"~{100 * verdict.unmeasured_within:.1f} %"
        yield (
            f"Sets of flags that were not compared win at most {most} over your flags, as estimated from the "
            f"{len(course.knowledge.points)} starts of the search."
        )


def _rate(outlook: Outlook, side: str) -> float:
    """The log rate of one side, without drift."""
    return outlook.comparison.ancova.adjusted_mean(side) if outlook.comparison else -math.inf


def _unmeasured_within(course: Course) -> float | None:
    """The most that a cell that was not compared can win, one by one with 95 % confidence."""
    knowledge = course.knowledge
    others = [cell for cell in knowledge.alive if cell not in course.finalists]
    if not others or not knowledge.points or course.space.own not in knowledge.measured:
        return None
    places = [course.space.cells[cell] for cell in others]
    gains = knowledge.surface.differences(places, course.space.cells[course.space.own])
    return max(0.0, math.expm1(max(gain.mean + _Z95 * gain.sd for gain in gains)))


def side_interval(outlook: Outlook, side: str) -> tuple[float, float, float] | None:
    """The rate of one side of the comparison with its 95 % interval; ``None`` if it has none."""
    comparison = outlook.comparison
    if comparison is None or side not in comparison.ancova.means:
        return None
    ancova, mean = comparison.ancova, comparison.ancova.adjusted_mean(side)
    if ancova.variance is None or ancova.dof < 1:
        return math.exp(mean), 0.0, math.inf
    half = t_quantile(LEVEL, ancova.dof) * math.sqrt(ancova.variance / ancova.counts[side])
    return math.exp(mean), math.exp(mean - half), math.exp(mean + half)
