"""The only bridge between the services and Textual: it polls, runs operations, and posts what it hears as messages."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Awaitable, Callable
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from gpubox.errors import GpuboxError
from gpubox.sanitize import sanitize_line
from gpubox.threads import run_in_thread
from gpubox.tui.messages import (
    LogLinesRead,
    OperationEnded,
    OperationUpdated,
    ProfileEntriesRead,
    ServerOverview,
    ServerOverviewChanged,
)
from gpubox.tui.profile_entries import ProfileEntry, make_entries
from gpubox.tui.snapshot_poller import SnapshotPoller

if TYPE_CHECKING:
    from textual.app import App

    from gpubox.models.fetch import DownloadPlan
    from gpubox.profiles.loader import ProfileCatalog
    from gpubox.profiles.profile import Profile
    from gpubox.server.engine_compatibility import EngineCompatibility
    from gpubox.server.launch import LaunchPreview
    from gpubox.telemetry.snapshot import Snapshot
    from gpubox.tui.bench.service import BenchService
    from gpubox.tui.chat.service import ChatService

PROFILES_POLL_SECONDS = 2.0
LOG_POLL_SECONDS = 0.5


class Services(Protocol):
    """What the screen asks for. The real one is ``live.LiveServices``; tests hand in their own.

    Methods that are not coroutines may block: the bridge calls them in threads. They raise GpuboxError.
    """

    url: str | None
    """The server that somebody else started; ``None`` where gpubox owns it."""
    read_only: str
    """Why nothing can be changed here; empty where it can."""

    def clock(self) -> datetime: ...

    async def now(self) -> ServerOverview:
        """What runs, asked anew."""

    async def snapshot(self) -> Snapshot:
        """All readings of this instant."""

    def activity_marker(self) -> object:
        """Changes when the server does something, or another gpubox does something to it. Costs next to nothing."""

    def beside(self) -> tuple[tuple[str, ...], str | None]:
        """The profiles that run beside the active one, and the one that answered last."""

    async def close(self) -> None:
        """Ends what watches in the background."""

    def stamp(self) -> object:
        """Changes when a profile file or config.toml does."""

    def catalog(self) -> ProfileCatalog: ...

    def hides_shipped(self, catalog: ProfileCatalog) -> bool:
        """Whether the list leaves out the shipped profiles until it is asked for them."""

    def fits(self, catalog: ProfileCatalog) -> dict[str, EngineCompatibility]: ...

    def models(self, catalog: ProfileCatalog) -> list[Path]:
        """Models on this machine that no profile names."""

    def preview_launch(self, profile: Profile) -> LaunchPreview: ...

    def read_log(self) -> list[str]:
        """The lines since the last call; the first time the last ones there are."""

    def failed_log(self) -> tuple[str, list[str]]:
        """What failed last, in a sentence, and the last lines of its log. Raises GpuboxError where nothing did."""

    def model_size(self, profile: Profile) -> int | None: ...

    def needs_download(self, profile: Profile) -> bool:
        """Whether the profile's model has to be downloaded first."""

    def plan_download(self, profile: Profile) -> DownloadPlan:
        """How much a start would download, and to where."""

    def exposed_without_key(self, profile: Profile) -> bool:
        """Whether starting it would open a port to other machines without a key, and nobody allowed that yet."""

    def fetch(self, profile: Profile, on_progress: Callable[[int, int | None], None]) -> None: ...

    def operate(
        self, kind: str, profile: Profile | str, stop_now: bool, allow_exposed: bool, emit: Callable[[Any], None]
    ) -> None:
        """Runs one operation of the Supervisor to its end, in the calling thread."""

    def wait_seconds(self) -> float:
        """How long a change waits for requests that are being answered."""

    def cancel(self) -> None:
        """Gives up the operation under way: what ran before is left alone, or comes back."""

    def handle_crash(self) -> str:
        """Writes down why the server died, and has it seen to. What to say of it."""

    def make_profile(self, model: Path) -> Profile: ...

    def chats(self) -> ChatService:
        """The chats, and who answers them."""

    def bench_service(self) -> BenchService:
        """The runs of benchmarks; always the same one."""

    def save_traceback(self, text: str) -> None:
        """Keeps what broke the screen in a file, for a report."""

    def places(self) -> list[tuple[str, str]]:
        """What is where, for the help screen."""


