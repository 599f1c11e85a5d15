"""What was read at one instant. Frozen values in base units; ``None`` is unknown, never 0."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from gpubox.hardware.host import HostReading, ProcessReading
from gpubox.hardware.nvml import DriverReading
from gpubox.server.peer import PeerReading
from gpubox.server.status import ServerStatus

DeviceKind = Literal["gpu", "rpc", "host"]


@dataclass(frozen=True, slots=True)
class DeviceMemory:
    """Where the memory of one device is.

    For a card the driver knows: weights + kv + recurrent + compute + draft + growth + other processes +
    unaccounted + free = total, always; ``unaccounted_bytes`` is the residual and can be negative.
    """

    device: str
    """llama.cpp's name (``CUDA0``, ``RPC0[host:port]``), ``Host``, or ``GPU 1`` for a card the server does not use."""
    kind: DeviceKind
    name: str | None = None
    gpu_index: int | None = None
    """The driver's index of the card."""
    total_bytes: int | None = None
    weights_bytes: int | None = None
    kv_bytes: int | None = None
    recurrent_bytes: int | None = None
    compute_bytes: int | None = None
    draft_bytes: int | None = None
    """Everything of the draft model or MTP context: its KV, its compute, its own weights."""
    growth_bytes: int | None = None
    """What the server has taken since it was loaded; part of no line of its log."""
    other_processes: tuple[tuple[str, int], ...] = ()
    """Other programs on the card by name, largest first."""
    other_processes_bytes: int | None = None
    unaccounted_bytes: int | None = None
    free_bytes: int | None = None
    estimated: bool = False
    """The weights are an upper bound: mapped file ranges over-count (no fit breakdown in the log)."""

    @property
    def parts(self) -> tuple[tuple[str, int], ...]:
        """The known parts of the server on this device, in drawing order, by name."""
        named = (
            ("weights", self.weights_bytes),
            ("kv", self.kv_bytes),
            ("recurrent", self.recurrent_bytes),
            ("compute", self.compute_bytes),
            ("draft", self.draft_bytes),
            ("growth", self.growth_bytes),
        )
        return tuple((name, value) for name, value in named if value)


@dataclass(frozen=True, slots=True)
class Offload:
    """How the model is spread over GPU and CPU, and what limits it now."""

    layers_on_gpu: int | None = None
    layers_total: int | None = None
    expert_layers_on_cpu: int | None = None
    expert_layers_total: int | None = None
    threads_busy: float | None = None
    threads_asked: int | None = None
    major_faults_per_second: float | None = None
    read_bytes_per_second: float | None = None
    pinned_bytes: int | None = None
    """Host memory the driver pinned (``CUDA_Host`` buffers)."""
    prompt_cache_bytes: int | None = None
    prompt_cache_limit_bytes: int | None = None
    checkpoints_bytes: int | None = None
    bottleneck: str | None = None
    """One of: GPU compute, GPU bandwidth, CPU experts, CPU, PCIe, paging, client; ``None`` while idle."""
    evidence: str = ""


@dataclass(frozen=True, slots=True)
class SlotReading:
    """One slot now."""

    index: int
    state: str
    """idle | prefill | answering"""
    task: int | None = None
    context_used_tokens: int | None = None
    context_size_tokens: int | None = None
    prompt_tokens: int | None = None
    """The whole prompt of the request being read, from the log."""
    prompt_done_tokens: int | None = None
    cached_tokens: int | None = None
    generated_tokens: int | None = None
    tg_tokens_per_second: float | None = None
    """Over the last 3 s of this slot."""
    pp_tokens_per_second: float | None = None
    prefill_progress: float | None = None
    """0 to 1, cached tokens included."""
    eta_seconds: float | None = None
    seconds: float | None = None
    """How long the request has been worked on."""


