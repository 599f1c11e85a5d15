"""An instance that this gpubox changes: its lock, its record, and the steps that stop and start its server."""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import os
import time
import uuid
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from dataclasses import replace
from pathlib import Path

from gpubox import units
from gpubox.clock import utc_now
from gpubox.config import Config, api_key
from gpubox.errors import ExitCode, GpuboxError
from gpubox.hardware.process import is_alive
from gpubox.paths import Paths
from gpubox.server import watcher
from gpubox.server.client import connect
from gpubox.server.events import ServerEvent, Step, StepDone, StepStarted, WaitingForSlots
from gpubox.server.failure_causes import Cause, FailureKind
from gpubox.server.instance import InstanceView, cause_of, launch_marker, observe
from gpubox.server.kept_kv import KeptKv, KvRestoreKilled
from gpubox.server.launch import beside_gateway, check_port
from gpubox.server.loading import LaunchError, probe_readiness, wait_loaded
from gpubox.server.log import keep_failed_log, rotate_log, truncate_log
from gpubox.server.server_process import (
    IMMEDIATE_STOP_SECONDS,
    spawn_server,
    terminate_server,
    vram_in_use,
    wait_vram_released,
)
from gpubox.server.state import (
    Launch,
    LaunchFailure,
    Operation,
    RestoredSlot,
    RunningServer,
    disk_hint,
    load_gateway,
    save_launch_record,
    save_state,
)
from gpubox.server.status import can_sleep
from gpubox.storage import open_private, private_folder, try_lock

BUSY_POLL_SECONDS = 0.5
GATEWAY_SECONDS = 0.6
"""Within so long a running gateway sees an operation of the owner, and sends the server no more requests."""
LOCK_TRIES, LOCK_SECONDS = 20, 0.05
"""How often, and at what interval, a lock is tried whose holder has not said yet what it does."""
PORT_TRIES, PORT_SECONDS = 20, 0.1
"""How often, and at what interval, a port is checked that its old server may not have released yet."""


class InstanceBusy(GpuboxError):
    """Another gpubox is changing the instance."""


@asynccontextmanager
async def hold_instance(
    paths: Paths, config: Config, instance: str, operation: Operation, emit: Callable[[ServerEvent], None], *,
    must_record: bool = True, cold: bool = False, full_window: Callable[[RunningServer], str] = lambda _: "",
) -> AsyncIterator[HeldInstance]:  # fmt: skip
    """Holds the instance's lock; its state names the operation meanwhile. Raises GpuboxError if another gpubox has it.

    The end of an operation that gives way is waited for, unless this one does so itself. ``must_record``: refuses
    the operation if the state cannot be written. Nothing is changed then.
    """
    descriptor = _open_lock(paths.instance_lock(instance), or_folder=not must_record)
    try:
        with contextlib.nullcontext() if operation.gives_way else _ahead_of_the_gateway(paths):
            await _take_lock(descriptor, paths, instance, emit, operation.gives_way)
            held = HeldInstance(paths, config, observe(paths, instance), operation, emit, cold, full_window)
            held.save()
            if held.save_problem and must_record:
                running = f" {held.before.launch.profile} keeps running." if held.before else ""
                problem = held.save_problem
                raise GpuboxError(f"A {operation.kind} is refused: {problem.message}{running}", problem.hint)
            try:
                if operation.kind != "stop":
                    await held.end_told_server()
                yield held
            finally:
                held.finish()
    finally:
        os.close(descriptor)


