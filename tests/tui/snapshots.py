"""Readings made up for tests: the 16 GB box of the first article, and what can become of it.

The figures of one picture must not contradict each other. The model is 19.7 GiB: 10.4 on the card, 9.3 in RAM. Its MTP
head drafts two tokens per step. It is 13:02:30, and the graph shows the traffic that the list of requests shows.
"""

from __future__ import annotations

import math
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

from gpubox.hardware.gpu import DriverReading, Gpu, GpuProcess
from gpubox.hardware.host import HostReading, ProcessReading
from gpubox.server.status import ServerStatus
from gpubox.telemetry.recent import History
from gpubox.telemetry.requests import NO_CHECKPOINT
from gpubox.telemetry.snapshot import DeviceMemory, Offload, Request, SlotReading, Snapshot, Throughput, Totals

GIB, MIB = 1024**3, 1024**2
TOTAL = int(15.9 * GIB)

CARD = Gpu(
    index=0, name="NVIDIA GeForce RTX 5060 Ti", vram_total_bytes=TOTAL, vram_used_bytes=TOTAL - int(2.1 * GIB),
    utilization_percent=54, temperature_celsius=64, power_watts=142.3, power_limit_watts=180.0,
    pcie_rx_bytes_per_second=2_100_000_000, pcie_tx_bytes_per_second=140_000_000,
    processes=(GpuProcess(4711, "llama-server", int(13.4 * GIB)), GpuProcess(900, "Xorg", 300 * MIB)),
    bus_id="00000000:01:00.0", memory_utilization_percent=61, clock_sm_mhz=2610, pcie_generation=5, pcie_width=8,
    pcie_max_generation=5, pcie_max_width=8, pcie_link_bytes_per_second=31_500_000_000, throttle_reasons=(),
)  # fmt: skip
ONE_CARD = DriverReading((CARD,), "580.65.06")
RESTING = DriverReading(
    (replace(CARD, utilization_percent=0, temperature_celsius=41, power_watts=14.2, memory_utilization_percent=1,
             pcie_rx_bytes_per_second=0, pcie_tx_bytes_per_second=0),), ONE_CARD.driver_version,
)  # fmt: skip
NO_DRIVER = DriverReading((), None, "no NVIDIA driver")
TIME = "2026-11-21T13:02:30.000Z"
EMPTY_BYTES = 420 * MIB
_EMPTY = replace(RESTING.gpus[0], vram_used_bytes=EMPTY_BYTES, processes=CARD.processes[1:])
EMPTY_CARD = DriverReading((_EMPTY,), ONE_CARD.driver_version)
LOADING_CARD = DriverReading(
    (replace(_EMPTY, vram_used_bytes=EMPTY_BYTES + int(10.4 * GIB), utilization_percent=3, temperature_celsius=43,
             power_watts=38.0, pcie_rx_bytes_per_second=1_600_000_000),), ONE_CARD.driver_version,
)  # fmt: skip
SPLIT = DeviceMemory(
    "CUDA0", "gpu", CARD.name, 0, TOTAL, weights_bytes=int(10.4 * GIB), kv_bytes=int(1.9 * GIB),
    compute_bytes=204 * MIB, draft_bytes=921 * MIB, other_processes=(("Xorg", 300 * MIB),),
    other_processes_bytes=300 * MIB, unaccounted_bytes=TOTAL - int(2.1 * GIB) - int(10.4 * GIB) - int(1.9 * GIB)
    - (204 + 921 + 300) * MIB, free_bytes=int(2.1 * GIB), growth_bytes=0,
)  # fmt: skip
IN_RAM = DeviceMemory(
    "Host", "host", "RAM", None, 64 * GIB, weights_bytes=int(9.3 * GIB), compute_bytes=96 * MIB,
    on_disk_bytes=0, unaccounted_bytes=int(0.9 * GIB), free_bytes=int(34.1 * GIB),
    other_processes_bytes=64 * GIB - int(9.3 * GIB) - 96 * MIB - int(0.9 * GIB) - int(34.1 * GIB),
)  # fmt: skip
HOST = HostReading(64 * GIB, int(34.1 * GIB), 0, (70.0,) * 8)
LOADING_HOST = HostReading(64 * GIB, int(42.8 * GIB), 0, (30.0,) * 8)
LOADING = (
    replace(SPLIT, kv_bytes=None, compute_bytes=None, draft_bytes=None, unaccounted_bytes=120 * MIB,
            free_bytes=TOTAL - EMPTY_BYTES - int(10.4 * GIB)),
    replace(IN_RAM, weights_bytes=int(1.6 * GIB), compute_bytes=None, unaccounted_bytes=0,
            other_processes_bytes=int(19.6 * GIB), free_bytes=int(42.8 * GIB)),
)  # fmt: skip
"""12.0 of 19.7 GiB are read. The place for all weights of the card is taken at once."""
EMPTY_HOST = HostReading(64 * GIB, int(44.4 * GIB), 0, (2.0,) * 8)
PROCESS = ProcessReading(4711, 812.0, 19, int(10.9 * GIB), int(1.5 * GIB), int(9.4 * GIB), 40 * MIB, 12, 0)
OFFLOADED = Offload(
    layers_on_gpu=41, layers_total=41, expert_layers_on_cpu=22, expert_layers_total=40, threads_busy=7.6,
    threads_asked=8, major_faults_per_second=0.0, read_bytes_per_second=0.0, pinned_bytes=512 * MIB,
    prompt_cache_bytes=int(1.2 * GIB), prompt_cache_limit_bytes=8 * GIB, checkpoints_bytes=301 * MIB,
    bottleneck="CPU experts", bottleneck_reason="GPU 54%, threads 7.6 of 8",
)  # fmt: skip
AT_REST = replace(OFFLOADED, threads_busy=0.1, bottleneck=None, bottleneck_reason="the server waits for a request")
SLOT = SlotReading(0, "answering", 17, 44_582, 131_072, 44_400, 44_400, 43_512, 182, 70.2, seconds=3.7)
"""It goes on where the newest finished request ended: IDLE_SLOT."""
IDLE_SLOT = SlotReading(0, "idle", None, 43_512, 131_072)
ANSWERING = Throughput(
    "answering", 70.2, 75.0, 68.0, 38.9, 812.0, ttft_seconds=2.2, draft_acceptance=339 / 346,
    mean_accepted_length=2.96, accepted_per_position=(0.99, 0.97), context_used_tokens=44_582,
    context_size_tokens=131_072, busy_slots=1, slots=1,
)  # fmt: skip
IDLE = replace(ANSWERING, state="idle", tg_tokens_per_second=None, busy_slots=0)
PREFILL = replace(
    ANSWERING, state="prefill", tg_tokens_per_second=None, pp_tokens_per_second=548.0, prefill_progress=0.62,
    eta_seconds=46.0,
)  # fmt: skip
READING_SLOT = SlotReading(
    0, "prefill", 18, 41_200, 131_072, 66_300, 41_200, 0, 0, None, 548.0, 0.62, 46.0, 75.2
)  # fmt: skip
REQUESTS: tuple[Request, ...] = (
    Request(3, "2026-11-21T13:02:11.000Z", 0, 15, 43_000, 41_200, 512, 2.2, 812.0, 70.2, 2.2, 7.3, 9.5, 346, 339, 2.96,
            (0.99, 0.97), "stop"),
    Request(2, "2026-11-21T13:01:22.000Z", 0, 12, 41_104, 0, 96, 45.0, 913.4, 68.8, 45.0, 1.4, 46.4, 66, 63, 2.91,
            (0.97, 0.94), "stop", NO_CHECKPOINT),
    Request(1, "2026-11-21T13:01:02.000Z", 0, 7, 12_300, 12_000, 1100, 0.4, 790.0, 61.7, 0.4, 17.8, 18.2, 836, 682,
            2.63, (0.87, 0.76), "length"),
)  # fmt: skip
REQUESTS = tuple(replace(r, queue_seconds=0.0, slot_ttft_seconds=r.ttft_seconds) for r in REQUESTS)
NOTHING = Throughput("down")


