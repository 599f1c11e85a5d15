"""One streamed completion of any OpenAI-compatible server: a request in, Chunks out, an error for every early end."""

from __future__ import annotations

import asyncio
import contextlib
import re
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

import httpx

from gpubox.errors import ExitCode, GpuboxError
from gpubox.server.chunks import Chunk, LineTooLong, SseDecoder
from gpubox.server.responses import json_integer, json_object
from gpubox.storage import json_line, read_json

ERROR_BYTES = 64 * 1024
CONNECT_SECONDS = 10.0
SEND_SECONDS = 60.0
DRAIN_SECONDS = 1.0
LONGEST_RETRY_SECONDS = 60.0
_OVERFLOW = re.compile(
    r"maximum context length is (\d+) tokens.{0,80}?(?:requested|resulted in|contains|has) (\d+)", re.S
)


class StreamError(GpuboxError):
    """The completion failed, or ended too early."""

    def __init__(
        self,
        message: str,
        hint: str = "",
        *,
        transient: bool = False,
        timed_out: bool = False,
        overloaded: bool = False,
        retry_seconds: float | None = None,
        code: ExitCode = ExitCode.UNHEALTHY,
    ) -> None:
        super().__init__(message, hint, code=code)
        self.transient = transient
        """Whether the same request may work a moment later: HTTP 5xx, a broken connection, an invalid stream."""
        self.timed_out = timed_out
        self.overloaded = overloaded
        """Whether the server takes no request now: HTTP 429 or 503."""
        self.retry_seconds = retry_seconds
        """After how long the server says that it takes one (Retry-After)."""


class ContextOverflow(StreamError):
    """The prompt is longer than the context of a slot (HTTP 400, ``exceed_context_size_error``, or vLLM's words)."""

    def __init__(self, prompt_tokens: int | None, context_tokens: int | None) -> None:
        counts = f" ({prompt_tokens:,} of {context_tokens:,} tokens)" if prompt_tokens and context_tokens else ""
        super().__init__(f"The conversation does not fit the context{counts}.", "Use a larger ctx-size.")
        self.prompt_tokens, self.context_tokens = prompt_tokens, context_tokens


@asynccontextmanager
async def open_stream(
    client: httpx.AsyncClient, body: Mapping[str, Any], *, path: str, silence_seconds: float
) -> AsyncIterator[AsyncGenerator[Chunk, None]]:
    """Sends ``body`` with ``stream`` set; the block reads the Chunks. Raises StreamError at once or while reading.

    Leaving the block early closes the connection, and llama-server then stops generating. ``silence_seconds`` without
    a byte is an error (llama-server sends a ping every 30 s). The Chunks end at ``[DONE]``, or at the end of the
    connection if there was a finish reason.
    """
    timeout = httpx.Timeout(SEND_SECONDS, read=silence_seconds, connect=CONNECT_SECONDS)
    content = json_line({**body, "stream": True})
    headers = {"Content-Type": "application/json", "Accept": "text/event-stream"}
    request = client.build_request("POST", path, content=content, headers=headers, timeout=timeout)
    try:
        response = await _send(client, request)
    except httpx.HTTPError as error:
        raise _connection_error(error, str(client.base_url), silence_seconds, started=False) from None
    try:
        if response.status_code != 200:
            raise _http_error(
                response.status_code, await _read_start(response), response.headers.get("Retry-After", "")
            )
        yield _chunks(response, str(client.base_url), silence_seconds)
    finally:
        await response.aclose()


async def _send(client: httpx.AsyncClient, request: httpx.Request) -> httpx.Response:
    try:
        return await client.send(request, stream=True)
    except (httpx.RemoteProtocolError, httpx.ReadError, httpx.WriteError):
        # The kept connection was closed meanwhile: llama-server (build 11434) does that after each stream.
        return await client.send(request, stream=True)


