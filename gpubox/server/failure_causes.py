"""Why a server did not start or died: from its log and its exit to one sentence and one suggestion. Pure.

Nearly every failure of llama-server exits with code 1, so the text decides; the lines are those of llama.cpp
build 11434 (those marked CUDA read in its source: ggml-cuda.cu, ggml-alloc.c, llama-model.cpp). The terminal
lines are looked for first: an allocation that is retried is not what killed the server. Where no rule knows the
failure, the first error of it is told, not the last: what follows are the callers that gave up.
"""

from __future__ import annotations

import re
import signal
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum

from gpubox.errors import ExitCode
from gpubox.server.log import LogLine, parse_line


class FailureKind(StrEnum):
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

    kind: FailureKind
    sentence: str
    hint: str = ""
    line: str = ""

    @property
    def exit_code(self) -> ExitCode:
        """The exit code of a command that ends with this cause."""
        codes = {
            FailureKind.OOM: ExitCode.WOULD_NOT_FIT,
            FailureKind.FLAG: ExitCode.USAGE,
            FailureKind.HANG: ExitCode.UNHEALTHY,
            FailureKind.CRASH: ExitCode.UNHEALTHY,
            FailureKind.INTERRUPTED: ExitCode.INTERRUPTED,
        }
        return codes.get(self.kind, ExitCode.FAILED)


_SMALLER = "Try a higher n-cpu-moe, a smaller ctx-size or cache-type-k/v q8_0."
_LESS_CONTEXT = "Try a smaller ctx-size, cache-type-k/v q8_0 or parallel 1."
_LAST_LINES = "`gpubox logs --failed` has its last lines."
_AGAIN = "Download it again."
_CUDA_SIZE = re.compile(r"allocating ([\d.]+) MiB on device (\d+): cudaMalloc failed")
_HOST_SIZE = re.compile(r"attempted to allocate ([\d.]+) MB")
_BUFFER_SIZE = re.compile(r"failed to allocate (\S+) buffer of size (\d+)")


def _oom(what: str, hint: str) -> Callable[[re.Match[str], str], Cause]:
    def build(match: re.Match[str], log: str) -> Cause:
        name, size = _allocation(log)
        name = name or next(iter(match.groups()), "")
        if not name:
            return Cause(FailureKind.OOM, f"out of memory: {what}", hint)
        if name.startswith("CPU") or name.endswith("_Host"):  # CUDA_Host is pinned RAM
            return Cause(FailureKind.OOM, f"out of RAM: {what}{size}", hint)
        return Cause(FailureKind.OOM, f"out of VRAM: {what} on {name}{size}", hint)

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


def _say(kind: FailureKind, sentence: str, hint: str = "") -> Callable[[re.Match[str], str], Cause]:
    def build(match: re.Match[str], log: str) -> Cause:
        return Cause(kind, sentence.format(*match.groups()), hint)

    return build