def snapshot(status: ServerStatus, at: float = 1000.0, **more: Any) -> Snapshot:
    """The box while ``status`` is so; anything else may be given."""
    up, works = status.state in ("ready", "answering"), status.state == "answering"
    loads = status.state == "loading"
    why = "the model is being loaded" if loads else "nothing runs"
    values: dict[str, Any] = {
        "driver": ONE_CARD if works else LOADING_CARD if loads else RESTING if up else EMPTY_CARD,
        "host": HOST if up else LOADING_HOST if loads else EMPTY_HOST,
        "process": PROCESS if up else None,
        "memory": (SPLIT, IN_RAM) if up else LOADING if loads else (empty_card(),),
        "offload": OFFLOADED if works else AT_REST if up else Offload(bottleneck_reason=why),
        "throughput": ANSWERING if works else IDLE if up else _through(status.state),
        "slots": ((SLOT if works else IDLE_SLOT),) if up else (),
        "requests": REQUESTS if up else (),
        "totals": total(REQUESTS) if up else Totals(),
    } | more
    kv = sum(device.kv_bytes or 0 for device in values["memory"])
    size = sum(slot.context_size_tokens or 0 for slot in values["slots"])
    values.setdefault("kv_bytes_per_token", kv / size if kv and size else None)
    if slots := values["slots"]:  # the fullest slot, as the product has it
        used = max(slot.context_used_tokens or 0 for slot in slots)
        values["throughput"] = replace(values["throughput"], context_used_tokens=used)
    return Snapshot(at=at, time=TIME, server=status, **values)


