"""Why a server did not start or died: its log and its exit code -> one sentence and one suggestion. Pure.

llama-server exits with code 1 after nearly every failure, so the text of the log decides. The patterns are lines of
llama.cpp build 11434 (the CUDA lines were read in its source: ggml-cuda.cu, ggml-alloc.c, llama-model.cpp). The rules
match the lines that end a start, not every failed allocation, because llama.cpp tries some of those again. If no rule
matches, the first error is the cause: later ones come from the callers that gave up.
"""

from __future__ import annotations

import re
import signal
from dataclasses import dataclass
from enum import StrEnum

from gpubox.errors import ExitCode
from gpubox.server.log import LISTENS, parse_line


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
    KILLED = "killed"
    STOPPED = "stopped"
    INTERRUPTED = "interrupted"


@dataclass(frozen=True, slots=True)
class Cause:
    """What went wrong: a sentence for the owner, a suggestion, and the log line that shows it."""

    kind: FailureKind
    sentence: str
    hint: str = ""
    line: str = ""

    @property
    def exit_code(self) -> ExitCode:
        """The exit code of a command that fails for this reason."""
        codes = {
            FailureKind.OOM: ExitCode.WOULD_NOT_FIT,
            FailureKind.FLAG: ExitCode.USAGE,
            FailureKind.HANG: ExitCode.UNHEALTHY,
            FailureKind.CRASH: ExitCode.UNHEALTHY,
            FailureKind.KILLED: ExitCode.UNHEALTHY,
            FailureKind.INTERRUPTED: ExitCode.INTERRUPTED,
        }
        return codes.get(self.kind, ExitCode.FAILED)


_OOM, _FLAG, _MISSING = FailureKind.OOM, FailureKind.FLAG, FailureKind.MISSING
_CORRUPT, _UNSUPPORTED, _CRASH = FailureKind.CORRUPT, FailureKind.UNSUPPORTED, FailureKind.CRASH

_SMALLER_MODEL = "Try a higher n-cpu-moe, a smaller ctx-size or smaller cache types."
_SMALLER_CONTEXT = "Try a smaller ctx-size, smaller cache types or parallel 1."
_DOWNLOAD_AGAIN = "Download it again."
_NEWER_ENGINE = "Use a newer llama.cpp."
_SEE_LOG = "See `gpubox logs --failed`."
_SIGNAL_HINTS: dict[int, str] = {
    signal.SIGKILL: "If `journalctl -k` says that it was the kernel's out-of-memory killer, try a smaller model or "
    "ctx-size.",
    signal.SIGILL: "The engine was built for another CPU: rebuild it on this machine.",
}

