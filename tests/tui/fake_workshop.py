"""A real workshop service on test folders, with the screen's other services as tests control them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from gpubox.config import Config, load_config
from gpubox.paths import Paths
from gpubox.profiles.loader import ProfileCatalog, load_catalog
from gpubox.profiles.profile import Profile
from gpubox.server.status import ServerStatus
from gpubox.tui.services import _file_stats
from gpubox.tui.workshop.profile_files import WorkshopService
from tests.tui.fake import READY, FakeServices

MINE = """\
# My own profile.
title = "my own"
model = "{model}"
port = 8099

[flags]
ctx-size = 2048      # tokens
n-cpu-moe = 22       # experts
"""


def write_mine(paths: Paths, engine: Path, model: Path) -> tuple[Paths, Config, list[Profile]]:
    """Writes the profile ``mine`` and its engine. Returns what WorkshopServices are made of."""
    paths.profiles.mkdir(parents=True, exist_ok=True)
    (paths.profiles / "mine.toml").write_text(MINE.format(model=model))
    paths.config_file.write_text(f'default-engine = "fake"\n[engines]\nfake = "{engine}"\n')
    return paths, load_config(paths), [load_catalog(paths).get("mine")]


class WorkshopServices(FakeServices):
    """Profiles are files; what runs is an attribute, as in FakeServices."""

    def __init__(self, paths: Paths, config: Config, profiles: Sequence[Profile], status: ServerStatus = READY) -> None:
        super().__init__(status, profiles)
        self.paths, self.config = paths, replace(config, shipped_profiles="show")
        self.absent = set()
        self._cancel = None
        self.shop = WorkshopService(paths, lambda: self.config, self.run_operation)

    def workshop_service(self) -> WorkshopService:
        return self.shop

    def catalog(self) -> ProfileCatalog:
        return load_catalog(self.paths)

    def profiles_marker(self) -> object:
        return _file_stats(self.paths.profiles.glob("*.toml"))  # one may be renamed meanwhile
