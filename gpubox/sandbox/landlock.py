"""The isolation without namespaces: a throw-away folder, and what the kernel lets Landlock, seccomp and limits forbid.

Weaker than bubblewrap: the host's processes and its disk can be seen (names, not contents), memory counts for each
process alone, and a kernel older than Landlock 6 needs signals forbidden outright.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import tempfile
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from gpubox.sandbox.disk_usage import remove_tree
from gpubox.sandbox.interpreter import Interpreter
from gpubox.sandbox.policy import Policy

_CREATE_RULESET, _VERSION_FLAG = 444, 1
SIGNAL_SCOPE = 6
"""From this version on a program cannot signal what is outside."""
_READABLE = ["/usr/bin", "/usr/sbin", "/usr/lib", "/usr/lib32", "/usr/lib64", "/usr/share/zoneinfo", "/etc/localtime"]
_READABLE += ["/bin", "/sbin", "/lib", "/lib32", "/lib64", "/etc/ld.so.cache", "/etc/alternatives"]
_DEVICES = ("/dev/null", "/dev/zero", "/dev/full", "/dev/random", "/dev/urandom")


@cache
def version() -> int:
    """The kernel's Landlock ABI; 0 where it has none or has it switched off."""
    libc = ctypes.CDLL(None, use_errno=True)
    return max(0, int(libc.syscall(_CREATE_RULESET, None, ctypes.c_size_t(0), ctypes.c_uint32(_VERSION_FLAG))))


def count_own_threads() -> int:
    """Threads of this user on the whole machine: without a namespace the kernel counts those too."""
    found = 0
    for folder in Path("/proc").iterdir():
        with contextlib.suppress(OSError):
            if folder.name.isdigit() and folder.stat().st_uid == os.getuid():
                found += sum(1 for _ in (folder / "task").iterdir())
    return found


@dataclass(frozen=True, slots=True)
class ScratchDirs:
    """The folders of one run, made for it and removed after it."""

    root: Path
    work: Path
    tmp: Path
    main: Path
    read_only: bool = False
    """Whether ``work`` may only be read."""

    def remove(self) -> None:
        remove_tree(self.root)


def _remove_left() -> None:
    """The folders of this user's gpuboxes that were killed."""
    for path in Path(tempfile.gettempdir()).glob("gpubox-sandbox-*-*"):
        pid = path.name.split("-")[2]
        with contextlib.suppress(OSError):
            if pid.isdecimal() and not Path("/proc", pid).exists() and path.lstat().st_uid == os.geteuid():
                remove_tree(path)


def make_scratch_dirs(policy: Policy, code: bytes, uid: int) -> ScratchDirs:
    """A new folder in the temporary folder with the program in it. Raises OSError."""
    _remove_left()
    root = Path(tempfile.mkdtemp(prefix=f"gpubox-sandbox-{os.getpid()}-"))
    work, tmp, main = policy.workspace or root / "work", root / "tmp", root / "main.py"
    for folder in {root / "work", tmp}:
        folder.mkdir()
        if uid:
            os.chown(folder, uid, uid)
    main.write_bytes(code)
    if uid:
        root.chmod(0o711)
    return ScratchDirs(root, work, tmp, main, policy.read_only and policy.workspace is not None)


def rules(place: ScratchDirs, python: Interpreter) -> dict[str, list[str]]:
    """What may be read and run, what may be written, and which devices, as boot.py takes it."""
    readable = [*_READABLE, str(place.main), *([str(python.prefix)] if python.prefix else [])]
    writable = [str(place.tmp)]
    (readable if place.read_only else writable).append(str(place.work))
    return {"read": readable, "write": writable, "devices": list(_DEVICES)}
