"""The status of one server: what is on record, whether the process lives, what it answers; and the key it gets."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from urllib.parse import urlsplit

from gpubox.address import origin, server_root
from gpubox.concurrency import run_in_thread
from gpubox.config import Config, api_key, read_key_file
from gpubox.errors import UsageError
from gpubox.hardware.process import port_owner, process_argv
from gpubox.paths import Paths
from gpubox.profiles.profile import is_loopback
from gpubox.server.instance import InstanceView, instance_names, observe
from gpubox.server.log import truncate_log
from gpubox.server.responses import Slot, context_size
from gpubox.server.state import Launch
from gpubox.storage import read_json

_PROPS_BYTES = 8 * 1024 * 1024
DENIED = "It needs an API key that gpubox does not have."


@dataclass(frozen=True, slots=True)
class ServerStatus:
    """One server now. ``None`` is unknown."""

    instance: str | None
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
    """Who else can reach it: ``LAN, no key`` or ``LAN, key``; empty on loopback."""
    has_api_key: bool = False
    """Whether gpubox started it with an API key."""
    message: str = ""
    operation: str = ""
    """What another gpubox is doing to it: ``switch b: load, asked by opencode``."""
    slots: tuple[Slot, ...] | None = None

    @property
    def up(self) -> bool:
        """Whether it answers requests."""
        return self.state in ("ready", "answering")


def can_sleep(argv: Sequence[str]) -> bool:
    """Whether a server with this command line frees its memory when idle. Asking /slots would wake it."""
    return any("sleep-idle-seconds" in word for word in argv)


def can_sleep_at(base_url: str) -> bool:
    """Whether the server at ``base_url`` runs on this machine and can sleep. Blocks."""
    parts = urlsplit(base_url)
    if not is_loopback(parts.hostname or "") or parts.port is None:
        return False
    owner = port_owner(parts.port)
    return bool(owner and owner.pid and can_sleep(process_argv(owner.pid)))


async def read_status(paths: Paths, config: Config, instance: str) -> ServerStatus:
    """The status of ``instance``. Asks the server over HTTP only if its process is alive.

    Cuts the server's log if it is too long.
    """
    await run_in_thread(truncate_log, paths.instance_log(instance))
    view = await run_in_thread(observe, paths, instance)
    if view.running is None:
        return _not_running(view)
    from gpubox.server.client import connect  # imported only if there is a server to ask

    launch = view.running.launch
    async with connect(launch.base_url, api_key(paths), timeout=2.0) as client:
        health = await client.health()
        slots = await client.slots() if health.status == "ok" and not can_sleep(launch.argv) else None
    is_busy = any(slot.busy for slot in slots or ())
    state = health.status if health.status != "ok" else "answering" if is_busy else "ready"
    return status_from_view(view, state, slots, denied=client.denied)


def status_from_view(
    view: InstanceView, state: str, slots: Sequence[Slot] | None = None, *, denied: bool = False
) -> ServerStatus:
    """The status that follows from ``view`` and from what the server answered (``state``, ``slots``, ``denied``)."""
    if view.running is None:
        return _not_running(view)
    launch = view.running.launch
    if view.operation and "stop" in (view.operation.kind, view.operation.step):
        state = "stopping"
    elif state == "unreachable" and view.running.ready_at is None:
        state = "loading"  # it does not listen yet
    return ServerStatus(
        instance=view.instance,
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
        has_api_key=view.running.has_api_key,
        message=view.message or (DENIED if denied else ""),
        operation=_operation(view),
        slots=tuple(slots) if slots is not None else None,
    )


def exposure(launch: Launch, *, has_api_key: bool) -> str:
    """Who can reach the launch's port; empty for this machine only."""
    if is_loopback(launch.host):
        return ""
    return "LAN, key" if has_api_key else "LAN, no key"


def _not_running(view: InstanceView) -> ServerStatus:
    state = "crashed" if view.crashed else "stopped"
    if view.operation:
        state = "stopping" if view.operation.kind == "stop" else "loading"
    return ServerStatus(
        instance=view.instance,
        state=state,
        profile=view.operation.profile if view.operation else None,
        message=view.message,
        operation=_operation(view),
    )


def _operation(view: InstanceView) -> str:
    operation = view.operation
    if operation is None:
        return ""
    asked_by = f", asked by {operation.asked_by}" if operation.asked_by else ""
    return f"{operation.kind} {operation.profile}".rstrip() + f": {operation.step}{asked_by}"


def api_key_for(paths: Paths, config: Config, url: str) -> str | None:
    """The key for the server at ``url`` (a server root); ``None`` to send none. Reads files and /proc.

    In this order: ``$GPUBOX_URL_KEY``; the file that ``[keys]`` in config.toml names for this address; the box's own
    key, if a server that gpubox started has this address. Raises UsageError for a key file that others can read.
    """
    if given := os.environ.get("GPUBOX_URL_KEY", "").strip():
        return given
    wanted = origin(url)
    for address, path in config.keys.items():
        try:
            root = server_root(address)
        except UsageError as error:
            raise UsageError(f"[keys] in config.toml: {error.message}", error.hint) from None
        if origin(root) == wanted:
            return read_key_file(path)
    views = (observe(paths, name) for name in instance_names(paths))
    is_ours = any(view.running and origin(view.running.launch.base_url) == wanted for view in views)
    return api_key(paths) if is_ours else None


def context_of(paths: Paths, config: Config, url: str) -> int | None:
    """Tokens of one slot of the server at ``url``, as it says; ``None`` if it does not answer. Blocks, for a second."""
    from gpubox.server.http_get import ConnectionPool, NoResponse  # http.client: `status` alone does without it

    try:
        key = api_key_for(paths, config, url)
        pool = ConnectionPool(url, {"Authorization": f"Bearer {key}"} if key else {}, 1.0)
        status, body = pool.get("/props", _PROPS_BYTES)
        pool.close()
        return context_size(read_json(body)) if status == 200 else None
    except (NoResponse, UsageError, ValueError):
        return None
