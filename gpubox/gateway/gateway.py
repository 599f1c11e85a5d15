"""The gateway: answers clients at one address, and has profiles brought up behind it when requests name them."""

from __future__ import annotations

import asyncio
import collections
import contextlib
import os
import secrets
import socket
import time
from collections.abc import Callable, Sequence
from datetime import date, datetime, timedelta
from functools import partial
from itertools import count

from gpubox import __version__
from gpubox.address import local_url
from gpubox.clock import utc_now
from gpubox.config import Config
from gpubox.errors import GpuboxError
from gpubox.gateway import ollama, routes
from gpubox.gateway.admission import READ_COST, Ticket, takes_slot
from gpubox.gateway.background import notify
from gpubox.gateway.changes import ModelName, body_for
from gpubox.gateway.client_keys import BOX, UNLIMITED, ClientKeys, ClientLimits
from gpubox.gateway.client_request import STREAM_HEADERS, ClientRequest
from gpubox.gateway.conversations import Conversations
from gpubox.gateway.gateway_status import (
    SCHEMA,
    ClientSums,
    FinishedRequest,
    GatewayEvent,
    GatewayListening,
    GatewayStatus,
    GatewayStopped,
)
from gpubox.gateway.http_connection import ClientConnection, ConnectionLimits, Exchange, HttpRequest, RequestRefused
from gpubox.gateway.ledger import Ledger
from gpubox.gateway.listening import listen, most_connections
from gpubox.gateway.metrics import RequestCounters
from gpubox.gateway.own_replies import OwnReplies
from gpubox.gateway.prefix import read_prompt_head
from gpubox.gateway.profile_servers import ProfileServers
from gpubox.gateway.servers import GatewayServer
from gpubox.gateway.upstream import NotConnected, UpstreamFailed
from gpubox.gateway.watching import BoxWatch
from gpubox.hardware.process import own_identity
from gpubox.paths import Paths
from gpubox.profiles.profile import Profile, is_loopback
from gpubox.sanitize import sanitize_line
from gpubox.server.state import GatewayRecord, load_gateway, save_gateway
from gpubox.server.status import api_key_for
from gpubox.storage import lock_file

COMMENT_SECONDS = 5.0
"""A waiting stream begins after so long, and gets a comment as often: proxies and clients give up on silence."""
CLOSE_SECONDS = 10.0
"""How long running requests may go on when the gateway ends."""
WARM_SECONDS = 2.0
"""After so long the first operation gets its process, unless there is one."""
_FINISHED = 50
_WATCH_KEY = "`gpubox keys add NAME --watch` on the box makes a key for that."
_CANCELLED = RequestRefused(403, "The owner of this box has cancelled the request.")


