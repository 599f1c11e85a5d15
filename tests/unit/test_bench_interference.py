"""Interference is flagged: throttling, other GPU programs, clocks, a busy CPU; and what a run records of its setup."""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from gpubox.bench import interference
from gpubox.bench.interference import InterferenceMonitor, ItemReadings
from gpubox.bench.model import Doubt, Plan, Target
from gpubox.bench.overrides import apply_overrides
from gpubox.bench.plan_outline import outline_plan
from gpubox.bench.provenance import FileHashes, engine_files, read_machine
from gpubox.bench.target_server import ActiveTarget, TargetServer
from gpubox.config import Config
from gpubox.engines.option_values import parse_flag_change
from gpubox.errors import UsageError
from gpubox.hardware.gpu import DriverReading, Gpu, GpuProcess
from gpubox.paths import Paths
from gpubox.profiles.profile import Profile

CARD = Gpu(0, name="RTX", power_watts=250.0, temperature_celsius=60, clock_sm_mhz=2500, throttle_reasons=(),
    processes=(GpuProcess(11, "Xorg", 300 << 20),),
)  # fmt: skip


class Driver:
    """In DriverReader's place: what the driver says is what the test says."""

    def __init__(self) -> None:
        self.card: Gpu = CARD
        self.reads = 0

    def latest(self) -> DriverReading:
        self.reads += 1
        return DriverReading((self.card,), "580")

    def close(self) -> None:
        pass


@pytest.fixture
def paths(tmp_path: Path) -> Paths:
    return Paths(tmp_path / "config", tmp_path / "state", tmp_path / "cache")


@pytest.fixture
def driver(monkeypatch: pytest.MonkeyPatch) -> Iterator[Driver]:
    fake = Driver()
    monkeypatch.setattr(interference, "read_driver", fake.latest)
    monkeypatch.setattr(interference, "DriverReader", lambda period: fake)
    monkeypatch.setattr(interference, "PERIOD_SECONDS", 0.001)
    yield fake


def profiles(name: str) -> Profile:
    return Profile(name, "/m.gguf", flags={"ctx-size": 4096, "spec-type": "draft-mtp"})


async def watched(monitor: InterferenceMonitor, driver: Driver) -> ItemReadings:
    """One item that lasts for ten readings."""
    async with monitor.watch("item") as watch, asyncio.timeout(30):
        wanted = driver.reads + 10
        while driver.reads < wanted:
            await asyncio.sleep(0.001)
    return watch


async def test_throttling_other_programs_and_clocks_are_flagged(paths: Paths, driver: Driver) -> None:
    monitor = InterferenceMonitor(TargetServer(paths, Config(), profiles))
    assert monitor.driver.driver_version == "580"

    quiet = await watched(monitor, driver)
    driver.card = replace(CARD, throttle_reasons=("power cap", "application clocks"), clock_sm_mhz=2100)
    driver.card = replace(driver.card, processes=(*CARD.processes, GpuProcess(77, "blender", 2 << 30)))
    loud = await watched(monitor, driver)
    again = await watched(monitor, driver)

    assert quiet.doubts == []
    assert quiet.samples[0].power_watts == 250.0
    assert [doubt for doubt in loud.doubts if doubt.kind != "busy CPU"] == [
        Doubt("throttling", "the clocks were limited by power cap in 100% of the readings", "item"),
        Doubt("other GPU process", "blender started to use GPU 0", "item"),
        Doubt("clocks", "the SM clock was 2100 MHz; it was 2500 MHz at the beginning", "item"),
    ]
    assert {doubt.kind for doubt in again.doubts} >= {"throttling", "clocks"}
    assert "other GPU process" not in {doubt.kind for doubt in again.doubts}
    monitor.close()


