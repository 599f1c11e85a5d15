"""Memory and cores of the host, and what one process uses of them, from /proc (man 5 proc). Linux only."""

from __future__ import annotations

import contextlib
import os
import re
from dataclasses import dataclass
from pathlib import Path

from gpubox.hardware.process import ProcessIdentity, boot_id

_TICKS_PER_SECOND = os.sysconf("SC_CLK_TCK")
_PROC = Path("/proc")


@dataclass(frozen=True, slots=True)
class HostReading:
    """RAM and cores at one time."""

    ram_total_bytes: int
    ram_available_bytes: int
    swap_used_bytes: int
    cpu_percent: tuple[float, ...]
    """Of each core since the last reading; empty in the first reading."""
    swap_free_bytes: int = 0


@dataclass(frozen=True, slots=True)
class ProcessReading:
    """One process at one time. The counters begin at its start."""

    pid: int
    cpu_seconds: float
    threads: int
    rss_bytes: int
    anon_bytes: int
    """Resident private memory: weights that were read, caches, checkpoints."""
    file_bytes: int
    """Resident pages of mapped files, such as mapped weights."""
    shared_bytes: int
    major_faults: int
    read_bytes: int | None
    """Bytes read from storage; ``None`` if the kernel hides them."""
    stopped: bool = False
    """Whether it is suspended (SIGSTOP, state T)."""
    locked_bytes: int = 0
    """Memory that the kernel may not swap out (``mlock``; VmLck)."""


class HostReader:
    """Reads the host. CPU percentages are those between two readings, so it keeps the last one."""

    def __init__(self, proc: Path = _PROC) -> None:
        self._proc = proc
        self._times: list[tuple[int, int]] = []
        self._percent: tuple[float, ...] = ()
        self._last: HostReading | None = None

    def read(self) -> HostReading | None:
        """A new reading. If the kernel hides a value: the last reading, or ``None`` if there is none."""
        try:
            memory = _fields((self._proc / "meminfo").read_bytes())
            total, available = (_size(memory, name) for name in (b"MemTotal", b"MemAvailable"))
            swap, swap_free = (_size(memory, name) for name in (b"SwapTotal", b"SwapFree"))
            percent = self._cpu_percent()
        except (OSError, ValueError, IndexError):
            return self._last
        if not total or b"MemAvailable" not in memory:
            return self._last
        self._last = HostReading(total, available, swap - swap_free, percent, swap_free)
        return self._last

    def _cpu_percent(self) -> tuple[float, ...]:
        lines = (self._proc / "stat").read_bytes().splitlines()
        times = [_busy_and_total(line) for line in lines if re.match(rb"cpu\d", line)]
        before, self._times = self._times, times
        if len(before) != len(times):  # the first reading, or a core came or went
            self._percent = ()
        elif any(now[1] > then[1] for now, then in zip(times, before, strict=True)):
            self._percent = tuple(_percent(now, then) for now, then in zip(times, before, strict=True))
        return self._percent  # unchanged within one tick of the kernel's clock


def _busy_and_total(line: bytes) -> tuple[int, int]:
    """(busy, total) clock ticks of one core. Guest time is part of user and nice; iowait counts as idle."""
    ticks = [int(field) for field in line.split()[1:9]]  # user nice system idle iowait irq softirq steal
    total = sum(ticks)
    return total - sum(ticks[3:5]), total


def _percent(now: tuple[int, int], then: tuple[int, int]) -> float:
    busy, total = now[0] - then[0], now[1] - then[1]
    return round(min(max(100 * busy / total, 0.0), 100.0), 1) if total > 0 else 0.0


def zfs_cache_bytes() -> int:
    """What ZFS gives back under pressure; MemAvailable does not count it."""
    with contextlib.suppress(OSError, ValueError, IndexError, KeyError):
        lines = Path("/proc/spl/kstat/zfs/arcstats").read_text(encoding="ascii", errors="replace").splitlines()
        values = {fields[0]: int(fields[2]) for line in lines[2:] if len(fields := line.split()) == 3}
        return max(0, values["size"] - values["c_min"])
    return 0


def process_age(identity: ProcessIdentity) -> float:
    """Seconds since the process started, to the clock tick."""
    uptime = float(Path("/proc/uptime").read_text(encoding="ascii").split()[0])
    return uptime - identity.start_ticks / _TICKS_PER_SECOND


def read_process(identity: ProcessIdentity, proc: Path = _PROC) -> ProcessReading | None:
    """What this process uses; ``None`` if it is gone, also if its pid was reused. Never raises."""
    try:
        if identity.boot_id != boot_id():
            return None
        # Files below an open folder belong to one process, even if its pid is reused between two reads.
        folder = os.open(proc / str(identity.pid), os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        return _read_process(identity, folder)
    except (OSError, ValueError, IndexError):  # it ended meanwhile
        return None
    finally:
        os.close(folder)


def _read_process(identity: ProcessIdentity, folder: int) -> ProcessReading | None:
    # man 5 proc: the fields after the name, which may hold spaces and brackets; the state is field 3.
    stat = _read(folder, "stat").rpartition(b")")[2].split()
    state, major_faults, user, system, threads, start_ticks = (stat[n - 3] for n in (3, 12, 14, 15, 20, 22))
    if state in (b"Z", b"X") or int(start_ticks) != identity.start_ticks:
        return None
    sizes = _fields(_read(folder, "status"))
    try:
        read_bytes = int(_fields(_read(folder, "io"))[b"read_bytes"])
    except (PermissionError, FileNotFoundError, KeyError):  # another user's process, or a kernel without the file
        read_bytes = None
    return ProcessReading(
        pid=identity.pid,
        cpu_seconds=(int(user) + int(system)) / _TICKS_PER_SECOND,
        threads=int(threads),
        rss_bytes=_size(sizes, b"VmRSS"),
        anon_bytes=_size(sizes, b"RssAnon"),
        file_bytes=_size(sizes, b"RssFile"),
        shared_bytes=_size(sizes, b"RssShmem"),
        major_faults=int(major_faults),
        read_bytes=read_bytes,
        stopped=state == b"T",  # not "t": a debugger is attached, as ggml's own during a crash
        locked_bytes=_size(sizes, b"VmLck"),
    )


def _read(folder: int, name: str) -> bytes:
    file = os.open(name, os.O_RDONLY | os.O_CLOEXEC, dir_fd=folder)
    try:
        return os.read(file, 65536)  # one read returns a whole file of /proc
    finally:
        os.close(file)


def _fields(text: bytes) -> dict[bytes, bytes]:
    """The fields of lines of ``Name:\tvalue``."""
    return {name: value.strip() for name, _, value in (line.partition(b":") for line in text.splitlines())}


def _size(fields: dict[bytes, bytes], name: bytes) -> int:
    """A field in KiB as bytes; 0 if it is missing, as in a process that is just ending."""
    return int(fields.get(name, b"0 kB").split()[0]) * 1024


def physical_cores(cpus: Path = Path("/sys/devices/system/cpu")) -> int | None:
    """The physical cores that this process may use; None if the kernel does not say. Two threads share a core."""
    try:
        cores = {
            (cpus / f"cpu{cpu}/topology/core_cpus_list").read_text(encoding="ascii").strip()
            for cpu in os.sched_getaffinity(0)
        }
    except OSError:
        return None
    return len(cores) or None
