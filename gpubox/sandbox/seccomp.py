"""The system calls that a confined program may not use, as a BPF program for the kernel.

A second wall behind the namespaces. It forbids what has been used to break out of them (io_uring, bpf, userfaultfd,
new user namespaces, keyrings), all sockets but pairs, System V and POSIX queues, memory that no limit counts (memfd,
larger pipe and socket buffers), and set-user-ID files, which would outlive the run.

The numbers of the calls are in ``syscalls.txt``.
"""

from __future__ import annotations

import errno
import platform
import struct
from dataclasses import dataclass, field
from pathlib import Path

_ALLOW, _ERRNO, _KILL = 0x7FFF0000, 0x00050000, 0x80000000
_LD, _JEQ, _JGT, _JSET, _RET, _AND = 0x20, 0x15, 0x25, 0x45, 0x06, 0x54
_NR, _ARCH, _ARGS = 0, 4, 16
_NEWEST = 462
"""mseal. Later calls fail with ENOSYS, as on an older kernel."""
_X32 = 0x3FFFFFFF
_NEW_NAMESPACES = 0x7E020000
"""CLONE_NEWNS, NEWCGROUP, NEWUTS, NEWIPC, NEWUSER, NEWPID, NEWNET (NEWTIME is not clone's)."""
_SET_ID, _MAY_CREATE = 0o6000, 0o100 | 0o20000000
"""S_ISUID and S_ISGID; O_CREAT and the bit that is only O_TMPFILE's."""
_RLIMIT_CORE, _AF_UNIX, _AF_INET, _AF_INET6, _SOCK_TYPE = 4, 1, 2, 10, 0xF
_SOCK_STREAM, _SOCK_SEQPACKET = 1, 5
_SOL_SOCKET, _SO_SNDBUF, _SO_SNDBUFFORCE = 1, 7, 32
_FCNTL = (0, 1, 2, 3, 4, 5, 6, 7, 9, 36, 37, 38, 1030, 1032, 1034)
"""F_DUPFD to F_SETLKW, F_GETOWN, locks of open files, F_DUPFD_CLOEXEC, F_GETPIPE_SZ, F_GET_SEALS: no others. Owner and
signal of a descriptor would signal processes outside; leases and larger pipes are memory that no limit counts."""
_F_SETFL, _O_ASYNC, _O_TRUNC, _O_ACCMODE = 4, 0o20000, 0o1000, 3
_IOCTL = (0x5401, 0x5413, 0x541B, 0x5421, 0x5450, 0x5451, 0x40049409)
"""TCGETS, TIOCGWINSZ, FIONREAD, FIONBIO, FIONCLEX, FIOCLEX, FICLONE: all that is allowed where the walls are shared."""
_PR_SET_SECCOMP, _MAP_HUGETLB = 22, 0x40000
_PRIO_PROCESS, _IOPRIO_WHO_PROCESS = 0, 1
_EXIT_SIGNAL, _SIGCHLD, _SIGCONT, _PR_SET_PDEATHSIG = 0xFF, 17, 18, 1
_TIOCSTI, _TIOCLINUX = 0x5412, 0x541C

_ARCHITECTURES = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
"""Machine -> its AUDIT_ARCH number."""


def _numbers() -> dict[str, dict[str, int]]:
    """Machine -> the calls that it has -> their numbers."""
    numbers: dict[str, dict[str, int]] = {machine: {} for machine in _ARCHITECTURES}
    for line in Path(__file__).with_name("syscalls.txt").read_text(encoding="ascii").splitlines():
        if not line.startswith("#"):
            name, *columns = line.split()
            for machine, number in zip(_ARCHITECTURES, columns, strict=True):
                if number != "-":
                    numbers[machine][name] = int(number)
    return numbers


