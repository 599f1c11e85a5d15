"""What no run may ask for: numbers that are none, and more than anybody waits for. Pure."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from gpubox.errors import UsageError

MAX_ITEMS = 20_000
"""Of one run: a day of one request every four seconds."""
MAX_COUNT = 10_000_000
"""Of whatever an option counts: tokens, repeats, rounds. No model has such a context."""


def check_numbers(options: Mapping[str, Any]) -> None:
    """Raises UsageError for an option that is no number (``nan``), endless, or beyond MOST."""
    for name, value in options.items():
        if isinstance(value, Mapping):
            check_numbers(value)
            continue
        for one in value if isinstance(value, Sequence) and not isinstance(value, str) else [value]:
            if isinstance(one, int | float) and not -MAX_COUNT <= one <= MAX_COUNT:  # nan is neither
                shown = f"{one:g}" if isinstance(one, float) else str(one)[:24]
                most = "a number" if isinstance(one, float) and math.isnan(one) else f"at most {MAX_COUNT:,}"
                raise UsageError(f"{name.replace('_', '-')} must be {most}, not {shown}.")


def check_items(count: int) -> None:
    """Raises UsageError where a run would be of too many items: before they are made."""
    if count > MAX_ITEMS:
        raise UsageError(f"That is {count:,} items.", f"At most {MAX_ITEMS:,} in one run: fewer repeats, or minutes.")
