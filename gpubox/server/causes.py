"""Why a server did not start or died: from its log and its exit to one sentence and one suggestion. Pure.

Nearly every failure of llama-server exits with code 1, so the text decides; the lines are those of llama.cpp
build 11434 (those marked CUDA read in its source: ggml-cuda.cu, ggml-alloc.c, llama-model.cpp). The terminal
lines are looked for first: an allocation that is retried is not what killed the server.
"""

from __future__ import annotations

import re
import signal
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum

from gpubox.errors import ExitCode
from gpubox.server.log import parse_line


class Kind(StrEnum):
    """The classes of failure."""

    OOM = "out of memory"
    FLAG = "bad flag"
    MISSING = "missing file"
    CORRUPT = "corrupt file"
    PORT = "port taken"
    UNSUPPORTED = "unsupported model"
    HANG = "hang"
    CRASH = "crash"
    STOPPED = "stopped"
    INTERRUPTED = "interrupted"


@dataclass(frozen=True, slots=True)
class Cause:
    """What went wrong, in the owner's words, with the log line that says it."""

    kind: Kind
    sentence: str
    hint: str = ""
    line: str = ""

    @property
    def exit_code(self) -> ExitCode:
        """The exit code of a command that ends with this cause."""
        codes = {
            Kind.OOM: ExitCode.WOULD_NOT_FIT,
            Kind.FLAG: ExitCode.USAGE,
            Kind.HANG: ExitCode.UNHEALTHY,
            Kind.CRASH: ExitCode.UNHEALTHY,
            Kind.INTERRUPTED: ExitCode.INTERRUPTED,
        }
        return codes.get(self.kind, ExitCode.FAILED)


_SMALLER = "Try a higher n-cpu-moe, a smaller ctx-size or cache-type-k/v q8_0."
_LESS_CONTEXT = "Try a smaller ctx-size, cache-type-k/v q8_0 or parallel 1."
_LAST_LINES = "`gpubox logs` has its last lines."
_CUDA_SIZE = re.compile(r"allocating ([\d.]+) MiB on device (\d+): cudaMalloc failed")
_HOST_SIZE = re.compile(r"attempted to allocate ([\d.]+) MB")
_BUFFER_SIZE = re.compile(r"failed to allocate (\S+) buffer of size (\d+)")


def _oom(what: str, hint: str) -> Callable[[re.Match[str], str], Cause]:
    def build(match: re.Match[str], log: str) -> Cause:
        name, size = _allocation(log)
        name = name or next(iter(match.groups()), "")
        if not name:
            return Cause(Kind.OOM, f"out of memory: {what}", hint)
        if name.startswith("CPU") or name.endswith("_Host"):  # CUDA_Host is pinned RAM
            return Cause(Kind.OOM, f"out of RAM: {what}{size}", hint)
        return Cause(Kind.OOM, f"out of VRAM: {what} on {name}{size}", hint)

    return build


def _allocation(log: str) -> tuple[str, str]:
    """Buffer and size of the last allocation that failed: an earlier one was tried again with less."""
    found = [
        *((m.start(), f"CUDA{m[2]}", float(m[1])) for m in _CUDA_SIZE.finditer(log)),
        *((m.start(), "CPU", float(m[1])) for m in _HOST_SIZE.finditer(log)),
        *((m.start(), m[1], int(m[2]) / 1024**2) for m in _BUFFER_SIZE.finditer(log)),
    ]
    if not found:
        return "", ""
    _, name, mib = max(found)
    return name, f" ({mib:,.0f} MiB)"


def _say(kind: Kind, sentence: str, hint: str = "") -> Callable[[re.Match[str], str], Cause]:
    def build(match: re.Match[str], log: str) -> Cause:
        return Cause(kind, sentence.format(*match.groups()), hint)

    return build


