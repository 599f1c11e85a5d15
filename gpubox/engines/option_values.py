"""The values that an option takes, from the engine's own help: its kind, its default, and the next value. Pure."""

from __future__ import annotations

import math
import re
from typing import Literal

from gpubox.engines.capabilities import EngineOption
from gpubox.profiles.profile import FlagValue

OptionKind = Literal["switch", "choice", "number", "text"]
_DEFAULT = re.compile(r"default: *['\"]?(.*?)['\"]? *(?=,|; |\)|\(|$)")
_DEFAULT_ITEM = re.compile(r"- ([\w+-]+) \(default\)")
_NUMBER = re.compile(r"-?\d+(?:\.\d+)?")
_LINK = re.compile(r"\[?\(?more info\)?\]?\([^)]*\)\)?|\[\(\w[\w ]*\)\]\([^)]*\)|\(env: *\w+\)")
_NUMERIC_PLACEHOLDERS = {"N", "P", "L", "SEED", "INDEX", "PORT", "SIMILARITY", "SECONDS"}
_ON = {"enabled", "true", "on", "1"}
_STARTS = {"ctx-size": 8192, "fit-ctx": 4096}
"""Where counting begins if the default (0) only says that the model decides."""
_FINE_BELOW = 128
"""Whole numbers below this change by one, larger ones by a quarter of their power of two."""


def option_kind(option: EngineOption) -> OptionKind:
    """How the value of ``option`` is changed. A list of choices is a text: it may hold several of them."""
    if option.value is None:
        return "switch"
    if option.allowed and "list of" not in option.help:
        return "choice"
    placeholder = option.value.strip("<>[]")
    numeric = placeholder in _NUMERIC_PLACEHOLDERS or re.fullmatch(r"\d+(\.{2,3}|-)\d+", placeholder)
    return "number" if numeric else "text"


def option_default(option: EngineOption) -> str:
    """The default as the help gives it, in a word or two; empty if it gives none."""
    if match := _DEFAULT.search(option.help) or _DEFAULT_ITEM.search(option.help):
        return match[1].strip()
    return ""


def help_sentence(option: EngineOption) -> str:
    """The help text without its links and its variable."""
    return " ".join(_LINK.sub("", option.help).split())


def next_value(option: EngineOption, value: FlagValue | None, step: int) -> FlagValue | None:
    """The value ``step`` (1 or -1) further; ``None``: not set. A value that has no neighbours stays.

    Switches and choices go round, through "not set". Numbers start from the default.
    """
    kind = option_kind(option)
    if kind == "switch":
        values: list[FlagValue | None] = [None, True]
        if option.negatives:  # what differs from the default comes first
            values.insert(1 if option_default(option) in _ON else 2, False)
        return _cycled(values, value, step)
    if kind == "choice":
        return _cycled([None, *(int(word) if word.isdigit() else word for word in option.allowed)], value, step)
    if kind == "text" and not isinstance(value, int | float):
        return value
    return _counted(option, value, step)


def _cycled(values: list[FlagValue | None], value: FlagValue | None, step: int) -> FlagValue | None:
    if value not in values:
        return values[1] if step > 0 else values[-1]
    return values[(values.index(value) + step) % len(values)]


def _counted(option: EngineOption, value: FlagValue | None, step: int) -> FlagValue | None:
    if value is None:
        default = option_default(option)
        text = default if _NUMBER.fullmatch(default) else "0"
        value = float(text) if "." in text else int(text)
        if option.long in _STARTS and value == 0:
            return _STARTS[option.long]
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        return value
    if isinstance(value, float) and not (value.is_integer() and abs(value) >= _FINE_BELOW):
        return round(value + step * 0.05, 4)
    return int(value) + step * _stride(int(value), step)


def _stride(value: int, step: int) -> int:
    """Up and down again ends where it began: 131072 goes up to 163840 and down to 114688."""
    size = abs(value) - (1 if (step < 0) == (value > 0) else 0)
    return 1 if size < _FINE_BELOW else 1 << (size.bit_length() - 3)
