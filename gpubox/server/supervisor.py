"""Starts, stops, restarts and switches the server. A failed switch restores the server that ran before."""

from __future__ import annotations

import asyncio
import contextlib
import os
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from gpubox import units
from gpubox.clock import utc_now
from gpubox.config import Config, api_key
from gpubox.errors import ExitCode, GpuboxError
from gpubox.hardware.process import is_alive, own_identity
from gpubox.paths import MAIN_INSTANCE, Paths
from gpubox.profiles.profile import Profile
from gpubox.server import watcher
from gpubox.server.client import connect
from gpubox.server.events import (
    OperationFinished,
    ServerEvent,
    Step,
    StepDone,
    StepFailed,
    StepStarted,
    WaitingForSlots,
)
from gpubox.server.failure_causes import Cause, FailureKind
from gpubox.server.instance import InstanceView, cause_of, launch_marker, observe
from gpubox.server.launch import check_port, prepare_launch
from gpubox.server.loading import LaunchError, probe_readiness, wait_loaded
from gpubox.server.log import keep_failed_log, rotate_log
from gpubox.server.log_truncation import truncate_log
from gpubox.server.server_process import IMMEDIATE_STOP_SECONDS, reap_servers, spawn_server, terminate_server
from gpubox.server.state import (
    InstanceState,
    Launch,
    LaunchFailure,
    Operation,
    RunningServer,
    disk_hint,
    recent_restarts,
    save_state,
)
from gpubox.server.status import can_sleep
from gpubox.server.vram_release import vram_in_use, wait_vram_released
from gpubox.storage import try_lock

BUSY_POLL_SECONDS = 0.5
PORT_TRIES, PORT_SECONDS = 20, 0.1
"""How often, and at what interval, a port is checked that its old server may not have released yet."""


def instance_of(profile: Profile) -> str:
    """The instance that ``profile`` runs as: a companion is its own instance, all others share the main one."""
    return profile.name if profile.companion else MAIN_INSTANCE


class OperationFailed(GpuboxError):
    """A start, switch or restart failed after its checks. The message says why, and what runs now."""

    def __init__(self, message: str, hint: str, cause: Cause) -> None:
        super().__init__(message, hint, code=cause.exit_code)
        self.cause = cause


