"""The HTTP client of one server. Endpoints and fields: llama.cpp build 11434; a missing field is ``None``."""

from __future__ import annotations

import asyncio
import contextlib
import importlib
import sys
import time
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from types import ModuleType
from typing import TYPE_CHECKING, Any

from gpubox.address import KEY_HINT
from gpubox.concurrency import run_in_thread
from gpubox.errors import ExitCode, GpuboxError, UsageError
from gpubox.server.http_get import ConnectionPool, NoResponse, ResponseTooLarge
from gpubox.server.responses import (
    DEFERRED,
    PROCESSING,
    Health,
    Slot,
    json_count,
    json_integer,
    json_object,
    read_slots,
)
from gpubox.storage import read_json

if TYPE_CHECKING:
    import httpx

    from gpubox.server.chunks import Chunk, Timings

CHAT_PATH = "/v1/chat/completions"
MAX_RESPONSE_BYTES = 8 * 1024 * 1024
"""The longest answer that is read. 256 slots need a tenth of it; a longer answer is broken, or not a llama-server's."""
_GAUGES = (f"llamacpp:{DEFERRED}", f"llamacpp:{PROCESSING}")


@dataclass(frozen=True, slots=True)
class Reply:
    """One whole HTTP answer."""

    status: int
    body: bytes

    @property
    def text(self) -> str:
        """The body as text; invalid UTF-8 is replaced."""
        return self.body.decode("utf-8", errors="replace")

    @property
    def object(self) -> dict[str, Any]:
        """The body as a JSON object; empty if it is something else."""
        return json_object(self.json())

    def json(self) -> Any:
        """The body as JSON; ``None`` if it is something else."""
        try:
            return read_json(self.body)
        except ValueError:
            return None

    def error(self) -> str:
        """What the server reported, as one short line."""
        error = self.object.get("error")
        if isinstance(error, dict) and isinstance(error.get("message"), str):
            return f"HTTP {self.status}: {error['message'][:200]}"
        return f"HTTP {self.status} with a body that is not llama-server's ({self.text[:60]!r})"


@dataclass(frozen=True, slots=True)
class ReadinessProbe:
    """A one-token request that was answered: how long it took, and its prompt and generated tokens."""

    seconds: float
    tokens: tuple[int, int]


@dataclass(frozen=True, slots=True)
class SlotFile:
    """What a server wrote of a slot into a file, or read from it."""

    tokens: int
    size_bytes: int


@dataclass(frozen=True, slots=True)
class ChatCompletion:
    """One whole chat answer, and the server's own timings of it."""

    text: str
    finish_reason: str
    model: str
    timings: Timings | None


def import_httpx() -> ModuleType:
    """httpx without its own command line, which imports rich, a third of the time; httpx tolerates that this fails."""
    sys.modules.setdefault("httpx._main", None)  # type: ignore[arg-type]
    return importlib.import_module("httpx")