class HeldInstance:
    """One instance under its lock. Made by ``hold_instance``."""

    def __init__(
        self, paths: Paths, config: Config, view: InstanceView, operation: Operation,
        emit: Callable[[ServerEvent], None], cold: bool, full_window: Callable[[RunningServer], str],
    ) -> None:  # fmt: skip
        self.paths, self.config, self.instance, self.emit = paths, config, view.instance, emit
        self.before = view.running
        """The server that ran when the lock was taken."""
        self.crashed: InstanceView | None = view if view.crashed else None
        """The view of the instance if its server has crashed."""
        # The owner's own stop is no operation to undo.
        self.owed = view.interrupted if operation.kind != "stop" or operation.gives_way else None
        """The killed operation before this one, if its servers shall come back: on record until a start succeeds."""
        operation = replace(operation, replaces=self.owed.replaces if self.owed else {})
        self.state = replace(view.state, running=view.running, operation=operation, message=view.message)
        last = None if view.operation else view.state.operation
        self._told_to_stop = last is not None and last.step == Step.STOP
        """Whether a killed gpubox has sent ``before`` its SIGTERM, most likely."""
        self._changed = False
        self.save_problem: GpuboxError | None = None
        """Why the last change of the state is not on disk."""
        self._cold = cold
        """Whether servers are started for a measurement: without kept KV caches."""
        self._kept_kv = KeptKv(paths, config, self.instance, full_window)

    def save(self, **changes: object) -> None:
        """Changes the state and writes it. A disk error in the middle of an operation must not end the operation.

        The file is outdated then; the marker in the server's environment still finds the server.
        """
        self.state = replace(self.state, **changes)  # type: ignore[arg-type]
        self.save_problem = None
        try:
            save_state(self.paths.instance_state(self.instance), self.state)
        except GpuboxError as error:
            self.save_problem = error

    def guard(self, leaving: Mapping[str, RunningServer]) -> None:
        """From now on a kill of this gpubox brings back ``leaving`` (by instance), or ends well what it has begun."""
        operation = self.state.operation
        assert operation is not None
        guarded = replace(operation, replaces={**operation.replaces, **leaving})
        self.state = replace(self.state, operation=guarded)
        self._watch()  # before the record, so that nobody has to act on it who is not there yet
        self.save()

    def finish(self) -> None:
        """The operation is over: the record says so, and the watcher waits for the server again."""
        self.save(operation=self.owed)
        if self._changed:
            self._watch()

    def _watch(self) -> None:
        self._changed = True
        operation, running = self.state.operation, self.state.running
        guarded = operation if operation and operation.replaces else None
        process = guarded.owner if guarded else running.process if running else None
        watcher.replace_watcher(self.paths, self.instance, process)

    def begin(self, step: Step, profile: str) -> float:
        """Records and reports that a step on ``profile`` begins. Returns the time, for ``done``."""
        if self.state.operation:
            self.save(operation=replace(self.state.operation, step=str(step)))
        self.emit(StepStarted(step, profile))
        return time.monotonic()

    def done(self, step: Step, profile: str, began: float, note: str = "") -> None:
        """Reports that a step succeeded."""
        self.emit(StepDone(step, profile, time.monotonic() - began, note))

    async def wait_idle(self, old: RunningServer, limit: float, *, by_gateway: bool = True) -> None:
        """Returns when no slot answers a request. Raises GpuboxError after ``limit`` seconds.

        Not ``by_gateway``: a running gateway is told first, so that it sends no request between the look and the stop.
        """
        if can_sleep(old.launch.argv):
            return  # asking /slots would wake a sleeping server, and a sleeping server is idle
        began, note, deadline = None, "", time.monotonic() + limit
        if not by_gateway and load_gateway(self.paths):
            began = self.begin(Step.WAIT, old.launch.profile)
            await asyncio.sleep(GATEWAY_SECONDS)
        async with connect(old.launch.base_url, api_key(self.paths)) as client:
            while True:
                slots = await client.slots()
                busy = [str(slot) for slot in slots or () if slot.busy]
                if slots is None:
                    note = "it does not report whether it is busy"
                if not busy:
                    break
                if began is None:
                    began = self.begin(Step.WAIT, old.launch.profile)
                left = deadline - time.monotonic()
                if left <= 0:
                    raise GpuboxError(
                        f"{old.launch.profile} still answers requests after {units.rough_duration(limit)} "
                        f"({'; '.join(busy)}); it keeps running.",
                        "--now cuts them off; --wait SECONDS waits longer; wait-seconds in config.toml is the default.",
                    )
                self.emit(WaitingForSlots(old.launch.profile, tuple(busy), left))
                await asyncio.sleep(min(BUSY_POLL_SECONDS, left))
        if began is not None or note:
            self.done(Step.WAIT, old.launch.profile, began or time.monotonic(), note)

    async def keep_kv(self, old: RunningServer) -> None:
        """Saves what the slots of ``old`` hold, before it stops. Never raises, except if it is cancelled."""
        name = old.launch.profile
        if not await asyncio.to_thread(self._kept_kv.is_on, old):
            return
        began = self.begin(Step.SAVE_KV, name)
        if note := await self._kept_kv.save(old):
            self.done(Step.SAVE_KV, name, began, note)

    async def stop(
        self, old: RunningServer, *, wait_vram: bool = True, stop_now: bool = False, why: str = ""
    ) -> None:  # fmt: skip
        """Stops ``old``. ``why``: what the record says about it afterwards. Raises GpuboxError if it does not die."""
        assert old.process is not None  # the view found it alive
        name = old.launch.profile
        began = self.begin(Step.STOP, name)
        if self.state.operation and not self.state.operation.replaces:
            self._changed = True
            watcher.stop_watcher(self.paths, self.instance)  # the record already says that this stop is intended
        grace = min(IMMEDIATE_STOP_SECONDS, self.config.stop_seconds) if stop_now else self.config.stop_seconds
        stopped = {"running": None, "message": why or f"{name} was stopped."}
        try:
            marker = launch_marker(self.paths, self.instance, old)
            note = await terminate_server(old.process, marker, grace, told=self._told_to_stop)
        except asyncio.CancelledError:
            if not is_alive(old.process):
                self.save(**stopped)
            raise
        self.save(**stopped)
        self.done(Step.STOP, name, began, note)
        if wait_vram:
            began = self.begin(Step.SETTLE, name)
            self.done(Step.SETTLE, name, began, await wait_vram_released())

    async def end_told_server(self) -> None:
        """Ends ``before`` if a killed gpubox has told it to stop. It is not told twice."""
        if self._told_to_stop and (old := self.before):
            await self.stop(old, wait_vram=False, stop_now=True)
            self.before, self._told_to_stop = None, False

    async def bring_up(self, launch: Launch, *, restoring: bool = False, restore_kv: bool = True) -> RunningServer:
        """Starts ``launch``, probes it, and restores its kept KV caches. Leaves no process behind if it fails.

        Exception: a cancelled restore (a second Ctrl-C) leaves the server loading; the next gpubox finds it.
        """
        try:
            return await self._bring_up(launch, restoring=restoring, restore_kv=restore_kv)
        except KvRestoreKilled:  # the state is dropped: without it the same server starts
            return await self._bring_up(launch, restoring=restoring, restore_kv=False)

    async def _bring_up(self, launch: Launch, *, restoring: bool, restore_kv: bool) -> RunningServer:
        began = self.begin(Step.LOAD, launch.profile)
        launch = beside_gateway(launch, self.paths)
        if (dead := self.crashed) and dead.state.running:
            self._keep_failed(dead.state.running, cause_of(self.paths, self.instance, dead.state.running.process))
        self.crashed, self._changed = None, True
        await self._wait_port_free(launch)
        log = self.paths.instance_log(self.instance)
        rotate_log(log)
        key = api_key(self.paths)
        cold = self._cold and not restoring
        running = RunningServer(launch, uuid.uuid4().hex, utc_now(), has_api_key=key is not None, cold=cold)
        self.save(running=running, message="")
        marker = launch_marker(self.paths, self.instance, running)
        lock = self.paths.liveness_lock(self.instance)
        process = spawn_server(launch, log=log, liveness_lock=lock, marker=marker, key=key)
        running = replace(running, process=process)
        self.save(running=running)
        save_launch_record(log, running)
        return await self.finish_load(running, began, restoring=restoring, restore_kv=restore_kv)

    async def finish_load(
        self, running: RunningServer, began: float, *, restoring: bool = False, restore_kv: bool = True
    ) -> RunningServer:
        """Waits until ``running``, which loads since ``began``, has given its first token. See ``bring_up``."""
        assert running.process is not None
        log, key, process = self.paths.instance_log(self.instance), api_key(self.paths), running.process
        name, marker = running.launch.profile, launch_marker(self.paths, self.instance, running)
        try:
            process = await wait_loaded(running, log, key, self.config, self.emit)
            running = replace(running, process=process, load_seconds=round(time.monotonic() - began, 3))
            self.done(Step.LOAD, name, began)
            began = self.begin(Step.PROBE, name)
            probe = await probe_readiness(running, log, key)
            self.done(Step.PROBE, name, began)
            restored = await self._restore_kv(running) if restore_kv else ()
        except (Exception, asyncio.CancelledError) as error:
            if restoring and isinstance(error, asyncio.CancelledError):
                raise
            cause = cause_of_error(error)
            hung = cause.kind is FailureKind.HANG  # it floods its log, or ignores signals: grace does not help
            await terminate_server(
                process, marker, 0 if hung else min(IMMEDIATE_STOP_SECONDS, self.config.stop_seconds)
            )
            truncate_log(log, keep=False)  # it may have grown during the grace
            if not isinstance(error, asyncio.CancelledError):
                self._keep_failed(running, cause)
            self.save(running=None)
            raise
        vram = await asyncio.to_thread(vram_in_use, process.pid)
        running = replace(
            running,
            ready_at=utc_now(),
            loaded_vram=vram.used,
            whole_card_gpus=vram.whole,
            probe_tokens=probe.tokens,
            restored=restored,
        )
        self.owed = None
        last, previous = self.state.last_good, self.state.previous_profile
        if last and last.profile != running.launch.profile and not running.cold:
            previous = last.profile
        self.save(running=running, last_good=running.launch, previous_profile=previous)
        save_launch_record(log, running)  # now with the probe and the restored states, which its log does not name
        return running

    async def _restore_kv(self, running: RunningServer) -> tuple[RestoredSlot, ...]:
        """Restores kept KV caches before anybody knows that the server is ready. Raises KvRestoreKilled."""
        if not await asyncio.to_thread(self._kept_kv.may_restore, running):
            return ()
        name = running.launch.profile
        began = self.begin(Step.RESTORE_KV, name)
        note, restored = await self._kept_kv.restore(running)
        if note:
            self.done(Step.RESTORE_KV, name, began, note)
        return restored

    def _keep_failed(self, failed: RunningServer, cause: Cause) -> None:
        """Keeps the log of a failed launch, because the log of the next launch replaces it."""
        keep_failed_log(self.paths.instance_log(self.instance), self.paths.failed_log(self.instance))
        name = failed.launch.profile
        self.save(failed=LaunchFailure(name, failed.launch_id, utc_now(), cause.sentence, cause.hint, cause.line))

    async def _wait_port_free(self, launch: Launch) -> None:
        for _ in range(PORT_TRIES):
            with contextlib.suppress(GpuboxError):
                return check_port(launch.host, launch.port, self.paths)
            await asyncio.sleep(PORT_SECONDS)
        return check_port(launch.host, launch.port, self.paths)


