"""``gpubox logs [-f]``."""

from __future__ import annotations

import time
from dataclasses import asdict

import click

from gpubox.cli import output
from gpubox.cli.context import Context
from gpubox.errors import ExitCode, GpuboxError
from gpubox.paths import MAIN_SLOT
from gpubox.server.log import LogReader, parse_line, tail_text
from gpubox.server.slot import slots

FOLLOW_SECONDS = 0.25


@click.command("logs")
@click.argument("companion", required=False)
@click.option("--follow", "-f", is_flag=True, help="Go on with new lines; Ctrl-C ends it.")
@click.option("--lines", "-n", default=50, show_default=True, help="How many of the last lines.")
@click.option("--grep", help="Only lines that hold this text.")
@click.option("--path", "only_path", is_flag=True, help="Only where the file is.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object; with -f one a line.")
@click.pass_obj
def command(
    context: Context, companion: str | None, follow: bool, lines: int, grep: str | None, only_path: bool, as_json: bool
) -> None:
    """The log of the active server, or of a COMPANION."""
    slot = companion or MAIN_SLOT
    path = context.paths.slot_log(slot)
    if companion and companion not in slots(context.paths):
        raise GpuboxError(f"{companion} has no log: it is no companion that ever ran.", code=ExitCode.NOT_RUNNING)
    if only_path:
        if as_json:
            output.emit_json({"path": str(path)})
        else:
            output.emit(str(path))
        return
    reader = LogReader(path, from_end=True)
    text = tail_text(path, 4 * 1024 * 1024)
    if not text and not follow:
        raise GpuboxError("There is no log yet.", "`gpubox start PROFILE` makes one.", code=ExitCode.NOT_RUNNING)
    wanted = [line for line in text.splitlines() if not grep or grep in line]
    wanted = wanted[-lines:] if lines > 0 else []
    if as_json and not follow:
        output.emit_json({"path": str(path), "lines": [asdict(parse_line(line)) for line in wanted]})
        return
    show = _emit_json if as_json else output.emit_text
    for line in wanted:
        show(line)
    while follow:
        for line in reader.read():
            if not grep or grep in line:
                show(line)
        time.sleep(FOLLOW_SECONDS)


def _emit_json(line: str) -> None:
    output.emit_json(asdict(parse_line(line)), one_line=True)
