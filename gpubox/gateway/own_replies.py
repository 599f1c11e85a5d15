"""What the gateway answers by itself: the list of models, its metrics, and its control endpoints."""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
from asyncio.subprocess import DEVNULL, PIPE
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import msgspec

from gpubox.children import own_program
from gpubox.gateway import routes
from gpubox.gateway.gateway_status import ProfileStatus
from gpubox.gateway.http_connection import Exchange, RequestRefused
from gpubox.gateway.metrics import CONTENT_TYPE, metrics_text
from gpubox.paths import Paths
from gpubox.storage import DECODE_ERRORS, read_json

if TYPE_CHECKING:
    from gpubox.gateway.gateway import Gateway


FRESH_SECONDS = 4.0
"""So long a reading serves all who ask: whoever scrapes every second must not cost a core."""
_TIMEOUT_SECONDS = 10.0


class MachineReader:
    """Reads it at most once in FRESH_SECONDS."""

    def __init__(self, paths: Paths) -> None:
        self._words = own_program("gpubox.cli.entry", *paths.options, "status", "--json")
        self._reading = asyncio.Lock()
        self._latest: Mapping[str, Any] | None = None
        self._read_at = -FRESH_SECONDS

    async def read(self) -> Mapping[str, Any] | None:
        """The object; None if it could not be read in time."""
        async with self._reading:
            if time.monotonic() - self._read_at >= FRESH_SECONDS:
                self._latest = await self._read()
                self._read_at = time.monotonic()
            return self._latest

    async def _read(self) -> Mapping[str, Any] | None:
        try:
            child = await asyncio.create_subprocess_exec(
                *self._words, stdin=DEVNULL, stdout=PIPE, stderr=DEVNULL, cwd="/"
            )
        except OSError:
            return None
        try:
            async with asyncio.timeout(_TIMEOUT_SECONDS):
                output, _ = await child.communicate()
            values = read_json(output)
        except (TimeoutError, ValueError):
            return None
        finally:
            if child.returncode is None:
                with contextlib.suppress(ProcessLookupError):
                    child.kill()
                await child.wait()
        return values if isinstance(values, dict) and "server" in values else None


_STATUS_VALUES = {"up": "loaded", "upstream": "loaded", "starting": "loading", "down": "unloaded", "broken": "failed"}
"""The words of llama-server's router for the state of a model (GET /models, build 11434)."""


class _Cancel(msgspec.Struct):
    """The body of POST /gpubox/cancel."""

    id: int


class OwnReplies:
    """Answers from what the gateway knows."""

    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway
        self._machine = MachineReader(gateway.paths)

    async def answer(self, exchange: Exchange, route: routes.Route) -> None:
        """``models``, ``model`` or ``metrics``. Raises ProfileUnavailable if there is no such model."""
        if route.own == "models":
            statuses, created = self._gateway.servers.statuses(), self._created
            exchange.reply(200, routes.models_body([_model(profile, created) for profile in statuses]))
        elif route.own == "model":
            name = (await self._gateway.servers.profile_of(route.model)).name
            listed = {status.name: status for status in self._gateway.servers.statuses()}
            status = listed.get(name, ProfileStatus(name, "down"))
            exchange.reply(200, json.dumps(_model(status, self._created)).encode())
        else:
            snapshot = await self._machine.read()
            text = metrics_text(self._gateway.status(), self._gateway.counters, snapshot)
            exchange.reply(200, text.encode(), CONTENT_TYPE.encode())

    @property
    def _created(self) -> datetime:
        return datetime.fromisoformat(self._gateway.started_at).astimezone(UTC)

    async def control(self, exchange: Exchange, what: str) -> None:
        """status | pause | resume | cancel | stop, for gpubox itself."""
        servers = self._gateway.servers
        method = exchange.request.method
        if what == "status" and method == "GET":
            exchange.reply(200, msgspec.json.encode(self._gateway.status()))
            return
        if method != "POST" or what not in ("pause", "resume", "cancel", "stop"):
            raise RequestRefused(404, "There is no such endpoint.")
        if what == "cancel":
            try:
                number = msgspec.json.decode(exchange.request.body, type=_Cancel).id
            except DECODE_ERRORS:
                raise RequestRefused(400, 'The body is not {"id": N}.') from None
            if not self._gateway.cancel(number):
                raise RequestRefused(404, f"No request has the number {number} now.")
            exchange.reply(200, b"{}")
            return
        if what == "stop":
            exchange.close_after()
            exchange.reply(200, b"{}")
            self._gateway.stop()
            return
        servers.pause(what == "pause")
        exchange.reply(200, msgspec.json.encode({"paused": servers.queue.paused}))


def _model(profile: ProfileStatus, created: datetime) -> dict[str, object]:
    return {
        "id": profile.name,
        "object": "model",
        "type": "model",
        "display_name": profile.name,
        "created": int(created.timestamp()),
        "created_at": created.isoformat(timespec="seconds"),
        "owned_by": "gpubox",
        "aliases": list(profile.aliases),
        "status": {"value": _STATUS_VALUES[profile.state]},
    }
