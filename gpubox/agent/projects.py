"""What the owner has said about his projects: whether a folder may be a workspace, and what tests it. Blocking."""

from __future__ import annotations

from pathlib import Path

import msgspec

from gpubox.paths import Paths


class Project(msgspec.Struct, frozen=True, omit_defaults=True):
    """One workspace."""

    allowed: bool | None = None
    """Whether gpubox, started in this folder, uses it as workspace; ``None``: the owner was not asked yet."""
    test_command: str = ""
    """A shell command line that the owner has confirmed; empty: none."""


def load_project(paths: Paths, root: Path) -> Project:
    """What is known of the workspace ``root``. A file that cannot be read says nothing."""
    raise NotImplementedError


def save_project(paths: Paths, root: Path, project: Project) -> None:
    """Remembers it. Raises GpuboxError if the file cannot be written."""
    raise NotImplementedError
