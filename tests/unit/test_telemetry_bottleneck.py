"""The bottleneck always has a word, or a reason why it has none."""

from __future__ import annotations

from itertools import product

from gpubox.hardware.gpu import Gpu
from gpubox.telemetry.offload import BottleneckInputs, ProcessRates, bottleneck

STATES = ("down", "loading", "prefill", "answering", "idle", "sleeping", "stuck", "stopping", "ready", "error", "")
RATES = (ProcessRates(), ProcessRates(0.0, 0.0, 0.0), ProcessRates(1.9, 3.0, 0.0), ProcessRates(7.8, 900.0, 1e8))
CARDS: tuple[tuple[Gpu, ...], ...] = (
    (),
    (Gpu(0),),
    (Gpu(0, utilization_percent=0),),
    (Gpu(0, utilization_percent=97, memory_utilization_percent=80),),
    (Gpu(0, utilization_percent=97, throttle_reasons=("power cap",)),),
    (Gpu(0, utilization_percent=40, pcie_link_bytes_per_second=10, pcie_rx_bytes_per_second=9), Gpu(1)),
    (Gpu(0, pcie_link_bytes_per_second=0, pcie_rx_bytes_per_second=0),),
)
DEVICES = ((), ("CUDA0",), ("RPC 10.0.0.7:50052",), ("CUDA0", "RPC 10.0.0.7:50052"))


def test_every_state_has_a_word_or_a_reason() -> None:
    bare = []
    for state, rates, gpus, devices in product(STATES, RATES, CARDS, DEVICES):
        for threads, experts, since, own in product(
            (None, 0, 8), (False, True), (None, -5.0, 2.0, 60.0), (True, False)
        ):
            inputs = BottleneckInputs(state, rates, threads, gpus, devices, experts, since, own=own)
            word, reason = bottleneck(inputs)
            if not (word or reason) or reason.strip().endswith(":") or (word is not None and not reason):
                bare.append((inputs, word, reason))

    assert bare == []
