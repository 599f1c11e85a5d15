"""Which settings change what a model answers, not only how fast: those are never recommended on speed alone. Pure."""

from __future__ import annotations

from collections.abc import Mapping

from gpubox.bench.model import RunInfo
from gpubox.profiles.profile import FlagValue

LOSSY_FLAGS = frozenset(
    {
        "cache-type-k", "ctk", "cache-type-v", "ctv", "override-kv", "lora", "lora-scaled", "control-vector",
        "control-vector-scaled", "rope-scaling", "rope-scale", "rope-freq-base", "rope-freq-scale", "yarn-orig-ctx",
        "yarn-ext-factor", "yarn-attn-factor", "yarn-beta-slow", "yarn-beta-fast", "grp-attn-n", "grp-attn-w",
        "reasoning-budget", "reasoning", "context-shift",
    }
)  # fmt: skip
"""llama-server's names of flags with which the same prompt gets other answers: KV types, adapters, rope."""
LOSSLESS_KV_TYPES = frozenset({"f32", "f16", "bf16"})
"""KV types that lose nothing that matters."""


def lossy_values(flags: Mapping[str, FlagValue]) -> dict[str, str]:
    """The settings among ``flags`` that change answers, and their values; KV types that lose nothing are none."""
    found = {name: str(value) for name, value in flags.items() if name in LOSSY_FLAGS and value != ""}
    return {
        name: value
        for name, value in found.items()
        if not (name.startswith(("cache-type", "ct")) and value in LOSSLESS_KV_TYPES)
    }


def lossy_difference(info: RunInfo) -> str:
    """A sentence where the targets of a run would answer differently; empty where only speed differs, as far as known.

    Looks at the flags that the run changed and at the model files.
    """
    kinds = [lossy_values(target.overrides) for target in info.plan.targets]
    names = sorted({name for kind in kinds for name in kind if any(other.get(name) != kind[name] for other in kinds)})
    models = {found.model_sha256 or found.model_path for found in info.provenance.values()} - {""}
    if len(models) > 1:
        names.append("the model file")
    if not names:
        return ""
    return (
        f"They differ in {' and '.join(names)}, which changes the answers too: speed alone recommends neither. "
        "`gpubox bench humaneval` and `suite` tell what it costs."
    )
