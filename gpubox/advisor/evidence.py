"""Everything that the rules may look at: frozen values; and what gathers them of Snapshots and logs."""

from __future__ import annotations

import re
from collections import Counter, deque
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from statistics import median

from gpubox.hardware.gpu import Gpu
from gpubox.models.gguf import GgufFile
from gpubox.paths import MAIN_INSTANCE, Paths
from gpubox.planner.launch_flags import LaunchFlags, read_launch_flags
from gpubox.planner.model_shape import read_shape
from gpubox.profiles.profile import FlagValue
from gpubox.server.log import HEAD_BYTES, LISTENS, tail_text
from gpubox.server.state import load_state
from gpubox.storage import open_regular, read_json
from gpubox.telemetry.snapshot import DeviceMemory, Request, Snapshot

QWEN35_LIKE = frozenset({"qwen35", "qwen35moe"})
"""The architectures that llama.cpp gives the models of the Qwen3.5 and Qwen3.6 families (conversion of b11434)."""


LEAST_READINGS, LEAST_SHARE = 10, 0.5
"""A bottleneck counts if at least half of ten or more readings named it."""


@dataclass(frozen=True, slots=True)
class ModelFacts:
    """What the rules need of a GGUF header."""

    architecture: str = ""
    hybrid: bool = False
    """It has recurrent states beside attention."""
    windowed: bool = False
    """It has sliding windows."""
    thinks: bool = False
    """Its chat template can switch thinking on and off."""

    @classmethod
    def of(cls, file: GgufFile) -> ModelFacts:
        shape = read_shape(file)
        template = file.metadata.get("tokenizer.chat_template")
        return cls(
            file.architecture,
            hybrid=any(layer.recurrent_bytes for layer in shape.layers),
            windowed=shape.window > 0,
            thinks=isinstance(template, str) and "enable_thinking" in template,
        )


@dataclass(frozen=True, slots=True)
class LogFacts:
    """What the log of the launch says once, and the log of the last failure."""

    build: int | None = None
    """The build number of the engine; None: its build does not know it."""
    all_quants: bool = False
    """``FA_ALL_QUANTS = 1`` in the line system_info: the CUDA build has attention for all K/V types."""
    load_mode: str = ""
    """Of ``loading model tensors ... (load_mode = mmap)``; empty: the line is missing."""
    failure: str = ""
    """The end of the log of the last launch of this profile that failed or died; empty: none did."""


@dataclass(frozen=True, slots=True)
class BusyReadings:
    """Readings of the last minutes in which the server worked on a request."""

    count: int = 0
    faults_per_second: float | None = None
    """The median of the major faults; None: never read."""
    bottlenecks: Mapping[str, int] = field(default_factory=dict)
    """Bottleneck -> how many of the readings named it."""

    def share(self, *bottlenecks: str) -> float:
        """In which share of the readings one of these was the bottleneck."""
        return sum(self.bottlenecks.get(name, 0) for name in bottlenecks) / self.count if self.count else 0.0

    @property
    def bottleneck(self) -> str:
        """The one that at least half of ten or more readings named; empty: none."""
        enough = self.count >= LEAST_READINGS
        return next((name for name in self.bottlenecks if enough and self.share(name) >= LEAST_SHARE), "")


@dataclass(frozen=True, slots=True)
class ContextUse:
    """How much of the context the requests of this profile have used."""

    requests: int
    largest_tokens: int
    """Prompt and answer of the largest request."""
    slots: int
    """How many slots they were in."""
    source: str
    """Where the requests are listed: ``the log since the start``, ``the history of 12 days``."""


@dataclass(frozen=True, slots=True)
class ContextSaving:
    """What a smaller context would free, from the planner."""

    context_tokens: int
    """The value for ctx-size."""
    device: str
    freed_bytes: int
    expert_layers: tuple[int, int] | None = None
    """n-cpu-moe now, and the smallest that would fit then; None: it is not set, or no smaller one fits."""


