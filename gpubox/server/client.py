"""The HTTP client of one llama-server. Endpoints and fields as of build 11434; a missing field is ``None``."""

from __future__ import annotations

import asyncio
import contextlib
import json
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from gpubox.errors import ExitCode, GpuboxError, UsageError
from gpubox.server.http_get import ConnectionPool, NoResponse, ResponseTooLarge, ServerAddress
from gpubox.server.responses import DEFERRED, PROCESSING, Health, Slot
from gpubox.threads import run_in_thread

if TYPE_CHECKING:
    import httpx

MAX_RESPONSE_BYTES = 8 * 1024 * 1024
"""The longest answer that is read: 256 slots are a tenth of it. What sends more is no llama-server, or is broken."""


_GAUGES = (f"llamacpp:{DEFERRED}", f"llamacpp:{PROCESSING}")


@dataclass(frozen=True, slots=True)
class Reply:
    """One whole answer."""

    status: int
    body: bytes

    @property
    def text(self) -> str:
        """The body as text; what is no UTF-8 is shown as such."""
        return self.body.decode("utf-8", errors="replace")

    @property
    def table(self) -> dict[str, Any]:
        """The body as a JSON object; empty where it is none."""
        values = self.json()
        return values if isinstance(values, dict) else {}

    def json(self) -> Any:
        """The body as JSON; ``None`` where it is none."""
        try:
            return json.loads(self.body)
        except (ValueError, RecursionError):
            return None


@dataclass(frozen=True, slots=True)
class ReadinessProbe:
    """One proven answer: how long it took, and its prompt and generated tokens."""

    seconds: float
    tokens: tuple[int, int]


@dataclass(frozen=True, slots=True)
class ChatCompletion:
    """One whole chat answer and the server's own timings of it."""

    text: str
    finish_reason: str
    model: str
    prompt_tokens: int | None
    cached_tokens: int | None
    generated_tokens: int | None
    pp_tokens_per_second: float | None
    tg_tokens_per_second: float | None
    prompt_seconds: float | None
    generation_seconds: float | None


