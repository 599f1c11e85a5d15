"""The servers behind the gateway: which request may go to which, and which profile comes up next."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any

from gpubox.config import Config
from gpubox.errors import GpuboxError
from gpubox.gateway.admission import AdmissionQueue
from gpubox.gateway.gateway_status import GatewayEvent, GatewayOperation, GatewaySwitch, ProfileState, ProfileStatus
from gpubox.gateway.operations import (
    OperationKind,
    OperationRequest,
    Operations,
    OperationServer,
    ServerOperation,
    TemporaryFailure,
)
from gpubox.gateway.servers import GatewayServer, ProfileTable, read_servers, sentence_of
from gpubox.paths import MAIN_INSTANCE, Paths
from gpubox.profiles.profile import Profile
from gpubox.storage import is_locked

TICK_SECONDS = 0.25
"""How often the state files are looked at: another gpubox may switch, too."""
PROFILES_SECONDS = 2.0
"""How often the profiles' files are looked at."""
RETRY_SECONDS = 5.0
LOST_SECONDS = 1.0
"""A server that did not take a request takes no others for so long: a dying one still looks alive."""
OWNER_FIRST = "The owner's own operation goes first."
_SHOWN_CHARS, _SHOWN_NAMES = 100, 20


class ProfileUnavailable(Exception):
    """The request gets no server. ``status`` and ``sentence`` go to the client."""

    def __init__(
        self, status: int, sentence: str, retry_seconds: float | None = None, *, is_broken: bool = False
    ) -> None:
        """``retry_seconds``: nothing changes before. ``is_broken``: and most likely not then either."""
        super().__init__(sentence)
        self.status, self.sentence, self.retry_seconds, self.is_broken = status, sentence, retry_seconds, is_broken


@dataclass(slots=True)
class _Operation:
    """The operation that runs now."""

    kind: OperationKind
    profile: str
    asked_by: str
    began: float
    step: str = "begin"
    displaces: tuple[str, ...] = ()
    child: ServerOperation | None = None
    told_to_go: bool = False