# Pattern, kind, sentence, hint. {0} and {1} are the groups of the pattern. {memory} and {where} describe the last
# allocation that failed (see _allocation). The first rule that matches decides.
# fmt: off
_RULES: tuple[tuple[str, FailureKind, str, str], ...] = (
    (r"error while handling argument \"-*([^\"]+)\": sto(?:i|f|l|d|ul|ull|ll)(?=\n|$)",
     _FLAG, "the engine refuses {0}: its value is not a number, or too large", ""),
    (r"error while handling argument \"-*([^\"]+)\": (?:error: )?(.+)", _FLAG, "the engine refuses {0}: {1}", ""),
    (r"error: invalid argument: -*(\S+)", _FLAG, "the engine has no option {0}", ""),
    (r"error: the argument has been removed\.? *(.*)", _FLAG, "a flag was removed from the engine: {0}", ""),
    (r"option '([^']+)' not recognized in preset", _FLAG, "the engine has no option {0}", ""),
    (r"failed to allocate buffer for (?:kv|rs) cache", _OOM, "out of {memory}: KV cache{where}", _SMALLER_CONTEXT),
    (r"failed to allocate compute (?:pp )?buffers",
     _OOM, "out of {memory}: compute buffer{where}", "Try a smaller ubatch-size or ctx-size."),
    (r"unable to allocate ((?!CPU)\S+(?<!_Host)) buffer", _OOM, "out of {memory}: weights{where}", _SMALLER_MODEL),
    (r"unable to allocate (\S+) buffer",
     _OOM, "out of {memory}: weights{where}", "Try a smaller quant or load-mode mmap."),
    (r"CUDA error: out of memory", _OOM, "out of VRAM while running", _SMALLER_MODEL),
    (r"(?:[Cc]annot|can't|failed to) allocate memory|std::bad_alloc",
     _OOM, "out of RAM: an allocation failed", _SMALLER_CONTEXT),
    (r"couldn't bind HTTP server socket, hostname: (\S+), port: (\d+)",
     FailureKind.PORT, "the server could not listen on {0}, port {1}",
     "Another program uses the port, the host is not an address of this machine, or a TLS file cannot be read."),
    (r"failed to open GGUF file '?([^'\n]+?)'? \(?No such file", _MISSING, "the model file {0} is missing", ""),
    (r"HTTPLIB failed: ([^\n]+)",
     _MISSING, "the model could not be downloaded: {0}", "Use a model that is already on this machine."),
    (r"tensor '([^']+)' data is not within the file bounds",
     _CORRUPT, "the GGUF is incomplete (tensor {0} lies beyond its end)", _DOWNLOAD_AGAIN),
    (r"invalid magic|bad magic|failed to read magic", _CORRUPT, "the model file is not a GGUF", _DOWNLOAD_AGAIN),
    (r"this GGUF file is version (\d+) but this software only supports up to version (\d+)",
     _UNSUPPORTED, "the GGUF has version {0}, this engine reads up to {1}", _NEWER_ENGINE),
    (r"gguf_init_from_\w+: (failed to read [^\n]+)",
     _CORRUPT, "the GGUF is damaged or incomplete: {0}", _DOWNLOAD_AGAIN),
    (r"key not found in model: (\S+)",
     _UNSUPPORTED, "the model file lacks {0}", "It was made for another llama.cpp, or by a broken tool."),
    (r"(?:missing tensor|check_tensor_dims: tensor) '([^']+)'(?: not found)?(?=\n|$)",
     _UNSUPPORTED, "the model file lacks the tensor {0}", "It was made for another llama.cpp."),
    (r"check_tensor_dims: tensor '([^']+)' has wrong shape; (expected [^\n]+)",
     _UNSUPPORTED, "the tensor {0} has the wrong shape: {1}", _DOWNLOAD_AGAIN),
    (r"unknown (?:pre-)?tokenizer(?: type)?: '([^']+)'",
     _UNSUPPORTED, "this engine does not know the tokenizer {0}", _NEWER_ENGINE),
    (r"mismatch between text model \(([^)]+)\) and mmproj \(([^)]+)\)",
     _UNSUPPORTED, "the mmproj belongs to another model: {1}, not {0}", "Use the mmproj of this model."),
    (r"[Ff]ailed to load CLIP model from ([^\n]+?)(?:\. Does this file exist\?)?(?=\n|$)",
     _UNSUPPORTED, "the engine cannot load {0} as an mmproj", "Use the mmproj GGUF of this model."),
    (r"llama_adapter_lora_init: failed to open '([^']+)'", _MISSING, "the LoRA adapter {0} is missing", ""),
    (r"failed to apply lora adapter: ([^\n]+)",
     _UNSUPPORTED, "the LoRA adapter cannot be applied: {0}", "It must be made for this model."),
    (r"common_chat_templates_init: error: ([^\n]+)",
     _FLAG, "the chat template cannot be read: {0}", "Correct chat-template or chat-template-file."),
    (r"the supplied chat template is not supported: ([^\n]{0,80})",
     _FLAG, "the engine does not accept the chat template {0}", "Correct it, or set jinja."),
    (r"parse: error parsing grammar: ([^\n]+)",
     _FLAG, "the grammar cannot be read: {0}", "Correct grammar or grammar-file."),
    (r"unknown model architecture: '([^']+)'",
     _UNSUPPORTED, "this engine does not know the architecture {0}", _NEWER_ENGINE),
    (r"model doesn't contain MTP layers|failed to create MTP context",
     _UNSUPPORTED, "the model has no MTP head", "Remove spec-type draft-mtp, or use an MTP GGUF."),
    (r"(?:V cache quantization|quantized V cache) requires flash_attn",
     _FLAG, "a quantized cache-type-v needs flash-attn on", ""),
    (r"invalid device: (\S+)", _FLAG, "the engine has no device {0}", "`gpubox engines` lists them."),
    (r"error while loading shared libraries: ([^:\n]+)",
     _CRASH, "the engine cannot start: {0} is missing", "Rebuild it, or set LD_LIBRARY_PATH in [env]."),
    (r"ggml-rpc\.cpp:\d+: (?:Failed to connect to|Failed to parse endpoint:) (\S+)",
     _CRASH, "the RPC server {0} cannot be reached", "Start ggml-rpc-server there, or remove it from rpc."),
    (r"Remote RPC server crashed or returned malformed response",
     _CRASH, "an RPC server disconnected, or runs another build", "Start ggml-rpc-server there again."),
    (r"(CUDA error: [^\n]+)", _CRASH, "{0}", "See `gpubox logs`; a lost GPU needs a reboot."),
    (r"(GGML_ASSERT\([^\n]+)", _CRASH, "the engine hit {0}", ""),
)
# fmt: on


