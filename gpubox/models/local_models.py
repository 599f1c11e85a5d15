"""The models on this machine as a search shows them: name, size, and which program put them there. Ollama's too."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from gpubox.config import Config
from gpubox.models.find import find_models, hub_cache
from gpubox.models.gguf import may_be_gguf, shard_names, shards_size
from gpubox.paths import Paths
from gpubox.storage import read_bytes, read_json

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
