"""Log line -> event, from one table. Pure. An unknown line is no event, never an error.

The printf formats are those of llama.cpp build 11434, older wordings beside them where they are known:
  tools/server/server-context.cpp, server-task.cpp  requests, slots, prompt cache, context checkpoints
  src/llama-model.cpp                                offloaded N/M layers, model buffer size
  src/llama-kv-cache.cpp, llama-memory-recurrent.cpp, llama-context.cpp   KV, RS, compute and output buffers
  common/fit.cpp                                     memory breakdown table
ik_llama.cpp (8337e4cd3) and builds before b4400 say some of it in other words: examples/server/*.cpp, src/llama.cpp.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from functools import cache
from typing import Any, Literal

from gpubox.server import log_events as ev
from gpubox.server.log import CUT_MARKER, LISTENS, parse_line
from gpubox.server.log_events import BufferKind, LogEvent
from gpubox.units import MIB

_MAX_BYTES, _MAX_COUNT, _MAX_SECONDS = 2**60, 2**53, 10**9
_MAX_LINE_CHARS = 2048
"""Lines with an event are shorter. A line that quotes a prompt can have any length."""
_ROUTER_PREFIX = re.compile(r"\[\d{1,5}\] ")
"""A llama-server in router mode puts the port of the child before each of its lines."""
_IK_LINE = re.compile(r"(?:INFO|WARN|VERB|ERR ) \[ *\w+\] (.*?) \| (tid=.*)", re.S)
"""ik_llama.cpp's server: ``INFO [  release_slots] slot released | tid="1" id_slot=0 id_task=0 n_past=2``."""

_TASK = r"id +(\d+) \| task +(-?\d+) \| +"
_OPTIONAL_TASK = rf"(?:{_TASK}|^\s*)"
_NUMBER = r"([\d.]+|-?nan|-?inf)"
_DEVICE = r"(?<!\S)(\S+(?: \([^()]*\))?)"
_Build = Callable[[re.Match[str]], LogEvent]


# Numbers of a line. A number that cannot be raises ValueError: the line is damaged, or not from llama.cpp.


def _bytes(value: float) -> int:
    if not 0 <= value <= _MAX_BYTES:  # nan too
        raise ValueError(value)
    return round(value)


def _mib(text: str) -> int:
    return _bytes(float(text) * MIB)


def _count(text: str) -> int:
    value = int(text)
    if value > _MAX_COUNT:
        raise ValueError(text)
    return value


def _seconds(milliseconds: str) -> float:
    value = float(milliseconds) / 1e3
    if not 0 <= value <= _MAX_SECONDS:
        raise ValueError(milliseconds)
    return value


def _rate(text: str | None) -> float | None:
    """A speed; ``None`` for the "inf" and "nan" that llama.cpp prints when nothing was timed."""
    value = float(text) if text else 0.0
    return value if 0 < value < 1e9 else None


def _fraction(text: str) -> float | None:
    value = float(text)
    return value if 0 <= value <= 1 else None


def _numbers(text: str) -> tuple[float, ...]:
    values = tuple(float(value) for value in text.split(",") if value.strip())
    if not all(map(math.isfinite, values)):
        raise ValueError(text)
    return values


def _event(event: Callable[..., LogEvent], *converters: Callable[[str], Any]) -> _Build:
    """Makes ``event`` of all groups of the match, each converted."""
    return lambda m: event(*(convert(group) for convert, group in zip(converters, m.groups(), strict=True)))


def _section(name: str) -> _Build:
    return lambda m: ev.LogSection(name)  # type: ignore[arg-type]


def _buffer(kind: BufferKind) -> _Build:
    return lambda m: ev.DeviceBuffer(m[1], kind, _mib(m[2]))


def _timing(kind: Literal["prompt", "generation"]) -> _Build:
    return lambda m: ev.TimingLine(int(m[1] or -1), int(m[2] or -1), kind, _seconds(m[3]), _count(m[4]), _rate(m[5]))


