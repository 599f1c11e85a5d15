"""The servers behind the gateway: which request may go to which, and which profile comes up next."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from gpubox.config import Config, api_key
from gpubox.errors import GpuboxError
from gpubox.gateway.admission import UNTIL_RELEASED, AdmissionQueue, Ticket
from gpubox.gateway.gateway_status import GatewayEvent, GatewaySwitch, ProfileState, ProfileStatus
from gpubox.gateway.http_connection import RequestRefused
from gpubox.gateway.operations import OperationRequest, Operations, ServerOperation, TemporaryFailure
from gpubox.gateway.servers import GatewayServer, ProfileTable, read_servers
from gpubox.gateway.upstream import UpstreamFailed, ask_server
from gpubox.paths import MAIN_INSTANCE, Paths
from gpubox.profiles.profile import Profile
from gpubox.server.responses import LEFT_NAME, QUIET_SECONDS, context_size, json_count, json_object, read_slots
from gpubox.storage import is_locked, read_json

TICK_SECONDS = 0.25
"""How often the state files are looked at: another gpubox may switch, too."""
PROFILES_SECONDS = 2.0
"""How often the profiles' files are looked at."""
RETRY_SECONDS = 5.0
LOST_SECONDS = 1.0
"""A server that did not take a request takes no others for so long: a dying one still looks alive."""
SLOTS_SECONDS, SLOTS_TIMEOUT_SECONDS = 1.5, 10.0
"""How often a server with requests is asked who is in its slots, and how long it may take for that."""
OWNER_FIRST = "The owner's own operation goes first."
_SHOWN_CHARS, _SHOWN_NAMES = 100, 20


@dataclass(slots=True)
class _Operation:
    """An operation that runs now."""

    switch: GatewaySwitch
    """As it was reported last."""
    began: float
    instances: tuple[str, ...] = ()
    """Those that it changes; empty until it is known."""
    closes: bool = False
    """Whether the profiles that it displaces take no more requests."""
    child: ServerOperation | None = None
    task: asyncio.Task[None] | None = None


