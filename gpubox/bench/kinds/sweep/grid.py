"""The grid of a sweep: its axes, its cells, the order of starts, and which cells need not be tried. Pure."""

from __future__ import annotations

import math
import random
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import product
from typing import Any, Literal

from gpubox.bench.benchmark import check_items
from gpubox.bench.kinds.shared import convert_options
from gpubox.bench.model import Item, Target
from gpubox.bench.overrides import MODEL, PROFILE, cell_name, format_flag_value
from gpubox.bench.questions import DOMAINS, Question, question_values, questions
from gpubox.bench.start_comparison import MIN_STARTS, random_order
from gpubox.engines.flag_changes import MAX_INT, parse_flag_change
from gpubox.errors import UsageError
from gpubox.profiles.profile import FlagValue

FINALIST = "finalist"
"""With a number: the target of an item whose cell is chosen after the first round."""
MAX_CELLS = 200
NEEDS_MORE: Mapping[str, Mapping[str, int]] = {
    "VRAM": {
        "ctx-size": 1, "batch-size": 1, "ubatch-size": 1, "parallel": 1, "n-gpu-layers": 1, "gpu-layers": 1,
        "n-cpu-moe": -1, "spec-draft-n-max": 1,
    },
    "RAM": {"ctx-size": 1, "parallel": 1, "n-gpu-layers": -1, "gpu-layers": -1, "n-cpu-moe": 1},
}  # fmt: skip
"""The direction in which a flag needs more of a memory. A sweep gives a cell up only if all other flags are equal."""
_RANGE = re.compile(r"(-?\d+)\.\.(-?\d+)(?::(\d+))?")
_MALFORMED_RANGE = re.compile(r"-?[\d.]*\d\.\.")


@dataclass(frozen=True, slots=True)
class Axis:
    """One flag and its values in order."""

    flag: str
    values: tuple[FlagValue, ...]


@dataclass(frozen=True, slots=True)
class SweepOptions:
    """The options of one sweep."""

    axes: tuple[str, ...]
    """In order: ``profile`` if there are several; then flags, and perhaps ``model``, which each target overrides."""
    by: Literal["tg", "pp", "effective"] = "tg"
    """The rate by which cells are ranked."""
    prompts: int = 3
    """Of each domain."""
    domains: tuple[str, ...] = DOMAINS
    max_tokens: int = 64
    context_tokens: int = 512
    starts: int = MIN_STARTS
    """Of each cell that is compared."""
    finalists: int = 4
    """In a larger grid, how many cells are compared after a first round of one start each."""
    profile_values: Mapping[str, FlagValue] = field(default_factory=dict)
    """The profile's own values of the axes, where it sets them."""
    labels: Mapping[str, str] = field(default_factory=dict)
    """Short names for values of the axis ``model``."""

    @property
    def whole_launches(self) -> bool:
        """Whether cells differ in model or profile, so that they are described by quant, size and context as well."""
        return bool({MODEL, PROFILE} & set(self.axes))

    def text(self, target: Target, axis: str) -> str:
        """The value of ``axis`` in the cell ``target``, for a table."""
        value = format_flag_value(axis_value(target, axis))
        return self.labels.get(value, value) if axis == MODEL else value


@dataclass(frozen=True, slots=True)
class SweepGrid:
    """The cells of one sweep, a target each."""

    options: SweepOptions
    targets: Sequence[Target]

    @property
    def questions(self) -> list[Question]:
        """The prompts asked of every cell. Raises UsageError."""
        options = self.options
        return questions(options.prompts, options.max_tokens, options.domains, options.context_tokens)

    @property
    def current(self) -> Target | None:
        """The cell with the profile's own values; ``None`` if the grid has none."""
        own = self.options.profile_values
        if set(own) != set(self.options.axes):
            return None
        same = (
            target
            for target in self.targets
            if all(str(axis_value(target, flag)) == str(value) for flag, value in own.items())
        )
        return next(same, None)

    @property
    def max_compared(self) -> int:
        """How many cells can be compared: the finalists and the profile's own."""
        return self.options.finalists + (self.current is not None)

    @property
    def single_round(self) -> bool:
        """Whether the grid is so small that every cell is compared at once."""
        return len(self.targets) <= self.max_compared

    def items(self, seed: int = 0) -> list[Item]:
        """Start by start in random order: a warm-up, then every prompt once.

        In a larger grid each cell first gets one start; then the finalists, whoever they will be, get fresh starts.
        """
        options, asked = self.options, self.questions
        if self.single_round:
            order = [self.targets[place].name for place in random_order(len(self.targets), options.starts, seed)]
        else:
            order = [target.name for target in random.Random(f"cells {seed}").sample(self.targets, len(self.targets))]
            final_round = random_order(self.max_compared, options.starts, seed)
            order += [f"{FINALIST} {place + 1}" for place in final_round]
        weight = options.max_tokens + options.context_tokens / 10
        items = []
        for start, name in enumerate(order, 1):
            group = f"{start:03d}/{name}"
            warmup = question_values(asked[0])
            items.append(Item(f"{group}/warm-up", name, warmup, True, group, weight, start))
            items += [Item(f"{group}/{q.name}", name, question_values(q), False, group, weight, start) for q in asked]
        return items