def _through(state: str) -> Throughput:
    return Throughput(state if state in ("loading", "stopping") else "down")


def empty_card() -> DeviceMemory:
    """The card while the server does not run."""
    used = EMPTY_BYTES
    return DeviceMemory(
        "GPU 0", "gpu", CARD.name, 0, TOTAL, other_processes=(("Xorg", 300 * MIB),),
        other_processes_bytes=300 * MIB, unaccounted_bytes=120 * MIB, free_bytes=TOTAL - used,
    )  # fmt: skip


def total(requests: tuple[Request, ...]) -> Totals:
    """The server's counters after these."""
    names = ("read_tokens", "cached_tokens", "generated_tokens", "draft_tokens", "draft_tokens_accepted")
    read, cached, out, drafted, accepted = (sum(getattr(r, name) or 0 for r in requests) for name in names)
    return Totals(len(requests), read, cached, out, drafted, accepted)


def filled(
    status: ServerStatus, end: float = 1000.0, requests: tuple[Request, ...] = REQUESTS,
    running: tuple[SlotReading, ...] = (), silent: float = 0.0, seconds: int = 300,
) -> History:  # fmt: skip
    """The minutes before ``end``: what these requests read and wrote, and what runs, silent for so many seconds."""
    zero = datetime.fromisoformat(TIME).timestamp() - end
    stretches = [
        (datetime.fromisoformat(r.at).timestamp() - zero, r.prompt_seconds, r.duration_seconds, r.tg_tokens_per_second)
        for r in requests
    ]
    for slot in running:
        reading = slot.seconds or 0.0
        if slot.state == "answering":
            reading -= silent + (slot.generated_tokens or 0) / (slot.tg_tokens_per_second or 70.2)
        stretches.append((end - (slot.seconds or 0.0), reading, slot.seconds, slot.tg_tokens_per_second or 70.2))
    history, base = History(), snapshot(status)
    for at in range(int(end) - seconds, int(end - silent)):
        state, speed = "idle", 0.0
        for since, reads, takes, tg in stretches:
            if since <= at < since + (takes or 0):
                reads_now = at < since + (reads or 0)
                state, speed = ("prefill", speed) if reads_now and not speed else ("answering", speed + (tg or 0))
        shown = replace(ANSWERING, state=state, tg_tokens_per_second=speed or None)
        history.push(replace(base, at=float(at), throughput=shown))
    return history


def session(count: int = 40) -> tuple[Request, ...]:
    """The requests of a coding agent, newest first: its context grows, and most of it comes from the cache."""
    requests = list(REQUESTS)
    when, prompt = datetime(2026, 11, 21, 13, 0, 31, tzinfo=UTC), 12_200
    for at in range(count - len(REQUESTS)):
        new, out = 180 + (at * 7919) % 900, 40 + (at * 104_729) % 900
        prompt = prompt - new if prompt > 2 * new else 14_000 + at
        tg, acceptance = 58.0 + (at * 31) % 17, (84 + (at * 13) % 15) / 100
        steps = math.ceil(out / (1 + 2 * acceptance))
        missed = 3 * steps - out
        first, second = 1 - missed * 2 // 5 / steps, 1 - (missed - missed * 2 // 5) / steps
        reading, writing = new / 805, out / tg
        when -= timedelta(seconds=round(reading + writing) + 2)
        requests.append(
            Request(
                -at, f"{when:%Y-%m-%dT%H:%M:%S}.000Z", 0, 5 - at, prompt, prompt - new, out, round(reading + 0.08, 2),
                800.0 + at % 9, tg, reading, writing, round(reading + 0.08, 2) + (out - 1) / tg, 2 * steps, out - steps,
                out / steps, (first, second),
                "cancelled" if at == 5 else "stop", None, 0.0, round(reading + 0.08, 2),
            )
        )  # fmt: skip
    return tuple(requests)
