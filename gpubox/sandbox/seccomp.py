"""The system calls that a confined program may not use, as a BPF program for the kernel. Pure.

A second wall behind the namespaces. It forbids what has been used to break out of them (io_uring, bpf, userfaultfd,
new user namespaces, keyrings), all sockets but pairs, System V and POSIX queues, memory that no limit counts (memfd,
larger pipe and socket buffers), and set-user-ID files, which would outlive the run.

Numbers: the kernel's asm/unistd_64.h (x86_64) and asm-generic/unistd.h (aarch64). Newer calls have one number in both.
"""

from __future__ import annotations

import errno
import platform
import struct
from dataclasses import dataclass, field

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
_RLIMIT_CORE, _AF_UNIX, _SOCK_TYPE, _SOCK_STREAM = 4, 1, 0xF, 1
_SOL_SOCKET, _SO_SNDBUF, _SO_SNDBUFFORCE = 1, 7, 32
_FCNTL = (0, 1, 2, 3, 4, 5, 6, 7, 9, 36, 37, 38, 1030, 1032, 1034)
"""F_DUPFD to F_SETLKW, F_GETOWN, locks of open files, F_DUPFD_CLOEXEC, F_GETPIPE_SZ, F_GET_SEALS: no others. Owner and
signal of a descriptor would signal processes outside; leases and larger pipes are memory that no limit counts."""
_F_SETFL, _O_ASYNC, _O_TRUNC, _O_ACCMODE = 4, 0o20000, 0o1000, 3
_IOCTL = (0x5401, 0x5413, 0x541B, 0x5421, 0x5450, 0x5451, 0x40049409)
"""TCGETS, TIOCGWINSZ, FIONREAD, FIONBIO, FIONCLEX, FIOCLEX, FICLONE: all that is allowed where the walls are shared."""
_PR_SET_SECCOMP, _MAP_HUGETLB = 22, 0x40000
_PRIO_PROCESS, _IOPRIO_WHO_PROCESS = 0, 1
_TIOCSTI, _TIOCLINUX = 0x5412, 0x541C

