"""Which folder may be a workspace, and whose a layer is."""

from __future__ import annotations

import os
from pathlib import Path

from gpubox.errors import UsageError
from gpubox.sandbox.layers import OPEN_FOLDER


def check_workspace(folder: Path) -> Path:
    """Returns ``folder`` itself. Raises UsageError if it is no folder, is /, or is reached through a link.

    An earlier program may have made the link, so a front end resolves the owner's path once and keeps the result.
    """
    try:
        real = folder.resolve(strict=True)
    except (OSError, RuntimeError) as error:
        why = getattr(error, "strerror", "") or "no such folder"
        raise UsageError(f"The workspace {folder} cannot be used: {why}.", "Name a folder that exists.") from None
    if real != folder.absolute():
        raise UsageError(f"The workspace {folder} is reached through a link.", f"Use {real} instead.")
    if not real.is_dir() or real == Path("/"):
        raise UsageError(f"The workspace {folder} cannot be used.", "Name the folder that the program may see.")
    return real


def give(folder: Path, uid: int) -> None:
    """Makes ``uid`` the owner of ``folder``, and of everything in it if it was another's. Raises OSError."""
    descriptor = os.open(folder, OPEN_FOLDER)
    try:
        if os.fstat(descriptor).st_uid != uid:
            _give_all(descriptor, uid)
    finally:
        os.close(descriptor)


def _give_all(folder: int, uid: int) -> None:
    for name in os.listdir(folder):
        try:
            inner = os.open(name, OPEN_FOLDER, dir_fd=folder)
        except OSError:
            os.chown(name, uid, uid, dir_fd=folder, follow_symlinks=False)
            continue
        try:
            _give_all(inner, uid)
        finally:
            os.close(inner)
    os.fchown(folder, uid, uid)
