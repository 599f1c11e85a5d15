"""The current time as gpubox writes it to disk and to JSON."""

from __future__ import annotations

import time
from datetime import UTC, datetime

MAX_GAP_SECONDS = 2.0
"""A longer gap between two looks of a waiting loop is a pause of gpubox itself."""


def utc_now() -> str:
    """Now as ISO-8601 in UTC with milliseconds: ``2026-11-22T09:30:40.123Z``."""
    return datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def unix_time(iso: str | None) -> float | None:
    """That of a time with its zone; None if it is unknown."""
    try:
        at = datetime.fromisoformat(iso or "")
        return at.timestamp() if at.tzinfo else None
    except (ValueError, OverflowError):
        return None


def seconds_since(iso: str | None) -> float:
    """How long ago that was; 0 if it is unknown."""
    return time.time() - at if (at := unix_time(iso)) is not None else 0.0


class AwakeTime:
    """Seconds since its making, for a loop that waits for another process.

    Whoever is suspended, stopped or frozen proves nothing about the other: a gap between two looks counts for
    MAX_GAP_SECONDS at most.
    """

    def __init__(self) -> None:
        self._at, self._seconds = time.monotonic(), 0.0

    def seconds(self) -> float:
        """To be asked at each look."""
        at = time.monotonic()
        self._seconds += min(at - self._at, MAX_GAP_SECONDS)
        self._at = at
        return self._seconds
