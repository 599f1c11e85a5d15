"""The Bench screen: what it shows of runs and of the one at work, and what its keys ask to be done."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from textual.pilot import Pilot

from gpubox.bench.benchmark import KINDS
from gpubox.bench.model import Flag
from gpubox.paths import Paths
from gpubox.tui import rooms
from gpubox.tui.app import GpuboxApp
from gpubox.tui.bench import plan_screen
from gpubox.tui.bench.form import ABOUT, MEASURES_URLS, ROWS, command, kinds, words
from gpubox.tui.screens.bench import BenchScreen
from tests.bench_runs import speed_run
from tests.tui.conftest import opened, settled, shows, text, until
from tests.tui.fake_bench import BenchServices, FakeBench


@pytest.fixture
def box(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Paths:
    monkeypatch.setattr(rooms, "WATCH_SECONDS", 0.01)
    monkeypatch.setattr(plan_screen, "ASK_SECONDS", 0.0)
    return Paths(tmp_path / "config", tmp_path / "state", tmp_path / "cache")


@asynccontextmanager
async def benching(
    box: Paths, *, size: tuple[int, int] = (120, 36), open_: bool = True
) -> AsyncIterator[tuple[Pilot[bool], BenchServices]]:
    services = BenchServices(box)
    app = GpuboxApp(services)
    async with app.run_test(size=size, notifications=True) as pilot:
        await opened(pilot)
        if open_:
            await pilot.press("B")
            await until(pilot, lambda: app.bench and app.bench.is_current and app.bench.rows.has_focus, "the screen")
        try:
            yield pilot, services
        finally:
            services.benches_.ended.set()


def screen_of(pilot: Pilot[bool]) -> BenchScreen:
    found = pilot.app.bench  # type: ignore[attr-defined]
    assert found
    return found


def bench_of(services: BenchServices) -> FakeBench:
    return services.benches_


@pytest.mark.parametrize("size", [(80, 24), (120, 36), (200, 50)])
async def test_the_report_of_the_run_under_the_cursor(box: Paths, size: tuple[int, int]) -> None:
    speed_run(box, "slow", tg=30.0)
    speed_run(box, "fast", tg=60.0, flags=[Flag("throttling", "power cap")])
    async with benching(box, size=size) as (pilot, _):
        await shows(pilot, "2 runs", "fast", "slow", "The served path")
        assert screen_of(pilot).pane.border_title.endswith("speed-fast")
        await pilot.press("j")
        await until(pilot, lambda: screen_of(pilot).pane.border_title.endswith("speed-slow"))
        await pilot.press("enter")
        await until(pilot, lambda: screen_of(pilot).pane.has_focus and screen_of(pilot).pane.drawn)
        assert max(len("".join(t for t, _ in row)) for row in screen_of(pilot).pane.drawn) <= size[0]
        await pilot.press("escape")
        await until(pilot, lambda: screen_of(pilot).rows.has_focus)
        await pilot.press("escape")
        await until(pilot, lambda: pilot.app.screen is pilot.app.dashboard)


async def test_two_marked_runs_are_compared_and_shared(box: Paths) -> None:
    slow, fast = speed_run(box, "slow", tg=30.0), speed_run(box, "fast", tg=60.0)
    async with benching(box) as (pilot, services):
        await shows(pilot, "2 runs")
        await pilot.press("v")
        await shows(pilot, "Mark two runs")
        await pilot.press("space", "j", "space", "v")
        await shows(pilot, "Comparison", "regression")
        await pilot.press("e")
        await shows(pilot, "Without paths")
        await pilot.press("s")
        await until(pilot, lambda: bench_of(services).asked == [("export", "compare", fast.id, slow.id, "svg")])
        await pilot.press("escape")
        await until(pilot, lambda: screen_of(pilot).pane.border_title.endswith("speed-slow"))


async def test_the_leaderboard(box: Paths) -> None:
    speed_run(box, "slow", tg=30.0)
    speed_run(box, "fast", tg=60.0)
    async with benching(box) as (pilot, _):
        await shows(pilot, "2 runs")
        await pilot.press("L")
        await shows(pilot, "Leaderboard", "PROFILE")
        board = [line for line in text(pilot).splitlines() if "1  fast" in line or "2  slow" in line]
        assert len(board) == 2


async def test_a_run_started_elsewhere_is_followed_and_marked_on_the_dashboard(box: Paths) -> None:
    run = speed_run(box, share=0.5, state="interrupted")
    async with benching(box, open_=False) as (pilot, services):
        bench_of(services).working = run
        done, of = len(run.results()), len(run.items())
        await shows(pilot, f"bench speed {done}/{of}")
        await pilot.press("3")
        await shows(pilot, "at work", f"{done} of {of}", "left", "so far", "Last items", run.items()[done].id)
        with run.owned():
            run.add_result(next(iter(run.results().values())).__class__(run.items()[done].id, {"tg": 1.0}, 4.0))
        await shows(pilot, f"{done + 1} of {of}")
        await pilot.press("x")
        await shows(pilot, "Stop the run?")
        await pilot.press("y")
        await until(pilot, lambda: bench_of(services).asked == [("stop", run.id)])
        await until(pilot, lambda: "bench speed" not in text(pilot))


async def test_b_says_what_it_will_do_before_it_measures_what_runs(box: Paths) -> None:
    async with benching(box, open_=False) as (pilot, services):
        await pilot.press("b")
        await shows(pilot, "Measure qwen36-mtp-16gb?", "45 items", "runs again", "gpubox bench speed qwen36-mtp-16gb")
        assert "answered" not in text(pilot)
        await pilot.press("n")
        await until(pilot, lambda: screen_of(pilot).is_current)
        assert bench_of(services).asked == []
        bench_of(services).answered = ("qwen36-mtp-16gb: slot 0 answers",)
        await pilot.press("1")
        await until(pilot, lambda: pilot.app.screen is pilot.app.dashboard)
        await pilot.press("b")
        await shows(pilot, "Somebody is being answered", "cut off")
        await pilot.press("y")
        await until(pilot, lambda: bench_of(services).asked == [("speed", "qwen36-mtp-16gb", "--now")])
        await shows(pilot, "being started")
        await pilot.press("n")
        await shows(pilot, "one at a time")


async def test_a_run_that_does_not_begin_says_why(box: Paths) -> None:
    async with benching(box) as (pilot, services):
        bench = bench_of(services)
        bench.end = type(bench.end)(False, "No sandbox confines here.")
        bench.ended.set()
        await pilot.press("n")
        await shows(pilot, "Plan a run", "TTFT", "45 items")
        await pilot.press("enter")
        await shows(pilot, "No sandbox confines here.")
        assert bench.asked == [("speed", "qwen36-mtp-16gb")]


async def test_a_plan_is_the_command_that_does_the_same(box: Paths) -> None:
    async with benching(box) as (pilot, services):
        await pilot.press("n")
        await shows(pilot, "gpubox bench speed qwen36-mtp-16gb")
        await pilot.press("down", "down", "right")
        await shows(pilot, "gpubox bench speed qwen36-mtp-16gb --preset quick")
        await pilot.press("up", "up", "right")
        await shows(pilot, "gpubox bench", "B")
        await settled(pilot)
        await pilot.press("escape")
        await until(pilot, lambda: screen_of(pilot).is_current)
        assert bench_of(services).asked == []


async def test_a_run_is_resumed_and_removed(box: Paths) -> None:
    run = speed_run(box, share=0.5, state="interrupted")
    async with benching(box) as (pilot, services):
        await shows(pilot, "1 run")
        await pilot.press("r")
        await until(pilot, lambda: bench_of(services).asked == [("resume", run.id)])
        bench_of(services).ended.set()
        await until(pilot, lambda: not screen_of(pilot).starting)
        await pilot.press("x")
        await shows(pilot, "Delete")
        await pilot.press("y")
        await shows(pilot, "0 runs", "No run yet")


@pytest.mark.parametrize(
    ("kind", "chosen", "expected"),
    [
        ("speed", {"profile": "a"}, "gpubox bench speed a"),
        ("speed", {"profile": "a", "depths": "0,8192", "llama-bench": "--no-llama-bench"},
         "gpubox bench speed a --depths 0,8192 --no-llama-bench"),
        ("ab", {"profile": "a", "second": "b"}, "gpubox bench ab a b"),
        ("ab", {"profile": "a", "set": "n-cpu-moe=20 mmap=false"},
         "gpubox bench ab a --set n-cpu-moe=20 --set mmap=false"),
        ("sweep", {"profile": "a", "over": "ctx-size=8192,16384 n-cpu-moe=16..28:2"},
         "gpubox bench sweep a --over ctx-size=8192,16384 --over n-cpu-moe=16..28:2"),
        ("humaneval", {"profile": "a", "mode": "agentic", "limit": "20"},
         "gpubox bench humaneval a --mode agentic --limit 20"),
        ("suite", {"profile": "a", "compat": "--compat"}, "gpubox bench suite a --compat"),
    ],
)  # fmt: skip
def test_the_words_of_a_form(kind: str, chosen: dict[str, str], expected: str) -> None:
    assert command(words(kind, chosen)) == expected
    if kind in MEASURES_URLS:
        assert "--url http://x" in command(words(kind, chosen, "http://x"))


def test_a_server_by_its_address_is_measured_by_the_kinds_that_can() -> None:
    assert set(kinds(list(KINDS), url=True)) == MEASURES_URLS


def test_every_kind_has_a_form() -> None:
    assert set(ROWS) == set(KINDS) == set(ABOUT)