async def test_programs_on_the_gpu_before_the_run_are_flagged(paths: Paths, driver: Driver) -> None:
    processes = (
        GpuProcess(77, "comfyui", 4 << 30),
        GpuProcess(78, None, None),
        GpuProcess(os.getpid(), "python", 9 << 30),
    )
    driver.card = replace(CARD, processes=(*CARD.processes, *processes))
    monitor = InterferenceMonitor(TargetServer(paths, Config(), profiles))

    assert monitor.other_gpu_processes == ("Xorg", "comfyui", "unnamed program")
    machine = read_machine(monitor.driver, "", monitor.other_gpu_processes)
    assert machine.gpu_processes == monitor.other_gpu_processes
    assert monitor.initial_doubts() == [Doubt("other GPU process", "comfyui used 4.0 GiB of GPU 0 before the run")]
    assert "other GPU process" not in {doubt.kind for doubt in (await watched(monitor, driver)).doubts}  # reported once


async def test_a_program_that_the_run_started_is_not_flagged(paths: Paths, driver: Driver) -> None:
    monitor = InterferenceMonitor(TargetServer(paths, Config(), profiles))
    process = await asyncio.create_subprocess_exec("cat", stdin=asyncio.subprocess.PIPE)  # in llama-perplexity's place
    driver.card = replace(CARD, processes=(*CARD.processes, GpuProcess(process.pid, "llama-perplexity", 2 << 30)))

    readings = await watched(monitor, driver)

    process.kill()
    await process.wait()
    assert "other GPU process" not in {doubt.kind for doubt in readings.doubts}


class Clock:
    """Time and CPU time as a test has them pass: ``cores`` of other programs' work."""

    def __init__(self) -> None:
        self.now = self.used = 0.0

    def passes(self, seconds: float, cores: float) -> None:
        self.now, self.used = self.now + seconds, self.used + cores * seconds


async def test_short_items_are_judged_together(paths: Paths, driver: Driver, monkeypatch: pytest.MonkeyPatch) -> None:
    monitor, clock = InterferenceMonitor(TargetServer(paths, Config(), profiles)), Clock()
    monkeypatch.setattr(interference, "time", SimpleNamespace(monotonic=lambda: clock.now))
    monkeypatch.setattr(monitor, "_cpu_seconds_of_others", lambda: clock.used)

    async def item(seconds: float, cores: float) -> list[Doubt]:
        async with monitor.watch("item") as watch:
            clock.passes(seconds, cores)
        return [doubt for doubt in watch.doubts if doubt.kind == "busy CPU"]

    busy = Doubt("busy CPU", "other programs kept 1.5 cores busy", "item")
    assert [await item(0.4, 1.5) for _ in range(6)] == [[], [], [busy], [], [], [busy]]
    assert [await item(0.4, 0.1) for _ in range(6)] == [[]] * 6
    assert await item(2.0, 1.5) == [busy]


async def test_the_clocks_of_items_with_one_reading_are_judged_together(paths: Paths, driver: Driver) -> None:
    monitor = InterferenceMonitor(TargetServer(paths, Config(), profiles))

    async def short(clock: int) -> list[str]:
        driver.card = replace(CARD, clock_sm_mhz=clock)
        async with monitor.watch("item") as watch:
            await asyncio.sleep(0)  # the first reading
        return [doubt.kind for doubt in watch.doubts if doubt.kind == "clocks"]

    assert [await short(clock) for clock in (210, 2500, 2500, 2500, 2480, 2500)] == [[]] * 6  # idle before the first
    assert [await short(2000) for _ in range(3)] == [[], [], ["clocks"]]


def test_the_machine_is_described(driver: Driver) -> None:
    machine = read_machine(driver.latest(), "bubblewrap", ())

    assert (machine.driver, machine.gpus[0]["name"], machine.sandbox) == ("580", "RTX", "bubblewrap")
    assert machine.ram_bytes


def test_a_hash_is_kept_until_its_file_changes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = tmp_path / "m.gguf"
    model.write_bytes(b"one")
    hashes = FileHashes(tmp_path / "cache")
    first = hashes.of([model])

    with monkeypatch.context() as patch:
        patch.setattr("gpubox.bench.provenance.hashlib.sha256", lambda *_: pytest.fail("hashed again"))
        assert FileHashes(tmp_path / "cache").of([model]) == first
    model.write_bytes(b"other")

    assert len(first) == 64
    assert hashes.of([model]) != first
    assert hashes.of([model, tmp_path / "gone"]) == ""


