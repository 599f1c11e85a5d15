"""Bytes of a streamed completion -> Chunks: the wire format of OpenAI-compatible servers. Pure: no sockets, no clock.

The fields are OpenAI's and llama-server's (build 11434). A missing or malformed field is empty or ``None``; nothing is
raised for it. The stream, as recorded from llama-server: ``data: {...}`` lines with a blank line after each, comments
as pings, and ``data: [DONE]`` at the end.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import msgspec

from gpubox.server.responses import json_count, json_object
from gpubox.storage import DECODE_ERRORS, MAX_JSON_DEPTH, read_json

LINE_BYTES = 8 * 1024 * 1024
"""The longest line that is accepted: one delta may carry a whole file, but must not fill the memory."""


_FIRST_HALF = re.compile(rb'(?<!\\)(?:\\\\)*(\\u[dD][89abAB][0-9a-fA-F]{2})"')
_SECOND_HALF = re.compile(rb'"(\\u[dD][c-fC-F][0-9a-fA-F]{2})')


class LineTooLong(ValueError):
    """A line of the stream is longer than LINE_BYTES."""


@dataclass(frozen=True, slots=True)
class CallDelta:
    """A piece of the native tool call number ``index``. Id and name come once, the arguments in pieces."""

    index: int
    id: str = ""
    name: str = ""
    arguments: str = ""


@dataclass(frozen=True, slots=True)
class StreamedPromptProgress:
    """``prompt_progress``: prompt tokens, and the seconds so far. ``processed`` includes the cached tokens."""

    total: int
    cached: int
    processed: int
    seconds: float


@dataclass(frozen=True, slots=True)
class Timings:
    """``timings`` (tools/server/server-common.cpp): the server's own figures of one request."""

    cached_tokens: int
    prompt_tokens: int
    """Prompt tokens that were processed, without the cached ones."""
    prompt_seconds: float
    generated_tokens: int
    generation_seconds: float
    draft_tokens: int | None = None
    draft_tokens_accepted: int | None = None
    reported_tg: float | None = None
    """``predicted_per_second``, which its log has too: builds differ in whether the first token counts."""

    @property
    def tg_tokens_per_second(self) -> float | None:
        """As the server computes it; of one that does not say it, with the first token. ``None`` before the second."""
        if self.generated_tokens < 2 or self.generation_seconds <= 1e-5:
            return None
        return self.reported_tg or self.generated_tokens / self.generation_seconds

    @property
    def pp_tokens_per_second(self) -> float | None:
        """As the server computes it; ``None`` if no prompt token was processed."""
        return self.prompt_tokens / self.prompt_seconds if self.prompt_tokens and self.prompt_seconds > 0 else None


@dataclass(frozen=True, slots=True)
class Usage:
    """``usage``: the token counts of any OpenAI-compatible server."""

    prompt_tokens: int | None
    generated_tokens: int | None
    cached_tokens: int | None


@dataclass(frozen=True, slots=True)
class Chunk:
    """One event of the stream, or one whole completion."""

    text: str = ""
    reasoning: str = ""
    calls: tuple[CallDelta, ...] = ()
    finish_reason: str = ""
    progress: StreamedPromptProgress | None = None
    timings: Timings | None = None
    usage: Usage | None = None
    model: str = ""
    error: str = ""
    """What went wrong at the server in the middle of the answer."""
    done: bool = False
    """``[DONE]``: nothing follows."""


class SseDecoder:
    """Takes the bytes as they arrive and yields the Chunks that they complete."""

    def __init__(self) -> None:
        self._parts: list[bytes] = []
        self._size = 0
        self.invalid_lines = 0
        """Lines that do not belong to such a stream."""
        self.first_invalid = ""
        """The first of them, shortened."""
        self._half = b""
        """The first half of a surrogate pair, whose other half the next text begins with."""

    def feed(self, data: bytes) -> Iterator[Chunk]:
        """The Chunks that end in ``data``. Raises LineTooLong."""
        *lines, rest = data.split(b"\n")
        for line in lines:
            whole = b"".join((*self._parts, line)) if self._parts else line
            self._parts, self._size = [], 0
            if chunk := self._line(whole):
                yield chunk
        if rest:
            self._parts.append(rest)
            self._size += len(rest)
        if self._size > LINE_BYTES:
            raise LineTooLong

    def _line(self, line: bytes) -> Chunk | None:
        line = line.rstrip(b"\r")
        if not line or line.startswith((b":", b"event:", b"id:", b"retry:")):
            return None
        if len(line) > LINE_BYTES:
            raise LineTooLong
        name, colon, payload = line.partition(b":")
        payload = payload.strip()
        if colon and name == b"data" and payload == b"[DONE]":
            return Chunk(done=True)
        if colon and name in (b"data", b"error"):
            values = _decoded(self._whole_pairs(payload))
            if values is not None:
                return chunk_of(values if name == b"data" else {"error": values})
        self.invalid_lines += 1
        self.first_invalid = self.first_invalid or line[:60].decode(errors="replace")
        return None

    def _whole_pairs(self, payload: bytes) -> bytes:
        """``payload`` with the half that the one before ended with, and without the half that it ends a text with."""
        held, self._half = self._half, b""
        if held:
            payload = _SECOND_HALF.sub(lambda match: b'"' + held + match[1], payload, count=1)
        if b"\\u" in payload and (half := _FIRST_HALF.search(payload)):
            self._half = half[1]
            payload = payload[: half.start(1)] + payload[half.end(1) :]
        return payload


