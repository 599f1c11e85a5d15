"""A cgroup for each run, if gpubox may make one here: the kernel then bounds all memory, its own included.

Version 2: below a folder that is delegated to this user (systemd does so for its user manager), or as root. Version 1:
as root. If it fails, the run goes on without a cgroup: the process limits and the monitor's checks remain.
Formats: the kernel's admin-guide/cgroup-v2.rst and cgroup-v1/memory.rst.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import time
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from gpubox.hardware.process import descendants
from gpubox.sandbox.policy import Policy

ROOT = Path("/sys/fs/cgroup")
_WAIT_SECONDS = 0.5
_numbers = itertools.count(1)


@dataclass(frozen=True, slots=True)
class Cgroup:
    """The cgroup of one run, or one in which gpubox can make those of the runs."""

    folder: Path
    version: int

    @property
    def limit_file(self) -> Path:
        """Bounds its memory, in bytes."""
        return self.folder / ("memory.max" if self.version == 2 else "memory.limit_in_bytes")

    def admit(self, pid: int, go_fd: int) -> None:
        """Moves ``pid`` and its descendants in, then writes a byte to ``go_fd``, for which the program waits.

        Processes that they make later are inside from the start. Blocks for some milliseconds; never raises OSError.
        """
        try:
            end = time.monotonic() + _WAIT_SECONDS
            outside = [pid]
            while outside and time.monotonic() < end:
                for process in outside:
                    with contextlib.suppress(ProcessLookupError):
                        (self.folder / "cgroup.procs").write_text(str(process))
                inside = set(map(int, (self.folder / "cgroup.procs").read_text().split()))
                outside = [process for process in descendants(pid) if process not in inside]
        except (OSError, ValueError):
            pass
        finally:
            with contextlib.suppress(OSError):
                os.write(go_fd, b"1")

    def was_full(self) -> bool:
        """Whether the kernel killed a process of it for lack of memory."""
        name = "memory.events" if self.version == 2 else "memory.oom_control"
        with contextlib.suppress(OSError, ValueError):
            for line in (self.folder / name).read_text().splitlines():
                if line.startswith("oom_kill "):
                    return int(line.split()[1]) > 0
        return False

    def remove(self) -> None:
        """Removes the cgroup. Call it once its processes are dead; the last one may take a moment to leave."""
        end = time.monotonic() + _WAIT_SECONDS
        while time.monotonic() < end:
            try:
                self.folder.rmdir()
                return
            except FileNotFoundError:
                return
            except OSError:
                time.sleep(0.002)


def make(policy: Policy) -> Cgroup | None:
    """Makes a cgroup with the bounds of ``policy``; None if gpubox may make none here."""
    parent = find()
    if parent is None:
        return None
    group = Cgroup(parent.folder / f"gpubox-run-{os.getpid()}-{next(_numbers)}", parent.version)
    limit = str(policy.memory_bytes + policy.kernel_bytes + 3 * policy.scratch_bytes)
    try:
        group.folder.mkdir()
        group.limit_file.write_text(limit)
    except OSError:
        group.remove()
        return None
    if parent.version == 2:
        optional = {"memory.swap.max": "0", "memory.oom.group": "1"}
    else:
        optional = {"memory.memsw.limit_in_bytes": limit}
    for name, value in optional.items():  # not every kernel has these
        with contextlib.suppress(OSError):
            (group.folder / name).write_text(value)
    return group


@cache
def find() -> Cgroup | None:
    """Where this process may make cgroups that bound memory. Tries it by making one."""
    candidates = _candidates(ROOT, Path("/proc/self/cgroup"), as_root=os.geteuid() == 0)
    return next((parent for parent in candidates if _works(parent)), None)


def _works(parent: Cgroup) -> bool:
    """Makes and removes a cgroup. Also removes those of gpubox processes that were killed."""
    for abandoned in parent.folder.glob("gpubox-run-*"):
        with contextlib.suppress(OSError):  # rmdir fails while processes are in it
            if not Path("/proc", abandoned.name.split("-")[2]).exists():
                abandoned.rmdir()
    trial = Cgroup(parent.folder / f"gpubox-run-{os.getpid()}-0", parent.version)
    try:
        trial.folder.mkdir()
        try:
            trial.limit_file.write_text(str(1 << 30))
            return os.access(trial.folder / "cgroup.procs", os.W_OK)
        finally:
            trial.folder.rmdir()
    except OSError:
        return False


def _candidates(root: Path, own: Path, *, as_root: bool) -> list[Cgroup]:
    """Folders to try, the nearest first. Processes can be moved only below a folder that this user may write."""
    try:
        lines = [line.split(":", 2) for line in own.read_text().splitlines()]
    except OSError:
        return []
    parents: list[Cgroup] = []
    for _, controllers, path in lines:
        inside = Path(path.lstrip("/"))
        if controllers == "" and (root / "cgroup.controllers").exists():
            # gpubox's own cgroup holds processes, so it can have no children (cgroup-v2.rst, no internal processes).
            above = [root / folder for folder in inside.parents]
            usable = [folder for folder in above if _delegated(folder) and (as_root or folder != root)]
            parents += [Cgroup(folder, 2) for folder in usable]
        elif "memory" in controllers.split(","):
            mount = root / "memory"
            parents += [Cgroup(folder, 1) for folder in (mount / inside, mount) if as_root and folder.is_dir()]
    return parents


def _delegated(folder: Path) -> bool:
    try:
        enabled = (folder / "cgroup.subtree_control").read_text().split()
    except OSError:
        return False
    return "memory" in enabled and os.access(folder, os.W_OK) and os.access(folder / "cgroup.procs", os.W_OK)