def find_cause(log: str, exit_code: int | None, *, out_of_memory: bool = False) -> Cause:
    """The cause of a failure. ``log``: the text of one launch.

    ``exit_code``: negative for a signal, ``None`` if nobody could see it. ``out_of_memory``: the kernel's log says that
    its out-of-memory killer did it.
    """
    if out_of_memory:
        sentence = "the kernel's out-of-memory killer killed the engine (SIGKILL): RAM was full"
        return Cause(FailureKind.KILLED, sentence, _SMALLER_MODEL)
    if exit_code in (None, 0) and _ended_by_sigterm(log):
        return Cause(FailureKind.STOPPED, "it was stopped from outside gpubox")
    first = first_error(log)
    log = "\n".join(line for line in log.splitlines() if parse_line(line).level in (None, "E"))
    for pattern, kind, sentence, hint in _RULES:
        if matches := list(re.finditer(pattern, log)):
            match = matches[-1]
            memory, where = _allocation(log, match) if kind is _OOM else ("", "")
            sentence = sentence.format(*match.groups(), memory=memory, where=where)
            return Cause(kind, sentence, hint, _line_at(log, match.start()))
    if exit_code is not None and exit_code < 0 and not (first and -exit_code == signal.SIGABRT):
        hint = _SIGNAL_HINTS.get(-exit_code, _SEE_LOG)
        kind = FailureKind.KILLED if -exit_code == signal.SIGKILL else _CRASH
        perhaps = " (perhaps by the kernel: it does that when RAM is full)" if -exit_code == signal.SIGKILL else ""
        return Cause(kind, f"the engine was killed by {_signal_name(-exit_code)}{perhaps}", hint, first)
    if first:
        return Cause(_CRASH, f"the engine reported: {_FUNCTION.sub('', first, count=1) or first}", _SEE_LOG, first)
    if exit_code is None:
        hint = "`kill -9` and the kernel's out-of-memory killer write nothing into the log: see `dmesg`."
        return Cause(_CRASH, "the engine exited without an error message", hint)
    return Cause(_CRASH, f"the engine exited with code {exit_code} and without an error message", _SEE_LOG)


_CUDA_SIZE = re.compile(r"allocating ([\d.]+) MiB on device (\d+): cudaMalloc failed")
_HOST_SIZE = re.compile(r"attempted to allocate ([\d.]+) MB")
_BUFFER_SIZE = re.compile(r"failed to allocate (\S+) buffer of size (\d+)")


