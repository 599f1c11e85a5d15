"""What gpubox remembers of a server on disk: enough to find it, to say why it is gone, and to start it again."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from gpubox.errors import GpuboxError
from gpubox.hardware.process import Identity

SCHEMA = 1


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
class Running:
    """One launch that was made. ``process`` is ``None`` between the decision and the fork."""

    launch: Launch
    launch_id: str
    started_at: str
    process: Identity | None = None
    proven_at: str | None = None
    """When it answered its first token; ``None``: it never has."""
    load_seconds: float | None = None
    loaded_vram: tuple[tuple[int, int], ...] = ()
    """``(GPU index, bytes)`` in use when it was proven: its own where the driver tells, else the whole card's."""
    proof_tokens: tuple[int, int] = (0, 0)
    """Prompt and generated tokens of gpubox's own proof: no client's, so no total counts them."""
    keyed: bool = False
    """Whether it was started with an API key, whatever the key file says today."""
    loaded_whole: tuple[int, ...] = ()
    """The GPU indexes for which ``loaded_vram`` is the whole card's use."""


@dataclass(frozen=True, slots=True)
class Operation:
    """What a gpubox is doing to this slot."""

    kind: str
    profile: str
    step: str
    owner: Identity
    since: str


@dataclass(frozen=True, slots=True)
class SlotState:
    """The whole file of one slot."""

    running: Running | None = None
    operation: Operation | None = None
    last_good: Launch | None = None
    """The last launch that was proven."""
    message: str = ""
    """Why nothing runs, in a sentence."""
    restarts: tuple[str, ...] = ()
    """When it was started again after a crash, lately: ISO-8601 UTC."""
    damaged: bool = False
    """The file could not be read: what it said is lost."""


def now() -> str:
    """This instant, ISO-8601 UTC to the millisecond."""
    return datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def load_state(path: Path) -> SlotState:
    """The state in ``path``. An absent file is an empty state; a damaged one too, with a message that says so."""
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
        return _state(values)
    except FileNotFoundError:
        return SlotState()
    except (OSError, ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        return SlotState(message=f"The state file {path} was damaged ({type(error).__name__}).", damaged=True)


def save_state(path: Path, state: SlotState) -> None:
    """Writes ``state`` atomically, readable by the owner only. Raises GpuboxError when the disk refuses."""
    values = {"schema_version": SCHEMA, **asdict(state)}
    import tempfile

    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        descriptor, name = tempfile.mkstemp(prefix=path.name, dir=path.parent)
        try:
            with os.fdopen(descriptor, "w", encoding="utf-8") as file:
                json.dump(values, file, indent=1)
                file.flush()
                os.fsync(file.fileno())
            Path(name).replace(path)
        except BaseException:
            with contextlib.suppress(OSError):
                Path(name).unlink()
            raise
    except OSError as error:
        raise GpuboxError(
            f"The state file {path} cannot be written: {error.strerror}.", "Free some disk space, then try again."
        ) from None


def _state(values: dict[str, Any]) -> SlotState:
    running, operation, last = values.get("running"), values.get("operation"), values.get("last_good")
    return SlotState(
        running=_running(running) if running else None,
        operation=Operation(**{**operation, "owner": Identity(**operation["owner"])}) if operation else None,
        last_good=_launch(last) if last else None,
        message=str(values.get("message", "")),
        restarts=tuple(str(at) for at in values.get("restarts", ())),
    )


def _running(values: dict[str, Any]) -> Running:
    process = values.get("process")
    vram = tuple((int(index), int(used)) for index, used in values.get("loaded_vram", ()))
    whole = tuple(int(index) for index in values.get("loaded_whole", ()))
    parts = {"launch": _launch(values["launch"]), "process": Identity(**process) if process else None}
    proof = tuple(int(count) for count in values.get("proof_tokens", (0, 0)))
    return Running(**{**values, **parts, "loaded_vram": vram, "loaded_whole": whole, "proof_tokens": proof})


def _launch(values: dict[str, Any]) -> Launch:
    if not isinstance(values["host"], str) or not isinstance(values["port"], int):
        raise TypeError("host or port")
    return Launch(**{**values, "argv": tuple(values["argv"]), "env": dict(values["env"])})
