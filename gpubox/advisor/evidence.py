"""Everything that the rules may look at: frozen values, gathered before by ``advisor.py``. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from gpubox.hardware.gpu import Gpu
from gpubox.models.gguf import GgufFile
from gpubox.planner.launch_flags import LaunchFlags, read_launch_flags
from gpubox.planner.model_shape import read_shape
from gpubox.profiles.profile import FlagValue
from gpubox.storage import read_json
from gpubox.telemetry.snapshot import DeviceMemory, Request, Snapshot

QWEN35_LIKE = frozenset({"qwen35", "qwen35moe"})
"""The architectures that llama.cpp gives the models of the Qwen3.5 and Qwen3.6 families (conversion of b11434)."""


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

    def share(self, bottleneck: str) -> float:
        """In which share of the readings this was the bottleneck."""
        return self.bottlenecks.get(bottleneck, 0) / self.count if self.count else 0.0


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
