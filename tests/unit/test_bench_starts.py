"""Comparison of server starts: drift is removed, missing answers favour no side, interim analyses share the level."""

from __future__ import annotations

import math
import random
import statistics

import pytest

from gpubox.bench.compare.starts import (
    LEVEL,
    Start,
    ancova,
    compare_prompts,
    compare_starts,
    interim_analyses,
    random_order,
)
from gpubox.bench.stats import satterthwaite

PROMPTS = [f"p{number}" for number in range(8)]


def start(side: str, place: int, log: float, spread: float = 0.0, dice: random.Random | None = None) -> Start:
    noise = dice or random.Random(place)
    return Start(side, place, {name: log + at / 10 + noise.gauss(0, spread) for at, name in enumerate(PROMPTS)})


def test_a_linear_drift_is_removed() -> None:
    sides = "abbabaab"
    points = [(side, float(at), 0.05 * (side == "b") - 0.01 * at) for at, side in enumerate(sides)]

    result = ancova(points)

    assert result.slope == pytest.approx(-0.01)
    assert result.contrast("a", "b")[0] == pytest.approx(0.05)
    assert result.variance == pytest.approx(0, abs=1e-12)
    assert result.dof == 5


def test_incomplete_starts_and_prompts_are_left_out() -> None:
    starts = [start("ab"[at % 2], at, 0.05 * (at % 2)) for at in range(8)]
    half_done = Start("a", 8.0, {"p0": 99.0})
    without = Start("b", 9.0, {name: log for name, log in start("b", 9, 0.05).log_rates.items() if name != "p3"})

    contrast = compare_starts([*starts, half_done, without], "a", "b")

    assert contrast is not None
    assert (contrast.starts, contrast.enough) == (4, True)
    assert contrast.log_ratio == pytest.approx(0.05)
    assert compare_starts(starts[:1], "a", "b") is None


def test_unequal_gains_of_prompts_widen_the_interval() -> None:
    dice = random.Random(1)
    alike = [start("ab"[at % 2], at, 0.05 * (at % 2), 0.005, dice) for at in range(8)]
    gains = {name: 0.05 * at for at, name in enumerate(PROMPTS)}
    apart = [
        Start(own.side, own.time, {name: log + (own.side == "b") * gains[name] for name, log in own.log_rates.items()})
        for own in alike
    ]

    narrow, wide = (compare_starts(starts, "a", "b") for starts in (alike, apart))

    assert narrow and wide
    assert wide.error > 3 * narrow.error
    assert wide.error == pytest.approx(statistics.stdev(gains.values()) / math.sqrt(len(PROMPTS)), rel=0.15)


def test_blocks_without_a_restart_and_few_starts_tell_nothing() -> None:
    blocks = [start("ab"[at % 2], at, 0.03 * (at % 2), 0.001) for at in range(12)]
    asked, few = compare_starts(blocks, "a", "b", restarted=False), compare_starts(blocks[:6], "a", "b")

    assert asked and few
    for contrast in (asked, few):
        assert (contrast.enough, contrast.p_value()) == (False, 1.0)
        assert contrast.log_ratio == pytest.approx(0.03, abs=0.005)


@pytest.mark.parametrize("starts", [1, 4, 5, 6, 7, 10, 20])
def test_interim_analyses_share_the_level_and_the_last_is_at_the_end(starts: int) -> None:
    analyses = interim_analyses(starts)

    assert sum(analysis.level for analysis in analyses) == pytest.approx(LEVEL)
    assert analyses[-1].starts == starts
    assert all(analysis.starts >= 4 and analysis.starts % 2 == 0 for analysis in analyses[:-1])


def test_an_order_has_every_side_equally_often_at_each_interim_analysis() -> None:
    for seed in range(20):
        drawn = random_order(3, 5, seed)
        assert [drawn.count(side) for side in range(3)] == [5, 5, 5]
        assert [drawn[:12].count(side) for side in range(3)] == [4, 4, 4]


def test_few_prompts() -> None:
    assert math.isinf(compare_prompts([0.1, 0.2], ["code", "math"]).error)
    assert satterthwaite([(0.0, 5.0)]) == (0.0, math.inf)
