"""Services that a test controls: no process, no network, no clock."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from gpubox.advisor.advisor import AdviceList
from gpubox.config import Config
from gpubox.engines.find import GET_ONE, NOT_FOUND
from gpubox.errors import GpuboxError, UsageError
from gpubox.models.fetch import DownloadPlan
from gpubox.models.find import LocalModel
from gpubox.planner.plan import MemoryPlan
from gpubox.planner.planner import no_plan
from gpubox.profiles.loader import ProfileCatalog
from gpubox.profiles.profile import HardwareNeeds, Profile, ReferenceFigure
from gpubox.server.events import LoadProgress, OperationFinished, Step, StepDone, StepFailed, StepStarted
from gpubox.server.launch import EngineCompatibility, LaunchPreview
from gpubox.server.log import parse_line
from gpubox.server.responses import Slot
from gpubox.server.status import ServerStatus
from gpubox.telemetry.snapshot import Request, SlotReading, Snapshot
from gpubox.tui.messages import GatewayView, ServerOverview, UndoStep
from gpubox.tui.remembered import LastSeen, Remembered
from gpubox.tui.services import LocalServices
from tests.tui.fake_history import FakeHistory
from tests.tui.snapshots import TIME, snapshot

RECORDING = Path(__file__).parent / "recordings" / "demo.log"
"""The log of a real run of the demo profile on a CPU, home folders shortened."""
GB = 1_000_000_000

QWEN = Profile(
    "qwen36-mtp-16gb",
    "hf:unsloth/Qwen3.6-35B-A3B-MTP-GGUF:Q4_K_M",
    title="Qwen3.6 35B-A3B MTP, 16 GB",
    description="With MTP; the experts of 22 layers on the CPU.",
    port=8081,
    flags={
        "ctx-size": 131072,
        "n-cpu-moe": 22,
        "cache-type-k": "q8_0",
        "cache-type-v": "q8_0",
        "flash-attn": "on",
        "spec-type": "draft-mtp",
    },
    needs=HardwareNeeds(vram_gib=16),
    references=(ReferenceFigure("generation, server side", 56, "tok/s", "RTX 5060 Ti 16 GB", "an article"),),
    shipped=True,
)
QWEN_256K = replace(QWEN, name="qwen36-256k", title="Qwen3.6 35B-A3B, 256K", flags={**QWEN.flags, "ctx-size": 262144})
FORK = replace(
    QWEN, name="qwen36-turbo", title="Qwen3.6, TurboQuant KV", flags={**QWEN.flags, "cache-type-k": "turbo3"}
)
DEMO = Profile("demo", "demo:smollm2", title="SmolLM2 135M on the CPU", port=0, engine="embedded", shipped=True)
MINE = Profile("mine", "~/models/mine.gguf", title="my own", path=Path("~/.config/gpubox/profiles/mine.toml"))
LAN = replace(
    MINE, name="lan", title="open to the LAN", host="0.0.0.0", path=Path("~/.config/gpubox/profiles/lan.toml")
)
PROFILES = (QWEN, QWEN_256K, FORK, DEMO, MINE, LAN)
BROKEN = {"typo": UsageError("~/.config/gpubox/profiles/typo.toml: prot is not a known key.", "Did you mean port?")}

STOPPED = ServerStatus("main", "stopped")
READY = ServerStatus(
    "main", "ready", "qwen36-mtp-16gb", 4711, "http://127.0.0.1:8081", "~/models/Qwen3.6-35B-A3B-MTP-Q4_K_M.gguf",
    "/usr/bin/llama-server", "1.0 (build 11434, commit abc)", "2026-11-21T09:00:00.000Z", 3.1,
    slots=(Slot(0, False, 131072, 0, 0),),
)  # fmt: skip
BUSY = replace(READY, state="answering", slots=(Slot(0, True, 131072, 44_400, 182),))


@dataclass
class Gate:
    """A point at which an operation waits for the test."""

    open: threading.Event


class FakeServices(LocalServices):
    """Results are attributes; ``asked`` lists the operations that were requested."""

    def __init__(self, status: ServerStatus = READY, profiles: Sequence[Profile] = PROFILES) -> None:
        self.url: str | None = None
        self.read_only = ""
        self.config = Config(shipped_profiles="show")
        self.status = status
        self.last: str | None = None
        self.profiles = list(profiles)
        self.broken = dict(BROKEN)
        self.engine = True
        self.new_models: list[Path] = []
        self.absent: set[str] = {"demo"}
        self.download_plan = DownloadPlan(98_362_432, Path("~/.cache/gpubox/models"), 54 * GB)
        self.guarded = False
        self.planned: dict[str, MemoryPlan] = {}
        self.short: dict[str, GpuboxError] = {}
        """Why profiles would not fit."""
        self.lines: list[str] = []
        self.version = 0
        self.script: list[Any] = []
        self.error: GpuboxError | None = None
        self.asked: list[tuple[Any, ...]] = []
        self.cancelled = threading.Event()
        self.kept = ""
        self.last_shown: LastSeen | None = None
        """What the screen showed last time, and then what it keeps."""
        self.asked_now: list[int] = []
        self.reading: Snapshot | None = None
        """What is read, as long as it is about ``status``; else readings that go with the status."""
        self.extra_readings: dict[str, Any] = {}
        """What else is read while the server is up."""
        self.at, self.step = 1000.0, 0.25
        self.eager = False
        """Whether snapshots come without end, as they do in life."""
        self.closed = False
        self._given: object = None
        self.failure: tuple[str, list[str]] | None = None
        self.death = ""
        self.tried: str | None = None
        """The profile that another gpubox tries."""
        self.left_behind: str | None = None
        """The profile of a trial whose gpubox died."""
        self.gateway_view: GatewayView | None = None
        """The gateway that runs."""
        self.gateways: Any = None
        self.past: Any = FakeHistory()
        self.undo: list[UndoStep] = []
        """What can be taken back."""
        self.memory = Remembered()
        """What the screen remembers."""
        self.judged: AdviceList | None = None
        """What the advisor says of every profile."""

        self.newcomer = self.hint_ended = False
        """Whether he never connected a client; whether he has done so now, or dismissed the hint."""

    def remembered(self) -> Remembered:
        return self.memory

    def remember(self, remembered: Remembered) -> None:
        self.memory = remembered

    def wants_client(self) -> bool:
        return self.newcomer

    def end_connect_hint(self) -> None:
        self.hint_ended = True

    def advice(self, snapshot: Snapshot | None, profile: str = "") -> AdviceList | None:
        return self.judged

    def dismiss_advice(self, profile: str, rule: str, dismiss: bool, snapshot: Snapshot | None) -> AdviceList | None:
        assert self.judged is not None
        self.asked.append(("dismiss" if dismiss else "show", profile, rule))
        advice = tuple(replace(each, dismissed=dismiss) if each.rule == rule else each for each in self.judged.advice)
        self.judged = replace(self.judged, advice=advice)
        return self.judged

    def profile_named(self, name: str) -> Profile:
        return next(profile for profile in self.profiles if profile.name == name)

    def chat_service(self) -> Any:
        raise NotImplementedError

    def bench_service(self) -> Any:
        return NoBench()

    def workshop_service(self) -> Any:
        return SimpleNamespace(undo_steps=lambda: self.undo)

    def trial_profile(self) -> str | None:
        return self.tried

    def recover_trial(self) -> str | None:
        return self.left_behind

    def finder_service(self) -> Any:
        raise NotImplementedError

    def gateway_service(self) -> Any:
        return self.gateways

    def gateway(self) -> GatewayView | None:
        return None if self.read_only else self.gateway_view

    def history_writer(self, on_problem: Callable[[str], object]) -> None:
        return None

    def clock(self) -> datetime:
        return datetime(2026, 11, 21, 13, 2)

    def failed_log(self) -> tuple[str, list[str]]:
        if self.failure:
            return self.failure
        raise GpuboxError("No start has failed, and no server has died.")

    def handle_crash(self) -> str:
        return self.death

    async def overview(self) -> ServerOverview:
        self.asked_now.append(1)
        return ServerOverview(self.status, (), self.last)

    async def snapshot(self) -> Snapshot:
        # Nothing new: nothing comes, so that the pilot need not wait for a process that is never idle.
        while not self.eager and not self.lines and self._given == (self.status, self.reading, self.last):
            await asyncio.sleep(0.005)
        self._given = (self.status, self.reading, self.last)
        self.asked_now.append(1)
        self.at += self.step
        if self.reading and self.reading.server is self.status:
            return self.reading
        return snapshot(self.status, self.at, **(self.extra_readings if self.status.up else {}))

    def last_seen(self) -> LastSeen | None:
        return self.last_shown

    def keep_last_seen(self, seen: LastSeen) -> None:
        self.last_shown = seen

    def history_queries(self) -> Any:
        return self.past

    def activity_marker(self) -> object:
        return self.at

    def companions_and_last(self) -> tuple[tuple[str, ...], str | None]:
        return (), self.last

    async def close(self) -> None:
        self.closed = True

    def profiles_marker(self) -> object:
        return self.version

    def catalog(self) -> ProfileCatalog:
        return ProfileCatalog({p.name: p for p in self.profiles}, dict(self.broken))

    def compatibility(self, catalog: ProfileCatalog) -> dict[str, EngineCompatibility]:
        if not self.engine:
            return {
                name: EngineCompatibility(
                    "", False, NOT_FOUND, model_present=name not in self.absent, fetchable=name in self.absent
                )
                for name in catalog.profiles
            }
        fits = {
            name: EngineCompatibility(
                "default", True, model_present=name not in self.absent, fetchable=name in self.absent
            )
            for name in catalog.profiles
        }
        if "qwen36-turbo" in fits:
            fits["qwen36-turbo"] = EngineCompatibility(
                "default", False, "cache-type-k only in a TurboQuant fork", True, True
            )
        return fits

    def plans(self, catalog: ProfileCatalog, compatibility: Mapping[str, EngineCompatibility]) -> dict[str, MemoryPlan]:
        return self.planned

    def memory_refusal(self, profile: Profile) -> GpuboxError | None:
        return self.short.get(profile.name)

    def models_without_profile(self, catalog: ProfileCatalog) -> list[LocalModel]:
        return [LocalModel(path.stem, path, None, str(path.parent)) for path in self.new_models]

    def plan_model(self, model: LocalModel) -> MemoryPlan:
        return self.planned.get(model.name) or no_plan(model.name, GpuboxError("not planned"), 0)

    def preview_launch(self, profile: Profile) -> LaunchPreview:
        argv = ["llama-server", "--model", profile.model, "--host", profile.host, "--port", str(profile.port)]
        argv += [word for name, value in profile.flags.items() for word in (f"--{name}", str(value))]
        refusal = None if self.engine else GpuboxError(NOT_FOUND, GET_ONE)
        return LaunchPreview(tuple(argv), "llama-server 11434", profile.model, refusal)

    def read_log(self) -> list[str]:
        lines, self.lines = self.lines, []
        return lines

    def model_size(self, profile: Profile) -> int | None:
        return 98_362_432 if profile.name == "demo" else 21_100_000_000

    def needs_download(self, profile: Profile) -> bool:
        return profile.name in self.absent

    def plan_download(self, profile: Profile) -> DownloadPlan:
        return self.download_plan

    def exposed_without_key(self, profile: Profile) -> bool:
        return not profile.loopback and not self.guarded

    def download(self, profile: Profile, on_progress: Callable[[int, int | None, str], None]) -> None:
        self.asked.append(("fetch", profile.name))
        self._play(
            lambda event: on_progress(event[0], event[1], ""), [e for e in self.script if isinstance(e, tuple | Gate)]
        )
        self.absent.discard(profile.name)
        self.script = [e for e in self.script if not isinstance(e, tuple | Gate)]

    def operate(
        self, kind: str, profile: Profile | str, stop_now: bool, allow_exposed: bool, emit: Callable[[Any], None], *,
        anyway: bool = False,
    ) -> None:  # fmt: skip
        self.anyway = anyway
        name = profile if isinstance(profile, str) else profile.name
        self.asked.append((kind, name, stop_now, allow_exposed))
        self._play(emit, self.script)
        if self.error:
            raise self.error

    def _play(self, emit: Callable[[Any], None], script: list[Any]) -> None:
        for event in script:
            if isinstance(event, Gate):
                assert event.open.wait(10)
            elif isinstance(event, ServerStatus):
                self.status = event
            else:
                emit(event)
            if self.cancelled.is_set():
                raise GpuboxError("Given up; what runs was not touched.")

    def cancel(self) -> None:
        self.cancelled.set()
        for event in self.script:
            if isinstance(event, Gate):
                event.open.set()

    def make_profile(self, model: Path, name: str, plan: MemoryPlan | None) -> Profile:
        profile = replace(MINE, name=name, model=str(model))
        self.profiles.append(profile)
        self.new_models = []
        return profile

    def save_traceback(self, text: str) -> None:
        self.kept = text

    def file_locations(self) -> list[tuple[str, str]]:
        return [("your profiles", "~/.config/gpubox/profiles"), ("server log", "~/.local/state/gpubox/logs")]


class Stranger(FakeServices):
    """An empty home with these models."""

    def __init__(self, *models: str, status: ServerStatus = STOPPED) -> None:
        super().__init__(status, (QWEN, DEMO))
        self.broken, self.config, self.newcomer = {}, Config(), True
        self.new_models = [Path(f"/home/me/models/{name}.gguf") for name in models]


def recorded(count: int = 200) -> list[str]:
    """The last lines of the recording."""
    lines = RECORDING.read_text(encoding="utf-8").splitlines()
    assert all(parse_line(line) for line in lines)
    return lines[-count:]


def model_log(finished: Sequence[Request], slot: SlotReading | None = None, *, died: bool = False) -> list[str]:
    """The server's log of these requests of the large model, the oldest last, and of what it works on."""
    now = datetime.fromisoformat(TIME).timestamp()
    began = datetime.fromisoformat(READY.started_at or "").timestamp()
    lines: list[str] = []

    def say(at: float, text: str, level: str = "I") -> None:
        minutes, seconds = divmod(at - began, 60)
        lines.append(
            f"{minutes:.0f}.{int(seconds):02d}.{int(seconds % 1 * 1000):03d}.{at % 1 * 997:03.0f} {level} {text}"
        )

    def begin(at: float, name: str, prompt: int, cached: int) -> None:
        say(at, f"slot launch_slot_: {name} | processing task, is_child = 0")
        new = f"new prompt, n_ctx_slot = 131072, n_keep = 0, task.n_tokens = {prompt}"
        say(at, f"slot   operator(): {name} | {new}")
        say(at, f"slot   operator(): {name} | cached n_tokens = {cached}, memory_seq_rm [{cached}, end)")

    for request in reversed(finished):
        at = datetime.fromisoformat(request.at).timestamp()
        name = f"id  {request.slot} | task {request.task}"
        begin(at, name, request.prompt_tokens or 0, request.cached_tokens or 0)
        at += request.duration_seconds or 0.0
        for what, rate, tokens in (
            ("prompt eval time", request.pp_tokens_per_second or 1.0, request.read_tokens or 0),
            ("       eval time", request.tg_tokens_per_second or 1.0, request.generated_tokens or 0),
        ):
            each = f"{1000 / rate:8.2f} ms per token, {rate:8.2f} tokens per second"
            say(
                at,
                f"slot print_timing: {name} | {what} = {1000 * tokens / rate:10.2f} ms / {tokens:5d} tokens ({each})",
            )
        held = (request.prompt_tokens or 0) + (request.generated_tokens or 0)
        say(at, f"slot      release: {name} | stop processing: n_tokens = {held}, truncated = 0")
        say(at, "srv  update_slots: all slots are idle")
    if slot and slot.task is not None:
        at, name = now - (slot.seconds or 0.0), f"id  {slot.index} | task {slot.task}"
        begin(at, name, slot.prompt_tokens or 0, slot.cached_tokens or 0)
        if slot.state == "prefill":
            took = f"t = {slot.seconds:.2f} s / {slot.pp_tokens_per_second:.2f} tokens per second"
            done = f"n_tokens = {slot.prompt_done_tokens}, progress = {slot.prefill_progress:.2f}"
            say(now, f"slot print_timing: {name} | prompt processing, {done}, {took}")
    if died:
        say(now - 40, "ggml_backend_cuda_buffer_type_alloc_buffer: allocating 1024.00 MiB on device 0: cudaMalloc "
            "failed: out of memory", "E")  # fmt: skip
        say(now - 40, "CUDA error: out of memory", "E")
    assert all(parse_line(line).level for line in lines)
    return lines


