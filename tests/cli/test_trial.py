"""A trial with a fake engine: kept or reverted, and reverted by the guard when its gpubox is killed at any moment."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from gpubox.config import load_config
from gpubox.errors import GpuboxError
from gpubox.paths import MAIN_INSTANCE, Paths
from gpubox.profiles.edit import ProfileEdit, edit_profile
from gpubox.profiles.loader import load_catalog
from gpubox.server.events import StepStarted
from gpubox.server.instance import observe
from gpubox.server.state import pending_trial
from gpubox.server.supervisor import Supervisor
from gpubox.server.trial import Trial, recover_trial, trial_profile
from tests.conftest import until

pytestmark = pytest.mark.usefixtures("box")

CHILD = """
import asyncio, os, signal, sys
from gpubox.config import load_config
from gpubox.paths import Paths
from gpubox.profiles.edit import edit_profile
from gpubox.profiles.loader import load_catalog
from gpubox.server.supervisor import Supervisor
from gpubox.server.trial import Trial
async def main(dies_at):
    paths = Paths.default()
    def emit(event):
        if type(event).__name__ == dies_at or f"{type(event).__name__}:{getattr(event, 'step', '')}" == dies_at:
            os.kill(os.getpid(), signal.SIGKILL)
    edit = edit_profile(load_catalog(paths).get("a"), {("flags", "ctx-size"): 512}, paths)
    trial = await Trial.begin(edit, Supervisor(paths, load_config(paths), emit=emit), stop_now=True)
    if dies_at == "keep":
        from gpubox.server import trial as module
        module._forget = lambda paths: os.kill(os.getpid(), signal.SIGKILL)
        await trial.keep()
    os.kill(os.getpid(), signal.SIGKILL)