class ProfileServers:
    """Knows the running servers and the waiting requests, and has profiles brought up."""

    def __init__(self, paths: Paths, config: Config, emit: Callable[[GatewayEvent], None]) -> None:
        self.paths, self.config, self.emit = paths, config, emit
        self.profiles = ProfileTable(paths, config)
        self.operations = Operations(paths)
        self.queue = AdmissionQueue(deadline_seconds=config.gateway.wait_seconds, capacity=config.gateway.queue)
        self.running: tuple[GatewayServer, ...] = ()
        self._watching: dict[str, asyncio.Task[None]] = {}
        """Launch -> who looks at its slots."""
        self._operations: dict[str, _Operation] = {}
        """By profile. They touch different instances, and each leaves the others the memory that they will need."""
        self._ticking: asyncio.Task[None] | None = None
        self._wake = asyncio.Event()

    async def start(self) -> None:
        """Reads profiles and servers, and begins to watch them."""
        await self._read_profiles()
        self.refresh()
        self._ticking = asyncio.get_running_loop().create_task(self._tick())

    async def close(self) -> None:
        """Ends the watching. An operation that has begun to stop a server goes on by itself."""
        for tasks in ([self._ticking], [each.task for each in self._operations.values()], self._watching.values()):
            for task in filter(None, list(tasks)):
                task.cancel()
                await asyncio.gather(task, return_exceptions=True)
        self.operations.close()

    # -- for requests --------------------------------------------------------

    async def profile_of(self, model: str | None) -> Profile:
        """The profile that a request means; without a model the one that runs. Raises RequestRefused.

        With ``unknown-model = "current"`` the one that runs also answers for a model that there is not.
        """
        if model is not None:
            if not self.profiles.has(model):
                await self._read_profiles()  # its file may be new
            if not self.profiles.has(model):
                model = model.removesuffix(":latest")  # Open WebUI adds it also to requests to OpenAI's endpoints
            if self.profiles.has(model) or self.config.gateway.unknown_model == "refuse":
                try:
                    return self.profiles.find(model)
                except GpuboxError as error:
                    fault = error.message if len(model) <= _SHOWN_CHARS else "There is no profile with so long a name."
                    raise RequestRefused(404, f"{fault} {self._names()}") from None
        for server in sorted(self.running, key=lambda server: server.instance != MAIN_INSTANCE):
            return self.profiles.get(server.profile) or Profile(server.profile, "")
        none = f"There is no profile {model[:_SHOWN_CHARS]!r}" if model else "The request names none in `model`"
        raise RequestRefused(503, f"No profile runs that could answer. {none}. {self._names()}")

    def _names(self) -> str:
        names = [name for profile in self.profiles.visible() for name in profile.names]
        more = f" and {len(names) - _SHOWN_NAMES} more (GET /v1/models)" if len(names) > _SHOWN_NAMES else ""
        return f"There are: {', '.join(names[:_SHOWN_NAMES])}{more}." if names else "There are none."

    def ask(self, ticket: Ticket, profile: Profile, *, may_load: bool = True) -> asyncio.Future[GatewayServer]:
        """What becomes the server for a request as soon as it may go there; often it is so at once.

        Only one that ``may_load`` waits: whatever waits is a reason to bring its profile up. Raises RequestRefused
        if it shall not wait.
        """
        now, name = time.monotonic(), profile.name
        ticket.server = waiting = asyncio.get_running_loop().create_future()
        if profile.upstream and not self.queue.of(name).up:
            self._set_up(now)
        if self.queue.admits(ticket) and (server := self._server_of(name)):
            self.queue.run(ticket, now)
            waiting.set_result(server)
            return waiting
        if not may_load:
            raise RequestRefused(503, f"{name} is not up, and only a POST request waits for it or brings it up.")
        if broken := self.queue.broken(name, now):
            raise RequestRefused(503, broken[0], broken[1], is_broken=True)
        if self.queue.is_full():
            full = RequestRefused(429, "Too many requests wait already.", RETRY_SECONDS)
            if (victim := self.queue.victim(ticket.client)) is None:
                raise full
            self.refuse(victim, full)
        self.queue.wait(ticket, now)
        self._wake.set()
        return waiting

    def refuse(self, ticket: Ticket, reason: RequestRefused) -> None:
        self.queue.leave(ticket, time.monotonic())
        if ticket.server and not ticket.server.done():
            ticket.server.set_exception(reason)

    def done(self, ticket: Ticket, tokens: float | None = None) -> None:
        """The request is over, or its client has left. ``tokens``: what it cost, if that is known."""
        self.queue.leave(ticket, time.monotonic(), tokens)
        self._dispatch()

    def left(self, profile: str) -> None:
        """The client of a request without a stream has gone, while its server works: nobody asks that for a while."""
        self.queue.of(profile).quiet_until = time.monotonic() + QUIET_SECONDS
        with contextlib.suppress(OSError):
            (self.paths.gateway / LEFT_NAME).touch(0o600)

    def lost(self, ticket: Ticket, server: GatewayServer) -> None:
        """The server took no connection, or closed it: it is most likely dead, and takes no request for a while."""
        now = time.monotonic()
        if server.launch_id:
            self.queue.of(server.profile).lost_until = now + LOST_SECONDS
        self.queue.leave(ticket, now)
        self.refresh()

    async def unload(self, names: Collection[str]) -> None:
        """Stops the servers of these profiles, or of all, once nobody asks them. Raises RequestRefused."""
        wanted = {server.profile for server in self.running if not names or server.profile in names}
        pinned = {name for name in wanted if (profile := self.profiles.get(name)) and profile.pinned}
        if pinned and names:
            raise RequestRefused(409, f"{', '.join(pinned)} is pinned: `gpubox stop` on the box stops it.")
        wanted -= pinned
        deadline = time.monotonic() + self.config.gateway.wait_seconds
        for name in wanted:
            self.queue.of(name).unload_until = deadline
        self._wake.set()
        while left := wanted & {server.profile for server in self.running}:
            if time.monotonic() > deadline:
                raise RequestRefused(503, f"{', '.join(sorted(left))} is in use, or could not be stopped.")
            await asyncio.sleep(TICK_SECONDS / 5)

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
        with contextlib.suppress(OSError):  # a folder that cannot be read now, or too many open files
            self.running = read_servers(self.paths)
        ready = {server.launch_id: server for server in self.running if server.ready}
        for launch in self._watching.keys() - ready:
            self._watching.pop(launch).cancel()
        for launch, server in ready.items():
            if launch not in self._watching:
                self._watching[launch] = asyncio.get_running_loop().create_task(self._watch_slots(server))
                if server.record and server.record.load_seconds:
                    self.queue.of(server.profile).load_seconds = server.record.load_seconds
        self._set_up(time.monotonic())
        self._dispatch()

    def _set_up(self, now: float) -> None:
        """Tells the queue which profiles take requests."""
        upstream = [profile.name for profile in self.profiles.catalog.profiles.values() if profile.upstream]
        for name in upstream:
            self.queue.of(name).slots = None
        closed = {name for name, queued in self.queue.profiles.items() if queued.lost_until > now}
        closed.update(self._changed_by_others())
        for operation in self._operations.values():
            closed.update(operation.switch.displaces if operation.closes else ())
        self.queue.set_up([*upstream, *(server.profile for server in self.running if server.ready)], closed, now)

    def _changed_by_others(self) -> list[str]:
        """The profiles whose servers another gpubox stops or replaces."""
        own = {operation.child.pid for operation in self._operations.values() if operation.child}
        return [server.profile for server in self.running if server.changed_by not in (None, *own)]

    async def _watch_slots(self, server: GatewayServer) -> None:
        """Asks a server how many slots it has; and while requests are at it, how many of them work for others."""
        url, queued = server.base_url, self.queue.of(server.profile)
        queued.slots, queued.context, queued.foreign, known, before = 1, None, 0, False, 0
        while True:
            with contextlib.suppress(GpuboxError, UpstreamFailed, TimeoutError, OSError, ValueError):
                key = api_key(self.paths)
                if not known:
                    status, body = await ask_server(url, key, "GET", "/props", seconds=SLOTS_TIMEOUT_SECONDS)
                    values = json_object(read_json(body)) if status == 200 else {}  # build 11434
                    queued.slots, queued.context = json_count(values.get("total_slots")) or None, context_size(values)
                    known = True
                    self._dispatch()
                elif queued.busy and queued.quiet_until < time.monotonic():
                    ours = queued.busy
                    status, body = await ask_server(url, key, "GET", "/slots", seconds=SLOTS_TIMEOUT_SECONDS)
                    if status != 200:
                        return  # it has no such endpoint
                    busy = sum(slot.busy for slot in read_slots(read_json(body)) or ())
                    foreign = max(0, busy - max(ours, queued.busy))
                    queued.foreign, before = min(foreign, before), foreign  # one of ours may just have ended
                    self._dispatch()
            await asyncio.sleep(SLOTS_SECONDS if known else TICK_SECONDS)

    def _server_of(self, profile: str) -> GatewayServer | None:
        for server in self.running:
            if server.profile == profile and server.ready:
                return server
        known = self.profiles.get(profile)
        return GatewayServer("", profile, known.upstream, "", True, None) if known and known.upstream else None

    def _dispatch(self) -> None:
        """Lets the waiting requests go whose servers take them."""
        if not self.queue.waiting_count:
            return
        now = time.monotonic()
        for name in self.queue.profiles:
            while (ticket := self.queue.next_ticket(name)) and (server := self._server_of(name)):
                self.queue.run(ticket, now)
                if ticket.server and not ticket.server.done():
                    ticket.server.set_result(server)

    async def _tick(self) -> None:
        looked = profiles_looked = 0.0
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(TICK_SECONDS):
                    await self._wake.wait()
            self._wake.clear()
            now = time.monotonic()
            if now - profiles_looked > PROFILES_SECONDS:
                profiles_looked = now
                with contextlib.suppress(OSError):
                    await self._read_profiles()
            if now - looked > TICK_SECONDS / 2:  # requests that come at once do not make it look each time
                looked = now
                self.refresh()
            else:
                self._dispatch()
            self._next_operation(now)

    def _next_operation(self, now: float) -> None:
        """Begins one, if it is its turn. The next one begins when it is known where that one takes place."""
        if self._changed_by_others() or self._owner_is_first():
            return
        if any(not operation.instances for operation in self._operations.values()):
            return
        left = {server.profile: self._unload_seconds(server, now) for server in self.running}
        idle = [name for name, seconds in left.items() if seconds is not None and seconds <= 0]
        if names := [name for name in self.queue.next_profiles(now) if name not in self._operations]:
            first = min(self.queue.of(names[0]).waiting(), key=lambda ticket: ticket.arrived)
            self._begin(_Operation(GatewaySwitch("start", names[0], first.client), now))
        elif names := [name for name in idle if name not in self._operations]:
            self._begin(_Operation(GatewaySwitch("stop", names[0]), now))

    def _owner_is_first(self) -> bool:
        """Whether the owner's own operation waits or works. It comes before the gateway's next one."""
        return is_locked(self.paths.owner_lock, shared=True)

    def _unload_seconds(self, server: GatewayServer, now: float) -> float | None:
        """Until it is unloaded because nobody asks it; None: not now."""
        profile = self.profiles.get(server.profile)
        idle = self.queue.idle_seconds(server.profile, now)
        if idle is None or not server.ready:
            return None
        if self.queue.of(server.profile).unload_until > now:
            return 0.0
        return profile.idle_seconds - idle if profile and profile.idle_seconds and not profile.pinned else None

    # -- operations ----------------------------------------------------------

    def _begin(self, operation: _Operation) -> None:
        self._operations[operation.switch.profile] = operation
        operation.task = asyncio.get_running_loop().create_task(self._operate(operation))

    async def _operate(self, operation: _Operation) -> None:
        name = operation.switch.profile
        queued = self.queue.of(name)
        self._report(operation, "begin")
        try:
            request, follow = self._request(operation), partial(self._follow, operation)
            operation.child = child = await self.operations.begin(request, follow)
            goes = await self._make_room(operation, child)
            if goes or child.finished.done():
                message = await child.finished
                if goes and operation.switch.kind == "start":
                    queued.load_seconds = time.monotonic() - operation.began
                self._report(operation, "done", message)
            else:
                await child.cancel()
                wanted = self._is_wanted(operation)
                self._report(operation, "done", OWNER_FIRST if wanted else "Nobody waits for it any more.")
        except GpuboxError as error:
            self._fail(operation, error)
        finally:
            del self._operations[name]
            queued.displaces, queued.loading = (), False
            if operation.instances:  # else it had no place, and its end makes none
                self.queue.release(but=name)
            self.refresh()
            self._wake.set()

    async def _make_room(self, operation: _Operation, child: ServerOperation) -> bool:
        """Waits for the checks, then until the servers that go have done their requests. Until then the owner may
        come first. Whether the child was told to go."""
        either: tuple[asyncio.Future[Any], ...] = (child.placed, child.finished)
        await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
        if not child.placed.done():
            return False  # a check has failed
        operation.instances = child.placed.result()
        with contextlib.suppress(OSError):
            await self._read_profiles()  # as the child has just read them
        name, queued = operation.switch.profile, self.queue.of(operation.switch.profile)
        displaces = tuple(server.profile for server in self.running if server.instance in operation.instances)
        queued.displaces = displaces
        if displaces:
            operation.switch = replace(operation.switch, displaces=displaces)
            self._report(operation, "wait")
        self._wake.set()  # another one may begin beside it
        while self._is_wanted(operation) and not self._owner_is_first():
            now = time.monotonic()
            if now >= self.queue.close_at(name, displaces, now) and not self.queue.paused:
                operation.closes = True
                self._set_up(now)
                if not any(self.queue.of(each).running for each in displaces):
                    queued.loading, operation.began = True, now
                    child.go()
                    return True
            if child.finished.done():
                break  # it died
            await asyncio.sleep(0.02)
        return False

    def _is_wanted(self, operation: _Operation) -> bool:
        """Whether somebody still waits for a start, and nobody asks the profile that is to be unloaded."""
        queued = self.queue.of(operation.switch.profile)
        asked = bool(queued.waiting_count)
        return asked if operation.switch.kind == "start" else not (asked or queued.running)

    def _request(self, operation: _Operation) -> OperationRequest:
        now, switch = time.monotonic(), operation.switch
        idle = {server.instance: self.queue.idle_seconds(server.profile, now) or 0.0 for server in self.running}
        beside = {name: other.instances for name, other in self._operations.items() if other.instances}
        return OperationRequest(switch.kind, switch.profile, switch.asked_by, idle, beside)

    def _follow(self, operation: _Operation, values: Mapping[str, Any]) -> None:
        """An event of the Supervisor."""
        if values.get("event") == "OperationFinished":
            self.refresh()  # its server answers: what the child still writes keeps nobody waiting
        step = values.get("step")
        if isinstance(step, str) and step != operation.switch.step:
            self._report(operation, step)

    def _fail(self, operation: _Operation, error: GpuboxError) -> None:
        now, sentence, name = time.monotonic(), " ".join(str(error).split()), operation.switch.profile
        queued = self.queue.of(name)
        self._report(operation, "failed", sentence)
        if operation.switch.kind != "start":
            queued.used = now  # not again at once
        elif isinstance(error, TemporaryFailure) and len(self._operations) > 1:
            queued.cause, queued.retry_at = "", UNTIL_RELEASED  # most likely another one has its place
        elif isinstance(error, TemporaryFailure):
            for request in self.queue.postpone(name, now):
                self.refuse(request, RequestRefused(503, sentence, RETRY_SECONDS))
        else:
            for request in self.queue.failed(name, sentence, now):
                self.refuse(request, RequestRefused(503, sentence, queued.retry_at - now, is_broken=True))

    def _report(self, operation: _Operation, step: str, message: str = "") -> None:
        seconds = round(time.monotonic() - operation.began, 3)
        operation.switch = replace(operation.switch, step=step, seconds=seconds, message=message)
        self.emit(operation.switch)

    # -- what it knows -------------------------------------------------------

    def switches(self) -> tuple[GatewaySwitch, ...]:
        """The operations under way, the oldest first."""
        now = time.monotonic()
        return tuple(replace(each.switch, seconds=round(now - each.began, 3)) for each in self._operations.values())

    def statuses(self) -> tuple[ProfileStatus, ...]:
        """All profiles of a list, and those that run or are asked."""
        now, by_profile = time.monotonic(), {server.profile: server for server in self.running}
        visible = [profile.name for profile in self.profiles.visible()]
        asked = filter(self.profiles.get, self.queue.profiles)  # the queue remembers also those that were deleted
        names = [*visible, *sorted({*by_profile, *asked} - {*visible})]
        return tuple(self._status(name, by_profile.get(name), now) for name in names)

    def _status(self, name: str, server: GatewayServer | None, now: float) -> ProfileStatus:
        profile, queued = self.profiles.get(name), self.queue.of(name)
        broken, operation = self.queue.broken(name, now), self._operations.get(name)
        upstream = profile.upstream if profile else ""
        state: ProfileState = "down"
        if upstream:
            state = "upstream"
        elif server and server.ready:
            state = "up"
        elif server or (operation and operation.switch.kind == "start"):
            state = "starting"
        elif broken:
            state = "broken"
        return ProfileStatus(
            name=name,
            state=state,
            aliases=profile.aliases if profile else (),
            base_url=upstream or (server.base_url if server else None),
            running=len(queued.running),
            waiting=queued.waiting_count,
            slots=queued.slots if queued.up and queued.context else None,
            context=queued.context if state == "up" else None,
            pinned=bool(profile and profile.pinned),
            unload_seconds=self._unload_seconds(server, now) if server else None,
            message=operation.switch.step if operation and state == "starting" else broken[0] if broken else "",
        )
