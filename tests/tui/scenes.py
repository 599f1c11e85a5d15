"""The states that the pictures are made of: what the box is like, and the words that stand on the screen then."""

from __future__ import annotations

import threading
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any

from textual.pilot import Pilot

from gpubox.errors import GpuboxError
from gpubox.hardware.gpu import LOST_HELP, DriverReading
from gpubox.hardware.host import HostReading
from gpubox.server.status import ServerStatus
from gpubox.telemetry.history.values import StoredRequest
from gpubox.telemetry.recent import History
from gpubox.telemetry.snapshot import DeviceMemory, HistoryMark, Offload, Request, SlotReading, Throughput, Totals
from tests.tui.conftest import act, choose, text, until
from tests.tui.fake import (
    BUSY,
    DEMO,
    MINE,
    QWEN,
    READY,
    STOPPED,
    FakeServices,
    Gate,
    Stranger,
    model_log,
    recorded,
    rollback_events,
    switch_events,
)
from tests.tui.fake_finder import plan
from tests.tui.fake_history import FakeHistory, month
from tests.tui.snapshots import (
    ANSWERING,
    AT_REST,
    CARD,
    EMPTY_HOST,
    GIB,
    IDLE,
    IN_RAM,
    MIB,
    NO_DRIVER,
    OFFLOADED,
    ONE_CARD,
    PREFILL,
    READING_SLOT,
    RESTING,
    SLOT,
    SPLIT,
    filled,
    session,
    total,
)

NOW = 1000.0
"""The clock of every reading: it stands still, so that a picture does not depend on when it is taken."""
SESSION = session()
LISTED: dict[str, Any] = {"requests": SESSION, "totals": total(SESSION)}
EARLIER: dict[str, Any] = {"requests": SESSION[3:], "totals": total(SESSION[3:])}
"""Until two minutes ago."""


def after(last: Request, through: Throughput) -> Throughput:
    """With the figures of the last finished request."""
    pp = through.pp_tokens_per_second if through.state == "prefill" else last.pp_tokens_per_second
    return replace(through, pp_tokens_per_second=pp, ttft_seconds=last.ttft_seconds,
                   draft_acceptance=last.draft_acceptance,
                   mean_accepted_length=last.mean_accepted_length,
                   accepted_per_position=last.accepted_per_position)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Scene:
    """One state of the server. ``play`` presses the keys that are needed to get there."""

    status: ServerStatus
    expected: tuple[str, ...]
    """Texts that the screen must show at every size before the picture is taken."""
    readings: dict[str, Any]
    play: Callable[[Pilot[bool], FakeServices], Awaitable[None]] | None = None
    log: bool = True
    traffic: tuple[Request, ...] | None = None
    """What the graph shows, if not the requests of the readings."""
    silent: float = 0.0
    """For how many seconds no token came of what is under way."""
    engine: bool = True
    marks: tuple[HistoryMark, ...] = ()
    past: Callable[[], FakeHistory] = FakeHistory
    stranger: bool = False
    """Whether the owner has no profile yet, and two models."""

    def services(self) -> FakeServices:
        """Services in this state."""
        fake = FakeServices(self.status)
        if self.stranger:
            fake = Stranger(*PLANS, status=self.status)
            fake.planned = dict(PLANS)
            if self.status.up:  # his first profile, made of the smaller model
                fake.profiles = [SMALL, *fake.profiles]
                fake.new_models.pop()
        fake.lines = self.lines()
        fake.engine = self.engine
        fake.at, fake.step = NOW, 0.0
        fake.last = "qwen36-mtp-16gb" if self.status.state == "crashed" else None
        fake.extra_readings = self.readings
        fake.past = self.past()
        return fake

    @property
    def slots(self) -> tuple[SlotReading, ...]:
        """What is under way."""
        slots = self.readings.get("slots", (SLOT,) if self.status.state == "answering" else ())
        return tuple(slot for slot in slots if slot.state != "idle")

    def lines(self) -> list[str]:
        """The log of the server."""
        if not self.log or self.status.profile not in (None, READY.profile):
            return recorded() if self.log else []
        if self.status.state == "crashed":  # while it read a prompt
            return model_log(SESSION[2:7], replace(READING_SLOT, state="answering", task=12, seconds=68.0,
                                                   prompt_tokens=41_104), died=True)  # fmt: skip
        return model_log((self.traffic or self.readings.get("requests") or SESSION)[:5], next(iter(self.slots), None))

    def history(self) -> History:
        """The minutes before."""
        if self.stranger or not self.status.up:
            history = History()
        else:
            requests = self.traffic or self.readings.get("requests", SESSION)
            history = filled(self.status, NOW, requests, self.slots, self.silent)
        history.marks.extend(self.marks)
        return history


