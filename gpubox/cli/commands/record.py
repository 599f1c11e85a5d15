"""``gpubox record FILE``."""

from __future__ import annotations

import asyncio
import contextlib
import time
from pathlib import Path

import click

from gpubox import __version__, units
from gpubox.cli import diagnostics, output
from gpubox.cli.context import Context, server_url
from gpubox.cli.operations import run_cancellable
from gpubox.errors import GpuboxError
from gpubox.telemetry.recorder import Recorder
from gpubox.telemetry.sampler import Sampler

PERIOD_SECONDS = 0.25
"""As the screen samples."""


@click.command("record")
@click.argument("file", type=click.Path(path_type=Path))
@click.option("--seconds", type=click.FloatRange(min=0, min_open=True), metavar="N", help="End after N seconds.")
@click.option("--url", help="A server that gpubox did not start, read only.")
@click.option("--json", "as_json", is_flag=True, help="Where and how many, as one JSON object.")
@click.pass_obj
def command(context: Context, file: Path, seconds: float | None, url: str | None, as_json: bool) -> None:
    """Write every reading into FILE, four a second, until Ctrl-C. `gpubox --replay FILE` shows them again.

    It holds numbers, paths (the home folder as ~) and the server's state; no prompt, no answer, no key.
    """
    url = server_url(url)
    began = time.monotonic()
    with Recorder(file, __version__) as recorder:
        if seconds is None:
            diagnostics.note(f"recording to {file}; Ctrl-C ends it")
        with contextlib.suppress(KeyboardInterrupt):  # the usual end
            run_cancellable(_record(context, recorder, seconds, url))
    took = time.monotonic() - began
    if as_json:
        output.emit_json({"path": str(file.absolute()), "snapshots": recorder.count, "seconds": round(took, 3)})
    else:
        output.emit(f"{recorder.count} readings in {units.duration(took)}: {file}")
    if recorder.lost or recorder.problem:
        raise GpuboxError(
            f"{recorder.lost} readings are missing in the recording: {recorder.last_problem}.", "Free some disk space."
        )


async def _record(context: Context, recorder: Recorder, seconds: float | None, url: str | None) -> None:
    from gpubox.hardware.nvml_reader import DriverReader

    with DriverReader() as driver:
        sampler = Sampler(context.paths, context.config, driver.latest, url=url)
        began = due = time.monotonic()
        try:
            said = ""
            while True:
                recorder.write(await sampler.sample())
                if recorder.problem != said:
                    said = recorder.problem
                    diagnostics.note(f"not recorded: {said}" if said else "recording again")
                due = max(due + PERIOD_SECONDS, time.monotonic())
                if seconds is not None and due >= began + seconds:
                    return
                await asyncio.sleep(due - time.monotonic())
        finally:
            await sampler.close()
