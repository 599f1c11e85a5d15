"""When a plan fits, is tight, short, on the disk or unknown; and that a start is refused only when it is certain."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from gpubox.config import Config
from gpubox.errors import ExitCode, GpuboxError, UsageError
from gpubox.paths import Paths
from gpubox.planner.plan import DevicePlan, MemoryPlan, Solution
from gpubox.planner.planner import Planner, Situation, changed_flags
from gpubox.planner.supervisors import check_fits, refusal
from gpubox.planner.verdict import judge
from gpubox.profiles.profile import Profile
from gpubox.units import parse_size
from tests.unit.test_planner_solve import situation

GIB = 1 << 30
CARD = DevicePlan("CUDA0", "gpu", 10 * GIB, 2 * GIB, 0, GIB, 0, 0, free_bytes=16 * GIB)
HOST = DevicePlan(
    "Host", "host", 8 * GIB, 0, 0, 0, 0, 0, free_bytes=32 * GIB, mapped_bytes=8 * GIB, touched_bytes=2 * GIB
)
PLAN = MemoryPlan("p", (CARD, HOST), "formula")


def on_card(**changes: object) -> MemoryPlan:
    return replace(PLAN, devices=(replace(CARD, **changes), HOST))  # type: ignore[arg-type]


def on_host(**changes: object) -> MemoryPlan:
    return replace(PLAN, devices=(CARD, replace(HOST, **changes)))  # type: ignore[arg-type]


SHORT = on_card(free_bytes=11 * GIB)
BARELY = on_card(free_bytes=12 * GIB + 1)


@pytest.mark.parametrize(
    ("plan", "fit", "words"),
    [
        (PLAN, "fits", "fits, 3.0 GiB to spare"),
        (on_card(free_bytes=13 * GIB + 1), "tight", "tight, 0 MiB to spare"),
        (SHORT, "short", "short by 2.0 GiB on CUDA0"),
        (on_card(unaccounted_bytes=4 * GIB), "short", "short by 1.0 GiB on CUDA0"),
        (on_card(free_bytes=None), "unknown", "memory unknown"),
        (replace(PLAN, devices=()), "unknown", "memory unknown"),
        # short only if that is certain
        (replace(SHORT, doubts=("the architecture x",)), "unknown", "memory unknown: the architecture x"),
        (replace(SHORT, method="dry-run"), "short", "short by 2.0 GiB on CUDA0"),
        (replace(SHORT, problem="no engine"), "unknown", "memory unknown: no engine"),
        # compute buffers of another structure: without them it would fit
        (replace(BARELY, is_estimated=True), "tight", "tight, about 0 MiB to spare"),
        (replace(SHORT, is_estimated=True), "short", "short by 2.0 GiB on CUDA0"),
        # what the engine reduces itself is not short
        (
            replace(SHORT, adapts="context"),
            "tight",
            "2.0 GiB too large for CUDA0 alone: llama-server shortens the context",
        ),
        (replace(SHORT, adapts="layers"), "tight", "llama-server moves layers into RAM, which is slower"),
        (replace(on_card(kv_bytes=90 * GIB), adapts="layers"), "short", "short by"),
        # the RAM
        (on_host(free_bytes=4 * GIB), "disk", "reads ~1.0 GiB from the disk for each token: at most ~2.8 tok/s"),
        (on_host(free_bytes=4 * GIB, touched_bytes=0), "fits", "fits, 3.0 GiB to spare"),
        (on_host(free_bytes=4 * GIB, mapped_bytes=0), "short", "short by 4.0 GiB on Host"),
        (on_host(free_bytes=4 * GIB, mapped_bytes=0, elastic_bytes=8 * GIB), "tight", "4.0 GiB of Host would"),
    ],
)
def test_verdicts(plan: MemoryPlan, fit: str, words: str) -> None:
    verdict = judge(plan)
    assert verdict.fit == fit and words in verdict.words
    assert verdict.fit not in ("short", "tight", "disk") or verdict.device in ("CUDA0", "Host")


def test_weights_that_do_not_stay_in_the_ram_cost_time_and_say_what_helps() -> None:
    verdict = judge(on_host(free_bytes=4 * GIB))
    assert (verdict.device, verdict.spare_bytes, verdict.read_bytes_per_token) == ("Host", -4 * GIB, GIB)
    quant, mmap = verdict.remarks
    assert "a quant of at most 9.0 GiB (this: 18.0 GiB)" in quant and "no-mmap it would not start" in mmap


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
