"""Pictures of the Bench screen: the list with a report, an active run, a comparison."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, tzinfo
from pathlib import Path

import pytest
from syrupy.assertion import SnapshotAssertion

from gpubox.bench.model import Doubt
from gpubox.paths import Paths
from gpubox.tui import app as app_module
from gpubox.tui import styled_lines
from gpubox.tui.app import GpuboxApp
from gpubox.tui.bench.bench_screen import BenchScreen
from tests.bench_runs import speed_run
from tests.tui.conftest import SIZES, opened, pictured, shows, until
from tests.tui.fake import BUSY
from tests.tui.fake_bench import BenchServices
from tests.tui.snapshots import ANSWERING
from tests.tui.tune_runs import tune_run

pytestmark = pytest.mark.xdist_group("benches")  # one worker fits the tunes that they show

WIDTHS = {"80x24": "-narrow", "120x36": "-wide", "160x45": "-roomy", "200x50": "-roomy"}

SPEEDS = {"at_work": 50.1, "tune": 76.3}
"""What the measured server writes now, tok/s."""


class Today(datetime):
    """The moment of the pictures."""

    @classmethod
    def now(cls, tz: tzinfo | None = None) -> Today:
        return cls(2026, 11, 22, 13, 2, tzinfo=tz)


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
    monkeypatch.setattr(styled_lines, "datetime", Today)
    box = Paths(tmp_path / "config", tmp_path / "state", tmp_path / "cache")
    before, after = (("/opt/llama/llama-server", "--n-cpu-moe", moe) for moe in ("36", "28"))
    speed_run(box, "qwen36-256k", tg=41.0, seed=3, doubts=[Doubt("throttling", "power cap for 40 % of the time")],
              at="2026-11-20T21:40:00Z")  # fmt: skip
    speed_run(box, "demo", tg=212.0, seed=4, state="interrupted", share=0.7, at="2026-11-21T17:05:00Z")
    speed_run(box, "qwen36-mtp-16gb", tg=48.0, seed=1, argv=before, at="2026-11-21T18:00:00Z")
    last = speed_run(box, "qwen36-mtp-16gb", tg=60.0, seed=2, share=0.6 if scene == "at_work" else 1.0, argv=after,
                     at=f"2026-11-22T{'13:00:30' if scene == 'at_work' else '11:20:00'}Z")  # fmt: skip
    runs = 4
    if scene == "comparison":  # in turn, often enough to tell
        for seed in range(10, 15):
            speed_run(box, "qwen36-mtp-16gb", tg=48.0, seed=seed, argv=before, at=f"2026-11-22T12:{seed - 10}0:00Z")
            speed_run(box, "qwen36-mtp-16gb", tg=60.0, seed=20 + seed, argv=after, at=f"2026-11-22T12:{seed - 10}5:00Z")
        runs = 14
    services = BenchServices(box)
    monkeypatch.setattr(services, "clock", Today.now)
    if scene in SPEEDS:
        services.status = BUSY
        services.extra_readings = {"throughput": replace(ANSWERING, tg_tokens_per_second=SPEEDS[scene])}
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
            await shows(pilot, ", active", "▶ bench", "answering")
        else:
            await shows(pilot, "Speed over HTTP")
        await pictured(pilot, snapshot)
