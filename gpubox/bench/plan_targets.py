"""The targets of a plan, from profiles, addresses and ``--set``; refused before anything stops."""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from gpubox.address import server_root
from gpubox.bench.kind import PlanContext
from gpubox.bench.model import Target
from gpubox.bench.overrides import apply_overrides, cell_name
from gpubox.engines.capabilities import Capabilities
from gpubox.engines.find import choose_engine
from gpubox.engines.option_values import parse_flag_change, with_flag_keys
from gpubox.engines.query import read_capabilities
from gpubox.errors import ExitCode, GpuboxError, UsageError
from gpubox.models.gguf import check_gguf
from gpubox.models.resolve import profile_model
from gpubox.paths import MAIN_INSTANCE
from gpubox.profiles.profile import FlagValue, Profile
from gpubox.server.instance import observe
from gpubox.server.launch import check_flags


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