asyncio.run(main(sys.argv[1]))
"""


def supervisor(paths: Paths) -> Supervisor:
    return Supervisor(paths, load_config(paths))


def changed(paths: Paths, size: int = 512) -> ProfileEdit:
    return edit_profile(load_catalog(paths).get("a"), {("flags", "ctx-size"): size}, paths)


def argv(paths: Paths) -> tuple[str, ...]:
    running = observe(paths, MAIN_INSTANCE).running
    return running.launch.argv if running and running.ready_at else ()


def runs_with(paths: Paths, size: int) -> bool:
    words = argv(paths)
    return bool(words) and words[words.index("--ctx-size") + 1] == str(size)


def start(paths: Paths, name: str) -> None:
    asyncio.run(supervisor(paths).start(load_catalog(paths).get(name)))


def test_a_trial_that_is_kept_is_written_and_its_server_goes_on(paths: Paths) -> None:
    start(paths, "a")

    async def keep() -> None:
        trial = await Trial.begin(changed(paths), supervisor(paths))
        assert runs_with(paths, 512) and trial_profile(paths) == "a"
        assert load_catalog(paths).get("a").flags["ctx-size"] == 2048, "nothing is written while it is tried"
        pid = observe(paths, MAIN_INSTANCE).process
        await trial.keep()
        assert observe(paths, MAIN_INSTANCE).process == pid

    asyncio.run(keep())
    assert load_catalog(paths).get("a").flags["ctx-size"] == 512
    assert runs_with(paths, 512) and pending_trial(paths) is None


@pytest.mark.parametrize("before", ["a", "b", ""])
def test_a_trial_that_is_reverted_brings_back_what_ran_before(paths: Paths, before: str) -> None:
    if before:
        start(paths, before)
    launch = argv(paths)

    async def revert() -> None:
        trial = await Trial.begin(changed(paths), supervisor(paths))
        assert runs_with(paths, 512)
        await trial.revert()

    asyncio.run(revert())
    assert argv(paths) == launch
    assert load_catalog(paths).get("a").flags["ctx-size"] == 2048 and pending_trial(paths) is None


def test_a_trial_that_does_not_start_changes_nothing(paths: Paths) -> None:
    start(paths, "b")
    with pytest.raises(GpuboxError, match="13 brings bad luck"):
        asyncio.run(Trial.begin(changed(paths, 13), supervisor(paths)))
    assert runs_with(paths, 4096) and pending_trial(paths) is None


def test_two_trials_at_once_are_refused(paths: Paths) -> None:
    async def two() -> None:
        trial = await Trial.begin(changed(paths), supervisor(paths))
        with pytest.raises(GpuboxError, match="in another gpubox"):
            await Trial.begin(changed(paths, 1024), supervisor(paths))
        await trial.revert()

    asyncio.run(two())


def test_keeping_does_not_overwrite_a_file_that_changed_meanwhile(paths: Paths) -> None:
    async def conflict() -> None:
        trial = await Trial.begin(changed(paths), supervisor(paths))
        path = paths.profiles / "a.toml"
        path.write_text(path.read_text() + "threads = 3\n")
        with pytest.raises(GpuboxError, match="by another program"):
            await trial.keep()
        assert runs_with(paths, 512), "the trial goes on, so that it can be reverted"
        await trial.revert()

    asyncio.run(conflict())
    assert load_catalog(paths).get("a").flags["threads"] == 3


@pytest.mark.parametrize("moment", ["StepStarted:check", "StepDone:stop", "StepDone:load", "StepDone:probe", "running"])
def test_the_watcher_reverts_a_trial_whose_gpubox_is_killed(
    paths: Paths, moment: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("GPUBOX_WATCHER")
    start(paths, "b")
    child = subprocess.run([sys.executable, "-c", CHILD, moment], cwd=Path(__file__).parents[2], check=False)
    assert child.returncode == -signal.SIGKILL
    until(lambda: pending_trial(paths) is None)
    assert runs_with(paths, 4096)
    assert load_catalog(paths).get("a").flags["ctx-size"] == 2048


def test_a_kill_after_the_file_was_written_keeps_the_trial(paths: Paths, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("GPUBOX_WATCHER")
    start(paths, "b")
    subprocess.run([sys.executable, "-c", CHILD, "keep"], cwd=Path(__file__).parents[2], check=False)
    until(lambda: pending_trial(paths) is None)
    assert runs_with(paths, 512)
    assert load_catalog(paths).get("a").flags["ctx-size"] == 512


def test_an_interrupted_trial_leaves_alone_what_the_owner_started_since(paths: Paths) -> None:
    async def abandon() -> None:
        trial = await Trial.begin(changed(paths), supervisor(paths))
        os.close(trial._lock)

    asyncio.run(abandon())
    asyncio.run(supervisor(paths).switch(load_catalog(paths).get("b")))
    asyncio.run(recover_trial(paths, load_config(paths)))
    assert runs_with(paths, 4096) and pending_trial(paths) is None


@pytest.mark.parametrize("step", ["stop", "load"])
def test_a_switch_that_is_cancelled_while_it_stops_or_loads_restores_the_old_server(paths: Paths, step: str) -> None:
    path = paths.profiles / "b.toml"
    path.write_text(path.read_text() + '[env]\nFAKE_STOP_SECONDS = "0.5"\n')
    start(paths, "b")

    async def cancelled() -> None:
        task, steps = asyncio.current_task(), list[str]()

        def emit(event: object) -> None:
            if isinstance(event, StepStarted) and event.step == step and not steps:
                steps.append(step)
                asyncio.get_running_loop().call_soon(task.cancel)  # type: ignore[union-attr]

        switching = Supervisor(paths, load_config(paths), emit=emit)
        await switching.switch(load_catalog(paths).get("a"), stop_now=True)

    with pytest.raises(GpuboxError, match="b is restored"):
        asyncio.run(cancelled())
    assert runs_with(paths, 4096)


def test_a_revert_that_is_cancelled_still_brings_back_what_ran(paths: Paths) -> None:
    start(paths, "b")

    async def cancelled() -> None:
        stops = asyncio.Event()

        def emit(event: object) -> None:
            if isinstance(event, StepStarted) and event.step == "stop":
                asyncio.get_running_loop().call_soon(stops.set)

        trial = await Trial.begin(changed(paths), Supervisor(paths, load_config(paths), emit=emit))
        stops.clear()
        reverting = asyncio.ensure_future(trial.revert())
        await stops.wait()
        reverting.cancel()
        await asyncio.gather(reverting, return_exceptions=True)

    asyncio.run(cancelled())
    assert runs_with(paths, 4096) and pending_trial(paths) is None


def test_a_revert_leaves_alone_what_was_started_meanwhile(paths: Paths) -> None:
    start(paths, "a")

    async def revert() -> None:
        trial = await Trial.begin(changed(paths), supervisor(paths))
        await supervisor(paths).switch(load_catalog(paths).get("b"))
        await trial.revert()

    asyncio.run(revert())
    assert runs_with(paths, 4096) and pending_trial(paths) is None