def test_llama_and_ggml_libraries_are_part_of_the_engine(tmp_path: Path) -> None:
    for name in ("llama-server", "libllama.so.0.1", "libggml-cuda.so", "libc.so", "notes.txt"):
        (tmp_path / name).touch()

    names = [path.name for path in engine_files("real", tmp_path / "llama-server")]

    assert names == ["libggml-cuda.so", "libllama.so.0.1", "llama-server"]


def test_overrides_are_parsed_and_applied(paths: Paths) -> None:
    flags = dict([parse_flag_change("--n-cpu-moe=4"), parse_flag_change("mmap=false"), parse_flag_change("spec-type=")])
    flags |= dict([parse_flag_change("cache-type-k=q8_0"), parse_flag_change("tensor-split=[3, 1]")])

    profile = apply_overrides(profiles("a"), Target("a", "a", flags))

    assert profile.flags == {
        "ctx-size": 4096, "n-cpu-moe": 4, "mmap": False, "cache-type-k": "q8_0", "tensor-split": (3, 1),
    }  # fmt: skip
    for text in ("a=nan", "a=inf", f"a={'9' * 30}", f"a={'9' * 5000}", f"a={'[' * 5000}"):
        assert parse_flag_change(text) == ("a", text[2:])  # no file can hold them: the engine refuses the word
    for text in ("mmap", "=4", "a={x=1}"):
        with pytest.raises(UsageError):
            parse_flag_change(text)


@pytest.mark.parametrize("name", ["host", "--port", "m", "hf_repo", "api-key", "hf-token", "api-key-file"])
def test_profile_fields_and_secrets_cannot_be_overridden(name: str) -> None:
    with pytest.raises(UsageError, match=r"field of the profile|secret"):
        apply_overrides(profiles("a"), Target("a", "a", {name: "0.0.0.0"}))


def test_a_plan_has_an_outline(paths: Paths) -> None:
    plan = Plan("speed", (Target("a", "a"), Target("far", url="http://x")), {"preset": "quick", "repeats": 2})

    outline = outline_plan(plan, paths)

    assert (outline.items, outline.starts, outline.restored_profile, outline.seconds) == (18, ("a",), None, None)


async def test_a_ctrl_c_at_the_end_of_an_item_is_not_lost(paths: Paths, driver: Driver) -> None:
    monitor = InterferenceMonitor(TargetServer(paths, Config(), profiles))

    with contextlib.closing(monitor), pytest.raises(asyncio.CancelledError):
        async with monitor.watch("item"):
            await asyncio.sleep(0)
            asyncio.current_task().cancel()  # type: ignore[union-attr]


async def test_the_cards_of_this_box_say_nothing_about_another(paths: Paths, driver: Driver) -> None:
    server = TargetServer(paths, Config(), profiles)
    monitor = InterferenceMonitor(server)

    async def watts(url: str) -> float | None:
        server._active = ActiveTarget(Target("far", url=url), url, None, None, "openai", "m", {})
        async with monitor.watch("item") as watch:
            await asyncio.sleep(0)
        return watch.samples[0].power_watts

    assert await watts("http://127.0.0.1:8080") == 250.0
    assert await watts("http://192.168.1.20:8080") is None
    server._active = None
    monitor.close()


def test_only_cards_that_the_server_uses_count(paths: Paths, driver: Driver) -> None:
    """Also none of them, for a server on the CPU; all where the driver does not say who uses them."""
    me, other = os.getpid(), os.getppid()
    idle, mine, silent = (
        Gpu(0),
        Gpu(1, processes=(GpuProcess(me, "llama-server", 1 << 30),)),
        Gpu(2, processes_known=False),
    )
    foreign = Gpu(3, processes=(GpuProcess(4_190_000, "from the host", 1 << 30),))
    monitor = InterferenceMonitor(TargetServer(paths, Config(), profiles))

    def used(pid: int | None, *cards: Gpu) -> list[int]:
        monitor._target_pids = {pid} if pid else set()
        return [card.index for card in monitor._used(list(cards))]

    assert used(me, idle, mine) == [1] and used(other, idle, mine) == []
    assert used(other, idle, silent) == [2] and used(None, idle, mine) == [0, 1]
    assert used(me, mine, foreign) == [1] and used(other, idle, foreign) == [0, 3]
    monitor.close()