def parse_options(values: Mapping[str, Any], targets: Sequence[Target]) -> SweepOptions:
    """A plan's options. Raises UsageError if one is invalid."""
    options = convert_options(values, SweepOptions)
    if not targets or any({*options.axes} - {PROFILE, *target.overrides} for target in targets):
        raise UsageError("A cell of this sweep does not set one of its flags.")
    if options.starts < 1 or options.finalists < 2:
        raise UsageError("A sweep compares at least two cells with at least one start each.")
    grid = SweepGrid(options, targets)
    starts = min(len(targets), grid.max_compared) * options.starts + (0 if grid.single_round else len(targets))
    check_items(starts * (1 + len(grid.questions)))
    return options


def parse_axis(text: str) -> Axis:
    """Parses ``n-cpu-moe=16..28:2`` or ``ctx-size=8192,16384``. Raises UsageError."""
    flag, sign, value_list = text.partition("=")
    flag = flag.strip().lstrip("-")
    flag = MODEL if flag == "m" else flag
    if not sign or not flag or not value_list.strip():
        raise UsageError(
            f"{text!r} is not FLAG=VALUES.", "Write: --over n-cpu-moe=16..28:2 or --over ctx-size=8192,16384"
        )
    values: list[FlagValue] = []
    for part in value_list.split(","):
        word = part.strip()
        if flag != MODEL and (match := _RANGE.fullmatch(word)):
            values += _parse_range(word, int(match[1]), int(match[2]), int(match[3] or 1))
        elif flag != MODEL and _MALFORMED_RANGE.match(word):
            raise UsageError(f"{word!r} is not a range.", "Use whole numbers and a step above 0: 16..28:2 or 28..16:2")
        else:
            values.append(word if flag == MODEL else parse_flag_change(f"{flag}={word}")[1])
    if len(set(map(str, values))) != len(values):
        raise UsageError(f"{text!r} names a value twice.")
    return Axis(flag, tuple(values))


def _parse_range(text: str, first: int, last: int, step: int) -> range:
    if not step:
        raise UsageError(f"{text!r} has a step of 0.")
    if max(abs(first), abs(last)) >= MAX_INT:
        raise UsageError(f"{text!r} is out of range for any flag.")
    if abs(last - first) // step >= MAX_CELLS:
        raise UsageError(f"{text!r} is more than {MAX_CELLS} values.", "Give a step: 0..4096:512")
    return range(first, last + 1, step) if last >= first else range(first, last - 1, -step)


def grid_targets(
    profiles: str | Sequence[str],
    axes: Sequence[Axis],
    base: Mapping[str, FlagValue] | None = None,
    labels: Mapping[str, str] | None = None,
) -> list[Target]:
    """A target for each cell; the last axis changes fastest, the profile slowest. Raises UsageError.

    ``base``: overrides of every cell. ``labels``: short names of models.
    """
    own_profiles = [profiles] if isinstance(profiles, str) else list(dict.fromkeys(profiles))
    names = [axis.flag for axis in axes]
    if (not axes and len(own_profiles) < 2) or len(set(names)) != len(names):
        raise UsageError(
            "A sweep needs --over with at least one flag, and each flag once; or several profiles.",
            "Write: --over n-cpu-moe=16..28:2",
        )
    if both := set(names) & set(base or {}):
        raise UsageError(f"{min(both)} is swept: --set cannot set it too.")
    if (count := len(own_profiles) * math.prod(len(axis.values) for axis in axes)) > MAX_CELLS:
        raise UsageError(f"That is {count:,} cells, and each needs a restart.", f"At most {MAX_CELLS} at once.")
    targets = []
    for profile, values in product(own_profiles, product(*(axis.values for axis in axes))):
        cell = dict(zip(names, values, strict=True))
        name = cell_name({PROFILE: profile, **cell} if len(own_profiles) > 1 else cell, labels)
        targets.append(Target(name, profile, {**(base or {}), **cell}))
    return targets


def axis_value(target: Target, axis: str) -> FlagValue:
    """The value of ``axis`` in the cell ``target``."""
    return target.profile if axis == PROFILE else target.overrides[axis]


def model_labels(models: Sequence[str]) -> dict[str, str]:
    """A short name for each model: its file's name, with as many folders before it as make it unique."""
    labels: dict[str, str] = {}
    for model in models:
        words = [model] if ":" in model else model.removesuffix(".gguf").split("/")
        count = 1
        others = [other.removesuffix(".gguf") for other in models if other != model]
        while count < len(words) and any(other.split("/")[-count:] == words[-count:] for other in others):
            count += 1
        labels[model] = " ".join(filter(None, words[-count:]))  # no slash: the ids of items are parts between slashes
    return labels


def finalist_number(item: Item) -> int | None:
    """The finalist that ``item`` runs on, from 1; ``None`` if the plan names its cell."""
    return int(item.target.rpartition(" ")[2]) if item.target.startswith(f"{FINALIST} ") else None


def needs_at_least_as_much(axes: Sequence[str], cell: Target, failed: Target, memory: str) -> bool:
    """Whether ``cell`` needs at least as much VRAM or RAM on every axis as ``failed``, which ran out of it."""

    def needs_no_less(flag: str) -> bool:
        value, failed_value = axis_value(cell, flag), axis_value(failed, flag)
        if not isinstance(value, int) or not isinstance(failed_value, int):
            return value == failed_value
        # 0 and -1 mean "all" or "as in the model" for some flags, so only positive numbers are compared.
        comparable = value > 0 and failed_value > 0
        return value == failed_value or (comparable and (value - failed_value) * NEEDS_MORE[memory].get(flag, 0) > 0)

    return all(map(needs_no_less, axes))
