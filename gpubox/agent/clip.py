"""Tool output as a model should read it: bounded, and without terminal codes. Pure."""

from __future__ import annotations

import re

_ANSI = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)?|[@-Z\\-_])")
_CONTROLS = dict.fromkeys([*range(9), 11, 12, *range(14, 32), 127])


def truncate_output(text: str, limit: int) -> tuple[str, int]:
    """``(text, dropped)``: without ANSI and control codes, at most about ``limit`` characters: head and tail."""
    dropped = max(0, len(text) - 4 * limit)
    if dropped:  # so that a huge text costs no regular expression
        text = text[: 2 * limit] + text[-2 * limit :]
    text = _ANSI.sub("", text).replace("\r\n", "\n").replace("\r", "\n").translate(_CONTROLS)
    if len(text) <= limit and not dropped:
        return text, 0
    half = limit // 2
    dropped += max(0, len(text) - 2 * half)
    return f"{text[:half]}\n[... {dropped:,} characters left out ...]\n{text[-half:]}", dropped