def cause_of_error(error: BaseException) -> Cause:
    """Why a launch failed, of any error that it may end with."""
    if isinstance(error, LaunchError):
        return error.cause
    if isinstance(error, asyncio.CancelledError):
        return Cause(FailureKind.INTERRUPTED, "interrupted")
    if isinstance(error, GpuboxError):
        kind = FailureKind.HANG if error.code == ExitCode.UNHEALTHY else FailureKind.PORT
        return Cause(kind, error.message.rstrip("."), error.hint)
    return Cause(FailureKind.CRASH, f"gpubox failed: {type(error).__name__}: {error}", "Please report it.")


def busy_error(paths: Paths, instance: str) -> InstanceBusy:
    """The error while another gpubox changes the instance; it says what that does."""
    operation = observe(paths, instance).operation
    if operation is None:
        return InstanceBusy("Another gpubox is changing this server.", "Try again when it is done.")
    name = f"{operation.kind} {operation.profile}".rstrip()
    return InstanceBusy(
        f"Another gpubox (pid {operation.owner.pid}) is changing this server ({name}).",
        "Try again when it is done; `gpubox status` shows it.",
    )


async def _take_lock(
    descriptor: int, paths: Paths, instance: str, emit: Callable[[ServerEvent], None], gives_way: bool
) -> None:
    tries, told = LOCK_TRIES, False
    while not try_lock(descriptor):
        operation = observe(paths, instance).operation
        if operation is None:  # it has just begun, or ended
            tries -= 1
        if (operation and (gives_way or not operation.gives_way)) or not tries:
            raise busy_error(paths, instance)
        if operation and not told:
            told = True
            emit(StepStarted(Step.WAIT, operation.profile))
        await asyncio.sleep(LOCK_SECONDS)


@contextmanager
def _ahead_of_the_gateway(paths: Paths) -> Iterator[None]:
    """Meanwhile the gateway begins nothing. The lock ends with this process."""
    descriptor = None
    with contextlib.suppress(OSError):  # a disk that refuses writing must not refuse a stop
        descriptor = open_private(paths.owner_lock, os.O_RDWR)
        fcntl.flock(descriptor, fcntl.LOCK_SH)  # the gateway looks at it for a moment
    try:
        yield
    finally:
        if descriptor is not None:
            os.close(descriptor)


def _open_lock(path: Path, *, or_folder: bool) -> int:
    """Opens the lock file. ``or_folder``: opens its folder instead if no file can be made. Raises GpuboxError."""
    try:
        private_folder(path.parent)
        return open_private(path, os.O_RDWR)
    except OSError as error:
        for candidate in (path, path.parent) if or_folder else ():
            with contextlib.suppress(OSError):  # locking needs no permission to write
                return os.open(candidate, os.O_RDONLY | os.O_CLOEXEC)
        hint = disk_hint(error)
        raise GpuboxError(f"{path} cannot be written: {error.strerror}. Nothing was changed.", hint) from None
