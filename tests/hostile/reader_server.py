"""Runs verbs and the screen for ``test_text_from_outside``, each in a process of its own, forked without new imports.

Reads a request a line (JSON: env, words, seconds) and answers with one: exit code, output, CPU seconds, memory.
"""

from __future__ import annotations

import asyncio
import gc
import json
import os
import resource
import sys
import tempfile
import time
from typing import Any

MOST_MEMORY = 4 << 30
"""A reader without a limit ends here, not the machine."""
SCREEN = "<screen>"


def perform(words: list[str]) -> int:
    """One verb; or SCREEN, with the recording to replay."""
    if words[0] != SCREEN:
        from gpubox.cli.main import run

        return run(words)
    from gpubox.errors import GpuboxError

    try:
        return asyncio.run(screen(words[1:]))
    except GpuboxError as error:
        print(error)
        return 2


async def screen(words: list[str]) -> int:
    """Opens the screen, goes through its parts and leaves."""
    from pathlib import Path

    from gpubox.config import load_config
    from gpubox.paths import Paths
    from gpubox.tui.app import GpuboxApp
    from gpubox.tui.replay_services import open_recording
    from gpubox.tui.services import LocalServices

    paths = Paths.default()
    config = load_config(paths)
    services = open_recording(Path(words[0]), paths, config) if words else LocalServices(paths, config, None)
    app = GpuboxApp(services)
    async with app.run_test(size=(100, 30), notifications=True) as pilot:
        until = time.monotonic() + 10
        while time.monotonic() < until and not (
            app.bridge.entries and app.bridge.overview and app.bridge.poller.newest
        ):
            await asyncio.sleep(0.02)
        for key in ("t", "v", "l", "c", "escape", "B", "escape", "C", "escape", "question_mark", "escape"):
            await pilot.press(key)
        await asyncio.sleep(0.2)
        print("said:", *app._said, app.crash, sep="\n")
    return 70 if app.crash or app._said else 0


def answer(request: dict[str, Any]) -> dict[str, Any]:
    """Runs one request in a child."""
    with tempfile.TemporaryFile() as output:
        began = time.monotonic()
        pid = os.fork()
        if not pid:
            code = 99
            try:
                resource.setrlimit(resource.RLIMIT_AS, (MOST_MEMORY, MOST_MEMORY))
                os.environ.update(request["env"])
                null = os.open("/dev/null", os.O_RDWR)
                os.dup2(null, 0)
                os.dup2(output.fileno(), 1)
                os.dup2(output.fileno(), 2)
                code = perform(request["words"])
                sys.stdout.flush()
                sys.stderr.flush()
            except BaseException:
                import traceback

                traceback.print_exc()
                sys.stderr.flush()
            finally:
                os._exit(code)
        pause, ended = 0.002, 0
        while not ended and time.monotonic() - began < request["seconds"]:
            time.sleep(pause)
            ended, status, usage = os.wait4(pid, os.WNOHANG)
        if not ended:
            os.kill(pid, 9)
            _, status, usage = os.wait4(pid, 0)
        output.seek(0)
        text = output.read(4_000_000).decode(errors="replace")
    return {
        "code": os.waitstatus_to_exitcode(status), "ended": bool(ended), "output": text,
        "cpu": usage.ru_utime + usage.ru_stime, "memory": usage.ru_maxrss * 1024,
    }  # fmt: skip


def main() -> None:
    import httpx  # noqa: F401
    import msgspec  # noqa: F401
    import textual.app  # noqa: F401
    import tomlkit  # noqa: F401
    import yaml  # noqa: F401

    import gpubox.agent.chat
    import gpubox.cli.main
    import gpubox.planner.planner
    import gpubox.telemetry.sampler
    import gpubox.tui.app  # noqa: F401

    gc.freeze()
    for line in sys.stdin:
        print(json.dumps(answer(json.loads(line))), flush=True)


if __name__ == "__main__":
    main()
