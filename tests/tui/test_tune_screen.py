"""Tune on the screen: the plan and the question, the live picture, and what can be done with the outcome."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from gpubox.bench.plan_outline import PlanOutline
from gpubox.paths import Paths
from gpubox.tui import app as app_module
from gpubox.tui.bench import plan_form
from tests.tui.conftest import act, app_of, highlight, shows, until
from tests.tui.test_bench_screen import benching, screen_of
from tests.tui.tune_runs import tune_run

pytestmark = pytest.mark.xdist_group("benches")  # one worker fits the tunes that they show

PLAN = PlanOutline(
    665, ("search 1",), "qwen36-mtp-16gb", None, always_restarts=True, about=("72 sets of flags.", "12 too large.")
)


@pytest.fixture
def paths(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Paths:
    monkeypatch.setattr(app_module, "BENCH_POLL_SECONDS", 0.01)
    monkeypatch.setattr(plan_form, "OUTLINE_DELAY", 0.0)
    return Paths(tmp_path / "config", tmp_path / "state", tmp_path / "cache")


async def test_the_plan_is_shown_before_the_highlighted_profile_is_tuned(paths: Paths) -> None:
    async with benching(paths, open_=False) as (pilot, services):
        app, bench = app_of(pilot), services.bench
        bench.planned = PLAN
        await highlight(pilot, "qwen36-256k")
        await act(pilot, "tune")
        await shows(pilot, "Tune qwen36-256k?", "72 sets of flags", "12 too large", "gpubox tune qwen36-256k")
        await shows(pilot, "Afterwards qwen36-mtp-16gb runs again.")
        await pilot.press("n")
        await until(pilot, lambda: screen_of(pilot).is_current)
        assert bench.asked == []

        await pilot.press("1")
        await until(pilot, lambda: app.dashboard.is_current)
        await act(pilot, "tune")
        await shows(pilot, "another goal")
        await pilot.press("o")
        await shows(pilot, "Plan a run", "‹ tune ›", "‹ qwen36-256k ›", "keep-free", "minutes")
        await pilot.press("enter")
        await shows(pilot, "Tune qwen36-256k?")  # the form, too, asks before so many restarts
        await pilot.press("y")
        await until(pilot, lambda: bench.asked == [("tune", "qwen36-256k")])


async def test_a_recording_cannot_be_tuned(paths: Paths) -> None:
    async with benching(paths, open_=False) as (pilot, services):
        services.bench.read_only = "This is a recording."
        await act(pilot, "tune")
        await shows(pilot, "This is a recording.")
        services.bench.read_only, services.bench.url = "", "http://box:8080"
        await pilot.press("1")
        await until(pilot, lambda: not screen_of(pilot).is_current)
        await act(pilot, "tune")
        await shows(pilot, "cannot restart a server given by its address")
        assert services.bench.asked == []


async def test_a_tune_under_way_is_followed_and_stopped(paths: Paths) -> None:
    run = tune_run(paths, 14)
    async with benching(paths, size=(200, 50), open_=False) as (pilot, services):
        services.bench.working = run
        await shows(pilot, "bench tune ")
        await pilot.press("3")
        await shows(pilot, "14 of at most", "the profile's flags", "measuring", "12 × they would leave")
        await act(pilot, "bench_remove")
        await shows(pilot, "Stop the run?", "14 starts are done and are kept")
        await pilot.press("y")
        await until(pilot, lambda: services.bench.asked == [("stop", run.id)])


async def test_the_outcome_names_the_flags_to_change_and_is_saved_as_a_profile(paths: Paths) -> None:
    run = tune_run(paths)
    async with benching(paths, size=(120, 50)) as (pilot, services):
        await shows(pilot, "Changed flags", "save as profile")
        await until(pilot, lambda: "n-cpu-moe=18 threads=8 is faster than your" in screen_of(pilot).pane.text)
        await pilot.press("w")
        await shows(pilot, "Best: n-cpu-moe=18 threads=8", "qwen36-mtp-16gb-n-cpu-moe-18-threads-8")
        await pilot.press(*"quick", "enter")
        await until(pilot, lambda: services.bench.asked == [("keep", run.id, "quick")])


async def test_flags_that_are_as_good_as_any_are_not_saved(paths: Paths) -> None:
    tune_run(paths, gain=0.0)
    async with benching(paths, size=(120, 50)) as (pilot, services):
        await until(pilot, lambda: "your flags are" in screen_of(pilot).pane.text)
        await pilot.press("w")
        await shows(pilot, "nothing to save")
        assert services.bench.asked == []


async def test_a_tune_whose_profile_is_gone_still_shows_its_outcome(paths: Paths) -> None:
    run = tune_run(paths)
    plan = run.info.plan
    gone = tuple(replace(target, profile="was-deleted") for target in plan.targets)
    run.save(replace(run.info, plan=replace(plan, targets=gone)))
    async with benching(paths, size=(120, 50)) as (pilot, _):
        await until(pilot, lambda: "is faster than your" in screen_of(pilot).pane.text)
        await pilot.press("w")
        await shows(pilot, "was-deleted")
