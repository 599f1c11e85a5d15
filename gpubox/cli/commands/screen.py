"""``gpubox`` without a verb: the screen."""

from __future__ import annotations

import gc
import sys
from pathlib import Path

from gpubox.children import in_browser
from gpubox.cli import interrupts
from gpubox.cli.context import Context
from gpubox.errors import UsageError


def open_screen(context: Context, url: str | None = None, start: str | None = None, replay: Path | None = None) -> None:
    """Opens the screen. ``url`` is a server to watch, ``start`` a profile to start, ``replay`` a recording to play."""
    if not (in_browser() or (sys.stdout.isatty() and sys.stdin.isatty())):
        instead = "`gpubox demo --once` needs none." if start else "`gpubox status` prints the same."
        raise UsageError("The screen needs a terminal.", instead)
    gc.disable()  # until the first paint: collecting the imported modules would take a tenth of that time
    from gpubox.tui.run import run_app

    interrupts.raise_on_interrupt()
    run_app(context.paths, context.config, url=url, start=start, replay=replay)
