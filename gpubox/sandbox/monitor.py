"""Runs inside the sandbox beside the program: waits for it, and kills it if it makes the kernel hold too much memory.

boot.py runs its text with the names CONFIG, PROGRAM (the pid), ENDED and ``call``. It must work alone, with Python 3.9
and few imports. Its process is not dumpable, and it alone has the pipe for the report.
"""

import os
import time
from contextlib import suppress

_TICK_SECONDS, _REST_TICK_SECONDS, _REST_SECONDS, _REST_CPU_SECONDS = 0.02, 0.2, 2.0, 0.001
"""How often it looks whether a program that stays did something, and if it rests; how often it is checked if it rests;
and how much CPU time it may use at rest."""
MYPY = False
if MYPY:
    from typing import Any
if "CONFIG" not in globals():  # imported for its text
    CONFIG: "dict[str, Any]" = {}
    PROGRAM, ENDED = 0, None

    def call(name: str, *arguments: object) -> int:
        """Calls a function of the C library (boot.py)."""
        raise NotImplementedError


def _monitor() -> None:
    """Waits for the program, or kills it at a limit; reports how it ended; ends all other processes."""
    import _signal  # type: ignore[import-not-found]

    def end(*_: object) -> None:
        os.killpg(0, 9)
        os._exit(1)  # killpg spares the first process of a namespace; its exit ends the others

    # If gpubox is gone or stuck, this process ends the run.
    _signal.signal(_signal.SIGALRM, end)
    _signal.signal(_signal.SIGTERM, end)
    _signal.alarm(CONFIG["alarm"])
    if CONFIG.get("group"):
        call("prctl", 1, _signal.SIGTERM, 0, 0, 0)  # PR_SET_PDEATHSIG
        call("prctl", 36, 1, 0, 0, 0)  # PR_SET_CHILD_SUBREAPER: daemons stay below it
        if os.getppid() != CONFIG["parent"]:
            end()
    kernel_memory, exceeded_limit = _KernelMemory(), ""
    orders = _Orders() if CONFIG.get("control_fd") is not None else None
    if ENDED:
        status, usage = ENDED
    while not exceeded_limit and not ENDED:
        done, status, usage = os.wait4(-1, os.WNOHANG)
        if done == PROGRAM:
            break
        if orders and not done:
            if not orders.wait(kernel_memory.tick):
                end()
            if not orders.stopped and kernel_memory.is_due():
                exceeded_limit, status = kernel_memory.exceeded_limit(), 9
        elif not done and not _signal.sigtimedwait([_signal.SIGCHLD], kernel_memory.pause):
            exceeded_limit, status = kernel_memory.exceeded_limit(), 9
    report = b"%d %f %s\n" % (status, usage.ru_utime + usage.ru_stime, exceeded_limit.encode())
    os.write(CONFIG["status_fd"], report)
    if CONFIG.get("group"):
        end()
    os._exit(0)


def _number(text: str, name: str) -> int:
    """The number after ``name``; 0 if there is none."""
    at = text.find(name)
    return int(text[at + len(name) :].split(None, 1)[0]) if at >= 0 else 0


