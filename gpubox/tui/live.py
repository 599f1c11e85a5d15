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
from gpubox.paths import MAIN_SLOT, Paths, shipped_profiles
from gpubox.tui.messages import Now
from gpubox.tui.threads import in_thread

if TYPE_CHECKING:
    from gpubox.hardware.nvml_reader import DriverReader
    from gpubox.models.fetch import Download
    from gpubox.profiles.loader import Catalog
    from gpubox.profiles.model import Profile
    from gpubox.server.fit import Fit
    from gpubox.server.launch import Preview
    from gpubox.server.log import LogReader
    from gpubox.server.supervisor import Supervisor
    from gpubox.telemetry.model import Snapshot
    from gpubox.telemetry.sampler import Sampler
    from gpubox.tui.bench.service import BenchService
    from gpubox.tui.chat.service import ChatService

ATTACHED = "gpubox did not start this server: it is watched read only."
FIRST_LOG_BYTES = 512 * 1024


class LiveServices:
    """This machine's profiles, engines and server; with ``url`` a foreign server, read only."""

    def __init__(self, paths: Paths, config: Config, url: str | None = None) -> None:
        self.paths, self.config, self.url = paths, config, url
        self.read_only = ATTACHED if url else ""
        self._imported = False
        self._sampler: Sampler | None = None
        self._driver: DriverReader | None = None
        self._log: LogReader | None = None
        self._cancel: Callable[[], None] | None = None
        self._benches: BenchService | None = None

    def clock(self) -> datetime:
        return datetime.now()

    async def now(self) -> Now:
        if not self._imported:  # the first look: these imports take longer than a frame
            await in_thread(_import_server)
            self._imported = True
        from gpubox.server.spawn import reap
        from gpubox.server.status import read_foreign, read_status

        if self.url:
            from gpubox.server.keys import key_for

            return Now(await read_foreign(self.url, await in_thread(key_for, self.paths, self.config, self.url)))
        reap()
        status = await read_status(self.paths, self.config, MAIN_SLOT)
        companions, last = await in_thread(self.beside)
        return Now(status, companions, None if status.pid else last)

    async def snapshot(self) -> Snapshot:
        if self._sampler is None:  # the first: the driver's library and HTTP take longer to import than a frame
            await in_thread(_import_sampler)
            self._imported = True
            from gpubox.hardware.nvml_reader import DriverReader
            from gpubox.telemetry.sampler import Sampler

            self._driver = DriverReader()
            self._sampler = Sampler(self.paths, self.config, self._driver.latest, url=self.url)
        from gpubox.server.spawn import reap

        reap()
        return await self._sampler.sample()

    def pulse(self) -> object:
        found: list[object] = []
        for path in (self.paths.slot_log(MAIN_SLOT), self.paths.slot_state(MAIN_SLOT)):
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
        from gpubox.server.slot import observe, slots
        from gpubox.server.watcher import ensure

        for slot in slots(self.paths):
            ensure(self.paths, slot, observe(self.paths, slot).process)

    async def close(self) -> None:
        if self._sampler:
            await self._sampler.close()
        if self._driver:
            await in_thread(self._driver.close)

    def after_death(self) -> str:
        from gpubox.hardware.gpu import DriverReading
        from gpubox.server import watcher
        from gpubox.server.causes import Kind
        from gpubox.server.guard import may_restart, post_mortem
        from gpubox.server.slot import cause_of, observe

        driver = self._driver.latest() if self._driver else DriverReading(())
        view = observe(self.paths, MAIN_SLOT)
        written = post_mortem(self.paths, view, driver)
        dead = view.state.running
        told = dead is not None and cause_of(self.paths, MAIN_SLOT, dead.process).kind is Kind.STOPPED
        refused = may_restart(view, driver, keyed=api_key(self.paths) is not None, told=told)
        said = f"{view.message} {written}" if written else view.message
        if dead is None:
            return said
        if refused is None:  # the watcher does it; one that was killed is replaced for that
            watcher.ensure(self.paths, MAIN_SLOT, dead.process)
            refused = "It is started again." if watcher.watched(MAIN_SLOT) else "It is not started again: no watcher."
        return f"{said} {refused}".strip()

    def _companions(self) -> list[str]:
        from gpubox.server.slot import observe, slots

        views = [observe(self.paths, slot) for slot in slots(self.paths) if slot != MAIN_SLOT]
        return [view.running.launch.profile for view in views if view.running]

    def _last(self) -> str | None:
        from gpubox.server.record import load_state

        last = load_state(self.paths.slot_state(MAIN_SLOT)).last_good
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

    def catalog(self) -> Catalog:
        """The profiles; reads config.toml again too. One that is broken stands beside them, and what it said holds."""
        from gpubox.profiles.loader import load_catalog

        catalog = load_catalog(self.paths)
        try:
            self.config = load_config(self.paths)
        except UsageError as error:
            name = self.paths.config_file.name
            return replace(catalog, broken={**catalog.broken, name: error})
        return catalog

    def hides_shipped(self, catalog: Catalog) -> bool:
        from gpubox.profiles.listing import hides_shipped

        return hides_shipped(catalog.profiles.values(), self.config.shipped_profiles)

    def fits(self, catalog: Catalog) -> dict[str, Fit]:
        from gpubox.server.fit import engine_fits

        return engine_fits(catalog.profiles.values(), self.paths, self.config)

    def models(self, catalog: Catalog) -> list[Path]:
        from gpubox.models.find import find_models
        from gpubox.models.resolve import model_of

        named = set()
        for profile in catalog.profiles.values():
            with contextlib.suppress(GpuboxError):
                if path := model_of(profile, self.paths, self.config).path:
                    named.add(path.resolve())
        return [path for path in find_models(self.config, self.paths) if path.resolve() not in named]

    def preview(self, profile: Profile) -> Preview:
        from gpubox.server.launch import preview

        return preview(profile, self.paths, self.config)

    def make_profile(self, model: Path) -> Profile:
        from gpubox.interchange.importing import import_source
        from gpubox.profiles.writing import save_profile

        imported = import_source(str(model))
        if not imported:
            raise GpuboxError(f"No profile can be made of {model}.")
        save_profile(imported[0].profile, self.paths)
        return imported[0].profile

    # -- the log ------------------------------------------------------------------------------------

    def read_log(self) -> list[str]:
        if self._log is None:
            from gpubox.server.log import LogReader, tail_text

            path = self.paths.slot_log(MAIN_SLOT)
            self._log = LogReader(path, from_end=True)
            return tail_text(path, FIRST_LOG_BYTES).splitlines()
        return self._log.read()

    def failed_log(self) -> tuple[str, list[str]]:
        from gpubox.server.log import tail_text
        from gpubox.server.slot import failed_log

        path, said = failed_log(self.paths, MAIN_SLOT)
        return said, tail_text(path, FIRST_LOG_BYTES).splitlines()

    # -- operations ---------------------------------------------------------------------------------

    def model_size(self, profile: Profile) -> int | None:
        from gpubox.models.resolve import model_of

        with contextlib.suppress(GpuboxError):
            return model_of(profile, self.paths, self.config).size
        return None

    def to_fetch(self, profile: Profile) -> bool:
        from gpubox.models.resolve import model_of

        with contextlib.suppress(GpuboxError):
            source = model_of(profile, self.paths, self.config)
            return source.path is None and bool(source.fetch)
        return False

    def planned_download(self, profile: Profile) -> Download:
        from gpubox.models.fetch import planned_download

        return planned_download(profile.model, self.paths)

    def exposed_unguarded(self, profile: Profile) -> bool:
        return not (profile.loopback or self.config.allow_exposed or api_key(self.paths))

    def fetch(self, profile: Profile, on_progress: Callable[[int, int | None], None]) -> None:
        from gpubox.models.fetch import fetch_model

        fetch_model(profile.model, self.paths, self.config, on_progress)

    def operate(
        self, kind: str, profile: Profile | str, go_now: bool, allow_exposed: bool, emit: Callable[[Any], None]
    ) -> None:
        from gpubox.server.supervisor import Supervisor, slot_of

        slot = profile if isinstance(profile, str) else slot_of(profile)
        supervisor = Supervisor(self.paths, self.config, slot, emit)
        try:
            asyncio.run(self._cancellable(_work(supervisor, kind, profile, go_now, allow_exposed)))
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
        from gpubox.tui.chat.live import LiveChats

        return LiveChats(self.paths, self.config, self.url, recording=bool(self.read_only) and not self.url)

    def benches(self) -> BenchService:
        if self._benches is None:
            from gpubox.tui.bench.live import LiveBench

            self._benches = LiveBench(self.paths, self.config, self.url, read_only="" if self.url else self.read_only)
        return self._benches

    def keep_traceback(self, text: str) -> None:
        with contextlib.suppress(OSError):
            self.paths.logs.mkdir(parents=True, exist_ok=True)
            (self.paths.logs / "screen-broke.txt").write_text(text, encoding="utf-8")

    def places(self) -> list[tuple[str, str]]:
        paths = self.paths
        return [
            ("your profiles", str(paths.profiles)),
            ("settings", str(paths.config_file)),
            ("API key (0600)", str(paths.api_key_file)),
            ("the server's log", str(paths.slot_log(MAIN_SLOT))),
            ("state", str(paths.state)),
            ("cache", str(paths.cache)),
        ]


def _work(
    supervisor: Supervisor, kind: str, profile: Profile | str, go_now: bool, allow_exposed: bool
) -> Coroutine[Any, Any, object]:
    if kind == "stop" or isinstance(profile, str):
        return supervisor.stop()
    if kind == "start":
        return supervisor.start(profile, allow_exposed=allow_exposed)
    work = supervisor.restart if kind == "restart" else supervisor.switch
    return work(profile, go_now=go_now, allow_exposed=allow_exposed)


def _import_server() -> None:
    import gpubox.server.status  # noqa: F401


def _import_sampler() -> None:
    import gpubox.hardware.nvml_reader
    import gpubox.server.spawn
    import gpubox.telemetry.history
    import gpubox.telemetry.sampler  # noqa: F401
