"""The state of one command line: paths, configuration and profiles."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from gpubox.config import Config, load_config
from gpubox.paths import Paths

if TYPE_CHECKING:
    from gpubox.profiles.loader import ProfileCatalog
    from gpubox.profiles.profile import Profile


def server_url(url: str | None) -> str | None:
    """The root of the server at ``--url``; a client's form with ``/v1`` is accepted. Raises UsageError."""
    if url is None:
        return None
    from gpubox.address import server_root

    return server_root(url)


@dataclass
class Context:
    """What every verb gets. Files are read at the first use."""

    config_file: Path | None = None

    @cached_property
    def paths(self) -> Paths:
        return Paths.default(self.config_file)

    @cached_property
    def config(self) -> Config:
        return load_config(self.paths)

    @cached_property
    def catalog(self) -> ProfileCatalog:
        from gpubox.profiles.loader import load_catalog

        return load_catalog(self.paths)

    def profile(self, name: str) -> Profile:
        """The profile called ``name``. Raises UsageError."""
        return self.catalog.get(name)
