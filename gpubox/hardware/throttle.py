"""Why a card's clocks are held back: the bits of nvmlDeviceGetCurrentClocksEventReasons in words."""

from __future__ import annotations

_IDLE = 0x1
# NVML reference, "NvmlClocksEventReasons"; the order is that of the answer, the plainest cause first.
_WORDS = {
    0x4: "power cap",
    0x20: "thermal",
    0x40: "hw thermal",
    0x80: "power brake",
    0x8: "hw slowdown",
    0x200: "board limit",
    0x400: "reliability",
    0x10: "sync boost",
    0x2: "application clocks",
    0x100: "display clocks",
}


def throttle_reasons(bits: int) -> tuple[str, ...]:
    """The reasons in ``bits``; being idle is none, and a bit of a newer driver is given as its number."""
    words = [word for bit, word in _WORDS.items() if bits & bit]
    unknown = bits & ~(_IDLE | sum(_WORDS))
    return (*words, f"reason {unknown:#x}") if unknown else tuple(words)
