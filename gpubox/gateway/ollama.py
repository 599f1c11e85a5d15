"""Ollama's API before a llama-server: its requests as those of OpenAI's API, and their replies back. Pure.

Fields as in ollama's docs/api.md and its Python client (0.6). Durations are nanoseconds.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec

from gpubox.clock import utc_now
from gpubox.gateway.http_connection import Headers, HttpRequest, RequestRefused
from gpubox.gateway.offered_models import OfferedFacts, OfferedModel
from gpubox.interchange.client_settings import profile_flag
from gpubox.server.chunks import Chunk, SseDecoder, Timings, Usage, chunk_of
from gpubox.server.responses import json_object
from gpubox.storage import DECODE_ERRORS

VERSION = "0.12.6"
"""Of the API: clients refuse older ones."""
PATHS = frozenset({"/api/chat", "/api/generate", "/api/embed", "/api/embeddings"})
_FOREVER = 100 * 365 * 86400.0
"""Ollama says so for a model that stays."""
LOAD, UNLOAD = "/models/load", "/models/unload"
_SAMPLING = (
    "temperature", "top_k", "top_p", "min_p", "typical_p", "seed", "stop", "repeat_penalty", "repeat_last_n",
    "presence_penalty", "frequency_penalty", "mirostat", "mirostat_tau", "mirostat_eta",
)  # fmt: skip
"""Options that have the same name in both. Those of the launch (num_ctx, num_gpu ...) are the profile's."""
_JSON = (b"content-type", b"application/json")
_IMAGES = {"/9j/": "jpeg", "R0lG": "gif", "UklG": "webp"}
"""How the base64 of an image begins -> its type; else PNG."""


def translated(request: HttpRequest) -> tuple[HttpRequest, OllamaReply | None]:
    """A request to one of PATHS for a llama-server, and what makes its reply Ollama's. Others stay as they are.

    Raises RequestRefused.
    """
    path = request.target.partition("?")[0]
    if path not in PATHS or request.method != "POST":
        return request, None
    try:
        asked = msgspec.json.decode(request.body, type=dict[str, Any])
        target, body = _body(asked, path)
    except (*DECODE_ERRORS, TypeError, AttributeError, KeyError):
        raise RequestRefused(400, "The body is not that of a request of Ollama's API.") from None
    body["model"] = str(asked.get("model") or "")
    headers = (*(field for field in request.headers if field[0] != b"content-type"), _JSON)
    new = replace(request, target=target, headers=headers, body=msgspec.json.encode(body))
    return new, OllamaReply(path, body["model"], target)


def _body(asked: Mapping[str, Any], path: str) -> tuple[str, dict[str, Any]]:
    """The endpoint of llama-server, and the body without the model."""
    if path.startswith("/api/embed"):
        return "/v1/embeddings", {"input": asked["prompt"] if path == "/api/embeddings" else asked["input"]}
    messages = asked.get("messages") or []
    if path == "/api/generate" and (prompt := asked.get("prompt") or ""):
        user = {"role": "user", "content": prompt, "images": asked.get("images")}
        messages = [*([{"role": "system", "content": asked["system"]}] if asked.get("system") else []), user]
    if not messages:  # so clients load and unload
        return (UNLOAD if asked.get("keep_alive") in (0, "0", "0s", "0m") else LOAD), {}
    options = asked.get("options") or {}
    body = {key: options[key] for key in _SAMPLING if key in options}
    body |= {"max_tokens": options["num_predict"]} if options.get("num_predict", -1) >= 0 else {}
    body |= {"stream": asked.get("stream", True), "stream_options": {"include_usage": True}}
    if (think := asked.get("think")) is not None:
        effort = {"reasoning_effort": think} if isinstance(think, str) else {}
        body["chat_template_kwargs"] = {"enable_thinking": bool(think), **effort}
    if form := asked.get("format"):
        schema = {"type": "json_schema", "json_schema": {"name": "reply", "schema": form}}
        body["response_format"] = {"type": "json_object"} if form == "json" else schema
    if path == "/api/generate" and asked.get("suffix"):
        return "/infill", {**body, "input_prefix": prompt, "input_suffix": asked["suffix"]}
    if path == "/api/generate" and asked.get("raw"):
        return "/v1/completions", {**body, "prompt": prompt}
    if asked.get("tools"):
        body["tools"] = asked["tools"]
    return "/v1/chat/completions", {**body, "messages": _messages(messages)}


