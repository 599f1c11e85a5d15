"""Gathers the evidence about one profile and asks the rules. Blocks: the screen calls it in a thread."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from gpubox.advisor.advice import Advice
from gpubox.advisor.dismissed import Dismissals
from gpubox.advisor.evidence import (
    BusyReadings,
    BusyWindow,
    ContextSaving,
    ContextUse,
    Evidence,
    LogFactsReader,
    ModelFacts,
    flag_value,
)
from gpubox.advisor.rules.context import wanted_context
from gpubox.advisor.rules.table import advise
from gpubox.config import Config, api_key
from gpubox.engines.capabilities import Capabilities
from gpubox.engines.find import choose_engine
from gpubox.engines.query import read_capabilities
from gpubox.errors import GpuboxError
from gpubox.hardware.host import physical_cores
from gpubox.hardware.process import environment_of
from gpubox.models.header_cache import read_model
from gpubox.models.resolve import profile_model
from gpubox.paths import MAIN_INSTANCE, Paths
from gpubox.planner.launch_flags import ALL_LAYERS, LaunchFlags
from gpubox.planner.measured import flags_of_argv
from gpubox.planner.plan import DevicePlan, MemoryPlan
from gpubox.planner.planner import Planner, changed_flags
from gpubox.planner.solve import solve
from gpubox.profiles.loader import load_catalog
from gpubox.profiles.profile import FlagValue, Profile, is_loopback
from gpubox.server.instance import observe
from gpubox.server.state import RunningServer
from gpubox.telemetry.history.queries import HistoryQueries
from gpubox.telemetry.history.values import StoredRequest
from gpubox.telemetry.snapshot import Request, Snapshot

HISTORY_DAYS, HISTORY_SECONDS = 30, 60.0
"""How far back the use of the context is looked up, and how often."""
APPLIED = "The profile's file has this change already: a restart applies it."


@dataclass(frozen=True, slots=True)
class AdviceList:
    """The advice about one profile, the most urgent first."""

    profile: str
    """Empty: nothing runs, and no profile was named."""
    advice: tuple[Advice, ...] = ()
    """With the dismissed ones, which are marked."""

    @property
    def shown(self) -> tuple[Advice, ...]:
        """Without the dismissed ones."""
        return tuple(each for each in self.advice if not each.dismissed)


class Advisor:
    """Judges the profiles of this machine. Threads take turns."""

    def __init__(self, paths: Paths, config: Callable[[], Config]) -> None:
        self._paths, self._config = paths, config
        self._turn = threading.Lock()
        self._window = BusyWindow()
        self._logs = LogFactsReader(paths)
        self._planner: tuple[Config, Planner] | None = None
        self._saving: tuple[object, ContextSaving | None] = (None, None)
        self._history = HistoryQueries(paths.history)
        self._remembered: tuple[str, float, tuple[StoredRequest, ...]] = ("", float("-inf"), ())
        """The profile, when the history was asked about it (monotonic), and its answer."""
        self._read_file: tuple[object, Profile] | None = None
        """What identifies the profile that was read last, and the profile."""
        self.dismissals = Dismissals(paths)

    def observe(self, snapshot: Snapshot) -> None:
        """Takes one Snapshot into account. Cheap."""
        with self._turn:
            self._window.feed(snapshot)

    def advise(self, profile: str = "", snapshot: Snapshot | None = None) -> AdviceList:
        """The advice about ``profile``, else about what runs. ``snapshot``: the newest readings of the active server.

        Raises UsageError if there is no profile of that name.
        """
        running = snapshot.server.profile if snapshot and snapshot.server.pid else None
        name = profile or running or ""
        if not name:
            return AdviceList("")
        with self._turn:
            file = self._file(name) if profile else self._file_if_there(name)
            advice = advise(self.evidence(name, file, snapshot if name == running else None))
            # of its own engine: another one may run
            flags = _flags(file, None, self._capabilities(file, None)) if file and advice else {}
        dismissed = self.dismissals.of(name)
        settled = (_settled(each, file, flags) for each in advice)
        return AdviceList(name, tuple(replace(each, dismissed=each.rule in dismissed) for each in settled))

    def evidence(self, name: str, file: Profile | None, snapshot: Snapshot | None) -> Evidence:
        """All there is about a profile. ``file``: as it is on disk; ``snapshot``: if its server runs."""
        running = observe(self._paths, MAIN_INSTANCE).running if snapshot else None
        if running and running.launch.profile != name:
            running, snapshot = None, None  # it was switched since
        capabilities = self._capabilities(file, running)
        flags = _flags(file, running, capabilities)
        model = self._model(file, running)
        version = running.launch.engine_version if running else capabilities.version if capabilities else ""
        launch_id = running.launch_id if running else ""
        host = running.launch.host if running else file.host if file else ""
        evidence = Evidence(
            name,
            flags=flags,
            env=_environment(file, running),
            host=host,
            template_kwargs=dict(file.chat.template_kwargs) if file else {},
            model=model,
            log=self._logs.read(launch_id, name, version),
            snapshot=snapshot,
            busy=self._window.readings if snapshot else BusyReadings(),
            physical_cores=physical_cores(),
            restored_slots=len(running.restored) if running else 0,
            exposed=self._exposed(host, running),
        )
        return self._with_context(evidence, file, running)

    def _file(self, name: str) -> Profile:
        own = self._paths.profiles / f"{name}.toml"
        if self._read_file and self._read_file[0] == (name, _stamp(own), _stamp(self._read_file[1].path)):
            return self._read_file[1]  # the catalog is read only after a change
        profile = load_catalog(self._paths).get(name)
        self._read_file = (name, _stamp(own), _stamp(profile.path)), profile
        return profile

    def _file_if_there(self, name: str) -> Profile | None:
        try:
            return self._file(name)
        except GpuboxError:
            return None  # deleted, renamed or broken while it runs

    def _capabilities(self, file: Profile | None, running: RunningServer | None) -> Capabilities | None:
        engine = running.launch.engine if running else file.engine if file else ""
        try:
            return read_capabilities(choose_engine(self._config(), engine), self._paths)
        except GpuboxError:
            return None

    def _model(self, file: Profile | None, running: RunningServer | None) -> ModelFacts | None:
        try:
            if running and running.launch.model_path:
                path: Path | None = Path(running.launch.model_path)
            else:
                path = profile_model(file, self._paths, self._config()).path if file else None
            return ModelFacts.of(read_model(path, self._paths)) if path else None
        except GpuboxError:
            return None

    def _exposed(self, host: str, running: RunningServer | None) -> bool:
        if not host or is_loopback(host):
            return False
        try:
            return not (running.has_api_key if running else api_key(self._paths))
        except GpuboxError:
            return False  # there is a key, but it cannot be read

    def _with_context(self, evidence: Evidence, file: Profile | None, running: RunningServer | None) -> Evidence:
        """``evidence`` with the use of the context, and what a smaller one would free if it is far too large."""
        use, flags = context_use(evidence, self._past_requests(evidence.profile)), evidence.memory_flags
        size = evidence.snapshot.throughput.context_size_tokens if evidence.snapshot else None
        cells = evidence.snapshot.kv_cells if evidence.snapshot else None
        wanted = wanted_context(flags, use, size, cells) if use and flags and size and cells else None
        if wanted is None or flags is None or cells is None or file is None:
            return replace(evidence, context_use=use)
        key = (running.launch_id if running else "", wanted, tuple(evidence.flags.items()))
        if self._saving[0] != key:
            profile = replace(file, flags=evidence.flags)
            self._saving = key, context_saving(self._the_planner(), profile, flags, running, cells, wanted)
        return replace(evidence, context_use=use, saving=self._saving[1])

    def _past_requests(self, profile: str) -> tuple[StoredRequest, ...]:
        """The requests of the last weeks, the newest first; asked for once a minute."""
        name, asked, stored = self._remembered
        now = time.monotonic()
        if name != profile or now - asked > HISTORY_SECONDS:
            until = time.time()
            try:
                stored = tuple(self._history.requests(until - HISTORY_DAYS * 86_400, until + 1, profile))
            except GpuboxError:
                stored = ()  # a damaged history is no reason to be silent about the rest
            self._remembered = profile, now, stored
        return stored

    def _the_planner(self) -> Planner:
        config = self._config()
        if self._planner is None or self._planner[0] is not config:
            self._planner = config, Planner(self._paths, config)
        return self._planner[1]


def context_use(evidence: Evidence, past: Sequence[StoredRequest] = ()) -> ContextUse | None:
    """How much of the context was used, by the server's log and the ``past`` requests; None without a request."""
    requests = [*evidence.requests, *(stored.request for stored in past)]
    known = [size for size in map(_tokens, requests) if size is not None]
    if not known:
        return None
    now = evidence.snapshot.throughput.context_used_tokens if evidence.snapshot else None
    slots = {request.slot for request in requests}
    days = (past[0].at - past[-1].at) / 86_400 if past else 0.0
    source = f"the history of {max(1.0, days):.0f} days, and the server's log" if past else "the server's log"
    # The history has the requests of the log too: each counts once.
    count = max(len(past), len([1 for request in evidence.requests if _tokens(request) is not None]))
    return ContextUse(count, max(*known, now or 0), len(slots), source)


