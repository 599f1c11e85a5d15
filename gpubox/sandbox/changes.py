"""What the open layers change in a workspace: files, hunks, modes, links and folders, and which the owner may take.

Only read here; steps.py writes. Blocking; run it in a thread.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

ChangeKind = Literal["new", "changed", "removed", "mode", "link", "folder"]
"""``mode``: nothing but the permissions, of a file or folder. ``link``: a symbolic link, new or changed. ``folder``: a
new empty one, one in place of a file, or one that is taken whole because the owner's tools run what is in it."""


@dataclass(frozen=True, slots=True)
class Hunk:
    """Lines of one place in a file that are taken or left together."""

    index: int
    """From 0, in the order of the file."""
    header: str
    """``@@ -3,7 +3,8 @@``"""
    lines: tuple[str, ...]
    """With their `` ``, ``+`` or ``-``, to be shown: what is not UTF-8 is replaced, a carriage return visible."""


@dataclass(frozen=True, slots=True)
class Change:
    """What the open layers make of one path."""

    path: str
    """Relative to the workspace, with slashes; bytes that are not UTF-8 are surrogates (os.fsdecode)."""
    kind: ChangeKind
    old_mode: int | None
    """Permissions; ``None``: there was nothing. New ones are without setuid and setgid, which are never taken."""
    new_mode: int | None
    old_bytes: int | None
    """Sizes of files; ``None``: no file."""
    new_bytes: int | None
    hunks: tuple[Hunk, ...] = ()
    """Empty for binary and very large files, modes, links and folders."""
    added: int = 0
    """Lines."""
    removed: int = 0
    runs_by_itself: str = ""
    """Why the owner's tools would run it (``a git hook``): it needs a yes of its own. Empty: nothing runs it."""
    conflict: str = ""
    """Why it cannot be taken, a sentence: the owner changed it meanwhile. Empty: it can."""
    old_target: str | None = None
    """Where a symbolic link leads; ``None``: no link."""
    new_target: str | None = None


Choice = Mapping[str, frozenset[int] | None]
"""Path -> numbers of its hunks; ``None``: the whole file."""


def unified(change: Change) -> str:
    """The diff of one file as text, with a line break at its end."""
    raise NotImplementedError