def _row(m: re.Match[str]) -> ev.BreakdownRow:
    return ev.BreakdownRow(m[1].strip(), *(_bytes(int(m[i]) * MIB) for i in (2, 3, 4)))


_TABLE: tuple[tuple[str, str, _Build], ...] = (
    # text that the line contains (a cheap test), pattern, event; the most frequent line first
    ("all slots are idle", r"(?:update_slots: |^)all slots are idle", lambda m: ev.AllSlotsIdle()),
    # the load
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
    ("listening", LISTENS.pattern, _section("listening")),
    (
        CUT_MARKER,
        rf"^{CUT_MARKER}(?:[^,]*, after (\d+) requests:)?",
        lambda m: ev.LogCut(_count(m[1]) if m[1] else None),
    ),
    ("cleaning up before exit", r"cleaning up before exit", _section("exit")),
    ("model buffer size", rf"{_DEVICE} model buffer size = +{_NUMBER} MiB", _buffer("model")),
    # before b4000 and in ik_llama.cpp, which says of no model whether it is the draft
    ("llm_load_tensors", r"llm_load_tensors: ggml ctx size", _section("tensors")),
    ("llm_load_tensors", rf"llm_load_tensors: +{_DEVICE} buffer size = +{_NUMBER} MiB", _buffer("model")),
    ("KV buffer size", rf"{_DEVICE} KV buffer size = +{_NUMBER} MiB", _buffer("kv")),
    ("RS buffer size", rf"{_DEVICE} RS buffer size = +{_NUMBER} MiB", _buffer("recurrent")),
    ("compute buffer size", rf"{_DEVICE} compute buffer size = +{_NUMBER} MiB", _buffer("compute")),
    ("output buffer size", rf"{_DEVICE} +output buffer size = +{_NUMBER} MiB", _buffer("output")),
    (
        "using device",
        r"using device (\S+)(?: \((.*?)\))?(?: \(([^()]*)\))? - (\d+) MiB free",
        lambda m: ev.LogDevice(m[1], m[2] or "", m[3] or "", None, _bytes(int(m[4]) * MIB)),
    ),
    (
        "MiB free)",
        r"  - (\S+) +: (.+) \((\d+) MiB, (\d+) MiB free\)",
        lambda m: ev.LogDevice(m[1], m[2], "", _bytes(int(m[3]) * MIB), _bytes(int(m[4]) * MIB)),
    ),
    ("layers to GPU", r"offloaded (\d+)/(\d+) layers to GPU", _event(ev.OffloadedLayers, _count, _count)),
    (
        # "2 seqs" of builds before b6100 share one stream
        "llama_kv_cache",
        rf"llama_kv_cache\w*: size = +{_NUMBER} MiB \( *(\d+) cells, +\d+ layers, +\d+(?:/(\d+))? seqs\)",
        lambda m: ev.KvCache(_mib(m[1]), _count(m[2]), _count(m[3] or "1")),
    ),
    ("SWA KV cache", r"creating +SWA KV cache, size = (\d+) cells", _event(ev.SwaCache, _count)),
    ("threadpool init", r"threadpool init, n_threads = (\d+)", _event(ev.ThreadCount, _count)),
    # a request, from its arrival to its end
    ("conv_id=", r"server_strea\w*: conv_id=.*\(empty=([01])\)$", lambda m: ev.RequestArrived(m[1] == "0")),
    ("skipping, is_processing", rf"{_TASK}- skipping, is_processing = 1", lambda m: ev.SlotBusy(int(m[1]))),
    (
        # f_sim_best = 0.506 (> 0.100 thold), f_keep = 0.357
        "selected slot by",
        rf"{_TASK}selected slot by (?i:lcp) similarity, (?:f_)?sim_best = {_NUMBER}",
        lambda m: ev.SlotSelected(int(m[1]), "lcp", _fraction(m[3])),
    ),
    (
        # t_last = -1: the slot was never used
        "selected slot by",
        rf"{_TASK}selected slot by (?i:lru), t_last = (-?\d+)",
        lambda m: ev.SlotSelected(int(m[1]), "lru", fresh=m[3].startswith("-")),
    ),
    ("selected slot by", rf"{_TASK}selected slot by id \(", lambda m: ev.SlotSelected(int(m[1]), "id")),
    (
        "found better prompt",
        rf"found better prompt with f_keep = {_NUMBER}, (?:f_)?sim = {_NUMBER}",
        lambda m: ev.BetterPromptFound(_fraction(m[2])),
    ),
    ("purging slot", r"purging slot (\d+) with (\d+) tokens", _event(ev.SlotPurged, int, _count)),
    (
        "clearing prompt with",
        rf"{_TASK}clearing prompt with (\d+) tokens",
        lambda m: ev.PromptCleared(int(m[1]), _count(m[3])),
    ),
    ("saving prompt with length", r"saving prompt with length (\d+),", _event(ev.PromptSaved, _count)),
    (
        # ... due to lack of cache data (likely due to SWA or hybrid/recurrent memory, ...)
        "full prompt re-processing",
        rf"{_TASK}(forcing full prompt re-processing.*)",
        _event(ev.FullReprocessing, int, int, str),
    ),
    (
        "processing task",
        rf"{_TASK}(?:slot is )?processing task(?:, is_child = ([01]))?",
        lambda m: ev.TaskLaunched(int(m[1]), int(m[2]), m[3] == "1"),
    ),
    (
        "new prompt",
        rf"{_TASK}new prompt, n_ctx_slot = (\d+),[^=]*= -?\d+, (?:task\.n_tokens|n_prompt_tokens) = (\d+)",
        _event(ev.NewPrompt, int, int, _count, _count),
    ),
    (
        "memory_seq_rm",
        rf"{_TASK}(?:cached n_tokens|n_tokens|n_past) = (\d+), memory_seq_rm",
        _event(ev.CachedTokens, int, int, _count),
    ),
    ("kv cache rm", rf"{_TASK}kv cache rm \[(\d+), end", _event(ev.CachedTokens, int, int, _count)),
    (
        "prompt processing",
        rf"{_TASK}prompt processing(?: progress)?, (?:n_tokens|n_past) = +(\d+), (?:(?:batch\.)?n_tokens = +\d+, )?"
        rf"progress = +{_NUMBER}(?:, t = +{_NUMBER} s / +{_NUMBER} tokens per second)?",
        lambda m: ev.PromptProgressLine(int(m[1]), int(m[2]), _count(m[3]), _fraction(m[4]), _rate(m[6])),
    ),
    (
        "tg =",
        rf"{_TASK}n_(?:gen|decoded) = +(\d+), tg = +{_NUMBER} t/s(?:, tg_3s = +{_NUMBER} t/s)?",
        _event(ev.GenerationProgressLine, int, int, _count, _rate, _rate),
    ),
    ("print_timing", r"print_timing: id +(\d+) \| task +(-?\d+) \| *$", _event(ev.TimingHeader, int, int)),
    (
        "prompt eval time",
        rf"{_OPTIONAL_TASK}prompt eval time += +{_NUMBER} ms / +(\d+) tokens \([^,]*, +{_NUMBER} tokens per second\)",
        _timing("prompt"),
    ),
    (
        " eval time",
        rf"{_OPTIONAL_TASK}(?:generation )?eval time = +{_NUMBER} ms / +(\d+) (?:tokens|runs) +\([^,]*, +{_NUMBER}"
        r" tokens per second\)",
        _timing("generation"),
    ),
    (
        "total time",
        rf"{_OPTIONAL_TASK} *total time = +{_NUMBER} ms(?: / +(\d+) tokens)?",
        lambda m: ev.TimingLine(int(m[1] or -1), int(m[2] or -1), "total", _seconds(m[3]), _count(m[4] or "-1"), None),
    ),
    (
        "draft acceptance",
        rf"{_OPTIONAL_TASK}draft acceptance(?: rate)? = [^(]*\( *(\d+) accepted / +(\d+) generated\)"
        rf"(?:, mean (?:acceptance )?len(?:gth)? = +{_NUMBER})?",
        lambda m: ev.DraftAcceptance(int(m[1] or -1), int(m[2] or -1), _count(m[3]), _count(m[4]), _rate(m[5])),
    ),
    ("acc per pos", rf"{_TASK}acc per pos = \(([^)]*)\)", _event(ev.DraftAcceptancePerPosition, int, int, _numbers)),
    (
        "stop processing",
        rf"{_TASK}stop processing: n_(tokens|past) = (\d+), truncated = (\d)",
        lambda m: ev.SlotReleased(int(m[1]), int(m[2]), _count(m[4]), m[5] == "1", early=m[3] == "past"),
    ),
    ("cancel task", r"cancel task, id_task = (\d+)", _event(ev.TaskCancelled, int)),
    ("send_error: task id", r"send_error: task id = (\d+), error:", _event(ev.TaskFailed, int)),
    (
        "cache state",
        rf"cache state: \d+ prompts, {_NUMBER} MiB \(limits: {_NUMBER} MiB",
        _event(ev.PromptCacheSize, _mib, _mib),
    ),
    (
        "created context checkpoint",
        rf"{_TASK}created context checkpoint (\d+) of \d+ \([^)]*?(?:n_tokens = (\d+)[^)]*)?size = {_NUMBER} MiB",
        lambda m: ev.ContextCheckpoint(int(m[1]), _mib(m[5]), False, int(m[3]), _count(m[4] or m[3])),
    ),
    (
        "context checkpoint",
        rf"{_TASK}eras(?:ing|ed) (?:old |invalidated )?context checkpoint [^(]*"
        rf"\([^)]*n_tokens = (\d+)[^)]*size = {_NUMBER} MiB",
        lambda m: ev.ContextCheckpoint(int(m[1]), _mib(m[4]), True, 0, _count(m[3])),
    ),
    ("entering sleeping state", r"(?<!exiting )\bentering sleeping state", lambda m: ev.SleepState(True)),
    ("exiting sleeping state", r"exiting sleeping state", lambda m: ev.SleepState(False)),
)


