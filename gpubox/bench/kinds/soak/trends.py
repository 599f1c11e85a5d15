"""What the minutes of a soak say: rates at equal depth, creep, and sinking. Pure."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

MIN_WINDOWS = 8
"""Of fewer, the last two thirds are fewer than six: no order of those is sure to 99 %."""
Z99 = 2.576
"""Normal quantile of 99 %, two-sided."""
LEAST_CREEP_BYTES, LEAST_CREEP = 16 << 20, 0.005


@dataclass(frozen=True, slots=True)
class TimedAnswer:
    """One answer of the load."""

    at: float
    """Seconds of load since the beginning."""
    tg: float
    context_tokens: int
    """Prompt and half the answer: how deep it was generated."""
    acceptance: float | None = None


def depth_adjusted_rates(answers: Sequence[TimedAnswer]) -> list[float]:
    """The rates as they would be at the mean depth: attention's time for a token is linear in the depth.

    Conversations grow and begin anew, so the raw rates rise and fall by themselves.
    """
    times = [1 / answer.tg for answer in answers]
    depths = [answer.context_tokens for answer in answers]
    mean = statistics.fmean(depths) if depths else 0.0
    below = sum((depth - mean) ** 2 for depth in depths)
    middle = statistics.fmean(times) if times else 0.0
    pairs = list(zip(depths, times, strict=True))
    slope = sum((depth - mean) * (time - middle) for depth, time in pairs) / below if below else 0.0
    slope = max(0.0, slope)  # nothing gets faster by depth
    return [1 / max(time - slope * (depth - mean), time / 10) for depth, time in pairs]


@dataclass(frozen=True, slots=True)
class MemoryGrowth:
    """How a quantity of memory moves."""

    first: float
    last: float
    """Medians of the second and of the last third: the first one is the server settling."""
    per_hour: float
    rises: bool
    """Surely, and by more than a server's own ups and downs."""


def memory_growth(values: Sequence[float], seconds: Sequence[float]) -> MemoryGrowth | None:
    """Theil and Sen's slope over the last two thirds, its sign by Kendall's test.

    ``None`` from fewer than FEWEST_WINDOWS.
    """
    n = len(values)
    if n < MIN_WINDOWS:
        return None
    late, when = values[n // 3 :], seconds[n // 3 :]
    half = len(late) // 2
    first, last = statistics.median(late[:half]), statistics.median(late[half:])
    slopes = [
        (late[j] - late[i]) / (when[j] - when[i])
        for i in range(len(late)) for j in range(i + 1, len(late)) if when[j] > when[i]
    ]  # fmt: skip
    slope = statistics.median(slopes) if slopes else 0.0
    least = max(LEAST_CREEP_BYTES, LEAST_CREEP * first)
    return MemoryGrowth(first, last, slope * 3600, last - first > least and kendall_z(late) > Z99)


def kendall_z(values: Sequence[float]) -> float:
    """Kendall's S as a normal score: above 2.576 the values rise with 99 % confidence. 0 from fewer than four."""
    n = len(values)
    if n < 4:
        return 0.0
    score = sum((values[j] > values[i]) - (values[j] < values[i]) for i in range(n) for j in range(i + 1, n))
    if not score:
        return 0.0
    ties: dict[float, int] = {}
    for value in values:
        ties[value] = ties.get(value, 0) + 1
    spread = (n * (n - 1) * (2 * n + 5) - sum(t * (t - 1) * (2 * t + 5) for t in ties.values())) / 18
    return (score - math.copysign(1, score)) / math.sqrt(spread) if spread > 0 else 0.0
