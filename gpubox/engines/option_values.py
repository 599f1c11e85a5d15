"""Flags as the owner writes and changes them: ``flag=value``, an option's kind, default and next value. Pure."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping
from typing import Literal

from gpubox.engines.capabilities import Capabilities, EngineOption
from gpubox.errors import UsageError
from gpubox.profiles.profile import FlagValue, Profile
from gpubox.toml_table import parse_toml

MAX_INT = 1 << 63
DRAFT_WINDOW_FLAGS = ("spec-draft-n-max", "draft-max", "draft", "draft-n")
"""llama-server's names for the maximum draft length, the current one first."""
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
    """The default as the help gives it, in a word or two (``as threads``); empty if it gives none."""
    if match := _DEFAULT.search(option.help) or _DEFAULT_ITEM.search(option.help):
        return match[1].strip().replace("same as --", "as ")
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


def parse_flag_change(text: str) -> tuple[str, FlagValue]:
    """``flag=value`` of ``--set``. The value is TOML, else a string; an empty one removes the flag.

    Raises UsageError.
    """
    name, sign, literal = text.partition("=")
    name = name.strip().removeprefix("--")
    if not sign or not name:
        raise UsageError(f"{text!r} sets no flag.", "Write: --set n-cpu-moe=4")
    try:
        value = parse_toml(f"value = {literal}")["value"]
    except ValueError:  # no TOML, or too long to read
        value = literal.strip()
    if isinstance(value, int | float) and not -MAX_INT < value < MAX_INT:
        value = literal.strip()  # nan, inf and huge numbers: the engine refuses them
    if isinstance(value, list):
        value = tuple(value)
    if not isinstance(value, bool | int | float | str | tuple):
        raise UsageError(f"No flag takes the value of {text!r}.")
    return name, value


def flag_key(name: str, profile: Profile, capabilities: Capabilities) -> str:
    """The key for ``name`` in the profile's flags: the alias used there, else the engine's own name.

    A flag that the engine does not know stays as it is; ``check_flags`` refuses it.
    """
    wanted = name.lstrip("-").replace("_", "-")
    if wanted in DRAFT_WINDOW_FLAGS:
        options = ((flag, capabilities.option(flag)) for flag in DRAFT_WINDOW_FLAGS)
        wanted = next((flag for flag, option in options if option and option.removed is None), wanted)
    canonical = capabilities.canonical(wanted)
    aliases = [key for key in profile.flags if capabilities.canonical(key) == canonical]
    return aliases[0] if aliases else canonical if capabilities.option(wanted) else wanted


def with_flag_keys(
    flags: Mapping[str, FlagValue], profile: Profile, capabilities: Capabilities
) -> dict[str, FlagValue]:
    """``flags`` under the profile's keys."""
    return {flag_key(name, profile, capabilities): value for name, value in flags.items()}


def parse_settings(settings: Iterable[str]) -> dict[str, FlagValue | None]:
    """``flag=value`` -> the flags of a profile; None for an empty value, which removes the flag. Raises UsageError."""
    changes = (parse_flag_change(setting) for setting in settings)
    return {name.replace("_", "-"): None if value == "" else value for name, value in changes}