@dataclass(frozen=True, slots=True)
class Evidence:
    """All there is about one profile."""

    profile: str
    flags: Mapping[str, FlagValue] = field(default_factory=dict)
    """llama-server's own names -> values: of the running launch, else of the profile's file."""
    env: Mapping[str, str] = field(default_factory=dict)
    host: str = "127.0.0.1"
    template_kwargs: Mapping[str, FlagValue] = field(default_factory=dict)
    """``chat_template_kwargs`` of the profile's chat."""
    model: ModelFacts | None = None
    log: LogFacts = LogFacts()
    snapshot: Snapshot | None = None
    """The newest readings of this profile's server; None: it does not run."""
    busy: BusyReadings = BusyReadings()
    context_use: ContextUse | None = None
    saving: ContextSaving | None = None
    physical_cores: int | None = None
    restored_slots: int = 0
    """Slots into which a kept state was restored at the start."""
    exposed: bool = False
    """Other machines reach the server, and it asks for no key."""

    @property
    def memory_flags(self) -> LaunchFlags | None:
        """The flags that decide memory; None if one of them has a wrong value."""
        try:
            return read_launch_flags(self.flags, self.env)
        except ValueError:
            return None

    def flag(self, name: str) -> FlagValue | None:
        """As ``flag_value``."""
        return flag_value(self.flags, name)

    def whole(self, name: str, default: int) -> int:
        """The value of a flag that is a whole number."""
        try:
            return int(str(self.flags.get(name, default)))
        except ValueError:
            return default

    @property
    def requests(self) -> tuple[Request, ...]:
        """The last finished requests, newest first."""
        return self.snapshot.requests if self.snapshot else ()

    @property
    def bottlenecks(self) -> frozenset[str]:
        """What the panes say slows the server: now, and in most of the last minutes. A client does not slow it."""
        now = self.snapshot.offload.bottleneck if self.snapshot else None
        return frozenset(filter(None, (now, self.busy.bottleneck))) - {"client"}

    @property
    def host_memory(self) -> DeviceMemory | None:
        """The part of the server that is in RAM."""
        return next((device for device in self.devices if device.kind == "host"), None)

    @property
    def devices(self) -> tuple[DeviceMemory, ...]:
        """The memory of each device."""
        return self.snapshot.memory if self.snapshot else ()

    @property
    def accelerators(self) -> tuple[DeviceMemory, ...]:
        """The cards and RPC devices that hold a part of the model."""
        return tuple(device for device in self.devices if device.kind != "host" and device.parts)

    @property
    def cards(self) -> tuple[Gpu, ...]:
        """The answering cards that hold a part of the model."""
        used = {device.gpu_index for device in self.accelerators}
        driver = self.snapshot.driver if self.snapshot else None
        if driver is None or driver.stale_seconds is not None:
            return ()
        return tuple(gpu for gpu in driver.gpus if gpu.index in used and not gpu.lost)

    @property
    def computes_on_cpu(self) -> bool:
        """Whether the CPU computes layers or experts of the model."""
        offload = self.snapshot.offload if self.snapshot else None
        if offload is None:
            return False
        if not self.accelerators:
            return offload.layers_total is not None  # the log of the load was read, and no device has a part
        on_gpu, total = offload.layers_on_gpu, offload.layers_total
        return bool(offload.expert_layers_on_cpu) or (on_gpu is not None and total is not None and on_gpu < total)

    @property
    def thinking_off(self) -> bool:
        """Whether the launch or the profile's chat switches thinking off."""
        if self.whole("reasoning-budget", -1) == 0 or str(self.flags.get("reasoning", "")).lower() in ("off", "false"):
            return True
        given = self.flags.get("chat-template-kwargs")
        try:
            kwargs = read_json(str(given)) if given else self.template_kwargs
        except ValueError:
            return False
        return isinstance(kwargs, Mapping) and kwargs.get("enable_thinking") is False