_RULES: tuple[tuple[str, Callable[[re.Match[str], str], Cause]], ...] = (
    (
        r"error while handling argument \"-*([^\"]+)\": sto(?:i|f|l|d|ul|ull|ll)(?=\n|$)",
        _say(FailureKind.FLAG, "the engine refuses {0}: its value is not a number, or too large a one"),
    ),
    (
        r"error while handling argument \"-*([^\"]+)\": (?:error: )?(.+)",
        _say(FailureKind.FLAG, "the engine refuses {0}: {1}"),
    ),
    (r"error: invalid argument: -*(\S+)", _say(FailureKind.FLAG, "the engine has no option {0}")),
    (
        r"error: the argument has been removed\.? *(.*)",
        _say(FailureKind.FLAG, "a flag was removed from the engine: {0}"),
    ),
    (r"option '([^']+)' not recognized in preset", _say(FailureKind.FLAG, "the engine has no option {0}")),
    (r"failed to allocate buffer for (?:kv|rs) cache", _oom("KV cache", _LESS_CONTEXT)),
    (r"failed to allocate compute (?:pp )?buffers", _oom("compute buffer", "Try a smaller ubatch-size or ctx-size.")),
    (r"unable to allocate ((?!CPU)\S+(?<!_Host)) buffer", _oom("weights", _SMALLER)),
    (r"unable to allocate (\S+) buffer", _oom("weights", "Try a smaller quant or load-mode mmap.")),
    (r"CUDA error: out of memory", _say(FailureKind.OOM, "out of VRAM while running", _SMALLER)),
    (
        r"(?:[Cc]annot|can't|failed to) allocate memory|std::bad_alloc",
        _say(FailureKind.OOM, "out of RAM: an allocation failed", _LESS_CONTEXT),
    ),
    (
        r"couldn't bind HTTP server socket, hostname: (\S+), port: (\d+)",
        _say(
            FailureKind.PORT,
            "it could not listen on {0}, port {1}",
            "Another program has the port, the host is none of this machine's, or a TLS file cannot be read.",
        ),
    ),
    (
        r"failed to open GGUF file '?([^'\n]+?)'? \(?No such file",
        _say(FailureKind.MISSING, "the model file {0} is missing"),
    ),
    (
        r"HTTPLIB failed: ([^\n]+)",
        _say(FailureKind.MISSING, "the model could not be downloaded: {0}", "Give the profile a model that is here."),
    ),
    (
        r"tensor '([^']+)' data is not within the file bounds",
        _say(FailureKind.CORRUPT, "the GGUF is incomplete (tensor {0} lies beyond its end)", _AGAIN),
    ),
    (
        r"invalid magic|bad magic|failed to read magic",
        _say(FailureKind.CORRUPT, "the model file is not a GGUF", _AGAIN),
    ),
    (
        r"this GGUF file is version (\d+) but this software only supports up to version (\d+)",
        _say(
            FailureKind.UNSUPPORTED, "the GGUF has version {0}, this engine reads up to {1}", "Use a newer llama.cpp."
        ),
    ),
    (
        r"gguf_init_from_\w+: (failed to read [^\n]+)",
        _say(FailureKind.CORRUPT, "the GGUF is damaged or incomplete: {0}", _AGAIN),
    ),
    (
        r"key not found in model: (\S+)",
        _say(
            FailureKind.UNSUPPORTED,
            "the model file lacks {0}",
            "It was made for another llama.cpp, or by a broken tool.",
        ),
    ),
    (
        r"(?:missing tensor|check_tensor_dims: tensor) '([^']+)'(?: not found)?(?=\n|$)",
        _say(FailureKind.UNSUPPORTED, "the model file lacks the tensor {0}", "It was made for another llama.cpp."),
    ),
    (
        r"check_tensor_dims: tensor '([^']+)' has wrong shape; (expected [^\n]+)",
        _say(FailureKind.UNSUPPORTED, "the tensor {0} has a shape that the engine does not take: {1}", _AGAIN),
    ),
    (
        r"unknown (?:pre-)?tokenizer(?: type)?: '([^']+)'",
        _say(FailureKind.UNSUPPORTED, "this engine does not know the tokenizer {0}", "Use a newer llama.cpp."),
    ),
    (
        r"mismatch between text model \(([^)]+)\) and mmproj \(([^)]+)\)",
        _say(
            FailureKind.UNSUPPORTED, "the mmproj is another model's: {1}, not {0}", "Use the mmproj of this very model."
        ),
    ),
    (
        r"[Ff]ailed to load CLIP model from ([^\n]+?)(?:\. Does this file exist\?)?(?=\n|$)",
        _say(
            FailureKind.UNSUPPORTED,
            "{0} is no mmproj that the engine can load",
            "Use the mmproj GGUF of this very model.",
        ),
    ),
    (
        r"llama_adapter_lora_init: failed to open '([^']+)'",
        _say(FailureKind.MISSING, "the LoRA adapter {0} is missing"),
    ),
    (
        r"failed to apply lora adapter: ([^\n]+)",
        _say(
            FailureKind.UNSUPPORTED, "the LoRA adapter cannot be applied: {0}", "It must be made for this very model."
        ),
    ),
    (
        r"common_chat_templates_init: error: ([^\n]+)",
        _say(FailureKind.FLAG, "the chat template cannot be read: {0}", "Correct chat-template or chat-template-file."),
    ),
    (
        r"the supplied chat template is not supported: ([^\n]{0,80})",
        _say(FailureKind.FLAG, "the engine does not take the chat template {0}", "Correct it, or set jinja."),
    ),
    (
        r"parse: error parsing grammar: ([^\n]+)",
        _say(FailureKind.FLAG, "the grammar cannot be read: {0}", "Correct grammar or grammar-file."),
    ),
    (
        r"unknown model architecture: '([^']+)'",
        _say(FailureKind.UNSUPPORTED, "this engine does not know the architecture {0}", "Use a newer llama.cpp."),
    ),
    (
        r"model doesn't contain MTP layers|failed to create MTP context",
        _say(FailureKind.UNSUPPORTED, "the model has no MTP head", "Drop spec-type draft-mtp, or use an MTP GGUF."),
    ),
    (
        r"(?:V cache quantization|quantized V cache) requires flash_attn",
        _say(FailureKind.FLAG, "a quantized cache-type-v needs flash-attn on"),
    ),
    (r"invalid device: (\S+)", _say(FailureKind.FLAG, "the engine has no device {0}", "`gpubox engines` lists them.")),
    (
        r"error while loading shared libraries: ([^:\n]+)",
        _say(
            FailureKind.CRASH, "the engine cannot start: {0} is missing", "Rebuild it, or set LD_LIBRARY_PATH in [env]."
        ),
    ),
    (
        r"ggml-rpc\.cpp:\d+: (?:Failed to connect to|Failed to parse endpoint:) (\S+)",
        _say(
            FailureKind.CRASH,
            "the RPC server {0} cannot be reached",
            "Start ggml-rpc-server there, or drop it from rpc.",
        ),
    ),
    (
        r"Remote RPC server crashed or returned malformed response",
        _say(
            FailureKind.CRASH, "an RPC server went away, or is of another build", "Start ggml-rpc-server there again."
        ),
    ),
    (r"(CUDA error: [^\n]+)", _say(FailureKind.CRASH, "{0}", "See `gpubox logs`; a lost GPU needs a reboot.")),
    (r"(GGML_ASSERT\([^\n]+)", _say(FailureKind.CRASH, "the engine hit {0}")),
)


