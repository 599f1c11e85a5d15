"""The text of a new profile, from a model or from one command line."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from gpubox.config import Config
from gpubox.errors import UsageError
from gpubox.interchange.import_result import ImportSource
from gpubox.interchange.importing import import_source
from gpubox.profiles.writer import profile_toml


@dataclass(frozen=True, slots=True)
class NewProfile:
    """A profile that is not written yet. ``name`` is a proposal."""

    name: str
    text: str


def draft_profile(source: str, config: Config, *, name: str | None = None) -> NewProfile:
    """The profile of a .gguf file, of ``hf:USER/REPO:QUANT``, or of a llama-server command line.

    Raises UsageError for anything else, and if ``source`` holds several profiles.
    """
    source = source.strip()
    if source.startswith(("hf:", "demo:")) and "\n" not in source and '"' not in source:
        repository = source.partition(":")[2].rpartition("/")[2]
        return NewProfile(name or _as_name(repository.replace("-GGUF", "")), f'model = "{source}"\n')
    known = ImportSource(engines=config.engines, folders=(Path.cwd(),))
    profiles = import_source(source, name=name, known=known)
    if len(profiles) != 1:
        raise UsageError(f"{source} holds {len(profiles)} profiles.", "`gpubox import` imports them.")
    (imported,) = profiles
    text = profile_toml(imported.profile, "\n".join(f"! {note}" for note in imported.notes))
    return NewProfile(imported.profile.name, text)


def _as_name(text: str) -> str:
    return re.sub(r"[^a-z0-9._-]+", "-", text.lower()).strip("-._")[:64] or "new"
