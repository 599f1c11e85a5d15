"""Comparison of server starts: drift is removed, missing answers favour no side, interim analyses share the level."""

from __future__ import annotations

import math
import random
import statistics

import pytest

from gpubox.bench.model import Plan, Provenance, RunInfo, Target
from gpubox.bench.report.model import Metric, RunSummary
from gpubox.bench.report.noise_history import NoiseHistory
from gpubox.bench.report.past_figures import target_identity
from gpubox.bench.start_comparison import (
    LEVEL,
    Noise,
    Start,
    ancova,
    compare_prompts,
    compare_starts,
    compare_unpaired,
    interim_analyses,
    random_order,
)
from gpubox.bench.stats import Estimate, satterthwaite

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
    assert result.adjusted_mean("b") - result.adjusted_mean("a") == pytest.approx(0.05)


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


def test_blocks_without_a_restart_count_as_one_start() -> None:
    blocks = [start("ab"[at % 2], at, 0.03 * (at % 2), 0.001) for at in range(12)]

    restarted = compare_starts(blocks, "a", "b")
    asked = compare_starts(blocks, "a", "b", restarted=False, noise=Noise(0.02, 10, 11))

    assert restarted and asked
    assert restarted.verdict(restarted.p_value()) == "faster"
    assert asked.verdict(asked.p_value()) == "too few"
    assert asked.error == pytest.approx(0.02 * math.sqrt(2), rel=0.02)
    assert asked.dof < 15


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


def test_few_prompts_and_single_runs() -> None:
    assert math.isinf(compare_prompts([0.1, 0.2], ["code", "math"]).error)
    single = compare_unpaired(50.0, 60.0, (0.0004, 5.0), (0.0004, 5.0))
    assert single.dof == pytest.approx(10)
    assert satterthwaite([(0.0, 5.0)]) == (0.0, math.inf)
    assert compare_unpaired(50.0, 60.0, (0.0, math.inf)).verdict(0.0) == "faster"


def test_the_mean_of_the_best_of_equals_is_shrunken() -> None:
    dice = random.Random(2)
    equal = ancova([(side, float(at), dice.gauss(0, 0.01)) for at, side in enumerate("abcde" * 4)])
    real = ancova([(side, float(at), 0.3 * (side == "a") + dice.gauss(0, 0.01)) for at, side in enumerate("abcde" * 4)])
    best = max(equal.means, key=equal.adjusted_mean)

    assert equal.shrunken_mean(best) < equal.adjusted_mean(best)
    assert real.shrunken_mean("a") == pytest.approx(real.adjusted_mean("a"), abs=0.001)


def summary(
    number: int, value: float, starts: tuple[float, ...] = (), port: str = "1", kind: str = "speed"
) -> RunSummary:
    argv = ("/x/llama-server", "--model", "m.gguf", "--port", port, "-c", "512")
    provenance = Provenance("p", profile="p", argv=argv, model_sha256="a", engine_sha256="b")
    estimate = Estimate(value, 5)
    metric = Metric("tg", "all", "p", "tok/s", "higher", estimate, (), tuple(enumerate(starts, 1)))
    info = RunInfo(
        f"r{number}", Plan(kind, (Target("p", "p"),)), "t", 1, state="finished", provenance={"p": provenance}
    )
    return RunSummary(f"r{number}", info, metrics=(metric,))


def test_noise_between_starts_comes_from_runs_with_several_starts() -> None:
    summaries = [
        summary(1, 50.0, (49.5, 50.0, 50.5), port="7"),
        summary(2, 50.0, (49.0, 51.0), kind="ab"),
        summary(3, 50.0),
    ]
    known = summaries[0].info.provenance["p"] if summaries[0].info else Provenance("p")

    noise = NoiseHistory(lambda: summaries).between_starts([known])

    assert (noise.dof, noise.runs) == (3, 5)
    assert 0.01 < noise.sd < 0.03
    assert NoiseHistory(lambda: summaries[2:]).between_starts([known]) == Noise()
    assert target_identity(known) == target_identity(summaries[2].info.provenance["p"] if summaries[2].info else known)