def _decoded(payload: bytes) -> dict[str, Any] | None:
    try:
        if payload.count(b"{") + payload.count(b"[") > MAX_JSON_DEPTH:
            raise RecursionError
        values = msgspec.json.decode(payload)
    except DECODE_ERRORS:
        try:  # which reads a lone surrogate (half an emoji), and refuses what is nested too deeply
            values = read_json(payload.decode(errors="replace"))
        except ValueError:
            return None
    return values if isinstance(values, dict) else None


def chunk_of(values: dict[str, Any]) -> Chunk:
    """The Chunk of one decoded object: a chat delta or message, a plain completion (also of /infill), or an error."""
    choices = values.get("choices")
    choice = json_object(choices[0]) if isinstance(choices, list) and choices else {}
    delta = json_object(choice.get("delta")) or json_object(choice.get("message"))
    calls = delta.get("tool_calls")
    if isinstance(legacy := delta.get("function_call"), dict):  # of servers before tool_calls
        calls = [{"function": legacy}]
    return Chunk(
        text=_plain_text(delta.get("content") if delta else choice.get("text") or values.get("content")),
        reasoning=_plain_text(delta.get("reasoning_content") or delta.get("reasoning")),
        calls=tuple(_call(i, json_object(item)) for i, item in enumerate(calls)) if isinstance(calls, list) else (),
        finish_reason=_text(choice.get("finish_reason")),
        progress=_progress(json_object(values.get("prompt_progress"))),
        timings=_timings(values.get("timings")),
        usage=_usage(json_object(values.get("usage"))),
        model=_text(values.get("model")),
        error=_error(values.get("error")),
    )


def _plain_text(content: Any) -> str:
    """``content`` as text: a string, a list of parts with ``text``, or one such part. Anything else is empty."""
    if isinstance(content, list):
        return "".join(_plain_text(part) for part in content[:1000])
    if isinstance(content, dict):
        content = content.get("text")
    return _text(content)


def _text(value: Any) -> str:
    if not isinstance(value, str):
        return ""
    return value if value.isascii() else value.encode(errors="replace").decode()  # lone surrogates cannot be written


def _call(position: int, item: dict[str, Any]) -> CallDelta:
    function = json_object(item.get("function"))
    arguments = function.get("arguments")
    if isinstance(arguments, dict):  # some servers send them decoded
        arguments = msgspec.json.encode(arguments).decode()
    index = json_count(item.get("index"))
    return CallDelta(
        position if index is None else index, _text(item.get("id")), _text(function.get("name")), _text(arguments)
    )


def _progress(item: dict[str, Any]) -> StreamedPromptProgress | None:
    total = json_count(item.get("total"))
    if total is None:
        return None
    return StreamedPromptProgress(
        total, json_count(item.get("cache")) or 0, json_count(item.get("processed")) or 0, _seconds(item.get("time_ms"))
    )


def _timings(item: Any) -> Timings | None:
    """The Timings of a ``timings`` object; ``None`` if there is none."""
    item = json_object(item)
    if "predicted_n" not in item and "prompt_n" not in item:
        return None
    return Timings(
        cached_tokens=json_count(item.get("cache_n")) or 0,
        prompt_tokens=json_count(item.get("prompt_n")) or 0,
        prompt_seconds=_seconds(item.get("prompt_ms")),
        generated_tokens=json_count(item.get("predicted_n")) or 0,
        generation_seconds=_seconds(item.get("predicted_ms")),
        draft_tokens=json_count(item.get("draft_n")),
        draft_tokens_accepted=json_count(item.get("draft_n_accepted")),
        reported_tg=_speed(item.get("predicted_per_second")),
    )


def _speed(value: Any) -> float | None:
    return float(value) if isinstance(value, int | float) and 0 < value < 1e9 else None


def _usage(item: dict[str, Any]) -> Usage | None:
    if not item:
        return None
    details = json_object(item.get("prompt_tokens_details"))
    counts = (item.get("prompt_tokens"), item.get("completion_tokens"), details.get("cached_tokens"))
    return Usage(*map(json_count, counts))


def _error(item: Any) -> str:
    if isinstance(item, dict):
        item = _text(item.get("message")) or "an error without a message"
    return _text(item)[:1000]


def _seconds(milliseconds: Any) -> float:
    valid = isinstance(milliseconds, (int, float)) and not isinstance(milliseconds, bool) and 0 <= milliseconds < 1e12
    return float(milliseconds) / 1000 if valid else 0.0
