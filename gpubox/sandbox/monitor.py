"""Runs inside the sandbox beside the program: waits for it, and ends it where the kernel holds too much for it.

Its text is sent there with boot.py, which runs it with CONFIG, the program's PROGRAM and ``call`` given. It stands
alone: Python 3.9, the fewest imports. It is undumpable, and only it has the pipe through which the end is reported.
"""

import os

MYPY = False
if MYPY:
    from typing import Any
if "CONFIG" not in globals():  # imported for its text
    CONFIG: "dict[str, Any]" = {}
    PROGRAM, ENDED = 0, None

    def call(name: str, *arguments: object) -> int:
        """boot.py's: one function of the C library."""
        raise NotImplementedError


def _supervise() -> None:
    """Waits for the program, ends it where the kernel holds too much for it, reports how it ended, ends the others."""
    import _signal  # type: ignore[import-not-found]

    def end(*_: object) -> None:
        os.killpg(0, 9)
        os._exit(1)  # the first process of a namespace: the kernel spares it, and ends the others with it

    # Should gpubox be gone or stuck: this process ends what is left.
    _signal.signal(_signal.SIGALRM, end)
    _signal.signal(_signal.SIGTERM, end)
    _signal.alarm(CONFIG["alarm"])
    if CONFIG.get("group"):
        call("prctl", 1, _signal.SIGTERM, 0, 0, 0)  # PR_SET_PDEATHSIG
        call("prctl", 36, 1, 0, 0, 0)  # PR_SET_CHILD_SUBREAPER: a daemon is still below it
        if os.getppid() != CONFIG["parent"]:
            end()
    watch, exceeded_limit = _Watch(), ""
    if ENDED:
        status, usage = ENDED
    while not exceeded_limit and not ENDED:
        done, status, usage = os.wait4(-1, os.WNOHANG)
        if done == PROGRAM:
            break
        if not done and not _signal.sigtimedwait([_signal.SIGCHLD], watch.pause):
            exceeded_limit, status = watch.exceeded_limit(), 9
    report = b"%d %f %s\n" % (status, usage.ru_utime + usage.ru_stime, exceeded_limit.encode())
    os.write(CONFIG["status_fd"], report)
    if CONFIG.get("group"):
        end()
    os._exit(0)


class _Watch:
    """What the kernel holds for the program beyond the pages of its processes: no limit of a process counts that.

    Sums of the whole machine are looked at only where the program's processes spent the time in the kernel that such
    an amount takes, so that nobody pays for what other programs do.
    """

    def __init__(self) -> None:
        self.pause = 0.005
        self._own = os.getpid()
        self._host = self._host_sums()

    def exceeded_limit(self) -> str:
        """Which bound was passed, in a few words; empty where none was."""
        limits = CONFIG["watch"]
        for folder in limits["folders"]:
            found = os.statvfs(folder)
            if found.f_files - found.f_ffree > limits["files"]:
                return "files: more than {:,} were made in {}".format(limits["files"], folder)
        pids = self.pids()
        self.pause = 0.01 + 0.0003 * len(pids)
        held = {
            "page tables": sum(self._number(f"/proc/{pid}/status", "VmPTE:") for pid in pids) << 10,
            "sockets": self._open_sockets(pids) * 212_992,
        }
        # A microsecond for each KiB, and a quarter of one for each name: faster than any processor does it.
        slab, names = self._host_sums()
        slab, names = slab - self._host[0], names - self._host[1]
        if slab + names * 400 > limits["kernel"] // 4:
            spent = sum(self._kernel_seconds(pid) for pid in pids) + os.times().children_system
            held["locks, open files and mappings"] = min(slab, int(spent * 1e6) << 10)
            held["names looked for"] = min(names, int(spent * 4e6)) * 400
        if sum(held.values()) <= limits["kernel"]:
            return ""
        most = max(held, key=lambda name: held[name])
        return "memory: the kernel held more than {} MiB for it ({})".format(limits["kernel"] >> 20, most)

    def pids(self) -> "list[int]":
        """The program's processes, those it left behind too."""
        if not CONFIG.get("group"):
            return [int(n) for n in os.listdir("/proc") if n.isdigit() and int(n) != self._own]  # noqa: PTH208
        found, waiting = [], [self._own]
        while waiting:
            folder = f"/proc/{waiting.pop()}/task"
            try:
                for task in os.listdir(folder):  # noqa: PTH208
                    with open(f"{folder}/{task}/children") as file:  # noqa: PTH123
                        below = [int(word) for word in file.read().split()]
                    found += below
                    waiting += below
            except OSError:
                pass
        return found

    def _number(self, path: str, name: str) -> int:
        try:
            with open(path) as file:  # noqa: PTH123
                text = file.read()
            return int(text[text.index(name) + len(name) :].split(None, 1)[0])
        except (OSError, ValueError):
            return 0

    def _open_sockets(self, pids: "list[int]") -> int:
        """Of this network namespace; where that is the host's, those that ``pids`` have open."""
        if not CONFIG.get("group"):
            return self._number("/proc/self/net/sockstat", "used ")
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
        """Bytes of kernel objects that cannot be given back, and names known not to exist (Linux 5.0)."""
        try:
            with open("/proc/sys/fs/dentry-state") as file:  # noqa: PTH123
                names = int(file.read().split()[4])
        except (OSError, ValueError, IndexError):
            names = 0
        return self._number("/proc/meminfo", "SUnreclaim:") << 10, names

    def _kernel_seconds(self, pid: int) -> float:
        """Of the process and the children it has waited for: proc(5), stime and cstime."""
        try:
            with open(f"/proc/{pid}/stat") as file:  # noqa: PTH123
                words = file.read().rpartition(")")[2].split()
            return (int(words[12]) + int(words[14])) / os.sysconf("SC_CLK_TCK")
        except (OSError, IndexError):
            return 0.0


if CONFIG:
    _supervise()
