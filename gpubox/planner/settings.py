"""Sizes and ``flag=value`` as the owner writes them. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable

from gpubox.engines.flag_changes import parse_flag_change
from gpubox.errors import UsageError
from gpubox.profiles.profile import FlagValue

_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*([kmgt]?)(i?)(b?)", re.I)
_POWERS = {"": 0, "k": 1, "m": 2, "g": 3, "t": 4}


def parse_size(text: str) -> int:
    """Bytes of ``1GiB``, ``512M`` or ``1.5GB``: multiples of 1024, of 1000 only for ``GB``. Raises UsageError."""
    match = _SIZE.fullmatch(text.strip())
    if not match:
        raise UsageError(f"{text!r} is not a size.", "Write it like 1GiB or 512MiB.")
    power = _POWERS[match[2].lower()]
    return int(float(match[1]) * (1000 if match[4] and power and not match[3] else 1024) ** power)


def parse_settings(settings: Iterable[str]) -> dict[str, FlagValue | None]:
    """``flag=value`` -> the flags of a profile; None for an empty value, which removes the flag. Raises UsageError."""
    changes = (parse_flag_change(setting) for setting in settings)
    return {name.replace("_", "-"): None if value == "" else value for name, value in changes}
