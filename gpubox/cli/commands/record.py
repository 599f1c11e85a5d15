"""``gpubox record FILE``."""

from __future__ import annotations

import asyncio
import contextlib
import time
from pathlib import Path

import click

from gpubox import __version__, units
from gpubox.cancellation import run_cancellable
from gpubox.cli import diagnostics, output
from gpubox.cli.context import Context, server_url
from gpubox.cli.options import PlainHelpOption, json_option, url_option
from gpubox.errors import GpuboxError
from gpubox.telemetry.recorder import Recorder
from gpubox.telemetry.sampler import Sampler

PERIOD_SECONDS = 0.25
"""The screen's interval, too."""


@click.command("record")
@click.argument("file", type=click.Path(path_type=Path))
@click.option(
    "--seconds",
    type=click.FloatRange(min=0, min_open=True),
    metavar="N",
    cls=PlainHelpOption,
    help="Stop after N seconds.",
)
@url_option
@json_option
@click.pass_obj
def command(context: Context, file: Path, seconds: float | None, url: str | None, as_json: bool) -> None:
    """Record all readings into FILE, four times a second, until Ctrl-C.

    `gpubox --replay FILE` plays them on the screen. The file has numbers, paths (the home folder as ~) and the server's
    state; it has no prompts, answers or keys.
    """
    url = server_url(url)
    began = time.monotonic()
    with contextlib.closing(Recorder(file, __version__)) as recorder:
        if seconds is None:
            diagnostics.note(f"recording to {file}; Ctrl-C stops")
        with contextlib.suppress(KeyboardInterrupt):  # the usual way to stop
            run_cancellable(_record(context, recorder, seconds, url))
    took = time.monotonic() - began
    values = {"path": str(file.absolute()), "snapshots": recorder.count, "seconds": round(took, 3)}
    output.emit_result(f"{recorder.count} readings in {units.duration(took)}: {file}", values, as_json=as_json)
    if recorder.lost or recorder.problem:
        raise GpuboxError(
            f"The recording lacks {recorder.lost} readings: {recorder.last_problem}.", "Free some disk space."
        )


async def _record(context: Context, recorder: Recorder, seconds: float | None, url: str | None) -> None:
    from gpubox.hardware.nvml_reader import DriverReader

    with DriverReader() as driver:
        async with Sampler(context.paths, context.config, driver.latest, url=url) as sampler:
            began = due = time.monotonic()
            problem = ""
            while True:
                recorder.write(await sampler.sample())
                if recorder.problem != problem:
                    problem = recorder.problem
                    diagnostics.note(f"not recorded: {problem}" if problem else "recording again")
                due = max(due + PERIOD_SECONDS, time.monotonic())
                if seconds is not None and due >= began + seconds:
                    return
                await asyncio.sleep(due - time.monotonic())