class _Orders:
    """Stops all processes of a program that stays, and lets them go on, as gpubox says."""

    def __init__(self) -> None:
        import _signal
        import select

        _signal.signal(_signal.SIGINT, _signal.SIG_DFL)  # which spares the first process of a namespace
        self._select, self._program = select.select, os.pidfd_open(PROGRAM)
        self.stopped = False
        self._stopped_before: set[int] = set()

    def wait(self, seconds: float) -> bool:
        """Waits for an order, for the end of the program or a moment, and carries the order out.

        Returns false if gpubox is gone.
        """
        fd = CONFIG["control_fd"]
        if fd not in self._select([fd, self._program], [], [], seconds)[0]:
            return True
        order = os.read(fd, 1)
        if order == b"s":
            self.stopped = self._stop()
            os.write(CONFIG["status_fd"], b"s" if self.stopped else b"-")
        elif order == b"c":
            self._go_on()
            os.write(CONFIG["status_fd"], b"c")
        return order != b""

    def _stop(self) -> bool:
        """Whether every process stands still for good.

        What is just ending may let others go on by its end (kill_orphaned_pgrp), and what waits in vfork stops late:
        so they are stopped until all have been seen to stand, twice.
        """
        self._stopped_before = {pid for pid, states in self._states() if states <= {"T"}}
        patience = 0.05
        while patience < 4:
            self._signal_all(19)  # SIGSTOP: at once to all, what is being forked included (kill(2), -1)
            stood, until = 0, time.monotonic() + patience
            while time.monotonic() < until:
                stood = stood + 1 if all(states <= set("TtZX") for _, states in self._states()) else 0
                if stood == 2:
                    return True
                if not stood:
                    time.sleep(0.001)
                    self._signal_all(19)
            self._go_on()
            time.sleep(0.01)
            patience *= 2
        return False

    def _go_on(self) -> None:
        self.stopped = False
        for pid, _ in self._states():
            if pid not in self._stopped_before:
                with suppress(OSError):
                    os.kill(pid, 18)  # SIGCONT

    def _signal_all(self, number: int) -> None:
        with suppress(ProcessLookupError):
            os.kill(-1, number)

    def _states(self) -> "list[tuple[int, set[str]]]":
        """Each process, and what its threads do, in the kernel's letters."""
        seen = []
        for name in os.listdir("/proc"):  # noqa: PTH208
            if not name.isdigit() or int(name) == os.getpid():
                continue
            states = set()
            with suppress(OSError):
                for task in os.listdir(f"/proc/{name}/task"):  # noqa: PTH208
                    with suppress(OSError), open(f"/proc/{name}/task/{task}/stat") as file:  # noqa: PTH123
                        states.add(file.read().rpartition(")")[2].split(None, 1)[0])
            seen.append((int(name), states))
        return seen


