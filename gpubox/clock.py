"""The current time as gpubox writes it to disk and to JSON."""

from __future__ import annotations

from datetime import UTC, datetime


def utc_now() -> str:
    """Now as ISO-8601 in UTC with milliseconds: ``2026-11-22T09:30:40.123Z``."""
    return datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
