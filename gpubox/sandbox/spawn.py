"""Starts one confined process; what it needs is handed over as open files, and nothing of gpubox's is inherited."""

from __future__ import annotations

import contextlib
import os
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from gpubox.sandbox import boot, bubblewrap, seccomp
from gpubox.sandbox.interpreter import Interpreter
from gpubox.sandbox.policy import Confinement, Policy

_BOOT_TEXT = Path(boot.__file__).read_text(encoding="utf-8")
_GRACE_SECONDS = 5
_PREFERRED_UIDS = (1_900_000_000, 65_534)


@dataclass(frozen=True, slots=True)
class Process:
    """One confined program that runs, and the two pipes it speaks through."""

    popen: subprocess.Popen[bytes]
    output_fd: int
    status_fd: int


def limits(policy: Policy) -> dict[str, tuple[int, int]]:
    """rlimit name -> (soft, hard), to be set inside: processes are counted for each user namespace."""
    same = {
        "RLIMIT_AS": policy.memory_bytes,
        "RLIMIT_NPROC": policy.processes,
        "RLIMIT_NOFILE": policy.open_files,
        "RLIMIT_FSIZE": policy.file_bytes,
        # 1 byte: the only value at which the kernel does not call the host's core handler either.
        "RLIMIT_CORE": 1,
        "RLIMIT_MEMLOCK": 65536,
        "RLIMIT_MSGQUEUE": 0,
        "RLIMIT_NICE": 0,
        "RLIMIT_RTPRIO": 0,
        "RLIMIT_SIGPENDING": 1024,
    }
    return {name: (value, value) for name, value in same.items()} | {
        "RLIMIT_CPU": (policy.cpu_seconds, policy.cpu_seconds + 1)
    }


def boot_text(policy: Policy, *, status_fd: int, main: str, uid: int = 0, more: dict[str, object] | None = None) -> str:
    """boot.py with its CONFIG ahead of it."""
    config = {
        "status_fd": status_fd,
        "main": main,
        "alarm": int(policy.wall_seconds) + _GRACE_SECONDS,
        "limits": limits(policy),
        "filter": seccomp.compiled() if seccomp.supported() else b"",
        "uid": uid,
    }
    return f"CONFIG = {config | (more or {})!r}\n{_BOOT_TEXT}"


def unused_uid(salt: int) -> int:
    """A user of nobody's, so that a program of root's is not root; its own for each run, where there are that many."""
    preferred, common = _PREFERRED_UIDS
    with contextlib.suppress(OSError, ValueError):
        for line in Path("/proc/self/uid_map").read_text().splitlines():
            inside, _, count = (int(word) for word in line.split())
            if inside <= preferred and preferred + 2**24 < inside + count:
                return preferred + salt % 2**24
    return common


def start_bubblewrap(
    confinement: Confinement, python: Interpreter, code: bytes, policy: Policy, *, masked: Sequence[str] = (), uid: int
) -> Process:
    """The program in its namespaces. Raises OSError where bwrap cannot even be started."""
    with contextlib.ExitStack() as ours, contextlib.ExitStack() as theirs:
        output_fd, output_end = _pipe(ours, theirs)
        status_fd, status_end = _pipe(ours, theirs)
        text = boot_text(policy, status_fd=status_end, main=bubblewrap.MAIN, uid=uid if confinement.as_root else 0)
        fds = bubblewrap.Fds(_memory_file(theirs, text.encode()), _memory_file(theirs, code))
        words = bubblewrap.arguments(policy, python, fds, as_root=confinement.as_root, masked=masked)
        # As a file: what stands in argv is read in /proc/1/cmdline by whoever is confined.
        options = _memory_file(theirs, b"\0".join(os.fsencode(word) for word in words) + b"\0")
        popen = subprocess.Popen(
            [confinement.program, "--args", str(options), "--", *bubblewrap.command(python)],
            stdin=subprocess.DEVNULL,
            stdout=output_end,
            stderr=output_end,
            cwd="/",
            env={},
            pass_fds=(status_end, fds.boot, fds.main, options),
            start_new_session=True,
        )
        ours.pop_all()
        return Process(popen, output_fd, status_fd)


def _pipe(ours: contextlib.ExitStack, theirs: contextlib.ExitStack) -> tuple[int, int]:
    reader, writer = os.pipe2(os.O_CLOEXEC)
    os.set_blocking(reader, False)
    ours.callback(os.close, reader)
    theirs.callback(os.close, writer)
    return reader, writer


def _memory_file(stack: contextlib.ExitStack, data: bytes) -> int:
    """An open file of no folder, at its beginning."""
    fd = os.memfd_create("gpubox", os.MFD_CLOEXEC)
    stack.callback(os.close, fd)
    with open(fd, "wb", closefd=False) as file:
        file.write(data)
    os.lseek(fd, 0, os.SEEK_SET)
    return fd
