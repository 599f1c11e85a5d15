"""The course of a comparison of cells: which is started next, and when it ends. Pure.

A cell is a profile with some flags changed; the first one is the owner's present flags. Up to ONCE cells are all
started once, of a larger space those that change one flag, then the best together, by each flag's own effect. The
better half is started again until a few are left. These are compared with the present flags on fresh starts in random
blocks, because the best of many measured rates is too good by selection: a block has two starts of each, and after two
blocks and each further one there is an interim analysis (``judged``).
"""

from __future__ import annotations

import math
import random
import statistics
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from gpubox.bench.benchmark import Batch, Course
from gpubox.bench.compare.starts import LEVEL, MIN_STARTS, Judged, Start, can_win_by, interim_analyses, judge_cells
from gpubox.bench.model import Item, ScoredItems
from gpubox.bench.stats import MARGIN

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


ONCE = 24
"""So many cells are all started once."""
FINALISTS = 3
"""Besides the present flags."""
_PREDICTED = 30
"""At most so many cells of a larger space are started because their flags alone, or their neighbours, were fast."""
_BLOCK = 2
TIME_OVER = "the time is over"
Stage = Literal["search", "final"]


@dataclass(frozen=True, slots=True)
class StartOutcome:
    """One server start and what came of it."""

    number: int
    cell: str
    stage: Stage
    log_rates: Mapping[str, float] = field(default_factory=dict)
    """By prompt; empty: it failed."""
    seconds: float = 0.0
    """That it took, with loading."""
    failure: str = ""
    """Why it has no rate."""
    lacks: str = ""
    """``VRAM`` or ``RAM``, if it ran out of it."""

    @property
    def log_rate(self) -> float:
        """The mean over prompts."""
        return statistics.fmean(self.log_rates.values())


@dataclass(frozen=True, slots=True)
class Rules:
    """What is compared, and how long."""

    cells: tuple[str, ...]
    """The owner's present flags first."""
    starts: int
    """The most of each cell that is compared at the end."""
    finalists: int = FINALISTS
    seconds: float = math.inf
    enough: float = MARGIN
    """It ends when no cell can win by more than this."""
    lossy: frozenset[str] = frozenset()
    """Cells that answer otherwise than the present flags: they are never kept for their speed."""
    places: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    """The level of each cell on each axis, for more than ONCE cells."""
    domains: Mapping[str, str] = field(default_factory=dict)
    """Of each prompt."""
    needs_no_less: Callable[[str, str, str], bool] = lambda cell, failed, memory: False
    """Whether a cell needs at least as much VRAM or RAM as one that ran out of it."""
    restarted: bool = True
    """False: gpubox cannot restart the servers."""
    seed: int = 0

    @property
    def own(self) -> str:
        return self.cells[0]


MakeStart = Callable[[int, str, Stage], Generator[Sequence[Item], ScoredItems, None]]
"""The items of one start, from its number, its cell and its stage; it may see the first ones' results before the rest.
"""
ReadStart = Callable[[int, str, Stage, ScoredItems], StartOutcome]


