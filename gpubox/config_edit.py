"""Changes one line of config.toml. Comments, order and all other lines stay byte for byte."""

from __future__ import annotations

from pathlib import Path

from gpubox.errors import GpuboxError, UsageError
from gpubox.paths import Paths
from gpubox.storage import held_lock, write_atomically
from gpubox.toml_edit import change_toml
from gpubox.toml_table import read_toml_text


def set_default_engine(paths: Paths, name: str) -> Path:
    """Sets ``default-engine`` in config.toml, which is made if there is none. Returns the file.

    Raises UsageError if the file cannot be read or is not TOML, GpuboxError if it cannot be written.
    """
    path = paths.config_file
    try:
        with held_lock(paths.state / "config.lock", "Another gpubox is changing config.toml."):
            after = changed_text(path, read_toml_text(path) if path.exists() else "", name)
            write_atomically(path, after.encode())
    except OSError as error:
        raise GpuboxError(
            f"{path} cannot be written: {error.strerror}.", f'Write it yourself: default-engine = "{name}"'
        ) from None
    return path


def changed_text(path: Path, text: str, name: str) -> str:
    """``text`` with the default engine ``name``. Raises UsageError if that would change anything else."""
    try:
        return change_toml(text, {("default-engine",): name}, f'Write it yourself: default-engine = "{name}"')
    except UsageError as error:
        raise UsageError(f"{path}: {error.message}", error.hint) from None
