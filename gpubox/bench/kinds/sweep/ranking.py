"""Which cells are compared, which one is the best, and which are within noise of it. Pure."""

from __future__ import annotations

import math
import statistics
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from gpubox.bench.kinds.shared import answered_starts
from gpubox.bench.kinds.sweep.grid import SweepGrid, axis_value, finalist_number
from gpubox.bench.model import Item, Result, ScoredItems, Target
from gpubox.bench.overrides import PROFILE, lossy_values
from gpubox.bench.questions import question_of
from gpubox.bench.start_comparison import Contrast, Noise, SidesComparison, compare_sides
from gpubox.bench.stats import Verdict
from gpubox.engines.flag_changes import DRAFT_WINDOW_FLAGS

REASON_CHARACTERS = 60
CELL_FIELDS: Mapping[str, Any] = {
    "load_seconds": None, "vram_bytes": None, "context_tokens": None, "model_bytes": None, "quant": "",
    "parameters": None, "active_parameters": None,
}  # fmt: skip
"""Fields of SweepCell that are stored with the warm-up of each start, and what they are if unknown."""
LEFT_OUT = "left out after one start"


@dataclass(frozen=True, slots=True)
class SweepCell:
    """One cell of the grid and its results."""

    target: Target
    rows: tuple[tuple[Item, Result], ...]
    """Its measured answers without warm-ups; for a finalist only those of its fresh starts."""
    rate: float
    """Mean over prompts of the rate the sweep ranks by; 0 if nothing was measured."""
    complete: bool
    """Every prompt was answered."""
    compared: bool
    """It had fresh starts; otherwise it was left out after the first round."""
    starts: int = 0
    why: str = ""
    """Why numbers are missing."""
    load_seconds: float | None = None
    vram_bytes: float | None = None
    context_tokens: int | None = None
    """Of one slot."""
    model_bytes: int | None = None
    quant: str = ""
    parameters: int | None = None
    active_parameters: int | None = None
    """An estimate of how many of them a token uses; only for a mixture of experts."""

    @property
    def name(self) -> str:
        return self.target.name


@dataclass(frozen=True, slots=True)
class RankedCell:
    """A cell beside the best one."""

    cell: SweepCell
    versus: Contrast | None = None
    """The cell over the best; ``None`` for the best itself and for cells that were not compared."""
    verdict: Verdict | None = None
    best: bool = False
    first_round: float | None = None
    """For a cell that was left out: its rate over the best cell's, from one start of each."""

    @property
    def within_noise(self) -> bool:
        """Whether the sweep cannot show that the best is faster."""
        return self.best or self.verdict in ("indistinguishable", "too few", "faster")

    @property
    def label(self) -> str:
        """The verdict for a table; a long reason is shortened."""
        if self.best:
            return "best"
        if not self.cell.complete:
            reason = ("incomplete: " if self.cell.rows else "") + (self.cell.why or "not done yet")
            return textwrap.shorten(reason, REASON_CHARACTERS, placeholder=" ...")
        if not self.cell.compared:
            return LEFT_OUT
        if self.verdict in (None, "too few"):
            return "too few starts" if self.verdict else ""
        return "within noise of the best" if self.within_noise else str(self.verdict)


@dataclass(frozen=True, slots=True)
class Ranking:
    """Every cell in the order of the grid, and the comparison of those that had fresh starts."""

    cells: tuple[RankedCell, ...]
    comparison: SidesComparison | None = None

    @property
    def best(self) -> SweepCell | None:
        return next((ranked.cell for ranked in self.cells if ranked.best), None)

    @property
    def best_rate(self) -> float:
        """The best cell's tok/s, corrected for the optimism of picking the best of several."""
        best = self.best
        if best is None or self.comparison is None:
            return best.rate if best else 0.0
        ancova = self.comparison.ancova
        return best.rate * math.exp(ancova.shrunken_mean(best.name) - ancova.adjusted_mean(best.name))


def select_finalists(grid: SweepGrid, results: ScoredItems) -> list[Target]:
    """The fastest complete cells of the first round, and the profile's own."""
    rows = _rows_by_target(results)
    rates = {
        target.name: _rate(grid, rows[target.name])
        for target in grid.targets
        if target.name in rows and _answers_all(grid, rows[target.name])
    }
    measured = [target for target in grid.targets if rates.get(target.name)]
    measured.sort(key=lambda target: -rates[target.name])
    count = grid.options.finalists
    return [*measured[:count], *(target for target in measured[count:] if target == grid.current)]


