"""What was read at one instant. Frozen values in base units; ``None`` is unknown, never 0."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from gpubox.hardware.gpu import DriverReading
from gpubox.hardware.host import HostReading, ProcessReading
from gpubox.server.other_server import OtherServerReading
from gpubox.server.status import ServerStatus

DeviceKind = Literal["gpu", "rpc", "host"]


@dataclass(frozen=True, slots=True)
class DeviceMemory:
    """Where the memory of one device is.

    For a card the driver knows, and for the host: the parts + other processes + unaccounted + free = total, always;
    ``unaccounted_bytes`` is the residual and can be negative. The parts are weights + kv + recurrent + compute + draft
    + growth, less what is ``on_disk``.
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
    on_disk_bytes: int | None = None
    """Host: of the weights (and of a draft model's), what is mapped and not resident now: no part of the RAM."""
    growth_bytes: int | None = None
    """What the server has taken since it was loaded; part of no line of its log."""
    other_processes: tuple[tuple[str, int], ...] = ()
    """Other programs on the card by name, largest first."""
    other_processes_bytes: int | None = None
    unaccounted_bytes: int | None = None
    free_bytes: int | None = None
    """Of the host: what programs can take before the kernel pushes out the mapped weights (MemAvailable counts them as
    available: they are pages of a file)."""
    estimated: bool = False
    """The weights are an upper bound: mapped file ranges over-count (no fit breakdown in the log), or a part of them is
    on disk and the libraries' pages are counted with the rest."""

    @property
    def parts(self) -> tuple[tuple[str, int], ...]:
        """The known parts of the server in the memory of this device, in drawing order, by name."""
        on_disk = self.on_disk_bytes or 0
        weights = max(0, (self.weights_bytes or 0) - on_disk)
        draft = (self.draft_bytes or 0) - max(0, on_disk - (self.weights_bytes or 0))
        named = (
            ("weights", weights),
            ("kv", self.kv_bytes),
            ("recurrent", self.recurrent_bytes),
            ("compute", self.compute_bytes),
            ("draft", draft),
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
    """One of: GPU compute, GPU bandwidth, CPU experts, CPU, RPC device, PCIe, paging, client."""
    bottleneck_reason: str = ""
    """What says so; where none is named, why not."""


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
    """From its arrival at the server to its first token: ``queue_seconds`` + ``slot_ttft_seconds``, ``None`` where one
    of them is not known. The network is not in it."""
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
    cache_miss: str | None = None
    """Why the whole prompt was read, as the log's lines tell: no checkpoint, prefix changed, evicted, restart."""
    queue_seconds: float | None = None
    """From its arrival at the server until a slot took it; ``None`` where the log does not tell."""
    slot_ttft_seconds: float | None = None
    """From the slot's taking it to its first token."""

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
    """All slots together: the fastest stretch of this session in which they generated without a pause, or now."""
    tg_median: float | None = None
    """All slots together: in half of the time in which any generated, it was faster."""
    effective_tokens_per_second: float | None = None
    """All slots together: generated tokens over wall time of this session, gaps included."""
    pp_tokens_per_second: float | None = None
    """While a prompt is read: its speed so far; else of the last request."""
    prefill_progress: float | None = None
    eta_seconds: float | None = None
    ttft_seconds: float | None = None
    """Of the last request, as ``queue_seconds`` and ``slot_ttft_seconds`` below; see Request."""
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
    request_tg_peak: float | None = None
    """Of one request alone: the fastest of this session."""
    request_tg_median: float | None = None
    """Of one request alone, of those of this session."""
    queue_seconds: float | None = None
    slot_ttft_seconds: float | None = None


@dataclass(frozen=True, slots=True)
class Totals:
    """Sums since the server started: its own counters, ``None`` where it keeps none."""

    requests: int | None = None
    """Ended ones. Each prompt of a request that brings several is one, and so is each answer to it."""
    prompt_tokens: int | None = None
    """Read, without the reused ones."""
    cached_tokens: int | None = None
    generated_tokens: int | None = None
    draft_tokens: int | None = None
    draft_tokens_accepted: int | None = None
    requests_reason: str = ""
    """Why ``requests`` is not known."""


@dataclass(frozen=True, slots=True)
class HistoryMark:
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
    other_server: OtherServerReading | None = None
    """What a server says that is no llama-server."""
    problems: tuple[str, ...] = field(default=())
    """What could not be read and why, one short sentence each."""
