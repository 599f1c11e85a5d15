"""Log line -> event, from one table. Pure and tolerant: an unknown line is no event, never an error.

Events are named tuples: two dozen frozen dataclasses would cost each verb 10 ms at import.

printf formats read in llama.cpp build 11434; older wordings beside them where they are known:
  tools/server/server-context.cpp  new prompt, prompt processing, n_gen, prompt eval, eval, draft acceptance, release
  src/llama-model.cpp              offloaded N/M layers, model buffer size
  src/llama-kv-cache.cpp, llama-memory-recurrent.cpp, llama-context.cpp   KV, RS, compute, output buffers
  common/fit.cpp                   memory breakdown table
"""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import cache
from typing import Literal, NamedTuple

from gpubox.server import slot_events
from gpubox.server.log import CUT_MARKER, parse_line
from gpubox.server.log_numbers import MIB, MOST_SECONDS, NUM, count, mib, of_bytes, rate, seconds, share, shares
from gpubox.server.slot_events import TASK as _TASK
from gpubox.server.slot_events import SlotEvent

BufferKind = Literal["model", "kv", "recurrent", "compute", "output"]


class LogSection(NamedTuple):
    """A marker that says what the following lines belong to."""

    name: Literal[
        "model",
        "measure-main",
        "measure-extra",
        "no-extra",
        "table",
        "load",
        "context",
        "draft",
        "listening",
        "exit",
    ]


class LogCut(NamedTuple):
    """The line that stands for what was cut out of the log. ``ended``: requests until there, where it tells."""

    ended: int | None


class BreakdownRow(NamedTuple):
    """One row of the fit's memory table; MiB floored by llama.cpp."""

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
    """A device the server uses, with its memory at start where it says so."""

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
    """The size of one KV cache and its cells, over all devices."""

    size_bytes: int
    cells: int
    streams: int


class ThreadCount(NamedTuple):
    """``n_threads``."""

    asked: int


class TaskLaunched(NamedTuple):
    """A slot took a request. ``child``: one of several answers to the same prompt, but the first."""

    slot: int
    task: int
    child: bool = False


class NewPrompt(NamedTuple):
    """The whole length of the prompt that a slot begins to read."""

    slot: int
    task: int
    context_size: int
    tokens: int


class CachedTokens(NamedTuple):
    """Tokens of the prompt that are in the cache now; the first of a task is what was reused."""

    slot: int
    task: int
    tokens: int


class PromptProgressLine(NamedTuple):
    """The progress line of a long prompt."""

    slot: int
    task: int
    tokens: int
    progress: float | None
    tokens_per_second: float | None


class GenerationProgressLine(NamedTuple):
    """The speed line of a long answer."""

    slot: int
    task: int
    tokens: int
    tg: float | None
    tg_3s: float | None


class TimingHeader(NamedTuple):
    """Older builds: the timing lines that follow name no slot and are of this one."""

    slot: int
    task: int


class TimingLine(NamedTuple):
    """A final timing line. ``kind`` is ``prompt``, ``generation`` or ``total``; slot and task -1: see TimingsOf."""

    slot: int
    task: int
    kind: Literal["prompt", "generation", "total"]
    seconds: float
    tokens: int
    tokens_per_second: float | None


class DraftAcceptance(NamedTuple):
    """The acceptance of one finished request."""

    slot: int
    task: int
    accepted: int
    generated: int
    mean_length: float | None


class DraftAcceptancePerPosition(NamedTuple):
    """Acceptance of the first, second, ... drafted token of one finished request."""

    slot: int
    task: int
    rates: tuple[float, ...]


class SlotReleased(NamedTuple):
    """A slot is done with a request."""

    slot: int
    task: int
    tokens: int
    truncated: bool


class TaskCancelled(NamedTuple):
    """A client went away."""

    task: int


class PromptCacheSize(NamedTuple):
    """Prompt cache in host RAM."""

    size_bytes: int
    limit_bytes: int


class ContextCheckpoint(NamedTuple):
    """A context checkpoint was made (``erased=False``) or dropped. ``tokens``: where in its slot's prompt it is.

    ``number``: how many the slot has with it; 0 for one that is dropped.
    """

    slot: int
    size_bytes: int
    erased: bool
    number: int
    tokens: int = 0


class SleepState(NamedTuple):
    """The server went to sleep or woke."""

    asleep: bool


LogEvent = (
    LogSection | LogCut | BreakdownRow | DeviceBuffer | LogDevice | OffloadedLayers | KvCache | ThreadCount | TaskLaunched | NewPrompt | CachedTokens
    | PromptProgressLine | GenerationProgressLine | TimingHeader | TimingLine | DraftAcceptance | DraftAcceptancePerPosition | SlotReleased | TaskCancelled
    | PromptCacheSize | ContextCheckpoint | SleepState | SlotEvent
)  # fmt: skip
_Build = Callable[[re.Match[str]], "LogEvent | None"]
_TASK_OR_NONE = rf"(?:{_TASK}|^ *)"
_LONGEST = 2048
"""No line that means anything is longer; one with a prompt in it can be any length."""
_ROUTER = re.compile(r"\[\d{1,5}\] ")


