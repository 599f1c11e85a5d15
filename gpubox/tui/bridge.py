"""The bridge between services and screens: polls the services, keeps what is known, and posts what changed as messages.

All below the app know the services and the app's state through it. ``operations`` posts its events in the same way.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
import traceback
from collections import deque
from collections.abc import Awaitable, Callable
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from gpubox.concurrency import run_in_thread
from gpubox.errors import GpuboxError
from gpubox.tui import messages

if TYPE_CHECKING:
    from gpubox.advisor.advisor import AdviceList
    from gpubox.models.find import LocalModel
    from gpubox.planner.plan import MemoryPlan
    from gpubox.profiles.loader import ProfileCatalog
    from gpubox.profiles.profile import Profile
    from gpubox.server.launch import EngineCompatibility, LaunchPreview
    from gpubox.telemetry.history.writer import HistoryWriter
    from gpubox.telemetry.recent import History
    from gpubox.telemetry.snapshot import Snapshot
    from gpubox.tui.operation_progress import OperationProgress
    from gpubox.tui.services import LocalServices
    from gpubox.tui.survival import SurvivingApp

PROFILES_POLL_SECONDS = 2.0
LOG_PAUSE_SECONDS = 0.7
"""Between two looks into the log, each after a sample: every second one while the server works."""
SNAPSHOT_SECONDS = 0.5
"""Between two samples while the server works: numbers that change faster cannot be read."""
IDLE_SNAPSHOT_SECONDS = 2.0
"""At rest only temperatures and other programs change: the activity marker tells of the server."""
UNMARKED_SNAPSHOT_SECONDS = 1.0
"""At rest where there is no marker: a server that gpubox did not start, another machine."""
ACTIVITY_CHECK_SECONDS = 0.25
"""While idle: how often the activity marker is compared."""
FIRST_FIGURES_SECONDS = 0.5
"""The rest of the start waits no longer for the first readings, nor for the first rows."""
COMPANIONS_SECONDS = 2.0
HISTORY_SECONDS = 3.0
"""After the first sample, the file of the history is opened: the screen has painted by then."""
RETRY_SECONDS = 2.0
"""Pause after a sample that failed."""
GATEWAY_SECONDS, NO_GATEWAY_SECONDS = 1.0, 2.0
"""While a gateway runs, and while none does."""
GATEWAY_ENDED = "The gateway has ended; its clients reach no model now. 5 shows how to start it."
ADVICE_SECONDS = 10.0
FIRST_ADVICE_SECONDS = 3.0
"""The screen opens, and the first readings come, before the advisor's modules are imported."""
IDLE_STATES = ("idle", "ready", "sleeping", "down")


