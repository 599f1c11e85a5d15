"""The live picture of a tune, from its plan and its results so far. Pure."""

from __future__ import annotations

import math
import statistics
from dataclasses import replace

from gpubox.bench.compare.contest import ONCE, Contest
from gpubox.bench.compare.starts import MIN_STARTS
from gpubox.bench.kinds.tune.progress import CandidateState, TuneCandidate, TuneProgress
from gpubox.bench.kinds.tune.protocol import flag_changes
from gpubox.bench.kinds.tune.tune import Tune
from gpubox.bench.model import Plan, ScoredItems
from gpubox.bench.stats import t95


def tune_progress(plan: Plan, results: ScoredItems, *, active: bool = False) -> TuneProgress:
    """The picture after ``results``. ``active``: somebody works on the run now, so one candidate is being measured.

    Raises UsageError if the plan is damaged.
    """
    tune = Tune(plan)
    contest, options, best = tune.contest_after(results), tune.options, tune.best(results)
    over = contest.reason is not None
    keep = best.name if best else tune.rules.own if over and not contest.failure_of(tune.rules.own) else ""
    verdict = f"{tune.headline(results)}." if over else ""
    shown = [_judged(TuneCandidate(target.name, target.overrides), contest, keep, verdict) for target in plan.targets]
    if active and not over:
        shown = [replace(each, state="measuring") if each.name == contest.current else each for each in shown]
    shown.sort(key=lambda each: (not each.own, each.rate is None, -(each.rate or 0.0)))
    done, per_start = len(contest.outcomes), contest.per_start
    left = max(0.0, contest.seconds_left) if per_start else None
    return TuneProgress(
        options.goal, tune.unit, tuple(shown), done,
        done if over else done + max(1, int(left / per_start)) if left is not None and per_start else done + 1,
        0.0 if over else left,
        "finished" if over else "comparing" if contest.finalists else "searching",
        verdict, tuple(options.pruned.items()), tuple(flag_changes(options, best.overrides)) if best else (),
    )  # fmt: skip


def _judged(candidate: TuneCandidate, contest: Contest, keep: str, verdict: str) -> TuneCandidate:
    """``candidate`` with its state and its rate."""
    name = candidate.name
    starts = contest.starts_of(name, "final") or contest.starts_of(name)
    state: CandidateState = "waiting"
    reason = ""
    if failure := contest.hopeless(name):
        return replace(candidate, state="out", reason=failure)
    if name in contest.finalists:
        state = "finalist" if name in contest.alive else "out"
        reason = "" if name in contest.alive else "slower"
    elif contest.finalists or contest.reason is not None:
        late = "other flags promised more" if len(contest.rules.cells) > ONCE else "no time for it"
        state, reason = "out", "not among the fastest" if starts else late
    if name == keep:
        state, reason = "best", verdict
    candidate = replace(candidate, state=state, reason=reason, starts=len(contest.starts_of(name)))
    if not starts:
        return candidate
    logs = [start.log_rate for start in starts]
    mean = statistics.fmean(logs)
    if len(logs) < MIN_STARTS:
        return replace(candidate, rate=math.exp(mean))
    half = t95(len(logs) - 1) * statistics.stdev(logs) / math.sqrt(len(logs))
    return replace(candidate, rate=math.exp(mean), low=math.exp(mean - half), high=math.exp(mean + half))
