"""The system calls with which a candidate could disturb its judge, as a BPF program for the kernel. Pure.

They reach another process of the same user: signals, limits, priorities, and the owner of a pipe's signals. Without
this lock the judge notices what they did and ends the batch; with it nothing is done. Numbers: the kernel's
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
_ALIKE = {"pidfd_send_signal": 424, "pidfd_getfd": 438, "process_madvise": 440}
_TABLES: dict[str, tuple[int, dict[str, int]]] = {
    "x86_64": (
        0xC000003E,
        _ALIKE
        | {"kill": 62, "tkill": 200, "tgkill": 234, "rt_sigqueueinfo": 129, "rt_tgsigqueueinfo": 297, "ptrace": 101}
        | {"process_vm_readv": 310, "process_vm_writev": 311, "setpriority": 141, "sched_setaffinity": 203}
        | {"sched_setparam": 142, "sched_setscheduler": 144, "sched_setattr": 314, "ioprio_set": 251}
        | {"prlimit64": 302, "fcntl": 72, "ioctl": 16},
    ),
    "aarch64": (
        0xC00000B7,
        _ALIKE
        | {"kill": 129, "tkill": 130, "tgkill": 131, "rt_sigqueueinfo": 138, "rt_tgsigqueueinfo": 240, "ptrace": 117}
        | {"process_vm_readv": 270, "process_vm_writev": 271, "setpriority": 140, "sched_setaffinity": 122}
        | {"sched_setparam": 118, "sched_setscheduler": 119, "sched_setattr": 274, "ioprio_set": 30}
        | {"prlimit64": 261, "fcntl": 25, "ioctl": 29},
    ),
}
_COMMANDS = {
    "fcntl": (8, 10, 15),  # F_SETOWN, F_SETSIG, F_SETOWN_EX: signals to another process, by the kernel
    "ioctl": (0x8901, 0x8902),  # FIOSETOWN, SIOCSPGRP: the same
}


def seccomp_program(machine: str | None = None) -> bytes:
    """An array of ``struct sock_filter``; empty where there is no table for this kind of processor."""
    arch, numbers = _TABLES.get(machine or platform.machine(), (0, {}))
    if not arch:
        return b""
    code = [(_LOAD, 0, 0, _ARCH), (_EQUAL, 1, 0, arch), (_RETURN, 0, 0, _ERRNO | errno.EPERM), (_LOAD, 0, 0, _NUMBER)]
    for name, number in numbers.items():
        values = _COMMANDS.get(name, ())
        if name == "prlimit64":  # of process 0: its own
            code += [(_EQUAL, 0, 4, number), (_LOAD, 0, 0, _FIRST), (_EQUAL, 0, 1, 0), (_RETURN, 0, 0, _ALLOW)]
            code.append((_RETURN, 0, 0, _ERRNO | errno.EPERM))
        elif not values:
            code += [(_EQUAL, 0, 1, number), (_RETURN, 0, 0, _ERRNO | errno.EPERM)]
        else:
            code += [(_EQUAL, 0, len(values) + 3, number), (_LOAD, 0, 0, _SECOND)]
            code += [(_EQUAL, len(values) - place, 0, value) for place, value in enumerate(values)]
            code += [(_RETURN, 0, 0, _ALLOW), (_RETURN, 0, 0, _ERRNO | errno.EPERM)]
    code.append((_RETURN, 0, 0, _ALLOW))
    return b"".join(struct.pack("=HBBI", *line) for line in code)
