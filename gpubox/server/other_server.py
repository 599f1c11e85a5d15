"""A server that is not a llama-server: which kind it is, what it reports, and which request fields it accepts.

Formats: tests/fixtures/peers/README.md. What a server does not report is None, and named in ``not_reported``.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from gpubox import units
from gpubox.server.responses import MAX_COUNT, json_count

if TYPE_CHECKING:
    from gpubox.server.client import LlamaClient

LLAMA, VLLM, OLLAMA, LM_STUDIO, OPENAI = "llama-server", "vllm", "ollama", "lm-studio", "openai"
NAMES = {VLLM: "vLLM", OLLAMA: "Ollama", LM_STUDIO: "LM Studio", OPENAI: "OpenAI-compatible"}


@dataclass(frozen=True, slots=True)
class OtherServerModel:
    """One model of a server."""

    name: str
    loaded: bool | None = None
    quantization: str | None = None
    context_size_tokens: int | None = None
    size_bytes: int | None = None
    """Of a loaded model: its VRAM and RAM together; else the size of its file."""
    vram_bytes: int | None = None
    expires_at: str | None = None
    """When an idle model is unloaded, ISO-8601."""

    @property
    def description(self) -> str:
        """Name, quantization, size and context in one line."""
        vram = "" if self.vram_bytes is None else f"{units.memory(self.vram_bytes)} in VRAM"
        whole = f"of {units.memory(self.size_bytes)}" if vram and self.size_bytes else ""
        context = f"context {self.context_size_tokens:,}" if self.context_size_tokens else ""
        return "  ".join(filter(None, (self.name, self.quantization, f"{vram} {whole}".strip(), context)))


@dataclass(frozen=True, slots=True)
class OtherServerReading:
    """What a server that is not a llama-server reports now."""

    dialect: str
    version: str | None = None
    models: tuple[OtherServerModel, ...] = ()
    """The loaded ones first."""
    running_requests: int | None = None
    waiting_requests: int | None = None
    kv_cache_used: float | None = None
    """0 to 1."""
    counters: Mapping[str, float] | None = None
    """With the names of llama-server's ``/metrics``."""
    not_reported: str = ""
    """What this kind of server does not report, in a sentence."""

    @property
    def engine(self) -> str:
        """Its name and version: ``Ollama 0.12.6``."""
        return f"{NAMES[self.dialect]} {self.version or ''}".rstrip()

    @property
    def summary(self) -> str:
        """What the server does now, in one line."""
        loaded = [model for model in self.models if model.loaded]
        if self.running_requests is not None:
            fill = "" if self.kv_cache_used is None else f", KV cache {self.kv_cache_used:.0%} used"
            return f"{self.running_requests} running, {units.tokens(self.waiting_requests)} waiting{fill}"
        if not loaded and self.dialect in (OLLAMA, LM_STUDIO):
            return f"{self.engine} has no model loaded."
        return "; ".join(model.description for model in loaded[:3])

    @property
    def model(self) -> str:
        """The model for requests that name none: the first loaded model, else the first; empty if there is none."""
        return self.models[0].name if self.models else ""


NOT_REPORTED = {
    OLLAMA: "Ollama does not report running or waiting requests, tok/s, TTFT or token counts",
    VLLM: "vLLM does not report single requests, prompt progress or VRAM",
    LM_STUDIO: "LM Studio does not report running or waiting requests, tok/s, TTFT, token counts or VRAM",
    OPENAI: "this server reports its models and nothing else: no requests, tok/s, tokens or VRAM",
}
_LLAMA_FIELDS = frozenset({"cache_prompt", "ignore_eos", "id_slot", "timings_per_token", "return_progress", "min_p"})
EXTRA_FIELDS: Mapping[str, frozenset[str]] = {
    LLAMA: _LLAMA_FIELDS | {"top_k", "chat_template_kwargs", "n_predict", "thinking_budget_tokens"},
    VLLM: frozenset({"ignore_eos", "top_k", "min_p", "chat_template_kwargs"}),
    OLLAMA: frozenset(),
    LM_STUDIO: frozenset({"top_k", "min_p"}),
    OPENAI: frozenset(),
}
"""The fields beyond OpenAI's that a server accepts. It refuses others or, worse, ignores them silently."""
_OPENAI_FIELDS = frozenset(
    {"messages", "prompt", "model", "max_tokens", "temperature", "top_p", "seed", "stop", "stream", "stream_options",
     "presence_penalty", "frequency_penalty", "tools", "tool_choice", "parallel_tool_calls"}
)  # fmt: skip
_SAMPLE = re.compile(r"vllm:([a-z_]+)(?:\{[^}]*\})? (\S+)\Z")
# vLLM's names -> llama-server's names, which the rest of gpubox uses.
_COUNTERS = {
    "num_requests_running": "requests_processing",
    "num_requests_waiting": "requests_deferred",
    "generation_tokens_total": "tokens_predicted_total",
    "spec_decode_num_draft_tokens_total": "spec_decode_num_draft_tokens_total",
    "spec_decode_num_accepted_tokens_total": "spec_decode_num_accepted_tokens_total",
}
MAX_MODELS = 200
MAX_LINES = 20_000


