"""The records on disk: a server (found again, explained, started again), the launch of a log, the gateway."""

from __future__ import annotations

import contextlib
import errno
import json
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, is_dataclass
from datetime import UTC, datetime, timedelta
from functools import cache, lru_cache
from pathlib import Path
from types import UnionType
from typing import Any, TypeVar, cast, get_args, get_origin, get_type_hints

from gpubox.address import local_url
from gpubox.errors import GpuboxError
from gpubox.hardware.process import ProcessIdentity, is_alive
from gpubox.paths import Paths
from gpubox.server.log import record_path
from gpubox.storage import NotRegularFile, read_json, read_text, write_atomically

SCHEMA = 1
STATE_BYTES = 4 * 1024 * 1024
RESTART_SECONDS = 15 * 60
"""A restart counts against MAX_RESTARTS for so long."""
LEAST_REUSED_SHARE = 0.5
"""A request that reused less of a restored state continues another conversation."""
RECORD_ERRORS = (OSError, ValueError, TypeError, KeyError, AttributeError)
"""What reading a damaged record raises."""
T = TypeVar("T")
_DISK_FULL = {errno.ENOSPC, errno.EDQUOT}


@dataclass(frozen=True, slots=True)
class Launch:
    """What was run, exactly. The profile may have changed since; a rollback starts the launch again unchanged."""

    profile: str
    argv: tuple[str, ...]
    """The whole command line, binary first, without API keys."""
    host: str
    port: int
    env: Mapping[str, str] = field(default_factory=dict)
    """The variables that the profile adds to the environment."""
    engine: str = ""
    engine_path: str = ""
    engine_version: str = ""
    model_path: str | None = None
    model_bytes: int | None = None
    restart: bool = False
    """Whether the watcher starts it again after a crash."""
    layers: int | None = None
    """``block_count`` of the GGUF, without the MTP blocks."""
    has_experts: bool = False
    embeddings: bool = False
    """Whether the readiness probe asks for an embedding instead of a token."""

    @property
    def base_url(self) -> str:
        """The address at which this machine reaches it."""
        return local_url(self.host, self.port)


@dataclass(frozen=True, slots=True)
class RestoredSlot:
    """A slot into which a kept state was restored before the server was ready."""

    slot: int
    tokens: int
    name: str
    """Of the state in ``kv_store``."""
    conversation: str = ""
    """Whose it is, as the gateway calls it."""


@dataclass(frozen=True, slots=True)
class RunningServer:
    """One started launch. ``process`` is ``None`` in the record that is written just before the fork."""

    launch: Launch
    launch_id: str
    started_at: str
    process: ProcessIdentity | None = None
    ready_at: str | None = None
    """When it answered the readiness probe; ``None``: not yet."""
    load_seconds: float | None = None
    loaded_vram: tuple[tuple[int, int], ...] = ()
    """``(GPU index, bytes)`` in use when it was ready: by this process, or by all if the driver hides the processes."""
    probe_tokens: tuple[int, int] = (0, 0)
    """Prompt and generated tokens of the readiness probe, which no total counts."""
    has_api_key: bool = False
    """Whether it was started with an API key; the key file may have changed since."""
    whole_card_gpus: tuple[int, ...] = ()
    """The GPU indexes for which ``loaded_vram`` is the use of all processes."""
    restored: tuple[RestoredSlot, ...] = ()
    cold: bool = False
    """Whether a benchmark started it: its KV caches are neither restored nor kept."""
    note: str = ""
    """Why it runs, if nobody asked for it: a killed operation brought it back."""
    exit_code: int | None = None
    """Only beside its log: how it ended (negative: the signal), if its watcher saw that."""
    out_of_memory: bool = False
    """As ``exit_code``: the kernel's log says that its out-of-memory killer did it."""

    @property
    def logs_probe(self) -> bool:
        """Whether one of the first requests in its log is gpubox's readiness probe, or will be."""
        return self.ready_at is None or self.probe_tokens != (0, 0)


