"""K/V cache types: those for which a CUDA build has no attention, and f16 for Qwen3.5-like models."""

from __future__ import annotations

from gpubox.advisor.advice import Judgement, Rule
from gpubox.advisor.evidence import QWEN35_LIKE, Evidence

CUDA_TYPES = frozenset({"f32", "f16", "bf16", "q8_0", "q4_0"})
"""The types, equal for K and V, for which a default CUDA build has a flash-attention kernel: ggml-cuda/fattn.cu
``ggml_cuda_fattn_kv_type_supported`` and the comparison of K and V below it (ggml-org/llama.cpp#27109, #28455)."""
FORK_TYPES = ("turbo",)
"""Types of forks, whose builds have kernels of their own."""
_AMPERE = 8.0
"""Compute capability from which CUDA cards compute with bf16."""


def _read_cpu_attention(evidence: Evidence) -> Judgement | None:
    """Attention falls back to the CPU, and nothing is logged.

    Evidence: the types of the launch, a card with CUDA that holds a KV cache, and no ``FA_ALL_QUANTS = 1`` in the log.
    Source: ggml-org/llama.cpp#28455 (RTX 4080: 1,511 -> 197 tok/s of pp), #27109 (RTX 3090: 34 tok/s of pp).
    """
    flags = evidence.memory_flags
    if flags is None or evidence.log.all_quants or flags.flash_attention != "on" or not flags.kv_on_device:
        return None
    if any(kind.startswith(FORK_TYPES) for kind in (flags.type_k, flags.type_v)):
        return None
    cards = [device for device in evidence.accelerators if device.device.startswith("CUDA") and device.kv_bytes]
    equal = flags.type_k == flags.type_v
    if not cards or (equal and flags.type_k in CUDA_TYPES):
        return None
    why = f"{flags.type_k}" if equal else f"K {flags.type_k} beside V {flags.type_v}"
    near = "q4_0" if {flags.type_k, flags.type_v} <= {"q4_0", "q4_1", "iq4_nl"} else "q8_0"
    return Judgement(
        f"A default CUDA build has no attention for {why}: it runs on the CPU, and nothing says so.",
        (
            f"cache-type-k {flags.type_k}, cache-type-v {flags.type_v}, flash-attn on",
            "the log does not name FA_ALL_QUANTS, with which the engine would have been built for all types",
            "pp 197 instead of 1,511 tok/s on an RTX 4080 (ggml-org/llama.cpp#28455)",
        ),
        (("cache-type-k", near), ("cache-type-v", near)),
    )


def _read_half_precision(evidence: Evidence) -> Judgement | None:
    """f16, or unequal types, for a model that was trained and released in bf16.

    Evidence: architecture and types. Reported, not measured here: an article on Qwen 3.5 ("requires bf16 KV cache for
    correct inference"); ggml-org/llama.cpp#26856 measured about 5 % more perplexity with f16 at depth. Types that save
    memory on purpose (q8_0 for both) are left alone. Silent for cards without bf16.
    """
    flags, model = evidence.memory_flags, evidence.model
    if flags is None or model is None or model.architecture not in QWEN35_LIKE or not flags.kv_on_device:
        return None
    types = (flags.type_k, flags.type_v)
    if not evidence.accelerators or not ("f16" in types or "f32" in types) or "bf16" in types:
        return None
    capabilities = [float(gpu.compute_capability) for gpu in evidence.cards if gpu.compute_capability]
    if capabilities and min(capabilities) < _AMPERE:
        return None
    return Judgement(
        "Models like Qwen3.5 are reported to answer worse with an f16 KV cache; bf16 takes the same memory.",
        (
            f"architecture {model.architecture}; cache-type-k {flags.type_k}, cache-type-v {flags.type_v}",
            "reported, not measured here: perplexity about 5 % higher with f16 at depth (ggml-org/llama.cpp#26856)",
        ),
        (("cache-type-k", "bf16"), ("cache-type-v", "bf16")),
    )


CPU_ATTENTION = Rule("kv-cpu", "attention", _read_cpu_attention)
HALF_PRECISION = Rule("kv-bf16", "KV types", _read_half_precision)