class ProfileServers:
    """Knows the running servers and the waiting requests, and starts one operation at a time."""

    def __init__(
        self,
        paths: Paths,
        config: Config,
        emit: Callable[[GatewayEvent], None],
        client_of: Callable[[int], str],
    ) -> None:
        """``client_of`` names the client of a request, for the record of the operation that it causes."""
        self.paths, self.config, self.emit, self._client_of = paths, config, emit, client_of
        self.profiles = ProfileTable(paths, config)
        self.operations = Operations(paths)
        self.queue = AdmissionQueue(deadline_seconds=config.gateway.wait_seconds, capacity=config.gateway.queue)
        self.running: tuple[GatewayServer, ...] = ()
        self._waiting: dict[int, asyncio.Future[GatewayServer]] = {}
        self._lost: dict[str, float] = {}
        """Launches that did not take a request, and until when they take none."""
        self._operation: _Operation | None = None
        self._operating: asyncio.Task[None] | None = None
        self._ticking: asyncio.Task[None] | None = None
        self._wake = asyncio.Event()
        self._unloading: set[str] = set()
        """The profiles that a client wants unloaded."""

    async def start(self) -> None:
        """Reads profiles and servers, and begins to watch them."""
        await self._read_profiles()
        self.refresh()
        self._ticking = asyncio.get_running_loop().create_task(self._tick())

    async def close(self) -> None:
        """Ends the watching. An operation that has begun to stop a server goes on by itself."""
        for task in (self._ticking, self._operating):
            if task:
                task.cancel()
                await asyncio.gather(task, return_exceptions=True)
        self.operations.close()

    # -- for requests --------------------------------------------------------

    async def profile_of(self, model: str | None) -> Profile:
        """The profile that a request means; without a model the one that runs. Raises ProfileUnavailable.

        With ``unknown-model = "current"`` the one that runs also answers for a model that there is not.
        """
        if model is not None:
            if not self.profiles.has(model):
                await self._read_profiles()  # its file may be new
            if self.profiles.has(model) or self.config.gateway.unknown_model == "refuse":
                try:
                    return self.profiles.find(model)
                except GpuboxError as error:
                    raise ProfileUnavailable(404, f"{_first(error, model)} {self._names()}") from None
        for server in sorted(self.running, key=lambda server: server.instance != MAIN_INSTANCE):
            return self.profiles.get(server.profile) or Profile(server.profile, "")
        raise ProfileUnavailable(503, "No profile runs, and the request names none in `model`.")

    def _names(self) -> str:
        names = [name for profile in self.profiles.visible() for name in profile.names]
        more = f" and {len(names) - _SHOWN_NAMES} more (GET /v1/models)" if len(names) > _SHOWN_NAMES else ""
        return f"There are: {', '.join(names[:_SHOWN_NAMES])}{more}." if names else "There are none."

    def ask(self, request: int, profile: Profile, *, may_load: bool = True) -> asyncio.Future[GatewayServer]:
        """The server for a request, as soon as it may go there. Raises ProfileUnavailable if it shall not wait.

        Only one that ``may_load`` waits: whatever waits is a reason to bring its profile up.
        """
        now, name = time.monotonic(), profile.name
        future: asyncio.Future[GatewayServer] = asyncio.get_running_loop().create_future()
        if self.queue.admits(name) and (server := self._server_of(name)):
            self.queue.run(request, name, now)
            future.set_result(server)
            return future
        if not may_load:
            raise ProfileUnavailable(503, f"{name} is not up, and only a POST request waits for it or brings it up.")
        if broken := self.queue.broken(name, now):
            raise ProfileUnavailable(503, broken[0], broken[1], is_broken=True)
        if self.queue.is_full():
            raise ProfileUnavailable(429, "Too many requests wait already.", RETRY_SECONDS)
        self.queue.wait(request, name, now)
        self._waiting[request] = future
        self._wake.set()
        return future

    def refuse(self, request: int, reason: ProfileUnavailable) -> None:
        """Ends the waiting of a request."""
        future = self._waiting.pop(request, None)
        if future and not future.done():
            future.set_exception(reason)

    def done(self, request: int, profile: str) -> None:
        """The request is over, or its client has left."""
        self._waiting.pop(request, None)
        self.queue.leave(request, profile, time.monotonic())

    def lost(self, request: int, server: GatewayServer) -> None:
        """The server took no connection, or closed it: it is most likely dead, and takes no request for a while."""
        now = time.monotonic()
        self._lost = {launch: until for launch, until in self._lost.items() if until > now}
        self._lost[server.launch_id] = now + LOST_SECONDS
        self.queue.leave(request, server.profile, now)
        self.refresh()

    async def unload(self, names: Collection[str]) -> None:
        """Stops the servers of these profiles, or of all, once nobody asks them. Raises ProfileUnavailable."""
        wanted = {server.profile for server in self.running if not names or server.profile in names}
        pinned = {name for name in wanted if (profile := self.profiles.get(name)) and profile.pinned}
        if pinned and names:
            raise ProfileUnavailable(409, f"{', '.join(pinned)} is pinned: `gpubox stop` on the box stops it.")
        self._unloading |= (wanted := wanted - pinned)
        self._wake.set()
        deadline = time.monotonic() + self.config.gateway.wait_seconds
        try:
            while left := wanted & {server.profile for server in self.running}:
                if time.monotonic() > deadline:
                    raise ProfileUnavailable(503, f"{', '.join(sorted(left))} is in use, or could not be stopped.")
                await asyncio.sleep(TICK_SECONDS / 5)
        finally:
            self._unloading -= wanted

    def pause(self, paused: bool) -> None:
        """Holds all requests, or lets them go."""
        self.queue.paused = paused
        self._wake.set()

    # -- the servers ---------------------------------------------------------

    async def _read_profiles(self) -> None:
        if await asyncio.to_thread(self.profiles.refresh):
            self.queue.forgive()  # the owner may have mended the file

    def refresh(self) -> None:
        """Reads the state files: what runs, and what another gpubox changes."""
        now = time.monotonic()
        self.running = read_servers(self.paths)
        child = self._operation.child.pid if self._operation and self._operation.child else None
        self.queue.set_up((server.profile for server in self.running if server.ready), now)
        displaced = self._operation.displaces if self._operation else ()
        closing = {
            server.profile
            for server in self.running
            if server.changed_by not in (None, child) or self._lost.get(server.launch_id, 0.0) > now
        }
        for name, queued in self.queue.profiles.items():
            queued.closed = name in closing or (name in displaced and queued.closed)
        for server in self.running:
            if server.load_seconds:
                self.queue.of(server.profile).load_seconds = server.load_seconds
        self._dispatch()

    def _server_of(self, profile: str) -> GatewayServer | None:
        return next((server for server in self.running if server.profile == profile and server.ready), None)

    def _dispatch(self) -> None:
        """Lets the waiting requests go whose servers take them."""
        for name, queued in self.queue.profiles.items():
            server = self._server_of(name) if queued.waiting and self.queue.admits(name) else None
            if server is None:
                continue
            for request in list(queued.waiting):
                future = self._waiting.pop(request, None)
                self.queue.run(request, name, time.monotonic())
                if future and not future.done():
                    future.set_result(server)

    async def _tick(self) -> None:
        looked = profiles_looked = 0.0
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(TICK_SECONDS):
                    await self._wake.wait()
            self._wake.clear()
            now = time.monotonic()
            with contextlib.suppress(OSError):  # a folder that cannot be read now, or too many open files
                if now - profiles_looked > PROFILES_SECONDS:
                    profiles_looked = now
                    await self._read_profiles()
                if now - looked > TICK_SECONDS / 2:  # requests that come at once do not make it look each time
                    looked = now
                    self.refresh()
                else:
                    self._dispatch()
            if self._operating is None or self._operating.done():
                self._next_operation()

    def _next_operation(self) -> None:
        now = time.monotonic()
        if any(server.changed_by for server in self.running) or self._owner_is_first():
            return  # another gpubox is at it
        if name := self.queue.next_profile(now):
            asked_by = self._client_of(next(iter(self.queue.of(name).waiting)))
            self._begin(_Operation("start", name, asked_by, now))
        elif name := self._idle_profile(now):
            self._begin(_Operation("stop", name, "", now))

    def _owner_is_first(self) -> bool:
        """Whether the owner's own operation waits or works. It comes before the gateway's next one."""
        return is_locked(self.paths.owner_lock, shared=True)

    def _idle_profile(self, now: float) -> str | None:
        """A profile that has been idle for its idle-seconds."""
        for server in self.running:
            left = self._unload_seconds(server, now)
            if left is not None and left <= 0:
                return server.profile
        return None

    def _unload_seconds(self, server: GatewayServer, now: float) -> float | None:
        profile = self.profiles.get(server.profile)
        idle = self.queue.idle_seconds(server.profile, now)
        if server.profile in self._unloading and idle is not None and server.ready:
            return 0.0
        if profile is None or not profile.idle_seconds or profile.pinned or idle is None or not server.ready:
            return None
        return profile.idle_seconds - idle

    # -- operations ----------------------------------------------------------

    def _begin(self, operation: _Operation) -> None:
        self._operation = operation
        self._operating = asyncio.get_running_loop().create_task(self._operate(operation))

    async def _operate(self, operation: _Operation) -> None:
        """Brings a profile up, or unloads it."""
        self._report(operation)
        try:
            operation.child = child = await self.operations.begin(
                self._request(operation), lambda values: self._follow(operation, values)
            )
            try:
                await self._make_room(operation, child)
                if operation.told_to_go or child.finished.done():
                    message = await child.finished
                    self._report(operation, "done", message)
                else:
                    await child.cancel()
                    wanted = self._is_wanted(operation)
                    self._report(operation, "done", OWNER_FIRST if wanted else "Nobody waits for it any more.")
            finally:
                await child.close()
        except GpuboxError as error:
            self._fail(operation, error)
        finally:
            self._operation = None
            for name in operation.displaces:
                self.queue.of(name).closed = False
            self.refresh()
            self._wake.set()

    async def _make_room(self, operation: _Operation, child: ServerOperation) -> None:
        """Waits for the checks, then until the servers that go have done their requests. Until then the owner may
        come first."""
        instances = await child.placed
        operation.displaces = tuple(server.profile for server in self.running if server.instance in instances)
        self._report(operation, "wait" if operation.displaces else "")
        while self._is_wanted(operation) and not self._owner_is_first():
            now = time.monotonic()
            if now >= self.queue.close_at(operation.profile, operation.displaces, now) and not self.queue.paused:
                for name in operation.displaces:
                    self.queue.of(name).closed = True
                if not any(self.queue.of(name).running for name in operation.displaces):
                    operation.told_to_go = True
                    operation.began = now
                    return child.go()
            if child.finished.done():
                return None  # it died: its future says why
            await asyncio.sleep(0.02)
        return None

    def _is_wanted(self, operation: _Operation) -> bool:
        """Whether somebody still waits for a start, and nobody asks the profile that is to be unloaded."""
        queued = self.queue.of(operation.profile)
        return bool(queued.waiting) if operation.kind == "start" else not (queued.waiting or queued.running)

    def _request(self, operation: _Operation) -> OperationRequest:
        now = time.monotonic()
        servers = []
        for server in self.running:
            profile, queued = self.profiles.get(server.profile), self.queue.of(server.profile)
            servers.append(
                OperationServer(
                    instance=server.instance,
                    pinned=bool(profile and profile.pinned),
                    idle_seconds=self.queue.idle_seconds(server.profile, now) or 0.0,
                    running=len(queued.running),
                    waiting=len(queued.waiting),
                )
            )
        return OperationRequest(operation.kind, operation.profile, operation.asked_by, tuple(servers))

    def _follow(self, operation: _Operation, values: Mapping[str, Any]) -> None:
        """An event of the Supervisor."""
        if values.get("event") == "OperationFinished":
            with contextlib.suppress(OSError):
                self.refresh()  # its server answers: what the child still writes keeps nobody waiting
        step = values.get("step")
        if isinstance(step, str) and step != operation.step:
            operation.step = step
            self._report(operation, step)

    def _fail(self, operation: _Operation, error: GpuboxError) -> None:
        now, sentence = time.monotonic(), sentence_of(error)
        self._report(operation, "failed", sentence)
        if operation.kind != "start":
            self.queue.of(operation.profile).used = now  # not again at once
            return
        if isinstance(error, TemporaryFailure):
            for request in self.queue.postpone(operation.profile, now):
                self.refuse(request, ProfileUnavailable(503, sentence, RETRY_SECONDS))
            return
        for request in self.queue.failed(operation.profile, sentence, now):
            broken = self.queue.broken(operation.profile, now)
            reason = ProfileUnavailable(503, sentence, broken[1] if broken else None, is_broken=True)
            self.refuse(request, reason)

    def _report(self, operation: _Operation, step: str = "begin", message: str = "") -> None:
        if step:
            operation.step = step
            seconds = round(time.monotonic() - operation.began, 3)
            self.emit(
                GatewaySwitch(
                    operation.kind, operation.profile, operation.asked_by, step, operation.displaces, seconds, message
                )
            )

    # -- what it knows -------------------------------------------------------

    def operation_status(self) -> GatewayOperation | None:
        operation = self._operation
        if operation is None:
            return None
        seconds = round(time.monotonic() - operation.began, 3)
        kind = "switch" if operation.kind == "start" and operation.displaces else operation.kind
        return GatewayOperation(kind, operation.profile, operation.step, operation.asked_by, seconds)

    def statuses(self) -> tuple[ProfileStatus, ...]:
        """All profiles of a list, and those that run or are asked."""
        now, by_profile = time.monotonic(), {server.profile: server for server in self.running}
        named = {profile.name: profile for profile in self.profiles.visible()}
        asked = filter(self.profiles.get, self.queue.profiles)  # the queue remembers also those that were deleted
        names = [*named, *sorted({*by_profile, *asked} - set(named))]
        return tuple(self._status(name, by_profile.get(name), now) for name in names)

    def _status(self, name: str, server: GatewayServer | None, now: float) -> ProfileStatus:
        profile, queued = self.profiles.get(name), self.queue.of(name)
        broken, operation = self.queue.broken(name, now), self._operation
        state: ProfileState = "down"
        if profile and profile.upstream:
            state = "upstream"
        elif server and server.ready:
            state = "up"
        elif server or (operation and operation.kind == "start" and operation.profile == name):
            state = "starting"
        elif broken:
            state = "broken"
        base_url = server.base_url if server else None
        return ProfileStatus(
            name=name,
            state=state,
            aliases=profile.aliases if profile else (),
            instance=server.instance if server else None,
            base_url=profile.upstream if profile and profile.upstream else base_url,
            running=len(queued.running),
            waiting=len(queued.waiting),
            pinned=bool(profile and profile.pinned),
            unload_seconds=self._unload_seconds(server, now) if server else None,
            message=operation.step if operation and state == "starting" else broken[0] if broken else "",
        )


def _first(error: GpuboxError, model: str) -> str:
    return error.message if len(model) <= _SHOWN_CHARS else "There is no profile with so long a name."
