"""All readings of one moment. Frozen values in base units; None is unknown, never 0."""

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
    """What the memory of one device holds.

    For the host and for a card that the driver knows, the parts + other processes + unaccounted + free = total, always.
    ``unaccounted_bytes`` is the residual and can be negative. The parts are weights + kv + recurrent + compute + draft
    + growth, less ``on_disk_bytes``.
    """

    device: str
    """llama.cpp's name (``CUDA0``, ``RPC0[host:port]``), ``Host``, or ``GPU 1`` for a card without the server."""
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
    """All memory of the draft model or MTP context: KV cache, compute buffers, weights."""
    on_disk_bytes: int | None = None
    """Host: mapped weights, a draft model's included, that are not resident now and use no RAM."""
    growth_bytes: int | None = None
    """What the server allocated since its load. Its log does not show this."""
    other_processes: tuple[tuple[str, int], ...] = ()
    """(name, bytes) of other programs on the card, largest first."""
    other_processes_bytes: int | None = None
    unaccounted_bytes: int | None = None
    free_bytes: int | None = None
    """Host: what programs can allocate before the kernel evicts the mapped weights. MemAvailable counts these weights
    as available, because they are page cache."""
    estimated: bool = False
    """The weights are an upper bound: the log has only the size of the mapped range, or a part of them is on disk and
    the pages of libraries are counted with them."""

    @property
    def parts(self) -> tuple[tuple[str, int], ...]:
        """(name, bytes) of the known parts of the server on this device, in drawing order."""
        on_disk = self.on_disk_bytes or 0
        weights = max(0, (self.weights_bytes or 0) - on_disk)
        draft = (self.draft_bytes or 0) - max(0, on_disk - (self.weights_bytes or 0))
        parts = (
            ("weights", weights),
            ("kv", self.kv_bytes),
            ("recurrent", self.recurrent_bytes),
            ("compute", self.compute_bytes),
            ("draft", draft),
            ("growth", self.growth_bytes),
        )
        return tuple((name, value) for name, value in parts if value)


@dataclass(frozen=True, slots=True)
class Offload:
    """How the model is spread over GPU and CPU, and what limits the server now."""

    layers_on_gpu: int | None = None
    layers_total: int | None = None
    expert_layers_on_cpu: int | None = None
    expert_layers_total: int | None = None
    threads_busy: float | None = None
    threads_asked: int | None = None
    major_faults_per_second: float | None = None
    read_bytes_per_second: float | None = None
    pinned_bytes: int | None = None
    """Host memory that the driver pinned (``CUDA_Host`` buffers)."""
    prompt_cache_bytes: int | None = None
    prompt_cache_limit_bytes: int | None = None
    checkpoints_bytes: int | None = None
    bottleneck: str | None = None
    """One of ``offload.BOTTLENECKS``."""
    bottleneck_reason: str = ""
    """The readings that show it, or why no bottleneck is named."""


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
    """The whole prompt, from the log."""
    prompt_done_tokens: int | None = None
    cached_tokens: int | None = None
    generated_tokens: int | None = None
    tg_tokens_per_second: float | None = None
    """Over the last 3 s."""
    pp_tokens_per_second: float | None = None
    prefill_progress: float | None = None
    """0 to 1, cached tokens included."""
    eta_seconds: float | None = None
    seconds: float | None = None
    """Since the slot began with its request."""


