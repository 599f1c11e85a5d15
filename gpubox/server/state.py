"""What gpubox remembers of a server on disk: enough to find it, to say why it is gone, and to start it again."""

from __future__ import annotations

import contextlib
import errno
import json
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from gpubox.errors import GpuboxError
from gpubox.hardware.process import ProcessIdentity
from gpubox.storage import NotRegularFile, read_text, write_atomically

SCHEMA = 1
STATE_BYTES = 4 * 1024 * 1024
RESTART_SECONDS = 15 * 60
"""A restart counts for so long."""
_FULL = {errno.ENOSPC, errno.EDQUOT}


@dataclass(frozen=True, slots=True)
class Launch:
    """One exact launch: what was run, not what the profile says today. Started again as it stands by a rollback."""

    profile: str
    argv: tuple[str, ...]
    """The whole command line, binary first. Never holds a key."""
    host: str
    port: int
    env: Mapping[str, str] = field(default_factory=dict)
    """What the profile adds to the environment."""
    engine: str = ""
    engine_path: str = ""
    engine_version: str = ""
    model_path: str | None = None
    model_bytes: int | None = None
    restart: bool = False
    """Whether the profile wants it started again when it dies."""
    layers: int | None = None
    """Trunk layers of the model, from its GGUF (``block_count`` without the MTP blocks)."""
    has_experts: bool = False
    embeddings: bool = False
    """Proven by an embedding instead of a token."""

    @property
    def base_url(self) -> str:
        """Where this machine reaches it."""
        host = self.host.strip("[]")
        host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)
        return f"http://[{host}]:{self.port}" if ":" in host else f"http://{host}:{self.port}"


@dataclass(frozen=True, slots=True)
class RunningServer:
    """One launch that was made. ``process`` is ``None`` between the decision and the fork."""

    launch: Launch
    launch_id: str
    started_at: str
    process: ProcessIdentity | None = None
    ready_at: str | None = None
    """When it answered its first token; ``None``: it never has."""
    load_seconds: float | None = None
    loaded_vram: tuple[tuple[int, int], ...] = ()
    """``(GPU index, bytes)`` in use when it was proven: its own where the driver tells, else the whole card's."""
    probe_tokens: tuple[int, int] = (0, 0)
    """Prompt and generated tokens of gpubox's own proof: no client's, so no total counts them."""
    keyed: bool = False
    """Whether it was started with an API key, whatever the key file says today."""
    whole_card_gpus: tuple[int, ...] = ()
    """The GPU indexes for which ``loaded_vram`` is the whole card's use."""


@dataclass(frozen=True, slots=True)
class Operation:
    """What a gpubox is doing to this slot."""

    kind: str
    profile: str
    step: str
    owner: ProcessIdentity
    since: str


@dataclass(frozen=True, slots=True)
class LaunchFailure:
    """The last launch of a slot that failed or died; its log is kept beside the slot's."""

    profile: str
    launch_id: str
    at: str
    sentence: str
    hint: str = ""
    line: str = ""


@dataclass(frozen=True, slots=True)
class InstanceState:
    """The whole file of one slot."""

    running: RunningServer | None = None
    operation: Operation | None = None
    last_good: Launch | None = None
    """The last launch that was proven."""
    message: str = ""
    """Why nothing runs, in a sentence."""
    restarts: tuple[str, ...] = ()
    """When it was started again after a crash, lately: ISO-8601 UTC."""
    failed: LaunchFailure | None = None
    damaged: bool = False
    """The file could not be read: what it said is lost."""


def utc_now() -> str:
    """This instant, ISO-8601 UTC to the millisecond."""
    return datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def recent_restarts(state: InstanceState, at: datetime | None = None) -> tuple[str, ...]:
    """The restarts of ``state`` that still count."""
    since = (at or datetime.now(UTC)) - timedelta(seconds=RESTART_SECONDS)
    return tuple(when for when in state.restarts if _is_after(when, since))


def _is_after(when: str, since: datetime) -> bool:
    try:
        return datetime.fromisoformat(when) > since
    except ValueError:
        return False


def load_state(path: Path) -> InstanceState:
    """The state in ``path``. An absent file is an empty state; a damaged one too, with a message that says so."""
    try:
        values = json.loads(read_text(path, STATE_BYTES))
        return _state(values)
    except FileNotFoundError:
        return InstanceState()
    except (OSError, ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        why = error.strerror if isinstance(error, NotRegularFile) else type(error).__name__
        return InstanceState(message=f"The state file {path} was damaged ({why}).", damaged=True)


def save_state(path: Path, state: InstanceState) -> None:
    """Writes ``state`` atomically, readable by the owner only. Raises GpuboxError when the disk refuses.

    On a full disk it is written into the space that the file has already, where that is enough: it is better that
    a stop is on record than that the record is written in one step.
    """
    text = json.dumps({"schema_version": SCHEMA, **asdict(state)}, indent=1).encode()
    try:
        write_atomically(path, text)
    except OSError as error:
        if error.errno in _FULL and _overwritten(path, text):
            return
        raise GpuboxError(f"The state file {path} cannot be written: {error.strerror}.", disk_hint(error)) from None


def disk_hint(error: OSError) -> str:
    """What the owner can do about a state folder that refuses."""
    if error.errno == errno.EROFS:
        return "Its file system is mounted read-only: `dmesg` may say why. `gpubox stop` works all the same."
    return f"{'Free some disk space' if error.errno in _FULL else 'Make its folder one to write in'}, then try again."


def _overwritten(path: Path, text: bytes) -> bool:
    """Whether ``text`` could be written over the blocks that the file holds; blanks fill what is left of it."""
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
        try:
            found = os.fstat(descriptor)
            if len(text) > max(found.st_size, found.st_blocks * 512):
                return False
            os.pwrite(descriptor, text.ljust(found.st_size), 0)
            with contextlib.suppress(OSError):
                os.fsync(descriptor)
        finally:
            os.close(descriptor)
    except OSError:
        return False
    return True


def _state(values: dict[str, Any]) -> InstanceState:
    running, operation, last = values.get("running"), values.get("operation"), values.get("last_good")
    failed = values.get("failed")
    return InstanceState(
        running=_running(running) if running else None,
        operation=Operation(**{**operation, "owner": ProcessIdentity(**operation["owner"])}) if operation else None,
        last_good=_launch(last) if last else None,
        message=str(values.get("message", "")),
        restarts=tuple(str(at) for at in values.get("restarts", ())),
        failed=LaunchFailure(**failed) if failed else None,
    )


def _running(values: dict[str, Any]) -> RunningServer:
    process = values.get("process")
    vram = tuple((int(index), int(used)) for index, used in values.get("loaded_vram", ()))
    whole = tuple(int(index) for index in values.get("whole_card_gpus", ()))
    parts = {"launch": _launch(values["launch"]), "process": ProcessIdentity(**process) if process else None}
    proof = tuple(int(count) for count in values.get("probe_tokens", (0, 0)))
    return RunningServer(**{**values, **parts, "loaded_vram": vram, "whole_card_gpus": whole, "probe_tokens": proof})


def _launch(values: dict[str, Any]) -> Launch:
    if not isinstance(values["host"], str) or not isinstance(values["port"], int):
        raise TypeError("host or port")
    return Launch(**{**values, "argv": tuple(values["argv"]), "env": dict(values["env"])})