TABLES = {machine: (_ARCHITECTURES[machine], numbers) for machine, numbers in _numbers().items()}
"""Machine -> (its AUDIT_ARCH number, name -> number)."""
_SOFT = {"clone3": errno.ENOSYS, "openat2": errno.ENOSYS, "memfd_create": errno.ENOSYS, "io_setup": errno.ENOSYS}
_SOFT |= {"inotify_init": errno.ENOSYS, "inotify_init1": errno.ENOSYS, "fallocate": errno.EOPNOTSUPP}
_SOFT |= dict.fromkeys(("landlock_create_ruleset", "landlock_add_rule", "landlock_restrict_self"), errno.ENOSYS)
"""Calls that fail with another error than EPERM, because only then libraries fall back to an older call."""
_BY_ARGUMENT = frozenset(
    {"clone", "socketpair", "ioctl", "open", "openat", "creat", "chmod", "fchmod", "fchmodat", "fchmodat2"}
    | {"setrlimit", "prlimit64", "setsockopt", "fcntl", "prctl", "mmap", "setpriority", "ioprio_set"}
    | {"sched_setaffinity", "sched_setscheduler", "sched_setparam", "sched_setattr"}
)
GROUP_LEAVING = frozenset({"setsid", "setpgid"})
SIGNALLING = frozenset({"kill", "tkill", "tgkill", "rt_sigqueueinfo", "rt_tgsigqueueinfo", "pidfd_send_signal"})
"""Denied only if no namespace hides other processes."""
ATTRIBUTES = frozenset(
    {"chmod", "fchmod", "fchmodat", "fchmodat2", "chown", "fchown", "lchown", "fchownat", "truncate"}
    | {"utime", "utimes", "futimesat", "utimensat", "setxattr", "lsetxattr", "fsetxattr"}
    | {"removexattr", "lremovexattr", "fremovexattr"}
)
"""Denied where the host's files are only behind Landlock, which does not mediate them (before version 3 truncate)."""
_ONLY_SHARED = GROUP_LEAVING | SIGNALLING | ATTRIBUTES


@dataclass
class _Program:
    """The instructions in order. Each rule leaves the call's number in the accumulator."""

    numbers: dict[str, int]
    code: list[tuple[int, int, int, int]] = field(default_factory=list)

    def add(self, code: int, value: int, yes: int = 0, no: int = 0) -> None:
        self.code.append((code, yes, no, value & 0xFFFFFFFF))

    def refuse(self, name: str, error: int = errno.EPERM) -> None:
        """``name`` always fails with ``error``."""
        if name in self.numbers:
            self.add(_JEQ, self.numbers[name], 0, 1)
            self.add(_RET, _ERRNO | error)

    def when(self, name: str, tests: list[tuple[int, int, int]], error: int = errno.EPERM) -> None:
        """``name`` fails if every ``(argument, comparison, value)`` is true."""
        if name not in self.numbers:
            return
        self.add(_JEQ, self.numbers[name], 0, 2 * len(tests) + 2)
        for left, (argument, code, value) in zip(range(len(tests) - 1, -1, -1), tests, strict=True):
            self.add(_LD, _ARGS + 8 * argument)
            self.add(code, value, 0, 2 * left + 1)
        self.add(_RET, _ERRNO | error)
        self.add(_LD, _NR)

    def only(self, name: str, argument: int, values: tuple[int, ...], mask: int = 0xFFFFFFFF) -> None:
        """``name`` fails unless the argument under ``mask`` is one of ``values``."""
        if name not in self.numbers:
            return
        self.add(_JEQ, self.numbers[name], 0, len(values) + 4)
        self.add(_LD, _ARGS + 8 * argument)
        self.add(_AND, mask)
        for done, value in enumerate(values):
            self.add(_JEQ, value, len(values) - done, 0)
        self.add(_RET, _ERRNO | errno.EPERM)
        self.add(_LD, _NR)

    def packed(self) -> bytes:
        return b"".join(struct.pack("=HBBI", *instruction) for instruction in self.code)


def supported(machine: str | None = None) -> bool:
    """Whether there is a table for this processor architecture."""
    return (machine or platform.machine()) in TABLES


