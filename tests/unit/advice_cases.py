"""Each rule of the advisor with a recording on which it fires, and those on which it is silent."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from gpubox.advisor.advisor import context_use
from gpubox.advisor.evidence import BusyWindow, ContextSaving, Evidence, LogFacts, ModelFacts
from gpubox.profiles.profile import FlagValue
from gpubox.telemetry.recorder import read_recording
from gpubox.units import GIB

RECORDINGS = Path(__file__).parents[1] / "fixtures" / "recordings"
SHIPPED = Path(__file__).parents[2] / "assets" / "dashboard.jsonl"
HYBRID = ModelFacts("qwen35moe", hybrid=True)
DENSE = ModelFacts("llama")
THINKS = replace(HYBRID, thinks=True)
MOE_FLAGS: dict[str, FlagValue] = {"rpc": "127.0.0.1:1", "n-gpu-layers": "99", "parallel": "1", "ctx-size": "4096"}
ON_CPU: dict[str, FlagValue] = {**MOE_FLAGS, "n-cpu-moe": "99", "cache-type-k": "bf16", "cache-type-v": "bf16"}
WIDE: dict[str, FlagValue] = {"rpc": "127.0.0.1:1", "n-gpu-layers": "99", "ctx-size": "65536", "parallel": "1"}
DRAFTS: dict[str, FlagValue] = {
    **MOE_FLAGS,
    "cache-type-k": "bf16",
    "cache-type-v": "bf16",
    "spec-type": "draft-mtp",
    "spec-draft-n-max": 3,
}
SAVING = ContextSaving(4096, "RPC 127.0.0.1:1", int(1.38 * GIB))
TENSOR_CRASH = """\
0.54.236.075 E CUDA error: an illegal memory access was encountered
0.54.236.080 E   current device: 0, in function ggml_backend_cuda_buffer_init_tensor at ggml-cuda.cu:768
"""


@dataclass(frozen=True)
class Case:
    """One recording with the facts that stand beside it, and the one rule that fires; empty: none does."""

    recording: str
    fires: str
    facts: Evidence = field(default_factory=lambda: Evidence("p"))

    @property
    def id(self) -> str:
        return f"{self.recording}: {self.fires or 'silent'}"

    @property
    def evidence(self) -> Evidence:
        return recorded(RECORDINGS / f"{self.recording}.jsonl", self.facts)


def recorded(path: Path, facts: Evidence) -> Evidence:
    """The evidence after all readings of a recording."""
    window = BusyWindow()
    for snapshot in read_recording(path):
        window.feed(snapshot)
    evidence = replace(facts, snapshot=snapshot, busy=window.readings)
    return replace(evidence, context_use=context_use(evidence))


def facts(flags: Mapping[str, FlagValue], model: ModelFacts = HYBRID, **more: object) -> Evidence:
    """What the recording does not hold."""
    return Evidence("p", flags=flags, model=model, **{"physical_cores": 2, **more})  # type: ignore[arg-type]


BF16: dict[str, FlagValue] = {"cache-type-k": "bf16", "cache-type-v": "bf16"}
MAPPED, READ_ONCE = LogFacts(load_mode="mmap"), LogFacts(load_mode="none")
CASES = (
    Case("mmap-fires", "mmap", facts(ON_CPU, log=MAPPED)),
    Case("mmap-silent", "", facts({**ON_CPU, "load-mode": "none"}, log=READ_ONCE)),
    Case("context-fires", "context", facts(WIDE, DENSE, saving=SAVING)),
    Case("context-fires", "", facts(WIDE, DENSE)),  # the planner cannot say what it frees
    Case("context-silent", "", facts({**WIDE, "ctx-size": "4096"}, DENSE)),
    Case("re-reads-fires", "re-reads", facts({**MOE_FLAGS, **BF16})),
    Case("re-reads-silent", "", facts({**MOE_FLAGS, **BF16})),
    Case("re-reads-whole", "re-reads", facts({**MOE_FLAGS, **BF16})),
    Case("re-reads-silent", "", facts({**MOE_FLAGS, **BF16}, log=LogFacts(build=9000))),
    Case("drafts-fires", "drafts", facts(DRAFTS)),
    Case("drafts-silent", "", facts(DRAFTS)),
    Case("drafts-fires", "thinking-mtp", facts(DRAFTS, THINKS)),
    Case("drafts-silent", "", facts(DRAFTS, THINKS)),
    Case("drafts-fires", "drafts", facts({**DRAFTS, "reasoning": "off"}, THINKS)),
    Case("threads-fires", "threads", facts(ON_CPU)),
    Case("threads-silent", "", facts(ON_CPU)),
    Case("slots-silent", "slots", facts({"ctx-size": "8192", "n-gpu-layers": "99"}, DENSE, restored_slots=3)),
    Case("slots-silent", "", facts({"ctx-size": "8192", "n-gpu-layers": "99"}, DENSE)),
    Case("slots-silent", "", facts({"parallel": "4", "n-gpu-layers": "99"}, DENSE, restored_slots=3)),
    Case("pcie-card-fires", "pcie", facts(ON_CPU)),
    Case("pcie-card-silent", "", facts(ON_CPU)),
    Case("other-programs-card-fires", "other-programs", facts(ON_CPU)),
    Case("other-programs-card-silent", "", facts(ON_CPU)),
    Case("kv-card", "kv-bf16", facts({**ON_CPU, "cache-type-k": "f16", "cache-type-v": "f16"})),
    Case("kv-card", "", facts(ON_CPU)),
    Case("kv-card", "", facts({**ON_CPU, "cache-type-k": "q8_0", "cache-type-v": "q8_0", "flash-attn": "on"})),
    Case("kv-card", "", facts({**ON_CPU, "cache-type-k": "f16", "cache-type-v": "f16"}, DENSE)),
    Case("kv-old-card", "", facts({**ON_CPU, "cache-type-k": "f16", "cache-type-v": "f16"})),
    Case("kv-card", "kv-cpu", facts({**ON_CPU, "cache-type-k": "q5_1", "cache-type-v": "q5_1", "flash-attn": "on"})),
    Case("kv-card", "kv-cpu", facts({**ON_CPU, "cache-type-k": "q8_0", "cache-type-v": "q4_0", "flash-attn": "on"})),
    Case("kv-card", "", facts({**ON_CPU, "cache-type-k": "q5_1", "cache-type-v": "q5_1", "flash-attn": "on"},
                              log=LogFacts(all_quants=True))),
    Case("kv-card", "", facts({**ON_CPU, "cache-type-k": "turbo3", "cache-type-v": "turbo3", "flash-attn": "on"})),
    Case("exposed-fires", "exposed", facts(ON_CPU, host="0.0.0.0", exposed=True)),
    Case("threads-silent", "engine", facts(ON_CPU, log=LogFacts(build=10525, failure=TENSOR_CRASH))),
    Case("threads-silent", "", facts(ON_CPU, log=LogFacts(build=10600, failure=TENSOR_CRASH))),
    Case("threads-silent", "", facts(ON_CPU, log=LogFacts(failure=TENSOR_CRASH))),
)  # fmt: skip
