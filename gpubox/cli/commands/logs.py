"""``gpubox logs [-f]``."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterable
from pathlib import Path

import click

from gpubox.cli import diagnostics, output
from gpubox.cli.context import Context
from gpubox.errors import ExitCode, GpuboxError, UsageError
from gpubox.paths import MAIN_INSTANCE
from gpubox.server import log as server_log
from gpubox.server.instance import failed_log, find_instance, instance_names
from gpubox.views.fields import json_fields

FOLLOW_SECONDS = 0.25
TAIL_BYTES = 4 * 1024 * 1024


@click.command("logs")
@click.argument("profile", required=False)
@click.option("--follow", "-f", is_flag=True, help="Print new lines until Ctrl-C.")
@click.option("--lines", "-n", type=int, default=50, metavar="N", help="Print the last N lines. [default: 50]")
@click.option("--grep", metavar="TEXT", help="Print only lines with TEXT.")
@click.option("--failed", is_flag=True, help="Print the log of the last failed start or crash.")
@click.option("--raw", is_flag=True, help="Print repeated lines, too.")
@click.option("--path", "only_path", is_flag=True, help="Print only the path of the file.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object; with -f one for each line.")
@click.pass_obj
def command(
    context: Context, profile: str | None, follow: bool, lines: int, grep: str | None, failed: bool, raw: bool,
    only_path: bool, as_json: bool,
) -> None:  # fmt: skip
    """Print the log of the active server, or of PROFILE's.

    Repeated lines are counted, not printed.
    """
    instance = (find_instance(context.paths, profile) or profile) if profile else MAIN_INSTANCE
    if profile and instance not in instance_names(context.paths):
        raise GpuboxError(f"{profile} has no log of its own: it does not run.", code=ExitCode.NOT_RUNNING)
    if failed and follow:
        raise UsageError("--failed and --follow cannot be combined: the log of a failed start gets no new lines.")
    path, failure = failed_log(context.paths, instance) if failed else (context.paths.instance_log(instance), "")
    if only_path:
        output.emit_result(str(path), {"path": str(path)}, as_json=as_json)
        return
    reader = server_log.LogReader(path, from_end=True)
    last_lines = _last_lines(path, lines, grep, raw=raw)
    if not last_lines and not follow and not server_log.tail_text(path, 1):
        raise GpuboxError("There is no log yet.", "`gpubox start PROFILE` makes one.", code=ExitCode.NOT_RUNNING)
    if as_json and not follow:
        values = [json_fields(server_log.parse_line(line)) for line in last_lines]
        output.emit_json({"path": str(path), "failure": failure or None, "lines": values})
        return
    if failure:
        diagnostics.note(failure)
    show = _emit_json if as_json else output.emit_text
    for line in last_lines:
        show(line)
    if follow:
        _follow(reader, grep, show, None if raw or as_json else server_log.RepeatFold())


def _last_lines(path: Path, count: int, grep: str | None, *, raw: bool) -> list[str]:
    """The last ``count`` lines to print. Reads far back, because hours of an idle server fold to one line."""
    whole = min(path.stat().st_size if path.exists() else 0, 2 * server_log.MAX_LOG_BYTES)
    size = TAIL_BYTES
    while True:
        lines: Iterable[str] = (line for line in server_log.tail_lines(path, size) if not grep or grep in line)
        last_lines = list(deque(lines if raw else server_log.fold_repeats(lines), maxlen=max(count, 0)))
        if len(last_lines) >= count or size >= whole:
            return last_lines
        size *= 8


def _follow(
    reader: server_log.LogReader, grep: str | None, show: Callable[[str], None], fold: server_log.RepeatFold | None
) -> None:
    while True:
        for line in reader.read():
            if grep and grep not in line:
                continue
            count, shown = fold.add(server_log.parse_line(line)) if fold else (0, True)
            if count:
                show(server_log.repeats_line(count))
            if shown:
                show(line)
        time.sleep(FOLLOW_SECONDS)


def _emit_json(line: str) -> None:
    output.emit_json(json_fields(server_log.parse_line(line)), one_line=True)