class Supervisor:
    """The only owner of one instance's server. Each operation holds the instance's lock; a second gpubox is refused."""

    def __init__(
        self,
        paths: Paths,
        config: Config,
        instance: str = MAIN_INSTANCE,
        emit: Callable[[ServerEvent], None] = lambda event: None,
        check_memory: Callable[[Profile, RunningServer | None], str] = lambda profile, old: "",
    ) -> None:
        """``check_memory`` is called while the old server still runs; its result is noted, and what it raises refuses
        the operation."""
        self.check_memory = check_memory
        self.paths, self.config, self.instance, self.emit = paths, config, instance, emit
        self._log = paths.instance_log(instance)
        self._state = InstanceState()
        self._save_problem: GpuboxError | None = None
        """Why the last change of the state is not on disk."""
        self._since, self._began = "", 0.0
        """When the operation began: ISO-8601, and on the monotonic clock."""
        self._crashed: InstanceView | None = None
        """The view of the instance if its server has crashed."""

    def view(self) -> InstanceView:
        """The instance now. Changes nothing."""
        reap_servers()
        return observe(self.paths, self.instance)

    async def start(self, profile: Profile, *, allow_exposed: bool = False) -> RunningServer:
        """Starts ``profile``. If it runs but was edited since, its server is replaced at once.

        Raises GpuboxError if another profile runs, or if the start fails.
        """
        with self._exclusive("start", profile.name) as old:
            if old and old.launch.profile != profile.name:
                raise GpuboxError(f"{old.launch.profile} is running.", f"`gpubox switch {profile.name}` replaces it.")
            return await self._replace("start", profile, old, stop_now=True, allow_exposed=allow_exposed)

    async def switch(
        self, profile: Profile, *, stop_now: bool = False, allow_exposed: bool = False, restore: bool = True,
        wait: float | None = None, force_restart: bool = False,
    ) -> RunningServer:  # fmt: skip
        """Replaces the running server by ``profile``: check, wait for idle slots, stop, start, probe.

        ``stop_now``: does not wait for idle slots. ``wait``: waits at most so many seconds (default: the config's); if
        slots are still busy then, nothing is changed. ``restore``: on failure or cancellation the old server is started
        again. ``force_restart``: restarts ``profile`` even if it already runs unchanged. Raises GpuboxError.
        """
        with self._exclusive("switch", profile.name) as old:
            kind = "restart" if force_restart and old and old.launch.profile == profile.name else "switch"
            return await self._replace(
                kind, profile, old, stop_now=stop_now, allow_exposed=allow_exposed, restore=restore, wait=wait
            )

    async def restart(
        self, profile: Profile, *, stop_now: bool = False, allow_exposed: bool = False, wait: float | None = None
    ) -> RunningServer:
        """As ``switch``, but also if ``profile`` already runs unchanged."""
        with self._exclusive("restart", profile.name) as old:
            return await self._replace(
                "restart", profile, old, stop_now=stop_now, allow_exposed=allow_exposed, wait=wait
            )

    async def restore_launch(self, launch: Launch) -> RunningServer:
        """Replaces the running server by ``launch``, exactly as it was recorded, unless it is that launch already.

        Raises GpuboxError.
        """
        with self._exclusive("switch", launch.profile) as old:
            if old and old.ready_at and old.launch == launch:
                return old
            try:
                if old:
                    with contextlib.suppress(asyncio.CancelledError):  # the old server is gone then: do not end here
                        await self._stop(old)
                running = await self._bring_up(launch, restoring=True)
            except GpuboxError as error:
                self._save(message=f"{launch.profile} could not be restored: {error.message}")
                self.emit(StepFailed(Step.RESTORE, launch.profile, error.message, error.hint))
                self._finish("switch", launch.profile, None, error.message, ok=False)
                raise
            self._finish("switch", launch.profile, launch.profile, f"{launch.profile} is restored.")
            return running

    async def restart_crashed(self, launch_id: str) -> None:
        """Starts the crashed launch ``launch_id`` again, exactly as it was.

        Does nothing if that launch is not the crashed one: then someone has stopped or replaced it. Raises GpuboxError
        if the start fails.
        """
        with self._exclusive("restart", "") as old:
            dead = self._crashed.state.running if self._crashed else None
            if old or dead is None or dead.launch_id != launch_id:
                return
            name = dead.launch.profile
            self._save(restarts=(*recent_restarts(self._state), utc_now()))
            if self._save_problem:  # without a count there is no limit to restarts
                raise GpuboxError(f"A restart is refused: {self._save_problem.message}", self._save_problem.hint)
            try:
                await wait_vram_released()
                await self._bring_up(dead.launch)
            except GpuboxError as error:
                self._save(running=None, message=f"{name} died, and could not be restarted: {error.message}")
                self._finish("restart", name, None, error.message, ok=False)
                raise
            self._finish("restart", name, name, f"{name} answers.")

    async def stop(self) -> str | None:
        """Stops the server at once. Returns its profile, or ``None`` if nothing ran.

        It also works if the state cannot be written: stopping may be the way to free a full disk.
        """
        with self._exclusive("stop", "", must_record=False) as old:
            if old is None:
                return None
            await self._stop(old, wait_vram=False, stop_now=True)
            name = old.launch.profile
            message = f"{name} is stopped."
            if self._save_problem:
                message += f" The state file does not show this: {self._save_problem.message}"
            self._finish("stop", name, None, message)
            return name

    async def _replace(
        self, kind: str, profile: Profile, old: RunningServer | None, *, stop_now: bool, allow_exposed: bool,
        restore: bool = True, wait: float | None = None,
    ) -> RunningServer:  # fmt: skip
        name = profile.name
        try:
            launch = await self._check(profile, old, allow_exposed)
            if old and kind != "restart" and self._runs_already(old, launch, restore):
                self._finish(kind, name, name, f"{name} is already running.")
                return old
            if old and not stop_now:
                await self._wait_idle(old, self.config.wait_seconds if wait is None else wait)
        except GpuboxError as error:
            self.emit(StepFailed(Step.CHECK, name, error.message, error.hint))
            untouched = f" {old.launch.profile} was not touched." if old else ""
            self._finish(kind, name, old.launch.profile if old else None, error.message + untouched, ok=False)
            raise
        try:
            if old:
                await self._stop(old, stop_now=stop_now)
            running = await self._bring_up(launch)
        except (Exception, asyncio.CancelledError) as error:  # whatever failed: the owner gets a server back
            if isinstance(error, asyncio.CancelledError) and (task := asyncio.current_task()):
                task.uncancel()  # Ctrl-C: restore the old server; a second Ctrl-C ends that too
            previous = old if old and (restore or is_alive(old.process)) else None
            raise await self._restore_previous(kind, name, previous, _cause_of(error)) from None
        self._finish(kind, name, name, f"{name} answers.")
        return running

    def _runs_already(self, old: RunningServer, launch: Launch, restore: bool) -> bool:
        has_api_key = api_key(self.paths) is not None
        if not old.ready_at or old.has_api_key != has_api_key:
            return False
        # A caller that restores the old server itself (a benchmark) does not decide about restarts after a crash.
        launch = launch if restore else replace(launch, restart=old.launch.restart)
        return replace(old.launch, engine_version="") == replace(launch, engine_version="")

    async def _check(self, profile: Profile, old: RunningServer | None, allow_exposed: bool) -> Launch:
        began = self._step(Step.CHECK, profile.name)
        notes: list[str] = []
        launch = await asyncio.to_thread(
            prepare_launch,
            profile,
            self.paths,
            self.config,
            old=old.launch if old else None,
            allow_exposed=allow_exposed,
            on_checked=notes.append,
        )
        if note := await asyncio.to_thread(self.check_memory, profile, old):
            notes.append(note)
        self._done(Step.CHECK, profile.name, began, ", ".join(notes))
        return launch

    async def _wait_idle(self, old: RunningServer, limit: float) -> None:
        """Returns when no slot answers a request. Raises GpuboxError after ``limit`` seconds."""
        if can_sleep(old.launch.argv):
            return  # asking /slots would wake a sleeping server, and a sleeping server is idle
        began, note, deadline = None, "", time.monotonic() + limit
        async with connect(old.launch.base_url, api_key(self.paths)) as client:
            while True:
                slots = await client.slots()
                busy = [str(slot) for slot in slots or () if slot.busy]
                if slots is None:
                    note = "it does not report whether it is busy"
                if not busy:
                    break
                if began is None:
                    began = self._step(Step.WAIT, old.launch.profile)
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
            self._done(Step.WAIT, old.launch.profile, began or time.monotonic(), note)

    async def _stop(self, old: RunningServer, *, wait_vram: bool = True, stop_now: bool = False) -> None:
        assert old.process is not None  # the view found it alive
        name = old.launch.profile
        began = self._step(Step.STOP, name)
        watcher.stop_watcher(self.paths, self.instance)  # the record already says that this stop is intended
        grace = min(IMMEDIATE_STOP_SECONDS, self.config.stop_seconds) if stop_now else self.config.stop_seconds
        stopped = {"running": None, "message": f"{name} was stopped."}
        try:
            note = await terminate_server(old.process, launch_marker(self.paths, self.instance, old), grace)
        except asyncio.CancelledError:
            if not is_alive(old.process):
                self._save(**stopped)
            raise
        self._save(**stopped)
        self._done(Step.STOP, name, began, note)
        if wait_vram:
            began = self._step(Step.SETTLE, name)
            self._done(Step.SETTLE, name, began, await wait_vram_released())

    async def _bring_up(self, launch: Launch, *, restoring: bool = False) -> RunningServer:
        """Starts ``launch`` and probes it. Leaves no process behind if it fails.

        Exception: a cancelled restore (a second Ctrl-C) leaves the server loading; the next gpubox finds it.
        """
        began = self._step(Step.LOAD, launch.profile)
        if (dead := self._crashed) and dead.state.running:
            self._keep_failed(dead.state.running, cause_of(self.paths, self.instance, dead.state.running.process))
        self._crashed = None
        await self._wait_port_free(launch)
        log = self._log
        rotate_log(log)
        key = api_key(self.paths)
        running = RunningServer(launch, uuid.uuid4().hex, utc_now(), has_api_key=key is not None)
        self._save(running=running, message="")
        marker = launch_marker(self.paths, self.instance, running)
        lock = self.paths.liveness_lock(self.instance)
        process = spawn_server(launch, log=log, liveness_lock=lock, marker=marker, key=key)
        running = replace(running, process=process)
        self._save(running=running)
        try:
            process = await wait_loaded(running, log, key, self.config, self.emit)
            running = replace(running, process=process, load_seconds=round(time.monotonic() - began, 3))
            self._done(Step.LOAD, launch.profile, began)
            began = self._step(Step.PROBE, launch.profile)
            probe = await probe_readiness(running, log, key)
            self._done(Step.PROBE, launch.profile, began, units.duration(probe.seconds))
        except (Exception, asyncio.CancelledError) as error:
            if restoring and isinstance(error, asyncio.CancelledError):
                raise
            cause = _cause_of(error)
            hung = cause.kind is FailureKind.HANG  # it floods its log, or ignores signals: grace does not help
            await terminate_server(
                process, marker, 0 if hung else min(IMMEDIATE_STOP_SECONDS, self.config.stop_seconds)
            )
            truncate_log(log, keep=False)  # it may have grown during the grace
            if not isinstance(error, asyncio.CancelledError):
                self._keep_failed(running, cause)
            self._save(running=None)
            raise
        vram = await asyncio.to_thread(vram_in_use, process.pid)
        running = replace(
            running,
            ready_at=utc_now(),
            loaded_vram=vram.used,
            whole_card_gpus=vram.whole,
            probe_tokens=probe.tokens,
        )
        self._save(running=running, last_good=launch)
        watcher.ensure_watcher(self.paths, self.instance, process)
        return running

    def _keep_failed(self, failed: RunningServer, cause: Cause) -> None:
        """Keeps the log of a failed launch, because the log of the next launch replaces it."""
        keep_failed_log(self._log, self.paths.failed_log(self.instance))
        name = failed.launch.profile
        self._save(failed=LaunchFailure(name, failed.launch_id, utc_now(), cause.sentence, cause.hint, cause.line))

    async def _wait_port_free(self, launch: Launch) -> None:
        for _ in range(PORT_TRIES):
            with contextlib.suppress(GpuboxError):
                return check_port(launch.host, launch.port)
            await asyncio.sleep(PORT_SECONDS)
        return check_port(launch.host, launch.port)

    async def _restore_previous(self, kind: str, name: str, old: RunningServer | None, cause: Cause) -> OperationFailed:
        """Starts the server again that ran before the failed operation. Returns the error to raise."""
        failure = self._state.failed
        logged = failure is not None and failure.profile == name and failure.at >= self._since
        self.emit(StepFailed(Step.LOAD, name, cause.sentence, cause.hint, cause.line, logged))
        message, hint, answering = f"{name}: {cause.sentence}.", cause.hint, None
        if old and is_alive(old.process):  # it could not even be stopped
            self._save(running=old)
            answering = old.launch.profile
            message += f" {answering} was not touched."
        elif old:
            previous = old.launch.profile
            began = self._step(Step.RESTORE, previous)
            try:
                await self._bring_up(old.launch, restoring=True)
                self._done(Step.RESTORE, previous, began)
                answering = previous
                message += f" {previous} is restored ({time.monotonic() - began:.1f} s)."
            except GpuboxError as error:
                self.emit(StepFailed(Step.RESTORE, previous, error.message, error.hint))
                message += f" {previous} could not be restored: {error.message.rstrip('.')}. Nothing runs."
                hint = hint or error.hint
        if answering is None:
            self._save(running=None, message=message)
        self._finish(kind, name, answering, message, ok=False)
        return OperationFailed(message, hint, cause)

    @contextmanager
    def _exclusive(self, kind: str, profile: str, *, must_record: bool = True) -> Iterator[RunningServer | None]:
        """Holds the instance's lock and yields the running server; the state names the operation meanwhile.

        ``must_record``: refuses the operation if the state cannot be written. Nothing is changed then.
        """
        descriptor = _open_lock(self.paths.instance_lock(self.instance), or_folder=not must_record)
        try:
            if not try_lock(descriptor):
                raise self._busy_error()
            view = observe(self.paths, self.instance)
            self._since, self._began = utc_now(), time.monotonic()
            operation = Operation(kind, profile, "begin", own_identity(), self._since)
            self._state = replace(view.state, running=view.running, operation=operation, message=view.message)
            self._crashed = view if view.crashed else None
            self._save()
            if self._save_problem and must_record:
                running = f" {view.running.launch.profile} keeps running." if view.running else ""
                raise GpuboxError(
                    f"A {kind} is refused: {self._save_problem.message}{running}", self._save_problem.hint
                )
            try:
                yield view.running
            finally:
                self._save(operation=None)
        finally:
            os.close(descriptor)

    def _busy_error(self) -> GpuboxError:
        operation = observe(self.paths, self.instance).operation
        if operation is None:
            return GpuboxError("Another gpubox is changing this server.", "Try again when it is done.")
        name = f"{operation.kind} {operation.profile}".rstrip()
        return GpuboxError(
            f"Another gpubox (pid {operation.owner.pid}) is changing this server ({name}).",
            "Try again when it is done; `gpubox status` shows it.",
        )

    def _save(self, **changes: object) -> None:
        """Changes the state and writes it. A disk error in the middle of an operation must not end the operation.

        The file is outdated then; the marker in the server's environment still finds the server.
        """
        self._state = replace(self._state, **changes)  # type: ignore[arg-type]
        self._save_problem = None
        try:
            save_state(self.paths.instance_state(self.instance), self._state)
        except GpuboxError as error:
            self._save_problem = error

    def _step(self, step: Step, profile: str) -> float:
        if self._state.operation:
            self._save(operation=replace(self._state.operation, step=str(step)))
        self.emit(StepStarted(step, profile))
        return time.monotonic()

    def _done(self, step: Step, profile: str, began: float, note: str = "") -> None:
        self.emit(StepDone(step, profile, time.monotonic() - began, note))

    def _finish(self, kind: str, profile: str, answering: str | None, message: str, *, ok: bool = True) -> None:
        seconds = time.monotonic() - self._began
        self.emit(OperationFinished(kind, profile, ok, answering, seconds, message))


def _open_lock(path: Path, *, or_folder: bool) -> int:
    """Opens the lock file. ``or_folder``: opens its folder instead if no file can be made. Raises GpuboxError."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        return os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        for candidate in (path, path.parent) if or_folder else ():
            with contextlib.suppress(OSError):  # locking needs no permission to write
                return os.open(candidate, os.O_RDONLY | os.O_CLOEXEC)
        hint = disk_hint(error)
        raise GpuboxError(f"{path} cannot be written: {error.strerror}. Nothing was changed.", hint) from None


def _cause_of(error: BaseException) -> Cause:
    if isinstance(error, LaunchError):
        return error.cause
    if isinstance(error, asyncio.CancelledError):
        return Cause(FailureKind.INTERRUPTED, "interrupted")
    if isinstance(error, GpuboxError):
        kind = FailureKind.HANG if error.code == ExitCode.UNHEALTHY else FailureKind.PORT
        return Cause(kind, error.message.rstrip("."), error.hint)
    return Cause(FailureKind.CRASH, f"gpubox failed: {type(error).__name__}: {error}", "Please report it.")
