"""What a turn changed, in words: the line of a file, and the sentences about changes, takes and undone turns."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from gpubox import units
from gpubox.views.marks import CHANGES, Mark

if TYPE_CHECKING:
    from gpubox.agent.events import ChangedFile
    from gpubox.sandbox.changes import Change


def count(number: int, noun: str) -> str:
    """``1 file``, ``3 files``."""
    return f"{number:,} {noun}{'s' * (number != 1)}"


def line_counts(added: int, removed: int) -> str:
    """``+12 −3``, ``+26``; empty if no line changed."""
    return " ".join(f"{sign}{lines:,}" for sign, lines in (("+", added), ("−", removed)) if lines)


def change_mark(change: Change | ChangedFile) -> Mark:
    """The letter of a change; ``!`` or ``✗`` if the owner must look at it."""
    key = "conflict" if getattr(change, "conflict", "") else "runs" if getattr(change, "runs_by_itself", "") else ""
    return CHANGES.get(key or change.kind, CHANGES["changed"])


def what_changed(change: Change | ChangedFile) -> str:
    """Lines, sizes of a binary file, or modes; empty if only the kind says it."""
    old, new = getattr(change, "old_bytes", None), getattr(change, "new_bytes", None)
    modes = getattr(change, "old_mode", None), getattr(change, "new_mode", None)
    if text := line_counts(change.added, change.removed):
        return text
    if change.kind == "mode" and None not in modes:
        return " → ".join(f"{(mode or 0) & 0o7777:o}" for mode in modes)
    if change.kind in ("new", "changed", "removed") and (old or new):
        return " → ".join(units.file_size(size) for size in (old, new) if size is not None)
    return ""


def doubt(change: Change | ChangedFile) -> str:
    """Why the change is not simply taken; empty: it is."""
    if conflict := getattr(change, "conflict", ""):
        return f"conflict: {conflict}"
    if why := getattr(change, "runs_by_itself", ""):
        return f"runs by itself: {why}"
    return ""


def changed_sentence(changes: Sequence[Change | ChangedFile]) -> str:
    """``3 files changed: +41 −7``."""
    lines = line_counts(sum(each.added for each in changes), sum(each.removed for each in changes))
    return f"{count(len(changes), 'file')} changed{f': {lines}' * bool(lines)}"
