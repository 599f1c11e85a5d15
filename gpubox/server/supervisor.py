"""Starts, stops, restarts and switches the server. A failed switch restores the server that ran before."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from dataclasses import replace

from gpubox.clock import seconds_since, utc_now
from gpubox.config import Config, api_key
from gpubox.errors import ExitCode, GpuboxError
from gpubox.hardware.process import is_alive, own_identity
from gpubox.notify import notify
from gpubox.paths import MAIN_INSTANCE, Paths
from gpubox.profiles.profile import Profile
from gpubox.server.events import OperationFinished, ServerEvent, Step, StepFailed
from gpubox.server.failure_causes import Cause, FailureKind
from gpubox.server.held_instance import HeldInstance, cause_of_error, hold_instance
from gpubox.server.instance import InstanceView, observe, place_of
from gpubox.server.launch import prepare_launch
from gpubox.server.server_process import reap_servers, wait_vram_released
from gpubox.server.state import Launch, Operation, RunningServer, recent_restarts

UNLOAD_WAIT_SECONDS = 1.0
"""A server that is busy for longer is in use, and is not unloaded."""
STEADY_SECONDS = 60.0
"""A server that ran so long before it crashed gets its kept KV caches again."""


def instance_of(profile: Profile, paths: Paths) -> str:
    """The instance of ``place_of`` now."""
    return place_of(profile, None if profile.companion else observe(paths, profile.name).running)


def check_place_free(profile: Profile, running: RunningServer | None) -> None:
    """Raises GpuboxError if the server ``running`` has the place of ``profile`` and is of another profile."""
    if running and running.launch.profile != profile.name:
        raise GpuboxError(f"{running.launch.profile} is running.", f"`gpubox switch {profile.name}` replaces it.")


async def go_at_once() -> None:
    """The default of ``Supervisor.place``: nobody has to prepare for the change."""


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
        check_memory: Callable[[Profile, Sequence[RunningServer]], str] = lambda profile, leaving: "",
        *,
        asked_by: str = "",
        gives_way: bool = False,
        cold: bool = False,
        full_window: Callable[[RunningServer], str] = lambda _: "",
    ) -> None:
        """``check_memory`` is called while the servers that will leave still run; its result is noted, and what it
        raises refuses the operation. ``asked_by``: the gateway's client for which this is done.
        ``gives_way``: the owner's own operations wait for its end, and are not refused. ``cold``: servers are started
        without their kept KV caches, to be measured; a server that is restored gets them. ``full_window``: what
        --swa-full would take more in memory."""
        self.check_memory = check_memory
        self.paths, self.config, self.instance, self.emit = paths, config, instance, emit
        self._asked_by, self._gives_way, self._cold, self._full_window = asked_by, gives_way, cold, full_window
        self._since, self._began = "", 0.0
        """When the operation began: ISO-8601, and on the monotonic clock."""

    def view(self) -> InstanceView:
        """The instance now. Changes nothing."""
        reap_servers()
        return observe(self.paths, self.instance)

    async def start(self, profile: Profile, *, allow_exposed: bool = False) -> RunningServer:
        """Starts ``profile``. If it runs but was edited since, its server is replaced at once.

        Raises GpuboxError if another profile runs, or if the start fails.
        """
        async with self._hold("start", profile.name) as held:
            check_place_free(profile, held.before)
            return await self._replace("start", profile, held, stop_now=True, allow_exposed=allow_exposed)

    async def switch(
        self, profile: Profile, *, stop_now: bool = False, allow_exposed: bool = False, restore: bool = True,
        wait: float | None = None, force_restart: bool = False,
    ) -> RunningServer:  # fmt: skip
        """Replaces the running server by ``profile``: check, wait for idle slots, stop, start, probe.

        ``stop_now``: does not wait for idle slots. ``wait``: waits at most so many seconds (default: the config's); if
        slots are still busy then, nothing is changed. ``restore``: on failure or cancellation the old server is started
        again. ``force_restart``: restarts ``profile`` even if it already runs unchanged. Raises GpuboxError.
        """
        async with self._hold("switch", profile.name) as held:
            same = held.before is not None and held.before.launch.profile == profile.name
            kind = "restart" if force_restart and same else "switch"
            return await self._replace(
                kind, profile, held, stop_now=stop_now, allow_exposed=allow_exposed, restore=restore, wait=wait
            )

    async def place(
        self, profile: Profile, *, displaces: Sequence[str] = (), go: Callable[[], Awaitable[None]] = go_at_once
    ) -> RunningServer:
        """As ``switch``, and the servers of ``displaces`` (other instances) go too, for the memory that they hold.

        They come back with the old server if the start fails or is cancelled. ``go`` is awaited after all checks, and
        before anything is waited for or stopped; a cancellation, or what it raises, leaves everything as it was.
        """
        others = sorted({*displaces} - {self.instance})
        kind = "switch" if others or self.view().running else "start"
        async with AsyncExitStack() as stack:
            # In one order: of two gpuboxes that need the same instances, one gets all of them.
            held = {name: await stack.enter_async_context(self._hold(kind, profile.name, name))
                    for name in sorted([self.instance, *others])}  # fmt: skip
            rest = [held[name] for name in others]
            return await self._replace(kind, profile, held[self.instance], rest, go=go)

    async def restart(
        self, profile: Profile, *, stop_now: bool = False, allow_exposed: bool = False, wait: float | None = None
    ) -> RunningServer:
        """As ``switch``, but also if ``profile`` already runs unchanged."""
        async with self._hold("restart", profile.name) as held:
            return await self._replace(
                "restart", profile, held, stop_now=stop_now, allow_exposed=allow_exposed, wait=wait
            )

    async def restore_launch(self, launch: Launch, note: str = "") -> RunningServer:
        """Replaces the running server by ``launch``, exactly as it was recorded, unless it is that launch already.

        ``note`` says why, if nobody asked for it. Raises GpuboxError.
        """
        async with self._hold("switch", launch.profile) as held:
            old = held.before
            if old and old.ready_at and old.launch == launch:
                return old
            held.guard({self.instance: replace(old or RunningServer(launch, "", utc_now()), launch=launch)})
            try:
                if old:
                    await held.keep_kv(old)
                    with contextlib.suppress(asyncio.CancelledError):  # the old server is gone then: do not end here
                        await held.stop(old, stop_now=old.ready_at is None)
                running = replace(await held.bring_up(launch, restoring=True), note=note)
                held.save(running=running)
            except GpuboxError as error:
                held.save(message=f"{launch.profile} could not be restored: {error.message}")
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
        async with self._hold("restart", "") as held:
            dead = held.crashed.state.running if held.crashed else None
            if held.before or dead is None or dead.launch_id != launch_id:
                return
            name = dead.launch.profile
            held.save(restarts=(*recent_restarts(held.state), utc_now()))
            if held.save_problem:  # without a count there is no limit to restarts
                raise GpuboxError(f"A restart is refused: {held.save_problem.message}", held.save_problem.hint)
            held.guard({self.instance: dead})
            try:
                await wait_vram_released()
                # a state that was restored just before the crash may be its cause
                await held.bring_up(dead.launch, restore_kv=seconds_since(dead.ready_at) >= STEADY_SECONDS)
            except GpuboxError as error:
                held.save(running=None, message=f"{name} died, and could not be restarted: {error.message}")
                self._finish("restart", name, None, error.message, ok=False)
                raise
            self._finish("restart", name, name, f"{name} answers.")

    async def recover(self) -> None:
        """Brings an operation to its end whose gpubox was killed after it had begun to stop servers.

        A server that loads already is waited for. If there is no new one, or it fails, what was stopped comes back. The
        record says what was done. Raises GpuboxError if another gpubox works on the instance.
        """
        operation = self.view().interrupted
        if operation is None:
            return
        name = operation.profile or next(iter(operation.replaces.values())).launch.profile
        async with AsyncExitStack() as stack:
            held = {instance: await stack.enter_async_context(self._hold("restore", name, instance))
                    for instance in sorted({self.instance, *operation.replaces})}  # fmt: skip
            target, own = held[self.instance], operation.replaces.get(self.instance)
            if target.owed != operation:
                return  # it was done meanwhile
            for each in held.values():
                each.owed = None
                if (loading := each.state.running) and not loading.ready_at:
                    with contextlib.suppress(GpuboxError):
                        await each.finish_load(loading, time.monotonic() - seconds_since(loading.started_at))
            previous = [(held[instance], server) for instance, server in operation.replaces.items()
                        if held[instance].state.running is None or is_alive(server.process)]  # fmt: skip
            if (new := target.state.running) and (own is None or _portless(new.launch) != _portless(own.launch)):
                previous = []
            cause = Cause(FailureKind.STOPPED, f"the {operation.kind} was killed")
            message = f"{name}: {cause.sentence}. Its server answers."
            if previous:
                message = (await self._restore_previous(operation.kind, name, target, previous, cause)).message
            for each in [back for back, _ in previous] or [target]:  # the owner may have started others meanwhile
                if running := each.state.running:
                    each.save(running=replace(running, note=message))

    async def stop(self) -> str | None:
        """Stops the server at once. Returns its profile, or ``None`` if nothing ran.

        It also works if the state cannot be written: stopping may be the way to free a full disk.
        """
        async with self._hold("stop", "", must_record=False) as held:
            if held.before is None:
                return None
            await held.keep_kv(held.before)
            await held.stop(held.before, wait_vram=False, stop_now=True)
            name = held.before.launch.profile
            message = f"{name} is stopped."
            if held.save_problem:
                message += f" The state file does not show this: {held.save_problem.message}"
            self._finish("stop", name, None, message)
            return name

    async def unload(self, profile: str, *, go: Callable[[], Awaitable[None]] = go_at_once) -> None:
        """Stops the server of ``profile`` if it is idle, and keeps its KV caches.

        ``go`` as in ``place``. Raises GpuboxError if it does not run, or is busy.
        """
        async with self._hold("stop", profile) as held:
            old = held.before
            if old is None or old.launch.profile != profile:
                raise GpuboxError(f"{profile} is not running.", code=ExitCode.NOT_RUNNING)
            await go()
            await held.wait_idle(old, UNLOAD_WAIT_SECONDS)
            await held.keep_kv(old)
            await held.stop(old, wait_vram=False, why=f"{profile} was unloaded: idle, or a client asked for it.")
            self._finish("stop", profile, None, f"{profile} is unloaded.")

    async def _replace(
        self, kind: str, profile: Profile, held: HeldInstance, others: Sequence[HeldInstance] = (), *,
        stop_now: bool = False, allow_exposed: bool = False, restore: bool = True, wait: float | None = None,
        go: Callable[[], Awaitable[None]] = go_at_once,
    ) -> RunningServer:  # fmt: skip
        name, old = profile.name, held.before
        leaving = [(each, each.before) for each in (*others, held) if each.before]
        try:
            launch = await self._check(profile, held, [server for _, server in leaving], allow_exposed)
            if old and kind != "restart" and self._runs_already(old, launch, restore):
                self._finish(kind, name, name, f"{name} is already running.")
                return old
            await go()
            for each, server in leaving:
                if not stop_now:
                    seconds = self.config.wait_seconds if wait is None else wait
                    await each.wait_idle(server, seconds, by_gateway=go is not go_at_once)
        except GpuboxError as error:
            self.emit(StepFailed(Step.CHECK, name, error.message, error.hint))
            untouched = "".join(f" {server.launch.profile} was not touched." for _, server in leaving)
            self._finish(kind, name, old.launch.profile if old else None, error.message + untouched, ok=False)
            raise
        if leaving:
            held.guard({each.instance: server for each, server in leaving})
        try:
            for each, server in leaving:
                await each.keep_kv(server)
                why = f"{server.launch.profile} was stopped to make room for {name}." if each is not held else ""
                await each.stop(server, wait_vram=each is leaving[-1][0], stop_now=stop_now, why=why)
            running = await held.bring_up(launch)
        except (Exception, asyncio.CancelledError) as error:  # whatever failed: the owner gets a server back
            if isinstance(error, asyncio.CancelledError) and (task := asyncio.current_task()):
                task.uncancel()  # Ctrl-C: restore the old server; a second Ctrl-C ends that too
            previous = [pair for pair in reversed(leaving) if restore or is_alive(pair[1].process)]
            raise await self._restore_previous(kind, name, held, previous, cause_of_error(error)) from None
        self._finish(kind, name, name, f"{name} answers.")
        return running

    def _runs_already(self, old: RunningServer, launch: Launch, restore: bool) -> bool:
        has_api_key = api_key(self.paths) is not None
        if not old.ready_at or old.has_api_key != has_api_key:
            return False
        # A caller that restores the old server itself (a benchmark) does not decide about restarts after a crash.
        launch = launch if restore else replace(launch, restart=old.launch.restart)
        return replace(old.launch, engine_version="") == replace(launch, engine_version="")

    async def _check(
        self, profile: Profile, held: HeldInstance, leaving: Sequence[RunningServer], allow_exposed: bool
    ) -> Launch:
        began = held.begin(Step.CHECK, profile.name)
        notes: list[str] = []
        old = held.before
        launch = await asyncio.to_thread(
            prepare_launch,
            profile,
            self.paths,
            self.config,
            old=old.launch if old else None,
            allow_exposed=allow_exposed,
            on_checked=notes.append,
        )
        if note := await asyncio.to_thread(self.check_memory, profile, leaving):
            notes.append(note)
        held.done(Step.CHECK, profile.name, began, ", ".join(notes))
        return launch

    async def _restore_previous(
        self, kind: str, name: str, held: HeldInstance, previous: Sequence[tuple[HeldInstance, RunningServer]],
        cause: Cause,
    ) -> OperationFailed:  # fmt: skip
        """Starts the servers again that ran before the failed operation. Returns the error to raise."""
        failure = held.state.failed
        logged = failure is not None and failure.profile == name and failure.at >= self._since
        self.emit(StepFailed(Step.LOAD, name, cause.sentence, cause.hint, cause.line, logged))
        message, hint, answering, back = f"{name}: {cause.sentence}.", cause.hint, None, list[HeldInstance]()
        if any(not is_alive(old.process) for _, old in previous):
            await wait_vram_released()  # of what failed
        for each, old in previous:
            profile = old.launch.profile
            if is_alive(old.process):  # it could not even be stopped
                each.save(running=old)
                back.append(each)
                answering = answering or profile
                message += f" {profile} was not touched."
                continue
            began = each.begin(Step.RESTORE, profile)
            try:
                await each.bring_up(old.launch, restoring=True)
                each.done(Step.RESTORE, profile, began)
                back.append(each)
                answering = answering or profile
                message += f" {profile} is restored ({time.monotonic() - began:.1f} s)."
            except GpuboxError as error:
                self.emit(StepFailed(Step.RESTORE, profile, error.message, error.hint))
                why = f"{profile} could not be restored: {error.message.rstrip('.')}."
                message += f" {why}"
                hint = hint or error.hint
                each.save(running=None, message=why)
        if previous and not back:
            message += " Nothing runs."
        if held.state.running is None:
            held.save(message=message)
        self._finish(kind, name, answering, message, ok=False)
        if previous and cause.kind is not FailureKind.INTERRUPTED:  # else the owner did it
            once = f"{name} {cause.sentence} {utc_now()[:13]}"  # a client of the gateway may try again at once
            notify(self.paths, "rollback", f"{name} did not start", message, profile=name, once=once)
        return OperationFailed(message, hint, cause)

    def _hold(
        self, kind: str, profile: str, instance: str = "", *, must_record: bool = True
    ) -> AbstractAsyncContextManager[HeldInstance]:
        self._since, self._began = utc_now(), time.monotonic()
        operation = Operation(kind, profile, "begin", own_identity(), self._since, self._asked_by, self._gives_way)
        where = instance or self.instance
        return hold_instance(
            self.paths, self.config, where, operation, self.emit, must_record=must_record, cold=self._cold,
            full_window=self._full_window,
        )  # fmt: skip

    def _finish(self, kind: str, profile: str, answering: str | None, message: str, *, ok: bool = True) -> None:
        seconds = time.monotonic() - self._began
        self.emit(OperationFinished(kind, profile, ok, answering, seconds, message, self._asked_by))


def _portless(launch: Launch) -> Launch:
    """What was launched: a restored server may have another port."""
    return replace(launch, port=0, argv=tuple(word for word in launch.argv if word != str(launch.port)))