def switch_events(name: str = "qwen36-256k", gate: Gate | None = None) -> list[Any]:
    """A successful switch; with ``gate`` it stops in the middle of the load."""
    ready = replace(READY, profile=name, pid=4712)
    return [
        StepStarted(Step.CHECK, name), StepDone(Step.CHECK, name, 0.03),
        StepStarted(Step.STOP, READY.profile or ""), StepDone(Step.STOP, READY.profile or "", 0.4),
        StepStarted(Step.SETTLE, name), StepDone(Step.SETTLE, name, 0.2),
        replace(READY, state="loading", profile=name, pid=4712, slots=None),
        StepStarted(Step.LOAD, name),
        LoadProgress(name, "loading weights", int(12.9 * GB), int(21.1 * GB), 6.3),
        *([gate] if gate else []),
        StepDone(Step.LOAD, name, 10.3), StepStarted(Step.PROBE, name), StepDone(Step.PROBE, name, 0.31),
        ready,
        OperationFinished("switch", name, True, name, 11.2, f"{name} answers."),
    ]  # fmt: skip


def rollback_events(name: str = "qwen36-256k") -> list[Any]:
    """A switch that fails and restores the previous profile."""
    why = "out of VRAM: KV cache on CUDA0 (4,096 MiB)"
    ready = replace(READY, pid=4713, started_at="2026-11-21T13:02:30.000Z")
    restored = f"{READY.profile} is restored (3.1 s)."
    return [
        StepStarted(Step.CHECK, name), StepDone(Step.CHECK, name, 0.03),
        StepStarted(Step.STOP, READY.profile or ""), StepDone(Step.STOP, READY.profile or "", 0.4),
        StepStarted(Step.LOAD, name),
        StepFailed(Step.LOAD, name, why, "Try n-cpu-moe 26 or cache-type-k/v q8_0.", "failed to allocate buffer"),
        StepStarted(Step.RESTORE, READY.profile or ""), StepDone(Step.RESTORE, READY.profile or "", 3.1),
        ready,
        OperationFinished("switch", name, False, READY.profile, 9.0, f"{name}: {why}. {restored}"),
    ]  # fmt: skip


class NoBench:
    """No run, and none at work."""

    read_only = ""
    url: str | None = None

    async def active(self) -> None:
        return None

    async def run_summaries(self) -> list[Any]:
        return []
