"""The live picture of a tune, from its plan and its results so far. Pure; it fits a model, so call it in a thread."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import replace

from gpubox.bench.kinds.tune.course import Course
from gpubox.bench.kinds.tune.progress import UNITS, CandidateState, TuneCandidate, TuneProgress
from gpubox.bench.kinds.tune.protocol import (
    TuneOptions,
    flag_changes,
    measured_target,
    outcomes,
    parse_options,
    starts_in,
)
from gpubox.bench.kinds.tune.search import Clock
from gpubox.bench.kinds.tune.verdict import TuneVerdict, read_verdict, side_interval
from gpubox.bench.model import Plan, ScoredItems
from gpubox.bench.start_comparison import LEVEL
from gpubox.bench.stats import MARGIN, t_quantile

_Z95 = t_quantile(LEVEL, math.inf)
_CANNOT_WIN = f"cannot win by more than {MARGIN:.0%}"


def tune_progress(plan: Plan, results: ScoredItems, *, active: bool = False) -> TuneProgress:
    """The picture after ``results``. ``active``: somebody works on the run now, so one candidate is being measured.

    Raises UsageError if the plan is damaged.
    """
    options = parse_options(plan.options, plan.targets)
    search, final = outcomes(options, results)
    course = Course(options.space, 60 * options.minutes, search, final, plan.seed)
    phase = course.phase
    verdict = read_verdict(course, UNITS[options.goal])
    measuring = _measuring(options, course, results) if active else ""
    flags = {target.name: target.overrides for target in plan.targets}
    counts = Counter(outcome.cell for outcome in course.outcomes if not outcome.failure)
    shown = [_judged(TuneCandidate(name, flags[name], counts[name]), course, verdict) for name in options.cells]
    shown = [replace(each, state="measuring") if each.name == measuring else each for each in shown]
    shown.sort(key=lambda each: (not each.own, each.rate is None, -(each.rate or 0.0)))
    limit = options.space.starts_limit
    left = Clock(course.budget_seconds, course.outcomes).left(limit)
    return TuneProgress(
        options.goal, UNITS[options.goal], tuple(shown), len(course.outcomes), limit,
        0.0 if phase == "finished" and left is not None else left, phase, verdict.sentence,
        tuple(options.pruned.items()),
        tuple(flag_changes(options, flags[verdict.keep])) if verdict.keep else (),
    )  # fmt: skip


def _measuring(options: TuneOptions, course: Course, results: ScoredItems) -> str:
    """The cell that is measured now."""
    done = {outcome.number for outcome in course.outcomes}
    for number, own in starts_in(results):
        if number not in done and (cell := measured_target(own)) in options.cells:
            return cell
    return course.search_step.cell or course.final_step.cell


def _judged(candidate: TuneCandidate, course: Course, verdict: TuneVerdict) -> TuneCandidate:
    """``candidate`` with its state and what is known of its rate."""
    name, knowledge, phase = candidate.name, course.knowledge, course.phase
    state: CandidateState = "waiting"
    reason = ""
    compared = phase in ("comparing", "finished")
    if name in knowledge.out:
        return replace(candidate, state="out", reason=knowledge.out[name])
    if compared and name in course.finalists:
        state = "finalist"
        if why := course.round.failure(name):
            state, reason = "out", why
        elif course.round.is_out(name):
            state, reason = "out", f"slower than {course.outlook.fastest}"
    elif compared or (phase == "narrowing" and name != knowledge.incumbent and name not in knowledge.can_win):
        state, reason = "out", _CANNOT_WIN if name not in knowledge.can_win else "not among the best of the search"
    if name == verdict.keep:
        state, reason = "best", verdict.sentence
    candidate = replace(candidate, state=state, reason=reason)
    if compared and (interval := side_interval(course.outlook, name)):
        rate, low, high = interval
        known = low > 0 and math.isfinite(high)
        return replace(candidate, rate=rate, low=low if known else None, high=high if known else None)
    measured = [outcome for outcome in knowledge.starts.get(name, ()) if not outcome.failure]
    if len(knowledge.points) < 3:
        return replace(candidate, rate=measured[0].rate if measured else None)
    estimate = knowledge.surface.estimate(course.space.cells[name])
    half = _Z95 * estimate.sd
    rate, low, high = (math.exp(estimate.mean + end) for end in (0.0, -half, half))
    return replace(candidate, rate=rate, low=low, high=high, estimated=not measured)