async def _switch(pilot: Pilot[bool], fake: FakeServices) -> None:
    fake.script = switch_events(gate=Gate(threading.Event()))
    await choose(pilot, "qwen36-256k")
    await until(pilot, lambda: "12.9 of" in text(pilot))
    fake.lines = [
        "0.00.001.704 I srv          init: build_info: b11434-abc",
        "0.00.003.671 I srv          init: loading model",
        "0.00.003.716 I srv    load_model: loading model '~/models/Qwen3.6-35B-A3B-MTP-Q4_K_M.gguf'",
        "0.00.610.402 I load_tensors: offloaded 41/41 layers to GPU",
        "0.00.610.410 I load_tensors:        CUDA0 model buffer size = 10649.60 MiB",
    ]
    await until(pilot, lambda: not fake.lines)


async def _fail(pilot: Pilot[bool], fake: FakeServices) -> None:
    fake.script, fake.error = rollback_events(), GpuboxError("x", "Try n-cpu-moe 26.")
    await choose(pilot, "qwen36-256k")
    await until(pilot, lambda: "Try n-cpu-moe" in text(pilot))


async def _month(pilot: Pilot[bool], fake: FakeServices) -> None:
    await act(pilot, *["graph_longer"] * 3)


async def _earlier(pilot: Pilot[bool], fake: FakeServices) -> None:
    await pilot.press("h")
    await act(pilot, "graph_longer", "graph_longer")
    await until(pilot, lambda: "1 day" in text(pilot))  # h has priority: it would overtake a key that waits
    await pilot.press("slash", *"day:today", "enter")


