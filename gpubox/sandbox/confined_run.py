"""One run of one program, from its start to the death of its last process."""

from __future__ import annotations

import asyncio
import contextlib
import os
import select
import signal
import time
from collections.abc import Awaitable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

from gpubox.errors import GpuboxError
from gpubox.hardware.process import children, descendants, kill_group
from gpubox.sandbox import spawn
from gpubox.sandbox.disk_monitor import DiskMonitor, written_bytes
from gpubox.sandbox.interpreter import find_interpreter
from gpubox.sandbox.policy import Confinement, EndedBy, Outcome, Policy
from gpubox.sandbox.spawn import ConfinedProgram
from gpubox.units import KIB, MIB

T = TypeVar("T")


def wait_group_dead(pid: int, seconds: float) -> None:
    """Returns when the group that ``pid`` led is empty, or after ``seconds``."""
    end = time.monotonic() + seconds
    with contextlib.suppress(ProcessLookupError):
        while time.monotonic() < end:
            os.killpg(pid, signal.SIGKILL)
            time.sleep(0.002)


def kill_tree(pid: int) -> list[int]:
    """Kills ``pid`` and its children. ``pid`` is stopped first, so that it cannot make another child.

    Returns pidfds of the children. One becomes readable when its process is dead, and with it the pid namespace whose
    first process it was.
    """
    fds: list[int] = []
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGSTOP)
        for child in children(pid):
            with contextlib.suppress(OSError):
                fds.append(os.pidfd_open(child))
                os.kill(child, signal.SIGKILL)
        os.kill(pid, signal.SIGKILL)
    return fds


def wait_dead(fds: list[int], seconds: float) -> None:
    """Returns when all processes of these pidfds are dead, or after ``seconds``. Closes the pidfds."""
    end = time.monotonic() + seconds
    for fd in fds:
        select.select([fd], [], [], max(0.0, end - time.monotonic()))
        os.close(fd)


def memory_bytes(pids: list[int], threshold: int) -> int:
    """Memory of the processes together, swap included.

    A first sum counts shared pages once for each process. Only if it exceeds ``threshold`` are they counted exactly.
    """
    quick = sum(_field_sum(pid, "status", ("RssAnon:", "RssShmem:", "VmSwap:")) for pid in pids)
    return quick if quick <= threshold else sum(_field_sum(pid, "smaps_rollup", ("Pss:", "SwapPss:")) for pid in pids)


def _field_sum(pid: int, name: str, fields: tuple[str, ...]) -> int:
    try:
        text = Path(f"/proc/{pid}/{name}").read_text()
    except OSError:
        return 0
    return sum(int(line.split()[1]) for line in text.splitlines() if line.startswith(fields)) * KIB


_CHUNK_BYTES = 65536
_CHECK_SECONDS = 0.1
_DEATH_SECONDS = 10.0
_GROUP_SECONDS = 2.0
"""Zombies keep a process group non-empty where no process reaps them (no subreaper, no init)."""


async def run_confined(confinement: Confinement, program: ConfinedProgram, policy: Policy) -> Outcome:
    """Runs ``program`` with the isolation of ``confinement``, once. Raises GpuboxError."""
    assert confinement.isolation is not None
    began = time.monotonic()
    process = start_confined(confinement, program, policy)
    folders = (program.place.copy or next(iter(policy.layers), None), program.place.cache)
    run = ConfinedRun(process, policy, tuple(folder for folder in folders if folder))
    await run.until_dead(began)
    exit_code, signal_name = run.exit_status()
    return Outcome(
        exit_code=exit_code,
        signal=signal_name,
        output=run.output.decode("utf-8", "replace"),
        ended_by=run.ended_by,
        seconds=time.monotonic() - began,
        isolation=confinement.isolation,
        dropped_bytes=run.dropped_bytes,
        why=run.why,
    )


def start_confined(confinement: Confinement, program: ConfinedProgram, policy: Policy) -> spawn.ConfinedProcess:
    """Starts ``program``. Raises GpuboxError."""
    try:
        return spawn.start(confinement, find_interpreter(), program, policy)
    except OSError as error:
        message = f"The sandbox could not be started: {error.strerror}."
        raise GpuboxError(message, "`gpubox doctor` says more.") from None


async def finish(work: Awaitable[T]) -> T:
    """What ``work`` returns: waits for it even if cancelled meanwhile, and then raises CancelledError."""
    task, cancelled = asyncio.ensure_future(work), False
    while not task.done():
        try:
            await asyncio.shield(task)
        except asyncio.CancelledError:
            cancelled = True
    if cancelled:
        raise asyncio.CancelledError
    return task.result()