class LlamaClient:
    """All HTTP to one llama-server or other OpenAI-compatible server, over kept connections."""

    def __init__(
        self, base_url: str, key: str | None = None, *, timeout: float = 5.0, dialect: str = "", model: str = ""
    ) -> None:
        """``timeout``: seconds for each read. ``dialect``, ``model``: set for a server that is not a llama-server.

        Raises UsageError if ``base_url`` is not an http address.
        """
        headers = {"Accept-Encoding": "identity"}  # so that the received bytes are the sent bytes
        headers |= {"Authorization": f"Bearer {key}"} if key else {}
        try:
            self._pool = ConnectionPool(base_url, headers, timeout)
        except ValueError as error:
            raise UsageError(
                f"{base_url!r} is not the address of a server: {error}.", "Write http://HOST:PORT."
            ) from None
        self._headers, self._timeout = headers, timeout
        self._httpx_client: httpx.AsyncClient | None = None
        self.base_url = base_url
        self.dialect, self.model = dialect, model
        self.denied = False
        """Whether the server refused a request because of a missing or wrong API key."""
        self.problem = ""
        """Why an answer was not read, in a sentence; empty if all were."""

    def _httpx(self) -> httpx.AsyncClient:
        """The connections for POST and streams. GET works without httpx, because importing it is slow."""
        if self._httpx_client is None:
            httpx = import_httpx()
            secure = self.base_url.startswith("https:")  # loading the certificate store takes 20 ms
            self._httpx_client = httpx.AsyncClient(
                base_url=self.base_url,
                headers=self._headers,
                timeout=self._timeout,
                trust_env=False,  # a proxy of the environment must not see what goes to the box
                verify=secure,
            )
        return self._httpx_client

    async def close(self) -> None:
        """Closes all connections."""
        self._pool.close()
        if self._httpx_client:
            await self._httpx_client.aclose()

    # -- GET: nothing here raises, except ``get_json`` -----------------------------------------------

    async def health(self) -> Health:
        """Whether the server is up."""
        try:
            reply = await self._fetch("/health")
        except ResponseTooLarge as error:
            return Health("error", error.sentence)
        except NoResponse as error:
            return Health("unreachable", error.words)
        if reply.status == 200:
            # Other servers answer with nothing, or with a plain word.
            broken = reply.body.lstrip()[:1] in (b"<", b"[", b"{") and not isinstance(reply.json(), dict)
            return Health("error", "an HTML page or broken JSON") if broken else Health("ok")
        return Health("loading") if reply.status == 503 else Health("error", f"HTTP {reply.status}")

    async def slots(self) -> list[Slot] | None:
        """The slots; ``None`` if the server does not report them (``--no-slots``, an old build, an API key)."""
        reply = await self._ask("/slots")
        return read_slots(reply.json()) if reply else None

    async def props(self) -> dict[str, Any]:
        """The answer of ``/props``; empty if there is none."""
        return await self.fetch_object("/props")

    async def counters(self) -> dict[str, float] | None:
        """The counters of ``/metrics`` without their prefix; ``None`` if ``--metrics`` is off or a key is missing.

        A scrape resets the gauges, so two observers would disturb each other (build 11434): only DEFERRED and
        PROCESSING, which are current values, are included. A labelled counter keeps its label: ``name{position="0"}``.
        """
        reply = await self._ask("/metrics")
        if reply is None:
            return None
        counters = {}
        for line in reply.text.splitlines()[:1000]:
            name, _, value = line.rpartition(" ")
            if name.startswith("llamacpp:") and ("_total" in name or name in _GAUGES):
                with contextlib.suppress(ValueError):
                    counters[name.removeprefix("llamacpp:")] = float(value)
        return counters

    async def fetch_object(self, path: str) -> dict[str, Any]:
        """The JSON object that a GET answers with; empty if it is something else, or nothing answers."""
        reply = await self._ask(path)
        return reply.object if reply else {}

    async def fetch_text(self, path: str) -> str:
        """The text that a GET answers with; empty if nothing answers."""
        reply = await self._ask(path)
        return reply.text if reply else ""

    async def get_json(self, path: str) -> Any:
        """The JSON that a GET answers with; ``None`` for any other answer.

        Raises GpuboxError if nothing answers, or if the server needs an API key.
        """
        try:
            reply = await self._fetch(path)
        except ResponseTooLarge:
            return None
        except NoResponse as error:
            raise GpuboxError(f"{self.base_url} does not answer ({error.words}).", code=ExitCode.NOT_RUNNING) from None
        if reply.status == 401:
            raise GpuboxError(f"{self.base_url} needs an API key.", KEY_HINT, code=ExitCode.UNHEALTHY)
        return reply.json() if reply.status == 200 else None

    async def _ask(self, path: str) -> Reply | None:
        """The answer if its status is 200, else ``None`` and the reason in ``denied`` or ``problem``."""
        try:
            reply = await self._fetch(path)
        except ResponseTooLarge as error:
            self.problem = error.sentence
            return None
        except NoResponse:
            return None
        self.denied = self.denied or reply.status == 401
        return reply if reply.status == 200 else None

    async def _fetch(self, path: str) -> Reply:
        try:
            # http.client limits each read, not the whole answer: one that never ends must not block a command.
            async with asyncio.timeout(2 * self._timeout):
                return Reply(*await run_in_thread(self._pool.get, path, MAX_RESPONSE_BYTES))
        except TimeoutError:
            raise NoResponse("ReadTimeout") from None

    # -- POST: everything here raises GpuboxError ----------------------------------------------------

    async def probe_readiness(self, *, embeddings: bool, timeout: float) -> ReadinessProbe:
        """Has the server generate one token (or one embedding). Raises GpuboxError for any other answer."""
        path, field = ("/v1/embeddings", "data") if embeddings else ("/completion", "content")
        body = {"input": "hi"} if embeddings else {"prompt": "hi", "n_predict": 1, "cache_prompt": False}
        began = time.monotonic()
        values = await self._post(path, body, "answer a one-token request", field, timeout=timeout)
        timings, usage = json_object(values.get("timings")), json_object(values.get("usage"))
        # an embedding has no timings
        prompt_tokens = json_integer(timings.get("prompt_n")) or json_integer(usage.get("prompt_tokens")) or 0
        return ReadinessProbe(time.monotonic() - began, (prompt_tokens, json_integer(timings.get("predicted_n")) or 0))

    async def chat(self, messages: list[dict[str, str]], *, max_tokens: int, timeout: float = 600.0) -> ChatCompletion:
        """One chat answer, not streamed. Raises GpuboxError if the server refuses or goes away."""
        from gpubox.server.chunks import chunk_of

        body = {"messages": messages, "max_tokens": max_tokens}
        values = await self._post(CHAT_PATH, body, "answer", "choices", timeout=timeout)
        choices = values["choices"]
        choice = json_object(choices[0]) if isinstance(choices, list) and choices else {}
        if not isinstance(choice.get("message"), dict):
            raise GpuboxError("The server answers without a message.", code=ExitCode.UNHEALTHY)
        chunk = chunk_of(values)
        return ChatCompletion(chunk.text or chunk.reasoning, chunk.finish_reason, chunk.model, chunk.timings)

    async def tokenize(self, text: str) -> list[int]:
        """The tokens of ``text``, without the one that begins a prompt. Raises GpuboxError."""
        body = {"content": text, "add_special": False}
        tokens = (await self._post("/tokenize", body, "count tokens", "tokens"))["tokens"]
        return [token for token in tokens if json_integer(token) is not None] if isinstance(tokens, list) else []

    async def detokenize(self, tokens: list[int]) -> str:
        """The text of ``tokens``. Raises GpuboxError."""
        return str((await self._post("/detokenize", {"tokens": tokens}, "count tokens", "content"))["content"])

    async def apply_template(self, messages: list[dict[str, str]], template_kwargs: Mapping[str, Any]) -> str:
        """The prompt that the model's chat template makes of ``messages``. Raises GpuboxError."""
        body = {"messages": messages, "chat_template_kwargs": dict(template_kwargs)}
        return str((await self._post("/apply-template", body, "apply its chat template", "prompt"))["prompt"])

    async def save_slot(self, index: int, filename: str, *, timeout: float) -> SlotFile:
        """Has the server write an idle slot into its --slot-save-path. ``filename`` is no path. Raises GpuboxError."""
        values = await self._slot_action(index, "save", filename, timeout)
        return SlotFile(json_count(values.get("n_saved")) or 0, json_count(values.get("n_written")) or 0)

    async def restore_slot(self, index: int, filename: str, *, timeout: float) -> SlotFile:
        """Has the server read ``filename`` into a slot, whose prompt it replaces. Raises GpuboxError."""
        values = await self._slot_action(index, "restore", filename, timeout)
        return SlotFile(json_count(values.get("n_restored")) or 0, json_count(values.get("n_read")) or 0)

    async def erase_slot(self, index: int, *, timeout: float) -> None:
        """Has the server forget the prompt of an idle slot. A server that refuses keeps it."""
        with contextlib.suppress(GpuboxError):
            await self._slot_action(index, "erase", "", timeout)

    async def read_prompt(self, tokens: list[int], *, index: int, timeout: float) -> None:
        """Has a slot hold exactly ``tokens``, and no answer to them. Raises GpuboxError."""
        body = {"prompt": tokens, "n_predict": 0, "id_slot": index, "cache_prompt": True}
        await self._post("/completion", body, "read a prompt", "content", timeout=timeout)

    async def _slot_action(self, index: int, action: str, filename: str, timeout: float) -> dict[str, Any]:
        body = {"filename": filename} if filename else {}
        path, task = f"/slots/{index}?action={action}", f"{action} slot {index}"
        return await self._post(path, body, task, "filename" if filename else "", timeout=timeout)

    def stream_completion(
        self, body: Mapping[str, Any], *, path: str = CHAT_PATH, silence_seconds: float = 300.0
    ) -> AbstractAsyncContextManager[AsyncGenerator[Chunk, None]]:
        """Streams one completion: see ``stream.open_stream``."""
        from gpubox.server.stream import open_stream

        return open_stream(self._httpx(), body, path=path, silence_seconds=silence_seconds)

    async def _post(
        self, path: str, body: Mapping[str, Any], task: str, field: str = "", *, timeout: float = 60.0
    ) -> dict[str, Any]:
        """The JSON object that a POST answers with; it has ``field``. ``task`` is for the error message."""
        try:
            reply = await self._send(path, body, timeout)
        except ResponseTooLarge as error:
            raise GpuboxError(f"{error.sentence}.", code=ExitCode.UNHEALTHY) from None
        except NoResponse as error:
            code = ExitCode.FAILED if "Timeout" in error.kind else ExitCode.NOT_RUNNING
            raise GpuboxError(f"The server does not {task} ({error.words}).", code=code) from None
        if reply.status != 200 or (field and field not in reply.object):
            raise GpuboxError(f"The server does not {task}: {reply.error()}.")
        return reply.object

    async def _send(self, path: str, body: Mapping[str, Any], timeout: float) -> Reply:
        client = self._httpx()
        import httpx

        try:
            async with client.stream("POST", path, json=body, timeout=timeout) as response:
                parts, size = [], 0
                async for part in response.aiter_bytes():
                    size += len(part)
                    if size > MAX_RESPONSE_BYTES:  # leaving the block closes the connection
                        raise ResponseTooLarge(path, MAX_RESPONSE_BYTES)
                    parts.append(part)
                return Reply(response.status_code, b"".join(parts))
        except httpx.HTTPError as error:
            raise NoResponse(type(error).__name__) from None


@asynccontextmanager
async def connect(base_url: str, key: str | None = None, *, timeout: float = 5.0) -> AsyncIterator[LlamaClient]:
    """A LlamaClient that is closed at the end of the block."""
    client = LlamaClient(base_url, key, timeout=timeout)
    try:
        yield client
    finally:
        await client.close()
