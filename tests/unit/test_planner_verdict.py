"""When a plan fits, is tight, short or unknown; and that a start is refused only when it is certain."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from gpubox.config import Config
from gpubox.errors import ExitCode, GpuboxError, UsageError
from gpubox.paths import Paths
from gpubox.planner.plan import DevicePlan, MemoryPlan, Solution
from gpubox.planner.planner import Planner, Situation, changed_flags
from gpubox.planner.preflight import check_fits, refusal
from gpubox.planner.settings import parse_size
from gpubox.profiles.profile import Profile
from tests.unit.test_planner_solve import situation

GIB = 1 << 30
CARD = DevicePlan("CUDA0", "gpu", 10 * GIB, 2 * GIB, 0, GIB, 0, 0, free_bytes=16 * GIB)
HOST = DevicePlan("Host", "host", 8 * GIB, 0, 0, 0, 0, 0, free_bytes=32 * GIB, reclaimable_bytes=8 * GIB)
PLAN = MemoryPlan("p", (CARD, HOST), "formula", compute_certainty="measured")


def on_card(**changes: object) -> MemoryPlan:
    return replace(PLAN, devices=(replace(CARD, **changes), HOST))  # type: ignore[arg-type]


def test_verdicts() -> None:
    assert (PLAN.verdict, PLAN.spare_bytes, PLAN.summary) == ("fits", 3 * GIB, "fits, 3.0 GiB to spare")
    assert on_card(free_bytes=13 * GIB + 1).verdict == "tight"
    short = on_card(free_bytes=11 * GIB)
    assert (short.verdict, short.short_device, short.summary) == ("short", "CUDA0", "short by 2.0 GiB on CUDA0")
    assert on_card(unaccounted_bytes=4 * GIB).verdict == "short"
    assert on_card(free_bytes=None).verdict == "unknown"
    assert replace(PLAN, devices=()).verdict == "unknown"


def test_it_is_short_only_if_that_is_certain() -> None:
    short = on_card(free_bytes=11 * GIB)
    assert replace(short, doubts=("the architecture x",)).verdict == "unknown"
    assert replace(short, method="dry-run").verdict == "short"
    assert replace(short, problem="no engine").verdict == "unknown"
    # compute buffers of another structure: without them it would fit
    assert replace(on_card(free_bytes=12 * GIB + 1), compute_certainty="near").verdict == "tight"
    assert replace(on_card(free_bytes=11 * GIB), compute_certainty="near").verdict == "short"
    assert replace(on_card(free_bytes=12 * GIB + 1), compute_certainty="unknown").verdict == "unknown"


def test_what_the_engine_reduces_itself_is_not_short() -> None:
    short = on_card(free_bytes=11 * GIB)
    assert replace(short, adapts="context").verdict == "tight"
    moved = replace(short, adapts="layers")
    assert moved.verdict == "tight" and "the engine reduces it" in moved.summary
    nowhere = replace(moved, devices=(replace(CARD, kv_bytes=90 * GIB), HOST))
    assert nowhere.verdict == "short"


def test_mapped_weights_need_no_room_in_ram() -> None:
    crowded = replace(PLAN, devices=(CARD, replace(HOST, free_bytes=4 * GIB)))
    assert crowded.verdict == "tight"
    read = replace(PLAN, devices=(CARD, replace(HOST, free_bytes=4 * GIB, reclaimable_bytes=0)))
    assert read.verdict == "short" and read.short_device == "Host"


class Planned(Planner):
    """A planner with one answer."""

    def __init__(self, answer: MemoryPlan | Exception, tmp_path: Path) -> None:
        super().__init__(Paths(tmp_path / "c", tmp_path / "s", tmp_path / "cache"), Config())
        self.answer = answer

    def situation(self, *args: object, **options: object) -> Situation:
        return situation(GIB)

    def plan_in(self, *args: object, **options: object) -> MemoryPlan:
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer


@pytest.mark.parametrize(
    "answer",
    [
        PLAN,
        on_card(free_bytes=None),
        replace(on_card(free_bytes=1), doubts=("x",)),
        RuntimeError("a fault of the planner"),
        RecursionError(),
        GpuboxError("no engine"),
    ],
)
def test_nothing_uncertain_refuses_a_start(answer: MemoryPlan | Exception, tmp_path: Path) -> None:
    check_fits(Planned(answer, tmp_path), Profile("p", "m.gguf"), replaces=())


def test_the_refusal_names_flags_that_fit() -> None:
    ways = (Solution({"n-cpu-moe": 22}, GIB, "slower"), Solution({"cache-type-k": "q8_0", "cache-type-v": "q8_0"}, 1))
    error = refusal(on_card(free_bytes=11 * GIB), ways)
    assert error.code == ExitCode.WOULD_NOT_FIT
    assert error.message == "p would not fit: short by 2.0 GiB on CUDA0 (it needs 13.0 GiB, 11.0 GiB would be free)."
    assert "n-cpu-moe=22 (slower); cache-type-k=q8_0 cache-type-v=q8_0" in error.hint


def test_an_override_replaces_every_spelling() -> None:
    flags = {"c": 4096, "ngl": 99, "jinja": True}
    assert changed_flags(flags, {"ctx-size": 8192}) == {"c": 8192, "ngl": 99, "jinja": True}
    assert changed_flags(flags, {"n-gpu-layers": None, "parallel": 2}) == {"c": 4096, "jinja": True, "parallel": 2}


def test_sizes() -> None:
    assert parse_size("1GiB") == GIB == parse_size("1g") == parse_size("1024M")
    assert parse_size("1.5GB") == 1_500_000_000
    with pytest.raises(UsageError):
        parse_size("much")
