"""Commits what the owner took, with his own git, outside the sandbox and only after his yes. Blocking."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Sequence
from pathlib import Path

from gpubox.errors import GpuboxError

_SECONDS = 600
"""The owner's hooks may test everything."""


def commit_paths(root: Path, paths: Sequence[str], message: str) -> str:
    """Commits ``paths`` as they are in the folder ``root``, nothing else, and returns what git printed.

    Paths that git ignores are left out. Raises GpuboxError with git's own words.
    """
    ignored = set(_git(root, ["check-ignore", "-z", "--stdin"], paths, ok=(0, 1)).split("\0"))
    wanted = [path for path in paths if path not in ignored]
    if not wanted:
        raise GpuboxError("There is nothing to commit: git ignores what was taken.")
    from_stdin = ["--pathspec-from-file=-", "--pathspec-file-nul"]
    _git(root, ["add", *from_stdin], wanted)
    return _git(root, ["commit", "--only", f"--message={message}", *from_stdin], wanted).strip()


def _git(root: Path, arguments: Sequence[str], paths: Sequence[str], ok: Sequence[int] = (0,)) -> str:
    environment = {**os.environ, "GIT_TERMINAL_PROMPT": "0", "GIT_EDITOR": "true"}
    listed = b"\0".join(os.fsencode(path) for path in paths)
    try:
        done = subprocess.run(
            ["git", "--literal-pathspecs", *arguments],
            cwd=root,
            env=environment,
            input=listed,
            capture_output=True,
            timeout=_SECONDS,
            check=False,
        )
    except FileNotFoundError:
        raise GpuboxError("git is not installed.", "Install it, or commit by yourself.") from None
    except (OSError, subprocess.SubprocessError) as error:
        raise GpuboxError(f"git {arguments[0]} did not end well: {error}.") from None
    if done.returncode not in ok:
        said = (done.stderr or done.stdout).decode("utf-8", "replace").strip()
        raise GpuboxError(f"git {arguments[0]} failed: {said[:2000]}")
    return done.stdout.decode("utf-8", "surrogateescape")
