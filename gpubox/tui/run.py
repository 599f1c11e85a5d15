"""Runs the screen in this terminal, from its start to what it prints when it closes, or the terminal goes away."""

from __future__ import annotations

import os
import select
import signal
import sys
import threading
from pathlib import Path
from typing import TYPE_CHECKING

from gpubox.children import in_browser
from gpubox.config import Config
from gpubox.errors import GpuboxError
from gpubox.paths import MAIN_INSTANCE, Paths
from gpubox.tui.app import GpuboxApp

if TYPE_CHECKING:
    from gpubox.server.instance import InstanceView


def run_app(
    paths: Paths, config: Config, url: str | None = None, start: str | None = None, *, replay: Path | None = None,
    box_only: bool = False,
) -> None:  # fmt: skip
    """Runs the screen, then prints what keeps running. ``replay`` is a recording to show instead of this machine.

    ``box_only``: see RemoteServices.
    """
    from gpubox.tui.services import LocalServices

    services = LocalServices(paths, config)
    if replay:
        from gpubox.tui.replay_services import open_recording

        services = open_recording(replay, paths, config)
    elif url:
        from gpubox.tui.remote_services import RemoteServices

        services = RemoteServices(paths, config, url, box_only=box_only)
    app = GpuboxApp(services, start=start)
    exit_on_hangup(app.bridge.operation_ended)
    left_during_operation = app.run()
    if not left_during_operation:
        app.bridge.operation_ended.wait()  # after a crash of the screen the operation must still end
    if url is None and replay is None and not in_browser():
        sys.stdout.write(exit_summary(paths))
        sys.stdout.flush()
    if app.crash:
        raise GpuboxError(f"The screen crashed: {app.crash}.", "Running servers were not touched. Please report it.")
    if left_during_operation:
        os._exit(0)  # a normal exit would wait for the operation's thread; the server loads on without it


def main() -> None:
    """The screen of who may only watch, in a browser: the box of the gateway whose address is the argument."""
    run_app(Paths.default(), Config(), sys.argv[1], box_only=True)


def exit_summary(paths: Paths) -> str:
    """What keeps running, as lines with a newline each; empty if nothing does."""
    from gpubox.server.instance import instance_names, observe  # imports psutil: not before the first paint
    from gpubox.server.state import load_gateway

    main = observe(paths, MAIN_INSTANCE)
    views = [observe(paths, name) for name in instance_names(paths) if name != MAIN_INSTANCE]
    lines = [f"{_running(view)}." for view in views if view.running]
    if main.running:
        lines.insert(0, f"{_running(main)}. `gpubox` opens this screen again, `gpubox stop` stops the server.")
    elif main.message and not lines:
        lines.insert(0, f"Nothing runs: {main.message}")
    if gateway := load_gateway(paths):
        lines.append(f"The gateway keeps running at {gateway.base_url}; `gpubox serve --stop` stops it.")
    return "".join(f"{line}\n" for line in lines)


def _running(view: InstanceView) -> str:
    assert view.running is not None
    launch = view.running.launch
    state = "keeps running" if view.running.ready_at else "continues to load"
    pid = f" (pid {view.running.process.pid})" if view.running.process else ""
    return f"{launch.profile} {state} at {launch.base_url}{pid}"


def exit_on_hangup(operation_ended: threading.Event) -> None:
    """Exits when the terminal goes away, also one that sends no SIGHUP: Textual would wait for it with a busy core."""
    signal.signal(signal.SIGHUP, lambda number, frame: _exit_after(operation_ended))
    if sys.__stdin__ is None or not (sys.__stdin__.isatty() or in_browser()):
        return
    terminal = select.poll()
    terminal.register(sys.__stdin__.fileno(), 0)  # POLLHUP is always reported

    def wait() -> None:
        terminal.poll()
        _exit_after(operation_ended)

    threading.Thread(target=wait, daemon=True, name="terminal").start()


def _exit_after(operation_ended: threading.Event) -> None:
    """Exits when the running operation, which has a thread of its own, has ended."""

    def wait() -> None:
        operation_ended.wait()
        os._exit(128 + signal.SIGHUP)  # without a terminal there is nothing to draw or to restore

    threading.Thread(target=wait, daemon=True).start()
