"""Measures what runs before a trial and the tried server, in about a minute, and compares both.

Each side is one server start, so the difference between two starts of the same server is part of the error
which no single start shows: only past runs of both tell more.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
import time

from gpubox.bench.compare.words import change_tells
from gpubox.bench.events import Emit, ignore_event
from gpubox.bench.model import Plan, Target
from gpubox.bench.plan_runner import PlanRunner
from gpubox.bench.report.run_comparison import RunComparison
from gpubox.bench.run_store import Run, find_run
from gpubox.bench.target_server import no_profile
from gpubox.children import own_program
from gpubox.config import Config, api_key, load_config
from gpubox.errors import GpuboxError
from gpubox.paths import Paths
from gpubox.profiles.profile import Profile
from gpubox.server.client import connect
from gpubox.server.instance import observe
from gpubox.server.state import Launch
from gpubox.storage import read_json

SIDE_SECONDS = 25.0
"""The time that the measurement of one side shall take."""
_PROMPTS, _REPEATS, _WARMUPS = 2, 3, 1
"""Of the preset ``quick``."""
_MIN_TOKENS, _MAX_TOKENS = 16, 256
_CALIBRATION_TOKENS = 16
_POLL_SECONDS, _STOP_SECONDS = 0.1, 5.0


async def tokens_per_answer(launch: Launch, paths: Paths) -> int:
    """The length of answers with which a side takes about SIDE_SECONDS on this server. Raises GpuboxError."""
    async with connect(launch.base_url, api_key(paths)) as client:
        message = [{"role": "user", "content": "Count from 1 to 100."}]
        began = time.monotonic()
        await client.chat(message, max_tokens=_CALIBRATION_TOKENS)  # the first answer after a start is slower
        seconds = time.monotonic() - began
    answers = _PROMPTS * (_REPEATS + _WARMUPS)
    return max(_MIN_TOKENS, min(_MAX_TOKENS, int(SIDE_SECONDS / answers * _CALIBRATION_TOKENS / max(seconds, 1e-3))))


async def measure_side(launch: Launch, tokens: int, paths: Paths, config: Config, emit: Emit = ignore_event) -> Run:
    """A stored speed run of the server that ``launch`` describes. It restarts nothing. Raises GpuboxError."""
    options = {"preset": "quick", "max_tokens": tokens, "repeats": _REPEATS}
    plan = Plan("speed", (Target(launch.profile, url=launch.base_url, model=launch.profile),), options)
    info = await PlanRunner(paths, config, no_profile, emit).run(plan)
    return find_run(paths, info.id)


async def measure_running(
    instance: str, tokens: int, paths: Paths, config: Config, emit: Emit = ignore_event
) -> tuple[Run, int] | None:
    """Measures the server of ``instance``; None if none answers. Returns the stored run and the tokens of each answer.

    ``tokens``: 0 chooses them. Raises GpuboxError.
    """
    running = observe(paths, instance).running
    if running is None or not running.ready_at:
        return None
    tokens = tokens or await tokens_per_answer(running.launch, paths)
    return await measure_side(running.launch, tokens, paths, config, emit), tokens


def measure_apart(instance: str, tokens: int, paths: Paths, stop: threading.Event) -> tuple[Run, int]:
    """Measures a server in a process of its own: drawing the screen would disturb the measurement.

    ``stop`` ends it. Raises GpuboxError if it fails or was stopped.
    """
    command = own_program("gpubox.bench.trial_measurement", *paths.arguments, instance, str(tokens))
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as process:
        while process.poll() is None:  # its stdin stays open: it ends when this process dies
            if stop.wait(_POLL_SECONDS):
                process.send_signal(signal.SIGINT)  # the run is stored as interrupted
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.wait(_STOP_SECONDS)
                process.kill()
                raise GpuboxError("stopped")
        assert process.stdout
        output = process.stdout.read()
    try:
        values = read_json(output, own=True)
    except ValueError:
        raise GpuboxError(f"the measurement ended with code {process.returncode}") from None
    if "error" in values:
        raise GpuboxError(str(values["error"]), str(values["hint"]))
    return find_run(paths, str(values["run"])), int(values["tokens"])


def main() -> None:
    """The process of ``measure_apart``. Prints one JSON object.

    Arguments: ``CONFIG STATE CACHE CONFIG_FILE INSTANCE TOKENS``. It ends when its standard input is closed, so that
    it does not outlive a gpubox that was killed.
    """
    *folders, instance, tokens = sys.argv[1:]
    paths = Paths.from_arguments(*folders)

    def end_with_parent() -> None:
        sys.stdin.buffer.read()
        os._exit(1)

    threading.Thread(target=end_with_parent, daemon=True).start()
    try:
        measured = asyncio.run(measure_running(instance, int(tokens), paths, load_config(paths)))
        if measured is None:
            raise GpuboxError("No server answers that could be measured.")
        values: dict[str, object] = {"run": measured[0].id, "tokens": measured[1]}
    except GpuboxError as error:
        values = {"error": error.message, "hint": error.hint}
    except KeyboardInterrupt:
        sys.exit(130)
    sys.stdout.write(json.dumps(values))


def summarize(comparison: RunComparison, before: Profile, after: Profile, ran: str) -> str:
    """About tg: faster, slower, equal, or that one start of each cannot tell it, and what does.

    ``before`` and ``after``: the profile without and with the change. ``ran``: the profile that ran before the trial.
    """
    row = next((row for row in comparison.rows if row.name == "tg"), None)
    if row is None or row.ratio is None:
        return "The speed could not be compared."
    if ran != before.name:
        return (
            f"What the change does to the speed is not known, because {ran} ran before: tg {row.second:.1f} with the "
            f"change. {change_tells(before, after, row.second)}"
        )
    figures = f"tg {row.first:.1f} before, {row.second:.1f} after"
    if row.outcome in ("better", "worse"):
        return f"The change is {'faster' if row.outcome == 'better' else 'slower'}: {figures}."
    if row.outcome == "equal":
        return f"Both are equally fast, within {100 * (row.within or 0):.0f} %: {figures}."
    return (
        "Whether the change is faster cannot be told from one start of each, because one start of a server is faster "
        f"than the next: {figures}. {change_tells(before, after, min(row.first, row.second))}"
    )