class ServiceBridge:
    """Runs the services for one app."""

    def __init__(self, app: SurvivingApp, services: LocalServices) -> None:
        self.app, self.services = app, services
        self.operation_running = False
        """Whether an operation or its download runs. Set by the OperationController."""
        self.operation_ended = threading.Event()
        """Set while no operation runs, even if the screen is gone."""
        self.operation_ended.set()
        self.overview: messages.ServerOverview | None = None
        self.entries: tuple[messages.ProfileEntry, ...] = ()
        self.hides_shipped = False
        """Whether the owner's settings hide the shipped profiles."""
        self.operation: OperationProgress | None = None
        """The operation that runs, or ran last."""
        self.trial = ""
        """The profile that is tried in this gpubox; empty: none is."""
        self.figures_drawn, self.rows_drawn = asyncio.Event(), asyncio.Event()
        """Whether the first readings, and the first rows of the profile list, are on the screen."""
        self.poller, self.gateway, self.advice = SnapshotPoller(self), GatewayPoller(self), AdvicePoller(self)
        self._compatibility: dict[str, EngineCompatibility] = {}
        self._plans: dict[str, MemoryPlan] = {}
        self._models: list[LocalModel] = []
        self.looked_for_models = False
        """Whether the models on this machine are known."""
        self._model_plans: dict[str, MemoryPlan] = {}
        """By the path of a model without a profile; made only for an owner who has no profile."""
        self._previews: dict[str, tuple[Profile, LaunchPreview, int | None]] = {}

    def start(self, then: Callable[[], None]) -> None:
        """Starts polling after the first paint: the readings, then the profiles, then all else and ``then``."""
        self.run(self.poller.run, "poll-snapshots")
        self.run(partial(self._start_the_rest, then), "start")

    async def _start_the_rest(self, then: Callable[[], None]) -> None:
        await self._wait_for(self.figures_drawn)
        self.run(self._poll_entries, "poll-profiles")
        await self._wait_for(self.rows_drawn)
        self.run(self._poll_log, "poll-log")
        self.run(self.gateway.run, "poll-gateway")
        if not self.services.read_only:
            self.run(self.advice.run, "poll-advice")
        then()

    async def _wait_for(self, drawn: asyncio.Event) -> None:
        """Until it is drawn, but not for a server that does not answer."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(FIRST_FIGURES_SECONDS):
                await drawn.wait()

    def run(self, work: Callable[[], Awaitable[object]], group: str, *, exclusive: bool = False) -> None:
        """Runs ``work`` as a worker of the app. Takes the function, so that no coroutine is left if it never runs.

        A GpuboxError is shown as a warning, and the app says if it fails otherwise. A poller (``poll-...``) then begins
        again.
        """

        async def run() -> None:  # Textual refuses a lambda, and nobody would see the refusal
            while True:
                try:
                    await work()
                    return
                except Exception as error:
                    polls = group.startswith("poll-")
                    if isinstance(error, GpuboxError) and not polls:
                        self.app.say(str(error), bad=True)
                        return
                    if not (polls and self.app.goes_on(error)):
                        raise
                await asyncio.sleep(RETRY_SECONDS)

        worker: Any = run
        self.app.run_worker(worker, name=getattr(work, "__name__", ""), group=group, exclusive=exclusive)

    async def recover_trial(self) -> None:
        """Ends a trial that a killed gpubox has left behind."""
        try:
            name = await run_in_thread(self.services.recover_trial)
        except GpuboxError as error:
            self.app.say(f"What ran before a trial could not be restored: {error}", bad=True)
            return
        if name:
            self.app.say(f"The trial of {name} was left behind by another gpubox. What ran before runs again.")

    def report_overview(self, overview: messages.ServerOverview) -> None:
        """Keeps the overview, and posts that it changed: not for its slots alone, which change with every token."""
        if self.operation_running:  # the operation's own progress says more than its record on disk
            overview = replace(overview, status=replace(overview.status, operation="", message=""))
        before, self.overview = self.overview, overview
        if before is None or overview.without_slots != before.without_slots:
            self.app.post_message(messages.ServerOverviewChanged())

    def refuses(self) -> bool:
        """Whether nothing of what is shown can be changed; tells the owner why."""
        if reason := self.services.read_only:
            self.app.say(reason, bad=True)
        return bool(reason)

    def profile_entry(self, name: str | None) -> messages.ProfileEntry | None:
        """The row of the profile with this name."""
        return next((entry for entry in self.entries if entry.profile and entry.name == name), None)

    async def refresh(self) -> None:
        """Reads profiles and overview again: after an operation a model or an engine may be new."""
        self._previews.clear()
        self.run(self.read_entries, "entries", exclusive=True)
        self.report_overview(await self.services.overview())

    async def _poll_entries(self) -> None:
        last_marker: object = None
        while True:
            marker = await run_in_thread(self.services.profiles_marker)
            if marker != last_marker:
                last_marker = marker
                await self.read_entries()
            await asyncio.sleep(PROFILES_POLL_SECONDS)

    async def read_entries(self) -> None:
        """Reads the profiles and posts them at once; then again after asking the engines and finding models."""
        services = self.services
        catalog = await run_in_thread(services.catalog)
        self.hides_shipped = services.config.shipped_profiles == "hide"
        self._post_entries(catalog)
        await self._wait_for(self.rows_drawn)
        self._compatibility = await run_in_thread(services.compatibility, catalog)
        self._post_entries(catalog)
        self._plans = await run_in_thread(services.plans, catalog, self._compatibility)
        self._post_entries(catalog)
        self._models = await run_in_thread(services.models_without_profile, catalog)
        self.looked_for_models = True
        self._post_entries(catalog)
        if not messages.is_newcomer(self.entries):
            return
        for model in self._models:
            if str(model.path) not in self._model_plans:
                self._model_plans[str(model.path)] = await run_in_thread(services.plan_model, model)
                self._post_entries(catalog)

    def _post_entries(self, catalog: ProfileCatalog) -> None:
        # With the previous compatibility: rows keep their marks while the engines are asked again.
        plans = {**self._model_plans, **self._plans}
        self.entries = messages.build_entries(catalog, self._compatibility, self._models, plans)
        self.app.post_message(messages.ProfileEntriesRead())

    async def show_profile(self, name: str) -> None:
        """Highlights a profile that may be new in the list."""
        self.app.post_message(messages.ProfileWanted(name))
        await self.read_entries()

    async def _poll_log(self) -> None:
        while True:
            if lines := await run_in_thread(self.services.read_log):  # the first call reads half a megabyte
                self.app.post_message(messages.LogLinesRead(lines))
            await asyncio.sleep(LOG_PAUSE_SECONDS)
            await self.poller.sampled.wait()
            self.poller.sampled.clear()

    async def preview(self, entry: messages.ProfileEntry, delay: float) -> tuple[LaunchPreview | None, int | None]:
        """The launch preview of a profile and its model's size in bytes, after ``delay`` seconds. Cached."""
        profile = entry.profile
        assert profile is not None
        cached = self._previews.get(profile.name)
        if cached and cached[0] == profile:
            return cached[1], cached[2]
        await asyncio.sleep(delay)
        try:
            preview = await run_in_thread(self.services.preview_launch, profile)
        except GpuboxError as error:
            self.app.log.error(str(error))
            return None, None
        size = await run_in_thread(self.services.model_size, profile)
        self._previews[profile.name] = (profile, preview, size)
        return preview, size