def _allocation(log: str, match: re.Match[str]) -> tuple[str, str]:
    """The memory of the last failed allocation, and its place and size. Earlier ones were tried again with less."""
    failed = [
        *((m.start(), f"CUDA{m[2]}", float(m[1])) for m in _CUDA_SIZE.finditer(log)),
        *((m.start(), "CPU", float(m[1])) for m in _HOST_SIZE.finditer(log)),
        *((m.start(), m[1], int(m[2]) / 1024**2) for m in _BUFFER_SIZE.finditer(log)),
    ]
    if failed:
        _, buffer, mib = max(failed)
        size = f" ({mib:,.0f} MiB)"
    else:
        buffer, size = next(iter(match.groups()), ""), ""
    if not buffer:
        return "memory", ""
    if buffer.startswith("CPU") or buffer.endswith("_Host"):  # CUDA_Host is pinned RAM
        return "RAM", size
    return "VRAM", f" on {buffer}{size}"


def _ended_by_sigterm(log: str) -> bool:
    """Whether the log ends as after SIGTERM. A failed start says "cleaning up" too, but then an error follows."""
    _, cleaning, after = log.rpartition("cleaning up before exit")
    failed = any(parse_line(line).level == "E" for line in after.splitlines())
    return bool(cleaning) and not failed and not any(re.search(pattern, after) for pattern, *_ in _RULES)


_MAX_GAP_LINES = 20
"""At most so many lines lie between two errors of the same failure."""
_FITTING = re.compile(r"fitting params to device memory|common_fit_params: |failed to measure the memory of")
_CALLER_GAVE_UP = re.compile(
    r"exiting due to|failed to load (?:the )?model|failed to load model from|error loading model: llama_model_loader"
    r"|failed to create[_ ]context with|failed to initialize the server|send_error: task id"
)
"""Callers report these after something else failed. A refused request (send_error) ends no server."""
_BARE_ERROR = re.compile(r"(?i)(?:[\w./-]+: )?(?:fatal|error|failed|traceback|exception|terminate called|panic)\b")
_FUNCTION = re.compile(r"(?i)^(?!fatal|error|failed|traceback|panic)(?:\w{3,4} +)?\w+(?:\(\))?: (?=\S)")


def first_error(log: str) -> str:
    """The line, without its prefix, with which the failure at the end of ``log`` began; empty if there is none.

    If the server never listened: the first error, except those of the attempts to fit the model into memory, which it
    survives. If it did listen: the first of the errors close together at the end, since it survived all earlier ones.
    """
    lines = [parse_line(line) for line in log.splitlines()]
    listens = max((i for i, line in enumerate(lines) if LISTENS.search(line.text)), default=None)
    lines = lines[listens or 0 :]
    errors = [
        i for i, line in enumerate(lines) if line.level == "E" or (not line.level and _BARE_ERROR.match(line.text))
    ]
    if listens is None:
        fitting = [i for i, line in enumerate(lines) if _FITTING.search(line.text)] or [-1]
        errors = [i for i in errors if not fitting[0] <= i <= fitting[-1]] or errors
    else:
        errors = _last_burst(errors)
    texts = [lines[i].text.strip() for i in errors]
    return next((text for text in texts if not _CALLER_GAVE_UP.search(text)), (texts or [""])[0])[:300]


def _last_burst(positions: list[int]) -> list[int]:
    """The last positions that are at most _MAX_GAP_LINES apart."""
    burst: list[int] = []
    for position in reversed(positions):
        if burst and burst[-1] - position > _MAX_GAP_LINES:
            break
        burst.append(position)
    return burst[::-1]


def _line_at(log: str, position: int) -> str:
    start = log.rfind("\n", 0, position) + 1
    end = log.find("\n", position)
    return parse_line(log[start : end if end >= 0 else len(log)]).text[:300]


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
