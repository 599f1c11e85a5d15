"""What a turn changed, in words: the line of a file, and the sentences about changes, takes and undone turns."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from gpubox import units
from gpubox.sanitize import show_name
from gpubox.views.marks import CHANGES, Mark

if TYPE_CHECKING:
    from gpubox.agent.events import ChangedFile
    from gpubox.sandbox.changes import Change
    from gpubox.sandbox.steps import StepResult, TakeResult

NAMES, MOST_CHARACTERS = 3, 80
"""Names in a sentence, and characters of each."""


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
    if target := getattr(change, "new_target", None):
        return f"→ {show_name(target)}"
    if change.kind == "mode" and None not in modes:
        return " → ".join(f"{(mode or 0) & 0o7777:o}" for mode in modes)
    if change.kind in ("new", "changed", "removed") and (old or new):
        return " → ".join(units.small_size(size) for size in (old, new) if size is not None)
    return ""


def doubt(change: Change | ChangedFile) -> str:
    """Why the change is not simply taken, without a dot; empty: it is."""
    if conflict := getattr(change, "conflict", ""):
        return f"{conflict[:1].lower()}{conflict[1:].rstrip('.')}"
    if why := getattr(change, "runs_by_itself", ""):
        return f"runs by itself: {why}"
    return ""


def changed_sentence(changes: Sequence[Change | ChangedFile]) -> str:
    """``3 files changed: +41 −7``."""
    lines = line_counts(sum(each.added for each in changes), sum(each.removed for each in changes))
    return f"{count(len(changes), 'file')} changed{f': {lines}' * bool(lines)}"


def _short(text: str) -> str:
    return text if len(text) <= MOST_CHARACTERS else f"{text[:MOST_CHARACTERS]}…"


def _named(path: str) -> str:
    return _short(show_name(path))


def taken_sentence(result: TakeResult) -> str:
    """``Taken: 3 files. README.md is left: you changed it meanwhile.``"""
    parts = [f"Taken: {count(len(result.taken), 'file')}." if result.taken else "Nothing was taken."]
    parts += [f"{_named(each.path)} is left: {_short(doubt(each)) or 'not chosen'}." for each in result.left[:NAMES]]
    if len(result.left) > NAMES:
        parts.append(f"{count(len(result.left) - NAMES, 'more file')} are left, too.")
    return " ".join([*parts, *result.notes])


def step_sentence(result: StepResult, verb: str, prompts: Sequence[str]) -> str:
    """``Undone: “Parse 1h30m”, 3 files of yours put back.`` ``verb``: Undone or Redone; ``prompts``: of its turns."""
    named = ", ".join(f"“{_short(' '.join(prompt.split()))}”" for prompt in prompts[:NAMES])
    how = "put back" if verb == "Undone" else "written again"
    files = f", {count(len(result.files), 'file')} of yours {how}" if result.files else ""
    kept = f" {', '.join(map(_named, result.kept[:NAMES]))} stayed: you changed it since." if result.kept else ""
    return f"{verb}: {named or 'nothing'}{files}.{kept}"
