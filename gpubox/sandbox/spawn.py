"""Starts one confined process. It gets what it needs as open descriptors and inherits nothing else of gpubox."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import itertools
import os
import subprocess
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from gpubox.sandbox import boot, bubblewrap, cgroup, inner_relay, landlock, monitor, seccomp
from gpubox.sandbox.bubblewrap import Place
from gpubox.sandbox.cgroup import Cgroup
from gpubox.sandbox.idmapped_mount import start_on_mount
from gpubox.sandbox.interpreter import Interpreter
from gpubox.sandbox.policy import WORKSPACE_MOUNT, Confinement, Policy
from gpubox.sandbox.toolchains import VENVS, Toolchains, find_toolchains

_BOOT_TEXT = Path(boot.__file__).read_text(encoding="utf-8")
_MONITOR_TEXT = Path(monitor.__file__).read_text(encoding="utf-8")
_RELAY_TEXT = Path(inner_relay.__file__).read_text(encoding="utf-8")
_GRACE_SECONDS = 5
_FIRST_UNUSED_UID, _NOBODY_UID = 1_900_000_000, 65_534
MAX_STDIN = 1 << 20
"""What a pipe holds without privileges (the kernel's default of fs.pipe-max-size)."""
_UIDS = 8
"""Users that take turns, so that as many runs at a time each have their own process count."""

_turns = itertools.count()


@dataclass(frozen=True, slots=True)
class ResidentProgram:
    """A whole agent that stays."""

    argv: tuple[str, ...]
    """Its program first, by its absolute path on the host."""
    folders: tuple[Path, ...]
    """Of the host, where it is installed: read-only, at their own path."""
    home: Path
    """Its home, which lasts: the folder of its state."""
    env: Mapping[str, str] = field(default_factory=dict)
    """Added to what the walls set."""
    sockets: Path | None = None
    """A folder of the host with unix sockets: the only way out of its network."""
    ports: Mapping[int, str] = field(default_factory=dict)
    """TCP port on 127.0.0.1 inside -> the name of the socket to which it leads."""
    terminal: bool = False
    """Its stdin, stdout and stderr are one terminal, of which gpubox holds the other end."""


@dataclass(frozen=True, slots=True)
class ConfinedProgram:
    """What to run, and what it finds."""

    code: bytes
    stdin: bytes = b""
    """At most MAX_STDIN bytes. The program reads it from a pipe, once."""
    shell: bool = False
    """``code`` is a command line for the shell, not Python."""
    place: Place = Place()  # noqa: RUF009 - frozen
    resident: ResidentProgram | None = None
    """Runs instead of ``code``."""


@dataclass(frozen=True, slots=True)
class ConfinedProcess:
    """One running confined program, and the pipes that it writes to."""

    popen: subprocess.Popen[bytes]
    output_fd: int
    """What it writes to stdout and stderr; of a program that stays only the latter."""
    status_fd: int
    """Here the monitor reports how the program ended."""
    release: Callable[[], None] = lambda: None
    """Call it once the program is dead."""
    group: Cgroup | None = None
    """Remove it once the program is dead."""
    go_fd: int = -1
    """The program begins when a byte is written here."""
    stdin_fd: int = -1
    """Of a program that stays: its stdin and stdout, both its terminal if it has one. ``control_fd``: where the monitor
    is told to stop it and to let it go on."""
    stdout_fd: int = -1
    control_fd: int = -1
    scratch: Path | None = None
    """The host folder that serves as /tmp if the run is only a process group, without namespaces."""


def limits(policy: Policy) -> dict[str, tuple[int, int]]:
    """rlimit name -> (soft, hard). Set inside, because the kernel counts processes for each user namespace."""
    both = {
        # Not the address space: Node, Go and the JVM reserve far more than they use.
        "RLIMIT_DATA": policy.memory_bytes,
        "RLIMIT_NPROC": policy.processes,
        "RLIMIT_NOFILE": policy.open_files,
        "RLIMIT_FSIZE": policy.file_bytes,
        # 1 byte: the only value with which the kernel does not call the host's core handler.
        "RLIMIT_CORE": 1,
        "RLIMIT_MEMLOCK": 65536,
        "RLIMIT_MSGQUEUE": 0,
        "RLIMIT_NICE": 0,
        "RLIMIT_RTPRIO": 0,
        "RLIMIT_SIGPENDING": 1024,
    }
    clock = {} if policy.resident else {"RLIMIT_CPU": (policy.cpu_seconds, policy.cpu_seconds + 1)}
    return {name: (value, value) for name, value in both.items()} | clock


def boot_text(policy: Policy, config: Mapping[str, object], folders: Sequence[str] = ()) -> bytes:
    """boot.py with its CONFIG in front. The monitor counts the files in ``folders``."""
    common = {
        "alarm": 0 if policy.resident else int(policy.wall_seconds) + _GRACE_SECONDS,
        "limits": limits(policy),
        "parent": os.getpid(),
        "watch": {"folders": list(folders), "files": policy.scratch_files, "kernel": policy.kernel_bytes},
        "network": policy.network,
        "memory": policy.memory_bytes,
        "monitor": _MONITOR_TEXT,
        # Those of the workspace run a program if they are there.
        "pythons": [f"{config['work']}/{name}/bin/python" for name in VENVS] if policy.workspace else [],
    }
    return f"CONFIG = {common | dict(config)!r}\n{_BOOT_TEXT}".encode()


def layer_owner() -> int | None:
    """The user that writes layers, who owns what is in them: root's programs run as one that owns nothing else.

    None: gpubox is no root, and its programs run as the same user.
    """
    return None if os.geteuid() else _unused_uid(2**27)


def unused_uid() -> int:
    """A user that owns nothing, so that root's programs do not run as root; different for each gpubox if possible."""
    return _unused_uid((os.getpid() * _UIDS + next(_turns) % _UIDS) % 2**27)


def _unused_uid(number: int) -> int:
    with contextlib.suppress(OSError, ValueError):
        for line in Path("/proc/self/uid_map").read_text().splitlines():
            first, _, count = (int(field) for field in line.split())
            if first <= _FIRST_UNUSED_UID and first + count > _FIRST_UNUSED_UID + 2**27:
                return _FIRST_UNUSED_UID + number
    return _NOBODY_UID


def start(confinement: Confinement, python: Interpreter, program: ConfinedProgram, policy: Policy) -> ConfinedProcess:
    """Starts ``program`` with the isolation of ``confinement``.

    Raises OSError if it cannot be started, GpuboxError if root cannot give its user access to the workspace.
    """
    layered = policy.layers or program.place.copy
    uid = (layer_owner() or 0) if layered else unused_uid() if os.geteuid() == 0 else 0
    group = cgroup.make(policy)
    launch = _start_bubblewrap if confinement.isolation == "bubblewrap" else _start_without_namespaces

    def begin() -> ConfinedProcess:
        return launch(confinement, python, program, policy, uid, group)

    try:
        if not uid or policy.workspace is None:
            return begin()
        process, end_mount = start_on_mount(policy.workspace, uid, begin, needed=not program.place.copy)
    except BaseException:
        if group:
            group.remove()
        raise

    def release() -> None:
        end_mount()
        process.release()

    return replace(process, release=release)


def _start_bubblewrap(
    confinement: Confinement,
    python: Interpreter,
    program: ConfinedProgram,
    policy: Policy,
    uid: int,
    group: Cgroup | None,
) -> ConfinedProcess:
    with contextlib.ExitStack() as ours, contextlib.ExitStack() as theirs:
        output_fd, output_end = _pipe(ours, theirs)
        status_fd, status_end = _pipe(ours, theirs)
        go_end, go_fd = _pipe(theirs, ours) if group else (None, -1)
        resident, pipes, stdout_end, control_end = program.resident, (-1, -1, -1), output_end, None
        stderr = output_end
        if resident:
            control_end, control_fd = _pipe(theirs, ours)
            if resident.terminal:
                stdin_fd, stdin = os.openpty()
                ours.callback(os.close, stdin_fd)
                theirs.callback(os.close, stdin)
                stdout_fd, stdout_end, stderr = stdin_fd, stdin, stdin
            else:
                stdin, stdin_fd = _pipe(theirs, ours)
                stdout_fd, stdout_end = _pipe(ours, theirs)
            pipes = stdin_fd, stdout_fd, control_fd
        else:
            stdin = _stdin(theirs, program.stdin)
        config: dict[str, object] = {
            "main": bubblewrap.MAIN,
            "work": WORKSPACE_MOUNT,
            "filter": _filter(policy),
            "status_fd": status_end,
            "go_fd": go_end,
            "uid": uid if confinement.as_root else 0,
            "shell": program.shell,
            "writes": bool(policy.layers),
        }
        if resident:
            config |= {
                "control_fd": control_end,
                "argv": resident.argv,
                "relay": _RELAY_TEXT if resident.ports else "",
                "ports": {port: f"{bubblewrap.SOCKETS_MOUNT}/{name}" for port, name in resident.ports.items()},
                "terminal": resident.terminal,
                "group_bounds": group is not None,
            }
        tools = _tools(program, policy, Path.home() if confinement.as_root or not uid else Path("/"))
        user = uid if confinement.as_root else bubblewrap.UID
        texts = {
            bubblewrap.BOOT: boot_text(policy, config, bubblewrap.scratch_folders(tools)),
            bubblewrap.MAIN: program.code,
        }
        if tools:
            texts["/etc/passwd"] = f"sandbox:x:{user}:{user}::{tools.env['HOME']}:/bin/sh\n".encode()
            texts["/etc/group"] = f"sandbox:x:{user}:\n".encode()
        if resident and not policy.network:
            texts["/etc/hosts"] = b"127.0.0.1 localhost\n::1 localhost\n"
        files = {path: _memory_file(theirs, text) for path, text in texts.items()}
        argv = bubblewrap.arguments(policy, python, files, program.place, tools, as_root=confinement.as_root)
        # In a file, because the confined program can read argv in /proc/1/cmdline.
        options = _memory_file(theirs, b"\0".join(os.fsencode(argument) for argument in argv) + b"\0")
        popen = _popen(
            [confinement.program, "--args", str(options), "--", *python.command(bubblewrap.BOOT)],
            stdout_end,
            (status_end, *files.values(), options, *(fd for fd in (go_end, control_end) if fd is not None)),
            stdin=stdin,
            stderr=stderr,
            drop_to=uid if uid and not confinement.as_root else 0,
        )
        ours.pop_all()
        return ConfinedProcess(popen, output_fd, status_fd, lambda: None, group, go_fd, *pipes)


def _tools(program: ConfinedProgram, policy: Policy, home: Path) -> Toolchains | None:
    if policy.workspace is None:
        return None
    path = os.environ.get("PATH", "")
    tools = find_toolchains(policy.workspace, program.place.cache, network=policy.network, home=home, path=path)
    return tools.for_agent(program.resident.folders, program.resident.env) if program.resident else tools


def _start_without_namespaces(
    confinement: Confinement,
    python: Interpreter,
    program: ConfinedProgram,
    policy: Policy,
    uid: int,
    group: Cgroup | None,
) -> ConfinedProcess:
    """boot.py confines itself, and its process group is killed as a whole."""
    with contextlib.ExitStack() as ours, contextlib.ExitStack() as theirs:
        output_fd, output_end = _pipe(ours, theirs)
        status_fd, status_end = _pipe(ours, theirs)
        go_end, go_fd = _pipe(theirs, ours) if group else (None, -1)
        scratch = landlock.make_scratch_dirs(policy, program.place.copy, program.code, uid)
        ours.callback(scratch.remove)
        tools = _tools(program, policy, Path.home())
        abi = landlock.version() if confinement.isolation == "landlock" else 0
        config = {
            "main": str(scratch.main),
            "work": str(scratch.work),
            "filter": _filter(policy, shared=True, signals=abi >= landlock.SIGNAL_SCOPE),
            "status_fd": status_end,
            "go_fd": go_end,
            "uid": uid,
            "group": True,
            "shell": program.shell,
            "landlock": (abi, landlock.rules(scratch, python, tools), not policy.network) if abi else None,
        }
        counted = policy if uid else replace(policy, processes=policy.processes + landlock.count_own_threads())
        boot_fd = _memory_file(theirs, boot_text(counted, config))
        popen = _popen(
            python.command(f"/proc/self/fd/{boot_fd}", on_host=True),
            output_end,
            (status_end, boot_fd, *([] if go_end is None else [go_end])),
            stdin=_stdin(theirs, program.stdin),
            env=landlock.environment(scratch, tools),
        )
        ours.pop_all()
        return ConfinedProcess(
            popen, output_fd, status_fd, group=group, go_fd=go_fd, release=scratch.remove, scratch=scratch.root
        )


def _filter(policy: Policy, *, shared: bool = False, signals: bool = True) -> bytes:
    if not seccomp.supported():
        return b""
    filters, stays, network = policy.allow_seccomp_filters, policy.resident, policy.network or policy.resident
    return seccomp.compile_filter(shared=shared, signals=signals, filters=filters, network=network, resident=stays)


def _popen(
    argv: list[str],
    output: int,
    fds: tuple[int, ...],
    *,
    stdin: int,
    stderr: int | None = None,
    drop_to: int = 0,
    env: Mapping[str, str] | None = None,
) -> subprocess.Popen[bytes]:
    """Starts ``argv`` with no descriptors but ``fds``, as the user ``drop_to`` if that is given."""
    popen = subprocess.Popen(
        argv,
        stdin=stdin,
        stdout=output,
        stderr=output if stderr is None else stderr,
        cwd="/",
        env=env or {},
        pass_fds=fds,
        start_new_session=True,
        user=drop_to or None,
        group=drop_to or None,
        extra_groups=[] if drop_to else None,
    )
    with contextlib.suppress(OSError):  # if the box runs out of memory, the kernel kills this and not the server
        Path(f"/proc/{popen.pid}/oom_score_adj").write_text("1000")
    return popen


def _pipe(readers: contextlib.ExitStack, writers: contextlib.ExitStack) -> tuple[int, int]:
    """The two ends of a pipe, each to be closed by its stack."""
    reader, writer = os.pipe2(os.O_CLOEXEC)
    readers.callback(os.close, reader)
    writers.callback(os.close, writer)
    return reader, writer


def _stdin(stack: contextlib.ExitStack, data: bytes) -> int:
    """A pipe with ``data`` in it. Unlike a file, it cannot be read twice."""
    if not data:
        return subprocess.DEVNULL
    with contextlib.ExitStack() as filled:
        reader, writer = _pipe(stack, filled)
        fcntl.fcntl(writer, fcntl.F_SETPIPE_SZ, max(len(data), 4096))
        os.set_blocking(writer, False)
        if os.write(writer, data) != len(data):
            raise BlockingIOError(errno.ENOSPC, "the pipe is too small")
    return reader


def _memory_file(stack: contextlib.ExitStack, data: bytes) -> int:
    """An anonymous file (memfd) with ``data``, positioned at offset 0."""
    fd = os.memfd_create("gpubox", os.MFD_CLOEXEC)
    stack.callback(os.close, fd)
    with open(fd, "wb", closefd=False) as file:
        file.write(data)
    os.lseek(fd, 0, os.SEEK_SET)
    return fd