class LlamaClient:
    """Asks one llama-server over one keep-alive connection pool. Raises UsageError where ``base_url`` is none."""

    def __init__(
        self, base_url: str, key: str | None = None, *, timeout: float = 5.0, dialect: str = "", model: str = ""
    ) -> None:
        """``dialect`` and ``model``: of a server that is no llama-server; requests name the model there."""
        headers = {"Accept-Encoding": "identity"}  # so that what is counted is what is sent
        headers |= {"Authorization": f"Bearer {key}"} if key else {}
        try:
            self._getter = ConnectionPool(ServerAddress(base_url), headers, timeout)
        except ValueError as error:
            raise UsageError(
                f"{base_url!r} is not the address of a server: {error}.", "Write http://HOST:PORT."
            ) from None
        self._headers, self._timeout = headers, timeout
        self._http: httpx.AsyncClient | None = None
        self.base_url = base_url
        self.dialect, self.model = dialect, model
        self._limit = 2 * timeout
        self.denied = False
        """Whether it refused a request for want of the right API key."""
        self.problem = ""
        """Why an answer was left unread, in a sentence; empty while none was."""

    @property
    def http(self) -> httpx.AsyncClient:
        """Its connections, for ``server.stream`` and whatever else is no GET; httpx is imported for them alone."""
        if self._http is None:
            # httpx's own command line drags in rich: a third of its import time.
            # httpx does without when the import fails, as it does where its `cli` extra is not installed.
            sys.modules.setdefault("httpx._main", None)  # type: ignore[arg-type]
            import httpx

            # trust_env=False: a proxy in the environment must never see what goes to the box.
            secure = self.base_url.startswith("https:")  # the certificate store costs 20 ms nobody needs on http
            self._http = httpx.AsyncClient(
                base_url=self.base_url, headers=self._headers, timeout=self._timeout, trust_env=False, verify=secure
            )
        return self._http

    async def close(self) -> None:
        """Closes its connections."""
        self._getter.close()
        if self._http:
            await self._http.aclose()

    async def health(self) -> Health:
        """Whether it is up. Never raises: a server that cannot be asked is a fact, not an error."""
        try:
            reply = await self._fetch("/health")
        except ResponseTooLarge as error:
            return Health("error", error.sentence)
        except NoResponse as error:
            return Health("unreachable", error.kind)
        except TimeoutError:
            return Health("unreachable", "ReadTimeout")
        if reply.status == 200:
            # Other servers that are well say nothing, or a plain word.
            odd = reply.body.lstrip()[:1] in (b"<", b"[", b"{") and not isinstance(reply.json(), dict)
            return Health("error", "a page or broken JSON") if odd else Health("ok")
        if reply.status == 503:
            return Health("loading")
        return Health("error", f"HTTP {reply.status}")

    async def slots(self) -> list[Slot] | None:
        """The slots, or ``None`` where the server will not tell (``--no-slots``, an old build, a key)."""
        items = await self._get("/slots")
        if not isinstance(items, list):
            return None
        return [_slot(item) for item in items if isinstance(item, dict) and "is_processing" in item]

    async def props(self) -> dict[str, Any] | None:
        """``/props`` as it stands, or ``None``."""
        values = await self._get("/props")
        return values if isinstance(values, dict) else None

    async def counters(self) -> dict[str, float] | None:
        """The counters of ``/metrics`` without their prefix, or ``None`` (``--metrics`` is off, a key is missing).

        Gauges are left out: each scrape resets them, so that two watchers rob each other (build 11434); but for
        DEFERRED and PROCESSING, which are of this instant. A labelled counter keeps its label:
        ``name{position="0"}``.
        """
        reply = await self._ask("/metrics")
        if reply is None:
            return None
        found = {}
        for line in reply.text.splitlines()[:1000]:
            name, _, value = line.rpartition(" ")
            if name.startswith("llamacpp:") and ("_total" in name or name in _GAUGES):
                with contextlib.suppress(ValueError):
                    found[name.removeprefix("llamacpp:")] = float(value)
        return found

    async def fetch_object(self, path: str) -> dict[str, Any]:
        """What a GET answers as a JSON object; empty where it is none, or nothing answers. Never raises."""
        reply = await self._ask(path)
        return reply.table if reply else {}

    async def fetch_text(self, path: str) -> str:
        """As ``fetch_object``, as text."""
        reply = await self._ask(path)
        return reply.text if reply else ""

    async def prove(self, *, embeddings: bool, timeout: float) -> ReadinessProbe:
        """Has the server make one token (or one embedding). Returns the seconds and tokens it took.

        Raises GpuboxError with the server's words when it answers anything else.
        """
        path = "/v1/embeddings" if embeddings else "/completion"
        body = {"input": "hi"} if embeddings else {"prompt": "hi", "n_predict": 1, "cache_prompt": False}
        began = time.monotonic()
        try:
            reply = await self._post(path, body, timeout)
        except ResponseTooLarge as error:
            raise GpuboxError(f"{error}.", code=ExitCode.UNHEALTHY) from None
        except NoResponse as error:
            raise GpuboxError(f"It does not answer a one-token request ({error}).", code=ExitCode.UNHEALTHY) from None
        seconds, values = time.monotonic() - began, reply.table
        proven = "data" in values if embeddings else "content" in values
        if reply.status != 200 or not proven:
            raise GpuboxError(f"It answers a one-token request with: {error_text(reply)}.", code=ExitCode.UNHEALTHY)
        timings = values.get("timings")
        timings = timings if isinstance(timings, dict) else {}
        usage = values.get("usage")
        usage = usage if isinstance(usage, dict) else {}  # an embedding has no timings
        read = _whole(timings.get("prompt_n")) or _whole(usage.get("prompt_tokens")) or 0
        counts = (read, _whole(timings.get("predicted_n")) or 0)
        return ReadinessProbe(seconds, counts)

    async def chat(self, messages: list[dict[str, str]], *, max_tokens: int, timeout: float = 600.0) -> ChatCompletion:
        """One chat answer, not streamed. Raises GpuboxError when the server refuses or leaves."""
        body = {"messages": messages, "max_tokens": max_tokens}
        try:
            reply = await self._post("/v1/chat/completions", body, timeout)
        except ResponseTooLarge as error:
            raise GpuboxError(f"{error}.", code=ExitCode.UNHEALTHY) from None
        except NoResponse as error:
            raise GpuboxError(f"{self.base_url} does not answer ({error}).", code=ExitCode.NOT_RUNNING) from None
        values = reply.table
        try:
            choice = values["choices"][0]
            message = choice["message"]
            if not isinstance(message, dict):
                raise TypeError
        except (KeyError, IndexError, TypeError):
            raise GpuboxError(f"{self.base_url} answered: {error_text(reply)}.", code=ExitCode.UNHEALTHY) from None
        timings = values.get("timings")
        timings = timings if isinstance(timings, dict) else {}
        return ChatCompletion(
            text=str(message.get("content") or message.get("reasoning_content") or ""),
            finish_reason=str(choice.get("finish_reason") or ""),
            model=str(values.get("model", "")),
            prompt_tokens=timings.get("prompt_n"),
            cached_tokens=timings.get("cache_n"),
            generated_tokens=timings.get("predicted_n"),
            pp_tokens_per_second=timings.get("prompt_per_second"),
            tg_tokens_per_second=timings.get("predicted_per_second"),
            prompt_seconds=_seconds(timings.get("prompt_ms")),
            generation_seconds=_seconds(timings.get("predicted_ms")),
        )

    async def _fetch(self, path: str) -> Reply:
        # http.client limits each read, not the whole: an answer that never ends must not hold a verb for ever.
        async with asyncio.timeout(self._limit):
            return Reply(*await run_in_thread(self._getter.get, path, MAX_RESPONSE_BYTES))

    async def _post(self, path: str, body: dict[str, Any], timeout: float) -> Reply:
        http = self.http
        import httpx

        try:
            async with http.stream("POST", path, json=body, timeout=timeout) as response:
                parts, size = [], 0
                async for part in response.aiter_bytes():
                    size += len(part)
                    if size > MAX_RESPONSE_BYTES:  # leaving the block closes the connection
                        raise ResponseTooLarge(path, MAX_RESPONSE_BYTES)
                    parts.append(part)
                return Reply(response.status_code, b"".join(parts))
        except httpx.HTTPError as error:
            raise NoResponse(type(error).__name__) from None

    async def _ask(self, path: str) -> Reply | None:
        """The answer where there is a good one; else ``None``, and why in ``denied`` and ``problem``."""
        try:
            reply = await self._fetch(path)
        except ResponseTooLarge as error:
            self.problem = error.sentence
            return None
        except (NoResponse, TimeoutError):
            return None
        self.denied = self.denied or reply.status == 401
        return reply if reply.status == 200 else None

    async def _get(self, path: str) -> Any:
        reply = await self._ask(path)
        return reply.json() if reply else None


