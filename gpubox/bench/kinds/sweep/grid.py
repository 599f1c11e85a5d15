"""What a sweep measures: axes, cells, the order, and which cells need not be tried. Pure."""

from __future__ import annotations

import math
import random
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import product
from typing import Any, Literal

import msgspec

from gpubox.bench.benchmark import check_items, check_numbers
from gpubox.bench.model import Item, Target
from gpubox.bench.overrides import MAX_INT, parse_override
from gpubox.bench.questions import DOMAINS, Question, question_values, questions
from gpubox.bench.start_comparison import MIN_STARTS, random_order
from gpubox.errors import UsageError
from gpubox.profiles.profile import FlagValue

PROMPTS, TOKENS, CONTEXT = 3, 64, 512
FINALISTS = 4
FINALIST = "finalist"
"""With its number: the target of items whose cell the first starts decide."""
MAX_CELLS = 200
DRAFT_WINDOW_FLAGS = frozenset({"spec-draft-n-max", "draft-max", "draft", "draft-n"})
"""llama-server's names for the draft window, today's first (b11434 refuses the others)."""
# Which way an axis must go to need more of a memory. Anything else has to be equal before a cell is given up unseen.
_MORE: Mapping[str, Mapping[str, int]] = {
    "VRAM": {
        "ctx-size": 1, "batch-size": 1, "ubatch-size": 1, "parallel": 1, "n-gpu-layers": 1, "gpu-layers": 1,
        "n-cpu-moe": -1, "spec-draft-n-max": 1,
    },
    "RAM": {"ctx-size": 1, "parallel": 1, "n-gpu-layers": -1, "gpu-layers": -1, "n-cpu-moe": 1},
}  # fmt: skip
_RANGE = re.compile(r"(-?\d+)\.\.(-?\d+)(?::(\d+))?")
_LIKE_A_RANGE = re.compile(r"-?[\d.]*\d\.\.")


@dataclass(frozen=True, slots=True)
class Axis:
    """One flag and its values in order."""

    flag: str
    values: tuple[FlagValue, ...]


@dataclass(frozen=True, slots=True)
class SweepOptions:
    """Of one sweep."""

    axes: tuple[str, ...]
    """The flags, in the order of the axes; each target's overrides have them."""
    by: Literal["tg", "pp", "effective"] = "tg"
    """What the best cell is best at."""
    prompts: int = PROMPTS
    """Of each domain."""
    domains: tuple[str, ...] = DOMAINS
    max_tokens: int = TOKENS
    context_tokens: int = CONTEXT
    starts: int = MIN_STARTS
    """Of each cell that is compared."""
    finalists: int = FINALISTS
    """How many cells of a larger grid are compared, after one start of each."""
    own: Mapping[str, FlagValue] = field(default_factory=dict)
    """What the profile has on the axes now, as far as it names them."""

    @property
    def over_windows(self) -> bool:
        """Whether this is a sweep over the draft window."""
        return any(flag in DRAFT_WINDOW_FLAGS for flag in self.axes)


def parse_axis(text: str) -> Axis:
    """``n-cpu-moe=16..28:2``, ``ctx-size=8192,16384``. Raises UsageError."""
    flag, sign, words = text.partition("=")
    flag = flag.strip().removeprefix("--")
    if not sign or not flag or not words.strip():
        raise UsageError(f"{text!r} is no axis.", "Write: --over n-cpu-moe=16..28:2 or --over ctx-size=8192,16384")
    values: list[FlagValue] = []
    for word in words.split(","):
        if match := _RANGE.fullmatch(word.strip()):
            first, last, step = int(match[1]), int(match[2]), int(match[3] or 1)
            if not step:
                raise UsageError(f"{word!r} has a step of 0.")
            if max(abs(first), abs(last)) >= MAX_INT:
                raise UsageError(f"{word!r} is beyond every flag.")
            way = step if last >= first else -step
            if abs(last - first) // step >= MAX_CELLS:
                raise UsageError(f"{word!r} is more than {MAX_CELLS} values.", "Give a step: 0..4096:512")
            values += range(first, last + (1 if way > 0 else -1), way)
        elif _LIKE_A_RANGE.match(word.strip()):
            raise UsageError(f"{word.strip()!r} is no range.", "Whole numbers and a step above 0: 16..28:2 or 28..16:2")
        else:
            values.append(parse_override(f"{flag}={word.strip()}")[1])
    if len(set(map(str, values))) != len(values):
        raise UsageError(f"{text!r} names a value twice.")
    return Axis(flag, tuple(values))


