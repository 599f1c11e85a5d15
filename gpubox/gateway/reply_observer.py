"""Reads tokens, their first moment and the server's own timings from the bytes of a reply. Pure.

The formats are those of llama-server (build 11434, recorded) and of the OpenAI and Anthropic APIs: server-sent events
whose last ones hold ``timings`` or ``usage``, or one JSON object that holds them.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import astuple, dataclass, replace
from typing import Any

import msgspec

from gpubox.server.responses import MAX_COUNT, json_count, json_object
from gpubox.storage import DECODE_ERRORS

BODY_BYTES = 4 * 1024 * 1024
"""Of a reply that is not a stream, so much is read; of a larger one nothing is known."""
_START_BYTES, _TAIL_BYTES = 8 * 1024, 256 * 1024
"""What is kept of a stream: Anthropic's first event holds the prompt tokens, the last events hold the timings."""
_LAST_EVENTS = 64
"""Each of several answers in one stream ends with an event of its own."""
_TEXT = re.compile(
    rb'"(?:content|text|delta|reasoning_content|reasoning|thinking|partial_json|arguments|name)"\s*:\s*"[^"]'
)
"""A field of an event that carries text of the answer, and is not empty."""
_DATA = b"data:"
_LAST_TYPES = ("message_stop", "response.completed", "response.incomplete", "response.failed")  # or [DONE]


@dataclass(frozen=True, slots=True)
class AnswerTokens:
    """What a reply says about itself. ``None``: it does not say."""

    prompt_tokens: int | None = None
    """Of the whole prompt, with the cached ones."""
    cached_tokens: int | None = None
    generated_tokens: int | None = None
    tg_tokens_per_second: float | None = None


class ReplyObserver:
    """Follows one reply. ``feed`` gets its payload as it comes."""

    def __init__(self, *, stream: bool) -> None:
        self.stream = stream
        self.text_events = 0
        """The events with text: llama-server sends one for each token."""
        self._start = b""
        self._tail: list[bytes] = []
        self._tail_bytes = 0

    def feed(self, payload: bytes) -> None:
        if self.stream:
            several = payload.count(_DATA) > 1
            self.text_events += len(_TEXT.findall(payload)) if several else bool(_TEXT.search(payload))
            if len(self._start) < _START_BYTES:
                self._start += payload[: _START_BYTES - len(self._start)]
        self._tail_bytes += len(payload)
        if not self.stream and self._tail_bytes > BODY_BYTES:
            self._tail.clear()
            return
        self._tail.append(payload)
        while self.stream and self._tail_bytes > _TAIL_BYTES and len(self._tail) > 1:
            self._tail_bytes -= len(self._tail.pop(0))

    @property
    def kept(self) -> bytes:
        return b"".join(self._tail)

    def tokens(self) -> AnswerTokens:
        """What the reply has said so far. For a stream that was cut off, the events with text are counted."""
        objects = self._objects()
        if several := _tokens_of_several(objects, stream=self.stream):
            return several
        said = [astuple(values) for values in map(tokens_of, objects) if values]
        fields = zip(*said, strict=True)
        merged = AnswerTokens(*(next((value for value in field if value is not None), None) for field in fields))
        if self.text_events and not merged.generated_tokens:
            merged = replace(merged, generated_tokens=self.text_events)
        return merged

    @property
    def is_over(self) -> bool:
        """Whether the last event of a stream has come: then some clients leave without waiting for its end."""
        last = [b"", *_data_lines(b"".join(self._tail))][-1] if self.stream else b""
        return last == b"[DONE]" or any(values.get("type") in _LAST_TYPES for values in _parse(last))

    def _objects(self) -> list[Mapping[str, Any]]:
        """The JSON objects that may hold numbers: those that say most first."""
        if not self.stream:
            return _parse(self.kept)
        wanted = [line for line in _data_lines(self.kept) if b'"timings"' in line or b'"usage"' in line]
        begin = [line for line in _data_lines(self._start) if b'"usage"' in line][:1]
        objects = [values for line in (*reversed(wanted[-_LAST_EVENTS:]), *begin) for values in _parse(line)]
        return sorted(objects, key=lambda values: "timings" not in values)


def _data_lines(text: bytes) -> Iterator[bytes]:
    for line in text.split(b"\n"):
        if line.startswith(_DATA):
            yield line[len(_DATA) :].strip()


def _parse(text: bytes) -> list[Mapping[str, Any]]:
    """The object, or the objects of a list: /embedding answers with one, /completion with one for each prompt."""
    try:
        values = msgspec.json.decode(text)
    except DECODE_ERRORS:
        return []
    return [item for item in (values if isinstance(values, list) else [values]) if isinstance(item, dict)]


def _tokens_of_several(objects: Sequence[Mapping[str, Any]], *, stream: bool) -> AnswerTokens | None:
    """The tokens of a reply of llama-server with several answers (``n``, or several prompts); None for one answer.

    Each has timings of its own in a stream or a list. One object has those of its first answer alone, and answers of
    one prompt each count that prompt, which was read once: then it is unknown.
    """
    timed = [values for values in objects if "timings" in values]
    choices = timed[0].get("choices") if timed else None
    if isinstance(choices, list) and len(choices) > 1:
        return AnswerTokens()
    answers = {_index(values): tokens for values in reversed(timed) if (tokens := tokens_of(values))}
    if len(answers) < 2:
        return None
    generated = sum(tokens.generated_tokens or 0 for tokens in answers.values())
    if stream:
        return AnswerTokens(generated_tokens=generated)
    prompt = sum(tokens.prompt_tokens or 0 for tokens in answers.values())
    return AnswerTokens(prompt, sum(tokens.cached_tokens or 0 for tokens in answers.values()), generated)


def _index(values: Mapping[str, Any]) -> int:
    """Which of several answers it belongs to."""
    choices = values.get("choices")
    choice = json_object(choices[0]) if isinstance(choices, list) and choices else values
    return json_count(choice.get("index")) or 0


def tokens_of(values: Mapping[str, Any]) -> AnswerTokens | None:
    """What one JSON object of a reply says."""
    timings = json_object(values.get("timings"))
    if timings:
        cached, read = json_count(timings.get("cache_n")), json_count(timings.get("prompt_n"))
        speed = timings.get("predicted_per_second")
        generated = json_count(timings.get("predicted_n"))
        if not (isinstance(speed, int | float) and 0 <= speed < MAX_COUNT and generated and generated > 1):
            speed = None
        prompt = (cached or 0) + read if read is not None else None
        return AnswerTokens(prompt, cached, generated, None if speed is None else float(speed))
    for place in (values, json_object(values.get("message")), json_object(values.get("response"))):
        if usage := json_object(place.get("usage")):
            return _tokens_of_usage(usage)
    return None


def _tokens_of_usage(usage: Mapping[str, Any]) -> AnswerTokens:
    details = json_object(usage.get("prompt_tokens_details")) or json_object(usage.get("input_tokens_details"))
    cached = _first(details.get("cached_tokens"), usage.get("cache_read_input_tokens"))
    prompt = _first(usage.get("prompt_tokens"), usage.get("input_tokens"))
    if prompt is not None and "cache_read_input_tokens" in usage:  # Anthropic counts the cached tokens apart
        prompt += cached or 0
    generated = _first(usage.get("completion_tokens"), usage.get("output_tokens"))
    return AnswerTokens(prompt, cached, generated)


def _first(*values: object) -> int | None:
    return next((number for value in values if (number := json_count(value)) is not None), None)
