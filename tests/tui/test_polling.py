"""Polling: readings that fail, blocking calls in threads, crashes that are handled once."""

from __future__ import annotations

import asyncio
import signal
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from gpubox.clock import utc_now
from gpubox.config import Config
from gpubox.hardware.gpu import DriverReading, Gpu
from gpubox.paths import Paths
from gpubox.server import watcher
from gpubox.server.state import load_state, save_state
from gpubox.tui import bridge as bridge_module
from gpubox.tui.app import GpuboxApp
from gpubox.tui.bridge import ServiceBridge, SnapshotPoller
from gpubox.tui.remembered import LastSeen
from gpubox.tui.services import LocalServices
from tests.tui.conftest import SIZE, app_of, on_dashboard, text, until
from tests.tui.fake import BUSY, READY, STOPPED, FakeServices
from tests.unit.llama_box import LlamaBox

CRASHED = replace(STOPPED, state="crashed", message="a died: killed (SIGKILL).")


@pytest.mark.parametrize("error", [OSError(5, "Input/output error"), LookupError("x")], ids=["disk", "mistake"])
async def test_a_reading_that_fails_leaves_the_screen_up_and_it_recovers(
    error: Exception, fake: FakeServices, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bridge_module, "RETRY_SECONDS", 0.01)
    async with on_dashboard(fake) as pilot:
        good, failed = fake.snapshot, []

        async def broken() -> Any:
            failed.append(1)
            raise error

        fake.snapshot = broken  # type: ignore[method-assign]
        fake.status = replace(READY, pid=4713)  # the one that is waited for comes, and then
        await until(pilot, lambda: len(failed) > 2)
        assert "Throughput" in text(pilot)

        fake.snapshot = good  # type: ignore[method-assign]
        fake.status = replace(CRASHED, message="a died: of something else.")
        await until(pilot, lambda: "of something else" in text(pilot))


class Stub(FakeServices):
    """Records in which threads its blocking methods are called."""

    def __init__(self) -> None:
        super().__init__()
        self.eager = True
        self.on_the_loop: dict[str, bool] = {}

    def _called(self, name: str) -> None:
        here = threading.current_thread() is threading.main_thread()
        self.on_the_loop[name] = self.on_the_loop.get(name, False) or here

    def read_log(self) -> list[str]:
        self._called("read_log")
        return ["a line"]

    def companions_and_last(self) -> tuple[tuple[str, ...], str | None]:
        self._called("companions_and_last")
        return (), None

    def handle_crash(self) -> str:
        self._called("handle_crash")
        return super().handle_crash()


def bridge_to(services: FakeServices) -> tuple[ServiceBridge, list[Any]]:
    """A bridge without a screen, and the messages that it posts."""
    posted: list[Any] = []
    app = SimpleNamespace(post_message=posted.append, say=lambda text, bad: posted.append(text))
    return ServiceBridge(app, services), posted  # type: ignore[arg-type]


async def while_running(work: Any, true: Callable[[], object]) -> None:
    """Runs ``work`` until it is ``true``."""
    task = asyncio.create_task(work)
    async with asyncio.timeout(30):
        while not true():
            assert not task.done()
            await asyncio.sleep(0.005)
    task.cancel()
    await asyncio.wait([task])


async def test_blocking_methods_are_called_in_threads() -> None:
    stub = Stub()
    stub.status = CRASHED
    bridge, posted = bridge_to(stub)
    await while_running(bridge._poll_log(), lambda: posted)
    await while_running(
        SnapshotPoller(bridge).run(), lambda: {"companions_and_last", "handle_crash"} <= set(stub.on_the_loop)
    )

    assert stub.on_the_loop == {"read_log": False, "companions_and_last": False, "handle_crash": False}


