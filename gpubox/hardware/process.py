"""Processes of this host, by identity and never by name or pid alone. Linux only.

Field 22 of ``/proc/PID/stat`` is the start time in clock ticks since boot (man 5 proc), so boot id, pid and start ticks
together identify one process forever.
"""

from __future__ import annotations

import contextlib
import os
import re
import signal
import stat
from collections.abc import Iterator
from dataclasses import astuple, dataclass
from functools import cache
from pathlib import Path

# psutil is imported where it is needed, because the import takes 50 ms.

MARKER_VARIABLE = "GPUBOX_SERVER"
"""Environment variable of every server that gpubox starts: ``STATE|INSTANCE|PROFILE|LAUNCH``."""
MAX_TREE_PROCESSES = 64
"""At most so many processes of one launch are read."""


@dataclass(frozen=True, slots=True)
class ProcessIdentity:
    """One process of one boot."""

    pid: int
    start_ticks: int
    boot_id: str


@dataclass(frozen=True, slots=True)
class ProcessActivity:
    """Counters of a process. Any growth between two readings shows that it works."""

    cpu_seconds: float
    rss_bytes: int
    file_rss_bytes: int
    """Resident pages of mapped files; grows while a model is read through mmap. Without shared memory: a CUDA server
    has as much of it as its pinned host buffers take, before it has read anything."""
    read_chars: int
    """Bytes read with read(2), also from the page cache (``rchar`` of /proc/PID/io)."""


@dataclass(frozen=True, slots=True)
class PortOwner:
    """The process that listens on a port. ``pid`` is ``None`` for another user's process."""

    pid: int | None
    name: str

    def __str__(self) -> str:
        return f"{self.name} (pid {self.pid})" if self.pid else self.name


@cache
def boot_id() -> str:
    """The kernel's id of this boot."""
    return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()


def identity_of(pid: int) -> ProcessIdentity | None:
    """The identity of the process ``pid``; ``None`` if it is gone or a zombie."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    fields = text.rpartition(")")[2].split()  # the name before ")" may contain spaces and brackets
    if fields[0] in ("Z", "X") and int(fields[17]) <= 1:  # otherwise other threads still hold its files and memory
        return None
    return ProcessIdentity(pid, int(fields[19]), boot_id())


def thread_states(pid: int) -> str:
    """The kernel's letters for what the threads of ``pid`` do: R runs, S sleeps, D cannot be interrupted."""
    states = ""
    for path in Path(f"/proc/{pid}/task").glob("*/stat"):
        with contextlib.suppress(OSError):
            states += path.read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()[0]
    return "".join(sorted(set(states)))


def is_alive(identity: ProcessIdentity | None) -> bool:
    """Whether this process still runs."""
    return identity is not None and identity_of(identity.pid) == identity


def own_identity() -> ProcessIdentity:
    """The identity of this gpubox."""
    identity = identity_of(os.getpid())
    assert identity is not None  # the running process is alive
    return identity


def environment_of(pid: int) -> dict[str, str]:
    """The variables that ``pid`` was started with; empty if it is gone or hidden."""
    try:
        entries = Path(f"/proc/{pid}/environ").read_bytes().decode(errors="replace").split("\0")
    except OSError:
        return {}
    # of a variable given twice a program reads the first
    return {name: value for name, _, value in (entry.partition("=") for entry in reversed(entries))}


def marker_of(pid: int, variable: str = MARKER_VARIABLE) -> str | None:
    """The value of ``variable`` in the environment of ``pid``, or ``None``."""
    return environment_of(pid).get(variable)


def find_by_marker(prefix: str, variable: str = MARKER_VARIABLE) -> list[tuple[ProcessIdentity, str]]:
    """The processes whose marker begins with ``prefix``, with their markers, oldest first."""
    marked = []
    for entry in os.scandir("/proc"):
        if entry.name.isdigit() and (marker := marker_of(int(entry.name), variable)) and marker.startswith(prefix):
            identity = identity_of(int(entry.name))
            if identity:
                marked.append((identity, marker))
    return sorted(marked, key=lambda pair: (pair[0].start_ticks, pair[0].pid))


def process_activity(pid: int) -> ProcessActivity | None:
    """The activity of ``pid``; ``None`` if it is gone or hidden."""
    import psutil

    try:
        process = psutil.Process(pid)
        with process.oneshot():
            times, rss = process.cpu_times(), process.memory_info().rss
        read_chars = process.io_counters().read_chars
        file_rss = _file_rss(pid)
    except (psutil.Error, OSError):
        return None
    return ProcessActivity(times.user + times.system, rss, file_rss, read_chars)


def _file_rss(pid: int) -> int:
    for line in Path(f"/proc/{pid}/status").read_text(encoding="utf-8", errors="replace").splitlines():
        if line.startswith("RssFile:"):
            return int(line.split()[1]) * 1024
    return 0


def process_tree_activity(pid: int) -> ProcessActivity | None:
    """The activity of ``pid`` and all its descendants together: an engine may be wrapped in a script."""
    total = process_activity(pid)
    if total is None:
        return None
    for child in descendants(pid)[:MAX_TREE_PROCESSES]:
        if activity := process_activity(child):
            total = ProcessActivity(*map(sum, zip(astuple(total), astuple(activity), strict=True)))
    return total


