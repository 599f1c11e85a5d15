"""Finds the value of one flag with which a profile fits: by the formulas, then checked with dry runs.

All candidates are calculated, the best that fits is measured by the engine itself, and if it was wrong the next one is
taken. Where the formulas do not hold, a bisection over dry runs finds it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from gpubox.errors import UsageError
from gpubox.planner.plan import DEFAULT_KEEP_FREE_BYTES, MemoryPlan, Solution
from gpubox.planner.planner import Planner, Situation, read_flags
from gpubox.planner.verdict import judge
from gpubox.profiles.profile import FlagValue
from gpubox.units import tokens

SOLVABLE = ("n-cpu-moe", "n-gpu-layers", "ctx-size", "parallel", "cache-type-k")
CONTEXT_STEP = 1024
MAX_SLOTS = 32
_TYPES = ("f16", "q8_0", "q5_1", "q5_0", "q4_1", "q4_0")
"""The best first."""
MAX_DRY_RUNS = 8
"""Of one search. Most need one to three."""
Overrides = Mapping[str, FlagValue | None]


def solve(
    planner: Planner, situation: Situation, flag: str, *, keep_free_bytes: int = DEFAULT_KEEP_FREE_BYTES,
    dry_runs: int = 0,
) -> Solution | None:  # fmt: skip
    """The best value of ``flag`` with which the profile fits and leaves ``keep_free_bytes`` free.

    Where none fits, the one that reads the least from the disk for each token; None if none starts.

    ``dry_runs``: how often the engine may be asked at most. With 0 only what was measured before is known.
    Raises UsageError if ``flag`` cannot be solved for, or has no effect on this model.
    """
    candidates = _candidates(situation, flag)

    def plan(values: Overrides, dry: bool) -> MemoryPlan:
        return planner.plan_in(situation, values, keep_free_bytes=keep_free_bytes, may_dry_run=dry)

    best = _search(candidates, plan, dry_runs)
    if best is None:
        return _least_read(candidates, plan)
    index, chosen = best
    flags = _without_none(candidates[index])
    return Solution(flags, judge(chosen).spare_bytes, _cost(situation, flag, flags))


def solutions(
    planner: Planner, situation: Situation, *, keep_free_bytes: int = DEFAULT_KEEP_FREE_BYTES, dry_runs: int = 0
) -> tuple[Solution, ...]:
    """What the owner can change so that a profile fits, the cheapest first; at most three. The first is measured."""
    experts = situation.model.shape.experts
    answers: list[Solution] = []
    for flag in ("n-cpu-moe" if experts else "n-gpu-layers", "cache-type-k", "ctx-size"):
        if len(situation.devices) < 2 and flag in ("n-cpu-moe", "n-gpu-layers"):
            continue  # there is no card to relieve
        runs = 0 if answers else dry_runs
        try:
            answer = solve(planner, situation, flag, keep_free_bytes=keep_free_bytes, dry_runs=runs)
        except UsageError:
            continue
        if answer and (answer.fits or not answers):
            answers.append(answer)
    return tuple(answers)


def _search(
    candidates: Sequence[Overrides], plan: Callable[[Overrides, bool], MemoryPlan], dry_runs: int
) -> tuple[int, MemoryPlan] | None:
    """The first candidate that fits; they are ordered by what the owner prefers, which takes the most memory."""
    plans = [plan(values, False) for values in candidates]
    if not dry_runs:
        return next(((i, each) for i, each in enumerate(plans) if judge(each).fit == "fits"), None)
    if any(each.doubts for each in plans):
        return _bisect(candidates, plan) if dry_runs >= MAX_DRY_RUNS else None
    return _confirm(candidates, plan, dry_runs)


def _least_read(candidates: Sequence[Overrides], plan: Callable[[Overrides, bool], MemoryPlan]) -> Solution | None:
    """Where nothing fits: the candidate that reads the least from the disk for each token."""
    judged = [(judge(plan(values, False)), values) for values in candidates]
    reading = [pair for pair in judged if pair[0].fit == "disk"]
    if not reading:
        return None
    verdict, values = min(reading, key=lambda pair: pair[0].read_bytes_per_token)
    return Solution(_without_none(values), verdict.spare_bytes, verdict.words, fits=False)


def _without_none(values: Overrides) -> dict[str, FlagValue]:
    return {name: value for name, value in values.items() if value is not None}


def _confirm(
    candidates: Sequence[Overrides], plan: Callable[[Overrides, bool], MemoryPlan], most: int
) -> tuple[int, MemoryPlan] | None:
    """Measures the first candidate that probably fits, and its neighbours until the border is between two of them."""
    measured: dict[int, MemoryPlan] = {}

    def fits(index: int) -> bool:
        if index not in measured:
            measured[index] = plan(candidates[index], True)
        return judge(measured[index]).fit == "fits"

    index = 0
    while len(measured) < most:
        last = len(candidates) - 1
        hopeful = most > 1 and not measured  # an estimate says too much: the first measurement shows by how much
        plans = ((i, plan(candidates[i], False)) for i in range(index, len(candidates)))
        likely = next((i for i, each in plans if _may_fit(each, hopeful=hopeful)), last)
        if likely == last and judge(plan(candidates[last], False)).fit in ("short", "disk"):
            return None  # without any compute buffers
        index = likely
        if fits(index):
            # Buffers do not shrink in even steps: the one but next may fit where the next does not.
            while (better := _first(index, lambda i: len(measured) < most and fits(i))) is not None:
                index = better
            return index, measured[index]
        index += 1
        if index >= len(candidates):
            return None
    rest = ((i, plan(candidates[i], False)) for i in range(index, len(candidates)))  # with what was measured now
    return next(((i, each) for i, each in rest if judge(each).fit == "fits"), None)


def _first(index: int, fits: Callable[[int], bool]) -> int | None:
    return next((i for i in (index - 1, index - 2) if i >= 0 and fits(i)), None)


def _bisect(
    candidates: Sequence[Overrides], plan: Callable[[Overrides, bool], MemoryPlan]
) -> tuple[int, MemoryPlan] | None:
    low, high = 0, len(candidates) - 1
    answer: tuple[int, MemoryPlan] | None = None
    while low <= high:
        middle = (low + high) // 2
        measured = plan(candidates[middle], True)
        if judge(measured).fit == "fits":
            answer, high = (middle, measured), middle - 1
        else:
            low = middle + 1
    return answer


def _may_fit(plan: MemoryPlan, *, hopeful: bool) -> bool:
    """Whether nothing says that it does not fit. ``hopeful``: estimated compute buffers count as nothing."""
    if not plan.devices or judge(plan).fit in ("short", "disk"):
        return False
    return all(
        device.spare_bytes is not None
        and device.spare_bytes + device.mapped_bytes + (device.compute_bytes if hopeful and plan.is_estimated else 0)
        >= (0 if device.kind == "host" else plan.keep_free_bytes)
        for device in plan.devices
    )


def _candidates(situation: Situation, flag: str) -> list[dict[str, FlagValue | None]]:
    """The values to try, the most wanted first."""
    shape = situation.model.shape
    layers = len(shape.layers)
    if flag == "n-cpu-moe":
        if not shape.experts:
            raise UsageError(f"{situation.profile.name}: n-cpu-moe has no effect, because the model has no experts.")
        return [{"n-cpu-moe": count or None, "cpu-moe": None} for count in range(layers + 1)]
    if flag == "n-gpu-layers":
        return [{"n-gpu-layers": count} for count in range(layers + 1, -1, -1)]
    if flag == "ctx-size":
        most = shape.trained_context // CONTEXT_STEP
        return [{"ctx-size": count * CONTEXT_STEP} for count in range(most, 0, -1)]
    if flag == "parallel":
        return [{"parallel": count} for count in range(MAX_SLOTS, 0, -1)]
    if flag == "cache-type-k":
        return [{"cache-type-k": kind, "cache-type-v": kind} for kind in _TYPES]
    raise UsageError(f"fit cannot solve for {flag!r}.", f"Choose one of {', '.join(SOLVABLE)}.")


def _cost(situation: Situation, flag: str, flags: Mapping[str, FlagValue]) -> str:
    """What the change costs, compared with the profile."""
    before = read_flags(situation, {})
    layers = len(situation.model.shape.layers)
    if flag == "n-cpu-moe":
        count = int(str(flags.get("n-cpu-moe", 0)))
        return f"the experts of {count} of {layers} layers stay in RAM: slower generation" if count else "no cost"
    if flag == "n-gpu-layers":
        count = layers + 1 - int(str(flags["n-gpu-layers"]))
        return f"the CPU computes {count} of {layers + 1} layers: slower" if count > 0 else "no cost"
    if flag == "ctx-size":
        was = before.context or situation.model.shape.trained_context
        context = int(str(flags["ctx-size"]))
        return "no cost" if context == was else f"{tokens(context)} instead of {tokens(was)} tokens of context"
    if flag == "parallel":
        return f"{flags['parallel']} instead of {before.slots} requests at once"
    was_type = before.type_k
    kind = flags["cache-type-k"]
    return "no cost" if kind == was_type else f"the KV cache is kept as {kind} instead of {was_type}: less precise"
