"""Finds GGUF models on this machine, in the folders where the common tools put them."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path

from gpubox.config import Config
from gpubox.models.gguf import SHARD_NAME, may_be_gguf
from gpubox.models.quants import is_companion
from gpubox.paths import Paths

_DEPTH = 5  # LM Studio: publisher/model/file; Hugging Face: models--x--y/snapshots/revision/folder/file
_SECONDS = 2.0  # so that a network disk does not block the screen
_SKIPPED_FOLDERS = {"blobs", ".git", ".no_exist", ".locks", "refs"}


def model_roots(config: Config, paths: Paths) -> list[Path]:
    """The folders to search, the owner's first. They need not exist."""
    home = Path.home()
    cache = _folder("XDG_CACHE_HOME") or home / ".cache"
    roots = [
        *config.model_dirs,
        paths.models,
        home / "models",
        *filter(None, [_folder("LLAMA_CACHE")]),
        cache / "llama.cpp",
        hub_cache(),
        home / ".lmstudio" / "models",
        home / ".cache" / "lm-studio" / "models",
    ]
    return list(dict.fromkeys(roots))


def hub_cache() -> Path:
    """The cache that huggingface_hub and llama.cpp share: ``$HF_HUB_CACHE``, ``$HF_HOME/hub`` or the default."""
    return _folder("HF_HUB_CACHE") or hub_home() / "hub"


def hub_home() -> Path:
    """The folder of huggingface_hub's files: ``$HF_HOME`` or the default."""
    return _folder("HF_HOME") or (_folder("XDG_CACHE_HOME") or Path.home() / ".cache") / "huggingface"


def find_models(config: Config, paths: Paths) -> list[Path]:
    """All models, sorted: the first shard of a split model, and one path of each file.

    Searches five folders deep for at most two seconds, and skips folders that cannot be read.
    """
    deadline = time.monotonic() + _SECONDS
    models: dict[tuple[int, int], Path] = {}
    visited: set[tuple[int, int]] = set()
    for root in model_roots(config, paths):
        for entry in _walk(root, _DEPTH, deadline, visited):
            if not _is_model(entry.name):
                continue
            try:
                status = entry.stat()
            except OSError:
                continue  # a dangling link
            identity = status.st_dev, status.st_ino
            if identity not in models and may_be_gguf(Path(entry.path)):
                models[identity] = Path(entry.path)
    return sorted(models.values())


def _is_model(name: str) -> bool:
    shard = SHARD_NAME.search(name)
    return name.lower().endswith(".gguf") and not is_companion(name) and (shard is None or int(shard[1]) == 1)


def _walk(folder: Path | str, depth: int, deadline: float, visited: set[tuple[int, int]]) -> Iterator[os.DirEntry[str]]:
    """The files below ``folder``. Follows links, and visits each folder once."""
    try:
        status = Path(folder).stat()
        identity = (status.st_dev, status.st_ino)
        if identity in visited or time.monotonic() > deadline:
            return
        visited.add(identity)
        with os.scandir(folder) as entries:
            listed = sorted(entries, key=lambda entry: entry.name)
    except (OSError, ValueError):
        return
    for entry in listed:
        try:
            is_folder = entry.is_dir()
        except OSError:
            continue
        if not is_folder:
            yield entry
        elif depth > 0 and entry.name not in _SKIPPED_FOLDERS:
            yield from _walk(entry.path, depth - 1, deadline, visited)


def _folder(variable: str) -> Path | None:
    value = os.environ.get(variable, "").strip()
    return Path(value).expanduser() if value else None
