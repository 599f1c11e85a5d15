"""Isolation without namespaces: a temporary folder, Landlock, seccomp and process limits.

Weaker than bubblewrap (``policy.weakness`` says how). What Landlock does not mediate, seccomp must forbid everywhere:
permissions, owners and times of files, and before Landlock 6 all signals.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import tempfile
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from gpubox.sandbox import bubblewrap
from gpubox.sandbox.idmapped_mount import bind
from gpubox.sandbox.interpreter import Interpreter
from gpubox.sandbox.layers import remove_tree
from gpubox.sandbox.policy import WORKSPACE_MOUNT, Policy
from gpubox.sandbox.toolchains import CACHE_MOUNT, Toolchains

_CREATE_RULESET, _VERSION_FLAG = 444, 1
SIGNAL_SCOPE = 6
"""From this version on, a program cannot signal processes outside."""
_READABLE = ["/usr/bin", "/usr/sbin", "/usr/lib", "/usr/lib32", "/usr/lib64", "/usr/share/zoneinfo", "/etc/localtime"]
_READABLE += ["/bin", "/sbin", "/lib", "/lib32", "/lib64", "/etc/ld.so.cache", "/etc/alternatives"]
_DEVICES = ("/dev/null", "/dev/zero", "/dev/full", "/dev/random", "/dev/urandom")


@cache
def version() -> int:
    """The kernel's Landlock ABI version; 0 if it has none or it is disabled."""
    libc = ctypes.CDLL(None, use_errno=True)
    return max(0, int(libc.syscall(_CREATE_RULESET, None, ctypes.c_size_t(0), ctypes.c_uint32(_VERSION_FLAG))))


def count_own_threads() -> int:
    """Threads of this user on the whole machine. Without a namespace RLIMIT_NPROC counts them too."""
    count = 0
    for folder in Path("/proc").iterdir():
        with contextlib.suppress(OSError):
            if folder.name.isdigit() and folder.stat().st_uid == os.getuid():
                count += sum(1 for _ in (folder / "task").iterdir())
    return count


@dataclass(frozen=True, slots=True)
class ScratchDirs:
    """The temporary folders of one run."""

    root: Path
    work: Path
    tmp: Path
    main: Path
    mount: Path | None = None
    """Where ``work`` is mounted, for one thread. It is never emptied, because that would empty the workspace."""
    read_only: bool = False
    """``work`` may only be read."""

    def remove(self) -> None:
        remove_tree(self.root)
        if self.mount:
            with contextlib.suppress(OSError):
                self.mount.rmdir()


def _remove_abandoned() -> None:
    """Removes the folders of this user's gpubox processes that were killed."""
    for path in Path(tempfile.gettempdir()).glob("gpubox-sandbox-*-*"):
        pid = path.name.split("-")[2]
        with contextlib.suppress(OSError):
            if pid.isdecimal() and not Path("/proc", pid).exists() and path.lstat().st_uid == os.geteuid():
                remove_tree(path)


def make_scratch_dirs(policy: Policy, copy: Path | None, code: bytes, uid: int) -> ScratchDirs:
    """Makes the folders, with the program in them, below the system's temporary folder. Raises OSError.

    ``copy``: what the program writes in the place of the workspace; else it may only read that.
    """
    _remove_abandoned()
    root = Path(tempfile.mkdtemp(prefix=f"gpubox-sandbox-{os.getpid()}-"))
    work, tmp, main = copy or policy.workspace or root / "work", root / "tmp", root / "main.py"
    for folder in {root / "work", tmp}:
        folder.mkdir()
        if uid:
            os.chown(folder, uid, uid)
    main.write_bytes(code)
    mount = None
    if uid:
        root.chmod(0o711)
        if work != root / "work":  # that user cannot enter the folders of root above it
            mount = Path(tempfile.mkdtemp(prefix=f"gpubox-sandbox-{os.getpid()}-"))
            bind(work, mount)
    return ScratchDirs(root, mount or work, tmp, main, mount, policy.workspace is not None and copy is None)


def environment(scratch: ScratchDirs, tools: Toolchains | None) -> dict[str, str]:
    """The program's environment."""
    env = bubblewrap.ENV | {"HOME": str(scratch.tmp if tools else scratch.work), "TMPDIR": str(scratch.tmp)}
    if tools:
        own = {name: ":".join(_on_host(each, scratch) for each in text.split(":")) for name, text in tools.env.items()}
        env = own | env | {"PATH": own["PATH"], "GIT_CONFIG_NOSYSTEM": "1"}
    return env


def _on_host(path: str, scratch: ScratchDirs) -> str:
    """Where a path inside leads without mounts."""
    places = ((WORKSPACE_MOUNT, scratch.work), (CACHE_MOUNT, scratch.tmp / "cache"))
    return next((f"{place}{path[len(at) :]}" for at, place in places if f"{path}/".startswith(f"{at}/")), path)


def rules(scratch: ScratchDirs, python: Interpreter, tools: Toolchains | None) -> dict[str, list[str]]:
    """Paths that may be read and run, paths that may be written, and devices; boot.py takes them in this form."""
    readable = [*_READABLE, str(scratch.main), *([str(python.prefix)] if python.prefix else [])]
    readable += ["/usr", *tools.folders] if tools else []
    writable = [str(scratch.tmp)]
    (readable if scratch.read_only else writable).append(str(scratch.work))
    return {"read": readable, "write": writable, "devices": list(_DEVICES)}
