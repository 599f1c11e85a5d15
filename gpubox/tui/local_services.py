"""The real services. Everything slow to import is imported late: the screen paints before it is needed."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Coroutine
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gpubox.config import Config, api_key, load_config
from gpubox.errors import ExitCode, GpuboxError, UsageError
from gpubox.paths import MAIN_INSTANCE, Paths, shipped_profiles
from gpubox.threads import run_in_thread
from gpubox.tui.messages import ServerOverview

if TYPE_CHECKING:
    from gpubox.hardware.nvml_reader import DriverReader
    from gpubox.models.fetch import DownloadPlan
    from gpubox.profiles.loader import ProfileCatalog
    from gpubox.profiles.profile import Profile
    from gpubox.server.engine_compatibility import EngineCompatibility
    from gpubox.server.launch import LaunchPreview
    from gpubox.server.log import LogReader
    from gpubox.server.supervisor import Supervisor
    from gpubox.telemetry.sampler import Sampler
    from gpubox.telemetry.snapshot import Snapshot
    from gpubox.tui.bench.service import BenchService
    from gpubox.tui.chat.service import ChatService

ATTACHED_READ_ONLY = "gpubox did not start this server: it is watched read only."
FIRST_LOG_BYTES = 512 * 1024


class LocalServices:
    """This machine's profiles, engines and server; with ``url`` a foreign server, read only."""

    def __init__(self, paths: Paths, config: Config, url: str | None = None) -> None:
        self.paths, self.config, self.url = paths, config, url
        self.read_only = ATTACHED_READ_ONLY if url else ""
        self._imported = False
        self._sampler: Sampler | None = None
        self._driver: DriverReader | None = None
        self._log: LogReader | None = None
        self._cancel: Callable[[], None] | None = None
        self._benches: BenchService | None = None

    def clock(self) -> datetime:
        return datetime.now()

    async def now(self) -> ServerOverview:
        if not self._imported:  # the first look: these imports take longer than a frame
            await run_in_thread(_import_server)
            self._imported = True
        from gpubox.server.server_process import reap_servers
        from gpubox.server.status import read_foreign_status, read_status

        if self.url:
            from gpubox.server.api_keys import api_key_for

            return ServerOverview(
                await read_foreign_status(self.url, await run_in_thread(api_key_for, self.paths, self.config, self.url))
            )
        reap_servers()
        status = await read_status(self.paths, self.config, MAIN_INSTANCE)
        companions, last = await run_in_thread(self.beside)
        return ServerOverview(status, companions, None if status.pid else last)

    async def snapshot(self) -> Snapshot:
        if self._sampler is None:  # the first: the driver's library and HTTP take longer to import than a frame
            await run_in_thread(_import_sampler)
            self._imported = True
            from gpubox.hardware.nvml_reader import DriverReader
            from gpubox.telemetry.sampler import Sampler

            self._driver = DriverReader()
            self._sampler = Sampler(self.paths, self.config, self._driver.latest, url=self.url)
        from gpubox.server.server_process import reap_servers

        reap_servers()
        return await self._sampler.sample()

    def activity_marker(self) -> object:
        found: list[object] = []
        for path in (self.paths.instance_log(MAIN_INSTANCE), self.paths.instance_state(MAIN_INSTANCE)):
            with contextlib.suppress(OSError):
                stat = path.stat()
                found.append((stat.st_ino, stat.st_size, stat.st_mtime_ns))
        return found

    def beside(self) -> tuple[tuple[str, ...], str | None]:
        if self.url:
            return (), None
        self._watch()
        return tuple(self._companions()), self._last()

    def _watch(self) -> None:
        """Gives each server its watcher back where somebody killed that."""
        from gpubox.server.instance import instance_names, observe
        from gpubox.server.watcher import ensure_watcher

        for slot in instance_names(self.paths):
            ensure_watcher(self.paths, slot, observe(self.paths, slot).process)

    async def close(self) -> None:
        if self._sampler:
            await self._sampler.close()
        if self._driver:
            await run_in_thread(self._driver.close)

    def handle_crash(self) -> str:
        from gpubox.hardware.gpu import DriverReading
        from gpubox.server import watcher
        from gpubox.server.crash_recovery import restart_refusal, write_post_mortem
        from gpubox.server.failure_causes import FailureKind
        from gpubox.server.instance import cause_of, observe

        driver = self._driver.latest() if self._driver else DriverReading(())
        view = observe(self.paths, MAIN_INSTANCE)
        written = write_post_mortem(self.paths, view, driver)
        dead = view.state.running
        told = dead is not None and cause_of(self.paths, MAIN_INSTANCE, dead.process).kind is FailureKind.STOPPED
        refused = restart_refusal(view, driver, keyed=api_key(self.paths) is not None, told=told)
        said = f"{view.message} {written}" if written else view.message
        if dead is None:
            return said
        if refused is None:  # the watcher does it; one that was killed is replaced for that
            watcher.ensure_watcher(self.paths, MAIN_INSTANCE, dead.process)
            refused = (
                "It is started again." if watcher.watched(MAIN_INSTANCE) else "It is not started again: no watcher."
            )
        return f"{said} {refused}".strip()

    def _companions(self) -> list[str]:
        from gpubox.server.instance import instance_names, observe

        views = [observe(self.paths, slot) for slot in instance_names(self.paths) if slot != MAIN_INSTANCE]
        return [view.running.launch.profile for view in views if view.running]

    def _last(self) -> str | None:
        from gpubox.server.state import load_state

        last = load_state(self.paths.instance_state(MAIN_INSTANCE)).last_good
        return last.profile if last else None

    # -- profiles -----------------------------------------------------------------------------------

    def stamp(self) -> object:
        found = []
        with contextlib.suppress(OSError):
            found.append((str(self.paths.config_file), self.paths.config_file.stat().st_mtime_ns))
        for folder in (shipped_profiles(), self.paths.profiles):
            with contextlib.suppress(OSError):
                found += [(str(path), path.stat().st_mtime_ns) for path in folder.glob("*.toml")]
        return tuple(sorted(found))

    def catalog(self) -> ProfileCatalog:
        """The profiles; reads config.toml again too. One that is broken stands beside them, and what it said holds."""
        from gpubox.profiles.loader import load_catalog

        catalog = load_catalog(self.paths)
        try:
            self.config = load_config(self.paths)
        except UsageError as error:
            name = self.paths.config_file.name
            return replace(catalog, broken={**catalog.broken, name: error})
        return catalog

    def hides_shipped(self, catalog: ProfileCatalog) -> bool:
        from gpubox.profiles.listing import hides_shipped

        return hides_shipped(catalog.profiles.values(), self.config.shipped_profiles)

    def fits(self, catalog: ProfileCatalog) -> dict[str, EngineCompatibility]:
        from gpubox.server.engine_compatibility import compatibility_by_profile

        return compatibility_by_profile(catalog.profiles.values(), self.paths, self.config)

    def models(self, catalog: ProfileCatalog) -> list[Path]:
        from gpubox.models.find import find_models
        from gpubox.models.resolve import profile_model

        named = set()
        for profile in catalog.profiles.values():
            with contextlib.suppress(GpuboxError):
                if path := profile_model(profile, self.paths, self.config).path:
                    named.add(path.resolve())
        return [path for path in find_models(self.config, self.paths) if path.resolve() not in named]

    def preview_launch(self, profile: Profile) -> LaunchPreview:
        from gpubox.server.launch import preview_launch

        return preview_launch(profile, self.paths, self.config)

    def make_profile(self, model: Path) -> Profile:
        from gpubox.interchange.importing import import_source
        from gpubox.profiles.writer import save_profile

        imported = import_source(str(model))
        if not imported:
            raise GpuboxError(f"No profile can be made of {model}.")
        save_profile(imported[0].profile, self.paths)
        return imported[0].profile

    # -- the log ------------------------------------------------------------------------------------

    def read_log(self) -> list[str]:
        if self._log is None:
            from gpubox.server.log import LogReader, tail_text

            path = self.paths.instance_log(MAIN_INSTANCE)
            self._log = LogReader(path, from_end=True)
            return tail_text(path, FIRST_LOG_BYTES).splitlines()
        return self._log.read()

    def failed_log(self) -> tuple[str, list[str]]:
        from gpubox.server.instance import failed_log
        from gpubox.server.log import tail_text

        path, said = failed_log(self.paths, MAIN_INSTANCE)
        return said, tail_text(path, FIRST_LOG_BYTES).splitlines()

    # -- operations ---------------------------------------------------------------------------------

    def model_size(self, profile: Profile) -> int | None:
        from gpubox.models.resolve import profile_model

        with contextlib.suppress(GpuboxError):
            return profile_model(profile, self.paths, self.config).size
        return None

    def needs_download(self, profile: Profile) -> bool:
        from gpubox.models.resolve import profile_model

        with contextlib.suppress(GpuboxError):
            source = profile_model(profile, self.paths, self.config)
            return source.path is None and bool(source.fetch)
        return False

    def plan_download(self, profile: Profile) -> DownloadPlan:
        from gpubox.models.fetch import plan_download

        return plan_download(profile.model, self.paths)

    def exposed_without_key(self, profile: Profile) -> bool:
        return not (profile.loopback or self.config.allow_exposed or api_key(self.paths))

    def fetch(self, profile: Profile, on_progress: Callable[[int, int | None], None]) -> None:
        from gpubox.models.fetch import fetch_model

        fetch_model(profile.model, self.paths, self.config, on_progress)

    def operate(
        self, kind: str, profile: Profile | str, stop_now: bool, allow_exposed: bool, emit: Callable[[Any], None]
    ) -> None:
        from gpubox.server.supervisor import Supervisor, instance_of

        slot = profile if isinstance(profile, str) else instance_of(profile)
        supervisor = Supervisor(self.paths, self.config, slot, emit)
        try:
            asyncio.run(self._cancellable(_work(supervisor, kind, profile, stop_now, allow_exposed)))
        except asyncio.CancelledError:
            raise GpuboxError("Given up; what runs was not touched.", code=ExitCode.INTERRUPTED) from None
        finally:
            self._cancel = None

    async def _cancellable(self, work: Coroutine[Any, Any, object]) -> None:
        loop, task = asyncio.get_running_loop(), asyncio.current_task()
        assert task is not None

        def cancel() -> None:
            loop.call_soon_threadsafe(task.cancel)

        self._cancel = cancel
        await work

    def wait_seconds(self) -> float:
        return self.config.wait_seconds

    def cancel(self) -> None:
        if self._cancel:
            self._cancel()

    def chats(self) -> ChatService:
        from gpubox.tui.chat.service import ChatService

        return ChatService(self.paths, self.config, self.url, recording=bool(self.read_only) and not self.url)

    def bench_service(self) -> BenchService:
        if self._benches is None:
            from gpubox.tui.bench.service import BenchService

            self._benches = BenchService(
                self.paths, self.config, self.url, read_only="" if self.url else self.read_only
            )
        return self._benches

    def save_traceback(self, text: str) -> None:
        with contextlib.suppress(OSError):
            self.paths.logs.mkdir(parents=True, exist_ok=True)
            (self.paths.logs / "screen-broke.txt").write_text(text, encoding="utf-8")

    def places(self) -> list[tuple[str, str]]:
        paths = self.paths
        return [
            ("your profiles", str(paths.profiles)),
            ("settings", str(paths.config_file)),
            ("API key (0600)", str(paths.api_key_file)),
            ("the server's log", str(paths.instance_log(MAIN_INSTANCE))),
            ("state", str(paths.state)),
            ("cache", str(paths.cache)),
        ]


def _work(
    supervisor: Supervisor, kind: str, profile: Profile | str, stop_now: bool, allow_exposed: bool
) -> Coroutine[Any, Any, object]:
    if kind == "stop" or isinstance(profile, str):
        return supervisor.stop()
    if kind == "start":
        return supervisor.start(profile, allow_exposed=allow_exposed)
    work = supervisor.restart if kind == "restart" else supervisor.switch
    return work(profile, stop_now=stop_now, allow_exposed=allow_exposed)


def _import_server() -> None:
    import gpubox.server.status  # noqa: F401


def _import_sampler() -> None:
    import gpubox.hardware.nvml_reader
    import gpubox.server.server_process
    import gpubox.telemetry.history
    import gpubox.telemetry.sampler  # noqa: F401
