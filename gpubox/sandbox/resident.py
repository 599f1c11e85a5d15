"""A confined program that stays: a whole agent, over many turns. It works in a private copy of the workspace.

One process lives through many turns and layers, and the layers of an overlay are fixed at its mount: so before a turn
the copy is made what the workspace and the layers are, and after it what differs is put into the layer of the turn.
While that is done every process of it stands still.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import select
import signal
import time
from asyncio.streams import FlowControlMixin, StreamReader, StreamReaderProtocol
from collections.abc import AsyncIterator
from dataclasses import dataclass, field, replace
from pathlib import Path

from gpubox.errors import GpuboxError
from gpubox.hardware.process import descendants
from gpubox.json_rpc import MAX_LINE
from gpubox.sandbox.bubblewrap import Place
from gpubox.sandbox.confined_run import ConfinedRun, finish, start_confined
from gpubox.sandbox.folders import check_workspace, give
from gpubox.sandbox.layers import View
from gpubox.sandbox.policy import Policy
from gpubox.sandbox.private_copy import PrivateCopy
from gpubox.sandbox.runner import Sandbox
from gpubox.sandbox.spawn import ConfinedProgram, ResidentProgram, layer_owner
from gpubox.sandbox.workspace_run import in_thread_explained
from gpubox.sanitize import sanitize_text
from gpubox.units import KIB

_MAX_WORDS = 8 * KIB
"""Bytes of its stderr that are kept."""
_ORDER_SECONDS = 15.0
_PAUSE, _REST_PAUSE, _REST_SECONDS, _REST_CPU_SECONDS = 0.1, 0.5, 5.0, 0.002
"""How often is looked whether it did something, and if it rests: so long as it uses less CPU time than this, its limits
are checked only so often."""
_FLOOD_SECONDS, _PIECE_BYTES = 0.02, 65536
_PLAIN_SCREEN = b"\x1b[?1047l\x1b[?25h\x1b[?1000l\x1b[?1002l\x1b[?1003l\x1b[?1006l\x1b[?2004l\x1b[0m"
"""Ends what an agent that was killed would have ended: the other screen, the mouse, pasting, colours."""
_CTRL_Z = re.compile(rb"\x1a|\x1b\[122[\d:]*;(5|69|133|197)(:\d)?u|\x1b\[27;5;122~")
"""As terminals send it. An agent would stop for good: no shell is in the walls to let it go on."""
_working: set[Path] = set()
"""The copies in which one works now."""


@dataclass(eq=False)
class _ResidentRun(ConfinedRun):
    """Its process. Of its output only the end is kept, and however much it is costs little."""

    _known: list[int] = field(default_factory=list)
    _used: float = -1.0
    _checked: float = 0.0

    def rests(self) -> bool:
        """Whether it started no process and used next to no CPU time since the last check, a moment ago."""
        pids = descendants(self.process.popen.pid)
        used = _cpu_seconds(pids)
        rests = pids == self._known and 0 <= used - self._used < _REST_CPU_SECONDS
        self.pause = _REST_PAUSE if rests else _PAUSE
        if rests and time.monotonic() < self._checked + _REST_SECONDS:
            return True
        self._known, self._used, self._checked = pids, used, time.monotonic()
        return False

    def keep(self, data: bytes) -> None:
        """Keeps the end."""
        self.output = (self.output + data)[-_MAX_WORDS:]
        if len(data) == _PIECE_BYTES and self.process.popen.returncode is None:  # a flood
            loop = asyncio.get_running_loop()
            loop.remove_reader(self.process.output_fd)
            loop.call_later(_FLOOD_SECONDS, self._read_again)

    def _read_again(self) -> None:
        if self.process.popen.returncode is None:  # else it is read to its end
            asyncio.get_running_loop().add_reader(self.process.output_fd, self._read)

    async def order(self, word: bytes) -> None:
        """Has all its processes stopped (``s``) or let go on (``c``). It is killed if that fails."""
        if self.process.popen.returncode is not None:
            return
        loop, answered = asyncio.get_running_loop(), asyncio.Event()
        fd, answer = os.dup(self.process.status_fd), b""  # its own may be closed meanwhile
        loop.add_reader(fd, answered.set)
        with contextlib.suppress(OSError, TimeoutError):
            try:
                os.write(self.process.control_fd, word)
                await asyncio.wait_for(answered.wait(), _ORDER_SECONDS)
                answer = os.read(fd, 1)
            finally:
                loop.remove_reader(fd)
                os.close(fd)
        if answer != word:
            self.report += answer
            if not self.report[:1].isdigit():  # that would be the report of its end
                self.end("cancelled", "it could not be stopped for a moment")
            self.kill()


def _cpu_seconds(pids: list[int]) -> float:
    try:
        return sum(time.clock_gettime(~pid << 3 | 2) for pid in pids)  # clock_getcpuclockid(3)
    except OSError:
        return -1.0


class Resident:
    """A confined program that runs. ``close`` it."""

    reader: asyncio.StreamReader
    """Its stdout."""
    writer: asyncio.StreamWriter
    """Its stdin."""

    def __init__(self, run: _ResidentRun, copy: PrivateCopy) -> None:
        self.ended = asyncio.Event()
        """It has ended, and all its processes with it."""
        self.why = ""
        """Why it ended, in words."""
        self.exit_code: int | None = None
        self.shell_code = 1
        """As a shell has it: 128 and the number of the signal that ended it."""
        self.terminal = run.process.stdin_fd
        """The other end of its terminal, if it has one instead of streams."""
        self._run, self._copy, self._in_turn = run, copy, False
        self._reading: asyncio.ReadTransport | None = None
        self._writing: asyncio.WriteTransport | None = None
        self._stopping = asyncio.Lock()
        self._task = asyncio.create_task(self._live())

    async def connect(self) -> None:
        """Opens its streams."""
        loop, process = asyncio.get_running_loop(), self._run.process
        self.reader = StreamReader(limit=MAX_LINE)
        self._reading, _ = await loop.connect_read_pipe(
            lambda: StreamReaderProtocol(self.reader), os.fdopen(process.stdout_fd, "rb", 0)
        )
        self._writing, protocol = await loop.connect_write_pipe(FlowControlMixin, os.fdopen(process.stdin_fd, "wb", 0))
        self.writer = asyncio.StreamWriter(self._writing, protocol, None, loop)

    @property
    def last_words(self) -> str:
        """The end of what it wrote to stderr."""
        return sanitize_text(self._run.output.decode("utf-8", "replace")).strip()

    async def begin_turn(self, layers: tuple[Path, ...]) -> None:
        """Makes the copy what the workspace under ``layers`` is, the top one first. Raises GpuboxError."""
        async with self._standing_still():
            self._in_turn = False
            self._copy.view = View([*layers, self._copy.view.folders[-1]])
            await in_thread_explained(finish(asyncio.to_thread(self._copy.synchronize)))
            self._in_turn = True
            self._run.watch_disk()

    async def end_turn(self) -> None:
        """Puts what it changed into the top layer of the turn.

        Does nothing if no turn was begun. It works on after it, but what it changes then is gone at the next turn.
        Raises GpuboxError.
        """
        if not self._in_turn:
            return
        self._in_turn = False
        async with self._standing_still():
            await in_thread_explained(finish(asyncio.to_thread(self._copy.harvest)))

    async def close(self) -> None:
        """Kills every process of it, and returns when all are dead. May be called twice."""
        self._task.cancel()
        await finish(asyncio.wait([self._task]))
        if self._reading:
            self._reading.close()
        elif self.terminal >= 0:
            os.close(self.terminal)
        self.terminal = -1

    @contextlib.asynccontextmanager
    async def _standing_still(self) -> AsyncIterator[None]:
        async with self._stopping:
            try:
                await finish(self._run.order(b"s"))
                if self._run.report or self._task.cancelling():
                    await finish(asyncio.wait([self._task]))  # no process is left: nothing moves
                yield
            finally:
                await finish(self._run.order(b"c"))

    async def _live(self) -> None:
        try:
            await self._run.until_dead(time.monotonic())
        finally:
            self.exit_code, signal_name = self._run.exit_status()
            self.shell_code = 128 + signal.Signals[signal_name] if signal_name else self.exit_code or 0
            by_itself = f"signal {signal_name}" if signal_name else f"exit code {self.exit_code}"
            self.why = self._run.why or f"it ended with {by_itself}"
            os.close(self._run.process.control_fd)
            if self._writing:
                self._writing.close()
            _working.discard(self._copy.folder)
            self.ended.set()


async def start_resident(sandbox: Sandbox, program: ResidentProgram, policy: Policy, chat: Path) -> Resident:
    """Starts ``program`` over the workspace and the layers of ``policy`` (Policy.for_agents).

    ``chat``: the folder of the chat's layers. Raises GpuboxError.
    """
    confinement = await sandbox.confinement()
    if confinement.isolation != "bubblewrap":
        raise GpuboxError(
            f"A whole agent runs only in bubblewrap: {confinement.problem}",
            confinement.hint or "`gpubox doctor` says more.",
        )
    assert policy.workspace is not None
    policy = replace(policy, workspace=check_workspace(policy.workspace))
    folder, cache, owner = chat / "agent", chat / "cache", layer_owner()
    if folder in _working:
        raise GpuboxError("Another agent works in this chat.", "Wait for its end.")
    _working.add(folder)
    try:
        copy = PrivateCopy(policy, folder, owner, heavy=True)
        await in_thread_explained(finish(asyncio.to_thread(_prepare, copy, (cache, program.home), owner)))
        place = Place(False, folder, copy.read_only, (), cache, program.home, program.sockets, program.terminal)
        confined = ConfinedProgram(b"", place=place, resident=program)
        process = start_confined(confinement, confined, replace(policy, layers=()))
    except BaseException:
        _working.discard(folder)
        raise
    resident = Resident(_ResidentRun(process, policy, (folder, cache, program.home)), copy)
    try:
        if not program.terminal:
            await resident.connect()
    except BaseException:
        await resident.close()
        raise
    return resident


def _prepare(copy: PrivateCopy, folders: tuple[Path, ...], owner: int | None) -> None:
    for folder in folders:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        if owner is not None:
            give(folder, owner)
    copy.synchronize()


async def run_in_terminal(resident: Resident) -> int:
    """Connects the owner's terminal, gpubox's stdin and stdout, with that of ``resident`` until it ends.

    Returns its exit code, or 129 as soon as the owner's terminal is gone. That is what it was afterwards. Raises
    GpuboxError if there is none.
    """
    import termios
    import tty

    if not (os.isatty(0) and os.isatty(1)):
        raise GpuboxError("The agent needs a terminal.", "Run it in one, without redirecting its output.")
    loop, far, pending, before = asyncio.get_running_loop(), resident.terminal, bytearray(), termios.tcgetattr(0)
    gone = asyncio.Event()

    def resize() -> None:
        with contextlib.suppress(OSError):
            termios.tcsetwinsize(far, termios.tcgetwinsize(0))

    def type_on() -> None:
        with contextlib.suppress(OSError):
            del pending[: os.write(far, pending)]
        (loop.add_writer if pending else lambda fd, _: loop.remove_writer(fd))(far, type_on)

    def hang_up() -> None:
        loop.remove_reader(0)
        loop.remove_reader(far)
        gone.set()

    def read_keys() -> None:
        try:
            data = os.read(0, _PIECE_BYTES)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            hang_up()
        pending.extend(_CTRL_Z.sub(b"", data))
        type_on()

    def show() -> bool:
        try:
            data = os.read(far, _PIECE_BYTES)
        except BlockingIOError:
            return False
        except OSError:  # none of its processes has it open
            loop.remove_reader(far)
            return False
        try:
            while data:
                select.select([], [1], [])  # whoever had it before may have left it non-blocking
                data = data[os.write(1, data) :]
        except OSError:
            hang_up()
        return not gone.is_set()

    os.set_blocking(far, False)
    try:
        tty.setraw(0)
        resize()
        loop.add_signal_handler(signal.SIGWINCH, resize)
        loop.add_reader(0, read_keys)
        loop.add_reader(far, show)
        heeded = signal.signal(signal.SIGHUP, lambda *_: loop.call_soon_threadsafe(hang_up))
        waits = [asyncio.ensure_future(event.wait()) for event in (resident.ended, gone)]
        try:
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        finally:
            signal.signal(signal.SIGHUP, heeded)
            for each in waits:
                each.cancel()
        if gone.is_set():
            return 128 + signal.SIGHUP
        while show():
            pass
    finally:
        loop.remove_signal_handler(signal.SIGWINCH)
        for fd in (0, far):
            loop.remove_reader(fd)
        loop.remove_writer(far)
        with contextlib.suppress(OSError, termios.error):  # it is gone
            os.write(1, _PLAIN_SCREEN)
            termios.tcsetattr(0, termios.TCSADRAIN, before)
    return resident.shell_code
