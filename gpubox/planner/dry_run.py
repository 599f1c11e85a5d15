"""Asks the engine itself: it builds its graphs without weights, prints its table, and is killed before it loads.

``--fit on`` (the default) measures the given flags first, with buffers of size 0 (llama.cpp common/fit.cpp, b11434):
at ``-lv 5`` the compute buffers appear with two decimals, then the row ``fit_memory_breakdown`` with whole MiB. With a
draft, a second measurement follows. The engine is killed at the line that ends the fit, before weights are read.

What it takes meanwhile: a driver context on each card, and the recurrent states, which are really allocated.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import selectors
import signal
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from gpubox.children import engine_environment, guarded
from gpubox.engines.capabilities import Capabilities, repeated_flags
from gpubox.engines.find import Engine
from gpubox.errors import GpuboxError
from gpubox.planner.compute import Measurement, Structure
from gpubox.planner.formula import FormulaParts
from gpubox.planner.launch_flags import LaunchFlags, canonical_memory_flag
from gpubox.profiles.argv import server_argv
from gpubox.profiles.profile import ChatDefaults, FlagValue, Profile
from gpubox.server.launch import free_port
from gpubox.server.log import LISTENS
from gpubox.server.log_events import DeviceBuffer, LogDevice
from gpubox.server.log_parsing import parse_event
from gpubox.storage import file_stamp, read_json
from gpubox.telemetry.device_memory import HOST, device_key
from gpubox.units import MIB

TIMEOUT_SECONDS = 30.0
_RPC_REPLY_SECONDS = 0.3
_MAX_OUTPUT_BYTES = 64 * 1024 * 1024
_END = re.compile(rf"fitting params to free memory took|{LISTENS.pattern}")
_COLUMNS = ("model", "context", "compute")
_TABLE_END = "fit_memory_breakdown"


_PINNED = frozenset({"ctx-size", "kv-unified-per-slot", "n-gpu-layers", "fit"})
"""Flags that the dry run sets itself: so that the engine measures what was asked, and does not adapt it."""
_DROPPED = ("log-", "slot-save-path", "models-", "lookup-cache-dynamic", "sleep-idle", "no-log-", "warmup", "no-warmup")
"""Flags that would write a file, or only add text."""
_SILENT = frozenset({"verbose", "v", "lv", "verbosity", "fit-target", "fitt", "fit-ctx", "fitc", "fit-print", "fitp"})
_COORDINATES = frozenset({"n-cpu-moe", "cpu-moe", "parallel", "ubatch-size"})
"""Flags whose effect on the compute buffers is predicted from other measurements."""
_HARMLESS = (
    "alias", "tags", "api-", "chat-template", "cache-ram", "cram", "cache-reuse", "cache-idle", "checkpoint-", "cms",
    "cont-batching", "context-shift", "cors", "ctx-checkpoints", "ctxcp", "dry-", "dynatemp", "frequency-penalty",
    "grammar", "host", "ignore-eos", "jinja", "json-schema", "keep", "metrics", "min-p", "mirostat", "n-predict",
    "port", "predict", "presence-penalty", "prio", "poll", "props", "reasoning", "repeat-", "samplers", "seed", "slot",
    "spec-draft-p-", "spec-synth", "temp", "threads", "timeout", "tools", "top-", "typical", "webui", "ui", "xtc-",
)  # fmt: skip
"""Beginnings of flags that change no buffer; two launches that differ only in them share their measurements."""
_ENVIRONMENT = ("LLAMA_ARG_", "GGML_", "CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER")


@dataclass(frozen=True, slots=True)
class DryRun:
    """What the engine said about one set of flags."""

    main: Measurement
    draft: Measurement
    seen: tuple[LogDevice, ...] = ()
    """The devices as the engine's log names them, with their PCI addresses."""
    free: Mapping[str, int] = field(default_factory=dict)
    """What was free on each device beside the engine's own driver context, the recurrent states allocated."""


