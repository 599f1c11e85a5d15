"""The numbers of a log line. A line that says more than can be is not llama.cpp's, or is damaged: ValueError."""

from __future__ import annotations

import math

MIB = 1024 * 1024
NUM = r"([\d.]+|-?nan|-?inf)"
MOST_BYTES, MOST_COUNT, MOST_SECONDS = 2**60, 2**53, 10**9


def of_bytes(value: float) -> int:
    """Whole bytes."""
    if not 0 <= value <= MOST_BYTES:  # nan too
        raise ValueError(value)
    return round(value)


def mib(text: str) -> int:
    """MiB as bytes."""
    return of_bytes(float(text) * MIB)


def count(text: str) -> int:
    """A number of tokens, layers, cells."""
    value = int(text)
    if value > MOST_COUNT:
        raise ValueError(text)
    return value


def seconds(text: str) -> float:
    """Milliseconds as seconds."""
    value = float(text) / 1e3
    if not 0 <= value <= MOST_SECONDS:
        raise ValueError(text)
    return value


def rate(text: str | None) -> float | None:
    """A speed; ``None`` for the "inf" and "nan" where nothing was timed."""
    value = float(text) if text else 0.0
    return value if 0 < value < 1e9 else None


def share(text: str) -> float | None:
    """A share of 1; ``None`` where it is none."""
    value = float(text)
    return value if 0 <= value <= 1 else None


def shares(text: str) -> tuple[float, ...]:
    """A list of numbers."""
    found = tuple(float(value) for value in text.split(",") if value.strip())
    if not all(map(math.isfinite, found)):
        raise ValueError(text)
    return found
