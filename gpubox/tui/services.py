"""What the screen needs of the rest of gpubox, as a Protocol. The tests have their own implementation."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from gpubox.models.fetch import DownloadPlan
    from gpubox.profiles.loader import ProfileCatalog
    from gpubox.profiles.profile import Profile
    from gpubox.server.engine_compatibility import EngineCompatibility
    from gpubox.server.launch import LaunchPreview
    from gpubox.telemetry.snapshot import Snapshot
    from gpubox.tui.bench.service import BenchService
    from gpubox.tui.chat.service import ChatService
    from gpubox.tui.messages import ServerOverview


class Services(Protocol):
    """Implemented by ``local_services.LocalServices``.

    Methods that are not coroutines may block; they are called in threads. All raise GpuboxError.
    """

    url: str | None
    """The server that somebody else started; ``None`` if gpubox owns the server."""
    read_only: str
    """Why nothing can be changed; empty if it can."""

    def clock(self) -> datetime: ...

    async def overview(self) -> ServerOverview:
        """Reads what runs."""

    async def snapshot(self) -> Snapshot:
        """Takes all readings."""

    def activity_marker(self) -> object:
        """A value that changes when the server does something. Cheap."""

    def companions_and_last(self) -> tuple[tuple[str, ...], str | None]:
        """The profiles that run beside the active one, and the profile that answered last."""

    def handle_crash(self) -> str:
        """Writes the post-mortem of the dead server, has it restarted if its profile says so. Returns the outcome."""

    async def close(self) -> None: ...

    def profiles_marker(self) -> object:
        """A value that changes when a profile file or config.toml does. Cheap."""

    def catalog(self) -> ProfileCatalog: ...

    def hides_shipped(self, catalog: ProfileCatalog) -> bool:
        """Whether the list leaves out the shipped profiles at first."""

    def compatibility(self, catalog: ProfileCatalog) -> dict[str, EngineCompatibility]:
        """By profile name."""

    def models_without_profile(self, catalog: ProfileCatalog) -> list[Path]: ...

    def preview_launch(self, profile: Profile) -> LaunchPreview: ...

    def make_profile(self, model: Path) -> Profile:
        """Writes a profile for a model that has none."""

    def model_size(self, profile: Profile) -> int | None:
        """In bytes."""

    def needs_download(self, profile: Profile) -> bool: ...

    def plan_download(self, profile: Profile) -> DownloadPlan: ...

    def download(self, profile: Profile, on_progress: Callable[[int, int | None], None]) -> None:
        """Downloads the model; reports bytes done and in total."""

    def exposed_without_key(self, profile: Profile) -> bool:
        """Whether a start would open a port to other machines without a key, which the owner has not allowed."""

    def read_log(self) -> list[str]:
        """The new lines since the last call; the first call returns the last lines of the log."""

    def failed_log(self) -> tuple[str, list[str]]:
        """The last failure in a sentence, and the last lines of its log. Raises GpuboxError if nothing failed."""

    def operate(
        self, kind: str, target: Profile | str, stop_now: bool, allow_exposed: bool, emit: Callable[[Any], None]
    ) -> None:
        """Runs one operation of the Supervisor to its end. ``target`` is a profile, or for stop an instance name."""

    def wait_seconds(self) -> float:
        """How long a change waits for busy slots."""

    def cancel(self) -> None:
        """Cancels the running operation: the old server is left alone, or comes back."""

    def chat_service(self) -> ChatService: ...

    def bench_service(self) -> BenchService:
        """Always the same one."""

    def save_traceback(self, text: str) -> None:
        """Writes it to a file, for a bug report."""

    def file_locations(self) -> list[tuple[str, str]]:
        """(what, path), for the help screen."""