class ServiceBridge:
    """Runs the services for one app. ``busy`` while an operation is under way."""

    def __init__(self, app: App[Any], services: Services) -> None:
        self.app, self.services = app, services
        self.busy = False
        self.abandoned = False
        """Set when the owner gives up a download: the next progress report ends it."""
        self.ended = threading.Event()
        """Set while no operation runs, whatever became of the screen."""
        self.ended.set()
        self.log_wanted = True
        """Cleared while nothing shows the log."""
        self.hides_shipped = False
        """Whether the list leaves out the shipped profiles, as the owner's settings have it."""
        self.watch = SnapshotPoller(self)
        self._last: ServerOverview | None = None
        self._fits: dict[str, EngineCompatibility] = {}
        self._models: list[Path] = []
        self._previews: dict[str, tuple[Profile, LaunchPreview, int | None]] = {}

    def begin(self) -> None:
        """Starts watching. Called after the first paint, so that nothing slow comes before it."""
        self.run(self.watch.run, "watch-now")
        self.run(self._watch_entries, "watch-entries")
        if not self.services.read_only:
            self.run(self._watch_log, "watch-log")

    def run(self, work: Callable[[], Awaitable[object]], group: str, *, exclusive: bool = False) -> None:
        """Runs ``work`` as a worker of the app. Called, not awaited: one that never starts leaves nothing behind."""
        run: Any = work
        self.app.run_worker(run, group=group, exclusive=exclusive, exit_on_error=False)

    async def look(self) -> None:
        """Reads what runs once, and says so when it is new."""
        self.heard(await self.services.now())

    def heard(self, now: ServerOverview) -> None:
        """Says what runs, when it is new."""
        if self.busy:  # the story tells it better than the record of our own operation
            now = replace(now, status=replace(now.status, operation="", message=""))
        if now != self._last:
            self._last = now
            self.app.post_message(ServerOverviewChanged(now))

    def complain(self, text: str) -> None:
        """Says that a reading failed."""
        self.app.notify(sanitize_line(text), severity="warning", markup=False, timeout=8)

    async def _watch_entries(self) -> None:
        seen: object = None
        while True:
            stamp = await run_in_thread(self.services.stamp)
            if stamp != seen:
                seen = stamp
                await self.read_entries()
            await asyncio.sleep(PROFILES_POLL_SECONDS)

    async def read_entries(self) -> None:
        """Reads the profiles and shows them at once; then asks the engines, then looks for models."""
        services = self.services
        catalog = await run_in_thread(services.catalog)
        self.hides_shipped = services.hides_shipped(catalog)
        self._show(catalog)
        self._fits = await run_in_thread(services.fits, catalog)
        self._show(catalog)
        self._models = await run_in_thread(services.models, catalog)
        self._show(catalog)

    def _show(self, catalog: ProfileCatalog) -> None:
        # What was known of an unchanged profile stays on the screen while the engines are asked again.
        self.app.post_message(ProfileEntriesRead(make_entries(catalog, self._fits, self._models)))

    async def _watch_log(self) -> None:
        lines = await run_in_thread(self.services.read_log)  # the first time it reads half a megabyte
        while True:
            if lines:
                self.app.post_message(LogLinesRead(lines))
            await asyncio.sleep(LOG_POLL_SECONDS)
            lines = await run_in_thread(self.services.read_log) if self.log_wanted else []

    async def preview(self, entry: ProfileEntry, delay: float) -> tuple[LaunchPreview | None, int | None]:
        """What the engine says to a profile and how large its model is; waits ``delay`` first. Remembers."""
        profile = entry.profile
        assert profile is not None
        known = self._previews.get(profile.name)
        if known and known[0] == profile:
            return known[1], known[2]
        await asyncio.sleep(delay)
        try:
            found = await run_in_thread(self.services.preview_launch, profile)
        except GpuboxError as error:
            self.app.log.error(str(error))
            return None, None
        size = await run_in_thread(self.services.model_size, profile)
        self._previews[profile.name] = (profile, found, size)
        return found, size

    async def needs_download(self, profile: Profile) -> bool:
        """Whether the profile's model has to be downloaded first."""
        return await run_in_thread(self.services.needs_download, profile)

    async def plan_download(self, profile: Profile) -> DownloadPlan:
        """How much a start would download, and to where."""
        return await run_in_thread(self.services.plan_download, profile)

    async def make_profile(self, model: Path) -> Profile:
        """Writes a profile for a model that has none. Raises GpuboxError."""
        return await run_in_thread(self.services.make_profile, model)

    async def idle(self) -> None:
        """Returns when no operation is under way."""
        while self.busy:
            await asyncio.sleep(0.02)

    async def fetch(self, profile: Profile) -> bool:
        """Downloads the profile's model. Returns whether it is here now."""
        from gpubox.tui.operation_progress import DownloadStatus, OperationAborted

        loop = asyncio.get_running_loop()
        began = loop.time()
        self.busy, self.abandoned, shown = True, False, 0.0

        def report(done: int, total: int | None) -> None:
            nonlocal shown
            if self.abandoned:
                raise GpuboxError("The download was stopped.", "The next start goes on where it was.")
            at = loop.time()
            if at - shown >= 0.2 or (done and not shown) or done == total:
                shown = at
                self.app.post_message(OperationUpdated(DownloadStatus(profile.name, done, total, at - began)))

        self.app.post_message(OperationUpdated(DownloadStatus(profile.name, 0, None, 0.0)))
        try:
            await run_in_thread(self.services.fetch, profile, report)
        except GpuboxError as error:
            self.app.post_message(OperationUpdated(OperationAborted(error)))
            return False
        finally:
            self.busy = False
        return True

    async def operate(
        self, kind: str, profile: Profile | str, *, stop_now: bool = False, allow_exposed: bool = False
    ) -> None:
        """Runs one operation in a thread: nothing that happens to the screen cancels it into a rollback."""
        from gpubox.tui.operation_progress import OperationAborted

        self.busy = True

        def emit(event: Any) -> None:
            with contextlib.suppress(RuntimeError):  # the screen is gone; the operation goes on to its end
                self.app.post_message(OperationUpdated(event))

        def work() -> None:
            try:
                self.services.operate(kind, profile, stop_now, allow_exposed, emit)
            finally:
                self.ended.set()

        self.ended.clear()
        try:
            await run_in_thread(work)
        except GpuboxError as error:
            self.app.post_message(OperationUpdated(OperationAborted(error)))
        finally:
            self.busy = False
            self.app.post_message(OperationEnded())
        self._previews.clear()  # a model may have come, an engine may have changed
        self.run(self.read_entries, "entries", exclusive=True)
        await self.look()

    async def handle_crash(self) -> None:
        """Has a death written down, and the server started again where its profile wants it."""
        if said := await run_in_thread(self.services.handle_crash):
            self.complain(said)
