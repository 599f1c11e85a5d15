"""Starts one confined process; what it needs is handed over as open files, and nothing of gpubox's is inherited."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import itertools
import os
import stat
import subprocess
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from gpubox.errors import GpuboxError
from gpubox.sandbox import boot, bubblewrap, cgroup, landlock, monitor, seccomp
from gpubox.sandbox.auto_run_files import AutoRunFile
from gpubox.sandbox.cgroup import Cgroup
from gpubox.sandbox.idmapped_mount import IdmappedMount
from gpubox.sandbox.interpreter import Interpreter
from gpubox.sandbox.policy import WORKSPACE_MOUNT, Confinement, Policy

_BOOT_TEXT = Path(boot.__file__).read_text(encoding="utf-8")
_SUPERVISOR_TEXT = Path(monitor.__file__).read_text(encoding="utf-8")
_GRACE_SECONDS = 5
_PREFERRED_UIDS = (1_900_000_000, 65_534)
MAX_STDIN = 1 << 20
"""What a pipe holds for anybody (fs.pipe-max-size as the kernel has it)."""
_UIDS = 8
"""Users to take turns with: as many runs at a time have process counts of their own."""

_turns = itertools.count()


@dataclass(frozen=True, slots=True)
class ConfinedProcess:
    """One confined program that runs, and the two pipes it speaks through."""

    popen: subprocess.Popen[bytes]
    output_fd: int
    status_fd: int
    release: Callable[[], None] = lambda: None
    """To be called once it is dead."""
    group: Cgroup | None = None
    """Its cgroup, to be removed once it is dead."""
    go_fd: int = -1
    """The program begins when something is written here."""
    protected: tuple[AutoRunFile, ...] = ()
    """What it may only read in the workspace."""
    scratch: Path | None = None
    """The host folder that stands for /tmp where no namespace holds the run together, but its process group."""


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


def boot_text(policy: Policy, config: Mapping[str, object], folders: Sequence[str] = ()) -> bytes:
    """boot.py with its CONFIG ahead of it; ``folders`` are those that die with the run and have a size of their own."""
    watch = {"folders": list(folders), "files": policy.scratch_files, "kernel": policy.kernel_bytes}
    common = {
        "alarm": int(policy.wall_seconds) + _GRACE_SECONDS,
        "limits": limits(policy),
        "parent": os.getpid(),
        "watch": watch,
        "supervisor": _SUPERVISOR_TEXT,
    }
    return f"CONFIG = {common | dict(config)!r}\n{_BOOT_TEXT}".encode()


def unused_uid() -> int:
    """A user of nobody's, so that a program of root's is not root; of this gpubox's alone where there are that many."""
    preferred, common = _PREFERRED_UIDS
    with contextlib.suppress(OSError, ValueError):
        for line in Path("/proc/self/uid_map").read_text().splitlines():
            inside, _, count = (int(word) for word in line.split())
            if inside <= preferred and preferred + 2**27 < inside + count:
                return preferred + (os.getpid() * _UIDS + next(_turns) % _UIDS) % 2**27
    return common


def start(
    confinement: Confinement,
    python: Interpreter,
    code: bytes,
    policy: Policy,
    special_files: Sequence[str],
    stdin: bytes = b"",
    protected: Sequence[AutoRunFile] = (),
) -> ConfinedProcess:
    """The program at the isolation of ``confinement``; ``special_files``: names in the workspace that stay closed to it.

    ``protected``: what it may only read there; bubblewrap alone can do that.

    ``stdin`` is what it can read there, at most MOST_STDIN, in a pipe that is empty once it is read. Raises
    OSError where it cannot be started, GpuboxError where root cannot lend the workspace.
    """
    uid = unused_uid() if os.geteuid() == 0 else 0

    group = cgroup.make(policy)

    def begin() -> ConfinedProcess:
        if confinement.isolation == "bubblewrap":
            return _start_bubblewrap(confinement, python, code, policy, special_files, uid, stdin, group, protected)
        return _start_in_place(confinement, python, code, policy, special_files, uid, stdin, group)

    try:
        if not uid or policy.workspace is None:
            return begin()
        lending = IdmappedMount(policy.workspace, uid, begin)
        process = lending.begin()
    except BaseException:
        if group:
            group.remove()
        raise

    def release() -> None:
        lending.end()
        process.release()

    return replace(process, release=release)


