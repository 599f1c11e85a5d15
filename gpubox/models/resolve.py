"""Finds the model that a profile names on this machine. Fast and offline: downloads nothing."""

from __future__ import annotations

import contextlib
import os
import re
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from gpubox.config import Config
from gpubox.errors import GpuboxError
from gpubox.models.demo_model import find_demo, parse_demo
from gpubox.models.find import find_models, hub_cache, model_roots
from gpubox.models.gguf import shards_size
from gpubox.models.quants import HfReference, choose_files, group_shards, parse_reference
from gpubox.paths import Paths
from gpubox.profiles.flag_values import GGUF_FLAGS, map_paths
from gpubox.profiles.profile import FlagValue, Profile, check_launched_here
from gpubox.toml_table import closest_match


@dataclass(frozen=True, slots=True)
class ModelSource:
    """Where a profile's model is, or how to get it."""

    text: str
    """As written in the profile."""
    name: str
    """Short, for the screen: the file's stem, or the text after ``hf:`` or ``demo:``."""
    argv: tuple[str, ...]
    """The server's arguments for the model; empty if it must be downloaded."""
    path: Path | None
    """The first file. A path from the profile need not exist. None if the model must be downloaded."""
    fetch: Literal["", "demo", "hf"]
    """How to download it; empty if there is no need."""
    size: int | None
    """Bytes of all its files, if known."""


def profile_model(profile: Profile, paths: Paths, config: Config) -> ModelSource:
    """The model of ``profile``. A relative path starts at the folder of the profile's file. See ``resolve_model``.

    Raises UsageError for a profile that runs elsewhere.
    """
    check_launched_here(profile)
    return resolve_model(profile.model, paths, config, _folder(profile))


def resolve_model(text: str, paths: Paths, config: Config, folder: Path | None = None) -> ModelSource:
    """The model that ``text`` names: a path, ``hf:user/repo[:quant]`` or ``demo:NAME``.

    A path may contain ``~`` and ``$VARIABLES``. A relative one starts at ``folder``, or is searched in all folders with
    models; never in the current folder, so that it means the same file wherever gpubox is called. Raises GpuboxError. A
    missing absolute path is reported by ``check_gguf``.
    """
    if text.startswith("demo:"):
        demo = parse_demo(text)
        path = find_demo(demo, paths)
        return _source(text, path, "demo", name=Path(demo.file).stem, size=demo.size)
    if text.startswith("hf:"):
        reference = parse_reference(text)
        return _source(text, find_cached_model(reference), "hf", name=str(reference).removeprefix("hf:"))
    return _source(text, _local(text, paths, config, folder), "hf")


def with_resolved_flag_paths(profile: Profile, paths: Paths, config: Config) -> Profile:
    """``profile`` with absolute paths in its flags, found as in ``resolve_model``."""
    folder = _folder(profile)

    def absolute(name: str, text: str) -> str:
        if folder is None or text.startswith(("/", "~", "$")):
            return text
        beside = folder / text
        if name in GGUF_FLAGS and not beside.exists():
            with contextlib.suppress(GpuboxError):
                return str(_local(text, paths, config, folder))
        return str(beside)

    def value(name: str, old: FlagValue) -> FlagValue:
        return map_paths(name, old, lambda text: absolute(name, text))

    return replace(profile, flags={name: value(name, old) for name, old in profile.flags.items()})


def _folder(profile: Profile) -> Path | None:
    return profile.path.parent.absolute() if profile.path else None


def find_cached_model(reference: HfReference) -> Path | None:
    """The first file of a model that is complete in the Hugging Face cache, or None."""
    folder = hub_cache() / f"models--{reference.repo.replace('/', '--')}"
    try:
        snapshots = sorted((folder / "snapshots").iterdir(), key=lambda p: p.stat().st_mtime, reverse=True)
        revision = (folder / "refs" / "main").read_text().strip() if (folder / "refs" / "main").is_file() else ""
    except (OSError, UnicodeDecodeError):
        return None
    snapshots.sort(key=lambda p: p.name != revision)  # stable: main first, then the newest
    for snapshot in snapshots:
        # huggingface_hub links a file into a snapshot only once it is complete.
        names = [str(p.relative_to(snapshot)) for p in snapshot.rglob("*.gguf") if p.is_file()]
        models = group_shards(names)
        if not models:
            continue
        if not reference.quant and len(models) == 1:
            return snapshot / next(iter(models))
        with contextlib.suppress(GpuboxError):
            return snapshot / choose_files(reference, names)[0]
    return None


def _source(
    text: str, path: Path | None, fetch: Literal["demo", "hf"], name: str = "", size: int | None = None
) -> ModelSource:
    if path is None:
        return ModelSource(text, name, (), None, fetch, size)
    return ModelSource(text, name or path.stem, ("--model", str(path)), path, "", shards_size(path))


def _local(text: str, paths: Paths, config: Config, folder: Path | None) -> Path:
    expanded = os.path.expandvars(text)
    if unset := re.search(r"\$(?:\{(\w+)\}|(\w+))", expanded):
        variable = unset[1] or unset[2]
        raise GpuboxError(f"The model {text!r} names ${variable}, which is not set.", "Set it, or write the path.")
    try:
        path = Path(expanded).expanduser()
    except RuntimeError:
        raise GpuboxError(f"The model {text!r} names a user that this machine does not have.") from None
    if path.is_absolute():
        return path
    if folder and (folder / path).exists():
        return folder / path
    for root in model_roots(config, paths):
        if (root / path).is_file():
            return root / path
    models = find_models(config, paths)
    same = [model for model in models if model.name == path.name and len(path.parts) == 1]
    if len(same) > 1:
        raise GpuboxError(
            f"There are {len(same)} models called {path.name}: {', '.join(map(str, same[:3]))}.", "Write the full path."
        )
    if same:
        return same[0]
    near = closest_match(path.name, [model.name for model in models])
    hint = f"Did you mean {near}?" if near else "Write its full path, or add its folder to model-dirs in config.toml."
    searched = f"{folder} and the model folders" if folder else "the model folders"
    raise GpuboxError(f"There is no model {text!r} in {searched}.", hint)
