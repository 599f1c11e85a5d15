"""How gpubox goes: what it says in the terminal, and what it does when the terminal goes first."""

from __future__ import annotations

import os
import select
import signal
import sys
import threading
from typing import TYPE_CHECKING

from gpubox.paths import MAIN_INSTANCE, Paths

if TYPE_CHECKING:
    from gpubox.server.instance import InstanceView

AGAIN = "`gpubox` opens this screen again, `gpubox stop` ends it."


def exit_summary(paths: Paths) -> str:
    """What keeps running, as lines that end with a newline; empty when nothing does."""
    from gpubox.server.instance import instance_names, observe  # psutil and the records: not before the first paint

    main = observe(paths, MAIN_INSTANCE)
    others = [
        view for slot in instance_names(paths) if slot != MAIN_INSTANCE and (view := observe(paths, slot)).running
    ]
    lines = [f"{_one(view)}." for view in others]
    if main.running:
        lines.insert(0, f"{_one(main)}. {AGAIN}")
    elif main.message:
        lines.insert(0, f"Nothing runs: {main.message}")
    return "".join(f"{line}\n" for line in lines)


def _one(view: InstanceView) -> str:
    assert view.running is not None
    launch = view.running.launch
    does = "keeps running" if view.running.ready_at else "goes on loading"
    pid = f" (pid {view.running.process.pid})" if view.running.process else ""
    return f"{launch.profile} {does} at {launch.base_url}{pid}"


def exit_on_hangup(ended: threading.Event) -> None:
    """Leaves when the terminal goes, also one that sends no SIGHUP: Textual would wait for it with a busy core."""
    signal.signal(signal.SIGHUP, lambda number, frame: leave_without_terminal(ended))
    if sys.__stdin__ is None or not sys.__stdin__.isatty():
        return
    terminal = select.poll()
    terminal.register(sys.__stdin__.fileno(), 0)  # a hang-up is always told

    def wait() -> None:
        terminal.poll()
        leave_without_terminal(ended)

    threading.Thread(target=wait, daemon=True, name="terminal").start()


def leave_without_terminal(ended: threading.Event) -> None:
    """A closed terminal or a lost SSH: what is under way comes to its end in its own thread, then this goes."""

    def end() -> None:
        ended.wait()
        os._exit(128 + signal.SIGHUP)  # nothing can be drawn or put right in a terminal that is gone

    threading.Thread(target=end, daemon=True).start()
