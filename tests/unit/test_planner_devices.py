"""What is free on each device: the replaced server's memory counts as free, and what is unclear is unknown."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import pytest

from gpubox.config import Config
from gpubox.engines.capabilities import parse_help
from gpubox.engines.find import Engine
from gpubox.hardware.gpu import DriverReading, Gpu, GpuProcess
from gpubox.hardware.process import own_identity
from gpubox.paths import Paths
from gpubox.planner import planner as planner_module
from gpubox.planner.compute import Measurement
from gpubox.planner.devices import (
    DeviceMemoryNow,
    EngineDevices,
    ListedDevice,
    devices_now,
    learn_addresses,
    list_engine_devices,
    match_gpus,
)
from gpubox.planner.dry_run import DryRun
from gpubox.planner.measured import Unaccounted, flags_of_argv, read_breakdown
from gpubox.planner.planner import Planner
from gpubox.profiles.profile import Profile
from gpubox.server.log_events import LogDevice
from gpubox.server.state import Launch, RunningServer
from tests.gguf_bytes import model

GIB = 1 << 30
HELP = (Path(__file__).parent.parent / "fixtures" / "llama-server-b11434.help.txt").read_text()
MIB = 1 << 20
CARD = ListedDevice("CUDA0", "NVIDIA GeForce RTX 4090", 24 * GIB, 3 * GIB)
GPU = replace(
    Gpu(0),
    name="NVIDIA GeForce RTX 4090",
    vram_total_bytes=24 * GIB,
    vram_used_bytes=20 * GIB,
    processes=(GpuProcess(os.getpid(), "llama-server", 18 * GIB), GpuProcess(1, "Xorg", GIB)),
)
RUNNING = RunningServer(
    Launch("old", ("llama-server", "--model", "m"), "127.0.0.1", 1, engine="lab"), "id", "", own_identity(), "ready",
    loaded_vram=((0, 18 * GIB),),
)  # fmt: skip


def free(devices: EngineDevices, *gpus: Gpu, replaces: RunningServer | None = None) -> list[int | None]:
    leaving = (replaces,) if replaces else ()
    return [each.free_bytes for each in devices_now(devices, leaving, (), DriverReading(gpus))][:-1]


def test_what_the_replaced_server_holds_counts_as_free() -> None:
    listed = EngineDevices((CARD,))
    assert free(listed, GPU) == [4 * GIB]
    assert free(listed, GPU, replaces=RUNNING) == [22 * GIB]
    now = devices_now(listed, (RUNNING,), (), DriverReading((GPU,)))[0]
    assert now.other_processes == (("Xorg", GIB),)
    assert now.free_now_bytes == 4 * GIB


def test_what_several_replaced_servers_hold_counts_as_free() -> None:
    listed = EngineDevices((CARD,))
    second = replace(RUNNING, process=replace(own_identity(), pid=7), loaded_vram=((0, GIB),))
    both = replace(GPU, processes=(*GPU.processes, GpuProcess(7, "llama-server", GIB)))
    (now, _) = devices_now(listed, (RUNNING, second), (), DriverReading((both,)))
    assert (now.free_bytes, now.other_processes) == (23 * GIB, (("Xorg", GIB),))
    unknown = replace(second, process=replace(own_identity(), pid=8), whole_card_gpus=(0,))
    assert devices_now(listed, (RUNNING, unknown), (), DriverReading((both,)))[0].free_bytes is None


def test_a_driver_that_hides_processes() -> None:
    hidden = replace(GPU, processes=(), processes_known=False)
    listed = EngineDevices((CARD,))
    assert free(listed, hidden, replaces=RUNNING) == [22 * GIB]  # what it took when it was loaded
    assert free(listed, hidden, replaces=replace(RUNNING, whole_card_gpus=(0,))) == [None]
    assert free(listed, replace(GPU, lost=True)) == [None]
    assert free(listed, replace(GPU, vram_used_bytes=None)) == [None]
    # in a container: the driver knows it by another pid, and the record has the whole card
    elsewhere = replace(GPU, processes=(GpuProcess(1, "llama-server", 18 * GIB),))
    assert free(listed, elsewhere, replaces=replace(RUNNING, whole_card_gpus=(0,))) == [None]
    # the server does not use this card
    assert free(listed, replace(GPU, processes=GPU.processes[1:]), replaces=RUNNING) == [4 * GIB]


def card(index: int, name: str, total: int, bus: str = "", driver: str = "nvidia") -> Gpu:
    return replace(
        Gpu(index), name=name, vram_total_bytes=total * GIB, vram_used_bytes=GIB, bus_id=bus or None, driver=driver
    )


def device(label: str, name: str, total: int, bus: str = "") -> ListedDevice:
    return ListedDevice(label, name, total * GIB, 3 * GIB, bus)


R3060, TI, R4090 = "NVIDIA GeForce RTX 3060", "NVIDIA GeForce RTX 3060 Ti", "NVIDIA GeForce RTX 4090"


@pytest.mark.parametrize(
    ("listed", "gpus", "matched"),
    [
        ([device("CUDA0", R4090, 24), device("CUDA1", R3060, 12)], [card(0, R3060, 12), card(1, R4090, 24)], [1, 0]),
        # by address, whatever the names are; CUDA's own order is not the driver's
        ([device("CUDA0", TI, 8, "0000:02:00.0"), device("CUDA1", R3060, 8, "0000:01:00.0")],
         [card(0, R3060, 8, "00000000:01:00.0"), card(1, TI, 8, "00000000:02:00.0")], [1, 0]),
        # one name in the other: size, and the same name, tell them apart before the addresses are known
        ([device("CUDA0", TI, 8), device("CUDA1", R3060, 12)], [card(0, R3060, 12), card(1, TI, 8)], [1, 0]),
        ([device("CUDA0", TI, 8), device("CUDA1", R3060, 8)], [card(0, R3060, 8), card(1, TI, 8)], [1, 0]),
        # one of them is known by address: the other one is left
        ([device("CUDA0", R4090, 24, "0000:02:00.0"), device("CUDA1", R4090, 24)],
         [card(0, R4090, 24, "00000000:01:00.0"), card(1, R4090, 24, "00000000:02:00.0")], [1, 0]),
        # two such cards, one device: which? And a card of which the driver counts only a part
        ([device("CUDA0", R4090, 24)], [card(0, R4090, 24), card(1, R4090, 24)], [None]),
        ([device("CUDA0", R4090, 24)], [card(0, R4090, 1)], [None]),
        # sysfs has no names
        ([device("ROCm0", "AMD Radeon RX 7900 XTX", 24), device("ROCm1", "AMD Radeon RX 7600", 8)],
         [card(0, "AMD GPU 1002:7480", 8, driver="amdgpu"), card(1, "AMD GPU 1002:744c", 24, driver="amdgpu")], [1, 0]),
    ],
)  # fmt: skip
def test_cards_are_matched(listed: list[ListedDevice], gpus: list[Gpu], matched: list[int | None]) -> None:
    assert [gpu and gpu.index for gpu in match_gpus(listed, gpus)] == matched


def test_without_a_driver_it_is_the_engines_own_number() -> None:
    assert free(EngineDevices((CARD,), fresh=True)) == [3 * GIB]
    assert free(EngineDevices((CARD,))) == [None]


def test_the_memory_of_a_gpu_in_the_processor_is_counted_once(monkeypatch: pytest.MonkeyPatch) -> None:
    apu = replace(
        card(0, "AMD GPU 1002:1586", 62, driver="amdgpu"),
        vram_total_bytes=62 * GIB + GIB // 2, vram_used_bytes=21 * GIB,
        shared_total_bytes=62 * GIB, shared_used_bytes=20 * GIB + GIB * 3 // 4,
        processes=(GpuProcess(os.getpid(), "llama-server", 20 * GIB),),
    )  # fmt: skip
    host = DeviceMemoryNow("Host", "host", "RAM", 64 * GIB, 30 * GIB)
    monkeypatch.setattr("gpubox.planner.devices._host", lambda replaces: host)
    listed = EngineDevices((device("Vulkan0", "AMD Radeon Graphics (RADV GFX1151)", 62),))
    now, ram = devices_now(listed, (), (), DriverReading((apu,)))
    assert (now.free_bytes, now.own_free_bytes, ram.free_bytes) == (30 * GIB + GIB // 4, GIB // 4, 30 * GIB)
    after, ram = devices_now(listed, (RUNNING,), (), DriverReading((apu,)))  # it has all but 1 GiB of what is used
    assert (after.free_bytes, ram.free_bytes) == (50 * GIB + GIB // 4, 50 * GIB)


def test_an_rpc_device_is_what_it_was_when_the_server_started(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_text("0.00.002.100 I cmn  common_param:   - RPC0    : 10.0.0.2:50052 (24105 MiB, 20000 MiB free)\n")
    remote = ListedDevice("RPC0", "10.0.0.2:50052", 24105 * MIB, 5 * MIB)
    assert remote.key == "RPC 10.0.0.2:50052"
    now = devices_now(EngineDevices((remote,)), (RUNNING,), (log,), DriverReading(()))
    assert (now[0].kind, now[0].free_bytes) == ("rpc", 20000 * MIB)
    assert devices_now(EngineDevices((remote,), fresh=True), (), (), DriverReading(()))[0].free_bytes == 5 * MIB


def script(path: Path, text: str) -> Engine:
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return Engine("lab", "llama-server", (str(path),), path)


def test_the_engine_is_asked_once(tmp_path: Path) -> None:
    paths = Paths(tmp_path / "c", tmp_path / "s", tmp_path / "cache")
    engine = script(
        tmp_path / "engine",
        f"echo asked >>{tmp_path}/asked; echo 'Available devices:'; "
        "echo '  CUDA0: NVIDIA GeForce RTX 4090 (24077 MiB, 23650 MiB free)'; echo '  CUDA1: garbage'",
    )
    assert list_engine_devices(engine, (), {}, paths, busy_rpc=False, ask="never").problem
    first = list_engine_devices(engine, (), {}, paths, busy_rpc=False)
    assert [device.key for device in first.listed] == ["CUDA0"] and first.fresh
    again = list_engine_devices(engine, (), {}, paths, busy_rpc=False, ask="never")
    assert again.listed == first.listed and not again.fresh
    assert (tmp_path / "asked").read_text() == "asked\n"
    seen = LogDevice("CUDA0", "NVIDIA GeForce RTX 4090", "0000:01:00.0")
    learn_addresses(engine, (), {}, paths, [seen, LogDevice("CUDA7", "x", "unknown id")])
    told = list_engine_devices(engine, (), {}, paths, busy_rpc=False, ask="never")
    assert [each.bus_id for each in told.listed] == ["0000:01:00.0"]
    list_engine_devices(engine, (), {"CUDA_VISIBLE_DEVICES": "1"}, paths, busy_rpc=False)
    assert (tmp_path / "asked").read_text() == "asked\nasked\n"


@pytest.mark.parametrize("text", ["exit 1", "echo nothing", "kill -SEGV $$"])
def test_an_engine_that_does_not_say_is_a_problem_and_no_crash(tmp_path: Path, text: str) -> None:
    paths = Paths(tmp_path / "c", tmp_path / "s", tmp_path / "cache")
    devices = list_engine_devices(script(tmp_path / "engine", text), (), {}, paths, busy_rpc=False)
    assert not devices.listed and devices.problem
    list_engine_devices(script(tmp_path / "engine", f"touch {tmp_path}/asked"), (), {}, paths, busy_rpc=False)
    (tmp_path / "asked").unlink()
    engine = Engine("lab", "llama-server", (str(tmp_path / "engine"),), tmp_path / "engine")
    assert list_engine_devices(engine, (), {}, paths, busy_rpc=False, ask="once").problem
    assert not (tmp_path / "asked").exists()  # a list of profiles does not ask it again and again
    busy = list_engine_devices(script(tmp_path / "engine", text), ("a:1",), {}, paths, busy_rpc=True)
    assert busy.problem  # it was not asked: that would wait for ever


def of(learned: Unaccounted, profile: str, engine: str = "lab") -> int | None:
    return learned.of_devices(profile, engine, ["CUDA0"]).get("CUDA0")


def test_what_the_driver_adds_is_learned_from_real_runs(tmp_path: Path) -> None:
    paths = Paths(tmp_path / "c", tmp_path / "s", tmp_path / "cache")
    log = tmp_path / "log"
    log.write_text(
        "0.00.100.000 I load_tensors:        CUDA0 model buffer size = 16384.00 MiB\n"
        "0.00.200.000 I llama_kv_cache:      CUDA0 KV buffer size =  1024.00 MiB\n"
        "0.00.300.000 I srv  llama_server: listening on http://127.0.0.1:1\n"
    )
    learned = Unaccounted(paths)
    assert of(learned, "old") is None
    learned.learn_driver("lab", {"CUDA0": 400 * MIB})
    assert of(learned, "old") == 400 * MIB
    learned.learn_driver("lab", {"CUDA0": 2 * GIB})
    assert learned.is_new(RUNNING)
    learned.learn(RUNNING, read_breakdown(log), DriverReading((GPU,)))
    assert not Unaccounted(paths).is_new(RUNNING)
    assert of(Unaccounted(paths), "old") == GIB
    assert of(Unaccounted(paths), "never ran") == GIB
    assert of(Unaccounted(paths), "old", "other engine") is None
    for damage in ("", "[]", '{"schema": 1, "rows": {"a": "many"}}'):
        (paths.plans / "unaccounted.json").write_text(damage)
        assert of(Unaccounted(paths), "old") is None


def test_the_flags_of_a_command_line() -> None:
    argv = "--model m.gguf --host ::1 --port 80 --ctx-size 4096 --no-kv-offload --parallel -1 --jinja -ot a=CPU"
    assert flags_of_argv(argv.split(), parse_help(HELP)) == {
        "ctx-size": "4096", "no-kv-offload": True, "parallel": "-1", "jinja": True, "ot": "a=CPU",
    }  # fmt: skip


def test_a_dry_run_says_what_the_driver_takes_and_where_the_cards_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    paths = Paths(tmp_path / "c", tmp_path / "s", tmp_path / "cache")
    engine = script(
        tmp_path / "engine",
        "echo 'Available devices:'; echo '  CUDA0: NVIDIA GeForce RTX 4090 (24576 MiB, 1 MiB free)'",
    )
    keys = {"llama.block_count": 2, "llama.embedding_length": 64, "llama.context_length": 512}
    keys |= {"llama.attention.head_count": 4, "llama.attention.head_count_kv": 2}
    (tmp_path / "m.gguf").write_bytes(model(keys))
    twins = [replace(GPU, index=number, bus_id=f"00000000:0{number + 1}:00.0") for number in (0, 1)]
    monkeypatch.setattr(planner_module, "read_driver", lambda: DriverReading(tuple(twins)))
    monkeypatch.setattr(planner_module, "read_capabilities", lambda *_: parse_help(HELP))
    seen = (LogDevice("CUDA0", "NVIDIA GeForce RTX 4090", "0000:02:00.0"),)
    measured = Measurement({"Host": 0}, {"CUDA0": MIB}, {"CUDA0": 10 * MIB})
    said = DryRun(measured, Measurement(), seen, {"CUDA0": 3700 * MIB})

    def run_dry(*_: object, **__: object) -> DryRun:
        for number, gpu in enumerate(twins):  # its context is gone some time after it ended
            twins[number] = replace(gpu, vram_used_bytes=(gpu.vram_used_bytes or 0) + 396 * MIB)
        return said

    monkeypatch.setattr(planner_module, "run_dry", run_dry)
    monkeypatch.setattr(planner_module, "_READING_SECONDS", -1.0)
    planner = Planner(paths, replace(Config(), engines={"lab": str(engine.path)}, default_engine="lab"))
    profile = Profile("p", str(tmp_path / "m.gguf"), flags={"parallel": 1, "ctx-size": 512})

    fresh, cached = (planner.plan(profile).devices[0].free_bytes for _ in "ab")
    after = planner.plan(profile, may_dry_run=True).devices[0]

    assert (fresh, cached) == (MIB, None), "one device, two such cards: which?"
    assert (after.free_bytes, after.unaccounted_bytes, after.driver_assumed) == (4 * GIB, 396 * MIB, False)
    twins[:] = [replace(gpu, vram_used_bytes=GPU.vram_used_bytes) for gpu in twins]
    assert planner.plan(profile, may_dry_run=True).devices[0] == after
    elsewhere = Planner(paths, replace(Config(), engines={"new": str(engine.path)}, default_engine="new"))
    unseen = elsewhere.plan(profile).devices[0]
    assert (unseen.free_bytes, unseen.unaccounted_bytes, unseen.driver_assumed) == (4 * GIB, 500 * MIB, True)
