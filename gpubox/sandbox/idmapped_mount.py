"""Gives the unused user that root's programs run as access to a workspace: an idmapped mount that one thread sees.

In the mount the folder's owner appears as that user, and new files belong to the owner on disk. Nothing changes on the
host, and no other process sees the mount. mount_setattr(2), Linux 5.12.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import struct
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from pathlib import Path
from typing import TypeVar

from gpubox.errors import GpuboxError

T = TypeVar("T")
_OPEN_TREE, _MOVE_MOUNT, _MOUNT_SETATTR = 428, 429, 442
_MS_BIND = 0x1000
_CLONE_NEWNS, _MS_PRIVATE, _AT_EMPTY_PATH, _AT_FDCWD = 0x20000, 0x44000, 0x1000, -100
_TREE_CLONE, _MOVE_FROM_FD = 0x1 | os.O_CLOEXEC, 0x4
_NOSUID, _NODEV, _IDMAP = 0x2, 0x4, 0x100000
_NEW_USERS = "import ctypes,sys;print(ctypes.CDLL(None).unshare(0x10000000),flush=True);sys.stdin.read()"


class NoIdmappedMountError(GpuboxError):
    """The kernel makes none of this folder: overlayfs, NFS and others have none."""


def start_on_mount(
    folder: Path, uid: int, start: Callable[[], T], *, needed: bool = True
) -> tuple[T, Callable[[], None]]:
    """Calls ``start`` in a thread that sees ``folder`` mounted over itself with another owner.

    ``needed``: else the thread only has mounts of its own where ``folder`` cannot be mounted so. Returns what ``start``
    returns, and a function that ends the thread: call it once the processes that ``start`` made are dead. The kernel
    kills them when their thread is gone (PR_SET_PDEATHSIG). Raises what ``start`` raises, and NoIdmappedMountError.
    """
    thread = ThreadPoolExecutor(1, "gpubox-sandbox")
    with contextlib.ExitStack() as stack:
        stack.callback(thread.shutdown)
        try:
            thread.submit(_mount, folder, uid, needed=needed).result()
        except OSError as error:
            raise NoIdmappedMountError(
                f"A confined program cannot get access to the workspace {folder}: {error.strerror}.",
                "Run gpubox as an ordinary user, or choose a folder on ext4, xfs or btrfs.",
            ) from None
        return thread.submit(start).result(), stack.pop_all().close


def _mount(folder: Path, uid: int, *, needed: bool) -> None:
    """Mounts ``folder`` over itself, for the calling thread alone, as a folder of ``uid``."""
    _checked("unshare", _CLONE_NEWNS)
    _checked("mount", None, b"/", None, _MS_PRIVATE, None)
    with contextlib.suppress(*([] if needed else [OSError])):
        _idmap(folder, uid)


def _idmap(folder: Path, uid: int) -> None:
    owner, path = folder.stat(), os.fsencode(folder)
    user_namespace = _user_map(owner.st_uid, owner.st_gid, uid)
    tree = _checked("syscall", _OPEN_TREE, _AT_FDCWD, path, _TREE_CLONE)
    try:
        attributes = struct.pack("=QQQQ", _IDMAP | _NOSUID | _NODEV, 0, 0, user_namespace)
        _checked("syscall", _MOUNT_SETATTR, tree, b"", _AT_EMPTY_PATH, attributes, len(attributes))
        _checked("syscall", _MOVE_MOUNT, tree, b"", _AT_FDCWD, path, _MOVE_FROM_FD)
    finally:
        os.close(tree)


def bind(folder: Path, place: Path) -> None:
    """Mounts ``folder`` at ``place``, in the thread of ``start_on_mount``. Raises OSError."""
    _checked("mount", os.fsencode(folder), os.fsencode(place), None, _MS_BIND, None)


def _checked(name: str, *arguments: int | bytes | None) -> int:
    libc = ctypes.CDLL(None, use_errno=True)
    as_long = [ctypes.c_long(a) if isinstance(a, int) else a for a in arguments]
    result = int(getattr(libc, name)(*as_long))
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    return result


@cache
def _user_map(owner: int, group: int, uid: int) -> int:
    """An open user namespace that maps the owner to ``uid``, kept for later runs. It takes a process to make one."""
    python = "/usr/bin/python3" if Path("/usr/bin/python3").exists() else sys.executable
    with subprocess.Popen(
        [python, "-I", "-S", "-c", _NEW_USERS], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as helper:
        assert helper.stdout is not None
        if helper.stdout.readline().strip() != "0":
            raise OSError(1, "the kernel refuses user namespaces")
        with contextlib.closing(helper.stdout):
            Path(f"/proc/{helper.pid}/uid_map").write_text(f"{owner} {uid} 1")
            Path(f"/proc/{helper.pid}/gid_map").write_text(f"{group} {uid} 1")
            return os.open(f"/proc/{helper.pid}/ns/user", os.O_RDONLY | os.O_CLOEXEC)
