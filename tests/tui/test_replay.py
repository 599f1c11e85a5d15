"""A recording on the screen: what the README's pictures are svg of."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path
from types import ModuleType

import pytest

from gpubox.bench.report.run_summaries import RunProgress
from gpubox.config import Config
from gpubox.errors import UsageError
from gpubox.paths import MAIN_INSTANCE, Paths
from gpubox.telemetry.recorder import read_recording
from gpubox.tui import app as app_module
from gpubox.tui.app import GpuboxApp
from gpubox.tui.replay_services import ReplayServices, open_recording
from tests.bench_runs import speed_run
from tests.tui.conftest import SIZE, app_of, shows, text, until
from tests.tui.fake_bench import FakeBench

ASSETS = Path(__file__).parent.parent.parent / "assets"
RECORDING = ASSETS / "dashboard.jsonl"


@pytest.fixture
def pictures() -> ModuleType:
    """The script that makes them."""
    spec = importlib.util.spec_from_file_location("make_pictures", ASSETS / "make_pictures.py")
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


async def test_the_pictures_can_be_made(pictures: ModuleType) -> None:
    svg = await pictures.picture()
    shown = svg.replace("&#160;", " ")
    for word in ("random-moe-17b", "VRAM 15.5 of 23.5 GiB", "127 of 142", "7 of 40", "RPC device", "recording"):
        assert word in shown
    assert "@font-face" not in svg, "nothing is fetched to look at it"


def test_the_recording_tells_nothing_of_the_machine_it_was_made_on() -> None:
    raw = RECORDING.read_text(encoding="utf-8")
    assert len(raw) < 250_000
    assert set(re.findall(r'"(/[^"]*)"', raw)) == {"/usr/local/bin/llama-server"}


async def test_a_recording_plays_to_its_end(paths: Paths) -> None:
    services = ReplayServices(read_recording(RECORDING), paths, Config(), speed=100_000)
    async with GpuboxApp(services).run_test(size=SIZE, notifications=True) as pilot:
        await shows(pilot, "● random-moe-17b answering", "recording", "127 of 142 (89.4%)", "12:48:41")
        assert services.next is None
        await until(pilot, lambda: "╭─ Requests" in text(pilot))
        await pilot.press("s")
        await shows(pilot, "nothing in it can be changed")


def test_what_is_no_recording_is_said(paths: Paths, tmp_path: Path) -> None:
    path = tmp_path / "notes.txt"
    path.write_text("hello\n")
    with pytest.raises(UsageError, match="is not a gpubox recording"):
        open_recording(path, paths, Config())


async def test_what_is_measured_here_now_is_no_part_of_a_recording(
    paths: Paths, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(app_module, "BENCH_POLL_SECONDS", 0.0)
    services, bench = open_recording(RECORDING, paths, Config()), FakeBench(paths)
    bench.working = speed_run(paths, "demo", share=0.5)
    looks: list[int] = []
    active = bench.active

    async def counted() -> RunProgress | None:
        looks.append(1)
        return await active()

    monkeypatch.setattr(bench, "active", counted)
    monkeypatch.setattr(services, "bench_service", lambda: bench)
    async with GpuboxApp(services).run_test(size=SIZE) as pilot:
        await shows(pilot, "recording")
        await until(pilot, lambda: len(looks) > 2, "looks at what is measured")
        assert not app_of(pilot).dashboard.header.bench


async def test_the_log_of_this_machine_is_no_part_of_a_recording(paths: Paths) -> None:
    log = paths.instance_log(MAIN_INSTANCE)
    log.parent.mkdir(parents=True, exist_ok=True)
    log.write_text("srv  update_slots: a line of the server that runs here\n")
    async with GpuboxApp(open_recording(RECORDING, paths, Config())).run_test(size=SIZE) as pilot:
        await shows(pilot, "recording")
        await pilot.press("l")
        await shows(pilot, "Log")
        assert "runs here" not in text(pilot)
        assert app_of(pilot).bridge.services.read_log() == []