_RULES: tuple[tuple[str, Callable[[re.Match[str], str], Cause]], ...] = (
    (r"error while handling argument \"-*([^\"]+)\": (.+)", _say(Kind.FLAG, "the engine refuses {0}: {1}")),
    (r"error: invalid argument: -*(\S+)", _say(Kind.FLAG, "the engine has no option {0}")),
    (r"error: the argument has been removed\.? *(.*)", _say(Kind.FLAG, "a flag was removed from the engine: {0}")),
    (r"option '([^']+)' not recognized in preset", _say(Kind.FLAG, "the engine has no option {0}")),
    (r"failed to allocate buffer for (?:kv|rs) cache", _oom("KV cache", _LESS_CONTEXT)),
    (r"failed to allocate compute (?:pp )?buffers", _oom("compute buffer", "Try a smaller ubatch-size or ctx-size.")),
    (r"unable to allocate ((?!CPU)\S+(?<!_Host)) buffer", _oom("weights", _SMALLER)),
    (r"unable to allocate (\S+) buffer", _oom("weights", "Try a smaller quant or load-mode mmap.")),
    (r"CUDA error: out of memory", _say(Kind.OOM, "out of VRAM while running", _SMALLER)),
    (
        r"(?:cannot|can't|failed to) allocate memory|std::bad_alloc",
        _say(Kind.OOM, "out of RAM: an allocation failed", _LESS_CONTEXT),
    ),
    (
        r"couldn't bind HTTP server socket, hostname: (\S+), port: (\d+)",
        _say(Kind.PORT, "port {1} on {0} is taken", "Give the profile another port, or stop the other program."),
    ),
    (
        r"failed to open GGUF file '?([^'\n]+?)'? \(?No such file",
        _say(Kind.MISSING, "the model file {0} is missing"),
    ),
    (
        r"tensor '([^']+)' data is not within the file bounds",
        _say(Kind.CORRUPT, "the GGUF is incomplete (tensor {0} lies beyond its end)", "Download it again."),
    ),
    (
        r"invalid magic|bad magic|failed to read magic",
        _say(Kind.CORRUPT, "the model file is not a GGUF", "Download it again."),
    ),
    (
        r"unknown model architecture: '([^']+)'",
        _say(Kind.UNSUPPORTED, "this engine does not know the architecture {0}", "Use a newer llama.cpp."),
    ),
    (
        r"model doesn't contain MTP layers|failed to create MTP context",
        _say(Kind.UNSUPPORTED, "the model has no MTP head", "Drop spec-type draft-mtp, or use an MTP GGUF."),
    ),
    (
        r"(?:V cache quantization requires flash_attn[^\n]*)",
        _say(Kind.FLAG, "a quantized cache-type-v needs flash-attn on"),
    ),
    (r"invalid device: (\S+)", _say(Kind.FLAG, "the engine has no device {0}", "`gpubox engines` lists them.")),
    (
        r"error while loading shared libraries: ([^:\n]+)",
        _say(Kind.CRASH, "the engine cannot start: {0} is missing", "Rebuild it, or set LD_LIBRARY_PATH in [env]."),
    ),
    (
        r"ggml-rpc\.cpp:\d+: (?:Failed to connect to|Failed to parse endpoint:) (\S+)",
        _say(Kind.CRASH, "the RPC server {0} cannot be reached", "Start ggml-rpc-server there, or drop it from rpc."),
    ),
    (
        r"Remote RPC server crashed or returned malformed response",
        _say(Kind.CRASH, "an RPC server went away, or is of another build", "Start ggml-rpc-server there again."),
    ),
    (r"(CUDA error: [^\n]+)", _say(Kind.CRASH, "{0}", "See `gpubox logs`; a lost GPU needs a reboot.")),
    (r"(GGML_ASSERT\([^\n]+)", _say(Kind.CRASH, "the engine hit {0}")),
)


def find_cause(log: str, exit_code: int | None) -> Cause:
    """The cause that ``log`` (the text of one launch) and ``exit_code`` (negative: a signal) tell.

    ``exit_code`` is ``None`` where nobody could see it.
    """
    if exit_code in (None, 0) and _told_to_leave(log):
        return Cause(Kind.STOPPED, "it was told to stop from outside gpubox")
    log = "\n".join(line for line in log.splitlines() if parse_line(line).level in (None, "E"))
    for pattern, build in _RULES:
        if found := list(re.finditer(pattern, log)):
            cause = build(found[-1], log)
            return Cause(cause.kind, cause.sentence, cause.hint, _line_of(log, found[-1].start()))
    if exit_code is not None and exit_code < 0:
        return Cause(Kind.CRASH, f"the engine was killed by {_signal(-exit_code)}", _signal_hint(-exit_code))
    last = last_error(log)
    if last:
        return Cause(Kind.CRASH, f"the engine said: {last}", "`gpubox logs` has the rest.", last)
    if exit_code is None:
        hint = "A `kill -9` or the kernel's out-of-memory killer leaves no word: see `dmesg`."
        return Cause(Kind.CRASH, "the engine ended without saying why", hint)
    return Cause(Kind.CRASH, f"the engine ended with code {exit_code} without saying why", _LAST_LINES)


def _told_to_leave(log: str) -> bool:
    """Whether the log ends as after SIGTERM: a failed start says "cleaning up" too, and then why."""
    _, cleaning, after = log.rpartition("cleaning up before exit")
    failed = any(parse_line(line).level == "E" for line in after.splitlines())
    return bool(cleaning) and not failed and not any(re.search(pattern, after) for pattern, _ in _RULES)


def last_error(log: str) -> str:
    """The last error line of the log without its prefix; the last bare ``error:`` line; else empty."""
    lines = [parse_line(line) for line in log.splitlines()]
    errors = [line.text for line in lines if line.level == "E" and "exiting due to" not in line.text]
    bare = [line.text for line in lines if line.level is None and re.match(r"(?i)(fatal|error|traceback)\b", line.text)]
    return (errors or bare or [""])[-1][:300]


def _line_of(log: str, position: int) -> str:
    start = log.rfind("\n", 0, position) + 1
    end = log.find("\n", position)
    return parse_line(log[start : end if end >= 0 else len(log)]).text[:300]


def _signal(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def _signal_hint(number: int) -> str:
    if number == signal.SIGKILL:
        return "The kernel's out-of-memory killer does that: see `dmesg`; try a smaller model or ctx-size."
    if number == signal.SIGILL:
        return "The engine was built for another CPU: rebuild it on this machine."
    return _LAST_LINES