def compile_filter(
    machine: str | None = None,
    *,
    shared: bool = False,
    signals: bool = True,
    filters: bool = False,
    network: bool = False,
    resident: bool = False,
) -> bytes:
    """The filter as the kernel and ``bwrap --seccomp`` take it: an array of ``struct sock_filter``.

    ``shared``: no namespace hides other processes and files, so no process may leave its group, nor change the
    permissions, owner or times of a file. ``signals=False`` forbids signals too. ``filters`` lets a program add
    filters, ``network`` open internet sockets. ``resident``: nothing that is stopped can arrange to go on by itself.
    Raises KeyError if the architecture is not ``supported``.
    """
    arch, numbers = TABLES[machine or platform.machine()]
    program = _Program(numbers)
    program.add(_LD, _ARCH)
    program.add(_JEQ, arch, 1, 0)
    program.add(_RET, _KILL)  # call numbers differ between architectures
    program.add(_LD, _NR)
    if arch == TABLES["x86_64"][0]:
        program.add(_JGT, _X32, 0, 1)
        program.add(_RET, _KILL)
    program.add(_JGT, _NEWEST, 0, 1)
    program.add(_RET, _ERRNO | errno.ENOSYS)
    refused = _ONLY_SHARED if shared else frozenset[str]()
    if network:
        program.only("socket", 0, (_AF_INET, _AF_INET6))
    allowed = (_BY_ARGUMENT | _ONLY_SHARED) - (refused - SIGNALLING if signals else refused)
    if resident:
        allowed |= {"inotify_init", "inotify_init1"}
        program.only("clone", 0, (0, _SIGCHLD), _EXIT_SIGNAL)
        program.when("prctl", [(0, _JEQ, _PR_SET_PDEATHSIG), (1, _JEQ, _SIGCONT)])
    else:
        allowed |= {"timer_create"}
    for name in numbers:
        if name not in allowed and not (network and name == "socket"):
            program.refuse(name, _SOFT.get(name, errno.EPERM))
    if shared:
        program.only("ioctl", 1, _IOCTL)
        access = (0, 1, 2, _O_TRUNC | 1, _O_TRUNC | 2)  # old Landlock misses what truncates without opening to write
        program.only("open", 1, access, _O_TRUNC | _O_ACCMODE)
        program.only("openat", 2, access, _O_TRUNC | _O_ACCMODE)
    _refuse_by_argument(program)
    if not filters:
        program.when("prctl", [(0, _JEQ, _PR_SET_SECCOMP)])
    program.add(_RET, _ALLOW)
    return program.packed()


def _refuse_by_argument(program: _Program) -> None:
    program.when("clone", [(0, _JSET, _NEW_NAMESPACES)])
    # A datagram socket of a pair could still send to any unix socket that it can name. (Rust makes the other kinds.)
    program.only("socketpair", 0, (_AF_UNIX,))
    program.only("socketpair", 1, (_SOCK_STREAM, _SOCK_SEQPACKET), _SOCK_TYPE)
    # No limit counts the memory of socket and pipe buffers: they keep their first size.
    for option in (_SO_SNDBUF, _SO_SNDBUFFORCE):
        program.when("setsockopt", [(1, _JEQ, _SOL_SOCKET), (2, _JEQ, option)])
    program.only("fcntl", 1, _FCNTL)
    program.when("fcntl", [(1, _JEQ, _F_SETFL), (2, _JSET, _O_ASYNC)])
    program.when("mmap", [(3, _JSET, _MAP_HUGETLB)], errno.ENOMEM)
    # A process may only slow itself down: the monitor runs as the same user.
    for name in ("prlimit64", "sched_setaffinity", "sched_setscheduler", "sched_setparam", "sched_setattr"):
        program.only(name, 0, (0,))
    for name, kind in (("setpriority", _PRIO_PROCESS), ("ioprio_set", _IOPRIO_WHO_PROCESS)):
        program.only(name, 0, (kind,))
        program.only(name, 1, (0,))
    for request in (_TIOCSTI, _TIOCLINUX):
        program.when("ioctl", [(1, _JEQ, request)])
    for name, argument in (("chmod", 1), ("fchmod", 1), ("fchmodat", 2), ("fchmodat2", 2), ("creat", 1)):
        program.when(name, [(argument, _JSET, _SET_ID)])
    for name, argument in (("open", 1), ("openat", 2)):
        program.when(name, [(argument, _JSET, _MAY_CREATE), (argument + 1, _JSET, _SET_ID)])
    # The core limit of 1 byte keeps the kernel from running the host's core handler; 0 would not.
    program.when("setrlimit", [(0, _JEQ, _RLIMIT_CORE)])
    program.when("prlimit64", [(1, _JEQ, _RLIMIT_CORE)])
