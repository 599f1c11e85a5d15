"""The live picture of a tune, from its plan and its results so far. Pure; it fits a model, so call it in a thread."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace

from gpubox.bench.kinds.tune.course import Course
from gpubox.bench.kinds.tune.progress import UNITS, CandidateState, TuneCandidate, TuneProgress
from gpubox.bench.kinds.tune.protocol import OWN, TuneOptions, measured_target, outcomes, parse_options, starts_in
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
    candidates = [
        replace(_candidate(course, name, verdict), name=name, flags=flags[name], starts=count)
        for name, count in _counts(course).items()
    ]
    shown = [replace(each, state="measuring") if each.name == measuring else each for each in candidates]
    shown.sort(key=lambda each: (each.name != OWN, each.rate is None, -(each.rate or 0.0)))
    clock = Clock(course.budget_seconds, course.outcomes)
    left = None
    if clock.per_start is not None:
        most = (options.space.starts_limit - len(clock.outcomes)) * clock.per_start
        left = 0.0 if phase == "finished" else max(0.0, min(most, clock.budget_seconds - clock.spent))
    return TuneProgress(
        options.goal, UNITS[options.goal], tuple(shown), len(course.outcomes), options.space.starts_limit, left, phase,
        verdict.sentence, tuple(options.pruned.items()),
    )  # fmt: skip


def _counts(course: Course) -> Mapping[str, int]:
    """How many starts of each cell were measured."""
    counts = dict.fromkeys(course.space.cells, 0)
    for outcome in course.outcomes:
        counts[outcome.cell] += not outcome.failure
    return counts


def _measuring(options: TuneOptions, course: Course, results: ScoredItems) -> str:
    """The cell that is measured now."""
    done = {outcome.number for outcome in course.outcomes}
    for number, own in starts_in(results):
        if number not in done and (cell := measured_target(own)) in options.cells:
            return cell
    return course.search_step.cell or course.final_step.cell


def _candidate(course: Course, name: str, verdict: TuneVerdict) -> TuneCandidate:
    """What is known of one cell; name, flags and starts are filled in by the caller."""
    knowledge, phase = course.knowledge, course.phase
    state: CandidateState = "waiting"
    reason = ""
    compared = phase in ("comparing", "finished")
    if name in knowledge.out:
        return TuneCandidate(name, {}, state="out", reason=knowledge.out[name])
    if compared and name in course.finalists:
        state = "finalist"
        if why := course.round.failure(name):
            state, reason = "out", why
        elif course.round.is_out(name):
            state, reason = "out", f"slower than {course.outlook.fastest}"
    elif compared or (phase == "narrowing" and name != knowledge.incumbent and name not in knowledge.contenders):
        state, reason = "out", _CANNOT_WIN if name not in knowledge.contenders else "not among the best of the search"
    if name == verdict.keep:
        state, reason = "best", verdict.sentence
    if compared and (interval := side_interval(course.outlook, name)):
        rate, low, high = interval
        known = low > 0 and math.isfinite(high)
        return TuneCandidate(
            name, {}, rate=rate, low=low if known else None, high=high if known else None, state=state, reason=reason
        )
    measured = [outcome for outcome in knowledge.starts.get(name, ()) if not outcome.failure]
    if len(knowledge.points) < 3:
        rate_now = measured[0].rate if measured else None
        return TuneCandidate(name, {}, rate=rate_now, state=state, reason=reason)
    estimate = knowledge.surface.estimate(course.space.cells[name])
    half = _Z95 * estimate.sd
    return TuneCandidate(
        name, {}, rate=math.exp(estimate.mean), low=math.exp(estimate.mean - half),
        high=math.exp(estimate.mean + half), estimated=not measured, state=state, reason=reason,
    )  # fmt: skip
