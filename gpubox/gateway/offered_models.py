"""What the models are that the gateway offers: from their profiles and the headers of their files."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path

from gpubox.config import Config
from gpubox.errors import GpuboxError
from gpubox.gateway.gateway_status import ProfileStatus
from gpubox.interchange.client_settings import context_per_slot, profile_flag, serves_embeddings
from gpubox.models.header_cache import read_model
from gpubox.models.quants import quant_label
from gpubox.models.resolve import profile_model, with_resolved_flag_paths
from gpubox.paths import Paths
from gpubox.profiles.profile import Profile

_MODALITIES = {"clip.has_vision_encoder": "image", "clip.has_audio_encoder": "audio"}
"""Keys of a projector's header, as in llama.cpp's tools/mtmd/clip.cpp -> what it lets a model read."""


@dataclass(frozen=True, slots=True)
class OfferedFacts:
    """What the files of one profile say. ``None`` and empty: unknown, for example because they are not here."""

    architecture: str = ""
    parameters: int | None = None
    size: int | None = None
    """Bytes of the file."""
    quant: str = ""
    context: int | None = None
    """Tokens of one slot, by the flags."""
    trained_context: int | None = None
    inputs: tuple[str, ...] = ("text",)
    """text | image | audio"""
    output: str = "text"
    """text | embeddings"""
    modified_at: str = "1970-01-01T00:00:00+00:00"


@dataclass(frozen=True, slots=True)
class OfferedModel:
    """A model as a list shows it: a profile, or one of its personas."""

    id: str
    profile: Profile
    status: ProfileStatus
    facts: OfferedFacts
    created: datetime

    @property
    def loaded(self) -> bool:
        return self.status.state in ("up", "starting")


def offered_facts(profile: Profile, paths: Paths, config: Config) -> OfferedFacts:
    """Reads headers, most of them from the cache. Raises nothing: what cannot be read is unknown."""
    output = "embeddings" if serves_embeddings(profile) else "text"
    facts = OfferedFacts(context=context_per_slot(profile), output=output)
    try:
        path = None if profile.upstream else profile_model(profile, paths, config).path
        if path is None:
            return facts
        model = read_model(path, paths)
        modified = datetime.fromtimestamp(path.stat().st_mtime, UTC).isoformat()
    except (GpuboxError, OSError):
        return facts
    trained = model.metadata.get(f"{model.architecture}.context_length")
    return replace(
        facts,
        architecture=model.architecture,
        parameters=sum(math.prod(tensor.dimensions) for tensor in model.tensors),
        size=model.size,
        quant=quant_label(path.name),
        trained_context=trained if isinstance(trained, int) else None,
        inputs=("text", *_read_by_projector(profile, paths, config)),
        modified_at=modified,
    )


def _read_by_projector(profile: Profile, paths: Paths, config: Config) -> tuple[str, ...]:
    projector = profile_flag(with_resolved_flag_paths(profile, paths, config), "mmproj")
    if not isinstance(projector, str):
        return ()
    try:
        metadata = read_model(Path(projector).expanduser(), paths).metadata
    except (GpuboxError, OSError):
        return ()
    return tuple(kind for key, kind in _MODALITIES.items() if metadata.get(key))
