"""``gpubox status``: what runs now, once, again and again, or into a recording."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gpubox.cli import output
from gpubox.cli.context import Context, server_url
from gpubox.concurrency import run_in_thread
from gpubox.errors import ExitCode, GpuboxError, UsageError
from gpubox.hardware.nvml import read_driver
from gpubox.paths import MAIN_INSTANCE
from gpubox.server import watcher
from gpubox.server.instance import instance_names, observe, running_servers
from gpubox.telemetry.sampler import Sampler
from gpubox.telemetry.snapshot import Request, Snapshot
from gpubox.views.status import servers_table, servers_values, status_head, status_lines, status_values

_CODES = {"stopped": 3, "crashed": 3, "unreachable": 3, "error": 4, "loading": 0, "stopping": 0}
PERIOD_SECONDS = 0.25
"""Between two readings of ``--watch`` and ``--record``, as on the screen."""


if TYPE_CHECKING:
    from gpubox.gateway.gateway_client import RemoteBox


def __getattr__(name: str) -> Any:
    """Makes ``command`` when click asks for it. A polled `gpubox status` never imports click (``cli.entry``)."""
    if name != "command":
        raise AttributeError(name)
    import click

    from gpubox.cli.options import PlainHelpOption, url_option

    @click.command("status")
    @click.option("--all", "everything", is_flag=True, help="List every running server of gpubox and its slots.")
    @click.option(
        "--watch", type=click.FloatRange(min=0.1), metavar="S", cls=PlainHelpOption, help="Print again every S seconds."
    )
    @click.option("--record", type=click.Path(path_type=Path), metavar="FILE",
                  help="Record all readings into FILE (-: to stdout), four times a second, until Ctrl-C.")  # fmt: skip
    @click.option("--seconds", type=click.FloatRange(min=0, min_open=True), metavar="N", cls=PlainHelpOption,
                  help="With --record: stop after N seconds.")  # fmt: skip
    @click.option("--explain", "figure", metavar="FIGURE",
                  help='Say what a figure is (pp, TTFT, "slowed by"), whether it is good here, and what moves it.',
    )  # fmt: skip
    @url_option
    @click.option("--json", "as_json", is_flag=True, help="Print one JSON object; with --watch one in each line.")
    @click.pass_obj
    def command(
        context: Context, everything: bool, watch: float | None, record: Path | None, seconds: float | None,
        figure: str | None, url: str | None, as_json: bool,
    ) -> int:  # fmt: skip
        """Show what runs now.

        `gpubox --replay FILE` plays a recording on the screen. It has numbers, paths (the home folder as ~) and the
        server's state; it has no prompts, answers or keys.

        Exits 3 if nothing runs, 4 if the server does not answer.
        """
        given = everything, watch is not None, record is not None, figure is not None
        if sum(given) > 1 or (everything and url):
            raise UsageError("--all, --watch, --record and --explain cannot be combined.", "Leave one of them out.")
        if figure is not None:
            return _explain(context, figure, server_url(url), as_json)
        if record:
            return _record(context, record, seconds, server_url(url), as_json)
        return _show_all(context, as_json) if everything else show_status(context, as_json, watch, url)

    return command


def show_status(context: Context, as_json: bool, watch: float | None = None, url: str | None = None) -> int:
    """Prints what runs now, every ``watch`` seconds if given. Returns the exit code. Raises GpuboxError."""
    url = server_url(url)
    if watch is not None:
        _watch(context, url, watch, as_json)
        return ExitCode.OK
    snapshot = asyncio.run(_sample_once(context, url))
    server = snapshot.server
    if not url and (server.pid or server.message) and not server.operation:  # the watcher may have been killed
        watcher.ensure_watcher(context.paths, MAIN_INSTANCE, observe(context.paths, MAIN_INSTANCE).watched)
    _show(snapshot, as_json, one_line=False)
    if not url and not as_json:
        others = (name for name in instance_names(context.paths) if name != MAIN_INSTANCE)
        for running in running_servers(context.paths, *others):
            output.emit(f"  beside    {running.launch.profile} at {running.launch.base_url}")
    if snapshot.throughput.state in ("stuck", "lost") or (
        snapshot.server.pid and snapshot.server.state == "unreachable"
    ):
        return ExitCode.UNHEALTHY
    return _CODES.get(snapshot.server.state, ExitCode.OK)


def _explain(context: Context, name: str, url: str | None, as_json: bool) -> int:
    """Without a server it says what the figure is, and what moves it. Raises UsageError for a name that is none."""
    from gpubox.views.figures import ALSO_CALLED, FIGURES, Box, explain, usual_of

    names = {word.lower(): known for word, known in ALSO_CALLED.items()} | {known.lower(): known for known in FIGURES}
    begun = list(dict.fromkeys(known for low, known in names.items() if low.startswith(name.lower())))
    figure = names.get(name.lower()) or (begun[0] if name and len(begun) == 1 else None)
    if figure is None:
        from gpubox.toml_table import closest_match

        near = begun if name and begun else [names[low]] if (low := closest_match(name.lower(), names)) else []
        listed = ", ".join(each for each in near or FIGURES if each[0].isalnum())  # a mark cannot be mistyped
        raise UsageError(f"There is no figure {name!r}.", f"Did you mean: {listed}?" if near else f"One of: {listed}.")
    snapshot = asyncio.run(_sample_once(context, url))
    usual = None
    if not url and snapshot.server.profile:
        from gpubox.telemetry.history.queries import HistoryQueries

        with contextlib.suppress(GpuboxError):  # a damaged history is no reason to be silent about the rest
            usual = usual_of(snapshot.server.profile, HistoryQueries(context.paths.history), time.time())
    said = explain(figure, Box(snapshot, usual) if snapshot.server.up else None)
    if as_json:
        output.emit_json({"figure": figure, **{label.replace(" ", "_"): text for label, text in said}})
    for label, text in () if as_json else said:
        output.emit(f"{label:9} {text}")
    return ExitCode.OK


async def _sample_once(context: Context, url: str | None) -> Snapshot:
    if url and (box := await _box_at(context, url)):
        return (await run_in_thread(box.read)).snapshot
    reading = read_driver()
    async with Sampler(context.paths, context.config, lambda: reading, url=url) as sampler:
        return await sampler.sample(wait=True)


async def _box_at(context: Context, url: str) -> RemoteBox | None:
    from gpubox.gateway.gateway_client import open_box  # `status` alone does without it

    return await open_box(context.paths, context.config, url)


async def _sample_for_ever(
    context: Context, url: str | None, period: float, use: Callable[[Snapshot], bool | None]
) -> None:
    """Passes on a reading each ``period`` until ``use`` returns True."""
    from gpubox.hardware.nvml_reader import DriverReader

    box = await _box_at(context, url) if url else None
    with DriverReader() as driver:
        async with Sampler(context.paths, context.config, driver.latest, url=url) as sampler:
            due = time.monotonic()
            while not use((await run_in_thread(box.read)).snapshot if box else await sampler.sample()):
                due = max(due + period, time.monotonic())
                await asyncio.sleep(due - time.monotonic())


def _watch(context: Context, url: str | None, period: float, as_json: bool) -> None:
    """Samples at the screen's interval and prints every ``period`` seconds, until the reader closes the pipe.

    What it samples goes into the history too.
    """
    from gpubox.gateway.request_clients import history_writer

    history = history_writer(context.paths) if url is None else None
    due = time.monotonic()

    def use(snapshot: Snapshot) -> None:
        nonlocal due
        if history:
            history.push(snapshot)
        if time.monotonic() >= due:
            _show(snapshot, as_json, one_line=True)
            due = max(due + period, time.monotonic())

    with contextlib.closing(history) if history else contextlib.nullcontext():
        if history:
            history.start()
        asyncio.run(_sample_for_ever(context, url, min(PERIOD_SECONDS, period), use))


def _show(snapshot: Snapshot, as_json: bool, *, one_line: bool) -> None:
    if as_json:
        output.emit_json(status_values(snapshot), one_line=one_line)
        return
    output.emit(status_head(snapshot))
    for label, text in status_lines(snapshot):
        output.emit(f"  {label:9} {text}")


def _show_all(context: Context, as_json: bool) -> int:
    from gpubox.server.status import ServerStatus, read_status

    async def read() -> list[ServerStatus]:
        instances = instance_names(context.paths)
        for instance in instances:
            watcher.ensure_watcher(context.paths, instance, observe(context.paths, instance).watched)
        return await asyncio.gather(*(read_status(context.paths, context.config, instance) for instance in instances))

    running = [status for status in asyncio.run(read()) if status.pid is not None]
    output.emit_result(servers_table(running), servers_values(running), as_json=as_json)
    return ExitCode.OK if running else ExitCode.NOT_RUNNING


def _record(context: Context, file: Path, seconds: float | None, url: str | None, as_json: bool) -> int:
    """Records until ``seconds`` are over or Ctrl-C. Raises GpuboxError if readings are missing in the file."""
    from gpubox import __version__, units
    from gpubox.cli import diagnostics
    from gpubox.concurrency import run_cancellable
    from gpubox.telemetry.recorder import Recorder, header_line, snapshot_line

    problem, requests = "", tuple[Request, ...]()
    began = time.monotonic()

    def is_over() -> bool:
        return seconds is not None and time.monotonic() + PERIOD_SECONDS >= began + seconds

    def use(snapshot: Snapshot) -> bool:
        nonlocal problem
        recorder.write(snapshot)
        if recorder.problem != problem:
            problem = recorder.problem
            diagnostics.note(f"not recorded: {problem}" if problem else "recording again")
        return is_over()

    def print_line(snapshot: Snapshot) -> bool:
        nonlocal requests
        output.emit_verbatim(snapshot_line(snapshot, requests).decode()[:-1])
        requests = snapshot.requests
        return is_over()

    if str(file) == "-":  # the reader ends it
        output.emit_verbatim(header_line(__version__).decode()[:-1])
        with contextlib.suppress(KeyboardInterrupt):
            run_cancellable(_sample_for_ever(context, url, PERIOD_SECONDS, print_line))
        return ExitCode.OK
    with contextlib.closing(Recorder(file, __version__)) as recorder:
        if seconds is None:
            diagnostics.note(f"recording to {file}; Ctrl-C stops")
        with contextlib.suppress(KeyboardInterrupt):  # the usual way to stop
            run_cancellable(_sample_for_ever(context, url, PERIOD_SECONDS, use))
    took = time.monotonic() - began
    values = {"path": str(file.absolute()), "snapshots": recorder.count, "seconds": round(took, 3)}
    output.emit_result(f"{recorder.count} readings in {units.duration(took)}: {file}", values, as_json=as_json)
    if recorder.lost or recorder.problem:
        raise GpuboxError(
            f"The recording lacks {recorder.lost} readings: {recorder.last_problem}.", "Free some disk space."
        )
    return ExitCode.OK
