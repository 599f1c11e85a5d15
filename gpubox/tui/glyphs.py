"""How states and marks look: a glyph, a colour, and always a word beside them. Pure."""

from __future__ import annotations

from pathlib import Path, PurePath

from textual.content import Content

from gpubox import units
from gpubox.sanitize import sanitize_line
from gpubox.tui.formatting import shorten
from gpubox.tui.profile_entries import ProfileEntry

STATES = {
    "ready": ("●", "$success", "answers, and has nothing to do"),
    "answering": ("●", "$primary", "works on a request"),
    "loading": ("◌", "$accent", "a model is being loaded"),
    "stopping": ("◌", "$accent", "was told to stop"),
    "stopped": ("○", "$quiet", "nothing runs"),
    "crashed": ("✗", "$error", "died without being told to"),
    "unreachable": ("✗", "$error", "its process lives, but its port does not answer"),
    "error": ("✗", "$error", "answers with an error"),
}
"""State of a server -> glyph, colour and what it means."""

PROFILE_MARKS = {
    "●": ("$success", "runs"),
    "◌": ("$accent", "is being worked on"),
    "✓": ("$quiet", "its engine takes every flag, and the model is here"),
    "↓": ("$primary", "its engine takes it; Enter downloads the model first"),
    "?": ("$warning", "its model is not where the profile says"),
    "!": ("$warning", "its engine does not take it; the row says why"),
    "✗": ("$error", "the file is broken; the row says where"),
    "+": ("$primary", "a model without a profile; Enter makes one"),
    "·": ("$quiet", "not known yet"),
}
"""Mark of a row -> its colour and what it means."""

NAME_CELLS = 22
MISSING = "model missing: "
"""How the words of a fit begin where the file is not there."""


def mark_of(entry: ProfileEntry, running: frozenset[str], working: str) -> str:
    """The mark of a row; ``working`` is the profile that an operation is about."""
    if entry.kind == "broken":
        return "✗"
    if entry.kind == "model":
        return "+"
    if entry.name == working:
        return "◌"
    if entry.name in running:
        return "●"
    if entry.fit is None:
        return "·"
    if not entry.fit.ok:
        return "!"
    if entry.fit.model_present:
        return "✓"
    return "↓" if entry.fit.fetchable else "?"


def row(entry: ProfileEntry, mark: str, word: str, width: int) -> Content:
    """One row of the list, ``width`` cells wide; ``word`` is what an operation does to it now."""
    colour = PROFILE_MARKS[mark][0]
    names = min(NAME_CELLS, max(10, width // 2 - 3))
    name = shorten(sanitize_line(entry.name), names)
    words = word or sanitize_line(entry.words)
    if words.startswith(MISSING):  # the end of a path says more than its beginning
        words = f"no {PurePath(words.removeprefix(MISSING)).name}"
    quiet = "$accent" if word else "$error" if mark == "✗" else "$quiet"
    return Content.assemble(
        (mark, colour),
        " ",
        (name.ljust(names), "bold" if mark in "●◌" else "$quiet" if mark in "!+?" else ""),
        "  ",
        (shorten(words, max(0, width - names - 4)), quiet),
    )


def needs(entry: ProfileEntry) -> str:
    """What the profile needs, in one line; empty where it does not say."""
    assert entry.profile is not None
    said = entry.profile.needs
    words = [
        f"{said.vram_gib:g} GiB VRAM" if said.vram_gib else "",
        f"{said.ram_gib:g} GiB RAM" if said.ram_gib else "",
        sanitize_line(said.engine),
    ]
    return ", ".join(word for word in words if word)


def model_words(entry: ProfileEntry, size: int | None) -> str:
    """Whether the profile's model is here, in a few words."""
    assert entry.profile is not None
    if entry.fit is None:
        return ""
    if entry.fit.model_present:
        return f"here, {units.file_size(size)}" if size else "here"
    if not entry.fit.fetchable:
        where = entry.fit.missing.removeprefix(MISSING)
        known = where in ("", str(Path(entry.profile.model).expanduser()))
        return "missing" if known else f"missing: {sanitize_line(where)}"
    return f"not here; Enter downloads {units.file_size(size)}" if size else "not here; Enter downloads it"
