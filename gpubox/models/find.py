"""Finds models on this machine: gpubox's folders, Hugging Face's cache, Ollama's and LM Studio's."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from gpubox.config import Config
from gpubox.models.gguf import SHARD_NAME, may_be_gguf, shard_names, shards_size
from gpubox.models.quants import is_companion
from gpubox.paths import Paths
from gpubox.storage import read_bytes, read_json

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


_MANIFEST_BYTES = 1 << 20
_MODEL_LAYER = "application/vnd.ollama.image.model"
_DIGEST = re.compile(r"sha256:([0-9a-f]{64})")
_SYSTEM_OLLAMA = Path("/usr/share/ollama/.ollama/models")
"""Where Ollama's systemd unit stores models."""


@dataclass(frozen=True, slots=True)
class LocalModel:
    """A model on this machine."""

    name: str
    path: Path
    """The first shard."""
    size_bytes: int | None
    """Of all shards; None if one is missing."""
    place: str
    """``Ollama``, ``LM Studio``, ``Hugging Face``, or the folder."""
    shards: int = 1


def find_local_models(text: str, config: Config, paths: Paths) -> list[LocalModel]:
    """The models whose name or path contains all words of ``text``, by name; all models for an empty text."""
    words = text.lower().split()
    models = [_model(path) for path in find_models(config, paths)]
    known = {model.path.resolve() for model in models}
    models += [model for model in ollama_models() if model.path.resolve() not in known]
    chosen = [model for model in models if all(word in f"{model.name} {model.path}".lower() for word in words)]
    return sorted(chosen, key=lambda model: (model.name.lower(), str(model.path)))


def ollama_models() -> Iterator[LocalModel]:
    """The models in Ollama's store: a manifest for each name, the GGUF under the checksum that it states."""
    visited: set[tuple[str, Path]] = set()
    for folder in _ollama_folders():
        for manifest in sorted(folder.glob("manifests/*/*/*/*")):  # host, user, model, tag
            blob = _blob(manifest, folder / "blobs")
            user, model, tag = manifest.parts[-3:]
            name = f"{model}:{tag}" if user == "library" else f"{user}/{model}:{tag}"
            if blob is None or (name, blob) in visited:
                continue
            visited.add((name, blob))
            yield LocalModel(name, blob, blob.stat().st_size, "Ollama")


def _ollama_folders() -> Sequence[Path]:
    given = os.environ.get("OLLAMA_MODELS", "").strip()
    folders = [Path(given).expanduser()] if given else []
    return [*folders, Path.home() / ".ollama" / "models", _SYSTEM_OLLAMA]


def _blob(manifest: Path, blobs: Path) -> Path | None:
    try:
        layers = read_json(read_bytes(manifest, _MANIFEST_BYTES))["layers"]
        digest = next(layer["digest"] for layer in layers if layer["mediaType"] == _MODEL_LAYER)
        match = _DIGEST.fullmatch(digest)
        blob = blobs / f"sha256-{match[1]}" if match else None
        return blob if blob and may_be_gguf(blob) else None
    except (OSError, ValueError, KeyError, TypeError, StopIteration):
        return None


def _model(path: Path) -> LocalModel:
    shards = len(shard_names(path.name))
    name = path.stem if shards == 1 else path.stem[: -len("-00001-of-00001")]
    return LocalModel(name, path, shards_size(path), _place(path), shards)


def _place(path: Path) -> str:
    if path.is_relative_to(hub_cache()):
        return "Hugging Face"
    home = Path.home()
    if path.is_relative_to(home / ".lmstudio") or path.is_relative_to(home / ".cache" / "lm-studio"):
        return "LM Studio"
    folder = path.parent
    return f"~/{folder.relative_to(home)}" if folder.is_relative_to(home) else str(folder)