_ALIKE = {
    "io_uring_setup": 425, "io_uring_enter": 426, "io_uring_register": 427, "open_tree": 428, "move_mount": 429,
    "fsopen": 430, "fsconfig": 431, "fsmount": 432, "fspick": 433, "clone3": 435, "openat2": 437,
    "pidfd_send_signal": 424, "pidfd_getfd": 438, "process_madvise": 440, "mount_setattr": 442, "quotactl_fd": 443,
    "memfd_secret": 447, "set_mempolicy_home_node": 450, "fchmodat2": 452, "landlock_create_ruleset": 444,
    "landlock_add_rule": 445, "landlock_restrict_self": 446,
}  # fmt: skip
_X86_64 = _ALIKE | {
    "ptrace": 101, "process_vm_readv": 310, "process_vm_writev": 311, "kcmp": 312, "perf_event_open": 298, "bpf": 321,
    "userfaultfd": 323, "kexec_load": 246, "kexec_file_load": 320, "init_module": 175, "finit_module": 313,
    "delete_module": 176, "reboot": 169, "swapon": 167, "swapoff": 168, "syslog": 103, "acct": 163, "quotactl": 179,
    "lookup_dcookie": 212, "vhangup": 153, "settimeofday": 164, "clock_settime": 227, "clock_adjtime": 305,
    "adjtimex": 159, "sethostname": 170, "setdomainname": 171, "personality": 135, "iopl": 172, "ioperm": 173,
    "uselib": 134, "modify_ldt": 154, "_sysctl": 156, "mount": 165, "umount2": 166, "pivot_root": 155, "chroot": 161,
    "setns": 308, "unshare": 272, "open_by_handle_at": 304, "name_to_handle_at": 303, "add_key": 248,
    "request_key": 249, "keyctl": 250, "memfd_create": 319, "shmget": 29, "shmat": 30, "shmctl": 31, "shmdt": 67,
    "msgget": 68, "msgsnd": 69, "msgrcv": 70, "msgctl": 71, "semget": 64, "semop": 65, "semctl": 66, "semtimedop": 220,
    "mq_open": 240, "mq_unlink": 241, "mq_timedsend": 242, "mq_timedreceive": 243, "mq_notify": 244,
    "mq_getsetattr": 245, "chown": 92, "fchown": 93, "lchown": 94, "fchownat": 260, "utime": 132, "utimes": 235,
    "futimesat": 261, "utimensat": 280, "setxattr": 188, "lsetxattr": 189, "fsetxattr": 190, "removexattr": 197,
    "lremovexattr": 198, "fremovexattr": 199, "truncate": 76,
    "remap_file_pages": 216, "migrate_pages": 256, "move_pages": 279, "mbind": 237,
    "set_mempolicy": 238, "fanotify_init": 300, "fanotify_mark": 301, "mknod": 133, "mknodat": 259, "clone": 56,
    "socket": 41, "socketpair": 53, "ioctl": 16, "chmod": 90, "fchmod": 91, "fchmodat": 268, "open": 2, "openat": 257,
    "creat": 85, "setrlimit": 160, "prlimit64": 302, "setsid": 112, "setpgid": 109, "kill": 62, "tkill": 200,
    "tgkill": 234, "rt_sigqueueinfo": 129, "rt_tgsigqueueinfo": 297, "setsockopt": 54, "fcntl": 72, "vmsplice": 278,
    "inotify_init": 253, "inotify_init1": 294, "io_setup": 206, "seccomp": 317, "prctl": 157, "fallocate": 285,
    "mmap": 9, "sched_setaffinity": 203, "sched_setscheduler": 144, "sched_setparam": 142, "sched_setattr": 314,
    "setpriority": 141, "ioprio_set": 251,
}  # fmt: skip
_AARCH64 = _ALIKE | {
    "ptrace": 117, "process_vm_readv": 270, "process_vm_writev": 271, "kcmp": 272, "perf_event_open": 241, "bpf": 280,
    "userfaultfd": 282, "kexec_load": 104, "kexec_file_load": 294, "init_module": 105, "finit_module": 273,
    "delete_module": 106, "reboot": 142, "swapon": 224, "swapoff": 225, "syslog": 116, "acct": 89, "quotactl": 60,
    "lookup_dcookie": 18, "vhangup": 58, "settimeofday": 170, "clock_settime": 112, "clock_adjtime": 266,
    "adjtimex": 171, "sethostname": 161, "setdomainname": 162, "personality": 92, "mount": 40, "umount2": 39,
    "pivot_root": 41, "chroot": 51, "setns": 268, "unshare": 97, "open_by_handle_at": 265, "name_to_handle_at": 264,
    "add_key": 217, "request_key": 218, "keyctl": 219, "memfd_create": 279, "shmget": 194, "shmat": 196,
    "shmctl": 195, "shmdt": 197, "msgget": 186, "msgsnd": 189, "msgrcv": 188, "msgctl": 187, "semget": 190,
    "semop": 193, "semctl": 191, "semtimedop": 192, "mq_open": 180, "mq_unlink": 181, "mq_timedsend": 182,
    "mq_timedreceive": 183, "mq_notify": 184, "mq_getsetattr": 185, "fchown": 55, "fchownat": 54, "utimensat": 88,
    "setxattr": 5, "lsetxattr": 6, "fsetxattr": 7, "removexattr": 14, "lremovexattr": 15, "fremovexattr": 16,
    "truncate": 45, "remap_file_pages": 234, "migrate_pages": 238,
    "move_pages": 239, "mbind": 235, "set_mempolicy": 237, "fanotify_init": 262, "fanotify_mark": 263, "mknodat": 33,
    "clone": 220, "socket": 198, "socketpair": 199, "ioctl": 29, "fchmod": 52, "fchmodat": 53, "openat": 56,
    "setrlimit": 164, "prlimit64": 261, "setsid": 157, "setpgid": 154, "kill": 129, "tkill": 130, "tgkill": 131,
    "rt_sigqueueinfo": 138, "rt_tgsigqueueinfo": 240, "setsockopt": 208, "fcntl": 25, "vmsplice": 75,
    "inotify_init1": 26, "io_setup": 0, "seccomp": 277, "prctl": 167, "fallocate": 47, "mmap": 222,
    "sched_setaffinity": 122, "sched_setscheduler": 119, "sched_setparam": 118, "sched_setattr": 274,
    "setpriority": 140, "ioprio_set": 30,
}  # fmt: skip
TABLES: dict[str, tuple[int, dict[str, int]]] = {"x86_64": (0xC000003E, _X86_64), "aarch64": (0xC00000B7, _AARCH64)}
"""Machine -> (its AUDIT_ARCH number, name -> number)."""
_SOFT = {"clone3": errno.ENOSYS, "openat2": errno.ENOSYS, "memfd_create": errno.ENOSYS, "io_setup": errno.ENOSYS}
_SOFT |= {"inotify_init": errno.ENOSYS, "inotify_init1": errno.ENOSYS, "fallocate": errno.EOPNOTSUPP}
_SOFT |= {name: errno.ENOSYS for name in _ALIKE if name.startswith("landlock")}
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
    machine: str | None = None, *, shared: bool = False, signals: bool = True, filters: bool = False
) -> bytes:
    """The filter as the kernel and ``bwrap --seccomp`` take it: an array of ``struct sock_filter``.

    ``shared``: no namespace hides other processes and files, so no process may leave its group, nor change the
    permissions, owner or times of a file. ``signals=False`` forbids signals too. ``filters`` lets a program add
    filters. Raises KeyError if the architecture is not ``supported``.
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
    allowed = (_BY_ARGUMENT | _ONLY_SHARED) - (refused - SIGNALLING if signals else refused)
    for name in numbers:
        if name not in allowed:
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
    # A datagram socket of a pair could still send to any unix socket that it can name.
    program.only("socketpair", 0, (_AF_UNIX,))
    program.only("socketpair", 1, (_SOCK_STREAM,), _SOCK_TYPE)
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
