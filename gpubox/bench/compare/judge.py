"""What the starts of several cells allow to say: faster, slower, equal within a margin, or cannot tell. Pure.

Each cell is compared with the owner's present flags alone (``starts``): a noisy cell disturbs no other row.
The rows of a table share its level (Holm), and so do the looks at a run that may end early.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from gpubox.bench.compare.starts import LEVEL, Contrast, Start, compare_starts
from gpubox.bench.stats import holm

Answer = Literal["faster", "slower", "equal", "cannot tell"]
EQUAL_LIMITS = (0.01, 0.02, 0.03, 0.05)
"""Two are "equal within" the first of these that holds the whole interval."""


@dataclass(frozen=True, slots=True)
class Judged:
    """One cell over the present flags."""

    answer: Answer = "cannot tell"
    contrast: Contrast | None = None
    """``None``: they have nothing in common."""
    within: float | None = None
    """The difference that it certainly does not reach, if that is small: 0.02 is 2 %."""
    p: float = 1.0
    """Corrected for the other rows."""

    @property
    def interval(self) -> tuple[float, float] | None:
        """The 95 % interval of the ratio, for this row alone; ``None``: too few starts for one."""
        contrast = self.contrast
        return contrast.interval if contrast and contrast.enough and math.isfinite(contrast.error) else None


def judge(contrasts: Sequence[Contrast | None], level: float) -> list[Judged]:
    """The rows of one table. ``level``: the share of the significance level that this look at them has."""
    known = [contrast if contrast and contrast.enough else None for contrast in contrasts]
    p_values = holm([contrast.p_value() if contrast else 1.0 for contrast in known])
    rows = []
    for contrast, given, p in zip(known, contrasts, p_values, strict=True):
        if contrast is None:
            rows.append(Judged(contrast=given))
            continue
        within = limit_of(*contrast.interval_at(LEVEL / len(known)))
        if p <= level:
            answer: Answer = "faster" if contrast.log_ratio > 0 else "slower"
        else:
            answer = "equal" if within is not None else "cannot tell"
        rows.append(Judged(answer, contrast, within, p))
    return rows


def limit_of(low: float, high: float) -> float | None:
    """The first of EQUAL_LIMITS that holds the whole interval of a ratio; ``None`` if none does."""
    return next((limit for limit in EQUAL_LIMITS if 1 - limit <= low and high <= 1 + limit), None)


def judge_cells(
    starts: Sequence[Start],
    own: str,
    cells: Sequence[str],
    level: float,
    domains: Mapping[str, str],
    *,
    restarted: bool = True,
) -> dict[str, Judged]:
    """Each of ``cells`` over ``own``."""
    contrasts = [compare_starts(starts, own, cell, domains=domains, restarted=restarted) for cell in cells]
    return dict(zip(cells, judge(contrasts, level), strict=True))


def can_win_by(
    starts: Sequence[Start], over: str, cell: str, margin: float, rows: int, domains: Mapping[str, str]
) -> bool:
    """Whether ``cell`` can be faster than ``over`` by more than ``margin``."""
    contrast = compare_starts(starts, over, cell, domains=domains)
    if contrast is None or not contrast.enough:
        return True
    return contrast.interval_at(LEVEL / rows)[1] > 1 + margin
