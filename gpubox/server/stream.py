"""One streamed completion of any OpenAI-compatible server: a request in, Chunks out, every end with a reason.

Leaving the block closes the connection when the answer is not over, and with it llama-server stops generating.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx
import msgspec

from gpubox.errors import ExitCode, GpuboxError
from gpubox.server.chunks import Chunk
from gpubox.server.sse import LineTooLong, SseDecoder

CHAT = "/v1/chat/completions"
ERROR_BYTES = 64 * 1024
CONNECT_SECONDS = 10.0
SEND_SECONDS = 60.0
DRAIN_SECONDS = 1.0


class StreamError(GpuboxError):
    """The completion could not be had, or not to its end."""

    def __init__(self, message: str, hint: str = "", *, transient: bool = False, code: ExitCode = ExitCode.UNHEALTHY):
        super().__init__(message, hint, code=code)
        self.transient = transient
        """Whether the same request may work a moment later: 5xx, a broken connection, garbage."""


class ContextOverflow(StreamError):
    """The prompt is longer than one slot's context (HTTP 400, ``exceed_context_size_error``)."""

    def __init__(self, prompt_tokens: int | None, context_tokens: int | None) -> None:
        counts = f" ({prompt_tokens:,} of {context_tokens:,} tokens)" if prompt_tokens and context_tokens else ""
        super().__init__(f"The conversation does not fit the context{counts}.", "Use a larger ctx-size.")
        self.prompt_tokens, self.context_tokens = prompt_tokens, context_tokens


@asynccontextmanager
async def stream_completion(
    http: httpx.AsyncClient, body: dict[str, Any], *, path: str = CHAT, silence_seconds: float = 300.0
) -> AsyncIterator[AsyncGenerator[Chunk, None]]:
    """The Chunks of ``body`` (``stream`` is set), inside a block. Raises StreamError at the start and while reading.

    ``silence_seconds`` without a byte is an error; llama-server pings each 30 s. The reader ends at ``[DONE]``, or
    where the connection ends after a finish reason; before that it is broken.
    """
    timeout = httpx.Timeout(SEND_SECONDS, read=silence_seconds, connect=CONNECT_SECONDS)
    content = msgspec.json.encode({**body, "stream": True})
    headers = {"Content-Type": "application/json", "Accept": "text/event-stream"}
    request = http.build_request("POST", path, content=content, headers=headers, timeout=timeout)
    try:
        response = await _send(http, request)
    except httpx.HTTPError as error:
        raise _broken(error, str(http.base_url), silence_seconds, started=False) from None
    try:
        if response.status_code != 200:
            raise _refused(response.status_code, await _start_of(response), silence_seconds)
        yield _chunks(response, str(http.base_url), silence_seconds)
    finally:
        await response.aclose()


async def _send(http: httpx.AsyncClient, request: httpx.Request) -> httpx.Response:
    try:
        return await http.send(request, stream=True)
    except (httpx.RemoteProtocolError, httpx.ReadError, httpx.WriteError):
        # The kept connection was closed meanwhile: llama-server b11434 does so after each stream.
        return await http.send(request, stream=True)


async def _chunks(response: httpx.Response, url: str, silence_seconds: float) -> AsyncGenerator[Chunk, None]:
    reader = SseDecoder()
    finished = False
    received = response.aiter_bytes()
    try:
        async for data in received:
            for chunk in reader.feed(data):
                if chunk.error:
                    raise StreamError(f"The server broke off: {chunk.error}", transient=True)
                if chunk.done:
                    await _drain(received)
                    return
                finished = finished or bool(chunk.finish_reason)
                yield chunk
    except httpx.HTTPError as error:
        if not finished:
            raise _broken(error, url, silence_seconds, started=True) from None
        return
    except LineTooLong:
        raise StreamError("The server sent one line without end.", "Is this a llama-server?") from None
    if finished:
        return
    if reader.garbage:
        raise StreamError(
            f"The server sends what is no completion stream ({reader.sample!r}).",
            "Is this a llama-server?",
            transient=True,
        )
    raise StreamError("The server closed the connection in the middle of its answer.", transient=True)


async def _drain(received: AsyncIterator[bytes]) -> None:
    """Reads the end of the body: only then does the connection go back to the pool, for the next round."""
    with contextlib.suppress(TimeoutError, httpx.HTTPError):
        async with asyncio.timeout(DRAIN_SECONDS):
            async for _ in received:
                pass


async def _start_of(response: httpx.Response) -> bytes:
    found = b""
    try:
        async for data in response.aiter_bytes():
            found += data
            if len(found) > ERROR_BYTES:
                break
    except httpx.HTTPError:
        return found
    return found


def _refused(status: int, body: bytes, silence_seconds: float) -> StreamError:
    error = _error_of(body)
    said = " ".join(str(error.get("message") or _words(body)).split())[:300]
    if error.get("type") == "exceed_context_size_error":
        return ContextOverflow(_count(error.get("n_prompt_tokens")), _count(error.get("n_ctx")))
    if status == 401:
        return StreamError(
            "The server wants its API key.", "The box's: in the api-key file. Another server's: in GPUBOX_URL_KEY."
        )
    if status == 503 and "oading" in said:
        return StreamError("The server is still loading its model.", "Try again in a moment.", transient=True)
    if status == 404 and "model" not in said.lower():  # Ollama: model "x" not found
        return StreamError("The server has no chat completions.", "Is this a llama-server with a chat model?")
    return StreamError(f"The server refuses (HTTP {status}): {said or 'without a word'}", transient=status >= 500)


def _words(body: bytes) -> str:
    """The start of an answer that is no JSON. Of a proxy's page: its title."""
    text = body.decode(errors="replace")
    title = re.search(r"<title>(.*?)</title>", text, re.IGNORECASE | re.DOTALL)
    return title[1] if title else text[:80]


def _error_of(body: bytes) -> dict[str, Any]:
    try:
        values = json.loads(body)
    except (ValueError, RecursionError):
        return {}
    error = values.get("error") if isinstance(values, dict) else None
    return error if isinstance(error, dict) else {"message": error} if isinstance(error, str) else {}


def _count(value: Any) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def _broken(error: httpx.HTTPError, url: str, silence_seconds: float, *, started: bool) -> StreamError:
    if isinstance(error, httpx.ReadTimeout):
        return StreamError(
            f"The server has been silent for {silence_seconds:,.0f} s.", "`gpubox status` shows what it does."
        )
    if started:
        return StreamError("The connection broke in the middle of the answer.", "See `gpubox logs`.", transient=True)
    return StreamError(
        f"{url} does not answer ({type(error).__name__}).",
        "`gpubox status` says whether it runs.",
        transient=not isinstance(error, httpx.ConnectTimeout),
        code=ExitCode.NOT_RUNNING,
    )
