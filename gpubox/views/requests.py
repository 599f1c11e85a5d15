"""The short words of a request, a slot and a device's memory, for the screen and the verbs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpubox import units

if TYPE_CHECKING:
    from gpubox.telemetry.snapshot import DeviceMemory, Request


END_WORDS = {"length": ("token limit", "limit")}
"""Why an answer ended, in llama-server's word -> in plain words, and in fewer."""


def request_words(request: Request) -> dict[str, str]:
    """Name of a column -> its text. ``read``: prompt tokens that the server read; ``reused``: those from its cache."""
    acceptance = request.draft_acceptance
    return {
        "read": units.tokens(request.read_tokens),
        "reused": units.tokens(request.cached_tokens),
        "out": units.tokens(request.generated_tokens),
        "TTFT": units.duration_at_least(request.ttft_seconds, request.slot_ttft_seconds),
        "pp": units.rate(request.pp_tokens_per_second),
        "tg": units.rate(request.tg_tokens_per_second),
        "draft": units.UNKNOWN if acceptance is None else f"{acceptance:.0%}",
        "took": units.duration(request.duration_seconds),
        "end": end_words(request)[0],
    }


def end_words(request: Request) -> tuple[str, ...]:
    """Why it ended, the longest words first."""
    reason = request.stop_reason or units.UNKNOWN
    return END_WORDS.get(reason, (reason,))


def miss_words(cache_miss: str) -> tuple[str, ...]:
    """Why the prompt was read again, the longest words first: a narrow place shows fewer, never a part of one."""
    words = cache_miss.partition(" (")[0] if cache_miss.startswith("no ") else cache_miss.partition(":")[0]
    if " was evicted" in cache_miss:
        words = "its like was evicted"
    causes = dict.fromkeys((cache_miss, words, words.partition(" before")[0].partition(", ")[0]))
    return tuple(causes)


def context_words(used: int | None, size: int | None, slots: int | None = 1) -> str:
    """``fullest slot 505 of 2,048``: never the sum of several slots, which the memory pane has."""
    if size is None:
        return ""
    amount = f"{units.UNKNOWN if used is None else f'{used:,}'} of {size:,}"
    return f"fullest slot {amount}" if (slots or 0) > 1 else amount


def rest_words(device: DeviceMemory) -> str:
    """What ``unaccounted_bytes`` of a device are."""
    if device.kind != "host":
        return "other: desktop, driver"
    return "other: all programs" if device.other_processes_bytes is None else "rest of llama-server"
