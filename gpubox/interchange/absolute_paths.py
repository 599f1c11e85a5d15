"""Relative paths of an imported command made absolute: a profile means the same file wherever gpubox is called."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from gpubox.interchange.profile_draft import ImportedProfile
from gpubox.profiles.flag_paths import map_paths


def with_absolute_paths(imported: ImportedProfile, folders: Sequence[Path]) -> ImportedProfile:
    """``imported`` with the model and the files of its flags absolute where they exist in one of ``folders``."""
    profile = imported.profile

    def found(text: str) -> str:
        if not text or text.startswith(("~", "$", "hf:", "demo:")):
            return text
        for folder in folders:
            try:
                if (folder / text).exists():
                    return _short(folder / text)
            except (OSError, ValueError):
                break  # no name of a file at all
        return text

    model = found(profile.model)
    flags = {name: map_paths(name, value, found) for name, value in profile.flags.items()}
    notes = imported.notes
    if model != profile.model:
        notes = tuple(note for note in notes if not note.startswith(f"{profile.model} is relative"))
    return ImportedProfile(replace(profile, model=model, flags=flags), notes)


def _short(path: Path) -> str:
    """``path`` without ``..`` where that names the same file (a linked folder may say otherwise)."""
    short = Path(os.path.normpath(path))
    return str(short if short.exists() and short.samefile(path) else path)