class _KernelMemory:
    """Kernel memory that the program causes beyond the pages of its processes. No process limit counts it.

    Some of it can only be read as a sum over the whole machine. That counts only as far as the program's own time in
    the kernel allows for, so that a program is not killed for what others do.
    """

    def __init__(self) -> None:
        self.pause = 0.005
        self._own = os.getpid()
        self._stays = CONFIG.get("control_fd") is not None
        self._host = self._host_sums()
        self._spent, self._charged = 0.0, [0, 0]
        self._known: list[int] = []
        self._seen = (-1.0, b"")
        self._checked, self.tick = 0.0, _TICK_SECONDS
        self._load = os.open("/proc/loadavg", os.O_RDONLY)

    def exceeded_limit(self) -> str:
        """The limit that was exceeded, in words; empty if none."""
        limits = CONFIG["watch"]
        for folder in limits["folders"]:
            disk = os.statvfs(folder)
            if disk.f_files - disk.f_ffree > limits["files"]:
                return "files: more than {:,} were made in {}".format(limits["files"], folder)
        pids = self.pids()
        self.pause = 0.01 + 0.0003 * len(pids)
        used = {
            "page tables": 0,
            "sockets": self._open_sockets(pids) * 212_992,
        }
        for pid in pids:
            status = self._read(f"/proc/{pid}/status")
            used["page tables"] += _number(status, "VmPTE:") << 10
            # gpubox adds up all processes, but only ten times a second.
            if (_number(status, "RssAnon:") + _number(status, "RssShmem:")) << 10 > CONFIG["memory"]:
                return "memory: more than {:,} MiB".format(CONFIG["memory"] >> 20)
        if self._stays:
            self._charge(pids)
            used["locks, open files and mappings"], used["file name lookups"] = self._charged[0], self._charged[1] * 400
        # At least a microsecond for each KiB, and a quarter of one for each name: no processor is faster.
        slab, names = self._host if self._stays else self._host_sums()
        slab, names = slab - self._host[0], names - self._host[1]
        if slab + names * 400 > limits["kernel"] // 4:
            spent = sum(self._kernel_seconds(pid) for pid in pids) + os.times().children_system
            used["locks, open files and mappings"] = min(slab, int(spent * 1e6) << 10)
            used["file name lookups"] = min(names, int(spent * 4e6)) * 400
        if sum(used.values()) <= limits["kernel"]:
            return ""
        largest = max(used, key=lambda name: used[name])
        return "memory: the kernel held more than {} MiB for the program ({})".format(limits["kernel"] >> 20, largest)

    def is_due(self) -> bool:
        """Whether a program that stays has done anything since the last check, or that was a while ago."""
        passed, (cpu, last) = time.monotonic() - self._checked, self._activity()
        busy = last != self._seen[1] or not 0 <= cpu - self._seen[0] < _REST_CPU_SECONDS
        self.tick = _TICK_SECONDS if busy else _REST_TICK_SECONDS
        pause = self.pause
        if CONFIG["group_bounds"]:  # the kernel bounds its memory: this only says why early
            self.tick, pause = _REST_TICK_SECONDS, 0.1
        return passed > (pause if busy else _REST_SECONDS)

    def _activity(self) -> "tuple[float, bytes]":
        """CPU seconds of the processes of the last check, and the last process id that was given out."""
        try:  # a clock of a process: clock_getcpuclockid(3)
            used = sum(time.clock_gettime(~pid << 3 | 2) for pid in self._known)
        except OSError:
            used = -1.0
        return used, os.pread(self._load, 99, 0).rpartition(b" ")[2]

    def _charge(self, pids: "list[int]") -> None:
        """As for a program that ends, but from check to check: in hours others do so much on this machine."""
        spent = sum(self._kernel_seconds(pid) for pid in pids) + os.times().children_system
        now, passed = self._host_sums(), max(0.0, spent - self._spent)
        if not CONFIG["group_bounds"]:
            for at, most in enumerate((int(passed * 1e6) << 10, int(passed * 4e6))):
                self._charged[at] = max(0, self._charged[at] + min(now[at] - self._host[at], most))
        self._host, self._spent, self._known = now, spent, pids
        self._seen, self._checked = self._activity(), time.monotonic()

    def pids(self) -> "list[int]":
        """The program's processes, including those that it orphaned."""
        if not CONFIG.get("group"):
            return [int(n) for n in os.listdir("/proc") if n.isdigit() and int(n) != self._own]  # noqa: PTH208
        pids, pending = [], [self._own]
        while pending:
            folder = f"/proc/{pending.pop()}/task"
            try:
                for task in os.listdir(folder):  # noqa: PTH208
                    with open(f"{folder}/{task}/children") as file:  # noqa: PTH123
                        below = [int(word) for word in file.read().split()]
                    pids += below
                    pending += below
            except OSError:
                pass
        return pids

    def _read(self, path: str) -> str:
        try:
            with open(path) as file:  # noqa: PTH123
                return file.read()
        except OSError:
            return ""

    def _open_sockets(self, pids: "list[int]") -> int:
        """Sockets of this network namespace; if that is the host's, only those that ``pids`` have open."""
        if not (CONFIG.get("group") or CONFIG["network"]):
            return _number(self._read("/proc/self/net/sockstat"), "used ")
        count = 0
        for pid in pids:
            folder = f"/proc/{pid}/fd"
            try:
                fds = os.listdir(folder)  # noqa: PTH208
                if len(fds) > 8:
                    count += sum(os.readlink(f"{folder}/{fd}").startswith("socket:") for fd in fds)  # noqa: PTH115
            except OSError:
                pass
        return count

    def _host_sums(self) -> "tuple[int, int]":
        """Bytes of unreclaimable kernel objects, and cached names of files that do not exist (Linux 5.0)."""
        try:
            with open("/proc/sys/fs/dentry-state") as file:  # noqa: PTH123
                names = int(file.read().split()[4])
        except (OSError, ValueError, IndexError):
            names = 0
        buffers = 0
        if self._stays:  # what waits in sockets of the internet
            lines = self._read("/proc/self/net/sockstat").splitlines()
            buffers = sum(int(line.rpartition(" ")[2]) << 12 for line in lines if " mem " in line)
        return (_number(self._read("/proc/meminfo"), "SUnreclaim:") << 10) + buffers, names

    def _kernel_seconds(self, pid: int) -> float:
        """Kernel time of the process and of the children that it waited for: proc(5), stime and cstime."""
        try:
            with open(f"/proc/{pid}/stat") as file:  # noqa: PTH123
                fields = file.read().rpartition(")")[2].split()
            return (int(fields[12]) + int(fields[14])) / os.sysconf("SC_CLK_TCK")
        except (OSError, IndexError):
            return 0.0


if CONFIG:
    _monitor()