@asynccontextmanager
async def connect(base_url: str, key: str | None = None, *, timeout: float = 5.0) -> AsyncIterator[LlamaClient]:
    """A LlamaClient that is closed at the end of the block."""
    client = LlamaClient(base_url, key, timeout=timeout)
    try:
        yield client
    finally:
        await client.close()


def error_text(reply: Reply) -> str:
    """What the server said went wrong, as one short line; garbage is named as such."""
    error = reply.table.get("error")
    if isinstance(error, dict) and isinstance(error.get("message"), str):
        return f"HTTP {reply.status}: {error['message'][:200]}"
    return f"HTTP {reply.status} that is not llama-server's ({reply.text[:60]!r})"


def _slot(item: dict[str, Any]) -> Slot:
    following = item.get("next_token")
    following = following[0] if isinstance(following, list) and following else following
    generated = following.get("n_decoded") if isinstance(following, dict) else None
    params = item.get("params")
    limit = params.get("n_predict", params.get("max_tokens")) if isinstance(params, dict) else None
    return Slot(
        index=_whole(item.get("id")) or 0,
        busy=bool(item.get("is_processing")),
        context_size_tokens=_whole(item.get("n_ctx")),
        context_used_tokens=_whole(item.get("n_prompt_tokens")),
        generated_tokens=_whole(generated),
        task=_whole(item.get("id_task")),
        processed_tokens=_whole(item.get("n_prompt_tokens_processed")),
        predict_limit=_whole(limit),
    )


def _whole(value: Any) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def _seconds(milliseconds: Any) -> float | None:
    return milliseconds / 1000 if isinstance(milliseconds, (int, float)) else None
