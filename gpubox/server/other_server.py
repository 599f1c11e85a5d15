"""What a server that is not a llama-server reports: values."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from gpubox import units

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