def cells_of(grid: SweepGrid, results: ScoredItems) -> list[SweepCell]:
    """Every cell in the order of the grid."""
    by_cell: dict[str, list[tuple[Item, Result]]] = {}
    finalists: list[Target] | None = None
    for item, result in results:
        name, number = item.target, finalist_number(item)
        if number is not None:
            finalists = select_finalists(grid, results) if finalists is None else finalists
            name = finalists[number - 1].name if number <= len(finalists) else ""
        if not result.unneeded:
            by_cell.setdefault(name, []).append((item, result))
    cells = []
    for target in grid.targets:
        own = by_cell.get(target.name, [])
        measured = [(item, result) for item, result in own if result.ok and not item.warmup]
        fresh = [(item, result) for item, result in measured if grid.single_round or finalist_number(item) is not None]
        rows = fresh or measured
        warmups = [result.values for item, result in own if item.warmup and result.ok]
        cells.append(
            SweepCell(
                target,
                tuple(rows),
                _rate(grid, rows),
                complete=_answers_all(grid, rows),
                compared=bool(fresh),
                starts=len({item.start for item, _ in rows}),
                why=next((result.error for _, result in own if not result.ok), ""),
                **{
                    name: next((v[name] for v in warmups if v.get(name)), default)
                    for name, default in CELL_FIELDS.items()
                },
            )
        )
    return cells


def fastest_cell(grid: SweepGrid, results: ScoredItems) -> SweepCell | None:
    """The complete cell with the highest rate so far; of the compared cells if there are any."""
    return _fastest(cells_of(grid, results))


def _fastest(cells: Sequence[SweepCell]) -> SweepCell | None:
    complete = [cell for cell in cells if cell.complete and cell.rate]
    complete = [cell for cell in complete if cell.compared] or complete
    return max(complete, key=lambda cell: cell.rate, default=None)


def rank_cells(grid: SweepGrid, results: ScoredItems, noise: Noise | None = None) -> Ranking:
    """Every cell against the best. Only fresh starts are compared, because the first ones selected the finalists."""
    cells = cells_of(grid, results)
    starts = [
        start
        for cell in cells
        if cell.compared and cell.complete and cell.rate
        for start in answered_starts(cell.name, cell.rows, grid.options.by)
    ]
    domains = {question.name: question.domain for question in grid.questions}
    comparison = compare_sides(starts, domains=domains, noise=noise) if starts else None
    if comparison is None:
        fastest = _fastest(cells)
        return Ranking(tuple(RankedCell(cell, best=cell is fastest) for cell in cells))
    best = comparison.order[0]
    first_rates = {name: _rate(grid, rows) for name, rows in _rows_by_target(results).items()}
    ranked = []
    for cell in cells:
        if cell.name == best:
            ranked.append(RankedCell(cell, best=True))
        elif cell.name in comparison.ancova.means:
            contrast, verdict = comparison.contrast(best, cell.name), comparison.verdict(best, cell.name)
            ranked.append(RankedCell(cell, contrast, verdict))
        else:
            rate, best_rate = first_rates.get(cell.name), first_rates.get(best)
            ranked.append(RankedCell(cell, first_round=rate / best_rate if rate and best_rate else None))
    return Ranking(tuple(ranked), comparison)


def cell_to_keep(grid: SweepGrid, ranking: Ranking) -> SweepCell | None:
    """The cell to save as a profile: the profile's own unless one is significantly faster.

    Cells that change the answers (see ``lossy_flags``) are never chosen for speed; ``None`` if all compared cells do.
    Over draft windows it is the smallest window within noise of the best.
    """
    if ranking.best is None or PROFILE in grid.options.axes:
        return None  # what else profiles differ in is the owner's business
    own_lossy = lossy_values(grid.options.profile_values)
    axes = grid.options.axes
    eligible = [
        ranked
        for ranked in ranking.cells
        if (ranked.best or ranked.versus)
        and lossy_values({flag: axis_value(ranked.cell.target, flag) for flag in axes}) == own_lossy
    ]
    if not eligible:
        return None
    comparison, cells = ranking.comparison, {ranked.cell.name: ranked.cell for ranked in eligible}
    # Without a comparison only the best is eligible.
    fastest = next(cells[name] for name in (comparison.order if comparison else cells) if name in cells)
    current = next((cell for cell in cells.values() if cell.target == grid.current), None)
    if current and not (comparison and comparison.verdict(current.name, fastest.name) == "faster"):
        return current
    if len(axes) > 1 or axes[0] not in DRAFT_WINDOW_FLAGS:
        return fastest

    def window(cell: SweepCell) -> float:
        value = axis_value(cell.target, axes[0])
        return float(value) if isinstance(value, int | float) else math.inf

    return min([ranked.cell for ranked in eligible if ranked.within_noise] or [fastest], key=window)


def _rows_by_target(results: ScoredItems) -> dict[str, list[tuple[Item, Result]]]:
    rows: dict[str, list[tuple[Item, Result]]] = {}
    for item, result in results:
        if result.ok and not item.warmup:
            rows.setdefault(item.target, []).append((item, result))
    return rows


def _answers_all(grid: SweepGrid, rows: ScoredItems) -> bool:
    return {question_of(item).name for item, _ in rows} == {question.name for question in grid.questions}


def _rate(grid: SweepGrid, rows: ScoredItems) -> float:
    by_prompt: dict[str, list[float]] = {}
    for item, result in rows:
        if value := result.values.get(grid.options.by):
            by_prompt.setdefault(question_of(item).name, []).append(float(value))
    return statistics.fmean(map(statistics.median, by_prompt.values())) if by_prompt else 0.0
