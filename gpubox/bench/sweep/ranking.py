"""Which cell is best, and which are as good as far as one can tell. Pure."""

from __future__ import annotations

import statistics
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass

from gpubox.bench import stats
from gpubox.bench.asking import question_of
from gpubox.bench.model import Item, Result, Target
from gpubox.bench.stats import Comparison, Pair
from gpubox.bench.sweep.plan import WINDOWS, Options, asked

WIDTH = 60
Scored = Sequence[tuple[Item, Result]]


@dataclass(frozen=True, slots=True)
class Cell:
    """One cell of the grid and what it came to."""

    target: Target
    rows: tuple[tuple[Item, Result], ...]
    """Its measured answers, warm-ups left out."""
    rate: float
    """The mean over prompts of what the sweep is by; 0 where nothing was measured."""
    complete: bool
    """Every prompt was answered."""
    why: str = ""
    """Why it has no numbers, or not all."""
    load_seconds: float | None = None
    vram_bytes: float | None = None


@dataclass(frozen=True, slots=True)
class Ranked:
    """A cell beside the best one."""

    cell: Cell
    versus: Comparison | None
    """The cell over the best, prompt by prompt; ``None`` for the best itself and for cells without numbers."""
    best: bool = False

    @property
    def level(self) -> bool:
        """As fast as the best as far as this sweep can tell."""
        return self.best or (self.versus is not None and self.versus.verdict in ("indistinguishable", "faster"))

    @property
    def words(self) -> str:
        """The verdict for a table; of a long reason the beginning."""
        if self.best:
            return "best"
        if not self.cell.rows:
            return textwrap.shorten(self.cell.why or "not done yet", WIDTH, placeholder=" ...")
        if not self.cell.complete:
            return textwrap.shorten(f"incomplete: {self.cell.why or 'not done yet'}", WIDTH, placeholder=" ...")
        if self.versus is None:
            return ""
        return "within noise of the best" if self.level else self.versus.verdict


def cells_of(options: Options, targets: Sequence[Target], results: Scored) -> list[Cell]:
    """Every cell in the order of the grid."""
    names = {question.name for question in asked(options)}
    found = []
    for target in targets:
        mine = [(item, result) for item, result in results if item.target == target.name]
        rows = tuple((item, result) for item, result in mine if result.ok and not item.warmup)
        complete = {question_of(item).name for item, _ in rows} == names
        why = next((result.error for _, result in mine if not result.ok), "")
        warm = [result.values for item, result in mine if item.warmup and result.ok]
        found.append(
            Cell(
                target, rows, _rate(options, rows), complete, why,
                load_seconds=next((values.get("load_seconds") for values in warm), None),
                vram_bytes=next((values.get("vram_bytes") for values in warm), None),
            )
        )  # fmt: skip
    return found


def best_cell(options: Options, targets: Sequence[Target], results: Scored) -> Cell | None:
    """The complete cell with the highest rate; ``None`` before there is one."""
    whole = [cell for cell in cells_of(options, targets, results) if cell.complete and cell.rate]
    return max(whole, key=lambda cell: cell.rate, default=None)


def ranked(options: Options, targets: Sequence[Target], results: Scored, seed: int = 0) -> list[Ranked]:
    """Every cell against the best by the paired ratio of each prompt."""
    best = best_cell(options, targets, results)
    made = []
    for cell in cells_of(options, targets, results):
        if best and cell.target == best.target:
            made.append(Ranked(cell, None, best=True))
        elif best and cell.complete and (pairs := _pairs(options, best, cell)):
            made.append(Ranked(cell, stats.compare(pairs, seed=seed)))
        else:
            made.append(Ranked(cell, None))
    return made


def chosen(options: Options, ranks: Sequence[Ranked]) -> Cell | None:
    """What to keep: the best cell; over draft windows the smallest window that is as fast."""
    best = next((rank.cell for rank in ranks if rank.best), None)
    flag = next((flag for flag in options.axes if flag in WINDOWS), None)
    if best is None or flag is None or len(options.axes) > 1:
        return best
    level = [rank.cell for rank in ranks if rank.level]
    return min(level, key=lambda cell: _number(cell.target.overrides[flag]))


def _number(value: object) -> float:
    return float(value) if isinstance(value, int | float) else float("inf")


def _values(options: Options, rows: Scored) -> dict[str, list[float]]:
    found: dict[str, list[float]] = {}
    for item, result in rows:
        if value := result.values.get(options.by):
            found.setdefault(question_of(item).name, []).append(float(value))
    return found


def _rate(options: Options, rows: Scored) -> float:
    values = list(_values(options, rows).values())
    return statistics.fmean(map(statistics.median, values)) if values else 0.0


def _pairs(options: Options, best: Cell, cell: Cell) -> list[Pair]:
    first, second = _values(options, best.rows), _values(options, cell.rows)
    return [
        Pair(one.domain, tuple(first[one.name]), tuple(second[one.name]))
        for one in asked(options)
        if one.name in first and one.name in second
    ]
