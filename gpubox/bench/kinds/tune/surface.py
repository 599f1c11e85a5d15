"""How fast cells are that were never started: a model of the log rate over all axes of a tune. Pure.

The log rate of a cell is a sum of one effect per axis, of interactions of two axes, of a drift with time and of the
noise between starts. It is a Gaussian process (Rasmussen and Williams 2006, algorithm 2.1) with an additive kernel
(Duvenaud, Nickisch and Rasmussen 2011): neighbouring levels of an axis are alike, and an axis without effect has no
interactions either. The size of each effect is the one that makes the measured rates most probable.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import product
from operator import mul

from gpubox.bench.start_comparison import PRIOR_SD

Coordinates = tuple[int, ...]
"""The level of a cell on each axis."""
_MEAN_VARIANCE = 1.0
"""Of the log rate of all cells together: nothing is known of it before the first start."""
_DRIFT_SD = 0.05
"""A drift of the whole box over all starts: 5 %."""
_SCALES = (0.004, 0.015, 0.06, 0.2, 0.6)
"""Effects of an axis (sd of the log) that are considered."""
_TYPICAL_SCALE, _SCALE_SPREAD = 0.12, 1.3
"""The effect that is expected before anything is measured, and the sd of its log."""
_INTERACTIONS = (0.1, 0.3, 0.7)
_TYPICAL_INTERACTION = 0.3
_NOISES = (0.008, 0.025, 0.07, 0.2)
"""The sd of the log between starts of one cell."""
_NOISE_SPREAD = 0.8
_REACH = 1.5
"""Levels at opposite ends of an axis are alike by exp(-1 / 1.5)."""
_ROUNDS = 2


@dataclass(frozen=True, slots=True)
class SurfacePoint:
    """One measured start."""

    cell: Coordinates
    time: float
    """The number of the start."""
    log_rate: float


@dataclass(frozen=True, slots=True)
class Effects:
    """How much each axis matters."""

    scales: tuple[float, ...]
    """Sd of the log rate over the levels of each axis."""
    interaction: float = _TYPICAL_INTERACTION
    """Interactions of two axes, relative to their own effects."""
    noise: float = PRIOR_SD
    """Sd of the log between starts of one cell."""


@dataclass(frozen=True, slots=True)
class Estimated:
    """The log rate of a cell over that of another, or over the mean."""

    mean: float
    sd: float


def typical_effects(axes: int) -> Effects:
    """What is expected before anything is measured."""
    return Effects((_TYPICAL_SCALE,) * axes)


class Surface:
    """The model after some starts. ``levels`` and ``ordered``: of each axis, its number of levels and whether they
    have an order."""

    def __init__(
        self, levels: Sequence[int], ordered: Sequence[bool], points: Sequence[SurfacePoint], effects: Effects
    ) -> None:
        self.points, self.effects = tuple(points), effects
        self._noise = effects.noise**2
        self._likeness = [_likeness(count, order) for count, order in zip(levels, ordered, strict=True)]
        self._mean = statistics.fmean(point.log_rate for point in points) if points else 0.0
        self._span = max((point.time for point in points), default=1.0) or 1.0
        self._rows = _cholesky([
            [self._covariance(point, other) + (self._noise if point is other else 0.0) for other in points[: i + 1]]
            for i, point in enumerate(points)
        ])  # fmt: skip
        self._whitened = _solve_lower(self._rows, [point.log_rate - self._mean for point in points])

    @cached_property
    def log_likelihood(self) -> float:
        """Of the measured rates, up to a constant."""
        squares: float = sum(map(mul, self._whitened, self._whitened))
        return -squares / 2 - sum(math.log(row[-1]) for row in self._rows)

    def kernel(self, cell: Coordinates, other: Coordinates) -> float:
        """The prior covariance of two cells."""
        total, squares, main = 0.0, 0.0, 0.0
        for scale, likeness, a, b in zip(self.effects.scales, self._likeness, cell, other, strict=True):
            effect = scale * likeness[a][b]
            main += scale * effect
            total += effect
            squares += effect * effect
        pairs = (total * total - squares) / 2
        return float(_MEAN_VARIANCE + main + self.effects.interaction**2 * pairs)

    def _covariance(self, point: SurfacePoint, other: SurfacePoint) -> float:
        drift = _DRIFT_SD**2 * (point.time / self._span) * (other.time / self._span)
        return self.kernel(point.cell, other.cell) + drift

    def weights(self, cell: Coordinates) -> list[float]:
        """The whitened covariances of ``cell`` with every point."""
        return _solve_lower(self._rows, [self.kernel(cell, point.cell) for point in self.points])

    def estimate(self, cell: Coordinates) -> Estimated:
        """The log rate of ``cell``, without drift."""
        own = self.weights(cell)
        variance = self.kernel(cell, cell) - sum(map(mul, own, own))
        return Estimated(self._mean + sum(map(mul, own, self._whitened)), math.sqrt(max(0.0, variance)))

    def differences(self, cells: Sequence[Coordinates], reference: Coordinates) -> list[Estimated]:
        """The log rate of each cell over that of ``reference``."""
        base = self.weights(reference)
        base_mean = sum(map(mul, base, self._whitened))
        base_variance = self.kernel(reference, reference) - sum(map(mul, base, base))
        answers = []
        for cell in cells:
            own = self.weights(cell)
            variance = self.kernel(cell, cell) - sum(map(mul, own, own))
            shared = self.kernel(cell, reference) - sum(map(mul, own, base))
            gap = max(0.0, variance + base_variance - 2 * shared)
            answers.append(Estimated(sum(map(mul, own, self._whitened)) - base_mean, math.sqrt(gap)))
        return answers


def fit_surface(levels: Sequence[int], ordered: Sequence[bool], points: Sequence[SurfacePoint]) -> Surface:
    """The surface with the most probable effects, one after the other."""
    best = Surface(levels, ordered, points, typical_effects(len(levels)))
    score = _posterior(best)
    for _, axis in product(range(_ROUNDS), range(len(levels) + 2)):
        for effects in _variants(best.effects, axis):
            other = Surface(levels, ordered, points, effects)
            if (new := _posterior(other)) > score:
                best, score = other, new
    return best


def _variants(effects: Effects, axis: int) -> list[Effects]:
    """Other sizes of one effect; after the axes come the interactions, then the noise."""
    count = len(effects.scales)
    if axis == count:
        return [replace(effects, interaction=value) for value in _INTERACTIONS if value != effects.interaction]
    if axis > count:
        return [replace(effects, noise=value) for value in _NOISES if value != effects.noise]
    scales = effects.scales
    return [
        replace(effects, scales=(*scales[:axis], value, *scales[axis + 1 :]))
        for value in _SCALES
        if value != scales[axis]
    ]


def _posterior(surface: Surface) -> float:
    """The log likelihood, less what makes unusual effects improbable."""
    effects = surface.effects
    odd = sum((math.log(scale / _TYPICAL_SCALE) / _SCALE_SPREAD) ** 2 for scale in effects.scales)
    odd += math.log(effects.interaction / _TYPICAL_INTERACTION) ** 2
    odd += (math.log(effects.noise / PRIOR_SD) / _NOISE_SPREAD) ** 2
    return surface.log_likelihood - odd / 2


def _likeness(count: int, ordered: bool) -> list[list[float]]:
    """The correlation of the levels of one axis."""
    if not ordered:
        return [[1.0 if a == b else 0.3 for b in range(count)] for a in range(count)]
    reach = _REACH * max(1, count - 1)
    return [[math.exp(-abs(a - b) / reach) for b in range(count)] for a in range(count)]


def _cholesky(rows: Sequence[Sequence[float]]) -> list[list[float]]:
    """The lower triangle of the root of a positive definite matrix, given as its lower triangle."""
    root: list[list[float]] = []
    for i, row in enumerate(rows):
        own: list[float] = []
        for j in range(i):
            own.append((row[j] - sum(map(mul, own, root[j]))) / root[j][j])
        own.append(math.sqrt(max(1e-12, row[i] - sum(map(mul, own, own)))))
        root.append(own)
    return root


def _solve_lower(root: Sequence[Sequence[float]], values: Sequence[float]) -> list[float]:
    answer: list[float] = []
    for row, value in zip(root, values, strict=True):
        answer.append((value - sum(map(mul, row, answer))) / row[-1])
    return answer