class Gateway:
    """One gateway. ``serve`` runs it until ``stop`` is called."""

    def __init__(
        self, paths: Paths, config: Config, *, host: str, port: int, emit: Callable[[GatewayEvent], None]
    ) -> None:
        self.paths, self.config, self.host, self.port, self._emit = paths, config, host, port, emit
        self.keys = ClientKeys(paths)
        self.ledger = Ledger(paths.ledger)
        self.counters = RequestCounters()
        self.servers = ProfileServers(paths, config, self.emit)
        self.conversations = Conversations(self._record, paths, config)
        self.requests: dict[int, ClientRequest] = {}
        self.finished: collections.deque[FinishedRequest] = collections.deque(maxlen=_FINISHED)
        self.token = secrets.token_urlsafe(32)
        self.started_at = utc_now()
        self._ids = count(1)
        self._stopping = asyncio.Event()
        self._limits = ConnectionLimits(config.gateway.max_body_mib << 20, most_connections())
        self._own, self._watchers = OwnReplies(self), BoxWatch(paths)
        self._names = routes.own_names(socket.gethostname(), (host, *config.gateway.names))

    # -- life ----------------------------------------------------------------

    async def serve(self, sockets: Sequence[socket.socket] = ()) -> None:
        """Listens until ``stop``, on ``sockets`` if somebody else keeps them open. Raises GpuboxError if another
        gateway runs, or the port is taken."""
        try:
            lock = lock_file(self.paths.gateway_lock)
        except OSError as error:
            raise GpuboxError(f"{self.paths.gateway_lock} cannot be written: {error.strerror}.") from None
        if lock is None:
            record = load_gateway(self.paths)
            where = f" at {record.base_url} (pid {record.process.pid})" if record else ""
            raise GpuboxError(f"A gateway runs already{where}.", "`gpubox serve --stop` ends it.")
        try:
            await self._serve(sockets)
        finally:
            with contextlib.suppress(OSError):
                self.paths.gateway_record.unlink()
            os.close(lock)

    async def _serve(self, sockets: Sequence[socket.socket]) -> None:
        await asyncio.to_thread(self.ledger.sums, date.today())  # reads today's file before it matters
        last = await asyncio.to_thread(collections.deque, self.ledger.requests(date.today()), _FINISHED)
        self.finished.extendleft(last)  # what a gateway before this one has finished
        await self.servers.start()
        connection = partial(ClientConnection, self._limits, self._handle, self._refuse_broken)
        listeners = await listen(self.host, self.port, connection, sockets)
        record = GatewayRecord(own_identity(), self.host, self.port, self.token, self.started_at)
        try:
            try:
                save_gateway(self.paths, record)
            except OSError as error:
                raise GpuboxError(f"{self.paths.gateway_record} cannot be written: {error.strerror}.") from None
            up = tuple(server.profile for server in self.servers.running if server.ready)
            self.emit(GatewayListening(record.base_url, os.getpid(), self.keys.any, self.exposed, up))
            notify("READY=1")
            watching = asyncio.create_task(self._watch())
            try:
                await self._stopping.wait()
            finally:
                watching.cancel()
                await asyncio.gather(watching, return_exceptions=True)
        finally:
            notify("STOPPING=1")
            for listener in listeners:
                listener.close()
            await self._watchers.close()
            await self._finish_requests()
            await self.servers.close()
            await self.conversations.close()
            self.emit(GatewayStopped("The gateway has ended; the servers keep running."))

    def stop(self) -> None:
        """Ends the gateway once its running requests are done, at most CLOSE_SECONDS later; at once if called again."""
        if self._stopping.is_set():
            for connection in list(self._limits.connections):
                connection.abort()
        self._stopping.set()

    async def _finish_requests(self) -> None:
        deadline = time.monotonic() + CLOSE_SECONDS
        for request in list(self.requests.values()):
            if request.state == "waiting":
                self.servers.refuse(request.ticket, RequestRefused(503, "The gateway ends."))
        while self._limits.connections and time.monotonic() < deadline:
            for connection in list(self._limits.connections):
                connection.end_when_idle()
            await asyncio.sleep(0.05)
        for connection in list(self._limits.connections):
            connection.abort()
        while self.requests and time.monotonic() < deadline + 1.0:
            await asyncio.sleep(0.01)  # cancelled requests write their lines

    async def _watch(self) -> None:
        """Ends the answers of clients whose key was revoked, and forgets what ended servers held."""
        await asyncio.sleep(WARM_SECONDS)
        with contextlib.suppress(GpuboxError):
            await self.servers.operations.warm()
        while True:
            await asyncio.sleep(1.0)
            self.conversations.tidy(self.servers.running)
            self.keys.refresh()
            for request in list(self.requests.values()):
                if request.keyed and self.keys.is_revoked(request.ticket.client):
                    self._cut(request, RequestRefused(401, "The key of this client was revoked."))

    def cancel(self, number: int) -> bool:
        """Ends a request for the owner, also in the middle of its answer. Whether it was open."""
        if request := self.requests.get(number):
            self._cut(request, _CANCELLED)
        return request is not None

    def _cut(self, request: ClientRequest, refusal: RequestRefused) -> None:
        """Ends a request wherever it is: its task is cancelled, which closes its server's connection."""
        if request.line is None:  # else the whole answer is on its way
            request.refusal = refusal
            request.task.cancel()

    # -- one request ---------------------------------------------------------

    async def _handle(self, exchange: Exchange) -> None:
        task = asyncio.current_task()
        assert task is not None
        request = ClientRequest(Ticket(next(self._ids)), exchange, task, self.ledger.add)
        try:
            await self._answer(request)
        except RequestRefused as refusal:
            self._refuse(request, refusal)
        except asyncio.CancelledError:
            if request.refusal is None:
                raise
            task.uncancel()
            self._refuse(request, request.refusal)
        except Exception as error:  # a fault of the gateway is one client's, not everybody's
            self._refuse(request, RequestRefused(500, f"The gateway failed: {type(error).__name__}. Please report it."))
        finally:
            self._close(request)

    async def _answer(self, request: ClientRequest) -> None:
        self.keys.refresh()
        exchange = request.exchange
        request.route = routes.Route("", "", None, api=routes.api_of(exchange.request))  # if it cannot be read
        http, exchange.change = ollama.translated(exchange.request)
        exchange.request = http
        route = routes.route_of(http)
        request.route, request.model = route, route.model
        if route.path.startswith(routes.CONTROL) and route.own != routes.WATCH:
            if not secrets.compare_digest(routes.secret_of(http).encode(), self.token.encode()):
                raise RequestRefused(403, "Only gpubox itself may control the gateway.")
            return await self._own.control(exchange, route.own)
        if route.own == "health" or routes.is_preflight(http):  # neither comes with a key
            if not self.keys.any:
                self._check_page(http)
            exchange.page_may_read = True
            if route.own:
                return exchange.reply(200, b'{"status":"ok"}')
            return exchange.reply(200, b"", headers=routes.preflight_headers(http))
        self._identify(request, http)
        exchange.page_may_read = True
        if route.own == routes.WATCH:
            body = await self._watchers.answer(http, self.status())
            return exchange.reply(200, body, b"application/x-ndjson")
        del http  # its body goes as soon as it is sent on
        if route.own not in ("", "load"):
            return await self._own.answer(exchange, route, self._limits_of(request))
        return await self._pass_on(request)

    async def _pass_on(self, request: ClientRequest) -> None:
        """Has its profile answer; one that does not load leaves it to its fallback. Raises RequestRefused."""
        ticket, route, tried = request.ticket, request.route, set[str]()
        self.requests[ticket.id] = request
        if not route.model:
            routes.check_api(route.path)
        profile = await self.servers.profile_of(route.model)
        ticket.limits, ticket.takes_slot = self._check_limits(request, profile), takes_slot(route.path)
        while True:
            routes.check_slots(route.path, profile)
            request.answered_by(profile)
            if not profile.upstream:
                routes.check_api(route.path)
            try:
                return await self._ask_profile(request, profile)
            except RequestRefused as refusal:
                tried.add(profile.name)
                fallback = self.servers.profiles.get(profile.fallback)
                if not refusal.is_broken or route.own or fallback is None or fallback.name in tried:
                    raise
                self.servers.done(ticket)
                if request.exchange.status:  # too late for a header
                    request.exchange.write(f": {fallback.name} answers, because: {refusal.sentence}\n\n".encode())
                profile = fallback

    async def _ask_profile(self, request: ClientRequest, profile: Profile) -> None:
        if request.route.own == "load":
            if not profile.upstream:
                await self._wait_for_server(request, profile)
            request.exchange.reply(200, b'{"success":true}')
            return
        for may_repeat in (True, False):
            try:
                await self._ask_server(request, profile)
                break
            except UpstreamFailed as error:  # and no byte of its answer has gone out
                unseen = isinstance(error, NotConnected)
                has_body = bool(request.exchange.request.body)  # else it was too large to be kept
                if not (may_repeat and (unseen or (has_body and request.ticket.takes_slot))):
                    raise RequestRefused(502, f"{profile.name}: {error}.", is_broken=unseen) from None

    async def _ask_server(self, request: ClientRequest, profile: Profile) -> None:
        """Asks the profile's server once, as soon as it may. Raises UpstreamFailed and RequestRefused."""
        if profile.upstream and request.model and not request.exchange.change:
            request.exchange.change = ModelName(request.model)
        server = await self._wait_for_server(request, profile)
        key = self._upstream_key(profile) if profile.upstream else self.keys.box_key
        http, path, ticket = request.exchange.request, request.route.path, request.ticket
        alone = routes.has_own_slots(profile) and len(self.servers.queue.of(profile.name).running) == 1
        body = body_for(profile, path, request.model, http.body, keep_slot=alone)
        if not profile.upstream:
            head = read_prompt_head(path, http.header, body, ticket.client)
            await self.conversations.before(ticket.id, head, server, key, path, body)
        forwarding = request.forward(server.base_url, body, key)
        del http, body  # who waits for the answer does not hold it
        try:
            return await forwarding
        except UpstreamFailed:
            self.servers.lost(ticket, server)
            raise

    def _identify(self, request: ClientRequest, http: HttpRequest) -> None:
        """Finds the client's name. Raises RequestRefused if it may not ask."""
        if self.keys.any:
            client = self.keys.client_of(secret := routes.secret_of(http))
            if client is None and self.keys.problem:  # which names files of this machine
                raise RequestRefused(503, "The gateway cannot use its keys: `gpubox keys list` on the box says why.")
            if client is None:
                watches = request.route.own == routes.WATCH
                raise RequestRefused(401, self.keys.why_refused(secret, " --watch" if watches else ""))
            request.ticket.client, request.keyed = client, client != BOX
            self._check_watching(client, request.route.own == routes.WATCH)
        elif request.route.own == routes.WATCH:
            raise RequestRefused(401, f"Nobody watches this box without a key. {_WATCH_KEY}")
        else:
            self._check_page(http)
            agent = self.keys.client_of(routes.secret_of(http))
            request.ticket.client, request.keyed = agent or _client_name(http), agent is not None

    def _check_watching(self, client: str, watches: bool) -> None:
        """Who watches asks for nothing else. Raises RequestRefused."""
        if watches and client != BOX and not self.keys.limits_of(client).watch:
            raise RequestRefused(403, f"The key of {client} is for models, not for watching. {_WATCH_KEY}")
        if not watches and self.keys.limits_of(client).watch:
            raise RequestRefused(403, f"The key of {client} only watches this box: it can ask for no model.")

    def _check_page(self, http: HttpRequest) -> None:
        if refusal := routes.page_refusal(http, self._names):
            raise RequestRefused(403, sanitize_line(refusal))

    def _limits_of(self, request: ClientRequest) -> ClientLimits:
        return self.keys.limits_of(request.ticket.client) if request.keyed else UNLIMITED

    def _check_limits(self, request: ClientRequest, profile: Profile) -> ClientLimits:
        """What its key allows. Raises RequestRefused if that is not this request."""
        client = request.ticket.client
        limits = self._limits_of(request)
        if not limits.allows(profile.names):
            raise RequestRefused(403, f"The key of {client} is not for {profile.name}.")
        most = limits.tokens_per_day
        if most is not None and self.ledger.spent_tokens(client) >= most:
            now = datetime.now()
            midnight = datetime.combine(now.date() + timedelta(days=1), datetime.min.time())
            sentence = f"The {most:,} tokens of {client} for today are used up; at 0:00 there are new ones."
            raise RequestRefused(429, sentence, (midnight - now).total_seconds())
        return limits

    async def _wait_for_server(self, request: ClientRequest, profile: Profile) -> GatewayServer:
        # who cannot set a method cannot load a model: a link, an image, a crawler
        waiting = self.servers.ask(request.ticket, profile, may_load=request.exchange.request.method == "POST")
        request.state = "waiting"
        try:
            while not waiting.done():
                await asyncio.wait({waiting}, timeout=COMMENT_SECONDS)
                if not waiting.done() and request.route.stream:  # its client is told that somebody is here
                    if not request.exchange.status:
                        request.exchange.start(200, STREAM_HEADERS, chunked=True)
                    request.exchange.write(f": waiting for {profile.name}\n\n".encode())
            return waiting.result()
        finally:
            if waiting.cancelled() or not waiting.done() or waiting.exception():
                self.servers.done(request.ticket)
            request.state = "reading"

    def _upstream_key(self, profile: Profile) -> str | None:
        try:
            return api_key_for(self.paths, self.config, profile.upstream)
        except GpuboxError as error:
            raise RequestRefused(502, f"{profile.name}: {error.message}") from None

    def _refuse(self, request: ClientRequest, refusal: RequestRefused) -> None:
        request.error = refusal.sentence
        request.outcome = "cancelled" if refusal is _CANCELLED else "failed" if refusal.status >= 500 else "refused"
        if request.exchange.complete:
            return None
        if request.exchange.status:
            return request.cut(refusal.status, refusal.sentence)
        headers = routes.LOGIN if refusal.status == 401 else ()
        if refusal.retry_seconds is not None:
            headers = routes.retry_headers(refusal.retry_seconds, helps=not refusal.is_broken)
        body = routes.error_body(refusal.status, refusal.sentence, request.route.api)
        return request.exchange.reply(refusal.status, body, headers=headers)

    def _refuse_broken(self, exchange: Exchange, status: int, sentence: str) -> None:
        exchange.reply(status, routes.error_body(status, sentence, "openai"))

    def _close(self, request: ClientRequest) -> None:
        if request.outcome == "left" and request.observer and request.observer.is_over:
            request.outcome = "done"
        ticket, line = request.ticket, request.line or request.finished()
        self.requests.pop(ticket.id, None)
        watches = request.route.own == routes.WATCH
        own = watches or (request.outcome == "left" and request.exchange.complete)  # answered by the gateway itself
        if ticket.profile:
            if ticket.sent_at and not (own or request.route.stream) and request.outcome in ("left", "cancelled"):
                self.servers.left(ticket.profile)
            self.servers.done(ticket, _cost(line))
        self.conversations.after(ticket.id, line)
        if own or not ticket.client:
            return  # not a request to a model
        if request.line is None:
            self.ledger.add(line)
        self.emit(line)

    def _record(self, line: FinishedRequest) -> None:
        """A request that the gateway itself made."""
        self.ledger.add(line)
        self.emit(line)

    def emit(self, event: GatewayEvent) -> None:
        if isinstance(event, FinishedRequest):
            self.finished.appendleft(event)
        self.counters.add(event)
        self._emit(event)

    # -- what it knows -------------------------------------------------------

    @property
    def exposed(self) -> str:
        """Who else can reach it; empty for this machine only."""
        return "" if is_loopback(self.host) else "LAN, key" if self.keys.any else "LAN, no key"

    def status(self) -> GatewayStatus:
        self.keys.refresh()
        sums, waits = self.ledger.sums(date.today()), self.servers.queue.waits_for(time.monotonic())
        names = sorted({*(request.ticket.client for request in self.requests.values()), *sums, *self.keys.clients})
        return GatewayStatus(
            schema_version=SCHEMA,
            base_url=local_url(self.host, self.port),
            started_at=self.started_at,
            version=__version__,
            paused=self.servers.queue.paused,
            has_keys=self.keys.any,
            exposed=self.exposed,
            operations=self.servers.switches(),
            profiles=self.servers.statuses(),
            requests=tuple(each.live(waits.get(number)) for number, each in self.requests.items()),
            clients={name: sums.get(name, ClientSums()) for name in names},
            finished=tuple(self.finished),
            problems=tuple(filter(None, (self.keys.problem, self.ledger.problem))),
            kept_kv=self.conversations.sentences(),
        )


def _cost(line: FinishedRequest) -> float | None:
    """What the request costs its client, in generated tokens. None: the server did not say."""
    if line.generated_tokens is None and line.read_tokens is None:
        return None
    return (line.generated_tokens or 0) + READ_COST * (line.read_tokens or 0)


def _client_name(http: HttpRequest) -> str:
    """The product in ``User-Agent`` (RFC 9110, 10.1.5); else the address."""
    product = sanitize_line(http.header("user-agent")).partition("/")[0].partition(" ")[0]
    return product[:40] or http.peer or "unknown"
