"""Profiles in order of what they reached, of the last finished run of each under one protocol. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from gpubox.bench.report.heads import Head
from gpubox.bench.report.model import Estimate, Metric
from gpubox.bench.report.plot import Row
from gpubox.bench.report.text import grid
from gpubox.bench.report.words import interval, number
from gpubox.plain import plain

DECIDES = {
    "suite": ("points",),
    "humaneval": ("pass@1",),
    "speed": ("tg",),
    "soak": ("tg",),
}
"""What a kind's runs are ranked by: the first of these names that it has. Other kinds compare by themselves."""
NOT_PROTOCOL = {"price"}
MOST_COLUMNS = 6


@dataclass(frozen=True, slots=True)
class Place:
    """One profile. ``tied``: its interval reaches the best one's."""

    rank: int
    name: str
    run: str
    model: str
    values: tuple[Estimate | None, ...]
    """By the board's groups; the first decides."""
    tied: bool
    flagged: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Board:
    """Who may be compared with whom: one kind, one protocol."""

    kind: str
    title: str
    metric: str
    unit: str
    groups: tuple[str, ...]
    places: tuple[Place, ...]


def boards(heads: Sequence[Head], kind: str = "") -> list[Board]:
    """One for each protocol that was run, the last one run first. Only finished runs count."""
    found: dict[tuple[str, str], list[Head]] = {}
    for head in heads:
        plan = head.info.plan if head.info and head.state == "finished" else None
        if plan and head.metrics and plan.kind in DECIDES and kind in ("", plan.kind):
            found.setdefault((plan.kind, _protocol(plan.options)), []).append(head)
    made = [_board(kind_, runs) for (kind_, _), runs in reversed(found.items())]
    return sorted((board for board in made if board), key=lambda board: list(DECIDES).index(board.kind))


def leaderboard_rows(found: Sequence[Board], width: int | None = None) -> Iterator[Row]:
    """For a terminal; where it is narrow, the groups that do not decide give way."""
    if not found:
        yield (("No finished run can be ranked yet.", "quiet"),)
    for number_, board in enumerate(found):
        if number_:
            yield ()
        unit = f", {board.unit}" if board.unit else ""
        yield ((f"{board.kind}: {plain(board.title)}", "head"), (f"  {board.metric}{unit}", "quiet"))
        shown = len(board.groups)
        made = list(_places(board, shown))
        while shown > 1 and width is not None and max(len(row[0][0]) for row in made) > width:
            shown -= 1
            made = list(_places(board, shown))
        yield from made
    if any(place.tied and place.rank > 1 for board in found for place in board.places):
        yield (("≈ its interval reaches the best one's: they may be equal", "quiet"),)
    if any(place.flagged for board in found for place in board.places):
        yield (("! flagged: something was seen that makes its numbers doubtful", "doubt"),)


def _places(board: Board, shown: int) -> Iterator[Row]:
    """A row for each profile, with the first ``shown`` groups."""
    heads = [group or board.metric for group in board.groups[:shown]]
    columns = [("", "PROFILE", heads[0], "95 % CI", "N", "", *heads[1:], "RUN")]
    for place in board.places:
        first = place.values[0]
        mark = " ".join(filter(None, ("≈" if place.tied and place.rank > 1 else "", "!" if place.flagged else "")))
        cells = [number(value.value) if value else "—" for value in place.values[:shown]]
        ends, n = (interval(first), str(first.n)) if first else ("", "")
        columns.append((str(place.rank), place.name, cells[0], ends, n, mark, *cells[1:], place.run[:15]))
    return grid(columns)


def _board(kind: str, heads: Sequence[Head]) -> Board | None:
    last: dict[str, tuple[Head, list[Metric]]] = {}
    deciding = next((name for name in DECIDES[kind] if any(m.name == name for h in heads for m in h.metrics)), None)
    for head in heads:  # the newest of a profile stands
        for target in dict.fromkeys(metric.target for metric in head.metrics):
            own = [metric for metric in head.metrics if metric.target == target and metric.name == deciding]
            if own:
                last[target] = (head, own)
    if deciding is None or not last:
        return None
    groups = list(dict.fromkeys(m.group for _, own in last.values() for m in own))[:MOST_COLUMNS]
    values = {
        name: tuple(next((m.estimate for m in own if m.group == group), None) for group in groups)
        for name, (_, own) in last.items()
    }
    better = next(m.better for _, own in last.values() for m in own)
    order = sorted(values, key=lambda name: _key(values[name][0], better))
    best = values[order[0]][0]
    places = tuple(
        Place(rank, name, last[name][0].id, _model(last[name][0], name), values[name],
              _reaches(best, values[name][0]), last[name][0].flags)
        for rank, name in enumerate(order, 1)
    )  # fmt: skip
    some = next(m for _, own in last.values() for m in own)
    return Board(kind, heads[-1].title, some.name, some.unit, tuple(groups), places)


def _key(found: Estimate | None, better: str) -> float:
    if found is None:
        return float("inf")
    return found.value if better == "lower" else -found.value


def _reaches(best: Estimate | None, other: Estimate | None) -> bool:
    ends = [end for one in (best, other) if one for end in (one.low, one.high) if end is not None]
    if best is None or other is None or len(ends) < 4:
        return False
    return ends[2] <= ends[1] and ends[0] <= ends[3]


def _model(head: Head, target: str) -> str:
    found = head.info.provenance.get(target) if head.info else None
    return found.model_path.rpartition("/")[2] if found else ""


def _protocol(options: Mapping[str, Any]) -> str:
    return repr(sorted((name, repr(value)) for name, value in options.items() if name not in NOT_PROTOCOL))
