"""What a reader of a sweep must know, a sentence each. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from gpubox import units
from gpubox.bench.kinds.sweep.grid import SweepOptions, current_cell
from gpubox.bench.kinds.sweep.ranking import LEFT_OUT, Ranking, Scored, SweepCell, cell_to_keep
from gpubox.bench.model import RunInfo
from gpubox.bench.overrides import LOSSY_FLAGS
from gpubox.bench.start_comparison import LEVEL, Noise
from gpubox.bench.stats import MARGIN, t_quantile

SHRUNK = 0.0005
"""A best rate that selection changed by less is not told twice."""


def notes(
    options: SweepOptions, info: RunInfo, ranking: Ranking, results: Scored, noise: Noise, doubt: str
) -> Iterator[str]:
    """The best cell, what to keep and why, what could not be measured, how cells were compared."""
    best = ranking.best
    lost = [rank.cell for rank in ranking.ranks if not rank.cell.rows and rank.cell.why]
    left = [rank.cell for rank in ranking.ranks if rank.words == LEFT_OUT]
    if best:
        yield f"Best at {options.by}: {best.target.name}, {_rate(ranking, best)}{_others(ranking, lost, left)}{doubt}."
    if best and ranking.several:
        yield from _keeping(options, info, ranking, best)
    for why in dict.fromkeys(cell.why for cell in lost):
        yield f"Not measured: {_several([cell.target.name for cell in lost if cell.why == why])}: {why}."
    if lost and len(lost) == len(ranking.ranks):
        yield "No cell could be measured."
    if ranking.several and len(ranking.several.ancova.means) > 1:
        counts = ranking.several.ancova.counts
        yield (
            f"{len(counts)} cells were compared, with {min(counts.values())} starts of each in an order drawn at "
            "random, a drift taken out."
        )
        few = [rank.versus for rank in ranking.ranks if rank.verdict == "too few" and rank.versus]
        if few:
            least = max(contrast.detectable_difference(LEVEL / ranking.several.pairs) for contrast in few)
            yield f"Too few starts: differences under about {100 * least:.0f} % cannot be told ({noise})."
    if left:
        tests = max(1, len(left))
        half = t_quantile(LEVEL / tests, noise.dof) * noise.sd * math.sqrt(2) + math.log1p(MARGIN)
        yield (
            f"{len(left)} cells had one start each and were left out as slower than the compared ones then: "
            f"differences under about {100 * math.expm1(half):.0f} % cannot be told by it ({noise}). "
            "--finalists compares more."
        )
    if len(results) < info.items:
        yield f"{info.items - len(results)} of {info.items} items are not done yet."


def _rate(ranking: Ranking, best: SweepCell) -> str:
    fair = ranking.best_rate
    words = f"{units.rate(fair)} tok/s"
    if abs(fair / best.rate - 1) < SHRUNK or units.rate(fair) == units.rate(best.rate):
        return words
    return f"{words} ({units.rate(best.rate)} as measured, less what picking the best adds)"


def _others(ranking: Ranking, lost: Sequence[SweepCell], left: Sequence[SweepCell]) -> str:
    """How the best stands to every other cell, those among them that were not measured or left out."""
    compared = [rank for rank in ranking.ranks if rank.versus and not rank.best]
    level = [rank.cell.target.name for rank in compared if rank.level and rank.verdict != "too few"]
    parts = []
    if any(rank.verdict == "too few" for rank in compared):
        parts.append("too few starts to tell it from the others")
    elif level:
        parts.append(f"within noise of it: {_several(level)}")
    elif compared:
        who = "the other compared cell is" if len(compared) == 1 else f"the {len(compared)} others compared are"
        parts.append(f"{who} slower")
    if left:
        parts.append(f"{len(left)} left out after one start each")
    if lost:
        parts.append(f"{len(lost)} could not be measured")
    return "".join(f"; {part}" for part in parts)


def _keeping(options: SweepOptions, info: RunInfo, ranking: Ranking, best: SweepCell) -> Iterator[str]:
    """Which cell to keep. No setting that changes answers is recommended on speed alone."""
    kept = cell_to_keep(options, info.plan.targets, ranking)
    now = current_cell(options, info.plan.targets)
    lossy = sorted(set(options.axes) & LOSSY_FLAGS)
    if lossy:
        yield (
            f"{' and '.join(lossy)} changes the answers, not only their speed: none is recommended for being faster. "
            "`gpubox bench humaneval` and `suite` tell what it costs."
        )
    if kept is None:
        yield f"No compared cell answers as the profile does: choose one with gpubox bench save {info.id} --cell NAME"
    elif kept.target == now:
        better = "" if kept.target == best.target else ": none that answers alike is surely faster"
        yield f"The profile's own {kept.target.name} stays{better}."
    else:
        smallest = kept != best and not lossy
        what = f"{kept.target.name} (the smallest window as fast as the best)" if smallest else kept.target.name
        yield f"To keep {what}: gpubox bench save {info.id}"


def _several(names: Sequence[str]) -> str:
    return ", ".join(names[:6]) + (f" and {len(names) - 6} more" if len(names) > 6 else "")
