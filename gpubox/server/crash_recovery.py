"""What happens after a server died: a post-mortem file, and a restart where the profile wants one.

Used by the watcher beside the server, and by the screen to tell of it. Bounded: RESTARTS in RESTART_SECONDS, never into
a lost GPU.
"""

from __future__ import annotations

from datetime import datetime
from pathlib import Path

from gpubox import units
from gpubox.hardware.gpu import DriverReading, Gpu
from gpubox.paths import Paths
from gpubox.profiles.argv import command_line
from gpubox.profiles.profile import is_loopback
from gpubox.server.instance import InstanceView, cause_of
from gpubox.server.log import tail_text
from gpubox.server.log_folding import fold_repeats
from gpubox.server.state import RESTART_SECONDS, RunningServer, recent_restarts, utc_now
from gpubox.storage import write_atomically

MAX_RESTARTS = 3
LAST_LINES = 60
LOG_BYTES = 4 * 1024 * 1024


def write_post_mortem(paths: Paths, view: InstanceView, driver: DriverReading, series: str = "") -> Path | None:
    """Writes down how the slot's server died, once for each launch. Returns the file; ``None`` if nothing died.

    ``series`` is text about its last minute. Holds no key: keys are in no argv and no log. Never raises for the disk.
    """
    dead = view.state.running
    if not view.crashed or dead is None:
        return None
    path = paths.crashes / f"{dead.launch.profile}-{dead.launch_id[:8]}.txt"
    if path.exists():
        return path
    try:
        write_atomically(path, _text(paths, view, dead, driver, series).encode(errors="replace"))
    except OSError:
        return None
    return path


def _text(paths: Paths, view: InstanceView, dead: RunningServer, driver: DriverReading, series: str) -> str:
    cause = cause_of(paths, view.slot, dead.process)
    cards = [f"GPU {gpu.index}{f' {gpu.name}' if gpu.name else ''}: {_use(gpu)}" for gpu in driver.gpus]
    parts = [
        f"{dead.launch.profile} died. Seen {utc_now()}; started {dead.started_at}.",
        f"Cause: {cause.sentence}. {cause.hint}".rstrip(),
        f"Log line: {cause.line}" if cause.line else "",
        f"Engine: {dead.launch.engine_path} {dead.launch.engine_version}",
        f"Command: {command_line(dead.launch.argv)}",
        "\n".join([*cards, driver.problem]).strip(),
        series,
        f"The last {LAST_LINES} lines of its log:",
        "\n".join(list(fold_repeats(tail_text(paths.instance_log(view.slot), LOG_BYTES).splitlines()))[-LAST_LINES:]),
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


def _use(gpu: Gpu) -> str:
    if gpu.lost:
        return "LOST"
    return f"{units.memory(gpu.vram_used_bytes)} of {units.memory(gpu.vram_total_bytes)} in use"


def restart_refusal(
    view: InstanceView, driver: DriverReading, at: datetime | None = None, *, keyed: bool = True, told: bool = False
) -> str | None:
    """``None`` when the dead server is to be started again; else why not, in a sentence (empty: it never wanted to).

    ``keyed``: there is an API key today. A server that had one is not opened to others without. ``told``: it did not
    die by itself, somebody sent it SIGTERM.
    """
    dead = view.state.running
    if not view.crashed or dead is None or not dead.launch.restart:
        return ""
    if any(gpu.lost for gpu in driver.gpus):
        return "It is not started again: a GPU is lost."
    if told:
        return "It is not started again: it was told to stop."
    if dead.keyed and not keyed and not is_loopback(dead.launch.host):
        return "It is not started again: it was started with an API key, and there is none any more."
    if len(recent_restarts(view.state, at)) >= MAX_RESTARTS:
        return f"It is not started again: it died {MAX_RESTARTS} times in {RESTART_SECONDS // 60} minutes."
    return None
