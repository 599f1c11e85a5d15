"""Pictures of the Bench screen: the list with a report, an active run, a comparison."""

from __future__ import annotations

from pathlib import Path

import pytest
from syrupy.assertion import SnapshotAssertion

from gpubox.bench.model import Doubt
from gpubox.paths import Paths
from gpubox.tui import app as app_module
from gpubox.tui.app import GpuboxApp
from gpubox.tui.bench import run_pane
from gpubox.tui.bench.bench_screen import BenchScreen
from tests.bench_runs import speed_run
from tests.tui.conftest import SIZES, opened, pictured, shows, until
from tests.tui.fake_bench import BenchServices
from tests.tui.tune_runs import tune_run

pytestmark = pytest.mark.xdist_group("benches")  # one worker fits the tunes that they show

WIDTHS = {"80x24": "-narrow", "120x36": "-wide", "160x45": "-roomy", "200x50": "-roomy"}


def arranged(screen: BenchScreen, name: str) -> bool:
    """Whether list and pane have the layout of this width."""
    rows, pane = screen.rows.region, screen.pane.region
    beside = pane.x > rows.x if name != "-narrow" else pane.y > rows.y
    return screen.has_class(name) and beside and pane.width > 0


@pytest.mark.parametrize("scene", ["report", "at_work", "comparison", "tune"])
@pytest.mark.parametrize("size", SIZES)
async def test_picture(
    snapshot: SnapshotAssertion, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, size: str, scene: str
) -> None:
    monkeypatch.setenv("COLUMNS", size.split("x")[0])
    monkeypatch.setattr(app_module, "BENCH_POLL_SECONDS", 0.01)
    monkeypatch.setattr(run_pane, "time_or_date", lambda iso: "18:00")
    box = Paths(tmp_path / "config", tmp_path / "state", tmp_path / "cache")
    speed_run(box, "qwen36-256k", tg=41.0, seed=3, doubts=[Doubt("throttling", "power cap for 40 % of the time")])
    speed_run(box, "demo", tg=212.0, seed=4, state="interrupted", share=0.7)
    speed_run(box, "qwen36-mtp-16gb", tg=48.0, seed=1)
    last = speed_run(box, "qwen36-mtp-16gb", tg=60.0, seed=2, share=0.6 if scene == "at_work" else 1.0,
                     argv=("/opt/llama/llama-server", "--n-cpu-moe", "28"))  # fmt: skip
    runs = 4
    if scene == "comparison":  # in turn, often enough to tell
        for seed in range(10, 15):
            speed_run(box, "qwen36-mtp-16gb", tg=48.0, seed=seed)
            last = speed_run(box, "qwen36-mtp-16gb", tg=60.0, seed=20 + seed,
                             argv=("/opt/llama/llama-server", "--n-cpu-moe", "28"))  # fmt: skip
        runs = 14
    services = BenchServices(box)
    if scene == "tune":
        runs, services.bench.working = 5, tune_run(box, 14)
    if scene == "at_work":
        services.bench.working = last
    app = GpuboxApp(services)
    async with app.run_test(size=SIZES[size]) as pilot:
        await opened(pilot)
        await pilot.press("3")
        await until(pilot, lambda: app.bench and app.bench.is_current and app.bench.header.gpu_readings, "the screen")
        await shows(pilot, f"{runs} runs")
        await until(pilot, lambda: app.bench and arranged(app.bench, WIDTHS[size]), "the layout of this width")
        if scene == "comparison":
            await pilot.press("j", "space", "k", "space", "v")
            await shows(pilot, "Comparison", "faster than")
        elif scene in ("at_work", "tune"):
            await shows(pilot, ", active", "▶ bench")
        else:
            await shows(pilot, "Speed over HTTP")
        await pictured(pilot, snapshot)
