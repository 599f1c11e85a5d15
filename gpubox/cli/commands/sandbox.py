"""``gpubox sandbox``."""

from __future__ import annotations

from dataclasses import asdict, replace
from pathlib import Path

import click

from gpubox.cli import diagnostics, output
from gpubox.cli.context import Context
from gpubox.errors import ExitCode, UsageError

_LONGEST = 4 * 1024 * 1024


@click.group("sandbox")
def command() -> None:
    """Run a program as the chat runs the model's: confined."""


@command.command("run")
@click.argument("file", type=click.Path(path_type=Path, dir_okay=False, allow_dash=True))
@click.option("--workdir", type=click.Path(path_type=Path), help="The one folder it may write; else an empty one.")
@click.option("--seconds", type=click.FloatRange(min=0.1, max=86400), help="How long it may run (30).")
@click.option("--json", "as_json", is_flag=True, help="One JSON object.")
@click.pass_obj
def run_file(context: Context, file: Path, workdir: Path | None, seconds: float | None, as_json: bool) -> int:
    """Run FILE (- is stdin) with Python, confined: no network, no files but its own, bounded time and memory.

    Exits 0 when the program did, 6 when it failed or was ended.
    """
    import asyncio

    from gpubox.sandbox.policy import Policy
    from gpubox.sandbox.runner import Sandbox

    policy = Policy(workspace=_folder(workdir) if workdir else None)
    if seconds is not None:
        policy = replace(policy, wall_seconds=seconds, cpu_seconds=max(1, int(seconds + 1)))
    code = _read(file)
    outcome = asyncio.run(Sandbox(context.config).run(code, policy))
    if as_json:
        output.emit_json({**asdict(outcome), "ok": outcome.ok})
    else:
        if outcome.output:
            said = outcome.output.removesuffix("\n")
            output.emit_verbatim(said)
        for name in outcome.files_changed:
            diagnostics.note(f"made {name}")
        for name in outcome.quarantined:
            diagnostics.note(f"moved {name} to {outcome.quarantine}: your own tools would have run it")
        for name in outcome.not_quarantined:
            diagnostics.note(f"changed {name}: your own tools may run it")
        how = f"exit {outcome.exit_code}" if outcome.signal is None else outcome.signal
        why = f": {outcome.why}" if outcome.why else ""
        diagnostics.note(f"{how}{why}, {outcome.seconds * 1000:.0f} ms, {outcome.isolation}")
    return ExitCode.OK if outcome.ok else ExitCode.PROGRAM_FAILED


def _folder(path: Path) -> Path:
    try:
        return path.expanduser().resolve(strict=True)
    except (OSError, RuntimeError) as error:
        raise UsageError(f"{path} cannot be used: {getattr(error, 'strerror', error)}.") from None


def _read(file: Path) -> str:
    try:
        with click.open_file(str(file), "rb") as stream:
            data = stream.read(_LONGEST + 1)
    except OSError as error:
        raise UsageError(f"{file} cannot be read: {error.strerror}.") from None
    if len(data) > _LONGEST:
        raise UsageError(f"{file} is longer than a program should be.", "At most 4 MiB are run.")
    return bytes(data).decode("utf-8", "surrogateescape")