def _start_bubblewrap(
    confinement: Confinement,
    python: Interpreter,
    code: bytes,
    policy: Policy,
    special_files: Sequence[str],
    uid: int,
    stdin: bytes,
    group: Cgroup | None,
    protected: Sequence[AutoRunFile],
) -> ConfinedProcess:
    with contextlib.ExitStack() as ours, contextlib.ExitStack() as theirs:
        output_fd, output_end = _pipe(ours, theirs)
        status_fd, status_end = _pipe(ours, theirs)
        config = {"main": bubblewrap.MAIN, "work": WORKSPACE_MOUNT, "filter": _filter(policy), "status_fd": status_end}
        closed = _guarded(theirs, policy.workspace, protected)
        config["close"] = [fd for fd, _ in closed]
        go_fd, go_end = _gate(ours, theirs, group)
        config["go_fd"] = go_end
        text = boot_text(
            policy, config | {"uid": uid if confinement.as_root else 0}, bubblewrap.scratch_folders(policy)
        )
        shown = tuple((fd, one.path) for fd, one in closed)
        fds = bubblewrap.BwrapFiles(_memory_file(theirs, text), _memory_file(theirs, code), shown)
        words = bubblewrap.arguments(policy, python, fds, as_root=confinement.as_root, masked=special_files)
        # As a file: what stands in argv is read in /proc/1/cmdline by whoever is confined.
        options = _memory_file(theirs, b"\0".join(os.fsencode(word) for word in words) + b"\0")
        popen = _popen(
            [confinement.program, "--args", str(options), "--", *python.command(bubblewrap.BOOT)],
            output_end,
            (status_end, fds.boot, fds.main, options, *(fd for fd, _ in shown), *([] if go_end is None else [go_end])),
            stdin=_stdin(theirs, stdin),
            drop_to=uid if uid and not confinement.as_root else 0,
        )
        ours.pop_all()
        kept = tuple(one for _, one in closed)
        return ConfinedProcess(popen, output_fd, status_fd, group=group, go_fd=go_fd, protected=kept)


def _guarded(
    stack: contextlib.ExitStack, workspace: Path | None, protected: Sequence[AutoRunFile]
) -> list[tuple[int, AutoRunFile]]:
    """Each opened: what an earlier program, or one beside this, put in its place is another file and left out."""
    found: list[tuple[int, AutoRunFile]] = []
    for one in protected if workspace else ():
        with contextlib.suppress(OSError):
            fd = os.open(workspace / one.path, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC)  # type: ignore[operator]
            stack.callback(os.close, fd)
            facts = os.fstat(fd)
            ordinary = stat.S_ISDIR(facts.st_mode) or stat.S_ISREG(facts.st_mode)
            if ordinary and (facts.st_dev, facts.st_ino) == one.identity:
                found.append((fd, one))
    return found


