"""A cgroup for each run, where this box lets gpubox make one: there the kernel bounds all memory, its own included.

Version 2: below a folder that is delegated to this user (systemd does so for what its user manager starts), or as root.
Version 1: as root. Whatever fails, the run goes on without: then limits and the supervisor's looks are what holds.
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

from gpubox.sandbox.policy import Policy
from gpubox.sandbox.process_tree import descendants

ROOT = Path("/sys/fs/cgroup")
_PATIENCE_SECONDS = 0.5
_numbers = itertools.count(1)


@dataclass(frozen=True, slots=True)
class CgroupParent:
    """The folder in which a cgroup can be made for each run."""

    folder: Path
    version: int


@dataclass(frozen=True, slots=True)
class Cgroup:
    """The cgroup of one run."""

    folder: Path
    version: int

    def admit(self, pid: int, go_fd: int) -> None:
        """Puts ``pid`` and all below it in, then lets the program begin, which waits for a byte of ``go_fd``.

        What they make afterwards is in it from its beginning. Blocks for some milliseconds; never raises OSError.
        """
        try:
            end = time.monotonic() + _PATIENCE_SECONDS
            waiting = [pid]
            while waiting and time.monotonic() < end:
                for one in waiting:
                    with contextlib.suppress(ProcessLookupError):
                        (self.folder / "cgroup.procs").write_text(str(one))
                inside = set(map(int, (self.folder / "cgroup.procs").read_text().split()))
                waiting = [one for one in descendants(pid) if one not in inside]
        except (OSError, ValueError):
            pass
        finally:
            with contextlib.suppress(OSError):
                os.write(go_fd, b"1")

    def was_full(self) -> bool:
        """Whether the kernel ended a process of it for want of memory."""
        name = "memory.events" if self.version == 2 else "memory.oom_control"
        with contextlib.suppress(OSError, ValueError):
            for line in (self.folder / name).read_text().splitlines():
                if line.startswith("oom_kill "):
                    return int(line.split()[1]) > 0
        return False

    def remove(self) -> None:
        """To be called once its processes are dead; the last one may still be leaving."""
        end = time.monotonic() + _PATIENCE_SECONDS
        while time.monotonic() < end:
            try:
                self.folder.rmdir()
                return
            except FileNotFoundError:
                return
            except OSError:
                time.sleep(0.002)


def make(policy: Policy) -> Cgroup | None:
    """A new cgroup with the bounds of ``policy``; ``None`` where this box has none for gpubox."""
    place = find()
    if place is None:
        return None
    group = Cgroup(place.folder / f"gpubox-run-{os.getpid()}-{next(_numbers)}", place.version)
    most = str(policy.memory_bytes + policy.kernel_bytes + 3 * policy.scratch_bytes)
    try:
        group.folder.mkdir()
        (group.folder / ("memory.max" if place.version == 2 else "memory.limit_in_bytes")).write_text(most)
    except OSError:
        group.remove()
        return None
    swap = (
        {"memory.swap.max": "0", "memory.oom.group": "1"}
        if place.version == 2
        else {"memory.memsw.limit_in_bytes": most}
    )
    for name, value in swap.items():  # not every kernel has these
        with contextlib.suppress(OSError):
            (group.folder / name).write_text(value)
    return group


@cache
def find() -> CgroupParent | None:
    """Where this process may make cgroups that bound memory; shown by making one."""
    for place in _candidates(ROOT, Path("/proc/self/cgroup"), as_root=os.geteuid() == 0):
        if _works(place):
            return place
    return None


def _works(place: CgroupParent) -> bool:
    """Makes and removes one; those of gpuboxes that were killed are removed too."""
    for left in place.folder.glob("gpubox-run-*"):
        with contextlib.suppress(OSError):  # one that is in use stays
            if not Path("/proc", left.name.split("-")[2]).exists():
                left.rmdir()
    trial = place.folder / f"gpubox-run-{os.getpid()}-0"
    try:
        trial.mkdir()
        try:
            name = "memory.max" if place.version == 2 else "memory.limit_in_bytes"
            (trial / name).write_text(str(1 << 30))
            return os.access(trial / "cgroup.procs", os.W_OK)
        finally:
            trial.rmdir()
    except OSError:
        return False


def _candidates(root: Path, own: Path, *, as_root: bool) -> list[CgroupParent]:
    """Folders to try, nearest first. Processes can be moved only below a folder that this user may write."""
    try:
        lines = [line.split(":", 2) for line in own.read_text().splitlines()]
    except OSError:
        return []
    found: list[CgroupParent] = []
    for _, controllers, path in lines:
        inside = Path(path.lstrip("/"))
        if controllers == "" and (root / "cgroup.controllers").exists():
            # Its own cgroup holds processes, so none can be made below it (cgroup-v2.rst, no internal processes).
            above = [root / folder for folder in inside.parents]
            found += [CgroupParent(folder, 2) for folder in above if _delegated(folder) and (as_root or folder != root)]
        elif "memory" in controllers.split(","):
            mount = root / "memory"
            found += [CgroupParent(folder, 1) for folder in (mount / inside, mount) if as_root and folder.is_dir()]
    return found


def _delegated(folder: Path) -> bool:
    try:
        enabled = (folder / "cgroup.subtree_control").read_text().split()
    except OSError:
        return False
    return "memory" in enabled and os.access(folder, os.W_OK) and os.access(folder / "cgroup.procs", os.W_OK)
