"""The seccomp filter of a candidate: system calls by which it could disturb its judge. Pure.

They reach other processes of the same user: signals, limits, priorities, and the owner of a pipe's signals. Without the
filter the judge notices the interference and ends the batch; with it, the calls fail. Numbers: the kernel's
asm/unistd_64.h (x86_64) and asm-generic/unistd.h (aarch64).
"""

from __future__ import annotations

import errno
import platform
import struct

_LOAD, _EQUAL, _RETURN = 0x20, 0x15, 0x06
_ALLOW, _ERRNO = 0x7FFF0000, 0x00050000
_NUMBER, _ARCH, _FIRST, _SECOND = 0, 4, 16, 24
"""Offsets in struct seccomp_data; of the arguments the low half."""
_SAME_NUMBERS = {"pidfd_send_signal": 424, "pidfd_getfd": 438, "process_madvise": 440}
_TABLES: dict[str, tuple[int, dict[str, int]]] = {
    "x86_64": (
        0xC000003E,
        _SAME_NUMBERS
        | {"kill": 62, "tkill": 200, "tgkill": 234, "rt_sigqueueinfo": 129, "rt_tgsigqueueinfo": 297, "ptrace": 101}
        | {"process_vm_readv": 310, "process_vm_writev": 311, "setpriority": 141, "sched_setaffinity": 203}
        | {"sched_setparam": 142, "sched_setscheduler": 144, "sched_setattr": 314, "ioprio_set": 251}
        | {"prlimit64": 302, "fcntl": 72, "ioctl": 16},
    ),
    "aarch64": (
        0xC00000B7,
        _SAME_NUMBERS
        | {"kill": 129, "tkill": 130, "tgkill": 131, "rt_sigqueueinfo": 138, "rt_tgsigqueueinfo": 240, "ptrace": 117}
        | {"process_vm_readv": 270, "process_vm_writev": 271, "setpriority": 140, "sched_setaffinity": 122}
        | {"sched_setparam": 118, "sched_setscheduler": 119, "sched_setattr": 274, "ioprio_set": 30}
        | {"prlimit64": 261, "fcntl": 25, "ioctl": 29},
    ),
}
_REFUSED_COMMANDS = {
    "fcntl": (8, 10, 15),  # F_SETOWN, F_SETSIG, F_SETOWN_EX: the kernel would signal another process
    "ioctl": (0x8901, 0x8902),  # FIOSETOWN, SIOCSPGRP: the same
}


def seccomp_program(machine: str | None = None) -> bytes:
    """The BPF program, an array of ``struct sock_filter``; empty for a processor without a table."""
    arch, numbers = _TABLES.get(machine or platform.machine(), (0, {}))
    if not arch:
        return b""
    refuse = (_RETURN, 0, 0, _ERRNO | errno.EPERM)
    code = [(_LOAD, 0, 0, _ARCH), (_EQUAL, 1, 0, arch), refuse, (_LOAD, 0, 0, _NUMBER)]
    for name, number in numbers.items():
        commands = _REFUSED_COMMANDS.get(name, ())
        if name == "prlimit64":  # allowed for process 0, which is the caller
            code += [(_EQUAL, 0, 4, number), (_LOAD, 0, 0, _FIRST), (_EQUAL, 0, 1, 0), (_RETURN, 0, 0, _ALLOW), refuse]
        elif not commands:
            code += [(_EQUAL, 0, 1, number), refuse]
        else:
            code += [(_EQUAL, 0, len(commands) + 3, number), (_LOAD, 0, 0, _SECOND)]
            code += [(_EQUAL, len(commands) - place, 0, command) for place, command in enumerate(commands)]
            code += [(_RETURN, 0, 0, _ALLOW), refuse]
    code.append((_RETURN, 0, 0, _ALLOW))
    return b"".join(struct.pack("=HBBI", *instruction) for instruction in code)