def grid_targets(profile: str, axes: Sequence[Axis], base: Mapping[str, FlagValue] | None = None) -> list[Target]:
    """A target for each cell of the grid, the last axis changing fastest. Raises UsageError."""
    names = [axis.flag for axis in axes]
    if not axes or len(set(names)) != len(names):
        raise UsageError("A sweep goes over at least one flag, and over each once.", "Write: --over n-cpu-moe=16..28:2")
    if twice := set(names) & set(base or {}):
        raise UsageError(f"{sorted(twice)[0]} is swept: --set cannot give it too.")
    if (count := math.prod(len(axis.values) for axis in axes)) > MAX_CELLS:
        raise UsageError(f"That is {count:,} cells, each a restart.", f"At most {MAX_CELLS} at once.")
    made = []
    for values in product(*(axis.values for axis in axes)):
        changed = dict(zip(names, values, strict=True))
        made.append(Target(cell_name(changed), profile, {**(base or {}), **changed}))
    return made


def cell_name(values: Mapping[str, FlagValue]) -> str:
    """``n-cpu-moe=4 ctx-size=8192``."""
    return " ".join(f"{flag}={_word(value)}" for flag, value in values.items())


def _word(value: FlagValue) -> str:
    if isinstance(value, tuple):
        return ",".join(map(str, value))
    return str(value).lower() if isinstance(value, bool) else str(value) if value != "" else "(left out)"


def parse_options(values: Mapping[str, Any], targets: Sequence[Target]) -> SweepOptions:
    """The options as a plan keeps them. Raises UsageError for one that cannot be."""
    try:
        options = msgspec.convert(values, SweepOptions)
    except msgspec.ValidationError as error:
        raise UsageError(f"These options of a sweep cannot be: {error}.") from None
    check_numbers(values)
    if not targets or any(flag not in target.overrides for target in targets for flag in options.axes):
        raise UsageError("A cell of this sweep lacks one of its flags.")
    if options.starts < 1 or options.finalists < 2:
        raise UsageError("A sweep compares at least two cells, with a start of each at least.")
    count = min(len(targets), max_compared_cells(options, targets)) * options.starts
    check_items(
        ((0 if compares_every_cell(options, targets) else len(targets)) + count) * (1 + len(grid_questions(options)))
    )
    return options


def current_cell(options: SweepOptions, targets: Sequence[Target]) -> Target | None:
    """The cell that is as the profile is now; ``None`` where the grid has none."""
    if set(options.own) != set(options.axes):
        return None
    same = [one for one in targets if all(str(one.overrides[f]) == str(v) for f, v in options.own.items())]
    return same[0] if same else None


def max_compared_cells(options: SweepOptions, targets: Sequence[Target]) -> int:
    """How many cells can be compared: the finalists, and the profile's own."""
    return options.finalists + (current_cell(options, targets) is not None)


def compares_every_cell(options: SweepOptions, targets: Sequence[Target]) -> bool:
    """Whether the grid is so small that every cell is compared at once."""
    return len(targets) <= max_compared_cells(options, targets)


def grid_questions(options: SweepOptions) -> list[Question]:
    """Its prompts. Raises UsageError."""
    return questions(options.prompts, options.max_tokens, options.domains, options.context_tokens)


def grid_items(options: SweepOptions, targets: Sequence[Target], seed: int = 0) -> list[Item]:
    """Start by start in an order drawn by ``seed``: a warm-up, then every prompt once.

    Of a larger grid each cell has one start; then the finalists, whoever they will be, are started afresh.
    """
    if compares_every_cell(options, targets):
        drawn = [targets[place].name for place in random_order(len(targets), options.starts, seed)]
    else:
        drawn = [target.name for target in random.Random(f"cells {seed}").sample(targets, len(targets))]
        finals = random_order(max_compared_cells(options, targets), options.starts, seed)
        drawn += [f"{FINALIST} {place + 1}" for place in finals]
    made = []
    for number, name in enumerate(drawn, 1):
        group = f"{number:03d}/{name}"
        order = grid_questions(options)
        weight = options.max_tokens + options.context_tokens / 10
        made.append(Item(f"{group}/warm-up", name, question_values(order[0]), True, group, weight, number))
        made += [Item(f"{group}/{q.name}", name, question_values(q), False, group, weight, number) for q in order]
    return made


def finalist_number(item: Item) -> int | None:
    """Which finalist ``item`` is done on, from 1; ``None``: it is of a cell that the plan names."""
    return int(item.target.rpartition(" ")[2]) if item.target.startswith(f"{FINALIST} ") else None


def needs_at_least_as_much(axes: Sequence[str], cell: Target, failed: Target, memory: str) -> bool:
    """Whether ``cell`` needs at least as much VRAM or RAM on every axis as ``failed``, which ran out of it."""
    ways = _MORE.get(memory)
    if ways is None or cell.name == failed.name:
        return False
    for flag in axes:
        mine, other = cell.overrides[flag], failed.overrides[flag]
        if mine == other:
            continue
        way = ways.get(flag, 0)
        if not (_plain(mine) and _plain(other)) or not way or (mine - other) * way < 0:  # type: ignore[operator]
            return False
    return True


def _plain(value: FlagValue) -> bool:
    """A number that means what it says: 0 and -1 stand for ``all`` or ``as the model has it`` in some flags."""
    return isinstance(value, int) and not isinstance(value, bool) and value > 0