def flag_value(flags: Mapping[str, FlagValue], name: str) -> FlagValue | None:
    """The value of a flag; False if its ``no-`` form is set, None if it is not set."""
    return False if f"no-{name}" in flags else flags.get(name)


WINDOW_SECONDS = 300.0
MAX_READINGS = 600


class BusyWindow:
    """Takes Snapshots of one server; of another one it begins anew."""

    def __init__(self) -> None:
        self._readings: deque[tuple[float, float | None, str | None]] = deque(maxlen=MAX_READINGS)
        self._launch: object = None

    def feed(self, snapshot: Snapshot) -> None:
        """Adds one Snapshot, if the server works."""
        launch = (snapshot.server.pid, snapshot.server.started_at)
        if launch != self._launch or (self._readings and snapshot.at < self._readings[-1][0]):
            self._readings.clear()
            self._launch = launch
        if self._readings and snapshot.at == self._readings[-1][0]:
            return
        if snapshot.throughput.working:
            offload = snapshot.offload
            self._readings.append((snapshot.at, offload.major_faults_per_second, offload.bottleneck))
        while self._readings and snapshot.at - self._readings[0][0] > WINDOW_SECONDS:
            self._readings.popleft()

    @property
    def readings(self) -> BusyReadings:
        """What was read."""
        faults = [reading[1] for reading in self._readings if reading[1] is not None]
        names = Counter(reading[2] for reading in self._readings if reading[2])
        return BusyReadings(len(self._readings), median(faults) if faults else None, dict(names))


_BUILD = re.compile(r"\(build (\d+)|^(?:version: )?b?(\d{4,6})\b")
_LOAD_MODE = re.compile(r"loading model tensors.*\(load_mode = ([\w+]+)\)")
_ALL_QUANTS = re.compile(r"FA_ALL_QUANTS = 1\b")
"""In the line system_info, which lists the features of each backend (``ggml_backend_cuda_get_features``)."""


class LogFactsReader:
    """Reads each log of the active server once: the beginning of a launch, and the end of a failure."""

    def __init__(self, paths: Paths) -> None:
        self._paths = paths
        self._loads: tuple[str, LogFacts] | None = None
        self._failures: tuple[object, str] = (None, "")

    def read(self, launch_id: str, profile: str, engine_version: str) -> LogFacts:
        """The facts of a launch; ``launch_id`` is empty if it does not run."""
        build = build_number(engine_version)
        return replace(self._load(launch_id), build=build, failure=self._failure(profile))

    def _load(self, launch_id: str) -> LogFacts:
        if not launch_id:
            return LogFacts()
        if self._loads and self._loads[0] == launch_id:
            return self._loads[1]
        try:
            with open_regular(self._paths.instance_log(MAIN_INSTANCE)) as file:
                text = file.read(HEAD_BYTES).decode(errors="replace")
        except OSError:
            return LogFacts()
        facts = facts_of_load(text)
        if LISTENS.search(text):  # until then more lines come
            self._loads = launch_id, facts
        return facts

    def _failure(self, profile: str) -> str:
        failed = load_state(self._paths.instance_state(MAIN_INSTANCE)).failed
        if failed is None or failed.profile != profile:
            return ""
        if self._failures[0] != (failed.launch_id, failed.at):
            self._failures = (failed.launch_id, failed.at), tail_text(self._paths.failed_log(MAIN_INSTANCE))
        return self._failures[1]


def facts_of_load(text: str) -> LogFacts:
    """The facts in the beginning of a log."""
    mode = _LOAD_MODE.search(text)
    return LogFacts(all_quants=bool(_ALL_QUANTS.search(text)), load_mode=mode[1] if mode else "")


def build_number(version: str) -> int | None:
    """The build in an engine's version: ``0.1.2-dev (build 10525, commit ..)``, ``b9413``. None if it knows none."""
    match = _BUILD.search(version)
    number = int(match[1] or match[2]) if match else 0
    return number or None