@dataclass(frozen=True, slots=True)
class Operation:
    """What a gpubox is doing to an instance."""

    kind: str
    profile: str
    step: str
    owner: ProcessIdentity
    since: str
    asked_by: str = ""
    """The gateway's client whose request caused it; empty: the owner."""
    gives_way: bool = False
    """Whether the gateway or a watcher does it: the owner's own operation waits for its end."""
    replaces: Mapping[str, RunningServer] = field(default_factory=dict)
    """Instance -> the server that it has begun to stop. If it is killed, their launches come back."""


@dataclass(frozen=True, slots=True)
class LaunchFailure:
    """The last launch of an instance that failed or crashed. Its log is kept."""

    profile: str
    launch_id: str
    at: str
    sentence: str
    hint: str = ""
    line: str = ""


@dataclass(frozen=True, slots=True)
class InstanceState:
    """The state file of one instance."""

    running: RunningServer | None = None
    operation: Operation | None = None
    last_good: Launch | None = None
    """The last launch that became ready."""
    previous_profile: str = ""
    """The profile that answered before it; not what a benchmark started."""
    message: str = ""
    """Why nothing runs, in a sentence."""
    restarts: tuple[str, ...] = ()
    """When it was recently restarted after a crash: ISO-8601 UTC."""
    failed: LaunchFailure | None = None


@dataclass(frozen=True, slots=True)
class TrialRecord:
    """What is needed to end a trial."""

    profile: str
    instance: str
    started_at: str
    path: str
    """The file that keeping writes."""
    after: str
    """The text that keeping writes there."""
    previous: Launch | None
    """What ran before; ``None`` if nothing did."""
    owner: ProcessIdentity
    """The gpubox that tries. If it dies first, the watcher ends the trial."""


def recent_restarts(state: InstanceState, at: datetime | None = None) -> tuple[str, ...]:
    """The restarts of the last RESTART_SECONDS."""
    since = (at or datetime.now(UTC)) - timedelta(seconds=RESTART_SECONDS)

    def is_recent(when: str) -> bool:
        try:
            return datetime.fromisoformat(when) > since
        except ValueError:
            return False

    return tuple(filter(is_recent, state.restarts))


def load_state(path: Path) -> InstanceState:
    """The state in ``path``. Without a file it is empty; a damaged file also gives an empty state, and a message."""
    try:
        return _state_of(read_text(path, STATE_BYTES))
    except FileNotFoundError:
        return InstanceState()
    except RECORD_ERRORS as error:
        reason = error.strerror if isinstance(error, NotRegularFile) else type(error).__name__
        return InstanceState(message=f"The state file {path} was damaged ({reason}).")


@lru_cache(maxsize=16)  # the screen asks twice a second, and the text is nearly always the same
def _state_of(text: str) -> InstanceState:
    values = read_json(text, own=True)
    values.pop("schema_version", None)
    return cast(InstanceState, decoded(InstanceState, values))


def pending_trial(paths: Paths) -> TrialRecord | None:
    """The trial that has not ended, under way or interrupted. A damaged record is none."""
    return read_record(TrialRecord, paths.trial_record)


def save_state(path: Path, state: InstanceState) -> None:
    """Writes ``state`` atomically, readable by the owner only. Raises GpuboxError if that fails.

    On a full disk it overwrites the existing file, if that is large enough: an up-to-date record matters more than an
    atomic write. During an operation it does not wait for the disk: no server and no operation outlives the machine.
    """
    text = json.dumps({"schema_version": SCHEMA, **asdict(state)}, indent=1).encode()
    try:
        write_atomically(path, text, wait=state.operation is None)
    except OSError as error:
        if error.errno in _DISK_FULL and _overwrite(path, text):
            return
        raise GpuboxError(f"The state file {path} cannot be written: {error.strerror}.", disk_hint(error)) from None


def disk_hint(error: OSError) -> str:
    """What the owner can do about a state folder that cannot be written."""
    if error.errno == errno.EROFS:
        return "Its file system is mounted read-only: `dmesg` may show why. `gpubox stop` still works."
    return f"{'Free some disk space' if error.errno in _DISK_FULL else 'Make its folder writable'}, then try again."


