"""Flags that a benchmark changes: how they are applied, and which of them change answers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from gpubox.bench.model import RunInfo, Target
from gpubox.engines.capabilities import Capabilities
from gpubox.errors import UsageError
from gpubox.profiles.profile import SECRET_FLAGS, TOP_LEVEL_FLAGS, FlagValue, Profile

LOSSY_FLAGS = frozenset(
    {
        "cache-type-k", "ctk", "cache-type-v", "ctv", "override-kv", "lora", "lora-scaled", "control-vector",
        "control-vector-scaled", "rope-scaling", "rope-scale", "rope-freq-base", "rope-freq-scale", "yarn-orig-ctx",
        "yarn-ext-factor", "yarn-attn-factor", "yarn-beta-slow", "yarn-beta-fast", "grp-attn-n", "grp-attn-w",
        "reasoning-budget", "reasoning", "context-shift", "model",
    }
)  # fmt: skip
"""llama-server's flags that change the answer to a prompt. They are never recommended for speed alone."""
MODEL = "model"
"""The one field of a profile that a target may override."""
PROFILE = "profile"
"""The axis of a sweep over several profiles; their names are its values."""
LOSSLESS_KV_TYPES = frozenset({"f32", "f16", "bf16"})


def apply_overrides(profile: Profile, target: Target) -> Profile:
    """``profile`` with the target's overrides; an empty string removes a flag, ``model`` is the file to load instead.

    Raises UsageError for a companion profile (it runs next to what is measured), for another field of the profile and
    for a secret.
    """
    if profile.companion:
        raise UsageError(
            f"{profile.name} is a companion profile: it runs beside the active one.",
            "Benchmarks measure only the active profile.",
        )
    overrides = dict(target.overrides)
    if model := str(overrides.pop(MODEL, "")):
        profile = replace(profile, model=model)
    for name in overrides:
        flag = name.lstrip("-").replace("_", "-")
        if flag in TOP_LEVEL_FLAGS:
            raise UsageError(f"{flag} is a field of the profile, not a flag.", "Write a second profile to compare.")
        if flag in SECRET_FLAGS or flag == "api-key-file":
            raise UsageError(f"{flag} is a secret, so no run may set it.", "Put the key into the api-key file.")
    flags = {**profile.flags, **overrides}
    return replace(profile, flags={name: value for name, value in flags.items() if value != ""})


def toggle_mtp(profile: Profile) -> tuple[str, Mapping[str, FlagValue]]:
    """MTP off if the profile uses it, otherwise on: a label and the overrides."""
    value = profile.flags.get("spec-type", "none")
    kinds = [str(kind) for kind in value] if isinstance(value, tuple) else str(value).split(",")
    if "draft-mtp" in kinds:
        synthetic = [name for name in profile.flags if name.startswith("spec-synth-")]  # refused without a draft
        return "without MTP", {"spec-type": "none", **dict.fromkeys(synthetic, "")}
    return "with MTP", {"spec-type": "draft-mtp"}


def toggle_mmap(profile: Profile, capabilities: Capabilities) -> tuple[str, Mapping[str, FlagValue]]:
    """mmap off if the profile maps the model, otherwise on: a label and the overrides."""
    mode = capabilities.option("load-mode")
    if mode is None or mode.removed is not None:  # builds before b11000 or so
        off = profile.flags.get("mmap") is False or profile.flags.get("no-mmap") is True
        name = "no-mmap" if "no-mmap" in profile.flags else "mmap"
        return ("with mmap", {name: ""}) if off else ("without mmap", {"mmap": False})
    off = profile.flags.get("load-mode", "auto") not in ("auto", "mmap", "mmap+mlock")
    return ("with mmap", {"load-mode": "mmap"}) if off else ("without mmap", {"load-mode": "none"})


def lossy_values(flags: Mapping[str, FlagValue]) -> dict[str, str]:
    """The flags that change answers, with their values. Lossless KV types are left out."""
    return {
        name: str(value)
        for name, value in flags.items()
        if name in LOSSY_FLAGS
        and value != ""
        and not (name.startswith(("cache-type", "ct")) and str(value) in LOSSLESS_KV_TYPES)
    }


def lossy_difference(info: RunInfo) -> str:
    """A sentence if the targets of a run would answer differently; empty if, as far as known, only speed differs.

    Considers the overrides and the model files.
    """
    values = [lossy_values(target.overrides) for target in info.plan.targets]
    differing = {name for own in values for name in own if any(other.get(name) != own[name] for other in values)}
    names = sorted(differing - {MODEL})  # the files are compared by their hashes
    models = {provenance.model_sha256 or provenance.model_path for provenance in info.provenance.values()} - {""}
    if len(models) > 1:
        names.append("the model file")
    if not names:
        return ""
    return (
        f"The targets differ in {' and '.join(names)}, which also changes the answers: do not choose by speed alone. "
        "`gpubox bench humaneval` and `suite` measure the difference."
    )


def cell_name(values: Mapping[str, FlagValue], labels: Mapping[str, str] | None = None) -> str:
    """``n-cpu-moe=4 ctx-size=8192``; a profile and a model stand for themselves."""
    parts = []
    for flag, value in values.items():
        text = format_flag_value(value)
        text = (labels or {}).get(text, text) if flag == MODEL else text
        parts.append(text if flag in (MODEL, PROFILE) else f"{flag}={text}")
    return " ".join(parts)


def format_flag_value(value: FlagValue) -> str:
    """A value as it is written on a command line."""
    if isinstance(value, tuple):
        return ",".join(map(str, value))
    return str(value).lower() if isinstance(value, bool) else str(value) if value != "" else "(left out)"