async def test_a_crash_is_handled_once_and_so_is_the_next_one() -> None:
    stub = FakeServices()
    stub.eager, stub.death = True, "a died. It is restarted."
    bridge, posted = bridge_to(stub)
    watching = SnapshotPoller(bridge)

    for status, expected in ((READY, 0), (CRASHED, 1), (CRASHED, 1), (READY, 1), (CRASHED, 2)):
        stub.status = status
        await watching.sample()
        assert posted.count(stub.death) == expected

    bridge.operation_running, stub.status = True, READY
    await watching.sample()
    stub.status = CRASHED  # during our own operation, whose progress says it
    await watching.sample()
    assert posted.count(stub.death) == 2


async def test_an_idle_server_is_sampled_seldom_until_there_is_activity(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bridge_module, "IDLE_SNAPSHOT_SECONDS", 3600.0)
    stub = FakeServices()
    stub.eager, pulses, moved = True, [0], [0]

    def activity_marker() -> object:
        pulses[0] += 1
        return moved[0]

    stub.activity_marker = activity_marker  # type: ignore[method-assign]
    bridge, _ = bridge_to(stub)

    def looked(times: int) -> Callable[[], bool]:
        before = pulses[0]
        return lambda: pulses[0] > before + times

    watching = asyncio.create_task(SnapshotPoller(bridge).run())
    async with asyncio.timeout(30):
        for expected in (1, 2, 3):
            while len(stub.asked_now) < expected:
                await asyncio.sleep(0.005)
            enough = looked(10)
            while not enough():
                await asyncio.sleep(0.005)
            assert len(stub.asked_now) == expected
            moved[0] += 1
        stub.status = BUSY  # at work: at each tick
        while len(stub.asked_now) < 10:
            await asyncio.sleep(0.005)
    watching.cancel()
    await asyncio.wait([watching])


async def test_a_growing_log_and_a_changed_state_file_change_the_activity_marker(paths: Paths) -> None:
    services = LocalServices(paths, Config())
    seen = [services.activity_marker()]
    for path in (paths.instance_log("main"), paths.instance_state("main")):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("one\n")
        seen.append(services.activity_marker())
    with paths.instance_log("main").open("a") as log:
        log.write("two\n")
    seen.append(services.activity_marker())
    with paths.instance_log("main").open("a") as log:
        log.write("1.05.223.942 I srv  update_slots: all slots are idle\n")  # the answer to a poll of gpubox

    assert all(utc_now != before for before, utc_now in pairwise(seen))
    assert services.activity_marker() == seen[-1]


# -- crash handling: a real process, killed ---------------------------------------------------------


@pytest.fixture
def box(paths: Paths, write_profile: Callable[[str, str], Path]) -> Iterator[LlamaBox]:
    write_profile("a", 'model = "/m.gguf"\nrestart = true\n')
    llama_box = LlamaBox(paths)
    llama_box.launch = replace(llama_box.launch, restart=True)
    llama_box.running = replace(llama_box.running, launch=llama_box.launch)
    yield llama_box
    llama_box.close()


def die(box: LlamaBox, launch_id: str) -> None:
    box.start(launch_id=launch_id)
    box.write("0.09.000.000 I srv  update_slots: the last line\n")
    box.signal(signal.SIGKILL)


