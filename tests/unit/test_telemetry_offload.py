"""The offload of the model, and the bottleneck with its readings."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from itertools import product
from pathlib import Path
from typing import Any

import pytest

from gpubox.hardware.gpu import DriverReading, Gpu
from gpubox.hardware.host import ProcessReading
from gpubox.server.state import Launch
from gpubox.telemetry.log_source import LogSource
from gpubox.telemetry.offload import (
    BottleneckInputs,
    ProcessRates,
    bottleneck,
    expert_layers_on_cpu,
    offload,
    process_rates,
)
from gpubox.telemetry.snapshot import Offload

LAUNCH = Launch("a", ("llama-server",), "127.0.0.1", 8080, layers=40, has_experts=True)
LOAD = """\
0.00.000.001 I llama_prepare_model_devices: using device CUDA0 (RTX) (0000:01:00.0) - 15000 MiB free
0.00.000.002 I load_tensors: loading model tensors, this can take a while... (load_mode = none)
0.00.000.003 I load_tensors: offloaded 41/41 layers to GPU
0.00.000.004 I load_tensors:        CUDA0 model buffer size =  9000.00 MiB
0.00.000.005 I load_tensors:    CUDA_Host model buffer size =  5000.00 MiB
0.00.000.006 I cmn          init: llama threadpool init, n_threads = 8
0.00.000.007 I srv        update:  - cache state: 1 prompts, 100.000 MiB (limits: 8192.000 MiB, 4096 tokens, 1 est)
0.00.000.008 I slot create_check: id  0 | task 1 | created context checkpoint 1 of 32 (n_tokens = 9, size = 10.000 MiB)
0.00.000.009 I slot create_check: id  0 | task 1 | created context checkpoint 2 of 32 (n_tokens = 99, size = 20.000 MiB)
0.00.000.010 I slot create_check: id  0 | task 1 | erasing old context checkpoint (n_tokens = 9, size = 10.000 MiB)
"""
CPU_LOAD = """\
0.00.000.002 I load_tensors: loading model tensors, this can take a while... (load_mode = none)
0.00.000.003 I load_tensors: offloaded 41/41 layers to GPU
0.00.000.004 I load_tensors:          CPU model buffer size =  9000.00 MiB
"""


@pytest.fixture
def log(tmp_path: Path) -> LogSource:
    return source(tmp_path, LOAD)


def source(folder: Path, text: str) -> LogSource:
    path = folder / "main.log"
    path.write_text(text)
    return LogSource(path, datetime.now(UTC))


def card(index: int = 0, util: int | None = 50, **more: object) -> Gpu:
    values = {"bus_id": f"00000000:0{index + 1}:00.0", "utilization_percent": util, **more}
    return Gpu(index, **values)  # type: ignore[arg-type]


def judge(
    log: LogSource | None, *gpus: Gpu, state: str = "answering", launch: Launch = LAUNCH, **moved: float
) -> Offload:
    return offload(log, launch, ProcessRates(**moved), DriverReading(gpus), state, None)


# -- where it is ---------------------------------------------------------------------------------------


def test_the_values_from_the_log(log: LogSource) -> None:
    result = judge(log)

    assert (result.layers_on_gpu, result.layers_total, result.threads_asked) == (41, 41, 8)
    assert result.pinned_bytes == 5000 * 2**20
    assert (result.prompt_cache_bytes, result.prompt_cache_limit_bytes) == (100 * 2**20, 8192 * 2**20)
    assert result.checkpoints_bytes == 20 * 2**20


def test_a_server_on_the_cpu_has_no_layer_on_a_gpu_whatever_its_build_says(tmp_path: Path) -> None:
    result = judge(source(tmp_path, CPU_LOAD), card())

    assert (result.layers_on_gpu, result.layers_total) == (0, 41)
    assert (result.expert_layers_on_cpu, result.expert_layers_total) == (40, 40)
    assert result.pinned_bytes is None


def test_nothing_is_known_without_a_log() -> None:
    assert offload(None, None, ProcessRates(), DriverReading(()), "idle", None) == Offload(
        bottleneck_reason="the server waits for a request"
    )


@pytest.mark.parametrize(
    ("argv", "layers"),
    [
        (("--n-cpu-moe", "4"), 4),
        (("-ncmoe", "4"), 4),
        (("--n_cpu_moe", "4"), 4),
        (("--n-cpu-moe", "4", "--n-cpu-moe", "8"), 8),
        (("--n-cpu-moe", "99"), 40),
        (("--n-cpu-moe", "0"), 0),
        (("--cpu-moe",), 40),
        (("-cmoe",), 40),
        (("-ot", r"blk\.(1|2)\.ffn_.*_exps\.=CPU"), None),
        (("--override-tensor", "x=CPU"), None),
        (("-ncmoe", "4", "-ot", "x=CPU"), 4),
        ((), 0),
        (("--n-cpu-moe",), 0),
        (("--n-cpu-moe", "many"), 0),
        (("--n-cpu-moe", "²"), 0),
    ],
)
def test_the_flags_say_whose_experts_stay_on_the_cpu(argv: tuple[str, ...], layers: int | None) -> None:
    assert expert_layers_on_cpu(("llama-server", *argv), 40) == layers


def test_the_flag_decides_if_the_models_layers_are_unknown() -> None:
    assert expert_layers_on_cpu(("--n-cpu-moe", "4"), None) == 4
    assert expert_layers_on_cpu(("--cpu-moe",), None) is None


def test_a_model_without_experts_has_none_anywhere(log: LogSource) -> None:
    result = judge(log, launch=replace(LAUNCH, has_experts=False))

    assert (result.expert_layers_on_cpu, result.expert_layers_total) == (None, None)


# -- what it waits for -----------------------------------------------------------------------------------


LINK = {"pcie_link_bytes_per_second": 16_000_000_000, "pcie_rx_bytes_per_second": 9_600_000_000}
EXPERTS = replace(LAUNCH, argv=("llama-server", "--n-cpu-moe", "20"))
PAGING = "800 major faults/s: the model is read from disk again and again; load-mode = none loads it once"


@pytest.mark.parametrize(
    ("gpu", "launch", "moved", "expected"),
    [
        (card(util=98, memory_utilization_percent=30), LAUNCH, {"threads_busy": 1.0}, ("GPU compute", "GPU 98%")),
        (card(util=98, memory_utilization_percent=80), LAUNCH, {}, ("GPU bandwidth", "GPU 98%, memory controller 80%")),
        (card(util=35), EXPERTS, {"threads_busy": 7.2}, ("CPU experts", "GPU 35%, threads 7.2 of 8")),
        (card(util=35), LAUNCH, {"threads_busy": 7.2}, ("CPU", "GPU 35%, threads 7.2 of 8")),
        (card(util=40, **LINK), LAUNCH, {}, ("PCIe", "60% of the link, GPU 40%")),
        (card(util=None, **LINK), LAUNCH, {}, ("PCIe", "60% of the link")),
        (card(util=99), LAUNCH, {"major_faults_per_second": 800.0}, ("paging", PAGING)),
        (card(util=None), LAUNCH, {}, (None, "a load needs two readings of the process")),
        (card(util=None), LAUNCH, {"threads_busy": 1.0},
         (None, "no reading of CUDA0 (the driver does not report its load), threads 1.0 of 8")),
        (card(util=40), LAUNCH, {"threads_busy": 1.0}, (None, "nothing is fully used: GPU 40%, threads 1.0 of 8")),
    ],
)  # fmt: skip
def test_what_limits_the_server_and_the_readings_that_show_it(
    gpu: Gpu, launch: Launch, moved: dict[str, Any], expected: tuple[str | None, str], log: LogSource
) -> None:
    result = judge(log, gpu, launch=launch, **moved)
    assert (result.bottleneck, result.bottleneck_reason) == expected


def test_the_client_when_the_server_has_just_answered() -> None:
    def idle(seconds: float | None) -> tuple[str | None, str]:
        return bottleneck(BottleneckInputs("idle", seconds_since_request=seconds))

    rest = (None, "the server waits for a request")
    assert idle(3.4) == ("client", "the server has waited 3 s for the next request")
    assert idle(60.0) == idle(None) == idle(0.4) == idle(-0.02) == rest


@pytest.mark.parametrize("state", ["idle", "loading", "sleeping", "down", "stuck"])
def test_nothing_is_waited_for_while_nothing_works(state: str, log: LogSource) -> None:
    assert judge(log, card(util=99), state=state).bottleneck is None


@pytest.mark.parametrize(
    ("inputs", "expected"),
    [
        (BottleneckInputs("answering", ProcessRates(1.0), 8, devices=("CUDA0",), driver_problem="no NVIDIA driver"),
         (None, "no reading of CUDA0 (no NVIDIA driver), threads 1.0 of 8")),
        (BottleneckInputs("answering", ProcessRates(0.2), 8, devices=("RPC 10.0.0.2:50052",)),
         ("RPC device", "the server waits for RPC 10.0.0.2:50052, or for the network: threads 0.2 of 8")),
        (BottleneckInputs("answering", ProcessRates(0.9), 2, cores_percent=(99.0, 97.0)),
         ("other programs", "they take the cores (98% busy): the server gets 0.9 of 2")),
        (BottleneckInputs("answering", ProcessRates(0.9), 2, cores_percent=(60.0, 97.0)),
         (None, "nothing is fully used: threads 0.9 of 2")),
        (BottleneckInputs("answering", own=False), (None, "gpubox does not know its process and devices")),
    ],
)  # fmt: skip
def test_what_else_limits_it(inputs: BottleneckInputs, expected: tuple[str | None, str]) -> None:
    assert bottleneck(inputs) == expected


STATES = ("down", "loading", "prefill", "answering", "idle", "sleeping", "stuck", "stopping", "ready", "error", "")
RATES = (ProcessRates(), ProcessRates(0.0, 0.0, 0.0), ProcessRates(1.9, 3.0, 0.0), ProcessRates(7.8, 900.0, 1e8))
CARDS: tuple[tuple[Gpu, ...], ...] = (
    (),
    (card(util=None),),
    (card(util=0),),
    (card(util=97, memory_utilization_percent=80),),
    (card(util=97, throttle_reasons=("power cap",)),),
    (card(util=40, pcie_link_bytes_per_second=10, pcie_rx_bytes_per_second=9), card(1)),
    (card(util=None, pcie_link_bytes_per_second=0, pcie_rx_bytes_per_second=0),),
)
DEVICES = ((), ("CUDA0",), ("RPC 10.0.0.7:50052",), ("CUDA0", "RPC 10.0.0.7:50052"))


def test_every_state_has_a_word_or_a_reason() -> None:
    for state, rates, gpus, devices in product(STATES, RATES, CARDS, DEVICES):
        for threads, experts, since, own in product(
            (None, 0, 8), (False, True), (None, -5.0, 2.0, 60.0), (True, False)
        ):
            inputs = BottleneckInputs(state, rates, threads, gpus, devices, experts, since, own=own)
            word, reason = bottleneck(inputs)
            assert reason and not reason.strip().endswith((":", ",")), inputs
            assert word is None or state in ("idle", "prefill", "answering")


def test_a_game_on_another_card_holds_nothing_up(log: LogSource) -> None:
    assert judge(log, card(0, util=30), card(1, util=99)).bottleneck is None


def test_a_lost_card_is_no_evidence(log: LogSource) -> None:
    assert judge(log, card(util=99, lost=True)).bottleneck is None


def test_a_busy_card_says_nothing_of_a_server_on_the_cpu(tmp_path: Path) -> None:
    result = judge(source(tmp_path, CPU_LOAD), card(util=99), threads_busy=2.0)

    assert result.bottleneck is None


# -- pace ------------------------------------------------------------------------------------------------


def reading(cpu: float = 0.0, faults: int = 0, read: int | None = 0) -> ProcessReading:
    return ProcessReading(1, cpu, 8, 0, 0, 0, 0, faults, read)


def test_process_rates_are_per_second() -> None:
    assert process_rates(reading(), reading(cpu=8.0, faults=100, read=4096), 2.0) == ProcessRates(4.0, 50.0, 2048.0)


def test_counters_that_go_back_have_no_rate() -> None:
    assert process_rates(reading(cpu=9.0, faults=9, read=9), reading(), 1.0) == ProcessRates()


def test_a_kernel_that_hides_the_disk() -> None:
    assert process_rates(reading(read=None), reading(cpu=1.0, read=5), 1.0) == ProcessRates(1.0, 0.0, None)