@cache
def _compiled(pattern: str) -> re.Pattern[str]:
    return re.compile(pattern)  # on first use: compiling fifty at import would slow every command down


def parse_event(line: str) -> tuple[float | None, LogEvent | None]:
    """``(seconds since the server's start, event)`` of one log line; ``None`` for what the line does not say."""
    line = _in_llama_cpp_words(line[:_MAX_LINE_CHARS])
    for needle, pattern, build in _TABLE:
        if needle in line:
            try:
                prefix = _ROUTER_PREFIX.match(line)
                parsed = parse_line(line[prefix.end() :] if prefix else line)
                if match := _compiled(pattern).search(parsed.text):
                    seconds = parsed.seconds
                    return seconds if seconds is not None and seconds <= _MAX_SECONDS else None, build(match)
            except (ValueError, OverflowError):  # not a number, or a number of a thousand digits
                return None, None
    return None, None


def _in_llama_cpp_words(line: str) -> str:
    """A line of ik_llama.cpp's server as llama.cpp writes it, without the request that it may quote; others as is."""
    if not line.startswith(("INFO [", "WARN [", "VERB [", "ERR  [")) or not (match := _IK_LINE.match(line)):
        return line
    text, fields = match[1], dict(re.findall(r" (id_slot|id_task|p0|n_past|truncated)=(\w+)", match[2]))
    if text == "slot released":
        text = f"stop processing: n_tokens = {fields.get('n_past')}, truncated = {fields.get('truncated') == 'true':d}"
    text = text.replace("rm [p0,", f"rm [{fields.get('p0')},")
    return (
        f"id {fields['id_slot']} | task {fields['id_task']} | {text}"
        if fields.keys() >= {"id_slot", "id_task"}
        else text
    )