@dataclass(frozen=True, slots=True)
class Request:
    """One finished request, from the server's own log lines."""

    number: int
    at: str
    """When it began, ISO-8601 UTC."""
    slot: int
    task: int
    prompt_tokens: int | None = None
    """New and reused together."""
    cached_tokens: int | None = None
    generated_tokens: int | None = None
    ttft_seconds: float | None = None
    """Server side: from taking the request to its first token; the network and the queue are not in it."""
    pp_tokens_per_second: float | None = None
    tg_tokens_per_second: float | None = None
    prompt_seconds: float | None = None
    generation_seconds: float | None = None
    duration_seconds: float | None = None
    draft_tokens: int | None = None
    draft_tokens_accepted: int | None = None
    mean_accepted_length: float | None = None
    accepted_per_position: tuple[float, ...] = ()
    stop_reason: str | None = None
    """stop | length | context full | cancelled | error; ``None`` where nothing tells."""
    reread: str | None = None
    """Why the whole prompt was read, as the log's lines tell: no checkpoint, prefix changed, evicted, restart."""

    @property
    def draft_acceptance(self) -> float | None:
        """Accepted of drafted, 0 to 1."""
        if not self.draft_tokens or self.draft_tokens_accepted is None:
            return None
        return self.draft_tokens_accepted / self.draft_tokens


@dataclass(frozen=True, slots=True)
class Throughput:
    """What the server does now and has done, in numbers that each mean one thing."""

    state: str
    """down | loading | prefill | thinking | answering | idle | sleeping | stuck | stopping; ready: it answers, and
    nothing tells whether it works on a request"""
    tg_tokens_per_second: float | None = None
    """All slots together over the last 3 s; ``None`` while nothing is generated."""
    tg_peak: float | None = None
    """The fastest finished request of this session."""
    tg_median: float | None = None
    """Of the finished requests of this session."""
    effective_tokens_per_second: float | None = None
    """Generated tokens over wall time of this session, gaps included."""
    pp_tokens_per_second: float | None = None
    """While a prompt is read: its speed so far; else of the last request."""
    prefill_progress: float | None = None
    eta_seconds: float | None = None
    ttft_seconds: float | None = None
    """Of the last request."""
    draft_acceptance: float | None = None
    """Of the last request that drafted."""
    mean_accepted_length: float | None = None
    accepted_per_position: tuple[float, ...] = ()
    context_used_tokens: int | None = None
    context_size_tokens: int | None = None
    """Of the fullest slot."""
    busy_slots: int | None = None
    slots: int | None = None
    queued_requests: int | None = None
    """Taken by the server and waiting for a free slot."""


@dataclass(frozen=True, slots=True)
class Totals:
    """Sums since the server started: its own counters, ``None`` where it keeps none."""

    requests: int | None = None
    prompt_tokens: int | None = None
    """Read, without the reused ones."""
    cached_tokens: int | None = None
    generated_tokens: int | None = None
    draft_tokens: int | None = None
    draft_tokens_accepted: int | None = None


@dataclass(frozen=True, slots=True)
class Mark:
    """Something that happened, for the history graph."""

    at: float
    kind: Literal["switch", "crash", "oom", "start", "stop"]
    text: str = ""


@dataclass(frozen=True, slots=True)
class Snapshot:
    """All readings of one tick."""

    at: float
    """Monotonic seconds."""
    time: str
    """ISO-8601 UTC."""
    server: ServerStatus
    driver: DriverReading
    host: HostReading | None
    process: ProcessReading | None
    memory: tuple[DeviceMemory, ...]
    offload: Offload
    throughput: Throughput
    slots: tuple[SlotReading, ...]
    requests: tuple[Request, ...]
    """The last finished ones, newest first."""
    totals: Totals
    kv_bytes_per_token: float | None = None
    kv_cells: int | None = None
    """Tokens that the KV cache holds: of all slots together, which share one cache where it is unified."""
    peer: PeerReading | None = None
    """What a server says that is no llama-server."""
    problems: tuple[str, ...] = field(default=())
    """What could not be read and why, one short sentence each."""
