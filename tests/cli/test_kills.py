"""kill -9 of gpubox at each step of a switch, a restart and a gateway's operation: the watcher ends what was begun."""

from __future__ import annotations

import asyncio
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from gpubox.config import load_config
from gpubox.errors import GpuboxError
from gpubox.hardware.process import find_by_marker
from gpubox.paths import MAIN_INSTANCE, Paths
from gpubox.profiles.loader import load_catalog
from gpubox.server.held_instance import InstanceBusy
from gpubox.server.instance import instance_names, observe
from gpubox.server.supervisor import Supervisor
from gpubox.server.watcher import stop_watcher
from gpubox.storage import lock_holder
from tests.conftest import until
from tests.sampling import sampled

CHILD = """
import asyncio, os, signal, sys
from gpubox.config import load_config
from gpubox.paths import Paths
from gpubox.profiles.loader import load_catalog
from gpubox.server import held_instance
from gpubox.server.supervisor import Supervisor
how, moment = sys.argv[1:]
def die(*_):
    os.kill(os.getpid(), signal.SIGKILL)
def emit(event):
    if f"{type(event).__name__}:{getattr(event, 'step', '')}" == moment:
        die()
def spawn(*args, **values):
    real(*args, **values)
    die()
real = held_instance.spawn_server
if moment == "forked":
    held_instance.spawn_server = spawn
paths = Paths.default()
supervisor, profile = Supervisor(paths, load_config(paths), emit=emit), load_catalog(paths).get("a")
work = {
    "switch": lambda: supervisor.switch(profile, stop_now=True),
    "restart": lambda: supervisor.restart(load_catalog(paths).get("b"), stop_now=True),
    "place": lambda: supervisor.place(profile, displaces=("beside",)),
    "stop": supervisor.stop,
}
asyncio.run(work[how]())
"""
STEPS = ("check", "stop", "VRAM settled", "load", "first token")
MOMENTS = [f"{event}:{step}" for step in STEPS for event in ("StepStarted", "StepDone")]
CASES = [(how, moment) for how in ("switch", "restart", "place") for moment in (*MOMENTS, "forked")]