def descendants(pid: int) -> list[int]:
    """The pids of all processes below ``pid``, parents first; empty if it is gone.

    Inside a pid namespace no process can leave this tree.
    """
    pids = children(pid)
    for child in pids:
        pids += children(child)
    return pids


def children(pid: int) -> list[int]:
    """The pids of the children of all threads of ``pid``; empty if it is gone."""
    if not _lists_children():
        import psutil

        try:
            return [child.pid for child in psutil.Process(pid).children()]
        except psutil.Error:
            return []
    pids: list[int] = []
    with contextlib.suppress(OSError):
        for task in os.listdir(f"/proc/{pid}/task"):  # noqa: PTH208 - the sandbox asks ten times a second
            with contextlib.suppress(OSError):
                pids += map(int, Path(f"/proc/{pid}/task/{task}/children").read_text(encoding="ascii").split())
    return pids


@cache
def _lists_children() -> bool:
    """Whether the kernel lists the children of a process (CONFIG_PROC_CHILDREN). If not, all processes are searched."""
    return Path(f"/proc/self/task/{os.getpid()}/children").exists()


def process_name(pid: int) -> str | None:
    """The command name of ``pid`` (at most 15 characters); ``None`` if it is gone or hidden."""
    try:
        return Path(f"/proc/{pid}/comm").read_text(encoding="utf-8", errors="replace").strip() or None
    except OSError:
        return None


def processes_running(folder: Path) -> list[int]:
    """The pids of the processes whose program is a file in ``folder`` or below, of this user."""
    pids = []
    for entry in os.scandir("/proc"):
        if entry.name.isdigit():
            with contextlib.suppress(OSError):
                if Path(f"/proc/{entry.name}/exe").readlink().is_relative_to(folder):
                    pids.append(int(entry.name))
    return pids


def moved_stdout(pid: int, path: Path) -> tuple[Path, str] | None:
    """The file to which ``pid`` writes its output, if that is no longer the file at ``path``, and its current name.

    ``None`` if it is the file at ``path``, not a regular file, or hidden. The returned path also opens a deleted file.
    """
    stdout = Path(f"/proc/{pid}/fd/1")
    try:
        if not stat.S_ISREG(stdout.stat().st_mode) or (path.exists() and path.samefile(stdout)):
            return None
        return stdout, str(stdout.readlink())
    except OSError:
        return None


def process_argv(pid: int) -> list[str]:
    """The command line of ``pid``; empty if it is gone."""
    import psutil

    try:
        return psutil.Process(pid).cmdline()
    except psutil.Error:
        return []


def port_owner(port: int) -> PortOwner | None:
    """Who listens on TCP ``port`` of this machine, on any address; ``None`` if nobody does."""
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
    """Whether ``pid`` itself listens on ``port``; ``None`` if that is hidden."""
    import psutil

    try:
        connections = psutil.Process(pid).net_connections(kind="inet")
    except (psutil.Error, OSError):
        return None
    return any(c.status == psutil.CONN_LISTEN and c.laddr and c.laddr.port == port for c in connections)


def kill_group(pid: int) -> None:
    """Kills the process group that ``pid`` leads. Call it before waiting for ``pid``."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(pid, signal.SIGKILL)


KERNEL_LOG_SECONDS = 5.0


def killed_for_memory(process: ProcessIdentity) -> bool:
    """Whether the kernel's log, as far as this user may read it, says that its out-of-memory killer ended a process.

    mm/oom_kill.c: ``Out of memory: Killed process 4711 (llama-server) total-vm:...``, of a cgroup with its name.
    """
    killed = re.compile(rf"Killed process {process.pid}\b")
    began = process.start_ticks / os.sysconf("SC_CLK_TCK")
    return any(at >= began - 1 and killed.search(text) for at, text in _kernel_log())


def _kernel_log() -> Iterator[tuple[float, str]]:
    """(seconds since boot, text) of each message: from /dev/kmsg, else from the journal."""
    try:
        descriptor = os.open("/dev/kmsg", os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        yield from _journal()
        return
    try:
        while True:
            try:
                head, _, text = os.read(descriptor, 16384).decode(errors="replace").partition(";")
                yield int(head.split(",")[2]) / 1e6, text
            except BrokenPipeError:
                continue  # the oldest messages were overwritten meanwhile
    except (OSError, ValueError, IndexError):
        return
    finally:
        os.close(descriptor)


def _journal() -> Iterator[tuple[float, str]]:
    import subprocess

    command = ["journalctl", "--dmesg", "--boot", "--quiet", "--no-pager", "--lines=500", "--output=short-monotonic"]
    try:
        done = subprocess.run(command, capture_output=True, timeout=KERNEL_LOG_SECONDS, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return
    for line in done.stdout.decode(errors="replace").splitlines():
        if match := re.match(r"\[\s*([\d.]+)\]", line):
            yield float(match[1]), line