async def _chunks(response: httpx.Response, url: str, silence_seconds: float) -> AsyncGenerator[Chunk, None]:
    decoder = SseDecoder()
    finished = False
    received = response.aiter_bytes()
    try:
        async for data in _with_last_line(received):
            for chunk in decoder.feed(data):
                if chunk.error:
                    raise StreamError(f"The server reported an error: {chunk.error}", transient=True)
                if chunk.done:
                    await _drain(received)
                    return
                finished = finished or bool(chunk.finish_reason)
                yield chunk
    except httpx.HTTPError as error:
        if not finished:
            raise _connection_error(error, url, silence_seconds, started=True) from None
        return
    except LineTooLong:
        raise StreamError(
            "The server sent a line that is too long.", "Check that the address is that of a llama-server."
        ) from None
    if finished:
        return
    if decoder.invalid_lines:
        raise StreamError(
            f"The answer of the server is not a completion stream ({decoder.first_invalid!r}).",
            "Check that the address is that of a llama-server.",
            transient=True,
        )
    raise StreamError("The server closed the connection in the middle of its answer.", transient=True)


async def _with_last_line(received: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    async for data in received:
        yield data
    yield b"\n"


async def _drain(received: AsyncIterator[bytes]) -> None:
    """Reads the end of the body: only then does the connection return to the pool."""
    with contextlib.suppress(TimeoutError, httpx.HTTPError):
        async with asyncio.timeout(DRAIN_SECONDS):
            async for _ in received:
                pass


async def _read_start(response: httpx.Response) -> bytes:
    start = b""
    with contextlib.suppress(httpx.HTTPError):
        async for data in response.aiter_bytes():
            start += data
            if len(start) > ERROR_BYTES:
                break
    return start


def _http_error(status: int, body: bytes, retry_after: str) -> StreamError:
    try:
        error = json_object(read_json(body)).get("error")
    except ValueError:
        error = None
    details = error if isinstance(error, dict) else {"message": error} if isinstance(error, str) else {}
    message = " ".join(str(details.get("message") or _page_text(body)).split())[:300]
    if details.get("type") == "exceed_context_size_error":
        return ContextOverflow(json_integer(details.get("n_prompt_tokens")), json_integer(details.get("n_ctx")))
    if status == 400 and (words := _OVERFLOW.search(message)):
        return ContextOverflow(int(words[2]), int(words[1]))
    if status == 401:
        return StreamError(
            "The server needs its API key.",
            "Put the key of a gpubox server into the api-key file, and the key of another server into GPUBOX_URL_KEY.",
        )
    if status == 503 and "oading" in message:
        return StreamError(
            "The server is still loading its model.", "Try again in a moment.", transient=True, overloaded=True
        )
    if status == 404 and "model" not in message.lower():  # Ollama: model "x" not found
        return StreamError("The server has no chat completions endpoint.", "Use a llama-server with a chat model.")
    wait = float(retry_after) if re.fullmatch(r"\d{1,4}(\.\d+)?", retry_after) else None  # a date: not worth a clock
    return StreamError(
        f"The server refused the request (HTTP {status}): {message or 'no message'}",
        transient=status >= 500 or (wait is not None and wait <= LONGEST_RETRY_SECONDS),
        overloaded=status in (429, 503),
        retry_seconds=wait,
    )


def _page_text(body: bytes) -> str:
    """The start of an answer that is not JSON; of a proxy's page, its title."""
    text = body.decode(errors="replace")
    title = re.search(r"<title>(.*?)</title>", text, re.IGNORECASE | re.DOTALL)
    return title[1] if title else text[:80]


def _connection_error(error: httpx.HTTPError, url: str, silence_seconds: float, *, started: bool) -> StreamError:
    timed_out = isinstance(error, httpx.TimeoutException)
    if isinstance(error, httpx.ReadTimeout):
        return StreamError(
            f"The server has been silent for {silence_seconds:,.0f} s.",
            "`gpubox status` shows what it does.",
            timed_out=timed_out,
        )
    if started:
        return StreamError(
            "The connection broke in the middle of the answer.",
            "See `gpubox logs`.",
            transient=True,
            timed_out=timed_out,
        )
    return StreamError(
        f"The server at {url} does not answer.",
        "If it died, `gpubox restart` starts it again.",
        transient=not isinstance(error, httpx.ConnectTimeout),
        timed_out=timed_out,
        code=ExitCode.NOT_RUNNING,
    )
