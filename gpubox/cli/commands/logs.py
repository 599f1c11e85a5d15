"""``gpubox logs [-f]``."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import asdict
from pathlib import Path

import click

from gpubox.cli import diagnostics, output
from gpubox.cli.context import Context
from gpubox.errors import ExitCode, GpuboxError, UsageError
from gpubox.paths import MAIN_INSTANCE
from gpubox.server.instance import failed_log, instance_names
from gpubox.server.log import LogReader, RepeatFold, fold_repeats, parse_line, repeats_line, tail_text
from gpubox.server.log_truncation import MAX_LOG_BYTES

FOLLOW_SECONDS = 0.25
TAIL_BYTES = 4 * 1024 * 1024


@click.command("logs")
@click.argument("companion", required=False)
@click.option("--follow", "-f", is_flag=True, help="Go on with new lines; Ctrl-C ends it.")
@click.option("--lines", "-n", default=50, show_default=True, help="How many of the last lines.")
@click.option("--grep", help="Only lines that hold this text.")
@click.option("--failed", is_flag=True, help="The log of the last start that failed, or server that died.")
@click.option("--raw", is_flag=True, help="Every line: repeated ones are not folded.")
@click.option("--path", "only_path", is_flag=True, help="Only where the file is.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object; with -f one a line.")
@click.pass_obj
def command(
    context: Context,
    companion: str | None,
    follow: bool,
    lines: int,
    grep: str | None,
    failed: bool,
    raw: bool,
    only_path: bool,
    as_json: bool,
) -> None:
    """The log of the active server, or of a COMPANION. Lines that repeat are counted, not shown again."""
    slot = companion or MAIN_INSTANCE
    if companion and companion not in instance_names(context.paths):
        raise GpuboxError(f"{companion} has no log: it is no companion that ever ran.", code=ExitCode.NOT_RUNNING)
    if failed and follow:
        raise UsageError("A failed start writes no more: --failed and --follow exclude each other.")
    path, said = failed_log(context.paths, slot) if failed else (context.paths.instance_log(slot), "")
    if only_path:
        if as_json:
            output.emit_json({"path": str(path)})
        else:
            output.emit(str(path))
        return
    reader = LogReader(path, from_end=True)
    wanted = _last(path, lines, grep, raw=raw)
    if not wanted and not follow and not tail_text(path, 1):
        raise GpuboxError("There is no log yet.", "`gpubox start PROFILE` makes one.", code=ExitCode.NOT_RUNNING)
    if as_json and not follow:
        shown = [asdict(parse_line(line)) for line in wanted]
        output.emit_json({"path": str(path), "failure": said or None, "lines": shown})
        return
    if said:
        diagnostics.note(said)
    show = _emit_json if as_json else output.emit_text
    for line in wanted:
        show(line)
    if follow:
        _follow(reader, grep, show, None if raw or as_json else RepeatFold())


def _last(path: Path, count: int, grep: str | None, *, raw: bool) -> list[str]:
    """The last ``count`` lines to show. Looks back far: hours of an idle server are one line."""
    whole = min(path.stat().st_size if path.exists() else 0, 2 * MAX_LOG_BYTES)
    size = TAIL_BYTES
    while True:
        text = tail_text(path, size)
        found: Iterable[str] = (line for line in text.splitlines() if not grep or grep in line)
        wanted = list(deque(found if raw else fold_repeats(found), maxlen=max(count, 0)))
        if len(wanted) >= count or size >= whole:
            return wanted
        size *= 8


def _follow(reader: LogReader, grep: str | None, show: Callable[[str], None], fold: RepeatFold | None) -> None:
    while True:
        for line in reader.read():
            if grep and grep not in line:
                continue
            count, shown = fold.add(parse_line(line)) if fold else (0, True)
            if count:
                show(repeats_line(count))
            if shown:
                show(line)
        time.sleep(FOLLOW_SECONDS)


def _emit_json(line: str) -> None:
    output.emit_json(asdict(parse_line(line)), one_line=True)
