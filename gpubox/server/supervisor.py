"""The only owner of the server process: start, stop, restart, switch - and never end up with nothing."""

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
from gpubox.config import Config, api_key
from gpubox.errors import ExitCode, GpuboxError
from gpubox.hardware.process import is_alive, own_identity
from gpubox.paths import MAIN_INSTANCE, Paths
from gpubox.profiles.profile import Profile
from gpubox.server import state, watcher
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
from gpubox.server.instance import InstanceView, cause_of, launch_marker_of, observe
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
    recent_restarts,
    save_state,
)
from gpubox.server.vram_release import vram_in_use, wait_vram_released
from gpubox.storage import try_lock

BUSY_POLL_SECONDS = 0.5
PORT_TRIES, PORT_SECONDS = 20, 0.1
"""How long a port may take to be free after its server is gone."""


def instance_of(profile: Profile) -> str:
    """The slot a profile runs in: a companion has its own, all others share the main one."""
    return profile.name if profile.companion else MAIN_INSTANCE


class OperationFailed(GpuboxError):
    """A change failed after what ran was stopped; ``cause`` says why, the message also what runs now."""

    def __init__(self, story: str, hint: str, cause: Cause) -> None:
        super().__init__(story, hint, code=cause.exit_code)
        self.cause = cause


