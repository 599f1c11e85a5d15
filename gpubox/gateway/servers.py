"""What stands behind the gateway: the running servers from their state files, and the profiles from their files."""

from __future__ import annotations

import contextlib
import os
from dataclasses import dataclass, field

from gpubox.config import Config
from gpubox.paths import Paths, shipped_profiles
from gpubox.profiles.loader import ProfileCatalog, load_catalog, visible_profiles
from gpubox.profiles.profile import Profile
from gpubox.server.events import Step
from gpubox.server.instance import instance_names, observe
from gpubox.server.state import RunningServer

_UNCHANGED_STEPS = ("begin", Step.CHECK)
"""The steps of an operation in which the old server goes on."""


@dataclass(frozen=True, slots=True)
class GatewayServer:
    """One server behind the gateway."""

    instance: str
    profile: str
    base_url: str
    launch_id: str
    ready: bool
    changed_by: int | None
    """The process that is stopping or replacing it; None: nobody."""
    record: RunningServer | None = None
    """None: it runs elsewhere."""


def read_servers(paths: Paths) -> tuple[GatewayServer, ...]:
    """The running servers of all instances. Temporary ones (of a benchmark) are left out. Reads files and /proc."""
    servers = []
    for name in instance_names(paths):
        view = observe(paths, name)
        if name.startswith("~") or view.running is None:
            continue
        running, operation = view.running, view.operation
        changing = operation is not None and operation.step not in _UNCHANGED_STEPS
        servers.append(
            GatewayServer(
                instance=name,
                profile=running.launch.profile,
                base_url=running.launch.base_url,
                launch_id=running.launch_id,
                ready=running.ready_at is not None,
                changed_by=operation.owner.pid if operation and changing else None,
                record=running,
            )
        )
    return tuple(servers)


@dataclass(slots=True)
class ProfileTable:
    """The profiles by name and alias. ``refresh`` reads their files again if one has changed."""

    paths: Paths
    config: Config
    catalog: ProfileCatalog = field(default_factory=lambda: ProfileCatalog({}, {}))
    _stamp: tuple[tuple[str, int, int], ...] = ()

    def refresh(self) -> bool:
        """Whether something has changed. Blocks for the files."""
        stamp = self._files()
        if stamp == self._stamp:
            return False
        self.catalog = load_catalog(self.paths)
        self._stamp = stamp
        return True

    def find(self, model: str) -> Profile:
        """The profile that a request calls ``model``. Raises GpuboxError."""
        return self.catalog.get(self.catalog.aliases.get(model, model))

    def has(self, model: str) -> bool:
        """Whether a profile has this name or alias; also one whose file is broken."""
        return model in self.catalog.profiles or model in self.catalog.aliases or model in self.catalog.broken

    def get(self, name: str) -> Profile | None:
        return self.catalog.profiles.get(name)

    def visible(self) -> list[Profile]:
        """The profiles that a list shows."""
        profiles = list(self.catalog.profiles.values())
        return visible_profiles(profiles, ()) if self.config.shipped_profiles == "hide" else profiles

    def _files(self) -> tuple[tuple[str, int, int], ...]:
        files = []
        for folder in (shipped_profiles(), self.paths.profiles):
            with contextlib.suppress(OSError):
                entries = [(entry.path, entry.stat()) for entry in os.scandir(folder)]
                files += [(path, status.st_mtime_ns, status.st_size) for path, status in sorted(entries)]
        return tuple(files)
