"""What runs now, as one value: the record, the process, and what the server itself answers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from gpubox.config import Config, api_key
from gpubox.hardware.process import port_owner, process_argv
from gpubox.paths import Paths
from gpubox.profiles.profile import is_loopback
from gpubox.server.instance import InstanceView, observe
from gpubox.server.log_truncation import truncate_log
from gpubox.server.other_server import LLAMA, OtherServerReading
from gpubox.server.responses import Slot
from gpubox.server.state import Launch
from gpubox.threads import run_in_thread

if TYPE_CHECKING:
    from gpubox.server.client import LlamaClient

DENIED = "It wants an API key that gpubox does not have."


@dataclass(frozen=True, slots=True)
class ServerStatus:
    """One server now. ``None`` is unknown."""

    slot: str | None
    """``None`` for a server that gpubox did not start."""
    state: str
    """stopped | loading | ready | answering | stopping | unreachable | error | crashed"""
    profile: str | None = None
    pid: int | None = None
    base_url: str | None = None
    model_path: str | None = None
    engine_path: str | None = None
    engine_version: str | None = None
    started_at: str | None = None
    load_seconds: float | None = None
    exposed: str = ""
    """Empty on loopback; else who can reach it: ``LAN, no key`` or ``LAN, key``."""
    message: str = ""
    operation: str = ""
    """What another gpubox is doing to it: ``switch to b: load``."""
    slots: tuple[Slot, ...] | None = None

    @property
    def up(self) -> bool:
        """Whether it answers requests."""
        return self.state in ("ready", "answering")


def can_sleep(argv: Sequence[str]) -> bool:
    """Whether a server of this command line lets go of its memory when idle: asking /slots would wake it."""
    return any("sleep-idle-seconds" in word for word in argv)


def can_sleep_at(base_url: str) -> bool:
    """Whether the program at ``base_url`` is one of this machine whose command line lets it sleep. Blocks."""
    parts = urlsplit(base_url)
    if not is_loopback(parts.hostname or "") or parts.port is None:
        return False
    owner = port_owner(parts.port)
    return bool(owner and owner.pid and can_sleep(process_argv(owner.pid)))


async def read_status(paths: Paths, config: Config, slot: str) -> ServerStatus:
    """The server of ``slot`` as it is now. Asks it over HTTP only where its process lives."""
    view = await run_in_thread(_look, paths, slot)
    if view.running is None:
        return _gone(view)
    from gpubox.server.client import connect  # httpx only where there is a server to ask

    launch = view.running.launch
    async with connect(launch.base_url, api_key(paths), timeout=2.0) as client:
        state, found = await _ask(client, not can_sleep(launch.argv))
    return status_from_view(view, state, found, denied=client.denied)


def status_from_view(
    view: InstanceView, state: str, found: tuple[Slot, ...] | None = None, *, denied: bool = False
) -> ServerStatus:
    """The status that a view and what the server answered come to; ``state`` as its HTTP side gave it."""
    if view.running is None:
        return _gone(view)
    launch = view.running.launch
    if view.operation and "stop" in (view.operation.kind, view.operation.step):
        state = "stopping"
    elif state == "unreachable" and view.running.ready_at is None:
        state = "loading"  # it does not listen yet
    return ServerStatus(
        slot=view.slot,
        state=state,
        profile=launch.profile,
        pid=view.process.pid if view.process else None,
        base_url=launch.base_url,
        model_path=launch.model_path,
        engine_path=launch.engine_path or None,
        engine_version=launch.engine_version or None,
        started_at=view.running.started_at,
        load_seconds=view.running.load_seconds,
        exposed=exposure(launch, has_api_key=view.running.has_api_key),
        message=view.message or (DENIED if denied else ""),
        operation=_operation(view),
        slots=found,
    )


async def read_foreign_status(base_url: str, key: str | None) -> ServerStatus:
    """A server that somebody else runs, by its URL; read only."""
    from gpubox.server.client import connect
    from gpubox.server.dialect import detect_dialect, is_llama_props, read_other_server

    async with connect(base_url, key, timeout=5.0) as client:
        health = await client.health()
        props = (await client.props() if health.status == "ok" else None) or {}
        asleep = props.get("is_sleeping") is True or await run_in_thread(can_sleep_at, base_url)
        found = await client.slots() if health.status == "ok" and not asleep else None
        if not (found or client.denied or is_llama_props(props)) and health.status in ("ok", "error"):
            dialect = await detect_dialect(client)
            if dialect not in ("", LLAMA) and (other_server := await read_other_server(client, dialect)):
                return status_of_other_server(base_url, other_server, denied=client.denied)
    state = _state(health.status, found)
    message = _denied() if client.denied else ""
    if state == "unreachable":
        message = f"Nothing answers at {base_url}."
    elif state == "error":
        message = f"It answers /health with {health.detail}: that is no llama-server."
    return ServerStatus(
        slot=None,
        state=state,
        base_url=base_url,
        model_path=_text(props.get("model_path")),
        engine_version=_text(props.get("build_info")),
        slots=tuple(found) if found is not None else None,
        message=message,
    )


def status_of_other_server(base_url: str, other_server: OtherServerReading, *, denied: bool) -> ServerStatus:
    """The status of a server that is no llama-server."""
    loaded = [model.name for model in other_server.models if model.loaded]
    state = "ready" if not other_server.running_requests else "answering"
    return ServerStatus(
        slot=None,
        state=state,
        base_url=base_url,
        model_path=", ".join(loaded[:4]) or None,
        engine_version=other_server.engine,
        message=_denied() if denied else other_server.summary,
    )


def _denied() -> str:
    from gpubox.server.address import KEY_HINT

    return f"{DENIED} {KEY_HINT}"


def _look(paths: Paths, slot: str) -> InstanceView:
    truncate_log(paths.instance_log(slot))
    return observe(paths, slot)


def _text(value: object) -> str | None:
    return value if isinstance(value, str) else None


def exposure(launch: Launch, *, has_api_key: bool) -> str:
    """Who can reach the launch's port, in words; empty for this machine only."""
    if is_loopback(launch.host):
        return ""
    return "LAN, key" if has_api_key else "LAN, no key"


async def _ask(client: LlamaClient, may_ask_slots: bool) -> tuple[str, tuple[Slot, ...] | None]:
    health = await client.health()
    found = await client.slots() if health.status == "ok" and may_ask_slots else None
    return _state(health.status, found), tuple(found) if found is not None else None


def _state(health: str, slots: list[Slot] | None) -> str:
    if health != "ok":
        return health
    return "answering" if any(slot.busy for slot in slots or ()) else "ready"


def _gone(view: InstanceView) -> ServerStatus:
    state = "crashed" if view.crashed else "stopped"
    if view.operation:
        state = "stopping" if view.operation.kind == "stop" else "loading"
    profile = view.operation.profile if view.operation else None
    return ServerStatus(slot=view.slot, state=state, profile=profile, message=view.message, operation=_operation(view))


def _operation(view: InstanceView) -> str:
    operation = view.operation
    return f"{operation.kind} {operation.profile}".rstrip() + f": {operation.step}" if operation else ""
