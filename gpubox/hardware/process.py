"""Processes of this host by identity: never by name, never by a pid alone.

Linux only: ``/proc/PID/stat`` field 22 is the start time in clock ticks since boot (man 5 proc), so
(boot id, pid, start ticks) names one process for ever.
"""

from __future__ import annotations

import contextlib
import os
import stat
from dataclasses import astuple, dataclass
from functools import cache
from pathlib import Path

# psutil is imported where it is needed: it would cost every verb 50 ms.

MARKER_VARIABLE = "GPUBOX_SERVER"
"""Environment variable that every server started by gpubox carries: ``STATE|SLOT|PROFILE|LAUNCH``."""


MAX_TREE_PROCESSES = 64
"""Processes of one launch that are looked at."""


@dataclass(frozen=True, slots=True)
class ProcessIdentity:
    """One process of one boot."""

    pid: int
    start_ticks: int
    boot_id: str


@dataclass(frozen=True, slots=True)
class ProcessActivity:
    """What a process has done so far; any growth between two readings is a sign of life."""

    cpu_seconds: float
    rss_bytes: int
    file_rss_bytes: int
    """Resident pages of mapped files: grows while a model is read through mmap."""
    read_chars: int
    """Bytes asked for by read(2), from the page cache too (``rchar`` of /proc/PID/io)."""


@dataclass(frozen=True, slots=True)
class PortOwner:
    """Who listens on a port. ``pid`` is ``None`` where another user's process hides it."""

    pid: int | None
    name: str

    def __str__(self) -> str:
        return f"{self.name} (pid {self.pid})" if self.pid else self.name


@cache
def boot_id() -> str:
    """This boot's id, as the kernel gives it."""
    return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()


def identity_of(pid: int) -> ProcessIdentity | None:
    """The identity of the living process ``pid``; ``None`` when there is none or it is a zombie."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    fields = text.rpartition(")")[2].split()  # the name may hold spaces and brackets; state comes after it
    if fields[0] in ("Z", "X") and int(fields[17]) <= 1:  # else other threads still hold its files and memory
        return None
    return ProcessIdentity(pid, int(fields[19]), boot_id())


def is_alive(identity: ProcessIdentity | None) -> bool:
    """Whether exactly this process still runs."""
    return identity is not None and identity_of(identity.pid) == identity


def own_identity() -> ProcessIdentity:
    """This gpubox."""
    identity = identity_of(os.getpid())
    assert identity is not None  # the running process is alive
    return identity


def marker_of(pid: int) -> str | None:
    """The gpubox marker in the environment of ``pid``, or ``None``."""
    with contextlib.suppress(OSError):
        for entry in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0"):
            name, _, value = entry.partition(b"=")
            if name == MARKER_VARIABLE.encode():
                return value.decode(errors="replace")
    return None


def find_by_marker(prefix: str) -> list[tuple[ProcessIdentity, str]]:
    """The living processes whose marker begins with ``prefix``, oldest first, with their markers."""
    found = []
    for entry in os.scandir("/proc"):
        if entry.name.isdigit() and (marker := marker_of(int(entry.name))) and marker.startswith(prefix):
            identity = identity_of(int(entry.name))
            if identity:
                found.append((identity, marker))
    return sorted(found, key=lambda pair: (pair[0].start_ticks, pair[0].pid))


def process_activity(pid: int) -> ProcessActivity | None:
    """What ``pid`` has used so far, or ``None`` when it is gone or hidden."""
    import psutil

    try:
        process = psutil.Process(pid)
        with process.oneshot():
            times, rss = process.cpu_times(), process.memory_info().rss
        file_rss = _file_rss(pid)
        read_chars = process.io_counters().read_chars
    except (psutil.Error, OSError):
        return None
    return ProcessActivity(times.user + times.system, rss, file_rss, read_chars)


def process_tree_activity(pid: int) -> ProcessActivity | None:
    """As ``process_activity``, of ``pid`` and all its children together: an engine may be wrapped in a script."""
    total, found, ahead = process_activity(pid), {pid}, _children(pid)
    while total and ahead and len(found) < MAX_TREE_PROCESSES:
        child = ahead.pop()
        if child not in found and (more := process_activity(child)):
            total = ProcessActivity(*(a + b for a, b in zip(astuple(total), astuple(more), strict=True)))
        found.add(child)
        ahead += _children(child)
    return total


def _children(pid: int) -> list[int]:
    """The children that the first thread of ``pid`` made: a shell and an interpreter have no other."""
    try:
        return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text(encoding="ascii").split()]
    except OSError:  # gone, or a kernel without the file
        return []


def process_name(pid: int) -> str | None:
    """The name that ``pid`` gives itself (15 characters at most), or ``None`` when it is gone or hidden."""
    try:
        return Path(f"/proc/{pid}/comm").read_text(encoding="utf-8", errors="replace").strip() or None
    except OSError:
        return None


def _file_rss(pid: int) -> int:
    for line in Path(f"/proc/{pid}/status").read_text(encoding="utf-8", errors="replace").splitlines():
        if line.startswith("RssFile:"):
            return int(line.split()[1]) * 1024
    return 0


def moved_stdout(pid: int, path: Path) -> tuple[Path, str] | None:
    """The file that ``pid`` has as its standard output where ``path`` does not name it (any more), and its name now.

    ``None`` where ``path`` does, or it is no file, or hidden. The returned path opens also what was deleted.
    """
    opened = Path(f"/proc/{pid}/fd/1")
    try:
        found = opened.stat()
        if not stat.S_ISREG(found.st_mode) or (path.exists() and path.samefile(opened)):
            return None
        return opened, str(opened.readlink())
    except OSError:
        return None


def process_argv(pid: int) -> list[str]:
    """The argv of ``pid``; empty when it is gone."""
    import psutil

    try:
        return psutil.Process(pid).cmdline()
    except psutil.Error:
        return []


def port_owner(port: int) -> PortOwner | None:
    """Who listens on TCP ``port`` of this machine, on any address; ``None`` when it is free."""
    import psutil

    try:
        connections = psutil.net_connections(kind="inet")
    except psutil.Error:
        return None
    for connection in connections:
        if connection.status == psutil.CONN_LISTEN and connection.laddr and connection.laddr.port == port:
            if connection.pid is None:
                return PortOwner(None, "another user's program")
            with contextlib.suppress(psutil.Error):
                return PortOwner(connection.pid, psutil.Process(connection.pid).name())
            return PortOwner(connection.pid, "a program")
    return None


def is_listening(pid: int, port: int) -> bool | None:
    """Whether ``pid`` itself listens on ``port``; ``None`` when that cannot be seen."""
    import psutil

    try:
        connections = psutil.Process(pid).net_connections(kind="inet")
    except (psutil.Error, OSError):
        return None
    return any(c.status == psutil.CONN_LISTEN and c.laddr and c.laddr.port == port for c in connections)


def descendants(pid: int) -> list[int]:
    """The pids of all children of ``pid`` and theirs; empty when it is gone."""
    import psutil

    try:
        return [child.pid for child in psutil.Process(pid).children(recursive=True)]
    except psutil.Error:
        return []