def run_dry(
    engine: Engine, argv: Sequence[str], env: Mapping[str, str], *, draft: bool, timeout: float = TIMEOUT_SECONDS
) -> DryRun:
    """Measures ``argv`` (without port). Blocks, and leaves no process behind.

    Raises GpuboxError if the engine does not print its table: it refuses a flag, is too old, or hangs.
    """
    reader = _TableReader(draft)
    last = ""
    with _engine_output([*engine.command, *argv], env, timeout) as lines:
        for line in lines:
            text, table = _decode(line)
            if reader.feed(text, table):
                break
            last = text.strip() or last
    if reader.result is None:
        raise GpuboxError(
            f"The engine {engine.name!r} did not report the memory of these flags: {last[:200] or 'no output'}"
        )
    return reader.result


class _TableReader:
    def __init__(self, draft: bool) -> None:
        self._expects_draft = draft
        self._compute: dict[str, int] = {}
        self._measured: list[Measurement] = []
        self._seen: dict[str, LogDevice] = {}
        self._free: dict[str, int] = {}

    @property
    def result(self) -> DryRun | None:
        if not self._measured:
            return None
        draft = self._measured[1] if self._expects_draft and len(self._measured) > 1 else Measurement()
        return DryRun(self._measured[0], draft, tuple(self._seen.values()), self._free)

    def feed(self, text: str, table: list[dict[str, Any]] | None) -> bool:
        """Processes one line; True if all is known."""
        if table is not None:
            self._free = self._free or {_row_key(row): row["free"] * MIB for row in table if _is_size(row.get("free"))}
            self._measured.append(self._measurement(table))
            self._compute = {}
            return len(self._measured) >= (2 if self._expects_draft else 1)
        if "compute buffer size =" in text or "using device" in text:
            _, event = parse_event(text)
            if isinstance(event, DeviceBuffer) and event.kind == "compute":
                self._compute[event.device] = event.size_bytes
            elif isinstance(event, LogDevice):
                self._seen[event.device] = event
        return bool(_END.search(text)) and bool(self._measured)

    def _measurement(self, rows: list[dict[str, Any]]) -> Measurement:
        weights: dict[str, int] = {}
        context: dict[str, int] = {}
        compute: dict[str, int] = {}
        for row in rows:
            key = _row_key(row)
            for target, name in ((weights, "model"), (context, "context"), (compute, "compute")):
                target[key] = target.get(key, 0) + int(row[name]) * MIB
        if self._compute:
            compute = {}
            for device, size in self._compute.items():
                compute[device_key(device)] = compute.get(device_key(device), 0) + size
        return Measurement(weights, context, compute)


def _row_key(row: Mapping[str, Any]) -> str:
    name, description = str(row.get("name", "")), str(row.get("description", ""))
    if row.get("kind") != "device":
        return HOST  # Host, or a host buffer of another type such as CPU_REPACK
    return device_key(f"{name} ({description})") if name.startswith("RPC") else device_key(name)


def _is_size(value: object) -> bool:
    """Whether it is a plausible number of MiB."""
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 1 << 32


def _decode(line: bytes) -> tuple[str, list[dict[str, Any]] | None]:
    """The text of a log record, and the rows if it is the table."""
    text = line.decode(errors="replace")
    if not text.startswith("{"):
        return text, None
    with contextlib.suppress(ValueError, TypeError, KeyError, AttributeError):
        record = read_json(text)
        if record.get("type") == _TABLE_END:
            rows = record["data"]["rows"]
            if all(isinstance(row, dict) and all(_is_size(row.get(name)) for name in _COLUMNS) for row in rows):
                return "", rows
        return str(record.get("msg", "")), None
    return text, None


@contextlib.contextmanager
def _engine_output(command: Sequence[str], env: Mapping[str, str], timeout: float) -> Iterator[Iterator[bytes]]:
    """The lines of a program, as they come. It is killed at the end, with its children."""
    try:
        process = subprocess.Popen(
            guarded(command),  # else a kill of gpubox would let the engine go on and load the model
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env=engine_environment(env),
            start_new_session=True,
        )
    except OSError as error:
        raise GpuboxError(f"The engine {command[0]} cannot be started: {error.strerror}.") from None
    try:
        yield _lines(process, time.monotonic() + timeout)
    finally:
        with contextlib.suppress(ProcessLookupError):
            if any("rpc" in word for word in command):
                # An RPC server that writes to a dead client dies of SIGPIPE. A stopped client lets it finish its reply.
                os.killpg(process.pid, signal.SIGSTOP)
                time.sleep(_RPC_REPLY_SECONDS)
            os.killpg(process.pid, signal.SIGKILL)
        assert process.stdout is not None and process.stdin is not None
        process.stdout.close()
        process.stdin.close()
        process.wait()


