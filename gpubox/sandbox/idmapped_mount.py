"""How root lends a workspace to the unused user its programs run as: an idmapped mount that one thread sees.

Inside, the folder's owner appears as that user, and what it makes belongs to the owner on disk; nothing is changed on
the host, and nobody else sees the mount. mount_setattr(2), Linux 5.12.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import struct
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Generic, TypeVar

from gpubox.errors import GpuboxError

T = TypeVar("T")
_OPEN_TREE, _MOVE_MOUNT, _MOUNT_SETATTR = 428, 429, 442
_CLONE_NEWNS, _MS_PRIVATE, _AT_EMPTY_PATH, _AT_FDCWD = 0x20000, 0x44000, 0x1000, -100
_TREE_CLONE, _MOVE_FROM_FD = 0x1 | os.O_CLOEXEC, 0x4
_NOSUID, _NODEV, _IDMAP = 0x2, 0x4, 0x100000
_NEW_USERS = "import ctypes,sys;print(ctypes.CDLL(None).unshare(0x10000000),flush=True);sys.stdin.read()"
_maps: dict[tuple[int, int, int], int] = {}


class IdmappedMount(Generic[T]):
    """Calls ``start`` where the lent folder is mounted over itself; the thread lives until ``end``.

    It must: the processes ``start`` makes are killed by the kernel when the thread that made them is gone.
    """

    def __init__(self, folder: Path, uid: int, start: Callable[[], T]) -> None:
        self._folder, self._uid, self._start = folder, uid, start
        self._started, self._over = threading.Event(), threading.Event()
        self._result: list[T] = []
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._live, name="gpubox-sandbox", daemon=True)

    def begin(self) -> T:
        """What ``start`` returned. Raises what it raised, or GpuboxError where this folder cannot be lent."""
        self._thread.start()
        self._started.wait()
        if self._error is not None:
            raise self._error
        return self._result[0]

    def end(self) -> None:
        """To be called once the processes are dead."""
        self._over.set()
        self._thread.join()

    def _live(self) -> None:
        try:
            _lend(self._folder, self._uid)
            self._result.append(self._start())
        except OSError as error:
            self._error = GpuboxError(
                f"The workspace {self._folder} cannot be lent to a confined program: {error.strerror}.",
                "Run gpubox as an ordinary user, or choose a folder on ext4, xfs or btrfs.",
            )
        except BaseException as error:
            self._error = error
        finally:
            self._started.set()
        if self._error is None:
            self._over.wait()


def _lend(folder: Path, uid: int) -> None:
    """In the calling thread alone: ``folder`` as one that belongs to ``uid``."""
    owner = folder.stat()
    users = _user_map(owner.st_uid, owner.st_gid, uid)
    path = os.fsencode(folder)
    _checked("unshare", _CLONE_NEWNS)
    _checked("mount", None, b"/", None, _MS_PRIVATE, None)
    tree = _checked("syscall", _OPEN_TREE, _AT_FDCWD, path, _TREE_CLONE)
    try:
        wanted = struct.pack("=QQQQ", _IDMAP | _NOSUID | _NODEV, 0, 0, users)
        _checked("syscall", _MOUNT_SETATTR, tree, b"", _AT_EMPTY_PATH, wanted, len(wanted))
        _checked("syscall", _MOVE_MOUNT, tree, b"", _AT_FDCWD, path, _MOVE_FROM_FD)
    finally:
        os.close(tree)


def _checked(name: str, *arguments: int | bytes | None) -> int:
    libc = ctypes.CDLL(None, use_errno=True)
    as_long = [ctypes.c_long(a) if isinstance(a, int) else a for a in arguments]
    result = int(getattr(libc, name)(*as_long))
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    return result


def _user_map(owner: int, group: int, uid: int) -> int:
    """An open user namespace that maps the owner to ``uid``; kept for the next run. Only a process can make one."""
    key = (owner, group, uid)
    if key not in _maps:
        python = "/usr/bin/python3" if Path("/usr/bin/python3").exists() else sys.executable
        with subprocess.Popen(
            [python, "-I", "-S", "-c", _NEW_USERS], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        ) as helper:
            assert helper.stdout is not None
            if helper.stdout.readline().strip() != "0":
                raise OSError(1, "user namespaces are refused")
            with contextlib.closing(helper.stdout):
                Path(f"/proc/{helper.pid}/uid_map").write_text(f"{owner} {uid} 1")
                Path(f"/proc/{helper.pid}/gid_map").write_text(f"{group} {uid} 1")
                _maps[key] = os.open(f"/proc/{helper.pid}/ns/user", os.O_RDONLY | os.O_CLOEXEC)
    return _maps[key]