SECOND = replace(
    CARD, index=1, name="NVIDIA GeForce RTX 3060", vram_total_bytes=12 * GIB, vram_used_bytes=int(9.4 * GIB),
    utilization_percent=38, temperature_celsius=58, power_watts=88.0, power_limit_watts=170.0,
    pcie_rx_bytes_per_second=40_000_000, bus_id="00000000:02:00.0",
)  # fmt: skip
SECOND_SPLIT = DeviceMemory(
    "CUDA1", "gpu", SECOND.name, 1, 12 * GIB, weights_bytes=int(8.1 * GIB), kv_bytes=int(0.9 * GIB),
    compute_bytes=320 * MIB, unaccounted_bytes=int(9.4 * GIB) - int(8.1 * GIB) - int(0.9 * GIB) - 320 * MIB,
    free_bytes=12 * GIB - int(9.4 * GIB), growth_bytes=0,
)  # fmt: skip
CPU_MEMORY = DeviceMemory(
    "Host", "host", "RAM", None, 32 * GIB, weights_bytes=94 * MIB, kv_bytes=90 * MIB, compute_bytes=18 * MIB,
    other_processes_bytes=int(5.4 * GIB) - (94 + 90 + 18 + 40) * MIB, unaccounted_bytes=40 * MIB, on_disk_bytes=0,
    free_bytes=32 * GIB - int(5.4 * GIB),
)  # fmt: skip
ON_CPU: dict[str, Any] = {
    "driver": NO_DRIVER,
    "host": HostReading(32 * GIB, int(26.6 * GIB), 0, (96.0, 94.0, 12.0, 8.0)),
    "memory": (CPU_MEMORY,),
    "offload": Offload(layers_on_gpu=0, layers_total=31, threads_busy=1.9, threads_asked=2,
                       major_faults_per_second=0.0, bottleneck="CPU", bottleneck_reason="threads 1.9 of 2"),
    "throughput": replace(ANSWERING, tg_tokens_per_second=148.2, tg_peak=151.3, tg_median=148.0, draft_acceptance=None,
                          mean_accepted_length=None, accepted_per_position=(), pp_tokens_per_second=412.0,
                          ttft_seconds=0.12, context_size_tokens=4096),
    "slots": (replace(SLOT, context_used_tokens=2624, context_size_tokens=4096, prompt_tokens=2413,
                      prompt_done_tokens=2413, cached_tokens=2364, generated_tokens=211, tg_tokens_per_second=148.2,
                      seconds=1.5),),
    "totals": Totals(12, 12 * 49, 66 * 197, 12 * 148),
    "requests": tuple(
        replace(r, number=12 - at, prompt_tokens=197 * (11 - at) + 49, cached_tokens=197 * (11 - at),
                generated_tokens=148,
                pp_tokens_per_second=412.0, tg_tokens_per_second=148.0, ttft_seconds=0.12, slot_ttft_seconds=0.12,
                prompt_seconds=0.12, generation_seconds=1.0, duration_seconds=1.1, draft_tokens=None,
                draft_tokens_accepted=None, stop_reason="stop", cache_miss=None)
        for at, r in enumerate(SESSION[:12])
    ),
}  # fmt: skip
DEMO_BUSY = replace(BUSY, profile=DEMO.name, model_path="~/models/SmolLM2-135M-Instruct.Q4_1.gguf",
                    base_url="http://127.0.0.1:37121")  # fmt: skip
