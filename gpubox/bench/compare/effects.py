"""How fast cells should be that were never started: each flag's own effect, added up. Pure."""

from __future__ import annotations

import statistics
from collections.abc import Mapping

_ROUNDS = 6


def predicted_rates(places: Mapping[str, tuple[int, ...]], means: Mapping[str, float]) -> dict[str, float]:
    """The log rate of every cell, from the mean log rates of some.

    One effect for each level of each axis, fitted in turn to what the others leave (backfitting); a level that was
    never measured has the mean of its neighbours.
    """
    axes = len(next(iter(places.values())))
    base = statistics.fmean(means.values())
    effects: list[dict[int, float]] = [{} for _ in range(axes)]

    def rest(cell: str, skipped: int) -> float:
        others = (effects[axis].get(places[cell][axis], 0.0) for axis in range(axes) if axis != skipped)
        return means[cell] - base - sum(others)

    for _ in range(_ROUNDS):
        for axis in range(axes):
            levels: dict[int, list[float]] = {}
            for cell in means:
                levels.setdefault(places[cell][axis], []).append(rest(cell, axis))
            effects[axis] = {level: statistics.fmean(values) for level, values in levels.items()}

    def effect(axis: int, level: int) -> float:
        known = effects[axis]
        if level in known:
            return known[level]
        below, above = [k for k in known if k < level], [k for k in known if k > level]
        near = [known[max(below)]] if below else []
        return statistics.fmean(near + ([known[min(above)]] if above else []))

    return {cell: base + sum(effect(axis, place[axis]) for axis in range(axes)) for cell, place in places.items()}