@pytest.fixture(autouse=True)
def watchers(box: int, paths: Paths, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Each server has its watcher, as in normal use."""
    monkeypatch.delenv("GPUBOX_WATCHER")
    yield
    for name in instance_names(paths):
        stop_watcher(paths, name)


def start(paths: Paths, name: str, instance: str = MAIN_INSTANCE) -> None:
    asyncio.run(Supervisor(paths, load_config(paths), instance).start(load_catalog(paths).get(name)))


def killed(how: str, moment: str) -> None:
    done = subprocess.run([sys.executable, "-c", CHILD, how, moment], cwd=Path(__file__).parents[2], check=False)
    assert done.returncode == -signal.SIGKILL


def settled(paths: Paths) -> bool:
    """Whether nothing is left half done, and the watcher waits beside a server that has given a token."""
    view = observe(paths, MAIN_INSTANCE)
    return bool(
        not view.interrupted and not view.operation and view.running and view.running.ready_at
        and lock_holder(paths.watcher_lock(MAIN_INSTANCE))
    )  # fmt: skip


def profiles(paths: Paths) -> list[str]:
    """Of all server processes."""
    return sorted(marker.rsplit("|", 2)[1] for _, marker in find_by_marker(f"{paths.state}|"))


@pytest.mark.parametrize(("how", "moment"), sampled(CASES, 0.03, always=[("switch", "StepDone:stop")]))
def test_a_kill_at_any_step_leaves_one_server(paths: Paths, how: str, moment: str) -> None:
    start(paths, "b")
    if how == "place":
        start(paths, "beside", "beside")

    killed(how, moment)
    until(lambda: settled(paths))

    stopped = "check" not in moment
    new = moment in ("forked", "StepDone:load") or "first token" in moment
    back = "b" if not new or how == "restart" else "a"
    assert profiles(paths) == (["b", "beside"] if how == "place" and back == "b" else [back])
    says = "b: the restart was killed. " if how == "restart" else "a: the switch was killed. "
    outcome = "Its server answers." if new else "(b|beside) is restored"
    assert re.search(f"^{says}.*{outcome}" if stopped else "^$", observe(paths, MAIN_INSTANCE).message)


def test_a_server_that_is_slow_to_leave_is_not_told_twice(paths: Paths) -> None:
    path = paths.profiles / "b.toml"
    path.write_text(path.read_text() + '[env]\nFAKE_STOP_SECONDS = "30"\n')
    start(paths, "b")
    (before, _), *_ = find_by_marker(f"{paths.state}|")
    script = CHILD.replace(
        "work = {", "from gpubox.server import server_process\n"
        "signal_it = server_process._signal\n"
        "server_process._signal = lambda *words: (signal_it(*words), die())\nwork = {"
    )  # fmt: skip
    subprocess.run([sys.executable, "-c", script, "switch", ""], cwd=Path(__file__).parents[2], check=False)
    until(lambda: settled(paths) and before not in [each for each, _ in find_by_marker(f"{paths.state}|")])

    assert profiles(paths) == ["b"]
    assert observe(paths, MAIN_INSTANCE).message.startswith("a: the switch was killed. b is restored")


def test_without_a_watcher_the_next_look_repairs(paths: Paths, monkeypatch: pytest.MonkeyPatch) -> None:
    from gpubox.cli.main import run

    start(paths, "b")
    monkeypatch.setenv("GPUBOX_WATCHER", "0")
    killed("switch", "StepDone:stop")
    stop_watcher(paths, MAIN_INSTANCE)
    assert profiles(paths) == []
    monkeypatch.delenv("GPUBOX_WATCHER")

    assert run(["status"]) == 3
    until(lambda: settled(paths))

    assert profiles(paths) == ["b"]


def test_what_was_interrupted_is_owed_until_a_server_runs(paths: Paths, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GPUBOX_WATCHER", "0")
    start(paths, "b")
    killed("switch", "StepDone:stop")
    supervisor = Supervisor(paths, load_config(paths), check_memory=refuse)

    with pytest.raises(GpuboxError, match="no room"):
        asyncio.run(supervisor.switch(load_catalog(paths).get("a")))
    assert observe(paths, MAIN_INSTANCE).interrupted

    asyncio.run(supervisor.recover())
    assert profiles(paths) == ["b"]


def refuse(*_: object) -> str:
    raise GpuboxError("no room")


def test_a_stop_is_not_undone(paths: Paths, monkeypatch: pytest.MonkeyPatch) -> None:
    start(paths, "b")
    killed("stop", "StepDone:stop")
    until(lambda: not lock_holder(paths.watcher_lock(MAIN_INSTANCE)))
    assert not observe(paths, MAIN_INSTANCE).interrupted

    monkeypatch.setenv("GPUBOX_WATCHER", "0")
    start(paths, "b")
    killed("switch", "StepDone:stop")
    asyncio.run(Supervisor(paths, load_config(paths)).stop())

    assert not observe(paths, MAIN_INSTANCE).interrupted and profiles(paths) == []


def test_one_that_cannot_come_back_is_named(paths: Paths, fake_engine: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GPUBOX_WATCHER", "0")
    start(paths, "b")
    killed("switch", "StepDone:stop")
    fake_engine.unlink()
    supervisor = Supervisor(paths, load_config(paths))

    asyncio.run(supervisor.recover())

    view = observe(paths, MAIN_INSTANCE)
    assert view.message.startswith("a: the switch was killed. b could not be restored: ")
    assert not view.interrupted


def test_the_owner_waits_for_what_gives_way_and_is_not_refused(paths: Paths) -> None:
    start(paths, "b")
    catalog, events = load_catalog(paths), list[object]()

    async def both() -> None:
        placed, may_go = asyncio.Event(), asyncio.Event()

        async def go() -> None:
            placed.set()
            await may_go.wait()

        gateway = Supervisor(paths, load_config(paths), asked_by="aider", gives_way=True)
        placing = asyncio.ensure_future(gateway.place(catalog.get("a"), go=go))
        await placed.wait()
        with pytest.raises(InstanceBusy):  # it waits for nobody itself
            await gateway.place(catalog.get("a"))
        owner = Supervisor(paths, load_config(paths), emit=events.append)
        switching = asyncio.ensure_future(owner.switch(catalog.get("b"), stop_now=True, force_restart=True))
        while not events:
            await asyncio.sleep(0.01)
        assert not switching.done()
        placing.cancel()
        await asyncio.gather(placing, return_exceptions=True)
        await switching

    asyncio.run(both())
    assert profiles(paths) == ["b"]