def _section(name: str) -> _Build:
    return lambda m: LogSection(name)  # type: ignore[arg-type]


def _buffer(kind: BufferKind) -> _Build:
    return lambda m: DeviceBuffer(m[1], kind, mib(m[2]))


def _timing(kind: Literal["prompt", "generation"]) -> _Build:
    return lambda m: TimingLine(int(m[1] or -1), int(m[2] or -1), kind, seconds(m[3]), count(m[4]), rate(m[5]))


def _row(m: re.Match[str]) -> LogEvent:
    return BreakdownRow(m[1].strip(), *(of_bytes(int(m[i]) * MIB) for i in (2, 3, 4)))


_DEVICE = r"(?<!\S)(\S+(?: \([^()]*\))?)"
_TABLE: tuple[tuple[str, str, _Build], ...] = (
    # needle that must be in the line (cheap), pattern, builder
    (
        "all slots are idle",
        r"update_slots: all slots are idle",
        lambda m: slot_events.AllSlotsIdle(),
    ),  # the most frequent one
    ("load_model: loading model '", r"load_model: loading model '", _section("model")),
    ("initial parameters", r"getting device memory data for initial parameters", _section("measure-main")),
    ("extra model", r"getting device memory data for the extra model", _section("measure-extra")),
    ("extra model", r"failed to measure the memory of the extra model", _section("no-extra")),
    ("memory breakdown", r"\| memory breakdown \[MiB\]", _section("table")),
    ("common_memory_breakdown", r"\|   - ([^|]+)\|[^(|]*= +\d+ \+ \( *\d+ = +(\d+) \+ +(\d+) \+ +(\d+)\) \+", _row),
    ("common_memory_breakdown", r"\|   - ([^|]+)\| +\d+ = +(\d+) \+ +(\d+) \+ +(\d+) +\|", _row),
    ("loading model tensors", r"load_tensors: loading model tensors", _section("load")),
    ("constructing llama_context", r"constructing llama_context", _section("context")),
    ("MTP draft context", r"creating MTP draft context", _section("draft")),
    ("loading draft model", r"loading draft model", _section("draft")),
    ("listening on", r"listening on http", _section("listening")),
    (CUT_MARKER, rf"^{CUT_MARKER}(?:[^,]*, after (\d+) requests:)?", lambda m: LogCut(count(m[1]) if m[1] else None)),
    ("cleaning up before exit", r"cleaning up before exit", _section("exit")),
    ("model buffer size", rf"{_DEVICE} model buffer size = +{NUM} MiB", _buffer("model")),
    ("KV buffer size", rf"{_DEVICE} KV buffer size = +{NUM} MiB", _buffer("kv")),
    ("RS buffer size", rf"{_DEVICE} RS buffer size = +{NUM} MiB", _buffer("recurrent")),
    ("compute buffer size", rf"{_DEVICE} compute buffer size = +{NUM} MiB", _buffer("compute")),
    ("output buffer size", rf"{_DEVICE} +output buffer size = +{NUM} MiB", _buffer("output")),
    (
        "using device",
        r"using device (\S+) \((.*)\) \(([^()]*)\) - (\d+) MiB free",
        lambda m: LogDevice(m[1], m[2], m[3], None, of_bytes(int(m[4]) * MIB)),
    ),
    (
        "MiB free)",
        r"  - (\S+) +: (.+) \((\d+) MiB, (\d+) MiB free\)",
        lambda m: LogDevice(m[1], m[2], "", of_bytes(int(m[3]) * MIB), of_bytes(int(m[4]) * MIB)),
    ),
    ("layers to GPU", r"offloaded (\d+)/(\d+) layers to GPU", lambda m: OffloadedLayers(count(m[1]), count(m[2]))),
    (
        "llama_kv_cache: size",
        rf"size = +{NUM} MiB \( *(\d+) cells, +\d+ layers, +\d+/(\d+) seqs\)",
        lambda m: KvCache(mib(m[1]), count(m[2]), count(m[3])),
    ),
    ("threadpool init", r"threadpool init, n_threads = (\d+)", lambda m: ThreadCount(count(m[1]))),
    (
        "processing task",
        rf"{_TASK}processing task(?:, is_child = ([01]))?",
        lambda m: TaskLaunched(int(m[1]), int(m[2]), m[3] == "1"),
    ),
    (
        "new prompt",
        rf"{_TASK}new prompt, n_ctx_slot = (\d+),[^=]*= -?\d+, (?:task\.n_tokens|n_prompt_tokens) = (\d+)",
        lambda m: NewPrompt(int(m[1]), int(m[2]), count(m[3]), count(m[4])),
    ),
    (
        "memory_seq_rm",
        rf"{_TASK}(?:cached n_tokens|n_tokens|n_past) = (\d+), memory_seq_rm",
        lambda m: CachedTokens(int(m[1]), int(m[2]), count(m[3])),
    ),
    ("kv cache rm", rf"{_TASK}kv cache rm \[(\d+), end", lambda m: CachedTokens(int(m[1]), int(m[2]), count(m[3]))),
    (
        "prompt processing",
        rf"{_TASK}prompt processing(?: progress)?, (?:n_tokens|n_past) = +(\d+), (?:(?:batch\.)?n_tokens = +\d+, )?"
        rf"progress = +{NUM}(?:, t = +{NUM} s / +{NUM} tokens per second)?",
        lambda m: PromptProgressLine(int(m[1]), int(m[2]), count(m[3]), share(m[4]), rate(m[6])),
    ),
    (
        "tg =",
        rf"{_TASK}n_(?:gen|decoded) = +(\d+), tg = +{NUM} t/s(?:, tg_3s = +{NUM} t/s)?",
        lambda m: GenerationProgressLine(int(m[1]), int(m[2]), count(m[3]), rate(m[4]), rate(m[5])),
    ),
    (
        "print_timing",
        r"print_timing: id +(\d+) \| task +(-?\d+) \| *$",
        lambda m: TimingHeader(int(m[1]), int(m[2])),
    ),
    (
        "prompt eval time",
        rf"{_TASK_OR_NONE}prompt eval time = +{NUM} ms / +(\d+) tokens \([^,]*, +{NUM} tokens per second\)",
        _timing("prompt"),
    ),
    (
        " eval time",
        rf"{_TASK_OR_NONE}eval time = +{NUM} ms / +(\d+) tokens \([^,]*, +{NUM} tokens per second\)",
        _timing("generation"),
    ),
    (
        "total time",
        rf"{_TASK_OR_NONE}total time = +{NUM} ms / +(\d+) tokens",
        lambda m: TimingLine(int(m[1] or -1), int(m[2] or -1), "total", seconds(m[3]), count(m[4]), None),
    ),
    (
        "draft acceptance",
        rf"{_TASK_OR_NONE}draft acceptance(?: rate)? = [^(]*\( *(\d+) accepted / +(\d+) generated\)"
        rf"(?:, mean (?:acceptance )?len(?:gth)? = +{NUM})?",
        lambda m: DraftAcceptance(int(m[1] or -1), int(m[2] or -1), count(m[3]), count(m[4]), rate(m[5])),
    ),
    (
        "acc per pos",
        rf"{_TASK}acc per pos = \(([^)]*)\)",
        lambda m: DraftAcceptancePerPosition(int(m[1]), int(m[2]), shares(m[3])),
    ),
    (
        "stop processing",
        rf"{_TASK}stop processing: (?:n_tokens|n_past) = (\d+), truncated = (\d)",
        lambda m: SlotReleased(int(m[1]), int(m[2]), count(m[3]), m[4] == "1"),
    ),
    ("cancel task", r"cancel task, id_task = (\d+)", lambda m: TaskCancelled(int(m[1]))),
    (
        "cache state",
        rf"cache state: \d+ prompts, {NUM} MiB \(limits: {NUM} MiB",
        lambda m: PromptCacheSize(mib(m[1]), mib(m[2])),
    ),
    (
        "created context checkpoint",
        rf"{_TASK}created context checkpoint (\d+) of \d+ \([^)]*?(?:n_tokens = (\d+)[^)]*)?size = {NUM} MiB",
        lambda m: ContextCheckpoint(int(m[1]), mib(m[5]), False, int(m[3]), count(m[4] or m[3])),
    ),
    (
        "context checkpoint",
        rf"{_TASK}eras(?:ing|ed) (?:old |invalidated )?context checkpoint [^(]*"
        rf"\([^)]*n_tokens = (\d+)[^)]*size = {NUM} MiB",
        lambda m: ContextCheckpoint(int(m[1]), mib(m[4]), True, 0, count(m[3])),
    ),
    ("entering sleeping state", r"(?<!exiting )\bentering sleeping state", lambda m: SleepState(True)),
    ("exiting sleeping state", r"exiting sleeping state", lambda m: SleepState(False)),
    *slot_events.TABLE,
)


@cache
def _compiled(pattern: str) -> re.Pattern[str]:
    return re.compile(pattern)  # when it is first needed: forty at import would slow every verb down


def parse_event(line: str) -> tuple[float | None, LogEvent | None]:
    """``(seconds since the server's start, event)`` of one log line; ``None`` for what it does not say."""
    line = line[:_LONGEST]
    for needle, pattern, build in _TABLE:
        if needle in line:
            try:
                parsed = parse_line(line[router.end() :] if (router := _ROUTER.match(line)) else line)
                if match := _compiled(pattern).search(parsed.text):
                    return _time(parsed.seconds), build(match)
            except (ValueError, OverflowError):  # a number that is none, or has a thousand digits
                return None, None
    return None, None


def _time(seconds: float | None) -> float | None:
    return seconds if seconds is not None and seconds <= MOST_SECONDS else None
