"""What a benchmark is made of: frozen values that go into files as they stand (msgspec)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from gpubox.profiles.profile import FlagValue
from gpubox.server.state import Launch

SCHEMA = 1


@dataclass(frozen=True, slots=True)
class Target:
    """One thing that is measured: a profile (with flags changed for this run), or a server somewhere."""

    name: str
    """Unique in its plan; what reports call it."""
    profile: str = ""
    overrides: Mapping[str, FlagValue] = field(default_factory=dict)
    """Flags that differ from the profile's, as ``--set`` gives them."""
    url: str = ""
    """An OpenAI-compatible server that gpubox neither starts nor stops."""
    model: str = ""
    """The model to ask for at ``url``; empty: the first that it lists."""
    stopped: bool = False
    """The item needs the memory of the card: no server of gpubox may run meanwhile (llama-bench)."""


@dataclass(frozen=True, slots=True)
class Plan:
    """All that decides what a run does. The same plan always gives the same items."""

    kind: str
    targets: tuple[Target, ...]
    options: Mapping[str, Any] = field(default_factory=dict)
    """The kind's own, JSON values only."""
    parallel: int = 1
    """How many items of one target are in flight at once."""
    seed: int = 0
    """Of everything random: prompts' order, bootstrap."""


@dataclass(frozen=True, slots=True)
class Item:
    """The smallest piece of a run: what a crash can cost, and what resuming goes on from."""

    id: str
    """Unique in its run and stable: ``short/cold/d0/3``."""
    target: str
    """The name of the target it needs running."""
    values: Mapping[str, Any] = field(default_factory=dict)
    warmup: bool = False
    """Executed and kept, counted nowhere."""
    group: str = ""
    """Items that share a warm-up: resuming in the middle of a group executes its warm-up again."""
    weight: float = 1.0
    """What it costs beside the others (tokens, say): the time left is told by it."""
    start: int = 0
    """Which start of its server it belongs to: another number is another start. 0: any server of its target will do."""


@dataclass(frozen=True, slots=True)
class Flag:
    """Why a number may not stand: seen while it was measured."""

    kind: str
    """foreign request | throttling | swap | clocks | other GPU process | busy CPU | cache | length | setup | crash"""
    text: str
    item: str = ""
    """Empty: of the whole run."""


@dataclass(frozen=True, slots=True)
class Sample:
    """The box at one instant of an item, as the driver says."""

    at: float
    """Seconds since the item began."""
    power_watts: float | None = None
    temperature_celsius: int | None = None
    clock_sm_mhz: int | None = None
    vram_used_bytes: int | None = None
    ram_available_bytes: int | None = None


@dataclass(frozen=True, slots=True)
class RawRecord:
    """What one item did, stored before anything is scored. Scores are made of this alone."""

    item: str
    started_at: str
    seconds: float
    data: Mapping[str, Any]
    """The kind's own: whole requests and replies."""
    samples: tuple[Sample, ...] = ()
    flags: tuple[Flag, ...] = ()
    error: str = ""
    """Why it could not be done, where the server refused it; the data is then what there was."""


@dataclass(frozen=True, slots=True)
class Result:
    """The scored numbers of one item."""

    item: str
    values: Mapping[str, Any] = field(default_factory=dict)
    seconds: float = 0.0
    flags: tuple[Flag, ...] = ()
    error: str = ""
    """Why it has no numbers; it counts as not measured, never as 0."""
    skipped: bool = False
    """Nothing was executed: an earlier item decided it (a sweep's cell that cannot load)."""
    unneeded: bool = False
    """Skipped because it is not needed: the verdict was clear before. Counts as no failure."""

    @property
    def ok(self) -> bool:
        return not self.error

    @property
    def failed(self) -> bool:
        """It was wanted, and there are no numbers."""
        return bool(self.error) and not self.unneeded


@dataclass(frozen=True, slots=True)
class Provenance:
    """What exactly was measured, for one target."""

    target: str
    profile: str = ""
    url: str = ""
    argv: tuple[str, ...] = ()
    env: Mapping[str, str] = field(default_factory=dict)
    """Secrets as ``***``."""
    engine: str = ""
    engine_path: str = ""
    engine_version: str = ""
    engine_sha256: str = ""
    """Of the binary and the llama and ggml libraries beside it."""
    model_path: str = ""
    model_bytes: int | None = None
    model_sha256: str = ""
    dialect: str = ""
    """What answered at ``url``: llama-server, vllm, ollama, ..."""
    props: Mapping[str, Any] = field(default_factory=dict)
    """Of ``/props``: build, context size, slots, template capabilities."""


@dataclass(frozen=True, slots=True)
class Machine:
    """The box at the beginning of a run."""

    gpubox: str
    cpu: str = ""
    cores: int | None = None
    ram_bytes: int | None = None
    kernel: str = ""
    driver: str = ""
    gpus: tuple[Mapping[str, Any], ...] = ()
    """name, vram_total_bytes, power_limit_watts, pcie link, by card."""
    gpu_processes: tuple[str, ...] = ()
    """Programs on the cards that are not the measured server."""
    sandbox: str = ""
    """The confinement isolation where the kind runs the model's code."""


@dataclass(frozen=True, slots=True)
class RunInfo:
    """The head of one run's folder."""

    id: str
    plan: Plan
    created_at: str
    items: int
    state: str = "running"
    """running | finished | interrupted | failed; ``running`` without an owner is interrupted."""
    message: str = ""
    ended_at: str = ""
    seconds: float = 0.0
    """Of work, over all its sessions."""
    machine: Machine | None = None
    provenance: Mapping[str, Provenance] = field(default_factory=dict)
    """By target."""
    flags: tuple[Flag, ...] = ()
    """Of the run as a whole; those of items are in their results."""
    before: Launch | None = None
    """The server that ran before and runs again afterwards."""
    restore_pending: bool = False
    """Whether the box is not yet as it was before."""
    applied_argv: tuple[str, ...] = ()
    """The command line of the server that the run brought up last."""
    schema: int = SCHEMA
