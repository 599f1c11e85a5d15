"""How the owner's git is run, and what it says of his workspace: which paths it ignores, and where its hooks are.

Only settings and ignore files of the workspace itself are read, never a layer's, and git runs nothing for these
questions. Blocking.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Collection, Sequence
from dataclasses import replace
from pathlib import Path

from gpubox.sandbox.changes import Change

_SECONDS = 20
_RUN_NOTHING = ("--no-optional-locks", "-c", "core.fsmonitor=false", "-c", "core.untrackedCache=false")
"""The owner's settings may name a program that git asks for what has changed."""
HOOK = "a git hook"
_ANY_NAME = "gpubox-asks-whether-all-is-ignored"


def as_git_sees(workspace: Path, changes: Sequence[Change]) -> list[Change]:
    """``changes`` without new files in folders that git ignores: tools make them again. Hooks run by themselves.

    What the workspace has is always shown.
    """
    new = {each.path: _folder(each) for each in changes if each.old_mode is None}
    ignored, hooks = _ignored(workspace, set(new.values()) - {""}), hooks_folder(workspace) if changes else ""
    return [
        replace(each, runs_by_itself=HOOK) if not each.runs_by_itself and _is_hook(hooks, each.path) else each
        for each in changes
        if new.get(each.path) not in ignored
    ]


def _folder(change: Change) -> str:
    """The folder that it is, or is in. A file that git ignores by its own name (``.env``) may be what was asked for."""
    return change.path if change.kind == "folder" else change.path.rpartition("/")[0]


def _ignored(workspace: Path, folders: Collection[str]) -> set[str]:
    """Those of ``folders`` in which git ignores everything. Empty: none, or nobody can say."""
    asked = {f"./{folder}/{_ANY_NAME}": folder for folder in folders} | {f"./{_ANY_NAME}": ""}
    said = _ask(workspace, ["check-ignore", "-z", "--stdin"], list(asked)) if folders else b""
    names = {asked[path] for path in os.fsdecode(said).split("\0") if path in asked}
    return set() if "" in names else names  # a repository around the workspace, which is not about it


def hooks_folder(workspace: Path) -> str:
    """The folder of the hooks that git runs, by core.hooksPath too; empty: it is not in the workspace."""
    said = _ask(workspace, ["rev-parse", "--path-format=absolute", "--git-path", "hooks"])
    try:
        return Path(os.fsdecode(said.removesuffix(b"\n"))).relative_to(workspace.resolve()).as_posix() if said else ""
    except (OSError, RuntimeError, ValueError):
        return ""


def _is_hook(hooks: str, path: str) -> bool:
    """Whether ``path`` is in that folder, or leads to it."""
    return bool(hooks) and (f"{path}/".startswith(f"{hooks}/") or hooks.startswith(f"{path}/"))


def _ask(workspace: Path, arguments: Sequence[str], paths: Sequence[str] = ()) -> bytes:
    try:
        return run_git(workspace, [*_RUN_NOTHING, *arguments], paths, _SECONDS).stdout
    except (OSError, ValueError, subprocess.SubprocessError):
        return b""


def run_git(
    root: Path, arguments: Sequence[str], paths: Sequence[str], seconds: float
) -> subprocess.CompletedProcess[bytes]:
    """How git ended in ``root``, with ``paths`` as its input. Raises OSError, ValueError, SubprocessError."""
    return subprocess.run(
        ["git", *arguments],
        cwd=root,
        env={**os.environ, "GIT_TERMINAL_PROMPT": "0", "GIT_EDITOR": "true"},
        input=b"\0".join(map(os.fsencode, paths)),
        capture_output=True,
        timeout=seconds,
        check=False,
    )