def is_llama_props(props: Mapping[str, Any]) -> bool:
    """Whether an answer of ``/props`` is a llama-server's: LM Studio answers any path with status 200."""
    return not {"default_generation_settings", "build_info", "model_path", "total_slots"}.isdisjoint(props)


async def detect_dialect(client: LlamaClient) -> str:
    """The dialect of the server; empty if it is unknown or does not answer. Never raises."""
    if is_llama_props(await client.fetch_object("/props")):
        return LLAMA
    if client.denied:
        return ""
    if isinstance((await client.fetch_object("/api/version")).get("version"), str):
        return OLLAMA
    listed = await _items(client, "/v1/models", "data")
    if isinstance((await client.fetch_object("/version")).get("version"), str) and (
        any(item.get("owned_by") == "vllm" for item in listed) or await _vllm_metrics(client)
    ):
        return VLLM
    if await _lm_studio_models(client) is not None:
        return LM_STUDIO
    return OPENAI if any(isinstance(item.get("id"), str) for item in listed) else ""


async def read_other_server(client: LlamaClient, dialect: str) -> OtherServerReading | None:
    """What a server of ``dialect`` reports now; ``None`` if it does not answer. Never raises."""
    readers = {OLLAMA: _ollama, VLLM: _vllm, LM_STUDIO: _lm_studio}
    return await readers.get(dialect, _openai)(client)


