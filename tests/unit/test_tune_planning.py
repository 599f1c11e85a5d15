"""The plan of a tune on a box whose planner, engine and devices are known."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from gpubox.bench.kind import PlanContext
from gpubox.bench.kinds.tune import tune
from gpubox.bench.kinds.tune.tune import plan_tune
from gpubox.bench.model import Plan
from gpubox.config import Config
from gpubox.engines.capabilities import Capabilities, EngineOption
from gpubox.paths import Paths
from gpubox.planner.planner import Situation
from tests.unit.test_planner_solve import GIB, Measured, situation

ENGINE = Capabilities.of("b11434", tuple(
    EngineOption((name,), value="N", long=name) for name in ("threads", "parallel", "n-gpu-layers", "ctx-size")
))  # fmt: skip
MakePlan = Callable[[Situation, str], Plan]


@pytest.fixture
def planned(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> MakePlan:
    def make(where: Situation, over: str) -> Plan:
        class Here(Measured):
            def situation(self, *args: object, **options: object) -> Situation:
                return where

        monkeypatch.setattr(tune, "Planner", lambda paths, config: Here(tmp_path))
        monkeypatch.setattr(tune, "read_capabilities", lambda engine, paths: ENGINE)
        paths = Paths(tmp_path / "config", tmp_path / "state", tmp_path / "cache")
        context = PlanContext(paths, Config(), lambda name: where.profile)
        return plan_tune(context, {"profile": "p", "over": (over,)})

    return make


@pytest.mark.parametrize("cards", (0, 1))
def test_a_plan_speaks_of_cards_only_where_there_are_some(planned: MakePlan, cards: int) -> None:
    here = situation(20 * GIB, ctx_size=4096, threads=1)
    plan = planned(replace(here, devices=here.devices[1 - cards :]), "threads=1,2")
    sentences = " ".join(plan.about)

    assert ("free on each card" in sentences) is bool(cards)
    assert ("predicted not to fit are left out" in sentences) is not bool(cards)
