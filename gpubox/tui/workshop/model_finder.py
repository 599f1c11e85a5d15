"""Models on this machine and on Hugging Face, for the models screen. Everything blocks; the screen uses threads."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from gpubox.errors import GpuboxError

if TYPE_CHECKING:
    from pathlib import Path

    from gpubox.config import Config
    from gpubox.models.find import LocalModel
    from gpubox.models.hub_client import HubClient
    from gpubox.models.hub_download import HubDownload, HubProgress
    from gpubox.models.hub_search import HubQuant, HubRepository
    from gpubox.paths import Paths
    from gpubox.planner.finder import Finder, HubAnswer
    from gpubox.planner.plan import MemoryPlan
    from gpubox.profiles.profile import Profile

REPOSITORIES = 6
"""So many are shown for one search."""


@dataclass(frozen=True, slots=True)
class ModelRow:
    """One line of the list."""

    kind: Literal["heading", "local", "repository", "quant"]
    key: str
    title: str
    local: LocalModel | None = None
    repository: HubRepository | None = None
    quant: HubQuant | None = None
    plan: MemoryPlan | None = None
    planning: bool = False
    """Whether its plan is still to come."""
    on_disk: bool = False

    @property
    def is_model(self) -> bool:
        """Whether a profile can be made of it."""
        return self.kind in ("local", "quant")

    @property
    def size_bytes(self) -> int | None:
        """Of the model's files; ``None``: unknown."""
        return self.local.size_bytes if self.local else self.quant.size_bytes if self.quant else None


class ModelFinder:
    """Keeps what was read once. Methods raise GpuboxError."""

    def __init__(self, paths: Paths, config: Config) -> None:
        self.paths, self.config = paths, config
        self._lock = threading.Lock()
        self._used: tuple[Finder, HubClient] | None = None

    def on_disk(self, text: str) -> list[LocalModel]:
        """The models on this machine; all for an empty text."""
        return self._use()[0].on_disk(text)

    def on_hub(self, text: str) -> HubAnswer:
        """The repositories for a text. Problems are part of the answer."""
        from gpubox.planner.finder import HubAnswer

        try:
            finder, client = self._use()
            return finder.on_hub(client, text, REPOSITORIES)
        except GpuboxError as error:
            return HubAnswer(problems=(error,))

    def plan(self, row: ModelRow, *, may_dry_run: bool) -> MemoryPlan:
        """Whether the model of a row would fit, from its header. ``may_dry_run``: measured by the engine."""
        finder, client = self._use()
        if row.local:
            return self.plan_local(row.local, may_dry_run=may_dry_run)
        assert row.repository and row.quant
        return finder.plan_quant(client, row.repository, row.quant, finder.idea(), may_dry_run=may_dry_run)

    def plan_local(self, model: LocalModel, *, may_dry_run: bool = False) -> MemoryPlan:
        """The same of a model that is here. Never raises."""
        finder, _ = self._use()
        return finder.plan_local(model, finder.idea(), may_dry_run=may_dry_run)

    def profile_of(self, name: str, path: Path, plan: MemoryPlan | None) -> Profile:
        """Writes a profile for a model that is here; without a ``plan`` it is planned first."""
        from gpubox.models.find import LocalModel

        plan = plan or self.plan_local(LocalModel(name, path, None, ""))
        return self._use()[0].new_profile(name, str(path.absolute()), plan)

    def new_profile(self, row: ModelRow) -> Profile:
        """Writes a profile for the model of a row. For a quant on the hub, its first start downloads the model."""
        finder, client = self._use()
        if row.local:
            return self.profile_of(row.local.name, row.local.path, row.plan)
        assert row.repository and row.quant
        header = finder.header_of(client, row.repository, row.quant)
        return finder.new_profile(row.key, row.key, row.plan, header=header)

    def download(self, job: HubDownload, on_progress: Callable[[HubProgress], None]) -> None:
        """Runs a download. ``on_progress`` may raise to stop it."""
        job.run(self._use()[1], on_progress)

    def _use(self) -> tuple[Finder, HubClient]:
        from gpubox.models.hub_client import HubClient
        from gpubox.planner.finder import Finder

        with self._lock:
            if self._used is None:
                self._used = Finder(self.paths, self.config), HubClient()
            return self._used