@dataclass(eq=False)
class ConfinedRun:
    """A running program: its output so far, and what ended it."""

    process: spawn.ConfinedProcess
    policy: Policy
    kept: tuple[Path, ...] = ()
    """The folders on the host that it writes and that outlive it."""
    output: bytearray = field(default_factory=bytearray)
    dropped_bytes: int = 0
    ended_by: EndedBy = ""
    why: str = ""
    """The limit that ended it, in words."""
    report: bytes = b""
    """What the monitor wrote about the end of the program."""
    _cgroup_was_full: bool = False
    _dying: list[int] = field(default_factory=list)
    """Pidfds of killed processes."""
    pause: float = _CHECK_SECONDS
    """Seconds until its limits are checked again."""
    _disk: DiskMonitor = field(init=False)

    async def until_dead(self, began: float) -> None:
        """Reads the output, checks the limits, and kills the program at a limit or when cancelled.

        Afterwards none of its processes and none of its descriptors is left.
        """
        loop = asyncio.get_running_loop()
        popen, output_fd = self.process.popen, self.process.output_fd
        exited = asyncio.Event()
        pidfd = os.pidfd_open(popen.pid)
        loop.add_reader(pidfd, exited.set)
        for fd in (output_fd, self.process.status_fd):
            os.set_blocking(fd, False)
        loop.add_reader(output_fd, self._read)
        group = self.process.group
        admitting = (
            asyncio.create_task(asyncio.to_thread(group.admit, popen.pid, self.process.go_fd)) if group else None
        )
        try:
            await self._check_limits(exited, began)
        finally:
            self.kill()
            if admitting:
                await finish(admitting)
                os.close(self.process.go_fd)
            loop.remove_reader(pidfd)
            os.close(pidfd)
            if self._dying or popen.poll() is None or self.process.scratch or group:
                await finish(asyncio.to_thread(self._reap))
            else:
                self._reap()
            loop.remove_reader(output_fd)
            self._read_rest()
            os.close(output_fd)

    def _reap(self) -> None:
        """Returns when every process is dead. It can take the kernel a while to release their memory."""
        wait_dead(self._dying, _DEATH_SECONDS)
        self.process.popen.wait()
        if self.process.scratch:
            wait_group_dead(self.process.popen.pid, _GROUP_SECONDS)
        self.process.release()
        if self.process.group:
            self._cgroup_was_full = self.process.group.was_full()
            self.process.group.remove()

    async def _check_limits(self, exited: asyncio.Event, began: float) -> None:
        policy = self.policy
        self.watch_disk()
        while not self.ended_by:
            left = began + policy.wall_seconds - time.monotonic()
            if left <= 0:
                self.end("wall", f"time: longer than {policy.wall_seconds:g} s")
                return
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(exited.wait(), min(left, self.pause))
                return
            if self.rests():
                continue
            pids = descendants(self.process.popen.pid)
            if memory_bytes(pids, policy.memory_bytes) > policy.memory_bytes:
                self.end("memory", _memory_limit(policy))
            elif disk_limit := await asyncio.to_thread(self._disk.exceeded_limit, pids):
                self.end("disk", disk_limit)

    def rests(self) -> bool:
        """Whether its limits need not be checked now."""
        return False

    def watch_disk(self) -> None:
        """From now on counts what it writes."""
        pids = descendants(self.process.popen.pid) if self.policy.resident else []
        self._disk = DiskMonitor(self.policy, self.process.scratch, self.kept, written_bytes(pids))

    def end(self, limit: EndedBy, why: str) -> None:
        """Records the limit; only the first one counts."""
        if not self.ended_by:
            self.ended_by, self.why = limit, why

    def _read(self) -> None:
        """Reads one piece of output. Too much output ends the run."""
        try:
            data = os.read(self.process.output_fd, _CHUNK_BYTES)
        except BlockingIOError:
            return
        if not data:
            asyncio.get_running_loop().remove_reader(self.process.output_fd)
        self.keep(data)

    def keep(self, data: bytes) -> None:
        """Takes a piece of its output."""
        room = self.policy.output_bytes - len(self.output)
        self.output += data[:room]
        self.dropped_bytes += max(0, len(data) - room)
        if self.dropped_bytes and not self.ended_by:
            self.end("output", f"output: more than {self.policy.output_bytes:,} bytes were printed")
            self.kill()

    def kill(self) -> None:
        """Kills its processes. ``until_dead`` waits for their death."""
        if self.process.popen.returncode is not None:
            return  # reaped: the pid may belong to another process by now
        if self.process.scratch:
            kill_group(self.process.popen.pid)
        else:
            self._dying += kill_tree(self.process.popen.pid)

    def _read_rest(self) -> None:
        """Reads what was in the pipes when the last process died."""
        with contextlib.suppress(BlockingIOError):
            while data := os.read(self.process.output_fd, _CHUNK_BYTES):
                self.keep(data)
        with contextlib.suppress(BlockingIOError):
            self.report += os.read(self.process.status_fd, 400)
        os.close(self.process.status_fd)

    def exit_status(self) -> tuple[int | None, str | None]:
        """Exit code and signal, as the monitor reported them."""
        if self._cgroup_was_full:
            self.end("memory", f"{_memory_limit(self.policy)}, kernel memory included")
        try:
            wait_status, cpu_seconds, *words = self.report.decode().split()
            status, seconds, kernel_limit = int(wait_status), float(cpu_seconds), " ".join(words)
        except ValueError:  # the monitor was killed before it could report
            return None, "SIGKILL"
        if kernel_limit:
            self.end("disk" if kernel_limit.startswith("files") else "memory", kernel_limit)
        if not os.WIFSIGNALED(status):
            if status and self.output.rpartition(b"\n")[0].rpartition(b"\n")[2] == b"MemoryError":
                self.end("memory", _memory_limit(self.policy))  # how Python reports the limit of its address space
            return os.waitstatus_to_exitcode(status), None
        number = os.WTERMSIG(status)
        if number == signal.SIGXCPU or (not self.policy.resident and seconds >= self.policy.cpu_seconds):
            self.end("cpu", f"CPU time: more than {self.policy.cpu_seconds} s were used")
        return None, signal.Signals(number).name


def _memory_limit(policy: Policy) -> str:
    return f"memory: more than {policy.memory_bytes // MIB:,} MiB"
