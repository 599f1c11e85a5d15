"""`status`: the value made from record, process and server, and its documented JSON."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from dataclasses import asdict
from typing import Any

import pytest

from gpubox.config import Config
from gpubox.hardware.gpu import DriverReading, Gpu, GpuProcess
from gpubox.hardware.process import own_identity
from gpubox.paths import Paths
from gpubox.server import client as client_module
from gpubox.server.responses import Health, Slot
from gpubox.server.state import InstanceState, Launch, Operation, RunningServer, save_state
from gpubox.server.status import DENIED, ServerStatus, exposure, read_status
from gpubox.telemetry.snapshot import Offload, Snapshot, Throughput, Totals
from gpubox.telemetry.speeds import SlotRates, read_slots
from gpubox.telemetry.speeds import throughput as throughput_of
from gpubox.views.status import status_values

LAUNCH = Launch("a", ("llama-server",), "127.0.0.1", 8080, {}, "fork", "/opt/llama-server", "b1", "/m.gguf", 9)
NO_DRIVER = DriverReading((), problem="no NVIDIA driver")
DOCUMENTED = {
    "server": {"state", "profile", "pid", "base_url", "model_path", "engine", "started_at", "exposed"},
    "offload": {
        "layers_on_gpu",
        "layers_total",
        "expert_layers_on_cpu",
        "major_faults_per_second",
        "bottleneck",
    },
    "throughput": {
        "state",
        "tg_tokens_per_second",
        "pp_tokens_per_second",
        "prefill_progress",
        "draft_acceptance",
        "mean_accepted_length",
        "context_used_tokens",
        "context_size_tokens",
        "busy_slots",
        "slots",
    },
    "totals": {
        "requests",
        "prompt_tokens",
        "cached_tokens",
        "generated_tokens",
        "draft_tokens",
        "draft_tokens_accepted",
    },
}


class FakeClient:
    """Answers health and slots as the test sets them."""

    def __init__(self, health: str, slots: list[Slot] | None) -> None:
        self._health, self._slots = health, slots
        self.requests: list[str] = []
        self.denied = slots is None and health == "ok"

    async def __aenter__(self) -> FakeClient:
        return self

    async def __aexit__(self, *args: object) -> None:
        pass

    async def health(self) -> Health:
        return Health(self._health)

    async def slots(self) -> list[Slot] | None:
        self.requests.append("slots")
        return self._slots


@pytest.fixture
def serve(monkeypatch: pytest.MonkeyPatch) -> Callable[..., FakeClient]:
    def start(health: str, slots: list[Slot] | None = None) -> FakeClient:
        client = FakeClient(health, slots)
        monkeypatch.setattr(client_module, "connect", lambda *args, **options: client)
        return client

    return start


def record(paths: Paths, *, launch: Launch = LAUNCH, proven: str | None = "t", **fields: Any) -> None:
    running = RunningServer(launch, "f00d", "2026-01-01T00:00:00.000Z", own_identity(), proven, 3.0)
    save_state(paths.instance_state("main"), InstanceState(running=running, **fields))


async def test_nothing_runs(paths: Paths) -> None:
    status = await read_status(paths, Config(), "main")

    assert (status.state, status.pid, status.up) == ("stopped", None, False)


@pytest.mark.parametrize(
    ("health", "slots", "state"),
    [
        ("ok", [Slot(0, False, 4096, 9, None)], "ready"),
        ("ok", [Slot(0, False, 4096, 9, None), Slot(1, True, 4096, 9, 3)], "answering"),
        ("ok", [], "ready"),
        ("loading", None, "loading"),
        ("error", None, "error"),
        ("unreachable", None, "unreachable"),
    ],
)
async def test_a_server_that_lives(
    health: str, slots: list[Slot] | None, state: str, paths: Paths, serve: Callable[..., FakeClient]
) -> None:
    record(paths)
    serve(health, slots)

    status = await read_status(paths, Config(), "main")

    assert (status.state, status.profile, status.pid) == (state, "a", os.getpid())
    assert (status.engine_path, status.load_seconds, status.exposed) == ("/opt/llama-server", 3.0, "")


async def test_a_server_that_wants_a_key_runs_and_says_so(paths: Paths, serve: Callable[..., FakeClient]) -> None:
    record(paths)
    serve("ok", None)

    status = await read_status(paths, Config(), "main")

    assert (status.state, status.slots, status.message) == ("ready", None, DENIED)


async def test_a_sleeping_server_is_not_woken(paths: Paths, serve: Callable[..., FakeClient]) -> None:
    record(paths, launch=Launch("a", ("llama-server", "--sleep-idle-seconds", "60"), "127.0.0.1", 8080))
    client = serve("ok", [Slot(0, True, 1, 1, 1)])

    assert (await read_status(paths, Config(), "main")).state == "ready"
    assert client.requests == []


async def test_what_another_gpubox_does_to_it(paths: Paths, serve: Callable[..., FakeClient]) -> None:
    record(paths, operation=Operation("switch", "b", "wait", own_identity(), "t"))
    serve("ok", [])
    assert (await read_status(paths, Config(), "main")).operation == "switch b: wait"

    record(paths, operation=Operation("stop", "", "stop", own_identity(), "t"))
    assert (await read_status(paths, Config(), "main")).state == "stopping"


@pytest.mark.parametrize(
    ("host", "has_api_key", "words"),
    [
        ("127.0.0.1", False, ""),
        ("0.0.0.0", False, "LAN, no key"),
        ("::", True, "LAN, key"),
        ("box.lan", False, "LAN, no key"),
    ],
)
def test_who_can_reach_it(host: str, has_api_key: bool, words: str) -> None:
    assert exposure(Launch("a", (), host, 1), has_api_key=has_api_key) == words


def test_every_documented_key_is_there_and_unknown_is_null() -> None:
    values = json.loads(json.dumps(status_values(snapshot(ServerStatus("main", "stopped"))), allow_nan=False))

    for table, keys in DOCUMENTED.items():
        assert keys <= set(values[table])
    known = {(table, key): v for table in DOCUMENTED for key, v in values[table].items() if v not in (None, [])}
    assert known == {("server", "state"): "stopped", ("throughput", "state"): "down"}
    assert (values["gpus"], values["memory"]) == ([], [])
    assert values["driver"] == {"version": None, "problem": "no NVIDIA driver"}


def snapshot(status: ServerStatus, driver: DriverReading = NO_DRIVER) -> Snapshot:
    state = "down" if status.state == "stopped" else "idle"
    return Snapshot(1.0, "t", status, driver, None, None, (), Offload(), Throughput(state), (), (), Totals())


def test_the_numbers_of_the_slots() -> None:
    never_used, busy = Slot(0, False, 4096, None, None), Slot(1, True, 4096, 512, 17)

    def throughput(*slots: Slot) -> dict[str, Any]:
        return asdict(throughput_of("idle", read_slots(slots, None, SlotRates(), 0.0, None), []))

    both = throughput(never_used, busy)
    assert (both["slots"], both["busy_slots"], both["context_used_tokens"], both["context_size_tokens"]) == (
        2,
        1,
        512,
        4096,
    )
    unused = throughput(never_used)
    assert (unused["busy_slots"], unused["context_used_tokens"]) == (0, None)
    none = throughput()
    assert (none["slots"], none["busy_slots"], none["context_size_tokens"]) == (None, None, None)


def test_a_card_has_the_documented_keys() -> None:
    gpu = Gpu(0, "RTX", 2, 1, None, 41, 36.5, None, None, 0, (GpuProcess(7, None, None),))

    (values,) = status_values(snapshot(ServerStatus("main", "ready"), DriverReading((gpu,), "580")))["gpus"]

    documented = {
        "index": 0,
        "name": "RTX",
        "vram_total_bytes": 2,
        "vram_used_bytes": 1,
        "utilization_percent": None,
        "temperature_celsius": 41,
        "power_watts": 36.5,
        "power_limit_watts": None,
        "pcie_rx_bytes_per_second": None,
        "pcie_tx_bytes_per_second": 0,
        "processes": [{"pid": 7, "name": None, "vram_bytes": None}],
    }
    assert {key: values[key] for key in documented} == documented


def test_the_engine_is_null_where_neither_path_nor_version_is_known() -> None:
    assert status_values(snapshot(ServerStatus("main", "ready")))["server"]["engine"] is None
    assert status_values(snapshot(ServerStatus(None, "ready", engine_version="b1")))["server"]["engine"] == {
        "path": None,
        "version": "b1",
    }
