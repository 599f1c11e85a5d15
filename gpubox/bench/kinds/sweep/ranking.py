"""Which cells are compared, which is best, and which are as good as far as one can tell. Pure."""

from __future__ import annotations

import math
import statistics
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass

from gpubox.bench.kinds.sweep.grid import (
    DRAFT_WINDOW_FLAGS,
    SweepOptions,
    compares_every_cell,
    current_cell,
    finalist_number,
    grid_questions,
)
from gpubox.bench.model import Item, Result, Target
from gpubox.bench.overrides import lossy_values
from gpubox.bench.questions import question_of
from gpubox.bench.start_comparison import ArmsComparison, Contrast, Noise, Start, compare_arms
from gpubox.bench.stats import Verdict
from gpubox.profiles.profile import FlagValue

WIDTH = 60
LEFT_OUT = "left out after one start"
Scored = Sequence[tuple[Item, Result]]


@dataclass(frozen=True, slots=True)
class SweepCell:
    """One cell of the grid and what it came to."""

    target: Target
    rows: tuple[tuple[Item, Result], ...]
    """Its measured answers, warm-ups left out: of a finalist those of its fresh starts alone."""
    rate: float
    """The mean over prompts of what the sweep is by; 0 where nothing was measured."""
    complete: bool
    """Every prompt was answered."""
    compared: bool
    """It has fresh starts of its own; else it was left out after the first."""
    starts: int = 0
    why: str = ""
    """Why it has no numbers, or not all."""
    load_seconds: float | None = None
    vram_bytes: float | None = None


@dataclass(frozen=True, slots=True)
class RankedCell:
    """A cell beside the best one."""

    cell: SweepCell
    versus: Contrast | None = None
    """The cell over the best; ``None`` for the best itself and for cells that were not compared."""
    verdict: Verdict | None = None
    best: bool = False
    first_round: float | None = None
    """Of a cell that was left out: its rate over the best one's, one start of each."""

    @property
    def level(self) -> bool:
        """As fast as the best as far as this sweep can tell."""
        return self.best or self.verdict in ("indistinguishable", "too few", "faster")

    @property
    def words(self) -> str:
        """The verdict for a table; of a long reason the beginning."""
        if self.best:
            return "best"
        if not self.cell.rows:
            return textwrap.shorten(self.cell.why or "not done yet", WIDTH, placeholder=" ...")
        if not self.cell.complete:
            return textwrap.shorten(f"incomplete: {self.cell.why or 'not done yet'}", WIDTH, placeholder=" ...")
        if not self.cell.compared:
            return LEFT_OUT
        if self.verdict is None:
            return ""
        if self.verdict == "too few":
            return "too few starts"
        return "within noise of the best" if self.level else self.verdict


@dataclass(frozen=True, slots=True)
class Ranking:
    """Every cell in the order of the grid, and how the compared ones stand to each other."""

    ranks: tuple[RankedCell, ...]
    several: ArmsComparison | None = None

    @property
    def best(self) -> SweepCell | None:
        return next((rank.cell for rank in self.ranks if rank.best), None)

    @property
    def best_rate(self) -> float:
        """Of the best cell, in tok/s, without what picking it among several adds."""
        best = self.best
        if best is None or self.several is None:
            return best.rate if best else 0.0
        found = self.several.ancova
        return best.rate * math.exp(found.shrunken_mean(best.target.name) - found.adjusted_mean(best.target.name))

    def beats(self, one: SweepCell, other: SweepCell) -> bool:
        """Whether ``one`` is surely faster than ``other``; both were compared."""
        return self.several is not None and self.several.verdict(other.target.name, one.target.name) == "faster"


def select_finalists(options: SweepOptions, targets: Sequence[Target], results: Scored) -> list[Target]:
    """The fastest cells of the first round, and the profile's own; at most as many as the plan has places."""
    names = {question.name for question in grid_questions(options)}
    found = []
    held: dict[str, list[tuple[Item, Result]]] = {}
    for item, result in results:
        if result.ok and not item.warmup:
            held.setdefault(item.target, []).append((item, result))
    for target in targets:
        rows = held.get(target.name, [])
        if {question_of(item).name for item, _ in rows} == names and (rate := _rate(options, rows)):
            found.append((rate, target))
    found.sort(key=lambda pair: -pair[0])
    cell_to_keep = [target for _, target in found[: options.finalists]]
    own = current_cell(options, targets)
    return [*cell_to_keep, *(target for _, target in found[options.finalists :] if target == own)]


def results_by_cell(
    options: SweepOptions, targets: Sequence[Target], results: Scored
) -> list[tuple[str, Item, Result]]:
    """Every result with the name of its cell; empty where a finalist's place was not needed."""
    fresh = any(finalist_number(item) is not None for item, _ in results)
    cell_to_keep = select_finalists(options, targets, results) if fresh else None
    made = []
    for item, result in results:
        place = finalist_number(item)
        name = item.target
        if place is not None:
            name = cell_to_keep[place - 1].name if cell_to_keep is not None and place <= len(cell_to_keep) else ""
        made.append((name, item, result))
    return made