class Supervisor:
    """Changes one slot. Every method that changes it holds the slot's lock; a second gpubox is refused."""

    def __init__(
        self,
        paths: Paths,
        config: Config,
        slot: str = MAIN_INSTANCE,
        emit: Callable[[ServerEvent], None] = lambda event: None,
    ) -> None:
        self.paths, self.config, self.slot, self.emit = paths, config, slot, emit
        self._state = InstanceState()
        self._unrecorded = ""
        """Why the last change is not on record; empty: it is."""
        self._unrecorded_hint = self._since = ""
        self._crashed: InstanceView | None = None
        """The slot as a server that died left it."""

    def view(self) -> InstanceView:
        """What is so now; changes nothing."""
        reap_servers()
        return observe(self.paths, self.slot)

    async def start(self, profile: Profile, *, allow_exposed: bool = False) -> RunningServer:
        """Starts ``profile`` where nothing runs. Raises GpuboxError when something does, or when it fails."""
        with self._exclusive("start", profile.name) as old:
            if old and old.launch.profile != profile.name:
                raise GpuboxError(f"{old.launch.profile} is running.", f"`gpubox switch {profile.name}` replaces it.")
            return await self._change("start", profile, old, stop_now=True, allow_exposed=allow_exposed)

    async def switch(
        self, profile: Profile, *, stop_now: bool = False, allow_exposed: bool = False, restore: bool = True,
        wait: float | None = None, fresh: bool = False,
    ) -> RunningServer:  # fmt: skip
        """Replaces what runs by ``profile``: check, wait for idle slots (not with ``stop_now``), stop, start, prove.

        It waits at most ``wait`` seconds, else what the settings say; then nothing was touched.
        On any failure, and on cancellation, what ran before runs again (without ``restore``: that is the caller's
        duty). ``fresh``: also where it runs just so. Raises GpuboxError saying which.
        """
        with self._exclusive("switch", profile.name) as old:
            kind = "restart" if fresh and old and old.launch.profile == profile.name else "switch"
            return await self._change(
                kind, profile, old, stop_now=stop_now, allow_exposed=allow_exposed, restore=restore, wait=wait
            )

    async def restart(
        self, profile: Profile, *, stop_now: bool = False, allow_exposed: bool = False, wait: float | None = None
    ) -> RunningServer:
        """As ``switch``, also where ``profile`` runs already just as it is written."""
        with self._exclusive("restart", profile.name) as old:
            return await self._change(
                "restart", profile, old, stop_now=stop_now, allow_exposed=allow_exposed, wait=wait
            )

    async def restore_launch(self, launch: Launch) -> RunningServer:
        """Runs exactly ``launch`` again, as it is on record, instead of what runs now. Raises GpuboxError."""
        with self._exclusive("switch", launch.profile) as old:
            if old and old.ready_at and old.launch == launch:
                return old
            began = time.monotonic()
            try:
                if old:
                    await self._stop(old)
                running = await self._bring_up(launch, restoring=True)
            except GpuboxError as error:
                self._save(message=f"{launch.profile} could not be brought back: {error.message}")
                self.emit(StepFailed(Step.RESTORE, launch.profile, error.message, error.hint))
                self._finish("switch", launch.profile, began, None, error.message, ok=False)
                raise
            self._finish("switch", launch.profile, began, launch.profile, f"{launch.profile} is back.")
            return running

    async def revive(self, launch_id: str) -> None:
        """Starts the dead launch ``launch_id`` of the slot again, exactly as it was.

        Does nothing where it is not dead, or was not on record as running: then somebody stopped it. Raises
        GpuboxError where it does not come up.
        """
        with self._exclusive("restart", "") as old:
            dead = self._crashed.state.running if self._crashed else None
            if old or dead is None or dead.launch_id != launch_id:
                return
            name, began = dead.launch.profile, time.monotonic()
            self._save(restarts=(*recent_restarts(self._state), state.utc_now()))
            if self._unrecorded:  # restarts that nobody counts would have no bound
                raise GpuboxError(f"A restart is refused: {self._unrecorded}", self._unrecorded_hint)
            try:
                await wait_vram_released()
                await self._bring_up(dead.launch)
            except GpuboxError as error:
                self._save(running=None, message=f"{name} died, and could not be started again: {error.message}")
                self._finish("restart", name, began, None, error.message, ok=False)
                raise
            self._finish("restart", name, began, name, f"{name} answers.")

    async def stop(self) -> str | None:
        """Stops what runs at once. Returns the profile that was stopped, ``None`` when nothing ran.

        It does so also where nothing can be written: it is how a disk is freed.
        """
        with self._exclusive("stop", "", recorded=False) as old:
            began = time.monotonic()
            if old is None:
                return None
            await self._stop(old, settled=False, stop_now=True)
            name = old.launch.profile
            self._save(running=None, message=f"{name} was stopped.")
            told = f"{name} is stopped."
            if self._unrecorded:
                told += f" That is not on record: {self._unrecorded}"
            self._finish("stop", name, began, None, told)
            return name

    async def _change(
        self, kind: str, profile: Profile, old: RunningServer | None, *, stop_now: bool, allow_exposed: bool,
        restore: bool = True, wait: float | None = None,
    ) -> RunningServer:  # fmt: skip
        began = time.monotonic()
        name = profile.name
        try:
            launch = await self._check(profile, old, allow_exposed)
            keyed = api_key(self.paths) is not None
            # Whoever brings back himself what ran before (a benchmark) has no say in what becomes of it when it dies.
            asked = launch if restore or old is None else replace(launch, restart=old.launch.restart)
            if old and kind != "restart" and old.ready_at and old.keyed == keyed and _same(old.launch, asked):
                self._finish(kind, name, began, name, f"{name} is already running.")
                return old
            if old and not stop_now:
                await self._wait_idle(old, self.config.wait_seconds if wait is None else wait)
        except GpuboxError as error:
            self.emit(StepFailed(Step.CHECK, name, error.message, error.hint))
            still = f" {old.launch.profile} was not touched." if old else ""
            self._finish(kind, name, began, old.launch.profile if old else None, error.message + still, ok=False)
            raise
        try:
            if old:
                await self._stop(old, stop_now=stop_now)
            running = await self._bring_up(launch)
        except (Exception, asyncio.CancelledError) as error:  # whatever it was: the owner keeps a server
            if isinstance(error, asyncio.CancelledError) and (task := asyncio.current_task()):
                task.uncancel()  # Ctrl-C: go back to what ran; a second one leaves it at that
            again = old if old and (restore or is_alive(old.process)) else None
            await self._give_back(kind, name, again, _cause_of(error), began)
            raise AssertionError("unreachable") from error
        self._finish(kind, name, began, name, f"{name} answers.")
        return running

    async def _check(self, profile: Profile, old: RunningServer | None, allow_exposed: bool) -> Launch:
        began = self._step(Step.CHECK, profile.name)
        notes: list[str] = []
        launch = await asyncio.to_thread(
            prepare_launch,
            profile,
            self.paths,
            self.config,
            held=old.launch if old else None,
            allow_exposed=allow_exposed,
            checked=notes.append,
        )
        self._done(Step.CHECK, profile.name, began, ", ".join(notes))
        return launch

    async def _wait_idle(self, old: RunningServer, limit: float) -> None:
        """Returns when no slot answers a request. Raises GpuboxError after ``limit`` seconds."""
        if any("sleep-idle-seconds" in word for word in old.launch.argv):
            return  # asking /slots would wake a sleeping server, and a sleeping one is idle
        began, note, deadline = None, "", time.monotonic() + limit
        async with connect(old.launch.base_url, api_key(self.paths)) as client:
            while True:
                slots = await client.slots()
                busy = [str(s) for s in slots or () if s.busy]
                if slots is None:
                    note = "it does not say whether it is busy"
                if not busy:
                    break
                if began is None:
                    began = self._step(Step.WAIT, old.launch.profile)
                left = deadline - time.monotonic()
                if left <= 0:
                    raise GpuboxError(
                        f"{old.launch.profile} still answers requests after {units.rough_duration(limit)} "
                        f"({'; '.join(busy)}); it goes on.",
                        "--now cuts them off, --wait SECONDS waits longer; wait-seconds in config.toml is the default.",
                    )
                self.emit(WaitingForSlots(old.launch.profile, tuple(busy), left))
                await asyncio.sleep(min(BUSY_POLL_SECONDS, left))
        if began is not None or note:
            self._done(Step.WAIT, old.launch.profile, began or time.monotonic(), note)

    async def _stop(self, old: RunningServer, *, settled: bool = True, stop_now: bool = False) -> None:
        assert old.process is not None  # the view found it alive
        name = old.launch.profile
        began = self._step(Step.STOP, name)
        watcher.end(self.paths, self.slot)  # that it is stopped is on record by now; it would look in vain
        grace = min(IMMEDIATE_STOP_SECONDS, self.config.stop_seconds) if stop_now else self.config.stop_seconds
        how = await terminate_server(old.process, launch_marker_of(self.paths, self.slot, old), grace)
        self._save(running=None, message=f"{name} was stopped.")
        self._done(Step.STOP, name, began, how)
        if settled:
            began = self._step(Step.SETTLE, name)
            self._done(Step.SETTLE, name, began, await wait_vram_released())

    async def _bring_up(self, launch: Launch, *, restoring: bool = False) -> RunningServer:
        """Starts ``launch`` and proves it; leaves no process behind when it fails.

        A cancelled restore (a second Ctrl-C) is left loading: the next gpubox finds it.
        """
        began = self._step(Step.LOAD, launch.profile)
        if (dead := self._crashed) and dead.state.running:
            self._keep_failed(dead.state.running, cause_of(self.paths, self.slot, dead.state.running.process))
        self._crashed = None
        await self._port_free(launch)
        rotate_log(self.paths.instance_log(self.slot))
        key = api_key(self.paths)
        running = RunningServer(launch, uuid.uuid4().hex, state.utc_now(), keyed=key is not None)
        self._save(running=running, message="")
        mark = launch_marker_of(self.paths, self.slot, running)
        process = spawn_server(
            launch, log=self.paths.instance_log(self.slot), life=self.paths.slot_life(self.slot), mark=mark, key=key
        )
        running = replace(running, process=process)
        self._save(running=running)
        try:
            log = self.paths.instance_log(self.slot)
            process = await wait_loaded(running, log, key, self.config, self.emit)
            running = replace(running, process=process, load_seconds=round(time.monotonic() - began, 3))
            self._done(Step.LOAD, launch.profile, began)
            began = self._step(Step.PROVE, launch.profile)
            proof = await probe_readiness(running, log, key)
            self._done(Step.PROVE, launch.profile, began, units.duration(proof.seconds))
        except (Exception, asyncio.CancelledError) as error:
            if restoring and isinstance(error, asyncio.CancelledError):
                raise
            cause = _cause_of(error)
            hung = cause.kind is FailureKind.HANG  # it floods, or does not listen: every moment costs, and none helps
            await terminate_server(process, mark, 0 if hung else min(IMMEDIATE_STOP_SECONDS, self.config.stop_seconds))
            truncate_log(log, keep=False)  # it had that moment to go on
            if not isinstance(error, asyncio.CancelledError):
                self._keep_failed(running, cause)
            self._save(running=None)
            raise
        vram = await asyncio.to_thread(vram_in_use, process.pid)
        running = replace(running, ready_at=state.utc_now(), loaded_vram=vram.used, whole_card_gpus=vram.whole)
        running = replace(running, probe_tokens=proof.tokens)
        self._save(running=running, last_good=launch)
        watcher.ensure_watcher(self.paths, self.slot, process)
        return running

    def _keep_failed(self, launch: RunningServer, cause: Cause) -> None:
        """Keeps the log of a launch that failed: the next launch's takes its place."""
        keep_failed_log(self.paths.instance_log(self.slot), self.paths.failed_log(self.slot))
        name = launch.launch.profile
        failed = LaunchFailure(name, launch.launch_id, state.utc_now(), cause.sentence, cause.hint, cause.line)
        self._save(failed=failed)

    async def _port_free(self, launch: Launch) -> None:
        for _ in range(PORT_TRIES):
            with contextlib.suppress(GpuboxError):
                return check_port(launch.host, launch.port)
            await asyncio.sleep(PORT_SECONDS)
        return check_port(launch.host, launch.port)

    async def _give_back(self, kind: str, name: str, old: RunningServer | None, cause: Cause, began: float) -> None:
        """Brings back what ran before the failed change, then raises the GpuboxError that tells the story."""
        kept = self._state.failed
        logged = kept is not None and kept.profile == name and kept.at >= self._since
        self.emit(StepFailed(Step.LOAD, name, cause.sentence, cause.hint, cause.line, logged))
        story = f"{name}: {cause.sentence}."
        if old is None:
            self._save(running=None, message=story)
            self._finish(kind, name, began, None, story, ok=False)
            raise OperationFailed(story, cause.hint, cause)
        back = old.launch.profile
        if is_alive(old.process):  # it could not even be stopped
            self._save(running=old)
            self._finish(kind, name, began, back, story, ok=False)
            raise OperationFailed(f"{story} {back} was not touched.", cause.hint, cause)
        restoring = self._step(Step.RESTORE, back)
        try:
            await self._bring_up(old.launch, restoring=True)
        except GpuboxError as error:
            story += f" {back} could not be brought back: {error.message.rstrip('.')}. Nothing runs."
            self._save(running=None, message=story)
            self.emit(StepFailed(Step.RESTORE, back, error.message, error.hint))
            self._finish(kind, name, began, None, story, ok=False)
            raise OperationFailed(story, cause.hint or error.hint, cause) from None
        self._done(Step.RESTORE, back, restoring)
        story += f" {back} is back ({time.monotonic() - restoring:.1f} s)."
        self._finish(kind, name, began, back, story, ok=False)
        raise OperationFailed(story, cause.hint, cause)

    # -- the record ---------------------------------------------------------------------------------

    @contextmanager
    def _exclusive(self, kind: str, profile: str, *, recorded: bool = True) -> Iterator[RunningServer | None]:
        """Holds the slot's lock and yields the server that runs; the operation is on record meanwhile.

        ``recorded``: refused where the record cannot be written. Nothing was touched then.
        """
        descriptor = _open_lock(self.paths.instance_lock(self.slot), or_folder=not recorded)
        try:
            if not try_lock(descriptor):
                raise self._taken()
            view = observe(self.paths, self.slot)
            self._since = state.utc_now()
            operation = Operation(kind, profile, "begin", own_identity(), self._since)
            self._state = replace(view.state, running=view.running, operation=operation, message=view.message)
            self._crashed = view if view.crashed else None
            self._save()
            if self._unrecorded and recorded:
                still = f" {view.running.launch.profile} goes on." if view.running else ""
                raise GpuboxError(f"A {kind} is refused: {self._unrecorded}{still}", self._unrecorded_hint)
            try:
                yield view.running
            finally:
                self._save(operation=None)
        finally:
            os.close(descriptor)

    def _taken(self) -> GpuboxError:
        operation = observe(self.paths, self.slot).operation
        what = f"doing a {operation.kind} {operation.profile}".rstrip() if operation else "changing this server"
        who = f"Another gpubox (pid {operation.owner.pid})" if operation else "Another gpubox"
        return GpuboxError(f"{who} is {what}.", "Try again when it is done; `gpubox status` shows it.")

    def _save(self, **changes: object) -> None:
        """Records a change. A disk that refuses in the middle of a change must not keep a server from coming back.

        The record is then behind; the marker in the server's environment still finds it.
        """
        self._state = replace(self._state, damaged=False, **changes)  # type: ignore[arg-type]
        self._unrecorded = self._unrecorded_hint = ""
        try:
            save_state(self.paths.instance_state(self.slot), self._state)
        except GpuboxError as error:
            self._unrecorded, self._unrecorded_hint = error.message, error.hint

    def _step(self, step: Step, profile: str) -> float:
        if self._state.operation:
            self._save(operation=replace(self._state.operation, step=str(step)))
        self.emit(StepStarted(step, profile))
        return time.monotonic()

    def _done(self, step: Step, profile: str, began: float, note: str = "") -> None:
        self.emit(StepDone(step, profile, time.monotonic() - began, note))

    def _finish(
        self, kind: str, profile: str, began: float, answering: str | None, message: str, *, ok: bool = True
    ) -> None:
        self.emit(OperationFinished(kind, profile, ok, answering, time.monotonic() - began, message))


def _open_lock(path: Path, *, or_folder: bool) -> int:
    """A descriptor to lock; ``or_folder``: of the folder where no file can be made in it. Raises GpuboxError."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        return os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        for place in (path, path.parent) if or_folder else ():
            with contextlib.suppress(OSError):  # a lock needs no right to write
                return os.open(place, os.O_RDONLY | os.O_CLOEXEC)
        hint = state.disk_hint(error)
        raise GpuboxError(f"{path} cannot be written: {error.strerror}. Nothing was touched.", hint) from None


def _same(old: Launch, new: Launch) -> bool:
    return replace(old, engine_version="") == replace(new, engine_version="")


def _cause_of(error: BaseException) -> Cause:
    if isinstance(error, LaunchError):
        return error.cause
    if isinstance(error, asyncio.CancelledError):
        return Cause(FailureKind.INTERRUPTED, "interrupted")
    if isinstance(error, GpuboxError):
        kind = FailureKind.HANG if error.code == ExitCode.UNHEALTHY else FailureKind.PORT
        return Cause(kind, error.message.rstrip("."), error.hint)
    return Cause(FailureKind.CRASH, f"gpubox failed: {type(error).__name__}: {error}", "Please report it.")
