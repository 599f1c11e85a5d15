"""The bare ``gpubox``: the screen."""

from __future__ import annotations

import gc
import sys
from pathlib import Path

from gpubox.cli import interrupts
from gpubox.cli.context import Context
from gpubox.errors import UsageError


def open_screen(context: Context, url: str | None = None, start: str | None = None, replay: Path | None = None) -> None:
    """Opens the screen; ``start`` names a profile to start in it, ``url`` a foreign server to watch.

    ``replay`` is a recording to play.
    """
    if not (sys.stdout.isatty() and sys.stdin.isatty()):
        once = "`gpubox demo --once` needs none." if start else "`gpubox status` says the same in one go."
        raise UsageError("The screen needs a terminal.", once)
    gc.disable()  # until the first paint: what is imported for it stays, and looking through it takes a tenth of it
    from gpubox.tui.app import run_app

    interrupts.hear()
    run_app(context.paths, context.config, url=url, start=start, replay=replay)
