"""What every verb is handed: the paths and the owner's settings."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from gpubox.config import Config, load_config
from gpubox.errors import UsageError
from gpubox.paths import Paths

if TYPE_CHECKING:
    from gpubox.profiles.loader import Catalog
    from gpubox.profiles.model import Profile


def check_url(url: str | None) -> None:
    """Raises UsageError where ``--url`` is no http address, or one with a password in it, which is not repeated."""
    if url is not None and "@" in url:  # it would stand on the screen and in every output
        raise UsageError(
            "The address holds a user name or a password.", "Write http://HOST:PORT; a key: GPUBOX_API_KEY."
        )
    if url is not None and not re.match(r"https?://[^/\s]+", url):
        raise UsageError(f"{url!r} is not the address of a server.", "Write http://HOST:PORT.")


@dataclass
class Context:
    """Read late: a verb that needs no profile never opens one."""

    config_file: Path | None = None
    plan_only: bool = False
    """``bench --plan``: say what would be done, and do nothing."""

    @cached_property
    def paths(self) -> Paths:
        return Paths.default(self.config_file)

    @cached_property
    def config(self) -> Config:
        return load_config(self.paths)

    @cached_property
    def catalog(self) -> Catalog:
        from gpubox.profiles.loader import load_catalog

        return load_catalog(self.paths)

    def profile(self, name: str) -> Profile:
        """The profile called ``name``. Raises UsageError."""
        return self.catalog.get(name)
