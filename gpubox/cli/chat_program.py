"""``gpubox chat run FILE``: a program in the sandbox of the chat."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import BinaryIO

import click

from gpubox.cli import diagnostics, output
from gpubox.cli.context import Context
from gpubox.cli.options import PlainHelpOption, json_option
from gpubox.errors import ExitCode, UsageError
from gpubox.views.fields import json_fields

_MAX_PROGRAM_BYTES = 4 * 1024 * 1024


@click.command("run")
@click.argument("file", type=click.File("rb"))
@click.option(
    "--workdir", type=click.Path(exists=True, file_okay=False, resolve_path=True, path_type=Path), metavar="FOLDER",
    help="The workspace. [default: an empty one, removed afterwards]",
)  # fmt: skip
@click.option(
    "--seconds", type=click.FloatRange(min=0.1, max=86400), metavar="N", cls=PlainHelpOption,
    help="Time limit in seconds. [default: 30]",
)  # fmt: skip
@json_option
@click.pass_obj
def run_command(context: Context, file: BinaryIO, workdir: Path | None, seconds: float | None, as_json: bool) -> int:
    """Run the Python program FILE (- for stdin) in the sandbox that the chat uses.

    It has no network, sees only its workspace, and has limits of time and memory. Exits 6 if the program fails or
    is stopped.
    """
    import asyncio

    from gpubox.sandbox.policy import Policy
    from gpubox.sandbox.runner import Sandbox

    code = file.read(_MAX_PROGRAM_BYTES + 1)
    if len(code) > _MAX_PROGRAM_BYTES:
        raise UsageError(f"{file.name} is too large for a program.", "The limit is 4 MiB.")
    policy = Policy(workspace=workdir)
    if seconds is not None:
        policy = replace(policy, wall_seconds=seconds, cpu_seconds=max(1, int(seconds + 1)))
    outcome = asyncio.run(Sandbox(context.config).run(code.decode("utf-8", "surrogateescape"), policy))
    if as_json:
        output.emit_json(json_fields(outcome, "ok", "weakness"))
    else:
        if outcome.output:
            output.emit_verbatim(outcome.output.removesuffix("\n"))
        for text in (*outcome.about_workspace, *([f"weaker: {outcome.weakness}"] if outcome.weakness else [])):
            diagnostics.note(text)
        ending = f"exit {outcome.exit_code}" if outcome.signal is None else outcome.signal
        reason = f": {outcome.why}" if outcome.why else ""
        diagnostics.note(f"{ending}{reason}, {outcome.seconds * 1000:.0f} ms, {outcome.isolation}")
    return ExitCode.OK if outcome.ok else ExitCode.PROGRAM_FAILED