def cells_of(options: SweepOptions, targets: Sequence[Target], results: Scored) -> list[SweepCell]:
    """Every cell in the order of the grid."""
    names = {question.name for question in grid_questions(options)}
    at_once = compares_every_cell(options, targets)
    held: dict[str, list[tuple[Item, Result]]] = {}
    for name, item, result in results_by_cell(options, targets, results):
        if not result.unneeded:
            held.setdefault(name, []).append((item, result))
    found = []
    for target in targets:
        mine = held.get(target.name, [])
        measured = [(item, result) for item, result in mine if result.ok and not item.warmup]
        fresh = [(item, result) for item, result in measured if at_once or finalist_number(item) is not None]
        rows = tuple(fresh or measured)
        warm = [result.values for item, result in mine if item.warmup and result.ok]
        found.append(
            SweepCell(
                target, rows, _rate(options, rows), {question_of(item).name for item, _ in rows} == names,
                bool(fresh), len({item.start for item, _ in rows}),
                next((result.error for _, result in mine if not result.ok), ""),
                load_seconds=next((values.get("load_seconds") for values in warm), None),
                vram_bytes=next((values.get("vram_bytes") for values in warm), None),
            )
        )  # fmt: skip
    return found


def fastest_cell(options: SweepOptions, targets: Sequence[Target], results: Scored) -> SweepCell | None:
    """The complete cell with the highest rate so far; of compared cells, where there are."""
    whole = [cell for cell in cells_of(options, targets, results) if cell.complete and cell.rate]
    whole = [cell for cell in whole if cell.compared] or whole
    return max(whole, key=lambda cell: cell.rate, default=None)


def rank_cells(
    options: SweepOptions, targets: Sequence[Target], results: Scored, noise: Noise | None = None
) -> Ranking:
    """Every cell against the best. Only starts of the last round are compared: none of them picked the cells."""
    cells = cells_of(options, targets, results)
    compared = [cell for cell in cells if cell.compared and cell.complete and cell.rate]
    starts = [start for cell in compared for start in cell_starts(options, cell)]
    domains = {question.name: question.domain for question in grid_questions(options)}
    several = compare_arms(starts, domains=domains, noise=noise) if starts else None
    if several is None:
        best = fastest_cell(options, targets, results)
        return Ranking(tuple(RankedCell(cell, best=best is not None and cell.target == best.target) for cell in cells))
    name = several.order[0]
    first = {target.name: _first_rate(options, target, results) for target in targets}
    made = []
    for cell in cells:
        if cell.target.name == name:
            made.append(RankedCell(cell, best=True))
        elif cell.target.name in several.ancova.means:
            own = cell.target.name
            made.append(RankedCell(cell, several.contrast(name, own), several.verdict(name, own)))
        else:
            ratio = first[cell.target.name] / first[name] if first[name] and first[cell.target.name] else None
            made.append(RankedCell(cell, first_round=ratio))
    return Ranking(tuple(made), several)


def cell_to_keep(options: SweepOptions, targets: Sequence[Target], ranking: Ranking) -> SweepCell | None:
    """What to keep: the profile's own cell where none is surely faster; never one that changes answers for its speed.

    Over draft windows the smallest window that is as fast as the best. ``None`` where every compared cell changes
    answers.
    """
    best = ranking.best
    if best is None:
        return None
    compared = [rank for rank in ranking.ranks if rank.best or rank.versus]
    usual = lossy_values(options.own)
    fair = [rank for rank in compared if lossy_values(_on_axes(options, rank.cell.target)) == usual]
    if not fair:
        return None
    now = current_cell(options, targets)
    own = next((rank.cell for rank in fair if rank.cell.target == now), None)
    top = max((rank.cell for rank in fair), key=lambda cell: _level(ranking, cell))
    if own and not ranking.beats(top, own):
        return own
    flag = next((flag for flag in options.axes if flag in DRAFT_WINDOW_FLAGS), None)
    if flag is None or len(options.axes) > 1:
        return top
    level = [rank.cell for rank in fair if rank.level]
    return min(level or [top], key=lambda cell: _number(cell.target.overrides[flag]))


def _level(ranking: Ranking, cell: SweepCell) -> float:
    several = ranking.several
    known = several is not None and cell.target.name in several.ancova.means
    return several.ancova.adjusted_mean(cell.target.name) if several is not None and known else cell.rate


def _on_axes(options: SweepOptions, target: Target) -> dict[str, FlagValue]:
    return {flag: target.overrides[flag] for flag in options.axes}


def _number(value: object) -> float:
    return float(value) if isinstance(value, int | float) else float("inf")


def cell_starts(options: SweepOptions, cell: SweepCell) -> list[Start]:
    """Its starts in order: the log of each prompt's rate."""
    found: dict[int, dict[str, float]] = {}
    for item, result in cell.rows:
        if value := result.values.get(options.by):
            found.setdefault(item.start, {})[question_of(item).name] = math.log(value)
    return [Start(cell.target.name, place, logs) for place, logs in sorted(found.items())]


def _first_rate(options: SweepOptions, target: Target, results: Scored) -> float:
    return _rate(options, [(i, r) for i, r in results if i.target == target.name and r.ok and not i.warmup])


def _rate(options: SweepOptions, rows: Scored) -> float:
    found: dict[str, list[float]] = {}
    for item, result in rows:
        if value := result.values.get(options.by):
            found.setdefault(question_of(item).name, []).append(float(value))
    return statistics.fmean(map(statistics.median, found.values())) if found else 0.0