def supported_fields(dialect: str, body: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of ``body`` that the server accepts."""
    accepted = EXTRA_FIELDS.get(dialect, frozenset()) | _OPENAI_FIELDS
    return {name: value for name, value in body.items() if name in accepted}


async def _ollama(client: LlamaClient) -> OtherServerReading | None:
    version = (await client.fetch_object("/api/version")).get("version")
    if not isinstance(version, str):
        return None
    loaded = [_ollama_model(item, True) for item in await _items(client, "/api/ps", "models")]
    tags = [_ollama_model(item, False) for item in await _items(client, "/api/tags", "models")]
    names = {model.name for model in loaded}
    models = [*loaded, *(model for model in tags if model.name not in names)]
    return OtherServerReading(OLLAMA, version, _named(models), not_reported=NOT_REPORTED[OLLAMA])


def _ollama_model(item: Mapping[str, Any], loaded: bool) -> OtherServerModel:
    details = item.get("details")
    return OtherServerModel(
        name=_text(item.get("model")) or _text(item.get("name")) or "",
        loaded=loaded,
        quantization=_text(details.get("quantization_level")) if isinstance(details, dict) else None,
        context_size_tokens=json_count(item.get("context_length")) if loaded else None,
        size_bytes=json_count(item.get("size")),
        vram_bytes=json_count(item.get("size_vram")) if loaded else None,
        expires_at=_text(item.get("expires_at")) if loaded else None,
    )


async def _vllm(client: LlamaClient) -> OtherServerReading | None:
    version = (await client.fetch_object("/version")).get("version")
    metrics = await _vllm_metrics(client)
    if not isinstance(version, str) and not metrics:
        return None
    listed = await _items(client, "/v1/models", "data")
    models = [
        OtherServerModel(_text(item.get("id")) or "", True, context_size_tokens=json_count(item.get("max_model_len")))
        for item in listed
    ]
    counters = {name: metrics[vllm_name] for vllm_name, name in _COUNTERS.items() if vllm_name in metrics}
    # vLLM's prompt tokens include the cached ones
    cached = metrics.get("prompt_tokens_cached_total", metrics.get("prefix_cache_hits_total"))
    if "prompt_tokens_total" in metrics and cached is not None:
        counters["prompt_tokens_total"] = max(0.0, metrics["prompt_tokens_total"] - cached)
        counters["prompt_tokens_cached_total"] = cached
    running, waiting = metrics.get("num_requests_running"), metrics.get("num_requests_waiting")
    off = "" if metrics else "; its /metrics does not answer"
    return OtherServerReading(
        VLLM,
        _text(version),
        _named(models),
        running_requests=None if running is None else int(running),
        waiting_requests=None if waiting is None else int(waiting),
        kv_cache_used=metrics.get("kv_cache_usage_perc", metrics.get("gpu_cache_usage_perc")),
        counters=counters or None,
        not_reported=NOT_REPORTED[VLLM] + off,
    )


async def _vllm_metrics(client: LlamaClient) -> dict[str, float]:
    """vLLM's ``/metrics``. Values of several engines are added up; of the KV cache usage the highest counts."""
    metrics: dict[str, float] = {}
    for line in (await client.fetch_text("/metrics")).splitlines()[:MAX_LINES]:
        sample = _SAMPLE.match(line) if line.startswith("vllm:") else None
        if sample and (value := _number(sample[2])) is not None:
            name = sample[1]
            before = metrics.get(name, 0.0)
            metrics[name] = max(value, before) if name.endswith("usage_perc") else before + value
    return metrics


async def _lm_studio(client: LlamaClient) -> OtherServerReading | None:
    models = await _lm_studio_models(client)
    if models is None:
        return None
    return OtherServerReading(LM_STUDIO, None, _named(models), not_reported=NOT_REPORTED[LM_STUDIO])


async def _lm_studio_models(client: LlamaClient) -> list[OtherServerModel] | None:
    """The models of ``/api/v1/models`` (LM Studio 0.4) or ``/api/v0/models``; ``None`` if there is neither."""
    newer = (await client.fetch_object("/api/v1/models")).get("models")
    if isinstance(newer, list) and all(isinstance(item, dict) and "loaded_instances" in item for item in newer):
        return [_lm_studio_model(item) for item in newer[:MAX_MODELS]]
    older = (await client.fetch_object("/api/v0/models")).get("data")
    if not isinstance(older, list) or not all(isinstance(item, dict) and "state" in item for item in older):
        return None
    return [
        OtherServerModel(
            name=_text(item.get("id")) or "",
            loaded=item.get("state") == "loaded",
            quantization=_text(item.get("quantization")),
            context_size_tokens=json_count(item.get("loaded_context_length")),
        )
        for item in older[:MAX_MODELS]
    ]


def _lm_studio_model(item: Mapping[str, Any]) -> OtherServerModel:
    instances = _objects(item.get("loaded_instances"))
    first = instances[0] if instances else {}
    config, quantization = first.get("config"), item.get("quantization")
    return OtherServerModel(
        name=_text(first.get("id")) or _text(item.get("key")) or "",
        loaded=bool(instances),
        quantization=_text(quantization.get("name")) if isinstance(quantization, dict) else _text(quantization),
        context_size_tokens=json_count(config.get("context_length")) if isinstance(config, dict) else None,
        size_bytes=json_count(item.get("size_bytes")),
    )


async def _openai(client: LlamaClient) -> OtherServerReading | None:
    listed = await _items(client, "/v1/models", "data")
    if not listed:
        return None
    models = [OtherServerModel(_text(item.get("id")) or "") for item in listed]
    return OtherServerReading(OPENAI, None, _named(models), not_reported=NOT_REPORTED[OPENAI])


def _named(models: list[OtherServerModel]) -> tuple[OtherServerModel, ...]:
    named = [model for model in models if model.name][:MAX_MODELS]
    return tuple(sorted(named, key=lambda model: model.loaded is not True))


async def _items(client: LlamaClient, path: str, field: str) -> list[dict[str, Any]]:
    return _objects((await client.fetch_object(path)).get(field))


def _objects(value: Any) -> list[dict[str, Any]]:
    return [item for item in value[:MAX_MODELS] if isinstance(item, dict)] if isinstance(value, list) else []


def _text(value: Any) -> str | None:
    return value if isinstance(value, str) and value else None


def _number(text: str) -> float | None:
    try:
        value = float(text)
    except ValueError:
        return None
    return value if 0 <= value < MAX_COUNT else None
