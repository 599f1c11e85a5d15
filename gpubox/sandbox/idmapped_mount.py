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
    """Calls ``start`` in a thread that sees ``folder`` mounted over itself with another owner.

    The thread lives until ``end``: the kernel kills the processes that ``start`` made when their thread is gone
    (PR_SET_PDEATHSIG).
    """

    def __init__(self, folder: Path, uid: int, start: Callable[[], T]) -> None:
        self._folder, self._uid, self._start = folder, uid, start
        self._started, self._ended = threading.Event(), threading.Event()
        self._result: list[T] = []
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="gpubox-sandbox", daemon=True)

    def begin(self) -> T:
        """Returns what ``start`` returns. Raises what it raises, and GpuboxError if the folder cannot be mounted so."""
        self._thread.start()
        self._started.wait()
        if self._error is not None:
            raise self._error
        return self._result[0]

    def end(self) -> None:
        """Call it once the processes are dead."""
        self._ended.set()
        self._thread.join()

    def _run(self) -> None:
        try:
            _mount(self._folder, self._uid)
            self._result.append(self._start())
        except OSError as error:
            self._error = GpuboxError(
                f"A confined program cannot get access to the workspace {self._folder}: {error.strerror}.",
                "Run gpubox as an ordinary user, or choose a folder on ext4, xfs or btrfs.",
            )
        except BaseException as error:
            self._error = error
        finally:
            self._started.set()
        if self._error is None:
            self._ended.wait()


def _mount(folder: Path, uid: int) -> None:
    """Mounts ``folder`` over itself, for the calling thread alone, as a folder of ``uid``."""
    owner = folder.stat()
    user_namespace = _user_map(owner.st_uid, owner.st_gid, uid)
    path = os.fsencode(folder)
    _checked("unshare", _CLONE_NEWNS)
    _checked("mount", None, b"/", None, _MS_PRIVATE, None)
    tree = _checked("syscall", _OPEN_TREE, _AT_FDCWD, path, _TREE_CLONE)
    try:
        attributes = struct.pack("=QQQQ", _IDMAP | _NOSUID | _NODEV, 0, 0, user_namespace)
        _checked("syscall", _MOUNT_SETATTR, tree, b"", _AT_EMPTY_PATH, attributes, len(attributes))
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
    """An open user namespace that maps the owner to ``uid``, kept for later runs. It takes a process to make one."""
    key = (owner, group, uid)
    if key not in _maps:
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
                _maps[key] = os.open(f"/proc/{helper.pid}/ns/user", os.O_RDONLY | os.O_CLOEXEC)
    return _maps[key]
