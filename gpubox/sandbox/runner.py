"""``Sandbox.run``: one program, confined, from its start to the death of its last process."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import time
from dataclasses import dataclass, field, replace

from gpubox.config import Config
from gpubox.errors import GpuboxError
from gpubox.sandbox import spawn
from gpubox.sandbox.disk_usage import DiskMonitor
from gpubox.sandbox.interpreter import find_interpreter
from gpubox.sandbox.policy import Confinement, EndedBy, Outcome, Policy
from gpubox.sandbox.process_tree import descendants, kill_group, kill_tree, memory_bytes, wait_dead, wait_group_dead
from gpubox.sandbox.quarantine import Quarantine
from gpubox.sandbox.workspace_scan import WorkspaceScan, changed_files, check_workspace, scan, scan_at_start
from gpubox.units import MIB

_CHUNK = 65536
_WATCH_SECONDS = 0.1
_DEATH_SECONDS, _GROUP_SECONDS = 10.0, 2.0
"""Where nobody collects the dead, a process group never becomes empty."""


class Sandbox:
    """Runs programs of a model. One object may run several at a time; nothing is kept between runs."""

    def __init__(self, config: Config | None = None, *, confinement: Confinement | None = None) -> None:
        self._config = config or Config()
        self._confinement = confinement

    async def confinement(self) -> Confinement:
        """What confines the programs of this sandbox; found out once."""
        if self._confinement is None:
            self._confinement = await self.probe(self._config)
        return self._confinement

    @staticmethod
    async def probe(config: Config) -> Confinement:
        """What confines programs on this machine, shown by really running one; asked once for each process."""
        from gpubox.sandbox.probe import probe

        return await probe(config)

    async def run(self, code: str, policy: Policy = Policy(), *, stdin: bytes = b"") -> Outcome:  # noqa: B008 - frozen
        """Runs ``code`` in a fresh interpreter and says how it ended; ``stdin`` (at most MOST_STDIN) is what it reads.

        Cancelling kills every process of it before this returns. Raises GpuboxError where nothing confines that the
        owner accepts, or where the workspace cannot be used.
        """
        confinement = await self.confinement()
        if confinement.isolation is None:
            raise GpuboxError(f"Code is not run here: {confinement.problem}", confinement.hint)
        return await run_confined(confinement, code, policy, stdin)


async def run_confined(confinement: Confinement, code: str, policy: Policy, stdin: bytes = b"") -> Outcome:
    """One run at the isolation given. Raises GpuboxError."""
    assert confinement.isolation is not None
    began = time.monotonic()
    before = WorkspaceScan()
    if policy.workspace is not None:
        folder = check_workspace(policy.workspace)
        policy = replace(policy, workspace=folder)
        before = await asyncio.to_thread(scan_at_start, folder)
    quarantine = None
    if policy.workspace is not None and not policy.read_only:
        guards = confinement.isolation == "bubblewrap"
        quarantine = await asyncio.to_thread(Quarantine.opened, policy.workspace, guards=guards)
    try:
        run = _Run(_started(confinement, code, policy, before, stdin, quarantine), policy, before, quarantine)
        await run.until_dead(began)
    finally:
        if quarantine:
            await _finished(asyncio.create_task(asyncio.to_thread(quarantine.finish)))
    exit_code, signal_name = run.verdict()
    files: tuple[str, ...] = ()
    if policy.workspace is not None:
        files = changed_files(before, await asyncio.to_thread(scan, policy.workspace))
    return Outcome(
        exit_code=exit_code,
        signal=signal_name,
        output=run.kept.decode("utf-8", "replace"),
        ended_by=run.ended_by,
        seconds=time.monotonic() - began,
        isolation=confinement.isolation,
        files_changed=files,
        dropped_bytes=run.dropped,
        quarantined=tuple(map(str, quarantine.moved)) if quarantine else (),
        not_quarantined=tuple(map(str, quarantine.left)) if quarantine else (),
        quarantine=str(quarantine.place) if quarantine and quarantine.moved else "",
        why=run.why,
    )


def _started(
    confinement: Confinement,
    code: str,
    policy: Policy,
    before: WorkspaceScan,
    stdin: bytes,
    quarantine: Quarantine | None,
) -> spawn.ConfinedProcess:
    protected = quarantine.protected if quarantine else ()
    try:
        process = spawn.start(
            confinement, find_interpreter(), _bytes(code), policy, before.special_files, stdin, protected
        )
    except OSError as error:
        why = f"The sandbox could not be started: {error.strerror}."
        raise GpuboxError(why, "`gpubox doctor` says more.") from None
    for one in protected:
        if quarantine and one not in process.protected:
            quarantine.unguarded(one)
    return process


def _bytes(code: str) -> bytes:
    """As the file it came from had it; what no file can hold is replaced."""
    try:
        return code.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:
        return code.encode("utf-8", "replace")


async def _finished(task: asyncio.Task[None]) -> None:
    """Waits for ``task`` however often this is cancelled: what it does must be done."""
    cancelled = False
    while not task.done():
        try:
            await asyncio.shield(task)
        except asyncio.CancelledError:
            cancelled = True
    if cancelled:
        raise asyncio.CancelledError


@dataclass(eq=False)
class _Run:
    """One program that runs: its output so far and what ended it."""

    process: spawn.ConfinedProcess
    policy: Policy
    before: WorkspaceScan
    quarantine: Quarantine | None = None
    kept: bytearray = field(default_factory=bytearray)
    dropped: int = 0
    ended_by: EndedBy = ""
    why: str = ""
    """Which limit that was, in a few words."""
    _status: bytes = b""
    _was_full: bool = False
    """Whether the cgroup had no memory left."""
    _dying: list[int] = field(default_factory=list)

    async def until_dead(self, began: float) -> None:
        """Reads, watches and, at a limit or when cancelled, kills; afterwards no process and no open file is left."""
        loop = asyncio.get_running_loop()
        popen, output = self.process.popen, self.process.output_fd
        exited, closed = asyncio.Event(), asyncio.Event()
        pidfd = os.pidfd_open(popen.pid)
        loop.add_reader(pidfd, exited.set)
        loop.add_reader(output, self._read, closed)
        group = self.process.group
        admitting = (
            asyncio.create_task(asyncio.to_thread(group.admit, popen.pid, self.process.go_fd)) if group else None
        )
        try:
            await self._watch(exited, began)
        finally:
            self._kill()
            if admitting:
                await _finished(admitting)
                os.close(self.process.go_fd)
            loop.remove_reader(pidfd)
            os.close(pidfd)
            if self._dying or popen.poll() is None or self.process.scratch or group:
                await _finished(asyncio.create_task(asyncio.to_thread(self._bury)))
            else:
                self._bury()
            loop.remove_reader(output)
            self._read_rest()
            os.close(output)

    def _bury(self) -> None:
        """Returns when every process is dead; releasing memory can take the kernel a while."""
        wait_dead(self._dying, _DEATH_SECONDS)
        self.process.popen.wait()
        if self.process.scratch:
            wait_group_dead(self.process.popen.pid, _GROUP_SECONDS)
        self.process.release()
        if self.process.group:
            self._was_full = self.process.group.was_full()
            self.process.group.remove()

    async def _watch(self, exited: asyncio.Event, began: float) -> None:
        policy, disk = self.policy, DiskMonitor(self.policy, self.process.scratch, self.before.files)
        while not self.ended_by:
            left = began + policy.wall_seconds - time.monotonic()
            if left <= 0:
                self._ended("wall", f"time: longer than {policy.wall_seconds:g} s")
                return
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(exited.wait(), min(left, _WATCH_SECONDS))
                return
            if self.quarantine:
                await asyncio.to_thread(self.quarantine.sweep)
            pids = descendants(self.process.popen.pid)
            if memory_bytes(pids, policy.memory_bytes) > policy.memory_bytes:
                self._ended("memory", _memory_words(policy))
            elif exceeded_limit := await asyncio.to_thread(disk.exceeded_limit, pids):
                self._ended("disk", exceeded_limit)

    def _ended(self, limit: EndedBy, why: str) -> None:
        """The first limit that was passed is the one that is told."""
        if not self.ended_by:
            self.ended_by, self.why = limit, why

    def _read(self, closed: asyncio.Event) -> None:
        """One piece of output; too much of it ends the run."""
        try:
            data = os.read(self.process.output_fd, _CHUNK)
        except BlockingIOError:
            return
        if not data:
            asyncio.get_running_loop().remove_reader(self.process.output_fd)
            closed.set()
        self._keep(data)

    def _keep(self, data: bytes) -> None:
        room = self.policy.output_bytes - len(self.kept)
        self.kept += data[:room]
        self.dropped += max(0, len(data) - room)
        if self.dropped and not self.ended_by:
            self._ended("output", f"output: more than {self.policy.output_bytes:,} bytes were printed")
            self._kill()

    def _kill(self) -> None:
        if self.process.popen.returncode is not None:
            return  # dead and buried: its number may be another's by now
        if self.process.scratch:
            kill_group(self.process.popen.pid)
        else:
            self._dying += kill_tree(self.process.popen.pid)

    def _read_rest(self) -> None:
        """What stood in the pipes when the last process died."""
        with contextlib.suppress(BlockingIOError):
            while data := os.read(self.process.output_fd, _CHUNK):
                self._keep(data)
        with contextlib.suppress(BlockingIOError):
            self._status = os.read(self.process.status_fd, 400)
        os.close(self.process.status_fd)

    def verdict(self) -> tuple[int | None, str | None]:
        """Exit code and signal, as the process that waited for the program told them."""
        if self._was_full:
            self._ended("memory", f"{_memory_words(self.policy)}, the kernel's own counted in")
        try:
            number, cpu, *words = self._status.decode().split()
            status, seconds, exceeded_limit = int(number), float(cpu), " ".join(words)
        except ValueError:  # killed before it could say
            return None, "SIGKILL"
        if exceeded_limit:
            self._ended("disk" if exceeded_limit.startswith("files") else "memory", exceeded_limit)
        if not os.WIFSIGNALED(status):
            if status and self.kept.rpartition(b"\n")[0].rpartition(b"\n")[2] == b"MemoryError":
                self._ended("memory", _memory_words(self.policy))  # the limit of its address space, as Python tells it
            return os.waitstatus_to_exitcode(status), None
        killed_by = os.WTERMSIG(status)
        if killed_by == signal.SIGXCPU or seconds >= self.policy.cpu_seconds:
            self._ended("cpu", f"processor: more than {self.policy.cpu_seconds} s were used")
        return None, signal.Signals(killed_by).name


def _memory_words(policy: Policy) -> str:
    return f"memory: more than {policy.memory_bytes // MIB:,} MiB"
