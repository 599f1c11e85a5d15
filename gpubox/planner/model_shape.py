"""What of a model decides the size of its caches: layers, heads, windows, recurrent states. Pure, from the GGUF header.

llama.cpp (build 11434): src/llama-model.cpp ``load_hparams`` and ``create_memory``, src/llama-hparams.cpp, src/models/.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from gpubox.models.gguf import GgufFile
from gpubox.models.gguf_header import GGML_BLOCKS, MetadataValue

MAX_LAYERS = 512
"""``LLAMA_MAX_LAYERS``."""
_PLAIN = frozenset({
    "llama", "mistral3", "qwen2", "qwen2moe", "qwen2vl", "qwen3", "qwen3moe", "qwen3vl", "qwen3vlmoe", "phi2", "phi3",
    "phimoe", "gemma", "glm4", "glm4moe", "chatglm", "granite", "granitemoe", "starcoder2", "starcoder", "internlm2",
    "stablelm", "falcon", "command-r", "olmo", "olmoe", "smollm3", "seed_oss", "ernie4_5", "ernie4_5-moe", "dots1",
    "hunyuan-moe", "hunyuan-dense", "bailingmoe", "bailingmoe2", "arcee", "apertus", "minimax-m2", "exaone", "nemotron",
    "deci", "dbrx", "minicpm", "baichuan", "gptneox", "deepseek", "deepseek2",
})  # fmt: skip
"""Every layer of the trunk has a KV cache of the whole context."""
_WINDOWED = {"gemma2": (2, 4096), "gemma3": (6, 0), "cohere2": (4, 0), "gpt-oss": (2, 0), "llama4": (4, 8192)}
"""Sliding windows: architecture -> (every Nth layer is full, the window if the header names none)."""
_HYBRID = {"qwen35": True, "qwen35moe": True, "qwen3next": False}
"""Linear attention beside full attention -> whether its state rolls back (``llm_arch_supports_rs_rollback``)."""


@dataclass(frozen=True, slots=True)
class LayerShape:
    """The caches of one layer."""

    k_width: int
    """Elements of K for each token; 0: no KV cache."""
    v_width: int
    windowed: bool = False
    recurrent_bytes: int = 0
    """Bytes of one recurrent state."""


@dataclass(frozen=True, slots=True)
class ModelShape:
    """The layers of a model, the draft head's (nextn) at the end."""

    layers: tuple[LayerShape, ...]
    draft_layers: int
    trained_context: int
    window: int
    """Tokens that a windowed layer attends to; 0: there is none."""
    rollback: bool
    """Whether the recurrent states are kept for each draft token."""
    v_padded: bool
    """Whether V differs between layers: without flash attention all get the largest."""
    experts: bool
    expert_share: float
    """Of the experts' weights, what one token uses; 1.0 without experts, or if the header does not say."""
    tied_output: bool
    """Whether the output uses the input's embedding."""
    doubts: tuple[str, ...]
    """Why the formulas may not hold for this model; empty: they do."""

    @property
    def trunk(self) -> int:
        """The layers without those of the draft head."""
        return len(self.layers) - self.draft_layers


def read_shape(model: GgufFile) -> ModelShape:
    """The shape of a model. Never raises: what it cannot know becomes a doubt."""
    keys = _Keys(model.architecture, model.metadata)
    doubts: list[str] = []
    architecture = model.architecture
    count = keys.number("block_count", 0)
    if not 0 < count <= MAX_LAYERS:
        doubts.append(f"a header that states {count} layers")
        count = 0
    draft = min(max(0, keys.number("nextn_predict_layers", 0)), count)
    window = _window(keys, architecture)
    known = architecture in _PLAIN or architecture in _WINDOWED or architecture in _HYBRID
    if not known:
        doubts.append(f"the architecture {architecture or 'of this model'}")
    if keys.has("attention.sliding_window") and window == 0 and architecture not in {"phi3", *_WINDOWED}:
        doubts.append("the sliding window of this model")
    if any(tensor.type not in GGML_BLOCKS for tensor in model.tensors):
        doubts.append("a tensor type that gpubox does not know")
    recurrent = _recurrent(keys, architecture, count, draft)
    state_bytes = _state_bytes(keys) if any(recurrent) else 0
    layers = tuple(
        LayerShape(0, 0, recurrent_bytes=state_bytes)
        if recurrent[layer]
        else _attention(keys, layer, architecture, window, count - draft)
        for layer in range(count)
    )
    if any(shape.k_width < 0 or shape.v_width < 0 or shape.k_width > 1 << 24 for shape in layers) or state_bytes < 0:
        doubts.append("unusual sizes in the header")
    names = {tensor.name for tensor in model.tensors}
    experts, used = keys.number("expert_count", 0), keys.number("expert_used_count", 0)
    return ModelShape(
        layers=layers,
        draft_layers=draft,
        trained_context=max(0, min(keys.number("context_length", 0), 1 << 32)),
        window=window,
        rollback=_HYBRID.get(architecture, False),
        v_padded=len({shape.v_width for shape in layers if shape.v_width}) > 1,
        experts=experts > 0,
        expert_share=used / experts if 0 < used < experts else 1.0,
        tied_output="output.weight" not in names and "token_embd.weight" in names,
        doubts=tuple(doubts),
    )


