"""The targets of a plan, from profiles, addresses and ``--set``: the flags that are changed, refused before a stop."""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from gpubox.address import server_root
from gpubox.bench.kind import PlanContext
from gpubox.bench.model import RunInfo, Target
from gpubox.engines.capabilities import Capabilities
from gpubox.engines.find import choose_engine
from gpubox.engines.option_values import parse_flag_change, with_flag_keys
from gpubox.engines.query import read_capabilities
from gpubox.errors import ExitCode, GpuboxError, UsageError
from gpubox.models.gguf import check_gguf
from gpubox.models.resolve import profile_model
from gpubox.paths import MAIN_INSTANCE
from gpubox.profiles.profile import SECRET_FLAGS, TOP_LEVEL_FLAGS, FlagValue, Profile
from gpubox.server.instance import observe
from gpubox.server.launch import check_flags

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


def random_seed() -> int:
    """The seed of the order of the server starts; another one for each run, kept in its plan."""
    return secrets.randbelow(1 << 31)


def given_targets(context: PlanContext, given: dict[str, Any]) -> list[Target]:
    """Takes profiles, ``url`` and ``model`` out of ``given``: the profiles, else the server there, else what runs.

    Raises GpuboxError.
    """
    names, url, model = list(dict.fromkeys(given.pop("profiles", ()))), given.pop("url", None), given.pop("model", "")
    if url is not None:
        if names:
            raise UsageError("--url takes no profile: it measures the server at that address.")
        return [target_by_url(url, model)]
    if model:
        raise UsageError("--model needs --url.", "A profile names its own model.")
    if not names:
        running = observe(context.paths, MAIN_INSTANCE).running
        if running is None:
            raise GpuboxError(
                "Nothing is running.", "Name a profile: `gpubox ls` lists them.", code=ExitCode.NOT_RUNNING
            )
        names = [running.launch.profile]
    targets = [Target(name, profile=name) for name in names]
    for target in targets:
        apply_overrides(context.profile(target.profile), target)  # raises for a profile that cannot be measured
    return targets


def target_by_url(url: str, model: str = "") -> Target:
    """The server at ``url``. Raises UsageError if that is no address, or may hold a secret."""
    root = server_root(url)
    return Target(root.partition("://")[2], url=root, model=model)


def profile_capabilities(context: PlanContext, profile: Profile) -> Capabilities:
    """What the engine of ``profile`` accepts. Raises GpuboxError."""
    return read_capabilities(choose_engine(context.config, profile.engine), context.paths)


def read_overrides(context: PlanContext, profile: Profile, settings: Sequence[str]) -> dict[str, FlagValue]:
    """Every ``--set flag=value``, under the profile's own name of the flag. Raises UsageError."""
    if not settings:
        return {}
    overrides: dict[str, FlagValue] = dict(parse_flag_change(text) for text in settings)
    if overrides.get("model"):
        overrides["model"] = model_file(context, profile, str(overrides["model"]))
    return dict(with_flag_keys(overrides, profile, profile_capabilities(context, profile)))


def check_overrides(context: PlanContext, target: Target) -> None:
    """Raises UsageError if the engine does not list one of the flags. Called before anything is stopped."""
    profile = context.profile(target.profile)
    check_flags(apply_overrides(profile, target), profile_capabilities(context, profile))


def model_file(context: PlanContext, profile: Profile, text: str) -> str:
    """The absolute path of a model: a file in the current folder, else as a profile names it.

    A model on Hugging Face that is not here yet stays as it is. Raises GpuboxError.
    """
    here = Path(text).expanduser()
    path = here.absolute() if here.is_file() else None
    path = path or profile_model(replace(profile, model=text), context.paths, context.config).path
    if path is None:
        return text
    check_gguf(path)
    return str(path)


def cell_target(profile: str, overrides: Mapping[str, FlagValue]) -> Target:
    """A profile with other flags, named after them."""
    return Target(" ".join(filter(None, (profile, cell_name(overrides)))), profile, overrides)
