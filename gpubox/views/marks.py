"""The one table of marks: a verdict, a grade or a finding has the same mark on the screen and in a verb."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

Role = Literal["good", "doubt", "bad", "quiet", "busy", "offer"]


@dataclass(frozen=True, slots=True)
class Mark:
    """One character, what it means, and its role: the screen gives each role a colour."""

    glyph: str
    meaning: str
    role: Role

    @property
    def name(self) -> str:
        """For a legend."""
        return self.glyph.strip() or "none"

    def before(self, text: str) -> str:
        """The mark in front of ``text``."""
        return f"{self.glyph} {text}"


STATE_WORDS = {"prefill": "reading", "lost": "lost its card"}
"""States of a server whose name is none of plain English."""
MEMORY: Mapping[str, Mark] = {
    "fits": Mark("✓", "it fits", "good"),
    "tight": Mark("◐", "it fits barely, or only with the flags that are named", "doubt"),
    "disk": Mark("◔", "it starts, but reads weights from the disk for each token", "doubt"),
    "short": Mark("✗", "it does not fit", "bad"),
    "unknown": Mark("?", "not known; the details say why", "quiet"),
}
"""Whether a launch fits into memory."""
SPEED: Mapping[str, Mark] = {
    "faster": Mark("▲", "faster", "good"),
    "slower": Mark("▼", "slower", "bad"),
    "equal": Mark("=", "equally fast, within what was measured", "quiet"),
    "cannot tell": Mark("?", "the difference cannot be told from noise", "doubt"),
}
"""Which of two is faster."""
GRADES: Mapping[bool, Mark] = {True: Mark("✓", "passed", "good"), False: Mark("✗", "failed", "bad")}
"""Whether a program, a call or a step did what it should."""
CHECKS: Mapping[str, Mark] = {
    "ok": Mark("✓", "works", "good"),
    "warn": Mark("!", "works in part", "doubt"),
    "bad": Mark("✗", "does not work", "bad"),
}
"""What ``gpubox doctor`` finds."""

CHANGES: Mapping[str, Mark] = {
    "new": Mark("A", "a new file", "good"),
    "changed": Mark("M", "changed", "offer"),
    "removed": Mark("D", "removed", "bad"),
    "mode": Mark("m", "only its mode changed", "quiet"),
    "link": Mark("L", "a symbolic link", "doubt"),
    "folder": Mark("F", "a folder", "quiet"),
    "runs": Mark("!", "programs of the owner run it by themselves: it needs its own yes", "doubt"),
    "conflict": Mark("✗", "the owner changed it meanwhile: it is not overwritten", "bad"),
}
"""A file that a turn changed."""
PROFILES: Mapping[str, Mark] = {
    "running": Mark("●", "runs", "good"),
    "busy": Mark("◌", "is being started, stopped or downloaded", "busy"),
    "ready": Mark(" ", "the engine accepts every flag, and the model is here", "quiet"),
    "download": Mark("↓", "the engine accepts every flag; a start downloads the model first", "offer"),
    "no model": Mark("?", "the model file of the profile is missing", "doubt"),
    "refused": Mark("!", "the engine does not accept the profile, or it does not fit; the row says why", "doubt"),
    "broken": Mark("✗", "the profile file is broken; the row says where", "bad"),
    "model": Mark("+", "a model without a profile; Enter makes one and starts it", "offer"),
    "elsewhere": Mark("→", "runs elsewhere: the gateway passes its requests on", "quiet"),
    "not checked": Mark("·", "not checked yet", "quiet"),
}
"""A row in the list of profiles."""


def legend(marks: Mapping[str, Mark], *left_out: str) -> str:
    """One line for each mark, for the end of a verb's help."""
    return "\b\n" + "\n".join(f"{mark.name}  {mark.meaning}" for key, mark in marks.items() if key not in left_out)