def _overwrite(path: Path, text: bytes) -> bool:
    """Writes ``text`` over the existing blocks of the file, padded with blanks. Returns whether it fits."""
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
        try:
            status = os.fstat(descriptor)
            if len(text) > max(status.st_size, status.st_blocks * 512):
                return False
            os.pwrite(descriptor, text.ljust(status.st_size), 0)
            with contextlib.suppress(OSError):
                os.fsync(descriptor)
        finally:
            os.close(descriptor)
    except OSError:
        return False
    return True


@cache  # each annotation is compiled
def _fields_of(kind: type) -> dict[str, Any]:
    return get_type_hints(kind)


def decoded(kind: Any, value: Any) -> Any:
    """``value``, which ``asdict`` and JSON made, as the type that an annotation names.

    Raises TypeError, ValueError, KeyError or AttributeError if it is something else.
    """
    arguments = get_args(kind)
    if is_dataclass(kind):
        kinds = _fields_of(cast(type, kind))
        return kind(**{name: decoded(kinds[name], each) for name, each in value.items()})  # type: ignore[operator]
    if get_origin(kind) is UnionType:
        return None if value is None else decoded(arguments[0], value)
    if get_origin(kind) is Mapping:
        return {name: decoded(arguments[1], each) for name, each in value.items()}
    if get_origin(kind) is tuple and isinstance(value, list):
        each_kind = arguments[:1] * len(value) if arguments[-1] is Ellipsis else arguments
        return tuple(decoded(of, item) for of, item in zip(each_kind, value, strict=True))
    if not isinstance(value, (int, float) if kind is float else kind):
        raise TypeError(f"{value!r} is no {kind}")
    return value


def read_record(kind: type[T], path: Path) -> T | None:
    """What ``asdict`` and JSON wrote there; ``None`` if there is no file, or a damaged one."""
    try:
        return cast(T, decoded(kind, read_json(read_text(path, STATE_BYTES), own=True)))
    except RECORD_ERRORS:
        return None


def save_launch_record(log: Path, running: RunningServer) -> None:
    """Writes which launch the log is of. Never raises: a start does not fail for it."""
    with contextlib.suppress(OSError):
        values = {"log_inode": log.stat().st_ino, "running": asdict(running)}
        write_atomically(record_path(log), json.dumps(values).encode())


def read_launch_record(log: Path) -> RunningServer | None:
    """The launch that wrote this log; None if that is not certain."""
    try:
        values = read_json(read_text(record_path(log), STATE_BYTES), own=True)
        # A kill between two renames leaves a record beside the wrong log.
        is_of_log = values["log_inode"] == log.stat().st_ino
        return cast(RunningServer, decoded(RunningServer, values["running"])) if is_of_log else None
    except RECORD_ERRORS:
        return None


def recorded_launches(folder: Path, *, rotated: bool = True) -> list[tuple[Path, RunningServer]]:
    """The logs whose launch is known, the newest of each instance first; ``rotated``: those of earlier launches too."""
    logs = sorted(path.with_suffix("") for path in folder.glob("*.log*.launch" if rotated else "*.log.launch"))
    return [(log, running) for log in logs if (running := read_launch_record(log)) is not None]


@dataclass(frozen=True, slots=True)
class GatewayRecord:
    """One running gateway."""

    process: ProcessIdentity
    host: str
    port: int
    token: str
    """For /gpubox/... : whoever can read the owner's files may control the gateway."""
    started_at: str

    @property
    def base_url(self) -> str:
        """The address at which this machine reaches it."""
        return local_url(self.host, self.port)


def load_gateway(paths: Paths) -> GatewayRecord | None:
    """The gateway that runs now; None if none does. Reads one file, and asks the kernel whether its process lives."""
    record = read_record(GatewayRecord, paths.gateway_record)
    return record if record and is_alive(record.process) else None


def save_gateway(paths: Paths, record: GatewayRecord) -> None:
    """Writes the record, readable by the owner only. Raises OSError."""
    write_atomically(paths.gateway_record, json.dumps(asdict(record)).encode())