class SnapshotPoller:
    """Samples for one app. At most one SnapshotTaken is queued, so that a slow terminal cannot fall behind."""

    def __init__(self, bridge: ServiceBridge) -> None:
        self.bridge = bridge
        self.history: History | None = None
        self.pending: tuple[Snapshot, History] | None = None
        self.newest: Snapshot | None = None
        self.sampled = asyncio.Event()
        """Set after each sample, also one that failed: there may be new lines in the log."""
        self.taken_at: float | None = None
        """When the last sample came, in the event loop's time."""
        self._first_at: float | None = None
        self._writer: HistoryWriter | None = None
        self._opened_writer = False
        self._history_problems: deque[str] = deque()
        """Appended to by the writer's thread."""
        self._companions: tuple[tuple[str, ...], str | None] = ((), None)
        self._companions_at = float("-inf")
        self._problem_reported = False
        self._crash_handled = False

    def take(self) -> tuple[Snapshot, History] | None:
        """The newest snapshot and the history up to it; ``None`` if they were taken already."""
        pending, self.pending = self.pending, None
        return pending

    async def run(self) -> None:
        """Samples until cancelled. A problem is reported once, and does not end the loop."""
        loop = asyncio.get_running_loop()
        while True:
            started = loop.time()
            idle, pause = False, RETRY_SECONDS
            try:
                idle = await self.sample() and not self.bridge.operation_running
                pause = IDLE_SNAPSHOT_SECONDS if idle else SNAPSHOT_SECONDS
                self._problem_reported = False
            except (GpuboxError, OSError) as error:
                self._report_problem(str(error))
            except Exception as error:  # a bug in a reader must not end the screen
                self.bridge.services.save_traceback(traceback.format_exc())
                self._report_problem(f"reading failed: {type(error).__name__}: {error}")
            self.sampled.set()
            await self._pause(started + pause, until_activity=idle)

    async def _pause(self, until: float, *, until_activity: bool) -> None:
        """Returns at ``until``, or soon after the activity marker changed."""
        left, ended = until - asyncio.get_running_loop().time(), threading.Event()
        if left <= 0 or not until_activity:
            await asyncio.sleep(max(0.0, left))  # even if sampling takes all the time, the screen must get its turn
            return
        try:
            await run_in_thread(self._wait_for_activity, left, ended)
        finally:
            ended.set()

    def _wait_for_activity(self, seconds: float, ended: threading.Event) -> None:
        """In one thread: to wake the loop for each look would cost more than the look."""
        marker = self.bridge.services.activity_marker()
        until = time.monotonic() + (seconds if marker is not None else min(seconds, UNMARKED_SNAPSHOT_SECONDS))
        while (left := until - time.monotonic()) > 0 and not ended.wait(min(left, ACTIVITY_CHECK_SECONDS)):
            if self.bridge.operation_running or self.bridge.services.activity_marker() != marker:
                return

    async def sample(self) -> bool:
        """Takes one snapshot and passes it on. Returns whether the server is idle."""
        services, now = self.bridge.services, asyncio.get_running_loop().time
        snapshot = await services.snapshot()
        if self.history is None:
            from gpubox.telemetry.recent import History

            self.history = History()
        self.taken_at, self.newest = now(), snapshot
        self.history.push(snapshot)
        await self._store(snapshot, self.taken_at)
        if now() - self._companions_at >= COMPANIONS_SECONDS:
            self._companions, self._companions_at = await run_in_thread(services.companions_and_last), now()
        companions, last = self._companions
        self.bridge.report_overview(
            messages.ServerOverview(snapshot.server, companions, None if snapshot.server.pid else last)
        )
        crashed = snapshot.server.state == "crashed" and not self.bridge.operation_running
        if crashed and not self._crash_handled and (outcome := await run_in_thread(services.handle_crash)):
            self.bridge.app.say(outcome, bad=True)
        self._crash_handled = crashed
        queued, self.pending = self.pending is not None, (snapshot, self.history)
        if not queued:
            self.bridge.app.post_message(messages.SnapshotTaken())
        return snapshot.throughput.state in IDLE_STATES

    async def close(self) -> None:
        """Writes what the history still lacks."""
        if self._writer:
            await run_in_thread(self._writer.close)

    async def _store(self, snapshot: Snapshot, at: float) -> None:
        """Hands the snapshot to the writer of the history, which opens the file some time after the first paint."""
        if self._first_at is None:
            self._first_at = at
        if not self._opened_writer and at - self._first_at >= HISTORY_SECONDS:
            self._opened_writer = True
            self._writer = await run_in_thread(self.bridge.services.history_writer, self._history_problems.append)
        if self._writer:
            self._writer.push(snapshot)
        while self._history_problems:
            self.bridge.app.say(self._history_problems.popleft(), bad=True)

    def _report_problem(self, text: str) -> None:
        """Says it once, and shows it as long as it lasts: what is on the screen is of before."""
        bridge = self.bridge
        if bridge.overview is None:
            from gpubox.server.status import ServerStatus

            bridge.overview = messages.ServerOverview(ServerStatus(None, "unreachable"))
        bridge.report_overview(replace(bridge.overview, status=replace(bridge.overview.status, message=text)))
        if not self._problem_reported:
            self._problem_reported = True
            self.bridge.app.say(text, bad=True)


