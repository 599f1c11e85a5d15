"""Text that others wrote, made harmless: profile titles, log lines, model names and error messages. Pure."""

from __future__ import annotations

from datetime import datetime


def shorten(text: str, width: int) -> str:
    """``text`` cut to ``width`` characters, at a word where there is one, with an ellipsis."""
    if len(text) <= width:
        return text
    cut = text[: max(0, width - 1)]
    space = cut.rfind(" ")
    return (cut[:space] if space > width // 2 else cut).rstrip(" ,:;.") + "…"


def block_bar(share: float, width: int) -> str:
    """A bar of ``width`` cells, ``share`` (0 to 1) of them filled."""
    filled = round(max(0.0, min(1.0, share)) * width)
    return "▓" * filled + "░" * (width - filled)


def time_or_date(iso: str, now: datetime | None = None) -> str:
    """A moment as a list shows it: the time today, else the day."""
    try:
        at = datetime.fromisoformat(iso).astimezone()
    except ValueError:
        return ""
    today = (now or datetime.now().astimezone()).date()
    if at.date() == today:
        return f"{at:%H:%M}"
    return f"{at:%d %b}" if at.year == today.year else f"{at:%Y-%m}"
