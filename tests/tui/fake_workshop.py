"""A real workshop service on test folders, with the screen's other services as tests control them."""

from __future__ import annotations

from collections.abc import Sequence

from gpubox.config import Config
from gpubox.paths import Paths
from gpubox.profiles.loader import ProfileCatalog, load_catalog
from gpubox.profiles.profile import Profile
from gpubox.server.status import ServerStatus
from gpubox.tui.workshop.service import WorkshopService
from tests.tui.fake import READY, FakeServices


class WorkshopServices(FakeServices):
    """Profiles are files; what runs is an attribute, as in FakeServices."""

    def __init__(self, paths: Paths, config: Config, profiles: Sequence[Profile], status: ServerStatus = READY) -> None:
        super().__init__(status, profiles)
        self.paths, self.config = paths, config
        self.absent = set()
        self._cancel = None
        self.shop = WorkshopService(paths, lambda: self.config, self.run_operation)

    def workshop_service(self) -> WorkshopService:
        return self.shop

    def catalog(self) -> ProfileCatalog:
        return load_catalog(self.paths)

    def hides_shipped(self, catalog: ProfileCatalog) -> bool:
        return False

    def profiles_marker(self) -> object:
        return sorted((path.name, path.stat().st_mtime_ns) for path in self.paths.profiles.glob("*.toml"))