class GatewayPoller:
    """Asks the gateway while one runs, and looks for one while none does. Posts what it says if it changed."""

    def __init__(self, bridge: ServiceBridge) -> None:
        self.bridge = bridge
        self.view: messages.GatewayView | None = None
        self.is_stopped_here = False
        """Whether this screen stops the gateway, so that its end is no news."""
        self._lock = asyncio.Lock()

    async def run(self) -> None:
        """Polls until cancelled."""
        while True:
            await self.poll()
            await asyncio.sleep(GATEWAY_SECONDS if self.view else NO_GATEWAY_SECONDS)

    async def poll(self) -> None:
        """Asks once."""
        services = self.bridge.services
        async with self._lock:
            try:
                view = await run_in_thread(services.gateway)
            except (GpuboxError, OSError) as error:
                view = messages.GatewayView(self.view.base_url if self.view else "", problem=str(error))
            except Exception:  # a bug in a reader must not end the screen
                services.save_traceback(traceback.format_exc())
                view = None
            if view != self.view:
                if view is None and not self.is_stopped_here:
                    self.bridge.app.say(GATEWAY_ENDED, bad=True)
                self.view, self.is_stopped_here = view, False
                self.bridge.app.post_message(messages.GatewayChanged())


class AdvicePoller:
    """Asks the advisor every few seconds about what runs. Posts that its answer changed."""

    def __init__(self, bridge: ServiceBridge) -> None:
        self.bridge = bridge
        self.advice: AdviceList | None = None
        self._read: object = None
        self._lock = asyncio.Lock()

    async def run(self) -> None:
        """Polls until cancelled."""
        await asyncio.sleep(FIRST_ADVICE_SECONDS)
        while True:
            # At rest the same readings come again and again: nothing new can be said of them.
            read = _advice_marker(self.bridge.poller.newest)
            if read != self._read:
                self._read = read
                await self.poll()
            await asyncio.sleep(ADVICE_SECONDS)

    async def poll(self) -> None:
        """Asks once."""
        services, snapshot = self.bridge.services, self.bridge.poller.newest
        async with self._lock:
            try:
                advice = await run_in_thread(services.advice, snapshot) if snapshot else None
            except GpuboxError:
                advice = None
            except Exception:  # a bug in a rule must not end the screen
                services.save_traceback(traceback.format_exc())
                advice = None
            if advice != self.advice:
                self.advice = advice
                self.bridge.app.post_message(messages.AdviceChanged())


def _advice_marker(snapshot: Snapshot | None) -> object:
    """What of the readings an advice can change with, while the server does nothing."""
    if snapshot is None:
        return None
    server, speeds = snapshot.server, snapshot.throughput
    busy = snapshot.at if speeds.working else None
    host = snapshot.host_memory.on_disk_bytes if snapshot.host_memory else None
    others = [device.other_processes_bytes for device in snapshot.memory if device.kind == "gpu"]
    return server.pid, server.started_at, server.profile, speeds.state, busy, len(snapshot.requests), host, others
