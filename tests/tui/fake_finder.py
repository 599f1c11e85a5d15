"""Models for tests of the models screen: on a disk and a hub of the test; downloads are real, plans are given."""

from __future__ import annotations

import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

from gpubox.config import Config
from gpubox.errors import GpuboxError
from gpubox.models.find import LocalModel
from gpubox.models.hub_search import HubFile, HubQuant, HubRepository
from gpubox.paths import Paths
from gpubox.planner.finder import HubAnswer
from gpubox.planner.plan import DevicePlan, MemoryPlan, Solution
from gpubox.planner.verdict import judge
from gpubox.profiles.profile import Profile
from gpubox.tui.workshop.model_finder import ModelFinder, ModelRow
from gpubox.units import GIB, MIB
from tests.tui.fake import GB, FakeServices

LOCAL = (
    LocalModel("Qwen3.6-35B-A3B-MTP-UD-Q4_K_M", Path("/models/Qwen3.6-35B.gguf"), 22 * GB, "~/models", 2),
    LocalModel("qwen3:8b", Path("/ollama/blobs/sha256-1"), 5 * GB, "Ollama"),
)


def quant(label: str, size: float, shards: int = 1) -> HubQuant:
    names = [f"M-{label}-{number + 1:05d}-of-{shards:05d}.gguf" for number in range(shards)]
    return HubQuant(label, tuple(HubFile(name, int(size * GB / shards), "") for name in names))


REPOSITORY = HubRepository(
    "unsloth/Qwen3.6-35B-A3B-MTP-GGUF", "main", 1_204_311, False, "2026-11-20",
    (quant("UD-IQ2_XXS", 9.8), quant("Q4_K_M", 21.3), quant("UD-Q5_K_XL", 26.0), quant("Q8_0", 37.8, 2),
     quant("BF16", 71.0, 4)),
    (HubFile("mmproj-F16.gguf", 903_000_000, ""),),
    (HubQuant("mtp", (HubFile("MTP/mtp-Q8_0.gguf", 800_000_000, ""),)),),
)  # fmt: skip
OTHER = replace(
    REPOSITORY, name="bartowski/Qwen3.6-35B-GGUF", downloads=88_000, gated=True, quants=(quant("Q6_K", 29),)
)


NOTES = ("for ctx-size 32768, KV f16, in place of what runs",)


def plan(name: str, size: int) -> MemoryPlan:
    """A plan on a card of 16 GB with RAM for two more models; a mixture's experts are 7/8 of it, in 40 layers."""
    card = DevicePlan("CUDA0", "gpu", size, GIB, 0, 310 * MIB, 0, 0, int(15.5 * GIB))
    host = DevicePlan("Host", "host", 500 * MIB, 0, 0, 40 * MIB, 0, 0, 58 * GIB)
    made = MemoryPlan(name, (card, host), "formula", is_estimated=True, adapts="layers", notes=NOTES)
    if (judge(made).spare_bytes or 0) >= 0:
        return made
    lacks, layer = -(judge(made).spare_bytes or 0), size * 7 // 8 // 40
    moe = -(-(lacks + 256 * MIB) // layer)
    cost = f"the experts of {moe} of 40 layers stay in RAM: slower generation"
    solution = Solution({"n-cpu-moe": moe}, moe * layer - lacks, cost)
    return replace(made, solutions=(solution,))


class FakeFinder(ModelFinder):
    """Answers at once; from the hub, when ``answers`` is set. ``profiles`` lists what profiles were made of."""

    def __init__(self, paths: Paths) -> None:
        super().__init__(paths, Config())
        self.repositories: tuple[HubRepository, ...] = (REPOSITORY, OTHER)
        self.problem: GpuboxError | None = None
        self.profiles: list[str] = []
        self.searched: list[str] = []
        self.measured: list[str] = []
        self.answers = threading.Event()
        self.answers.set()

    def on_disk(self, text: str) -> list[LocalModel]:
        return [model for model in LOCAL if text.lower() in model.name.lower()]

    def on_hub(self, text: str) -> HubAnswer:
        self.searched.append(text)
        assert self.answers.wait(60)
        return HubAnswer(problems=(self.problem,)) if self.problem else HubAnswer(self.repositories)

    def plan(self, row: ModelRow, *, may_dry_run: bool) -> MemoryPlan:
        made = plan(row.key, row.size_bytes or 0)
        if may_dry_run:
            self.measured.append(row.title)
            return replace(made, is_estimated=False)
        if row.title == "BF16":
            return MemoryPlan(made.profile, (), "formula", problem="the header is longer than 16 MB")
        return made

    def new_profile(self, row: ModelRow) -> Profile:
        self.profiles.append(row.local.name if row.local else row.key)
        return Profile("mine", row.key)


class FinderServices(FakeServices):
    """Services whose models screen is a FakeFinder."""

    def __init__(self, paths: Paths) -> None:
        super().__init__()
        self.finder = FakeFinder(paths)

    def finder_service(self) -> Any:
        return self.finder
