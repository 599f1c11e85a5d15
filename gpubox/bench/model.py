"""The values that make up a benchmark. They are frozen, and msgspec writes them to the run's files as they are."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from gpubox.profiles.profile import FlagValue
from gpubox.server.state import Launch

SCHEMA = 1


@dataclass(frozen=True, slots=True)
class Target:
    """What is measured: a profile (with some flags changed for this run), or a server at a URL."""

    name: str
    """Unique in its plan; reports use it."""
    profile: str = ""
    overrides: Mapping[str, FlagValue] = field(default_factory=dict)
    """Flags that differ from the profile's, as in ``--set``."""
    url: str = ""
    """An OpenAI-compatible server that gpubox neither starts nor stops."""
    model: str = ""
    """The model to request at ``url``; empty: the first that it lists."""
    stopped: bool = False
    """The item needs the GPU's memory (llama-perplexity), so no server of gpubox may run meanwhile."""


@dataclass(frozen=True, slots=True)
class Plan:
    """Everything that decides what a run does. Equal plans give equal items."""

    kind: str
    targets: tuple[Target, ...]
    options: Mapping[str, Any] = field(default_factory=dict)
    """The options of the kind, JSON values only."""
    parallel: int = 1
    """The number of items of one target that run at the same time."""
    seed: int = 0
    """For every random choice: the order of prompts or starts, the bootstrap."""
    about: tuple[str, ...] = ()
    """What the owner should know before it runs, a sentence each."""


@dataclass(frozen=True, slots=True)
class Item:
    """The smallest unit of work. A crash loses at most one item, and resuming continues at the next one."""

    id: str
    """Unique in its run and stable: ``short/cold/d0/3``."""
    target: str
    """The name of the target that it needs."""
    values: Mapping[str, Any] = field(default_factory=dict)
    warmup: bool = False
    """Executed and stored, but not counted."""
    group: str = ""
    """Items that share a warm-up: resuming within a group repeats the warm-up."""
    weight: float = 1.0
    """Its cost relative to the others (tokens, for example), for the estimate of the time left."""
    start: int = 0
    """The number of the server start that it belongs to; 0: any running server of its target will do."""


@dataclass(frozen=True, slots=True)
class Doubt:
    """A reason to doubt a number, observed during the measurement."""

    kind: str
    """foreign request | throttling | swap | clocks | other GPU process | busy CPU | cache | length | setup | crash"""
    text: str
    item: str = ""
    """Empty: the doubt concerns the whole run."""


@dataclass(frozen=True, slots=True)
class Sample:
    """One reading of the driver during an item."""

    at: float
    """Seconds since the item began."""
    power_watts: float | None = None
    temperature_celsius: int | None = None
    clock_sm_mhz: int | None = None
    vram_used_bytes: int | None = None
    ram_available_bytes: int | None = None


@dataclass(frozen=True, slots=True)
class RawRecord:
    """What one item did, stored before anything is scored. Scores depend on this alone."""

    item: str
    started_at: str
    seconds: float
    data: Mapping[str, Any]
    """Whole requests and replies, in the form of the kind."""
    samples: tuple[Sample, ...] = ()
    doubts: tuple[Doubt, ...] = ()
    error: str = ""
    """Why the server refused the item; ``data`` then holds what arrived before."""


@dataclass(frozen=True, slots=True)
class Result:
    """The scored numbers of one item."""

    item: str
    values: Mapping[str, Any] = field(default_factory=dict)
    seconds: float = 0.0
    doubts: tuple[Doubt, ...] = ()
    error: str = ""
    """Why it has no numbers. Such an item counts as not measured, never as 0."""
    skipped: bool = False
    """Not executed because an earlier item decided it (a cell of a sweep that cannot load)."""

    @property
    def ok(self) -> bool:
        return not self.error


ScoredItems = Sequence[tuple[Item, Result]]
"""Items in the order of the plan, each with its result."""


@dataclass(frozen=True, slots=True)
class Provenance:
    """What exactly was measured, for one target."""

    target: str
    profile: str = ""
    url: str = ""
    argv: tuple[str, ...] = ()
    env: Mapping[str, str] = field(default_factory=dict)
    """Secrets are replaced by ``***``."""
    engine: str = ""
    engine_path: str = ""
    engine_version: str = ""
    engine_sha256: str = ""
    """Of the binary and the llama and ggml libraries next to it."""
    model_path: str = ""
    model_bytes: int | None = None
    model_sha256: str = ""
    vram_bytes: int | None = None
    """What the driver counted for the server when it had loaded; ``None`` if there is no reading."""
    dialect: str = ""
    """The kind of server at ``url``: llama-server, vllm, ollama, ..."""
    props: Mapping[str, Any] = field(default_factory=dict)
    """From ``/props``: build, context size, slots, template capabilities."""


@dataclass(frozen=True, slots=True)
class Machine:
    """The box at the beginning of a run."""

    gpubox: str
    """The version of gpubox."""
    cpu: str = ""
    cores: int | None = None
    ram_bytes: int | None = None
    kernel: str = ""
    driver: str = ""
    gpus: tuple[Mapping[str, Any], ...] = ()
    """By GPU: name, vram_total_bytes, power_limit_watts, PCIe link."""
    gpu_processes: tuple[str, ...] = ()
    """Programs on the GPUs other than the measured server."""
    sandbox: str = ""
    """How programs written by the model are confined, if the kind runs any."""


@dataclass(frozen=True, slots=True)
class RunInfo:
    """The contents of a run's ``run.json``."""

    id: str
    plan: Plan
    created_at: str
    items: int
    """The most that there may be; of a finished run those that there were."""
    state: str = "running"
    """running | finished | interrupted | failed. A ``running`` run without a live owner is interrupted."""
    message: str = ""
    seconds: float = 0.0
    """Time spent on it, over all sessions."""
    machine: Machine | None = None
    provenance: Mapping[str, Provenance] = field(default_factory=dict)
    """By target."""
    doubts: tuple[Doubt, ...] = ()
    """Doubts of the run as a whole; those of items are in their results."""
    previous: Launch | None = None
    """The server that ran before the run, and that runs again afterwards."""
    restore_pending: bool = False
    """True while ``previous`` still has to be restored."""
    applied_argv: tuple[str, ...] = ()
    """The command line of the server that the run started last."""
    schema: int = SCHEMA