def find_cause(log: str, exit_code: int | None) -> Cause:
    """The cause that ``log`` (the text of one launch) and ``exit_code`` (negative: a signal) tell.

    ``exit_code`` is ``None`` where nobody could see it.
    """
    if exit_code in (None, 0) and _told_to_leave(log):
        return Cause(FailureKind.STOPPED, "it was told to stop from outside gpubox")
    first = first_error(log)
    log = "\n".join(line for line in log.splitlines() if parse_line(line).level in (None, "E"))
    for pattern, build in _RULES:
        if found := list(re.finditer(pattern, log)):
            cause = build(found[-1], log)
            return Cause(cause.kind, cause.sentence, cause.hint, _line_of(log, found[-1].start()))
    if exit_code is not None and exit_code < 0 and not (first and -exit_code == signal.SIGABRT):
        return Cause(
            FailureKind.CRASH, f"the engine was killed by {_signal(-exit_code)}", _signal_hint(-exit_code), first
        )
    if first:
        return Cause(
            FailureKind.CRASH, f"the engine said: {_bare(first)}", "`gpubox logs --failed` has the rest.", first
        )
    if exit_code is None:
        hint = "A `kill -9` or the kernel's out-of-memory killer leaves no word: see `dmesg`."
        return Cause(FailureKind.CRASH, "the engine ended without saying why", hint)
    return Cause(FailureKind.CRASH, f"the engine ended with code {exit_code} without saying why", _LAST_LINES)


def _told_to_leave(log: str) -> bool:
    """Whether the log ends as after SIGTERM: a failed start says "cleaning up" too, and then why."""
    _, cleaning, after = log.rpartition("cleaning up before exit")
    failed = any(parse_line(line).level == "E" for line in after.splitlines())
    return bool(cleaning) and not failed and not any(re.search(pattern, after) for pattern, _ in _RULES)


def first_error(log: str) -> str:
    """The line, without its prefix, with which the failure at the end of ``log`` began; empty where there is none.

    Of a server that never listened: the first error, but not of the attempts to fit it into memory, which it goes on
    after. Of one that did: the first of the errors that stand together at the end, since it goes on after all others.
    """
    lines = [parse_line(line) for line in log.splitlines()]
    began = max((i for i, line in enumerate(lines) if _LISTENS in line.text), default=None)
    lines = lines[began or 0 :]
    errors = [i for i, line in enumerate(lines) if _is_error(line)]
    if began is None:
        fitting = [i for i, line in enumerate(lines) if _FITTING.search(line.text)] or [-1]
        errors = [i for i in errors if not fitting[0] <= i <= fitting[-1]] or errors
    else:
        errors = _last_burst(errors)
    told = [lines[i].text.strip() for i in errors]
    return next((text for text in told if not _FOLLOWS.search(text)), (told or [""])[0])[:300]


_LISTENS = "listening on http"
_NEAR = 20
"""Lines between two errors of one failure."""
_FITTING = re.compile(r"fitting params to device memory|common_fit_params: |failed to measure the memory of")
_FOLLOWS = re.compile(
    r"exiting due to|failed to load (?:the )?model|failed to load model from|error loading model: llama_model_loader"
    r"|failed to create[_ ]context with|failed to initialize the server|send_error: task id"
)
"""What callers say after something failed; and a request that was refused, which ends no server."""
_BARE_ERROR = re.compile(r"(?i)(?:[\w./-]+: )?(?:fatal|error|failed|traceback|exception|terminate called|panic)\b")
_PLACE = re.compile(r"(?i)^(?!fatal|error|failed|traceback|panic)(?:\w{3,4} +)?\w+(?:\(\))?: (?=\S)")


def _is_error(line: LogLine) -> bool:
    if line.level is None:
        return bool(_BARE_ERROR.match(line.text))
    return line.level == "E"


def _last_burst(positions: list[int]) -> list[int]:
    """The positions at the end that are no more than _NEAR apart."""
    burst: list[int] = []
    for position in reversed(positions):
        if burst and burst[-1] - position > _NEAR:
            break
        burst.append(position)
    return burst[::-1]


def _bare(text: str) -> str:
    """An error line without the function of llama.cpp that says it."""
    return _PLACE.sub("", text, count=1) or text


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