BUSY_CARD = replace(CARD, utilization_percent=93, memory_utilization_percent=88, pcie_rx_bytes_per_second=60_000_000)
LOST = replace(RESTING.gpus[0], lost=True, lost_at="2026-11-21T13:02:24.000Z")
FOUR = tuple(
    SlotReading(n, state, 30 + n, used, 32_768, prompt, done, 0, out, tg, pp, share, eta, took)
    for n, state, used, prompt, done, out, tg, pp, share, eta, took in (
        (0, "answering", 9_112, 8_800, 8_800, 312, 31.2, None, None, None, 10.4),
        (1, "prefill", 12_000, 21_000, 12_000, 0, None, 640.0, 0.57, 14.0, 18.8),
        (2, "answering", 2_377, 2_300, 2_300, 77, 29.8, None, None, None, 3.0),
        (3, "answering", 17_902, 17_500, 17_500, 402, 30.4, None, None, None, 14.0),
    )
)
PARALLEL = tuple(
    replace(r, slot=(3, 2, 0, 1)[at % 4], draft_tokens=2 * steps, draft_tokens_accepted=out - steps,
            mean_accepted_length=out / steps,
             accepted_per_position=((out / steps - 1) / 2 + 0.06, (out / steps - 1) / 2 - 0.06),
            at=f"{datetime.fromisoformat(r.at) + timedelta(seconds=90):%Y-%m-%dT%H:%M:%S}.000Z",
            generated_tokens=out, tg_tokens_per_second=tg, generation_seconds=out / tg,
            duration_seconds=(r.prompt_seconds or 0.0) + out / tg)
    for at, r in enumerate(SESSION[3:])
    for out, tg in [((r.generated_tokens or 0) * 3 // 2, (r.tg_tokens_per_second or 0.0) * 0.45)]
    for steps in [round(out / 2.6)]
)  # fmt: skip
"""Four at once, each at less than half the speed."""
HINT = "Try a higher n-cpu-moe, a smaller ctx-size or smaller cache types."
DIED = f"qwen36-mtp-16gb died: out of VRAM while running. {HINT}"

LARGE = plan("Qwen3.6-35B-A3B-UD-Q4_K_M", 22_000_000_000)
TINY = plan("SmolLM2-135M-Instruct.Q4_1", GIB // 10)
PLANS = {
    LARGE.profile: LARGE,
    TINY.profile: replace(
        TINY,
        devices=(
            replace(
                TINY.devices[0],
                weights_bytes=94 * MIB,
                kv_bytes=180 * MIB,
                compute_bytes=98 * MIB,
                free_bytes=int(15.5 * GIB),
            ),
            TINY.devices[1],
        ),
    ),
}
SMALL = replace(MINE, name="smollm2", title="SmolLM2 135M", model="~/models/SmolLM2-135M-Instruct.Q4_1.gguf")
FIRST = replace(READY, profile=SMALL.name, model_path=SMALL.model)
ON_CARD = replace(
    SPLIT, weights_bytes=94 * MIB, kv_bytes=180 * MIB, compute_bytes=98 * MIB, draft_bytes=None,
    unaccounted_bytes=120 * MIB, free_bytes=(SPLIT.total_bytes or 0) - (94 + 180 + 98 + 300 + 120) * MIB,
)  # fmt: skip
NEW: dict[str, Any] = {
    "memory": (ON_CARD,), "host": EMPTY_HOST, "requests": (), "totals": Totals(0, 0, 0, 0),
    "slots": (SlotReading(0, "idle", None, 0, 8192),), "throughput": Throughput("idle", context_size_tokens=8192,
                                                                            busy_slots=0, slots=1),
    "offload": Offload(layers_on_gpu=31, layers_total=31, threads_busy=0.0, threads_asked=8,
                       major_faults_per_second=0.0, bottleneck_reason=AT_REST.bottleneck_reason),
}  # fmt: skip
"""A small model, wholly on the card, that nobody has asked yet."""

STUCK_SLOT = replace(SLOT, context_used_tokens=13_082, prompt_tokens=12_900, prompt_done_tokens=12_900,
                     cached_tokens=12_060, tg_tokens_per_second=0.0, seconds=45.7)  # fmt: skip
UPDATED = replace(BUSY, engine_version="1.0 (build 11500, commit def)", started_at="2026-11-21T12:40:00.000Z")
"""Since three days the box has a newer engine: see fake_history.month."""


def before() -> FakeHistory:
    """What the server answered before a switch, which ended with another server of the same profile."""
    stored = [StoredRequest(datetime.fromisoformat(r.at).timestamp(), QWEN.name, None, r, 1) for r in SESSION]
    return FakeHistory(stored_requests=stored)


SCENES = {
    "welcome": Scene(STOPPED, ("What do you have?", "with n-cpu-moe 15", "find a model", "98 MB"), {}, log=False,
                     stranger=True),
    "first_start": Scene(FIRST, ("smollm2 ready", "connect your coding agent"), NEW, stranger=True),
    "idle": Scene(READY, ("● idle", "qwen36-mtp-16gb ready"), LISTED),
    "generating": Scene(BUSY, ("70.2 tok/s", "339 of 346"), LISTED),
    "prefill": Scene(BUSY, ("62%", "ETA 0:46", "reading"),
                     {"throughput": after(SESSION[3], PREFILL), "slots": (READING_SLOT,), **EARLIER}),
    "no_gpu": Scene(DEMO_BUSY, ("148 tok/s", "RAM"), ON_CPU),
    "two_cards": Scene(BUSY, ("CUDA0", "CUDA1"), {
        "driver": DriverReading((BUSY_CARD, SECOND), ONE_CARD.driver_version), **LISTED,
        "memory": (replace(SPLIT, weights_bytes=int(11.3 * GIB) - 1, kv_bytes=GIB), SECOND_SPLIT,
                   replace(IN_RAM, weights_bytes=int(0.3 * GIB), free_bytes=int(43.1 * GIB))),
        "host": HostReading(64 * GIB, int(43.1 * GIB), 0, (18.0,) * 8),
        "offload": replace(OFFLOADED, expert_layers_on_cpu=0, threads_busy=1.1, bottleneck="GPU bandwidth",
                           bottleneck_reason="GPU 93%, memory controller 88%")}),
    "four_slots": Scene(BUSY, ("91.4 tok/s", "2 queued"), {
        "throughput": replace(
            after(PARALLEL[0], ANSWERING), tg_tokens_per_second=91.4, pp_tokens_per_second=640.0, busy_slots=4, slots=4,
            queued_requests=2, tg_peak=124.0, tg_median=88.0, request_tg_median=30.1, request_tg_peak=33.3,
            context_used_tokens=17_902, context_size_tokens=32_768),
        "slots": FOUR, "requests": PARALLEL, "totals": total(PARALLEL)}),
    "loading": Scene(READY, ("12.9 of", "qwen36-256k loading"), {}, _switch),
    "sleeping": Scene(READY, ("○ sleeping",), {
        "throughput": after(SESSION[3], replace(IDLE, state="sleeping", busy_slots=None, slots=None,
                                                context_size_tokens=None)),
        "offload": Offload(bottleneck_reason="the server sleeps and has freed its memory"),
        "slots": (), "host": EMPTY_HOST, **EARLIER,
        "memory": (replace(SPLIT, weights_bytes=None, kv_bytes=None, compute_bytes=None, draft_bytes=None,
                           unaccounted_bytes=180 * MIB, free_bytes=(CARD.vram_total_bytes or 0) - 480 * MIB),)}),
    "stuck": Scene(BUSY, ("✗ stuck", "generated for"), {
        "throughput": after(SESSION[3], replace(ANSWERING, state="stuck", tg_tokens_per_second=0.0)),
        "driver": RESTING, **EARLIER,
        "slots": (STUCK_SLOT,),
        "offload": replace(AT_REST, bottleneck_reason="the server makes no progress"),
        "problems": ("no token processed or generated for 42 s",)}, silent=42.0),
    "gpu_lost": Scene(READY, ("GPU 0 LOST", "lost its card", "dmesg"), {
        "driver": DriverReading((LOST,), ONE_CARD.driver_version), **LISTED,
        "throughput": replace(IDLE, state="lost"), "problems": (f"GPU 0 is lost: {LOST_HELP}",),
        "offload": replace(AT_REST, bottleneck_reason="the server's card is lost")}),
    "crashed": Scene(replace(STOPPED, state="crashed", message=DIED), ("✗ crashed", "r starts"), {},
                     marks=(HistoryMark(NOW - 40, "crash", DIED),)),
    "exposed": Scene(replace(READY, base_url="http://0.0.0.0:8081", exposed="LAN, no key"), ("▲ LAN, no key",),
                     LISTED),
    "rolled_back": Scene(READY, ("Try n-cpu-moe", "qwen36-mtp-16gb ready", "──", "▲"), {
        "requests": (), "totals": Totals(0, 0, 0, 0), "slots": (SlotReading(0, "idle", None, 0, 131_072),),
        "throughput": Throughput("idle", context_size_tokens=131_072, busy_slots=0, slots=1),
        "offload": replace(AT_REST, prompt_cache_bytes=0, checkpoints_bytes=0)}, _fail,
        marks=(HistoryMark(NOW, "switch", "qwen36-mtp-16gb"),), traffic=SESSION, past=before),
    "month": Scene(UPDATED, ("30 days", "tg │", "▲", "15% slower", "client"), LISTED, _month, past=month),
    "earlier_requests": Scene(UPDATED, ("1 day", "qwen36-256k · today", "15 match"), {}, _earlier, past=month),
    "no_engine": Scene(STOPPED, ("No llama-server was found", "[engines]"), {}, log=False, engine=False),
}  # fmt: skip
"""Name -> state."""
