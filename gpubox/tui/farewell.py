"""What is said in the terminal after the screen is gone."""

from __future__ import annotations

from gpubox.paths import MAIN_SLOT, Paths
from gpubox.server.slot import SlotView, observe, slots

AGAIN = "`gpubox` opens this screen again, `gpubox stop` ends it."


def farewell(paths: Paths) -> str:
    """What keeps running, as lines that end with a newline; empty when nothing does."""
    main = observe(paths, MAIN_SLOT)
    others = [view for slot in slots(paths) if slot != MAIN_SLOT and (view := observe(paths, slot)).running]
    lines = [f"{_one(view)}." for view in others]
    if main.running:
        lines.insert(0, f"{_one(main)}. {AGAIN}")
    elif main.message:
        lines.insert(0, f"Nothing runs: {main.message}")
    return "".join(f"{line}\n" for line in lines)


def _one(view: SlotView) -> str:
    assert view.running is not None
    launch = view.running.launch
    does = "keeps running" if view.running.proven_at else "goes on loading"
    pid = f" (pid {view.running.process.pid})" if view.running.process else ""
    return f"{launch.profile} {does} at {launch.base_url}{pid}"