def _start_in_place(
    confinement: Confinement,
    python: Interpreter,
    code: bytes,
    policy: Policy,
    special_files: Sequence[str],
    uid: int,
    stdin: bytes,
    group: Cgroup | None,
) -> ConfinedProcess:
    """Without namespaces: boot.py locks itself up, and its process group is what dies together."""
    if confinement.isolation == "landlock" and any(
        not (policy.workspace or Path()).joinpath(d).is_socket() for d in special_files
    ):
        raise GpuboxError(
            f"The workspace holds {special_files[0]}, through which Landlock lets a program out.",
            "Remove it: a FIFO or device is closed by bubblewrap only.",
        )
    with contextlib.ExitStack() as ours, contextlib.ExitStack() as theirs:
        output_fd, output_end = _pipe(ours, theirs)
        status_fd, status_end = _pipe(ours, theirs)
        place = landlock.make_scratch_dirs(policy, code, uid)
        ours.callback(place.remove)
        abi = landlock.version() if confinement.isolation == "landlock" else 0
        config = {"main": str(place.main), "work": str(place.work), "status_fd": status_end, "uid": uid, "group": True}
        config |= {"landlock": (abi, landlock.rules(place, python)) if abi else None}
        config["filter"] = _filter(policy, shared=True, signals=abi >= landlock.SIGNAL_SCOPE)
        counted = policy if uid else replace(policy, processes=policy.processes + landlock.count_own_threads())
        go_fd, config["go_fd"] = _gate(ours, theirs, group)
        boot_fd = _memory_file(theirs, boot_text(counted, config))
        env = bubblewrap.ENV | {"HOME": str(place.work), "TMPDIR": str(place.tmp)}
        argv = python.command(f"/proc/self/fd/{boot_fd}", on_host=True)
        passed = (status_end, boot_fd, *(fd for fd in [config["go_fd"]] if isinstance(fd, int)))
        popen = _popen(argv, output_end, passed, stdin=_stdin(theirs, stdin), env=env)
        ours.pop_all()
        return ConfinedProcess(
            popen, output_fd, status_fd, group=group, go_fd=go_fd, release=place.remove, scratch=place.root
        )


def _filter(policy: Policy, *, shared: bool = False, signals: bool = True) -> bytes:
    if not seccomp.supported():
        return b""
    return seccomp.compile_filter(shared=shared, signals=signals, filters=policy.allow_seccomp_filters)


def _popen(
    argv: list[str],
    output: int,
    fds: tuple[int, ...],
    *,
    stdin: int,
    drop_to: int = 0,
    env: Mapping[str, str] | None = None,
) -> subprocess.Popen[bytes]:
    """Nothing is inherited but ``fds``; ``drop_to``: the user it becomes first."""
    popen = subprocess.Popen(
        argv,
        stdin=stdin,
        stdout=output,
        stderr=output,
        cwd="/",
        env=env or {},
        pass_fds=fds,
        start_new_session=True,
        user=drop_to or None,
        group=drop_to or None,
        extra_groups=[] if drop_to else None,
    )
    with contextlib.suppress(OSError):  # should the box run out of memory, this is what goes, and not the server
        Path(f"/proc/{popen.pid}/oom_score_adj").write_text("1000")
    return popen


def _pipe(ours: contextlib.ExitStack, theirs: contextlib.ExitStack) -> tuple[int, int]:
    reader, writer = os.pipe2(os.O_CLOEXEC)
    os.set_blocking(reader, False)
    ours.callback(os.close, reader)
    theirs.callback(os.close, writer)
    return reader, writer


def _gate(ours: contextlib.ExitStack, theirs: contextlib.ExitStack, group: Cgroup | None) -> tuple[int, int | None]:
    """A pipe on which the program waits until it is in its cgroup: the end to write, and the end to read."""
    if group is None:
        return -1, None
    reader, writer = os.pipe2(os.O_CLOEXEC)
    ours.callback(os.close, writer)
    theirs.callback(os.close, reader)
    return writer, reader


def _stdin(stack: contextlib.ExitStack, data: bytes) -> int:
    """A pipe that holds ``data`` whole and then ends: unlike a file, nobody reads it a second time."""
    if not data:
        return subprocess.DEVNULL
    reader, writer = os.pipe2(os.O_CLOEXEC)
    stack.callback(os.close, reader)
    try:
        fcntl.fcntl(writer, fcntl.F_SETPIPE_SZ, max(len(data), 4096))
        os.set_blocking(writer, False)
        if os.write(writer, data) != len(data):
            raise BlockingIOError(errno.ENOSPC, "the pipe is too small")
    finally:
        os.close(writer)
    return reader


def _memory_file(stack: contextlib.ExitStack, data: bytes) -> int:
    """An open file of no folder, at its beginning."""
    fd = os.memfd_create("gpubox", os.MFD_CLOEXEC)
    stack.callback(os.close, fd)
    with open(fd, "wb", closefd=False) as file:
        file.write(data)
    os.lseek(fd, 0, os.SEEK_SET)
    return fd