def _stamp(path: Path | None) -> tuple[int, int, int] | None:
    """What changes when the file does; None: there is no such file."""
    try:
        status = path.stat() if path else None
    except OSError:
        return None
    return (status.st_ino, status.st_size, status.st_mtime_ns) if status else None


def _tokens(request: Request) -> int | None:
    if request.prompt_tokens is None:
        return None
    return request.prompt_tokens + (request.generated_tokens or 0)


def _flags(
    file: Profile | None, running: RunningServer | None, capabilities: Capabilities | None
) -> dict[str, FlagValue]:
    """The flags of the launch, else of the file, under llama-server's own names."""
    given: Mapping[str, FlagValue] = file.flags if file else {}
    if running and capabilities and len(running.launch.argv) > 1:
        given = flags_of_argv(running.launch.argv[1:], capabilities) or given
    return {capabilities.canonical(name) if capabilities else name: value for name, value in given.items()}


def _environment(file: Profile | None, running: RunningServer | None) -> dict[str, str]:
    """The variables of the server, which it has also from the gpubox that started it."""
    if running and running.process:
        return {**environment_of(running.process.pid), **running.launch.env}
    return {**os.environ, **file.env} if file else {}


def _settled(advice: Advice, file: Profile | None, flags: Mapping[str, FlagValue]) -> Advice:
    """``advice`` as it can be followed: without a file nothing can be tried; a file may have the change already.

    ``flags``: those of the file, under llama-server's own names.
    """
    if file is None or file.elsewhere:
        return replace(advice, try_profile=None)
    if not advice.changes:
        return advice
    present = {name: file.host if name == "host" else flag_value(flags, name) for name in advice.changes}
    if all(_same(present[name], value) for name, value in advice.changes.items()):
        return replace(advice, sentence=f"{advice.sentence} {APPLIED}", changes={}, before={}, try_profile=None)
    return advice


