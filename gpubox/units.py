"""Formats numbers for people, and reads a size. None is unknown and becomes a dash, never 0."""

from __future__ import annotations

import re
from datetime import datetime

from gpubox.errors import UsageError

UNKNOWN = "—"
KIB, MIB, GIB = 1024, 1024**2, 1024**3
_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*([kmgt]?)(i?)(b?)", re.I)
_POWERS = {"": 0, "k": 1, "m": 2, "g": 3, "t": 4}


def memory(value: float | None) -> str:
    """Bytes as GiB with one decimal, or MiB below one GiB (multiples of 1024, as in nvidia-smi)."""
    if value is None:
        return UNKNOWN
    if round(abs(value) / MIB) >= 1024:  # rounded first: 1024 MiB is 1.0 GiB
        return f"{value / GIB:.1f} GiB"
    return f"{value / MIB:.0f} MiB"


def file_size(value: float | None) -> str:
    """Bytes as GB or MB (multiples of 1000), as on model pages."""
    if value is None:
        return UNKNOWN
    if round(abs(value) / 1e6) >= 1000:
        return f"{value / 1e9:.1f} GB"
    return f"{value / 1e6:.0f} MB"


def small_size(value: int) -> str:
    """Bytes of a source file or a picture, as ``file_size`` counts: 812 bytes, 12.3 kB, 1.4 MB."""
    if value < 1000:
        return f"{value} byte{'s' * (value != 1)}"
    return f"{value / 1e3:.1f} kB" if value < 999_950 else f"{value / 1e6:.1f} MB"


def rate(value: float | None) -> str:
    """Tokens per second, three significant figures."""
    if value is None:
        return UNKNOWN
    return f"{value:.0f}" if value >= 99.95 else f"{value:.1f}"


def rough_duration(value: float) -> str:
    """A duration in one whole unit: ``90 s``, ``10 min``, ``2 h``."""
    if value < 120:
        return f"{value:.0f} s"
    return f"{value / 60:.0f} min" if value < 7200 else f"{value / 3600:.0f} h"


def duration_at_least(value: float | None, least: float | None) -> str:
    """A duration; if only a lower bound is known: ``≥1.2 s``, ``≥804ms``, no wider than a duration."""
    if value is not None or least is None:
        return duration(value)
    shown = f"≥{duration(least)}"
    return shown if len(shown) <= 6 else shown.replace(" ", "")


def duration(value: float | None) -> str:
    """A duration: ``340 ms``, ``3.1 s``, ``1:02``, ``2 h 03``."""
    if value is None:
        return UNKNOWN
    if round(value * 1000) < 1000:
        return f"{value * 1000:.0f} ms"
    if round(value, 1) < 60:
        return f"{value:.1f} s"
    minutes, rest = divmod(round(value), 60)
    if minutes < 60:
        return f"{minutes}:{rest:02d}"
    hours, minutes = divmod(minutes, 60)
    if hours < 48:
        return f"{hours} h {minutes:02d}"
    return f"{hours // 24} d {hours % 24} h"


def local_time(iso: str, form: str) -> str:
    """A moment in the owner's time zone, as ``strftime`` writes it by ``form``."""
    try:
        return f"{datetime.fromisoformat(iso).astimezone():{form}}"
    except (ValueError, OverflowError):
        return UNKNOWN


def time_of_day(iso: str) -> str:
    """``13:02:11``, in the owner's time zone."""
    return local_time(iso, "%H:%M:%S")


def tokens(value: int | None) -> str:
    """A short token count: ``512``, ``41.2k``, ``131k``. Multiples of 1024 from 8192 on: ``128K``."""
    if value is None:
        return UNKNOWN
    if value < 1000:
        return str(value)
    if value >= 8192 and value % 1024 == 0:
        return f"{value // 1024}K"
    return f"{value / 1000:.1f}k" if value < 99_950 else f"{value / 1000:.0f}k"


def need_and_free(need: float, free: float | None) -> str:
    """``needs 36.5 GiB, 23.0 free``: what a launch takes of a device, and what that has."""
    needs, left = memory(need), memory(free)
    number, _, unit = left.partition(" ")
    return f"needs {needs}" + (f", {number if needs.endswith(unit) else left} free" if free is not None else "")


def parse_size(text: str) -> int:
    """Bytes of ``1GiB``, ``512M`` or ``1.5GB``: multiples of 1024, of 1000 only for ``GB``. Raises UsageError."""
    match = _SIZE.fullmatch(text.strip())
    if not match:
        raise UsageError(f"{text!r} is not a size.", "Write it like 1GiB or 512MiB.")
    power = _POWERS[match[2].lower()]
    return int(float(match[1]) * (1000 if match[4] and power and not match[3] else 1024) ** power)
