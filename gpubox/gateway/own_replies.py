"""What the gateway answers by itself: the list of models, its metrics, and its control endpoints."""

from __future__ import annotations

import asyncio
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from subprocess import DEVNULL, PIPE
from typing import TYPE_CHECKING, Any

import msgspec

from gpubox.children import own_program
from gpubox.concurrency import run_in_thread
from gpubox.gateway import ollama, routes
from gpubox.gateway.client_keys import ClientLimits
from gpubox.gateway.gateway_status import ProfileStatus
from gpubox.gateway.http_connection import Exchange, RequestRefused
from gpubox.gateway.metrics import CONTENT_TYPE, metrics_text
from gpubox.gateway.offered_models import OfferedFacts, OfferedModel, offered_facts
from gpubox.interchange.client_settings import profile_flag
from gpubox.paths import Paths
from gpubox.profiles.profile import Profile
from gpubox.storage import read_json

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
                self._latest = await run_in_thread(self._read)
                self._read_at = time.monotonic()
            return self._latest

    def _read(self) -> Mapping[str, Any] | None:
        try:
            done = subprocess.run(
                self._words, stdin=DEVNULL, stdout=PIPE, stderr=DEVNULL, cwd="/", timeout=_TIMEOUT_SECONDS, check=False
            )
            values = read_json(done.stdout)
        except (OSError, ValueError, subprocess.TimeoutExpired):
            return None
        return values if isinstance(values, dict) and "server" in values else None


_STATUS_VALUES = {"up": "loaded", "upstream": "loaded", "starting": "loading", "down": "unloaded", "broken": "failed"}
"""The words of llama-server's router for the state of a model (GET /models, build 11434)."""
_META = ("n_ctx", "n_ctx_train", "n_params", "size")


class OwnReplies:
    """Answers from what the gateway knows."""

    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway
        self._machine = MachineReader(gateway.paths)
        self._known: dict[str, tuple[Profile | None, OfferedFacts]] = {}
        self._created = datetime.fromisoformat(gateway.started_at)

    async def answer(self, exchange: Exchange, route: routes.Route, limits: ClientLimits) -> None:
        """All of ``route.own`` but ``load``. Raises RequestRefused if there is no such model, or not for its key."""
        if route.own == "metrics":
            snapshot = await self._machine.read()
            text = metrics_text(self._gateway.status(), self._gateway.counters, snapshot)
            exchange.reply(200, text.encode(), CONTENT_TYPE.encode())
        elif route.own == "version":
            exchange.reply(200, b'{"version":"%b"}' % ollama.VERSION.encode())
        elif route.own == "unload":
            servers = self._gateway.servers
            named = (await servers.profile_of(route.model),) if route.model is not None else ()
            loaded = (profile for server in servers.running if (profile := servers.profiles.get(server.profile)))
            if closed := [profile.name for profile in named or loaded if not limits.allows(profile.names)]:
                raise RequestRefused(403, f"The key is not for {', '.join(closed)}.")
            await servers.unload({profile.name for profile in named})
            exchange.reply(200, b'{"success":true}')
        elif route.own in ("model", "show"):
            name = (await self._gateway.servers.profile_of(route.model)).name
            shown = ollama.shown if route.own == "show" else _model
            models = {model.id: model for model in await self._models(name)}
            exchange.reply(200, msgspec.json.encode(shown(models.get(route.model or name, models[name]))))
        else:
            exchange.reply(200, msgspec.json.encode(_LISTS[route.own](await self._models())))

    async def _models(self, only: str = "") -> list[OfferedModel]:
        """All models, or those of one profile; each persona is one, too."""
        servers = self._gateway.servers
        statuses = [status for status in servers.statuses() if only in ("", status.name)]
        models = []
        for status in statuses or [ProfileStatus(only, "down")]:
            profile = servers.profiles.get(status.name) or Profile(status.name)
            facts = await self._facts(profile)
            facts = replace(facts, context=status.context or facts.context)
            names = (profile.name, *(name for name in profile.personas if name != profile.name))
            models += [OfferedModel(name, profile, status, facts, self._created) for name in names]
        return models

    async def _facts(self, profile: Profile) -> OfferedFacts:
        """From the files, read once."""
        known, facts = self._known.get(profile.name, (None, OfferedFacts()))
        if known is not profile or facts.size is None:
            facts = await run_in_thread(offered_facts, profile, self._gateway.paths, self._gateway.config)
            self._known[profile.name] = (profile, facts)
        return facts

    async def control(self, exchange: Exchange, what: str) -> None:
        """For gpubox itself: status, conversations/NAME and recall/NAME are asked; pause, resume, stop and cancel/ID
        are posted.
        """
        gateway, (verb, _, name) = self._gateway, what.partition("/")
        answer: object = {}
        match exchange.request.method, verb, name:
            case "GET", "status", "":
                answer = gateway.status()
            case "GET", "conversations", _:  # a gpubox that is about to stop a server
                answer = await gateway.conversations.told(name)
            case "GET", "recall", _:
                answer = await gateway.conversations.recall(name)
            case "POST", "pause" | "resume", "":
                gateway.servers.pause(verb == "pause")
                answer = {"paused": gateway.servers.queue.paused}
            case "POST", "cancel", _:
                if not (name.isdecimal() and name.isascii() and gateway.cancel(int(name[:18]))):
                    raise RequestRefused(404, f"No request has the number {name[:18]} now.")
            case "POST", "stop", "":
                exchange.reply(200, b"{}")
                return gateway.stop()
            case _:
                raise RequestRefused(404, "There is no such endpoint.")
        return exchange.reply(200, msgspec.json.encode(answer))


def _model(model: OfferedModel) -> dict[str, object]:
    """With the fields that OpenAI's and Anthropic's clients read, llama-server's own, and those of OpenRouter."""
    facts, tags = model.facts, profile_flag(model.profile, "tags")
    meta = (facts.context, facts.trained_context, facts.parameters, facts.size)
    return {
        "id": model.id,
        "object": "model",
        "type": "model",
        "display_name": model.profile.summary,
        "created": int(model.created.timestamp()),
        "created_at": model.created.isoformat(timespec="seconds"),
        "owned_by": "gpubox",
        "aliases": [model.profile.name, *model.profile.aliases],
        "tags": tags.split(",") if isinstance(tags, str) else [],
        "status": {"value": _STATUS_VALUES[model.status.state]},
        "architecture": {"input_modalities": facts.inputs, "output_modalities": [facts.output]},
        "context_length": facts.context,
        "meta": {name: value for name, value in zip(_META, meta, strict=True) if value is not None},
    }


def _listed(models: Sequence[OfferedModel]) -> dict[str, object]:
    ends = {"first_id": models[0].id, "last_id": models[-1].id} if models else {}
    return {"object": "list", "data": [_model(model) for model in models], "has_more": False, **ends}


def _running(models: Sequence[OfferedModel]) -> dict[str, object]:
    """As llama-swap's GET /running."""
    return {
        "running": [
            {
                "model": model.id, "state": "ready" if model.status.state == "up" else "starting",
                "proxy": model.status.base_url, "ttl": model.profile.idle_seconds, "name": model.profile.title,
                "description": model.profile.description,
            }
            for model in models if model.loaded and model.id == model.profile.name
        ]
    }  # fmt: skip


_LISTS: dict[str, Callable[[Sequence[OfferedModel]], dict[str, object]]] = {
    "models": _listed, "running": _running, "tags": ollama.listed, "ps": ollama.loaded
}  # fmt: skip
