"""The protocol of a tune: its options, its items, and what the results say about each server start. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import Any

from gpubox.bench.benchmark import check_items
from gpubox.bench.kinds.load_failures import lacked_memory
from gpubox.bench.kinds.shared import convert_options
from gpubox.bench.kinds.tune.progress import FlagChange, Goal
from gpubox.bench.kinds.tune.search import SearchAxis, SearchSpace, StartOutcome
from gpubox.bench.model import Item, Result, ScoredItems, Target
from gpubox.bench.overrides import format_flag_value
from gpubox.bench.questions import DOMAINS, Question, question_values, questions
from gpubox.errors import UsageError
from gpubox.profiles.profile import FlagValue

SEARCH, FINAL = "search", "final"
"""The target of an item whose cell is chosen when its start comes, before its number."""
OWN = "own flags"
DEFAULT_STREAMS = 3
LOAD = "load"
"""The name of the one measurement of a start with the goal ``agent``."""


@dataclass(frozen=True, slots=True)
class AxisRecord:
    """One axis of a tune, as its plan keeps it."""

    flag: str
    labels: tuple[str, ...]
    """Its values as they are written."""
    ordered: bool = True
    more_vram: int = 0
    more_ram: int = 0


@dataclass(frozen=True, slots=True)
class TuneOptions:
    """The options of one tune."""

    axes: tuple[AxisRecord, ...]
    cells: Mapping[str, tuple[int, ...]]
    """The level on each axis of every target of the plan, by its name."""
    goal: Goal = "tg"
    minutes: float = 30.0
    prompts: int = 2
    """Of each domain."""
    max_tokens: int = 64
    """Of each answer."""
    context_tokens: int = 512
    """Before each prompt; with the goal ``agent`` the length of the shared prefix."""
    streams: int = DEFAULT_STREAMS
    """Conversations at once, with the goal ``agent``."""
    turns: int = 3
    """Of each conversation, with the goal ``agent``."""
    lossy: tuple[str, ...] = ()
    """The cells that change the profile's answers."""
    pruned: Mapping[str, int] = field(default_factory=dict)
    """Why sets of flags are no cells -> their number."""
    keep_free_mib: int = 0
    """What every cell leaves free on each card, as predicted; 0: nothing, or there is no card."""

    @property
    def space(self) -> SearchSpace:
        """What the search needs to know."""
        axes = [SearchAxis(len(a.labels), a.ordered, a.more_vram, a.more_ram) for a in self.axes]
        return SearchSpace(tuple(axes), self.cells, OWN, frozenset(self.lossy))

    @property
    def questions(self) -> list[Question]:
        """What every start is asked; with the goal ``agent`` only its warm-up. Raises UsageError."""
        if self.goal == "agent":
            return questions(1, 8, DOMAINS[:1])
        return questions(self.prompts, self.max_tokens, DOMAINS, self.context_tokens)


def flag_changes(options: TuneOptions, overrides: Mapping[str, FlagValue]) -> list[FlagChange]:
    """What ``overrides`` change in the profile."""
    own = {axis.flag: axis.labels[level] for axis, level in zip(options.axes, options.cells[OWN], strict=True)}
    return [FlagChange(flag, own.get(flag, ""), format_flag_value(value)) for flag, value in overrides.items()]


def parse_options(values: Mapping[str, Any], targets: Sequence[Target]) -> TuneOptions:
    """A plan's options. Raises UsageError if one is invalid."""
    options = convert_options(values, TuneOptions)
    names = {target.name for target in targets}
    if OWN not in options.cells or set(options.cells) != names:
        raise UsageError("The cells of this tune are not its targets.")
    shape = [len(axis.labels) for axis in options.axes]
    for place in options.cells.values():
        if len(place) != len(shape) or any(not 0 <= at < count for at, count in zip(place, shape, strict=True)):
            raise UsageError("A cell of this tune is beyond its axes.")
    if len(names) < 2:
        raise UsageError("There is nothing to tune: no other set of flags is left.", "Name values: --over threads=4,8")
    if not options.minutes > 0 or min(options.streams, options.turns, options.prompts) < 1 or options.max_tokens < 2:
        raise UsageError("A tune needs time, at least one prompt and answers of at least two tokens.")
    check_items(len(_numbers(options.space)) * (1 + len(options.questions)))
    return options


def tune_items(options: TuneOptions) -> list[Item]:
    """The starts that a tune may make, at most: those of the search, then those of the comparison.

    Each is a warm-up and every question, or one load. Which cell a start measures is decided when it comes.
    """
    asked = options.questions
    warmup = question_values(asked[0])
    items = []
    for number, part in _numbers(options.space):
        group, target = f"{number:03d}", f"{part} {number}"
        items.append(Item(f"{group}/warm-up", target, warmup, True, group, 1.0, number))
        if options.goal == "agent":
            items.append(Item(f"{group}/{LOAD}", target, {}, False, group, 4.0, number))
        else:
            items += [Item(f"{group}/{q.name}", target, question_values(q), False, group, 1.0, number) for q in asked]
    return items


def _numbers(space: SearchSpace) -> list[tuple[int, str]]:
    """Every start with its part. The search may end early, so the comparison has room for all but its minimum."""
    search, final = space.search_limit, space.starts_limit - 1
    return [(n, SEARCH) for n in range(1, search + 1)] + [(search + n, FINAL) for n in range(1, final + 1)]


def is_final(item: Item) -> bool:
    """Whether ``item`` belongs to the comparison of the finalists."""
    return item.target.startswith(FINAL)


def measured_target(results: ScoredItems) -> str:
    """The cell that a start measured, from the results of its items; empty: unknown, or not started."""
    return next((str(name) for _, result in results if (name := result.values.get("target"))), "")


def starts_in(results: ScoredItems) -> Iterator[tuple[int, list[tuple[Item, Result]]]]:
    """The results of each start that was made, or tried."""
    for number, group in groupby(results, key=lambda pair: pair[0].start):
        if own := [(item, result) for item, result in group if not result.unneeded]:
            yield number, own


def outcomes(options: TuneOptions, results: ScoredItems) -> tuple[list[StartOutcome], list[StartOutcome]]:
    """The complete starts of the search and of the comparison."""
    search: list[StartOutcome] = []
    final: list[StartOutcome] = []
    expected = 1 + (1 if options.goal == "agent" else len(options.questions))
    for number, own in starts_in(results):
        cell = measured_target(own)
        if len(own) == expected and cell in options.cells:
            (final if is_final(own[0][0]) else search).append(_outcome(options, number, cell, own))
    return search, final


def _outcome(options: TuneOptions, number: int, cell: str, own: ScoredItems) -> StartOutcome:
    seconds = sum(result.seconds + float(result.values.get("start_seconds") or 0.0) for _, result in own)
    failed = next((result for _, result in own if not result.ok), None)
    rates = {item.id.partition("/")[2]: result.values.get(options.goal) for item, result in own if not item.warmup}
    log_rates = {name: math.log(rate) for name, rate in rates.items() if isinstance(rate, int | float) and rate > 0}
    if failed is None and len(log_rates) == len(rates):
        return StartOutcome(number, cell, log_rates, seconds)
    why = failed.error if failed else f"{options.goal} could not be measured"
    loaded = not (failed and failed.skipped and own[0][1] is failed)
    return StartOutcome(number, cell, {}, seconds, why.rstrip("."), "" if loaded else lacked_memory(why), loaded)
