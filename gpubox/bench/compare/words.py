"""The answer of a comparison as one sentence, and what would settle it where nothing can be told. Pure."""

from __future__ import annotations

import math
import shlex
from collections.abc import Callable, Iterable, Sequence

from gpubox.bench.compare.contest import Contest
from gpubox.bench.compare.judge import Judged
from gpubox.bench.compare.settling import ab_command, about_time
from gpubox.bench.compare.starts import MIN_STARTS, Contrast
from gpubox.bench.kinds.ab import USUAL_STARTS
from gpubox.bench.model import Doubt, Target
from gpubox.bench.report.formatting import format_change
from gpubox.bench.stats import MARGIN

CAUSES = {
    "busy CPU": "your CPU was busy",
    "other GPU process": "another program used the GPU",
    "foreign request": "another client used the server",
    "throttling": "the GPU was throttled",
    "swap": "memory was short",
    "clocks": "the GPU changed its clocks",
}
"""Kind of doubt -> why speeds differed."""
_MOST_STARTS = 40
_FINE = 0.02
"""A difference below it needs no further starts."""
Label = Callable[[str], str]
"""The name of a cell in a sentence."""


def winner(contest: Contest, judged: dict[str, Judged], *, lossy: bool = False) -> str:
    """The fastest cell that is faster than the present flags beyond doubt; empty: none. ``lossy``: of those too."""
    faster = [cell for cell, row in judged.items() if row.answer == "faster"]
    faster = [cell for cell in faster if lossy or cell not in contest.rules.lossy]
    return max(faster, key=lambda cell: contest.mean(cell) or -math.inf, default="")


def leader(contest: Contest, judged: dict[str, Judged]) -> str:
    """The cell that the figures below the sentence are about."""
    best = winner(contest, judged) or winner(contest, judged, lossy=True)
    return best or max(judged, key=lambda cell: contest.mean(cell) or -math.inf, default="")


def answer_sentence(
    contest: Contest, judged: dict[str, Judged], label: Label, doubts: Iterable[Doubt], targets: Sequence[Target]
) -> str:
    """Faster, slower, equal, or why it cannot be told and what would settle it."""
    own_cell, count = contest.rules.own, contest.compared
    own = label(own_cell)
    many = len(contest.rules.cells) > 2
    if why := contest.failure_of(own_cell):
        others = [cell for cell in contest.rules.cells[1:] if contest.starts_of(cell)]
        could = f" {label(others[0])} could." if others else ""
        return f"{_capital(own)} could not be measured: {why}.{could}"
    if not judged:
        if any(not contest.hopeless(cell) for cell in contest.rules.cells[1:]):
            return f"Nothing can be told: there was no time to compare others.{_longer(contest, targets)}"
        return f"No other set of flags could be measured: keep {own}."
    if best := winner(contest, judged):
        return f"{_capital(label(best))} is faster than {own}{f': the best of the {count} compared' if many else ''}."
    if lossy := winner(contest, judged, lossy=True):
        return (
            f"{_capital(label(lossy))} is faster than {own}, but it changes the answers: `gpubox bench quality` "
            "compares them before you keep it."
        )
    cell = leader(contest, judged)
    open_rows = [row for row in judged.values() if row.answer != "slower"]
    if many and not open_rows:
        return f"Nothing is faster than {own}, of the {count} compared: keep {own}."
    if many and all(row.answer == "equal" for row in open_rows):
        within = max(row.within or 0.0 for row in open_rows)
        return f"The best of the {count} compared and {own} are equally fast, within {within:.0%}: keep {own}."
    cause, settled = _cause(judged[cell].contrast, doubts), _settled(contest, judged, cell, targets)
    if many:
        return f"Whether one of the {count} compared is faster than {own} cannot be told: {cause}. Keep {own}.{settled}"
    return pair_sentence(judged[cell], label(cell), own, f"{cause}.{settled}")


def pair_sentence(row: Judged, second: str, first: str, why: str) -> str:
    """One of two beside the other. ``why`` it cannot be told, and what would settle it."""
    if row.answer == "equal":
        return f"{second} and {first} are equally fast, within {row.within or 0:.0%}."
    if row.answer == "cannot tell":
        return f"Whether {second} is faster than {first} cannot be told: {why}"
    return f"{second} is {row.answer} than {first}."


def figures(measure: str, cell: str, label: Label, row: Judged) -> str:
    """The figures below the sentence; empty without a measured pair."""
    contrast = row.contrast
    if contrast is None:
        return ""
    ends = ""
    if row.interval:
        low, high = map(format_change, row.interval)
        ends = f", 95 % interval {low} to {high}"
    count = contrast.starts
    sample = f"{count} {'start' if count == 1 else 'starts'} of each"
    return f"{_capital(label(cell))} measured {format_change(contrast.ratio)} {measure}{ends}, {sample}."


def _cause(contrast: Contrast | None, doubts: Iterable[Doubt]) -> str:
    seen = {doubt.kind for doubt in doubts}
    if known := [text for kind, text in CAUSES.items() if kind in seen]:
        return " and ".join(known[:2])
    if contrast is None or contrast.starts < MIN_STARTS:
        return "there were too few starts"
    return "speeds differ more from start to start than between them" if contrast.enough else "nothing was restarted"


def _settled(contest: Contest, judged: dict[str, Judged], cell: str, targets: Sequence[Target]) -> str:
    """The command that would settle it, and its time."""
    by_name = {target.name: target for target in targets}
    contrast, starts = judged[cell].contrast, USUAL_STARTS
    if contrast and contrast.enough:
        needed = max(abs(contrast.log_ratio) - math.log1p(MARGIN), _FINE)
        counts = range(contrast.starts + 2, _MOST_STARTS + 1, 2)
        starts = next((count for count in counts if contrast.half_width(count) <= needed), 0)
    sides = by_name[contest.rules.own], by_name[cell]
    command = ab_command(*sides, starts or USUAL_STARTS)
    took = f"in about {about_time(2 * (starts or USUAL_STARTS) * contest.per_start)}" if contest.per_start else ""
    if any(side.url for side in sides):
        again = f"`{command}` asks again{took and f' {took}'}"
        return f" gpubox cannot restart a server by its address: restart it, then {again}."
    if not starts:
        return (
            " More starts now would hardly settle it: end what disturbs the box (other programs, heat, a power limit), "
            f"then `{command}` tells more{took and f' {took}'}."
        )
    return f" `{command}` would settle it{took and f', {took}'}."


def _longer(contest: Contest, targets: Sequence[Target]) -> str:
    per_start = contest.per_start
    if not per_start:
        return ""
    cells = min(len(contest.rules.cells), contest.rules.finalists + 1)
    minutes = math.ceil(per_start * (len(contest.rules.cells[:24]) + (MIN_STARTS + 2) * cells) / 60)
    return f" `gpubox tune {shlex.quote(targets[0].profile)} --minutes {minutes}` would do."


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:] if text.startswith("your ") else text
