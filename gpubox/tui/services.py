"""The services of this machine. Slow imports are inside the methods: the screen paints before it needs them."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Coroutine, Iterable, Mapping
from dataclasses import replace
from datetime import datetime
from functools import cached_property, partial
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gpubox.concurrency import run_in_thread
from gpubox.config import Config, api_key, load_config
from gpubox.errors import ExitCode, GpuboxError, UsageError
from gpubox.paths import MAIN_INSTANCE, Paths, shipped_profiles
from gpubox.storage import write_atomically
from gpubox.tui.messages import GatewayView, ServerOverview
from gpubox.tui.remembered import (
    LastSeen,
    Remembered,
    read_last_seen,
    read_remembered,
    write_last_seen,
    write_remembered,
)

if TYPE_CHECKING:
    from gpubox.advisor.advisor import AdviceList, Advisor
    from gpubox.hardware.nvml_reader import DriverReader
    from gpubox.models.fetch import DownloadPlan
    from gpubox.models.find import LocalModel
    from gpubox.models.resolve import ModelSource
    from gpubox.planner.plan import MemoryPlan
    from gpubox.profiles.loader import ProfileCatalog
    from gpubox.profiles.profile import Profile
    from gpubox.server.launch import EngineCompatibility, LaunchPreview
    from gpubox.server.log import LogActivity, LogReader
    from gpubox.telemetry.history.queries import HistoryQueries
    from gpubox.telemetry.history.writer import HistoryWriter
    from gpubox.telemetry.sampler import Sampler
    from gpubox.telemetry.snapshot import Snapshot
    from gpubox.tui.bench.bench_runs import BenchRuns
    from gpubox.tui.chat.chats import Chats
    from gpubox.tui.clients.gateway_calls import GatewayService
    from gpubox.tui.workshop.model_finder import ModelFinder
    from gpubox.tui.workshop.profile_files import WorkshopService

ATTACHED_READ_ONLY = "gpubox did not start this server, so it can only watch it."
LOG_TAIL_BYTES = 512 * 1024


class LocalServices:
    """This machine's profiles, engines and server; with ``url`` a server that gpubox did not start, read only.

    Methods that are not coroutines may block: the screen calls them in threads. All raise GpuboxError.
    """

    def __init__(self, paths: Paths, config: Config, url: str | None = None) -> None:
        self.paths, self.config, self.url = paths, config, url
        self.read_only = ATTACHED_READ_ONLY if url else ""
        """Why nothing can be changed; empty if it can."""
        self._sampler: Sampler | None = None
        self._driver: DriverReader | None = None
        self._log: LogReader | None = None
        self._activity: LogActivity | None = None
        self._cancel: Callable[[], object] | None = None
        self._bench: BenchRuns | None = None
        self._workshop: WorkshopService | None = None
        self._gateway: GatewayService | None = None
        self._models: ModelFinder | None = None

    @property
    def note(self) -> str:
        """What every header says of a server that gpubox does not own."""
        return "watching this server" if self.url else "recording" if self.read_only else ""

    def remembered(self) -> Remembered:
        """What the screen remembers of its last session."""
        return read_remembered(self.paths.screen)

    def remember(self, remembered: Remembered) -> None:
        write_remembered(self.paths.screen, remembered)

    @property
    def only_watches(self) -> bool:
        """Whether another machine is shown, which answers nothing else."""
        return False

    def clock(self) -> datetime:
        return datetime.now()

    async def overview(self) -> ServerOverview:
        """Reads what runs."""
        await run_in_thread(import_module, "gpubox.server.status")  # the first time slower than a frame
        from gpubox.server.server_process import reap_servers
        from gpubox.server.status import read_status

        if self.url:
            return ServerOverview((await self.snapshot()).server)
        reap_servers()
        status = await read_status(self.paths, self.config, MAIN_INSTANCE)
        companions, last = await run_in_thread(self.companions_and_last)
        return ServerOverview(status, companions, None if status.pid else last)

    async def snapshot(self) -> Snapshot:
        """Takes all readings."""
        if self._sampler is None:
            for module in ("hardware.nvml_reader", "telemetry.recent", "telemetry.sampler"):
                await run_in_thread(import_module, f"gpubox.{module}")
            from gpubox.hardware.nvml_reader import DriverReader
            from gpubox.telemetry.sampler import Sampler

            self._driver = DriverReader()
            self._sampler = Sampler(self.paths, self.config, self._driver.latest, url=self.url)
        from gpubox.server.server_process import reap_servers

        reap_servers()
        return await self._sampler.sample()

    def last_seen(self) -> LastSeen | None:
        """What the screen of this machine showed last. Cheap."""
        return None if self.read_only else read_last_seen(self.paths.last_seen)

    def keep_last_seen(self, seen: LastSeen) -> None:
        if not self.read_only:
            write_last_seen(self.paths.last_seen, seen)

    def history_queries(self) -> HistoryQueries:
        """What this machine's servers did."""
        from gpubox.telemetry.history.queries import HistoryQueries

        return HistoryQueries(self.paths.history)

    def history_writer(self, on_problem: Callable[[str], object]) -> HistoryWriter | None:
        """Starts to write the history; ``None`` for a server that gpubox did not start, and for a recording."""
        if self.read_only:
            return None
        from gpubox.gateway.request_clients import history_writer

        writer = history_writer(self.paths, on_problem)
        writer.start()
        return writer

    def activity_marker(self) -> object:
        """A value that changes when the server does something; ``None``: nothing here tells. Cheap."""
        if self.url:
            return None
        if self._activity is None:
            from gpubox.server.log import LogActivity

            self._activity = LogActivity(self.paths.instance_log(MAIN_INSTANCE))
        return self._activity.count(), _file_stats([self.paths.instance_state(MAIN_INSTANCE)])

    def companions_and_last(self) -> tuple[tuple[str, ...], str | None]:
        """The profiles that run beside the active one, and the profile that answered last."""
        if self.url:
            return (), None
        from gpubox.server.instance import instance_names, observe
        from gpubox.server.state import load_state
        from gpubox.server.watcher import ensure_watcher

        companions: list[str] = []
        for name in instance_names(self.paths):
            view = observe(self.paths, name)
            ensure_watcher(self.paths, name, view.watched)  # replaces a watcher that was killed
            if name != MAIN_INSTANCE and view.running:
                companions.append(view.running.launch.profile)
        last = load_state(self.paths.instance_state(MAIN_INSTANCE)).last_good
        return tuple(companions), last.profile if last else None

    async def close(self) -> None:
        if self._sampler:
            await self._sampler.close()
        if self._driver:
            await run_in_thread(self._driver.close)

    def handle_crash(self) -> str:
        """Writes the post-mortem, has the server restarted if its profile says so. Returns the outcome."""
        if self.read_only:
            return ""
        from gpubox.hardware.gpu import DriverReading
        from gpubox.server import watcher
        from gpubox.server.instance import observe
        from gpubox.server.watcher_recovery import restart_refusal, write_post_mortem

        driver = self._driver.latest() if self._driver else DriverReading(())
        view = observe(self.paths, MAIN_INSTANCE)
        post_mortem = write_post_mortem(self.paths, view, driver)
        outcome = f"{view.message} {post_mortem}" if post_mortem else view.message
        dead = view.state.running
        if dead is None:
            return outcome
        refusal = restart_refusal(self.paths, view, driver)
        if refusal is None:  # the watcher restarts it; one that was killed is replaced first
            watcher.ensure_watcher(self.paths, MAIN_INSTANCE, dead.process)
            watched = watcher.wants_watcher(MAIN_INSTANCE)
            refusal = "It is restarted." if watched else "It is not restarted: no watcher runs."
        return f"{outcome} {refusal}".strip()

    # -- profiles -----------------------------------------------------------------------------------

    def profiles_marker(self) -> object:
        """A value that changes when a profile file or config.toml does. Cheap."""
        folders = (shipped_profiles(), self.paths.profiles)
        return _file_stats([self.paths.config_file, *(path for folder in folders for path in folder.glob("*.toml"))])

    def catalog(self) -> ProfileCatalog:
        """Reads config.toml again too. A broken one is listed as broken; its last valid settings stay in use."""
        from gpubox.profiles.loader import load_catalog

        catalog = load_catalog(self.paths)
        try:
            self.config = load_config(self.paths)
        except UsageError as error:
            return replace(catalog, broken={**catalog.broken, self.paths.config_file.name: error})
        return catalog

    def compatibility(self, catalog: ProfileCatalog) -> dict[str, EngineCompatibility]:
        from gpubox.server.launch import compatibility_by_profile

        return compatibility_by_profile(catalog.profiles.values(), self.paths, self.config)

    def plans(self, catalog: ProfileCatalog, compatibility: Mapping[str, EngineCompatibility]) -> dict[str, MemoryPlan]:
        """Whether the profiles that could start would fit, as far as it is known without running an engine."""
        from gpubox.planner.planner import plan_profiles

        if self.read_only:
            return {}
        ready = [
            p for name, p in catalog.profiles.items() if (c := compatibility.get(name)) and c.model_present and c.ok
        ]
        return plan_profiles(ready, self.paths, self.config)

    def memory_refusal(self, profile: Profile) -> GpuboxError | None:
        """Why ``profile`` would certainly not fit, with flags that would; ``None`` if it fits or that is unknown."""
        from gpubox.planner.supervisors import make_supervisor
        from gpubox.server.instance import running_servers
        from gpubox.server.supervisor import instance_of

        instance = instance_of(profile, self.paths)
        supervisor = make_supervisor(self.paths, self.config, instance)
        try:
            supervisor.check_memory(profile, running_servers(self.paths, instance))
        except GpuboxError as error:
            return error
        return None

    def models_without_profile(self, catalog: ProfileCatalog) -> list[LocalModel]:
        from gpubox.models.find import find_local_models

        sources = map(self._model, catalog.profiles.values())
        named = {source.path.resolve() for source in sources if source and source.path}
        return [model for model in find_local_models("", self.config, self.paths) if model.path.resolve() not in named]

    def plan_model(self, model: LocalModel) -> MemoryPlan:
        """Whether a new profile of a model would fit, and what makes it fit. Never raises."""
        return self.finder_service().plan_local(model)

    def preview_launch(self, profile: Profile) -> LaunchPreview:
        from gpubox.server.launch import preview_launch

        return preview_launch(profile, self.paths, self.config)

    def make_profile(self, model: Path, name: str, plan: MemoryPlan | None) -> Profile:
        """Writes a profile for a model that has none, with the flags that make it fit."""
        return self.finder_service().profile_of(name, model, plan)

    # -- the log ------------------------------------------------------------------------------------

    def read_log(self) -> list[str]:
        """The new lines since the last call; the first call returns the last lines of the log."""
        if self.read_only:
            return []  # the log of this machine's server is not what is shown
        if self._log is None:
            from gpubox.server.log import LogReader, tail_text

            path = self.paths.instance_log(MAIN_INSTANCE)
            self._log = LogReader(path, from_end=True)
            return tail_text(path, LOG_TAIL_BYTES).splitlines()
        return self._log.read()

    def failed_log(self) -> tuple[str, list[str]]:
        """The last failure in a sentence, and the end of its log. Raises GpuboxError if nothing failed."""
        from gpubox.server.instance import failed_log
        from gpubox.server.log import tail_text

        path, failure = failed_log(self.paths, MAIN_INSTANCE)
        return failure, tail_text(path, LOG_TAIL_BYTES).splitlines()

    # -- operations ---------------------------------------------------------------------------------

    def model_size(self, profile: Profile) -> int | None:
        source = self._model(profile)
        return source.size if source else None

    def needs_download(self, profile: Profile) -> bool:
        source = self._model(profile)
        return bool(source and source.path is None and source.fetch)

    def _model(self, profile: Profile) -> ModelSource | None:
        """The model file of a profile, or where to get it; ``None`` if it names none that can be used."""
        from gpubox.models.resolve import profile_model

        try:
            return profile_model(profile, self.paths, self.config)
        except GpuboxError:
            return None

    def plan_download(self, profile: Profile) -> DownloadPlan:
        from gpubox.models.fetch import plan_download

        return plan_download(profile.model, self.paths)

    def exposed_without_key(self, profile: Profile) -> bool:
        """Whether a start opens a port to other machines without a key, and the owner has not allowed that."""
        return not (profile.loopback or self.config.allow_exposed or api_key(self.paths))

    def download(self, profile: Profile, on_progress: Callable[[int, int | None, str], None]) -> None:
        from gpubox.models.fetch import fetch_model

        fetch_model(profile.model, self.paths, self.config, on_progress)

    def operate(
        self, kind: str, target: Profile | str, stop_now: bool, allow_exposed: bool, emit: Callable[[Any], None], *,
        anyway: bool = False,
    ) -> None:  # fmt: skip
        """Runs one operation of the Supervisor to its end. ``target`` is a profile, or for stop an instance name.

        ``anyway``: also if it would not fit into memory.
        """
        from gpubox.planner.supervisors import make_supervisor
        from gpubox.server.supervisor import instance_of

        instance = target if isinstance(target, str) else instance_of(target, self.paths)
        supervisor = make_supervisor(self.paths, self.config, instance, emit, anyway=anyway)
        operation: Coroutine[Any, Any, object]
        if kind == "stop" or isinstance(target, str):
            operation = supervisor.stop()
        elif kind == "start":
            operation = supervisor.start(target, allow_exposed=allow_exposed)
        else:
            change = supervisor.restart if kind == "restart" else supervisor.switch
            operation = change(target, stop_now=stop_now, allow_exposed=allow_exposed)
        self.run_operation(operation)

    def run_operation(self, operation: Coroutine[Any, Any, Any]) -> Any:
        """Runs an operation of a Supervisor to its end, or until ``cancel``."""

        async def run() -> Any:
            loop, task = asyncio.get_running_loop(), asyncio.current_task()
            assert task is not None
            self._cancel = partial(loop.call_soon_threadsafe, task.cancel)
            return await operation

        try:
            return asyncio.run(run())
        except asyncio.CancelledError:
            raise GpuboxError("Cancelled. The running server was not touched.", code=ExitCode.INTERRUPTED) from None
        finally:
            self._cancel = None

    def cancel(self) -> None:
        """Cancels the running operation: the old server is left alone, or comes back."""
        if self._cancel:
            self._cancel()

    def chat_service(self) -> Chats:
        from gpubox.tui.chat.chats import Chats

        return Chats(self.paths, self.config, self.url, recording=bool(self.read_only) and not self.url)

    def bench_service(self) -> BenchRuns:
        if self._bench is None:
            from gpubox.tui.bench.bench_runs import BenchRuns

            self._bench = BenchRuns(self.paths, self.config, self.url, read_only="" if self.url else self.read_only)
        return self._bench

    def workshop_service(self) -> WorkshopService:
        if self._workshop is None:
            from gpubox.tui.workshop.profile_files import WorkshopService

            self._workshop = WorkshopService(self.paths, lambda: self.config, self.run_operation)
        return self._workshop

    def trial_profile(self) -> str | None:
        """The profile that a gpubox, this one or another, tries now. Cheap."""
        if not self._has_trial_record():
            return None
        from gpubox.server.trial import trial_profile

        return trial_profile(self.paths)

    def recover_trial(self) -> str | None:
        """Ends a trial whose gpubox died. Returns the profile that was tried; ``None`` if there was none."""
        if not self._has_trial_record():
            return None
        from gpubox.server.trial import recover_trial

        return asyncio.run(recover_trial(self.paths, self.config))

    def _has_trial_record(self) -> bool:
        return not self.read_only and self.paths.trial_record.exists()

    def finder_service(self) -> ModelFinder:
        if self._models is None:
            from gpubox.tui.workshop.model_finder import ModelFinder

            self._models = ModelFinder(self.paths, self.config)
        return self._models

    def gateway_service(self) -> GatewayService:
        if self._gateway is None:
            from gpubox.tui.clients.gateway_calls import GatewayService

            self._gateway = GatewayService(self.paths, lambda: self.config)
        return self._gateway

    def gateway(self) -> GatewayView | None:
        """What the gateway of this machine says; ``None`` if none runs. Cheap without one."""
        if self.read_only or not self.paths.gateway_record.exists():
            return None
        return self.gateway_service().read()

    def advice(self, snapshot: Snapshot | None, profile: str = "") -> AdviceList | None:
        """The advice about ``profile``, else about what runs. None for a server that gpubox did not start."""
        if self.read_only:
            return None
        if snapshot:
            self._advisor.observe(snapshot)
        return self._advisor.advise(profile, snapshot)

    def wants_client(self) -> bool:
        """Whether the owner has neither connected a client to the gateway, nor dismissed the hint to do so."""
        return not self.read_only and self.gateway_service().wants_client()

    def end_connect_hint(self) -> None:
        self.gateway_service().end_connect_hint()

    def dismiss_advice(self, profile: str, rule: str, dismiss: bool, snapshot: Snapshot | None) -> AdviceList | None:
        """Dismisses an advice for good, or shows it again. Returns the advice as it is then."""
        dismissals = self._advisor.dismissals
        (dismissals.dismiss if dismiss else dismissals.restore)(profile, rule)
        return self.advice(snapshot, profile)

    @cached_property
    def _advisor(self) -> Advisor:
        from gpubox.advisor.advisor import Advisor

        return Advisor(self.paths, lambda: self.config)

    def profile_named(self, name: str) -> Profile:
        """The profile as it is on disk now. Raises UsageError if it is gone or does not load."""
        from gpubox.profiles.loader import load_catalog

        return load_catalog(self.paths).get(name)

    def save_traceback(self, text: str) -> None:
        """Writes it to a file, for a bug report."""
        with contextlib.suppress(OSError):
            write_atomically(self.paths.logs / "screen-crash.txt", text.encode(errors="replace"))

    def file_locations(self) -> list[tuple[str, str]]:
        """(name, path), for the help screen."""
        paths = self.paths
        return [
            ("your profiles", str(paths.profiles)),
            ("settings", str(paths.config_file)),
            ("API key (0600)", str(paths.api_key_file)),
            ("server log", str(paths.instance_log(MAIN_INSTANCE))),
            ("state", str(paths.state)),
            ("cache", str(paths.cache)),
        ]


def _file_stats(paths: Iterable[Path]) -> dict[Path, tuple[int, int, int]]:
    """Inode, size and time of the files that exist: another value means that one of them changed."""
    stats = {}
    for path in paths:
        with contextlib.suppress(OSError):
            stat = path.stat()
            stats[path] = (stat.st_ino, stat.st_size, stat.st_mtime_ns)
    return stats
