"""Plans of models whose header alone is here. tests/perf/fit_truth.py compares plans with real loads."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from gpubox.config import Config
from gpubox.paths import Paths
from gpubox.planner import planner as planner_module
from gpubox.planner.finder import LaunchIdea, plan_model
from gpubox.planner.planner import Planner, Situation
from gpubox.profiles.profile import FlagValue, Profile
from tests.gguf_bytes import model
from tests.unit.test_planner_solve import GIB, situation


@pytest.fixture
def planner(tmp_path: Path) -> Planner:
    return Planner(Paths(tmp_path / "c", tmp_path / "s", tmp_path / "cache"), Config())


def compute_bytes(planner: Planner, where: Situation, **overrides: FlagValue | None) -> int | None:
    changes = {name.replace("_", "-"): value for name, value in overrides.items()}
    return planner.plan_in(where, changes).devices[0].compute_bytes


def test_the_estimate_is_of_the_flags_that_count(planner: Planner) -> None:
    wanted = compute_bytes(planner, situation(GIB, ctx_size=8192, ubatch_size=128))
    plain = situation(GIB, ctx_size=65536)
    assert wanted and wanted != compute_bytes(planner, plain)
    assert compute_bytes(planner, situation(GIB, c=8192, ub=128)) == wanted
    assert compute_bytes(planner, plain, ctx_size=8192, ubatch_size=128) == wanted
    assert compute_bytes(planner, replace(situation(GIB, c=8192), env={"LLAMA_ARG_UBATCH": "128"})) == wanted
    assert compute_bytes(planner, situation(GIB, c=8192, batch_size=128)) == wanted


@pytest.mark.parametrize(
    ("flags", "expected"),
    [
        ({"c": 4096, "ub": 64}, {"ctx-size": 4096, "parallel": 1, "ub": 64}),
        ({"c": None}, {"parallel": 1}),
    ],
)
def test_an_alias_replaces_the_flag_of_a_new_profile(
    planner: Planner, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, flags: dict[str, FlagValue | None],
    expected: dict[str, FlagValue],
) -> None:  # fmt: skip
    path = tmp_path / "m.gguf"
    path.write_bytes(model())
    planned: list[Profile] = []

    def remember(_: object, profile: Profile, **__: object) -> Situation:
        planned.append(profile)
        return situation(GIB)

    monkeypatch.setattr(planner_module.Planner, "situation", remember)
    plan_model(planner, "m", path, Paths(tmp_path / "c", tmp_path / "s", tmp_path / "cache"), LaunchIdea(flags))
    assert planned[0].flags == expected
