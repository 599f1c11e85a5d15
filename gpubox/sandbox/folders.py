"""Which folder may be a workspace, and whose a layer is."""

from __future__ import annotations

import os
from pathlib import Path

from gpubox.errors import UsageError
from gpubox.sandbox.layers import View


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
    if folder.lstat().st_uid != uid:
        for _, item in View([folder]).walk(whiteouts=True):
            os.chown(item.name, uid, uid, dir_fd=item.folder, follow_symlinks=False)
        os.chown(folder, uid, uid, follow_symlinks=False)