class _Keys:
    def __init__(self, architecture: str, metadata: Mapping[str, MetadataValue]) -> None:
        self._prefix, self._metadata = architecture, metadata

    def has(self, key: str) -> bool:
        return f"{self._prefix}.{key}" in self._metadata

    def get(self, key: str) -> MetadataValue | None:
        return self._metadata.get(f"{self._prefix}.{key}")

    def number(self, key: str, default: int) -> int:
        value = self.get(key)
        return int(value) if isinstance(value, int) else default

    def of_layer(self, key: str, layer: int, default: int) -> int:
        """A key that holds one number, or one for each layer."""
        value = self.get(key)
        if isinstance(value, tuple):
            return int(value[layer]) if layer < len(value) else default
        return int(value) if isinstance(value, int) else default


def _window(keys: _Keys, architecture: str) -> int:
    if architecture not in _WINDOWED:
        return 0
    if architecture == "llama4":  # chunks of a fixed size, unless the header says that there are none
        return 0 if keys.get("attention.sliding_window") == 0 else _WINDOWED[architecture][1]
    return max(0, keys.number("attention.sliding_window", _WINDOWED[architecture][1]))


def _is_windowed(keys: _Keys, layer: int, architecture: str) -> bool:
    pattern = keys.get("attention.sliding_window_pattern")
    if isinstance(pattern, tuple):
        return bool(pattern[layer]) if layer < len(pattern) else False
    period = pattern if isinstance(pattern, int) and not isinstance(pattern, bool) else _WINDOWED[architecture][0]
    return period == 0 or layer % period < period - 1


def _recurrent(keys: _Keys, architecture: str, count: int, draft: int) -> list[bool]:
    if architecture not in _HYBRID:
        return [False] * count
    given = keys.get("attention.recurrent_layers")
    if isinstance(given, tuple) and len(given) >= count:
        return [bool(given[layer]) for layer in range(count)]
    interval = max(1, keys.number("full_attention_interval", 4))
    return [layer < count - draft and (layer + 1) % interval != 0 for layer in range(count)]


def _state_bytes(keys: _Keys) -> int:
    """One state of a gated delta net, always F32: ``n_embd_r`` and ``n_embd_s`` of llama-hparams.cpp."""
    inner, state = keys.number("ssm.inner_size", 0), keys.number("ssm.state_size", 0)
    convolution = max(0, keys.number("ssm.conv_kernel", 0) - 1)
    return 4 * (convolution * (inner + 2 * keys.number("ssm.group_count", 0) * state) + state * inner)


def _attention(keys: _Keys, layer: int, architecture: str, window: int, trunk: int) -> LayerShape:
    heads = keys.of_layer("attention.head_count", layer, 0)
    kv_heads = keys.of_layer("attention.head_count_kv", layer, heads)
    first_heads = keys.of_layer("attention.head_count", 0, 0)
    width = keys.number("embedding_length", 0) // first_heads if first_heads > 0 else 0
    k_length = keys.number("attention.key_length", width)
    v_length = keys.number("attention.value_length", width)
    windowed = window > 0 and layer < trunk and _is_windowed(keys, layer, architecture)
    if windowed:
        k_length = keys.number("attention.key_length_swa", k_length)
        v_length = keys.number("attention.value_length_swa", v_length)
    if keys.has("attention.key_length_mla") and keys.has("attention.value_length_mla"):
        v_length = 0  # multi-head latent attention keeps one compressed K and no V
    return LayerShape(k_length * kv_heads, v_length * kv_heads, windowed)


LAYER_TENSOR = re.compile(r"blk\.(\d{1,4})\.")