def _messages(messages: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """With images as parts, and with the ids that OpenAI's API wants for calls of tools: Ollama's has none."""
    result: list[dict[str, Any]] = []
    open_calls: list[dict[str, Any]] = []
    for message in messages:
        new: dict[str, Any] = {"role": message["role"], "content": message.get("content") or ""}
        if images := message.get("images"):
            urls = [f"data:image/{_IMAGES.get(image[:4], 'png')};base64,{image}" for image in images]
            parts = [{"type": "image_url", "image_url": {"url": url}} for url in urls]
            new["content"] = [{"type": "text", "text": new["content"]}, *parts]
        if thinking := message.get("thinking"):
            new["reasoning_content"] = thinking
        if calls := message.get("tool_calls"):
            functions = [{**call["function"], "arguments": _json(call["function"]["arguments"])} for call in calls]
            new["tool_calls"] = [
                {"id": f"call_{len(result)}_{number}", "type": "function", "function": function}
                for number, function in enumerate(functions)
            ]
            open_calls = list(new["tool_calls"])
        if message["role"] == "tool" and open_calls:
            wanted = message.get("tool_name") or message.get("name")
            call = next((call for call in open_calls if call["function"]["name"] == wanted), open_calls[0])
            open_calls.remove(call)
            new["tool_call_id"] = call["id"]
        result.append(new)
    return result


def _json(value: Any) -> str:
    return value if isinstance(value, str) else msgspec.json.encode(value).decode()


def listed(models: Sequence[OfferedModel]) -> dict[str, Any]:
    """GET /api/tags."""
    return {"models": [_entry(model) for model in models]}


def loaded(models: Sequence[OfferedModel]) -> dict[str, Any]:
    """GET /api/ps."""
    return {"models": [{**_entry(model), "expires_at": _expires(model)} for model in models if model.loaded]}


def shown(model: OfferedModel) -> dict[str, Any]:
    """POST /api/show."""
    facts, kind = model.facts, model.facts.architecture
    info = {"general.architecture": kind, "general.parameter_count": facts.parameters}
    sees = ["vision"] if "image" in facts.inputs else []
    tools = ["tools"] if not profile_flag(model.profile, "no-jinja") else []
    can = ["embedding"] if facts.output == "embeddings" else ["completion", *tools, *sees]
    return {
        "modelfile": f"FROM {model.id}", "parameters": "", "template": "", "license": "", "capabilities": can,
        "details": _details(facts), "modified_at": facts.modified_at,
        "model_info": info | ({f"{kind}.context_length": facts.context or facts.trained_context} if kind else {}),
    }  # fmt: skip


def _entry(model: OfferedModel) -> dict[str, Any]:
    facts = model.facts
    digest = hashlib.sha256(f"{model.id} {facts.size} {facts.modified_at}".encode()).hexdigest()  # some cut it
    name = model.id if ":" in model.id else f"{model.id}:latest"  # Open WebUI looks for it with its tag
    values = {"name": name, "model": name, "modified_at": facts.modified_at, "digest": digest}
    return {**values, "size": facts.size or 0, "context_length": facts.context, "details": _details(facts)}


def _details(facts: OfferedFacts) -> dict[str, Any]:
    count = facts.parameters or 0
    size = f"{count / 1e9:.1f}B" if count >= 1e9 else f"{count / 1e6:.0f}M" if count else ""
    families = {"family": facts.architecture, "families": [facts.architecture]}
    return {"format": "gguf", **families, "parameter_size": size, "quantization_level": facts.quant}


def _expires(model: OfferedModel) -> str:
    seconds = model.status.unload_seconds
    return (datetime.now(UTC) + timedelta(seconds=_FOREVER if seconds is None else seconds)).isoformat()


class OllamaReply:
    """A reply in Ollama's form: a line of JSON for each event of a stream, or one object. Errors are one sentence."""

    def __init__(self, path: str, model: str, target: str) -> None:
        self._path, self._model, self._began = path, model, time.monotonic()
        self._reason = {LOAD: "load", UNLOAD: "unload"}.get(target, "")
        self._stream = self._over = False
        self._decoder = SseDecoder()
        self._held = b""
        self._calls: dict[int, tuple[str, str]] = {}
        self._timings, self._usage = Timings(0, 0, 0.0, 0, 0.0), Usage(None, None, None)

    def head(self, headers: Headers) -> Headers:
        self._stream = any(b"event-stream" in value for _, value in headers)
        kind = b"application/x-ndjson" if self._stream else b"application/json; charset=utf-8"
        return (*(each for each in headers if each[0].lower() != b"content-type"), (b"Content-Type", kind))

    def feed(self, payload: bytes) -> bytes:
        if self._stream:
            return b"".join(map(self._event, self._decoder.feed(payload)))
        self._held += payload
        return b""

    def end(self) -> bytes:
        if not self._stream:
            return self._whole()
        if self._over:
            return b""
        calls = self._line("", calls=self._take_calls()) if self._calls else b""
        return calls + self._line("", **self._figures())

    def _event(self, chunk: Chunk) -> bytes:
        if chunk.error:
            self._over = True
            return _error(chunk)
        self._keep(chunk)
        return self._line(chunk.text, chunk.reasoning) if chunk.text or chunk.reasoning else b""

    def _whole(self) -> bytes:
        try:
            values = msgspec.json.decode(self._held, type=dict[str, Any])
        except DECODE_ERRORS:
            return self._held
        chunk = chunk_of(values)
        if chunk.error:
            return _error(chunk)
        self._keep(chunk)
        if self._path.startswith("/api/embed"):
            vectors = [json_object(item).get("embedding") for item in values.get("data") or ()]
            if self._path == "/api/embeddings":
                return msgspec.json.encode({"embedding": next(iter(vectors), [])})
            count = self._usage.prompt_tokens
            return msgspec.json.encode({"model": self._model, "embeddings": vectors, "prompt_eval_count": count})
        return self._line(chunk.text, chunk.reasoning, self._take_calls(), **self._figures())

    def _keep(self, chunk: Chunk) -> None:
        """For the end: what an event says beside its text."""
        self._timings, self._usage = chunk.timings or self._timings, chunk.usage or self._usage
        self._reason = chunk.finish_reason or self._reason
        for call in chunk.calls:
            name, arguments = self._calls.get(call.index, ("", ""))
            self._calls[call.index] = (name + call.name, arguments + call.arguments)

    def _take_calls(self) -> list[dict[str, Any]]:
        calls, self._calls = self._calls, {}
        return [{"function": {"name": name, "arguments": _object(text)}} for name, text in calls.values()]

    def _figures(self) -> dict[str, Any]:
        """How it ended. ``load_duration`` is the wait for the profile and its slot: all but reading and generating."""
        timings, usage = self._timings, self._usage
        total = int((time.monotonic() - self._began) * 1e9)
        read, made = (round(seconds * 1e9) for seconds in (timings.prompt_seconds, timings.generation_seconds))
        prompt = timings.prompt_tokens + timings.cached_tokens
        reason = self._reason if self._reason in ("load", "unload", "length") else "stop"
        return {
            "done": True, "done_reason": reason, "total_duration": total, "load_duration": max(0, total - read - made),
            "prompt_eval_count": prompt or usage.prompt_tokens or 0, "prompt_eval_duration": read,
            "eval_count": timings.generated_tokens or usage.generated_tokens or 0, "eval_duration": made,
        }  # fmt: skip

    def _line(self, text: str, thinking: str = "", calls: Sequence[Any] = (), **more: Any) -> bytes:
        extra = ({"thinking": thinking} if thinking else {}) | ({"tool_calls": calls} if calls else {})
        message = {"role": "assistant", "content": text, **extra}
        said = {"message": message} if self._path == "/api/chat" else {"response": text, **extra}
        line = {"model": self._model, "created_at": utc_now(), **said, "done": False, **more}
        return msgspec.json.encode(line) + b"\n"


def _error(chunk: Chunk) -> bytes:
    return msgspec.json.encode({"error": chunk.error}) + b"\n"


def _object(text: str) -> Any:
    try:
        return msgspec.json.decode(text or "{}")
    except DECODE_ERRORS:
        return {}
