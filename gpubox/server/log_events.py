"""The events in llama-server's log, as values. ``log_parsing.parse_event`` makes them from lines.

They are named tuples: three dozen frozen dataclasses would cost each command 10 ms at import.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

BufferKind = Literal["model", "kv", "recurrent", "compute", "output"]


class LogSection(NamedTuple):
    """A line that says what the following lines belong to."""

    name: Literal[
        "model", "measure-main", "measure-extra", "no-extra", "table", "load", "context", "tensors", "draft",
        "listening", "exit",
    ]  # fmt: skip


class LogCut(NamedTuple):
    """gpubox cut the log here. ``ended``: how many requests had ended by then, if the line says so."""

    ended: int | None


class BreakdownRow(NamedTuple):
    """One row of the table "memory breakdown [MiB]". llama.cpp rounds its numbers down to whole MiB."""

    device: str
    model_bytes: int
    context_bytes: int
    compute_bytes: int


class DeviceBuffer(NamedTuple):
    """One allocated buffer."""

    device: str
    kind: BufferKind
    size_bytes: int


class LogDevice(NamedTuple):
    """A device that the server uses, with its memory at the start if the line has it."""

    device: str
    name: str
    bus_id: str = ""
    total_bytes: int | None = None
    free_bytes: int | None = None


class OffloadedLayers(NamedTuple):
    """``offloaded N/M layers to GPU``."""

    on_gpu: int
    total: int


class KvCache(NamedTuple):
    """One KV cache over all devices. Each of its ``streams`` (1 if slots share it) has ``cells`` cells."""

    size_bytes: int
    cells: int
    streams: int


class ThreadCount(NamedTuple):
    """``n_threads`` of the thread pool."""

    threads: int


class RequestArrived(NamedTuple):
    """An HTTP request for a completion arrived. ``named``: it carries a conversation id."""

    named: bool


class SlotBusy(NamedTuple):
    """The server looked at a slot for a task, but the slot works on another task."""

    slot: int


class SlotSelected(NamedTuple):
    """The slot for the next request, and how it was selected.

    ``by``: ``lcp`` (its prompt is the most similar), ``lru`` (least recently used) or ``id`` (the client named it).
    ``similarity``: the share of the request's prompt that is in the slot. ``fresh``: the slot was never used.
    """

    slot: int
    by: Literal["lcp", "lru", "id"]
    similarity: float | None = None
    fresh: bool = False


class BetterPromptFound(NamedTuple):
    """A prompt in the prompt cache (host RAM) is more similar to the request than the slot's own prompt."""

    similarity: float | None


class PromptCleared(NamedTuple):
    """A slot's prompt was dropped: to free memory, or because it was moved to the prompt cache."""

    slot: int
    tokens: int


class SlotPurged(NamedTuple):
    """The KV cache is full: the prompt of an idle slot was dropped for another request."""

    slot: int
    tokens: int


class PromptSaved(NamedTuple):
    """A prompt was moved to the prompt cache in host RAM."""

    tokens: int


class FullReprocessing(NamedTuple):
    """The server processes the whole prompt again; ``reason`` is its own text."""

    slot: int
    task: int
    reason: str


class SwaCache(NamedTuple):
    """The model has sliding-window attention; its layers keep only ``cells`` cells."""

    cells: int


class TaskLaunched(NamedTuple):
    """A slot began a request. ``child``: a second or later answer to the same prompt (``n`` > 1)."""

    slot: int
    task: int
    child: bool = False


class NewPrompt(NamedTuple):
    """The full length of the prompt that a slot begins to process."""

    slot: int
    task: int
    context_size: int
    tokens: int


class CachedTokens(NamedTuple):
    """Prompt tokens in the slot's cache now. The first such line of a task counts the reused tokens."""

    slot: int
    task: int
    tokens: int


class PromptProgressLine(NamedTuple):
    """The progress of a long prompt; ``progress`` is 0 to 1."""

    slot: int
    task: int
    tokens: int
    progress: float | None
    tokens_per_second: float | None


class GenerationProgressLine(NamedTuple):
    """The speed during a long answer, in tokens per second: since its start, and over the last 3 s."""

    slot: int
    task: int
    tokens: int
    tg: float | None
    tg_3s: float | None


class TimingHeader(NamedTuple):
    """In older builds, the slot and task of the timing lines that follow, which do not name them."""

    slot: int
    task: int


class TimingLine(NamedTuple):
    """One of the timing lines at the end of a request.

    Slot and task are -1 after a ``TimingHeader``, tokens in a total that names none.
    """

    slot: int
    task: int
    kind: Literal["prompt", "generation", "total"]
    seconds: float
    tokens: int
    tokens_per_second: float | None


class DraftAcceptance(NamedTuple):
    """Draft tokens of one finished request: how many were generated and how many accepted."""

    slot: int
    task: int
    accepted: int
    generated: int
    mean_length: float | None


class DraftAcceptancePerPosition(NamedTuple):
    """Acceptance rates of the first, second, ... draft token of one finished request."""

    slot: int
    task: int
    rates: tuple[float, ...]


class SlotReleased(NamedTuple):
    """A slot ended a request. ``early``: an older build, whose timing lines come after this one."""

    slot: int
    task: int
    tokens: int
    truncated: bool
    early: bool = False


class TaskCancelled(NamedTuple):
    """A client disconnected."""

    task: int


class TaskFailed(NamedTuple):
    """A request ended with an error."""

    task: int


class AllSlotsIdle(NamedTuple):
    """No slot works and no request waits. ``all_slots`` is always true: a named tuple needs a field to be truthy."""

    all_slots: bool = True


class PromptCacheSize(NamedTuple):
    """Size and limit of the prompt cache in host RAM."""

    size_bytes: int
    limit_bytes: int


class ContextCheckpoint(NamedTuple):
    """A context checkpoint was created, or erased. ``tokens``: its position in the slot's prompt.

    ``number``: how many checkpoints the slot has with it; 0 for an erased one.
    """

    slot: int
    size_bytes: int
    erased: bool
    number: int
    tokens: int = 0


class SleepState(NamedTuple):
    """The server went to sleep (``--sleep-idle-seconds``) or woke up."""

    asleep: bool


SlotEvent = (
    SlotSelected | BetterPromptFound | PromptCleared | SlotPurged | PromptSaved | FullReprocessing | SwaCache
    | RequestArrived | SlotBusy | AllSlotsIdle | TaskFailed
)  # fmt: skip
"""What the server logs about the slot that a request gets, and about prompts that it keeps or drops."""

LogEvent = (
    LogSection | LogCut | BreakdownRow | DeviceBuffer | LogDevice | OffloadedLayers | KvCache | ThreadCount
    | TaskLaunched | NewPrompt | CachedTokens | PromptProgressLine | GenerationProgressLine | TimingHeader | TimingLine
    | DraftAcceptance | DraftAcceptancePerPosition | SlotReleased | TaskCancelled | PromptCacheSize | ContextCheckpoint
    | SleepState | SlotEvent
)  # fmt: skip
