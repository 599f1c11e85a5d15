"""The grid of a sweep: its axes, its cells, and which cells need not be tried. Pure."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import product

from gpubox.bench.model import Target
from gpubox.bench.overrides import MODEL, PROFILE, cell_name
from gpubox.engines.option_values import MAX_INT, parse_flag_change
from gpubox.errors import UsageError
from gpubox.profiles.profile import FlagValue

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


def needs_at_least_as_much(cell: Mapping[str, FlagValue], failed: Mapping[str, FlagValue], memory: str) -> bool:
    """Whether a cell needs at least as much VRAM or RAM on every axis as one that ran out of it."""

    def needs_no_less(flag: str) -> bool:
        value, failed_value = cell[flag], failed[flag]
        if not isinstance(value, int) or not isinstance(failed_value, int):
            return value == failed_value
        # 0 and -1 mean "all" or "as in the model" for some flags, so only positive numbers are compared.
        comparable = value > 0 and failed_value > 0
        return value == failed_value or (comparable and (value - failed_value) * NEEDS_MORE[memory].get(flag, 0) > 0)

    return all(map(needs_no_less, cell))