@dataclass(frozen=True, slots=True)
class Request:
    """One finished request, from the server's log."""

    number: int
    at: str
    """When a slot began with it, ISO-8601 UTC."""
    slot: int
    task: int
    prompt_tokens: int | None = None
    """New and cached ones."""
    cached_tokens: int | None = None
    generated_tokens: int | None = None
    ttft_seconds: float | None = None
    """From its arrival at the server to its first token, without the network: ``queue_seconds`` +
    ``slot_ttft_seconds``. None if one of them is unknown."""
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
    """stop | length | context full | cancelled | error; None if unknown."""
    cache_miss: str | None = None
    """Why no part of the prompt came from the cache: no checkpoint, prefix changed, evicted, restart."""
    queue_seconds: float | None = None
    """From its arrival at the server until a slot began with it; None if the log does not show it."""
    slot_ttft_seconds: float | None = None
    """From when the slot began with it to its first token."""
    restored_tokens: int | None = None
    """Tokens of the kept state that the server had restored and this request was the first to reuse."""
    reread_tokens: int | None = None
    """Hybrid and SWA models: tokens that the slot held but that were processed again, for want of a checkpoint."""

    @property
    def key(self) -> tuple[int, str]:
        """Tells the requests of all launches apart."""
        return self.number, self.at

    @property
    def read_tokens(self) -> int | None:
        """Prompt tokens that did not come from the cache."""
        if self.prompt_tokens is None or self.cached_tokens is None:
            return None
        return max(0, self.prompt_tokens - self.cached_tokens)

    @property
    def draft_acceptance(self) -> float | None:
        """Accepted draft tokens over all draft tokens, 0 to 1."""
        if not self.draft_tokens or self.draft_tokens_accepted is None:
            return None
        return self.draft_tokens_accepted / self.draft_tokens


@dataclass(frozen=True, slots=True)
class Throughput:
    """The speeds of now and of the current session."""

    state: str
    """down | loading | prefill | answering | idle | sleeping | stuck | lost (a card that it uses) | stopping |
    ready (the server answers, but does not show whether it works on a request)"""
    tg_tokens_per_second: float | None = None
    """All slots together over the last 3 s; None while nothing is generated."""
    tg_peak: float | None = None
    """All slots together: the fastest stretch of this session without a pause, or the speed now."""
    tg_median: float | None = None
    """All slots together: the median over the time in which any slot generated."""
    effective_tokens_per_second: float | None = None
    """All slots together: generated tokens over the wall time of this session, gaps included."""
    pp_tokens_per_second: float | None = None
    """While a prompt is processed: its speed so far. Otherwise of the last request."""
    prefill_progress: float | None = None
    eta_seconds: float | None = None
    ttft_seconds: float | None = None
    """Of the last request, as ``queue_seconds`` and ``slot_ttft_seconds``; see Request."""
    draft_acceptance: float | None = None
    """Of the last request with draft tokens."""
    mean_accepted_length: float | None = None
    accepted_per_position: tuple[float, ...] = ()
    context_used_tokens: int | None = None
    context_size_tokens: int | None = None
    """Of the fullest slot."""
    busy_slots: int | None = None
    slots: int | None = None
    queued_requests: int | None = None
    """Requests that wait for a free slot."""
    request_tg_peak: float | None = None
    """The fastest request of this session."""
    request_tg_median: float | None = None
    """The median of the requests of this session."""
    queue_seconds: float | None = None
    slot_ttft_seconds: float | None = None

    @property
    def working(self) -> bool:
        """Whether the server is known to work on a request."""
        return self.state in ("prefill", "answering")


@dataclass(frozen=True, slots=True)
class Totals:
    """Sums since the server started: its own counters. None if it has no such counter."""

    requests: int | None = None
    """Ended requests. Each prompt of a request with several prompts counts, and so does each of several answers."""
    prompt_tokens: int | None = None
    """Processed, without the cached ones."""
    cached_tokens: int | None = None
    generated_tokens: int | None = None
    draft_tokens: int | None = None
    draft_tokens_accepted: int | None = None
    requests_reason: str = ""
    """Why ``requests`` is unknown."""


@dataclass(frozen=True, slots=True)
class HistoryMark:
    """An event in the history graph."""

    at: float
    kind: Literal["switch", "crash", "start", "stop"]
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
    """Tokens that the KV cache can hold, for all slots together."""
    other_server: OtherServerReading | None = None
    """The readings of a server that is not llama-server."""
    problems: tuple[str, ...] = field(default=())
    """What could not be read and why, a short sentence each."""

    @property
    def host_memory(self) -> DeviceMemory | None:
        """The RAM in ``memory``."""
        return next((device for device in self.memory if device.kind == "host"), None)