class Contest:
    """One comparison; ``course`` moves it on, start by start."""

    def __init__(self, rules: Rules, make: MakeStart, read: ReadStart) -> None:
        self.rules, self._make, self._read = rules, make, read
        self.outcomes: list[StartOutcome] = []
        """Of all complete starts."""
        self.current = rules.own
        """The cell that is started now."""
        self.finalists: tuple[str, ...] = ()
        """What is compared at the end, the present flags first; empty: it has not come so far."""
        self.alive: list[str] = []
        """The finalists that can still win, and the present flags."""
        self.reason: str | None = None
        """Why it ended."""
        self._planned = rules.starts
        self._items_per_start = 0
        self._exhausted = False
        """Ended by time or by the number of starts, not by what is known."""

    # -- what is known --------------------------------------------------------------------------------

    def starts_of(self, cell: str, stage: Stage | None = None) -> list[StartOutcome]:
        """The measured starts of ``cell``."""
        return [o for o in self.outcomes if o.cell == cell and not o.failure and stage in (None, o.stage)]

    def failure_of(self, cell: str) -> str:
        """Why ``cell`` could not be measured; empty: it could, or was not tried."""
        failed = [outcome.failure for outcome in self.outcomes if outcome.cell == cell and outcome.failure]
        return failed[0] if failed and (len(failed) > 1 or not self.starts_of(cell)) else ""

    def hopeless(self, cell: str) -> str:
        """Why ``cell`` cannot run, as far as is known."""
        if failure := self.failure_of(cell):
            return failure
        for other in self.outcomes:
            if other.lacks and other.cell != cell and self.rules.needs_no_less(cell, other.cell, other.lacks):
                return f"needs at least as much {other.lacks} as {other.cell}, which ran out of it"
        return ""

    def mean(self, cell: str) -> float | None:
        """The mean log rate of ``cell``; of its fresh starts if it is compared."""
        starts = self.starts_of(cell, "final") or self.starts_of(cell)
        return statistics.fmean(start.log_rate for start in starts) if starts else None

    @property
    def compared(self) -> int:
        """The cells that were measured."""
        return sum(bool(self.starts_of(cell)) for cell in self.rules.cells)

    @property
    def per_start(self) -> float | None:
        """Seconds of one more start; ``None`` before the first."""
        seconds = [outcome.seconds for outcome in self.outcomes if not outcome.failure]
        return statistics.fmean(seconds) if seconds else None

    @property
    def seconds_left(self) -> float:
        """Of the time that it may take."""
        return self.rules.seconds - sum(outcome.seconds for outcome in self.outcomes)

    @property
    def level(self) -> float:
        """The share of the significance level that the look now has."""
        most = min((len(self.starts_of(cell, "final")) for cell in self.alive), default=0)
        levels = [analysis.level for analysis in interim_analyses(self._planned) if analysis.starts <= most]
        if self._exhausted:  # no further look follows: the rest of the level is for this one
            return LEVEL - sum(levels[:-1])
        return levels[-1] if levels else 0.0

    def judged(self) -> dict[str, Judged]:
        """What the fresh starts say of each finalist over the present flags."""
        starts = [Start(o.cell, o.number, o.log_rates) for o in self.outcomes if o.stage == "final" and not o.failure]
        own, *others = [cell for cell in self.finalists if self.starts_of(cell, "final")] or [""]
        if own != self.rules.own:
            return {}
        return judge_cells(starts, own, others, self.level, self.rules.domains, restarted=self.rules.restarted)

    # -- what is done ---------------------------------------------------------------------------------

    def course(self) -> Course:
        """Searches, then compares."""
        finalists = yield from self._searched()
        self.reason = yield from self._compared(finalists)
        return self.reason

    def _start(self, cell: str, stage: Stage, later: int) -> Generator[Batch, ScoredItems, None]:
        """Starts ``cell``; at most so many starts follow."""
        number, self.current = len(self.outcomes) + 1, cell
        if self.per_start and self.seconds_left < math.inf:
            later = min(later, int(self.seconds_left / self.per_start))
        own: ScoredItems = ()
        parts = self._make(number, cell, stage)
        items = next(parts)
        self._items_per_start = max(self._items_per_start, len(items))
        while items:
            results = yield Batch(items, max(0, later) * self._items_per_start)
            own = [(item, result) for item, result in results if item.start == number]
            try:
                items = parts.send(own)
            except StopIteration:
                break
        self.outcomes.append(self._read(number, cell, stage, own))

    def _allows(self, starts: int) -> bool:
        """Whether so many more starts fit into the time."""
        return starts * (self.per_start or 0.0) <= self.seconds_left

    def _searched(self) -> Generator[Batch, ScoredItems, tuple[str, ...]]:
        """Chooses what is compared: the present flags and the fastest others."""
        rules = self.rules
        others = [cell for cell in rules.cells if cell != rules.own]
        if len(others) <= rules.finalists:
            return rules.cells
        final = rules.starts * (rules.finalists + 1)
        first = self._first_round(others)
        for number, cell in enumerate(first, 1):
            if self._allows(1 + 2 * MIN_STARTS) and not self.hopeless(cell):
                yield from self._start(cell, "search", 2 * len(first) - number + final)
        if len(others) > len(first):
            for number in range(_PREDICTED):
                cell = self._promising()
                if cell and self._allows(1 + 2 * MIN_STARTS):
                    yield from self._start(cell, "search", 2 * _PREDICTED - number + final)
        racing = self._fastest(others)
        while len(racing) > rules.finalists:
            again = racing[: max(rules.finalists + 1, math.ceil(len(racing) / 2))]
            room = MIN_STARTS * (rules.finalists + 1)
            if not self._allows(len(again) + room):
                break
            for number, cell in enumerate(random.Random(f"again {rules.seed}").sample(again, len(again)), 1):
                yield from self._start(cell, "search", len(again) - number + final)
            racing = self._fastest(again)
            if len(again) == rules.finalists + 1:
                break
        room = max((n for n in range(1, rules.finalists + 1) if self._allows(MIN_STARTS * (n + 1))), default=1)
        chosen = racing[:room]
        lossless = [cell for cell in racing if cell not in rules.lossy]
        if lossless and not set(chosen) & set(lossless):  # the answers decide about a lossy one, so not it alone
            chosen = [*chosen[: room - 1], lossless[0]]
        return (*([] if self.failure_of(rules.own) else [rules.own]), *chosen)

    def _first_round(self, others: Sequence[str]) -> list[str]:
        """The present flags first: they show how long a start takes."""
        rules = self.rules
        dice = random.Random(f"cells {rules.seed}")
        if len(rules.cells) > ONCE and rules.places:
            others = [cell for cell in others if self._changed(cell, rules.own) == 1]
            if len(others) >= ONCE:
                others = others[:: math.ceil(len(others) / (ONCE - 1))]
        return [rules.own, *dice.sample(list(others), len(others))]

    def _changed(self, cell: str, other: str) -> int:
        """In how many flags two cells differ."""
        return sum(a != b for a, b in zip(self.rules.places[cell], self.rules.places[other], strict=True))

    def _promising(self) -> str:
        """The cell without a start that should be the fastest, else one beside the best; empty: there is none."""
        rules = self.rules
        means = {cell: mean for cell in rules.cells if (mean := self.mean(cell)) is not None}
        tried = {outcome.cell for outcome in self.outcomes}
        open_cells = [cell for cell in rules.cells if cell not in tried and not self.hopeless(cell)]
        if not means or not open_cells:
            return ""
        rates = predicted_rates(rules.places, means)
        so_far = max(means, key=lambda cell: means[cell])
        best = max(open_cells, key=lambda cell: rates[cell])
        if rates[best] > means[so_far] - math.log1p(2 * MARGIN):
            return best
        near = [cell for cell in open_cells if self._changed(cell, so_far) == 1]  # flags may gain by each other
        return max(near, key=lambda cell: rates[cell], default="")

    def _fastest(self, cells: Sequence[str]) -> list[str]:
        """Those that run, the fastest first."""
        means = {cell: mean for cell in cells if (mean := self.mean(cell)) is not None and not self.failure_of(cell)}
        return sorted(means, key=lambda cell: -means[cell])

    def _compared(self, finalists: tuple[str, ...]) -> Generator[Batch, ScoredItems, str]:
        rules = self.rules
        self.finalists, self.alive = finalists, list(finalists)
        if len(finalists) < 2:
            return "only one set of flags could be measured"
        if self.per_start and rules.seconds < math.inf:
            room = int(self.seconds_left / self.per_start / len(finalists))
            self._planned = max(MIN_STARTS, min(rules.starts, room - room % _BLOCK))
        for done in range(0, self._planned, _BLOCK):
            order = [cell for cell in self.alive for _ in range(min(_BLOCK, self._planned - done))]
            random.Random(f"final {rules.seed} {done}").shuffle(order)
            if not self._allows(len(order) if done >= MIN_STARTS else 1):
                self._exhausted = True
                return TIME_OVER
            for number, cell in enumerate(order, 1):
                if self._allows(1) and not self.hopeless(cell):
                    yield from self._start(
                        cell, "final", len(order) - number + len(self.alive) * (self._planned - done - _BLOCK)
                    )
            self.alive = [cell for cell in self.alive if not self.hopeless(cell)]
            if len(self.alive) < 2:
                return "the others do not run"
            if done + _BLOCK >= MIN_STARTS and (reason := self._ended()):
                return reason
        self._exhausted = True
        return f"{self._planned} starts of each are done"

    def _ended(self) -> str:
        """Why the comparison is over; empty: it goes on with what can still win."""
        rules, judged = self.rules, self.judged()
        if not rules.restarted or rules.own not in self.alive:
            return ""
        rows = {cell: row for cell, row in judged.items() if cell in self.alive and row.contrast}
        faster = [cell for cell, row in rows.items() if row.answer == "faster"]
        if len(rules.cells) == 2:
            row = next(iter(rows.values()), None)
            if row and row.answer in ("faster", "slower"):
                return "the answer is clear"
            narrow = row and row.within is not None and row.within <= rules.enough
            return "the difference is too small to matter" if narrow else ""
        leader = max(faster or rows, key=lambda cell: self.mean(cell) or -math.inf, default="")
        reference = leader if faster else rules.own

        def can_win(cell: str, margin: float, over: str) -> bool:
            starts = [Start(o.cell, o.number, o.log_rates) for o in self.outcomes if o.stage == "final" and o.log_rates]
            return can_win_by(starts, over, cell, margin, len(rows), rules.domains)

        open_cells = [cell for cell in rows if cell != reference and can_win(cell, rules.enough, reference)]
        if not open_cells:
            return "the fastest is known" if faster else f"no other can win by more than {rules.enough:.0%}"
        self.alive = [cell for cell in self.alive if cell in (rules.own, leader) or can_win(cell, MARGIN, leader)]
        return ""
