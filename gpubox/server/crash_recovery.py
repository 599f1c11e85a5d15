"""After a server died: the post-mortem file, and the decision whether to restart the server.

The watcher beside the server uses both; the screen uses them to report the crash. Restarts are bounded: MAX_RESTARTS
within RESTART_SECONDS, and never while a GPU is lost.
"""

from __future__ import annotations

from datetime import datetime
from pathlib import Path

from gpubox import units
from gpubox.clock import utc_now
from gpubox.config import api_key
from gpubox.hardware.gpu import DriverReading, Gpu
from gpubox.paths import Paths
from gpubox.profiles.argv import command_line
from gpubox.profiles.profile import is_loopback
from gpubox.server.failure_causes import FailureKind
from gpubox.server.instance import InstanceView, cause_of
from gpubox.server.log import fold_repeats, tail_text
from gpubox.server.state import RESTART_SECONDS, RunningServer, recent_restarts
from gpubox.storage import write_atomically

MAX_RESTARTS = 3
LAST_LINES = 60
LOG_BYTES = 4 * 1024 * 1024


def write_post_mortem(paths: Paths, view: InstanceView, driver: DriverReading, last_minute: str = "") -> Path | None:
    """Writes how the instance's server died, once for each launch. Returns the file; ``None`` if no server died.

    ``last_minute``: readings of the last minute as text. The file contains no API key, because neither command line
    nor log does. Never raises OSError.
    """
    dead = view.state.running
    if not view.crashed or dead is None:
        return None
    path = paths.crashes / f"{dead.launch.profile}-{dead.launch_id[:8]}.txt"
    if path.exists():
        return path
    try:
        write_atomically(path, _post_mortem(paths, view, dead, driver, last_minute).encode(errors="replace"))
    except OSError:
        return None
    return path


def _post_mortem(paths: Paths, view: InstanceView, dead: RunningServer, driver: DriverReading, last_minute: str) -> str:
    cause = cause_of(paths, view.instance, dead.process)
    cards = [f"GPU {gpu.index}{f' {gpu.name}' if gpu.name else ''}: {_memory_use(gpu)}" for gpu in driver.gpus]
    log = tail_text(paths.instance_log(view.instance), LOG_BYTES)
    parts = [
        f"{dead.launch.profile} died. Noticed {utc_now()}; started {dead.started_at}.",
        f"Cause: {cause.sentence}. {cause.hint}".rstrip(),
        f"Log line: {cause.line}" if cause.line else "",
        f"Engine: {dead.launch.engine_path} {dead.launch.engine_version}",
        f"Command: {command_line(dead.launch.argv)}",
        "\n".join([*cards, driver.problem]).strip(),
        last_minute,
        f"The last {LAST_LINES} lines of its log:",
        "\n".join(list(fold_repeats(log.splitlines()))[-LAST_LINES:]),
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


def _memory_use(gpu: Gpu) -> str:
    if gpu.lost:
        return "LOST"
    return f"{units.memory(gpu.vram_used_bytes)} of {units.memory(gpu.vram_total_bytes)} in use"


def restart_refusal(paths: Paths, view: InstanceView, driver: DriverReading, at: datetime | None = None) -> str | None:
    """Why the dead server is not restarted; ``""`` if none died or its profile wants no restart. ``None``: restart it.

    Raises GpuboxError if the key file cannot be used.
    """
    dead = view.state.running
    if not view.crashed or dead is None or not dead.launch.restart:
        return ""
    if any(gpu.lost for gpu in driver.gpus):
        return "It is not restarted: a GPU is lost."
    if cause_of(paths, view.instance, dead.process).kind is FailureKind.STOPPED:
        return "It is not restarted: it was stopped from outside gpubox."
    if dead.has_api_key and api_key(paths) is None and not is_loopback(dead.launch.host):
        return "It is not restarted: it was started with an API key that gpubox no longer has."
    if len(recent_restarts(view.state, at)) >= MAX_RESTARTS:
        return f"It is not restarted: it died {MAX_RESTARTS} times in {RESTART_SECONDS // 60} minutes."
    return None