def test_a_killed_server_gets_a_post_mortem_and_is_handed_to_its_watcher_at_most_three_times(
    box: LlamaBox, paths: Paths, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("GPUBOX_WATCHER")
    started: list[str] = []

    def ensure_watcher(paths: Paths, slot: str, process: object) -> bool:
        started.append(load_state(paths.instance_state(slot)).running.launch_id)  # type: ignore[union-attr]
        return True

    monkeypatch.setattr(watcher, "ensure_watcher", ensure_watcher)
    services = LocalServices(paths, Config())
    for number in range(3):
        die(box, f"launch-{number}")
        outcome = services.handle_crash()
        assert outcome.startswith("a died: ")
        assert outcome.endswith("It is restarted.")
        assert started == [f"launch-{n}" for n in range(number + 1)]
        state = load_state(paths.instance_state("main"))
        save_state(paths.instance_state("main"), replace(state, restarts=(*state.restarts, utc_now())))
    assert len(list(paths.crashes.iterdir())) == 3
    assert "the last line" in next(paths.crashes.iterdir()).read_text()

    die(box, "launch-4")
    assert services.handle_crash().endswith("It is not restarted: it died 3 times in 15 minutes.")
    assert len(started) == 3


def test_it_is_not_started_into_a_lost_gpu(box: LlamaBox, paths: Paths) -> None:
    services = LocalServices(paths, Config())
    lost = DriverReading((Gpu(0, lost=True),))
    services._driver = SimpleNamespace(latest=lambda: lost)  # type: ignore[assignment]
    die(box, "launch")

    assert services.handle_crash().endswith("It is not restarted: a GPU is lost.")


async def test_snapshots_go_into_the_history_until_the_screen_closes(
    fake: FakeServices, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bridge_module, "HISTORY_SECONDS", 0.0)
    pushed: list[Any] = []
    closed: list[bool] = []
    told: list[str] = []
    monkeypatch.setattr(GpuboxApp, "say", lambda app, text, bad: told.append(text))

    def writer(on_problem: Callable[[str], object]) -> Any:
        assert threading.current_thread() is not threading.main_thread()
        on_problem("The history was damaged.")
        return SimpleNamespace(push=pushed.append, close=lambda: closed.append(True))

    fake.eager = True
    fake.history_writer = writer  # type: ignore[method-assign]
    async with GpuboxApp(fake).run_test(size=SIZE) as pilot:
        await until(pilot, lambda: pushed and told)
        assert not closed
    assert (told, closed) == (["The history was damaged."], [True])


# -- the start: what was shown last, then readings, then all else ------------------------------------

LAST = LastSeen("2026-11-20T07:41:00.000Z", "answering", "big", (("VRAM", 13 << 30, 16 << 30),), 18.9, ("big", "mine"))


class Slow(FakeServices):
    """Answers with a snapshot, and with the profiles, when the test says so."""

    def __init__(self) -> None:
        super().__init__()
        self.last_shown = LAST
        self.may_sample, self.may_read = asyncio.Event(), threading.Event()
        self.began: list[str] = []

    async def snapshot(self) -> Any:
        self.began.append("snapshot")
        await self.may_sample.wait()
        return await super().snapshot()

    def catalog(self) -> Any:
        self.began.append("catalog")
        assert self.may_read.wait(30)
        return super().catalog()

    def read_log(self) -> list[str]:
        self.began.append("log")
        return super().read_log()


@pytest.mark.parametrize("size", [(80, 24), (160, 45)])
async def test_the_first_frame_is_that_of_the_last_time_and_is_never_taken_for_live(
    size: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bridge_module, "FIRST_FIGURES_SECONDS", 3600.0)
    slow = Slow()
    async with GpuboxApp(slow).run_test(size=size) as pilot:
        await until(pilot, lambda: slow.began)
        header, *below = text(pilot).splitlines()
        assert "… big was answering" in header and "as of 20 Nov" in header and "●" not in text(pilot)
        assert any("13.0 of 16.0 GiB" in line for line in below) and any("18.9 tok/s" in line for line in below)
        assert any("mine" in line for line in below) == (size[0] > 80)
        await pilot.press("down", "enter")  # nothing is done to what is only remembered
        assert slow.began == ["snapshot"] and app_of(pilot).dashboard.profiles.entry is None

        slow.may_sample.set()
        await until(pilot, lambda: "catalog" in slow.began and "as of" not in text(pilot))
        assert f"● {READY.profile}" in text(pilot) and "was answering" not in text(pilot)
        assert "log" not in slow.began and not slow.asked
        slow.may_read.set()
        await until(pilot, lambda: "log" in slow.began)
    assert slow.last_shown and slow.last_shown.profile == READY.profile and "demo" in slow.last_shown.profiles


async def test_a_server_that_does_not_answer_delays_only_the_readings(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bridge_module, "FIRST_FIGURES_SECONDS", 0.01)
    slow = Slow()
    slow.may_read.set()
    async with GpuboxApp(slow).run_test(size=SIZE) as pilot:
        await until(pilot, lambda: "log" in slow.began and "qwen36-256k" in text(pilot))
        assert "… big was answering" in text(pilot) and "as of 20 Nov" in text(pilot)
