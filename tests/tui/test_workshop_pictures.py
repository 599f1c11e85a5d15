"""Pictures of the workshop: the editor with a change, a comparison, a trial before its decision."""

from __future__ import annotations

from pathlib import Path

import pytest
from syrupy.assertion import SnapshotAssertion
from textual.pilot import Pilot

from gpubox.config import Config
from gpubox.engines.capabilities import parse_help
from gpubox.paths import Paths
from gpubox.planner.plan import DevicePlan, MemoryPlan
from gpubox.profiles.comparison import compare_profiles
from gpubox.profiles.edit import KeyValue, ProfileEdit
from gpubox.profiles.profile import FlagValue, Profile
from gpubox.toml_edit import KeyPath
from gpubox.tui import app as app_module
from gpubox.tui.app import GpuboxApp
from gpubox.tui.workshop import editor
from gpubox.tui.workshop.edit_session import EditSession, changed_words
from gpubox.tui.workshop.profile_files import Assessment, ProfileComparison
from tests.conftest import HELP
from tests.tui.conftest import SIZES, act, app_of, opened, pictured, shows, until
from tests.tui.fake import QWEN, QWEN_256K, READY, FakeServices
from tests.tui.snapshots import GIB, MIB
from tests.tui.test_trial import VERDICT, FakeTrials

TEXT = """\
model = "hf:unsloth/Qwen3.6-35B-A3B-MTP-GGUF:Q4_K_M"
port = 8081

[flags]
ctx-size = 131072
n-cpu-moe = 22
cache-type-k = "q8_0"
cache-type-v = "q8_0"
spec-type = "draft-mtp"
"""
FLAGS: dict[str, FlagValue] = {
    "ctx-size": 131072, "n-cpu-moe": 22, "cache-type-k": "q8_0", "cache-type-v": "q8_0", "spec-type": "draft-mtp",
}  # fmt: skip
CARD_BYTES = int(15.9 * GIB)


def planned(moe: int, context: int = 131072) -> MemoryPlan:
    """The plan of a 16 GB card with ``moe`` expert layers on the CPU."""
    on_card = (22 - moe) * 0.48
    card = DevicePlan(
        "CUDA0", "gpu", int((10.4 + on_card) * GIB), int(1.9 * context / 131072 * GIB), 0, 204 * MIB, 921 * MIB, 0,
        free_bytes=CARD_BYTES - 411 * MIB, total_memory_bytes=CARD_BYTES,
    )  # fmt: skip
    host = DevicePlan(
        "Host", "host", int(max(0.5, 10.6 - on_card) * GIB), 0, 0, 100 * MIB, 0, 0, int(44.4 * GIB), 64 * GIB
    )
    return MemoryPlan("qwen36-mtp-16gb", (card, host), "dry-run", adapts="" if moe else "layers")


class PlannedWorkshop(FakeTrials):
    """No file is read and no engine is asked."""

    turbo = False
    """Whether a flag that the engine does not have was added."""

    def open_profile(self, profile: Profile) -> EditSession:
        capabilities = parse_help(HELP.read_text())
        profile = Profile(profile.name, profile.model, port=8081, flags=FLAGS)
        base = ProfileEdit(profile.name, Path("/profiles/qwen36-mtp-16gb.toml"), None, TEXT, TEXT)
        session = EditSession(profile, base, capabilities, "llama-server b11434", ("llama-server", "embedded"))
        if self.turbo:  # as after a change of the engine
            session.changes[("flags", "turbo-mode")] = "yes"
            session.use_engine(capabilities, session.engine)
        return session

    def assess(self, profile: Profile, base: ProfileEdit, changes: dict[KeyPath, KeyValue]) -> Assessment:  # type: ignore[override]
        moe = changes.get(("flags", "n-cpu-moe"), 22) or 0
        flags = {**FLAGS, **({"turbo-mode": "yes"} if self.turbo else {})}
        argv = [word for name, value in flags.items() for word in (f"--{name}", str(value))]
        old = ["llama-server", "--model", "/models/Qwen3.6-35B-A3B-MTP-Q4_K_M.gguf", "--port", "8081", *argv]
        new = [*old]
        new[new.index("--n-cpu-moe") + 1] = str(moe)
        why = "this engine has no such flag (did you mean load-mode?)"
        refusals = {"turbo-mode": why} if self.turbo else {}
        return Assessment(changed_words(old, new), refusals, "", Profile("x", "x", flags={**FLAGS, "n-cpu-moe": moe}))

    def plan(self, profile: Profile, *, may_dry_run: bool = False) -> MemoryPlan:
        moe = profile.flags.get("n-cpu-moe", 22)
        assert isinstance(moe, int)
        return planned(moe)

    def check(self, edit: ProfileEdit) -> str:
        return ""

    def compare(self, left: Profile, right: Profile) -> ProfileComparison:
        keys = compare_profiles(left, right)
        sizes = [(int(str(p.flags.get("n-cpu-moe", 0))), int(str(p.flags["ctx-size"]))) for p in (left, right)]
        plans = (planned(*sizes[0]), planned(*sizes[1]))
        return ProfileComparison((left.name, right.name), keys, plans, (None, None))


class PictureServices(FakeServices):
    """The usual profiles."""

    def __init__(self, paths: Paths) -> None:
        super().__init__(READY)
        self.absent = set()
        self.shop = PlannedWorkshop(paths, Config, self.run_operation)

    def workshop_service(self) -> PlannedWorkshop:
        return self.shop


async def edit(pilot: Pilot[bool]) -> None:
    """Opens the editor and puts four expert layers more on the card."""
    await pilot.press("e")
    await shows(pilot, "edit qwen36-mtp-16gb", "--n-cpu-moe 22")
    await pilot.press("j", "minus", "minus", "minus", "minus")
    await shows(pilot, "22 → 18", "--n-cpu-moe 18", "planned")


async def compare(pilot: Pilot[bool]) -> None:
    await act(pilot, "compare")
    await until(pilot, lambda: app_of(pilot).dashboard.profiles.rows.marked)
    app_of(pilot).dashboard.profiles.highlight(f"profile:{QWEN_256K.name}")
    await act(pilot, "compare")
    await shows(pilot, "Flags and keys", "262144", "verdict")
    app_of(pilot).clear_notifications()


async def try_once(pilot: Pilot[bool]) -> None:
    await edit(pilot)
    await pilot.press("t")
    await shows(pilot, "tg 74.1 tok/s", VERDICT[:30], "Keep the change")


SCENES = {"editor": edit, "comparison": compare, "trial": try_once}


@pytest.mark.parametrize("scene", SCENES)
@pytest.mark.parametrize("size", SIZES)
async def test_picture(
    snapshot: SnapshotAssertion, monkeypatch: pytest.MonkeyPatch, paths: Paths, size: str, scene: str
) -> None:
    monkeypatch.setenv("COLUMNS", size.split("x")[0])
    monkeypatch.setattr(editor, "ASSESS_DELAY", 0.0)
    monkeypatch.setattr(app_module, "BENCH_POLL_SECONDS", 0.01)
    services = PictureServices(paths)
    services.shop.turbo = scene == "editor"
    app = GpuboxApp(services)
    async with app.run_test(size=SIZES[size]) as pilot:
        await opened(pilot)
        app.dashboard.profiles.highlight(f"profile:{QWEN.name}")
        await SCENES[scene](pilot)
        await pictured(pilot, snapshot)