def _lines(process: subprocess.Popen[bytes], deadline: float) -> Iterator[bytes]:
    assert process.stdout is not None
    descriptor, rest, read = process.stdout.fileno(), b"", 0
    with selectors.DefaultSelector() as selector:
        selector.register(descriptor, selectors.EVENT_READ)
        while read < _MAX_OUTPUT_BYTES:
            left = deadline - time.monotonic()
            if left <= 0 or not selector.select(left):
                return
            data = os.read(descriptor, 1 << 16)
            if not data:
                break
            read += len(data)
            *lines, rest = (rest + data).split(b"\n")
            yield from lines
    if rest:
        yield rest


def can_dry_run(capabilities: Capabilities) -> bool:
    """Whether the engine can print its memory table before a load."""
    return all(capabilities.option(name) for name in ("log-jsonl", "fit", "log-verbosity"))


def dry_argv(
    profile: Profile, flags: LaunchFlags, parts: FormulaParts, model: Sequence[str], capabilities: Capabilities
) -> list[str]:
    """The arguments with which the engine measures ``profile`` (its flags are those of the plan)."""
    kept = {name: value for name, value in profile.flags.items() if not _is_dropped(name)}
    given = {canonical_memory_flag(name) for name in kept}
    pinned: dict[str, FlagValue] = {"ctx-size": parts.cells.context, "fit": "on", "log-jsonl": True, "log-verbosity": 5}
    pinned["n-gpu-layers"] = min(flags.gpu_layers, len(parts.where.layers) + 1)
    if len(parts.split) > 1 and "tensor-split" not in given:
        pinned["tensor-split"] = ",".join(f"{share:.0f}" for share in parts.split)
    kept |= pinned
    if capabilities.option("no-warmup"):
        kept["no-warmup"] = True
    bare = replace(profile, flags=kept, sampling={}, chat=ChatDefaults(), host="127.0.0.1")
    return server_argv(bare, model, port=free_port("127.0.0.1"), repeated=repeated_flags(capabilities))


def structure_of(
    profile: Profile, flags: LaunchFlags, parts: FormulaParts, engine: Engine, files: Sequence[Path],
    devices: Sequence[str], env: Mapping[str, str],
) -> Structure:  # fmt: skip
    """The structure of a launch: what its compute buffers depend on."""
    other = sorted(
        _spelled(name, value)
        for name, value in profile.flags.items()
        if not _is_dropped(name) and canonical_memory_flag(name) not in _COORDINATES and not name.startswith(_HARMLESS)
    )
    variables = sorted((name, value) for name, value in env.items() if name.startswith(_ENVIRONMENT))
    stamps = [[str(path), *file_stamp(path)] for path in (engine.path, *files)]
    family = [stamps, engine.name, other, variables, list(devices), flags.unified, flags.rollback_tokens]
    layers = len(parts.where.layers)
    used = {device for device in (*parts.where.layers, parts.where.output) if device != "Host"}
    return Structure(
        family=hashlib.sha256(repr(family).encode()).hexdigest()[:32],
        gpu_layers=min(flags.gpu_layers, layers + 1),
        cpu_expert_layers=min(parts.cpu_expert_layers, layers),
        slots=flags.slots,
        ubatch=parts.ubatch,
        cells=parts.cells.cells + (parts.cells.windowed_cells if parts.windowed else 0),
        layers=layers,
        lawful=flags.flash_attention != "off" and flags.kv_on_device and len(used) <= 1,
        linear=flags.kv_on_device,
    )


def _spelled(name: str, value: FlagValue) -> tuple[str, str]:
    """A flag in the same words, whether it comes from a profile or from a command line."""
    if value is False:
        name, value = name.removeprefix("no-") if name.startswith("no-") else f"no-{name}", True
    text = ",".join(map(str, value)) if isinstance(value, tuple) else str(value)
    return canonical_memory_flag(name) or name, text


def _is_dropped(name: str) -> bool:
    return name.startswith(_DROPPED) or name in _SILENT or canonical_memory_flag(name) in _PINNED
