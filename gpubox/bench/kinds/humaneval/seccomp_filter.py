"""The seccomp filter of a candidate: system calls by which it could disturb its judge. Pure.

They reach other processes of the same user: signals, limits, priorities, and the owner of a pipe's signals. Without the
filter the judge notices the interference and ends the batch; with it, the calls fail.
"""

from __future__ import annotations

import errno
import platform
import struct

from gpubox.sandbox.seccomp import TABLES

_LOAD, _EQUAL, _RETURN = 0x20, 0x15, 0x06
_ALLOW, _ERRNO = 0x7FFF0000, 0x00050000
_NUMBER, _ARCH, _FIRST, _SECOND = 0, 4, 16, 24
"""Offsets in struct seccomp_data; of the arguments the low half."""
_REFUSED = (
    *("pidfd_send_signal", "pidfd_getfd", "process_madvise", "kill", "tkill", "tgkill", "rt_sigqueueinfo"),
    *("rt_tgsigqueueinfo", "ptrace", "process_vm_readv", "process_vm_writev", "setpriority", "sched_setaffinity"),
    *("sched_setparam", "sched_setscheduler", "sched_setattr", "ioprio_set", "prlimit64", "fcntl", "ioctl"),
)
_REFUSED_COMMANDS = {
    "fcntl": (8, 10, 15),  # F_SETOWN, F_SETSIG, F_SETOWN_EX: the kernel would signal another process
    "ioctl": (0x8901, 0x8902),  # FIOSETOWN, SIOCSPGRP: the same
}


def seccomp_program() -> bytes:
    """The BPF program, an array of ``struct sock_filter``; empty for a processor without a table."""
    arch, numbers = TABLES.get(platform.machine(), (0, {}))
    if not arch:
        return b""
    allow, refuse = (_RETURN, 0, 0, _ALLOW), (_RETURN, 0, 0, _ERRNO | errno.EPERM)
    code = [(_LOAD, 0, 0, _ARCH), (_EQUAL, 1, 0, arch), refuse, (_LOAD, 0, 0, _NUMBER)]
    for name in _REFUSED:
        number, commands = numbers[name], _REFUSED_COMMANDS.get(name, ())
        if name == "prlimit64":  # allowed for process 0, which is the caller
            code += [(_EQUAL, 0, 4, number), (_LOAD, 0, 0, _FIRST), (_EQUAL, 0, 1, 0), allow, refuse]
        elif not commands:
            code += [(_EQUAL, 0, 1, number), refuse]
        else:
            code += [(_EQUAL, 0, len(commands) + 3, number), (_LOAD, 0, 0, _SECOND)]
            code += [(_EQUAL, len(commands) - place, 0, command) for place, command in enumerate(commands)]
            code += [allow, refuse]
    code.append(allow)
    return b"".join(struct.pack("=HBBI", *instruction) for instruction in code)
