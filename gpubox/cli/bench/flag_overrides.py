"""The flags and models that a benchmark sets for a profile, from the command line; refused before anything stops."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from gpubox.bench.model import Target
from gpubox.cli.context import Context

if TYPE_CHECKING:
    from gpubox.engines.capabilities import Capabilities
    from gpubox.profiles.profile import FlagValue, Profile


def profile_capabilities(context: Context, profile: Profile) -> Capabilities:
    """What the engine of ``profile`` accepts. Raises GpuboxError."""
    from gpubox.engines.find import choose_engine
    from gpubox.engines.query import read_capabilities

    return read_capabilities(choose_engine(context.config, profile.engine), context.paths)


def read_overrides(context: Context, profile: Profile, settings: Sequence[str]) -> dict[str, FlagValue]:
    """Every ``--set flag=value``, under the profile's own name of the flag. Raises UsageError."""
    if not settings:
        return {}
    from gpubox.engines.flag_changes import parse_flag_change, with_flag_keys

    overrides = dict(parse_flag_change(text) for text in settings)
    if overrides.get("model"):
        overrides["model"] = model_file(context, profile, str(overrides["model"]))
    return dict(with_flag_keys(overrides, profile, profile_capabilities(context, profile)))


def check_overrides(context: Context, target: Target) -> None:
    """Raises UsageError if the engine does not list one of the flags. Called before anything is stopped."""
    from gpubox.bench.overrides import apply_overrides
    from gpubox.server.launch import check_flags

    profile = context.profile(target.profile)
    check_flags(apply_overrides(profile, target), profile_capabilities(context, profile))


def model_file(context: Context, profile: Profile, text: str) -> str:
    """The absolute path of a model: a file in the current folder, else as a profile names it.

    A model on Hugging Face that is not here yet stays as it is. Raises GpuboxError.
    """
    from pathlib import Path

    from gpubox.models.gguf import check_gguf
    from gpubox.models.resolve import profile_model

    here = Path(text).expanduser()
    path = here.absolute() if here.is_file() else None
    path = path or profile_model(replace(profile, model=text), context.paths, context.config).path
    if path is None:
        return text
    check_gguf(path)
    return str(path)