def _same(value: FlagValue | None, other: FlagValue | None) -> bool:
    return value == other if value is None or other is None else str(value) == str(other)


def context_saving(
    planner: Planner, profile: Profile, flags: LaunchFlags, running: RunningServer | None, now: int, then: int
) -> ContextSaving | None:
    """What ``then`` instead of ``now`` tokens of context would free on the device that gains most.

    ``profile``: with the flags of the launch. ``flags``: the same, read. None if the planner cannot say.
    Runs no engine.
    """
    try:
        situation = planner.situation(profile, replaces=[running] if running else (), ask_devices="never")
    except GpuboxError:
        return None
    before, after = (planner.plan_in(situation, {"ctx-size": tokens}) for tokens in (now, then))
    freed = _freed(before, after)
    if before.problem or after.problem or not freed:
        return None
    device, gained = max(freed.items(), key=lambda item: item[1])
    layers, experts = flags.cpu_expert_layers, None
    if 0 < layers < ALL_LAYERS and not after.doubts:
        smaller = replace(profile, flags=changed_flags(situation.profile.flags, {"ctx-size": then}))
        try:
            answer = solve(planner, replace(situation, profile=smaller), "n-cpu-moe")
        except GpuboxError:
            answer = None
        fewest = int(str(answer.flags.get("n-cpu-moe", 0))) if answer else layers
        experts = (layers, fewest) if fewest < layers else None
    return ContextSaving(then, device, gained, experts)


def _freed(before: MemoryPlan, after: MemoryPlan) -> dict[str, int]:
    later = {device.device: device for device in after.devices}
    pairs = [(device, later[device.device]) for device in before.devices if device.device in later]
    freed = {now.device: _growing(now) - _growing(then) for now, then in pairs}
    return {name: size for name, size in freed.items() if size > 0}


def _growing(device: DevicePlan) -> int:
    """What grows with the context."""
    return device.kv_bytes + device.draft_bytes + (device.compute_bytes or 0)
