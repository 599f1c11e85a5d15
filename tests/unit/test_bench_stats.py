"""The statistics reproduce the articles' figures, and say no more than the numbers do."""

from __future__ import annotations

import random

import pytest

from gpubox.bench.stats import (
    Pair,
    Share,
    compare,
    estimate,
    mcnemar,
    pass_rate,
    planned_n,
    pooled,
    stderr,
    t95,
    wilson,
)

GAME_RUNS = (
    (253.73, 1634, 1454),
    (248.63, 1672, 1441),
    (251.65, 1653, 1448),
    (251.75, 1653, 1448),
    (250.43, 1657, 1446),
    (245.62, 1692, 1434),
    (248.14, 1672, 1440),
    (249.72, 1661, 1445),
    (249.78, 1663, 1444),
    (243.58, 1707, 1430),
)
"""tok/s, drafted and accepted tokens of the ten published runs of the 35B-A3B MTP article."""


def test_the_ten_published_runs() -> None:
    speed = estimate([rate for rate, _, _ in GAME_RUNS])
    acceptance = pooled([[Share(accepted, drafted) for _, drafted, accepted in GAME_RUNS]])

    assert (round(speed.value, 2), round(speed.sd or 0, 2), speed.n) == (249.30, 3.00, 10)
    assert round((speed.most or 0) - (speed.least or 0), 2) == 10.15
    assert round((speed.high or 0) - speed.value, 2) == 2.14
    assert round(100 * acceptance.value, 2) == 86.59
    assert acceptance.low and acceptance.high and acceptance.low < 0.8659 < acceptance.high


@pytest.mark.parametrize(
    ("passed", "percent", "error", "low", "high"),
    [(100, 60.98, 3.82, 53.3, 68.1), (159, 96.95, 1.35, 93.1, 98.7)],
)
def test_the_published_pass_rates(passed: int, percent: float, error: float, low: float, high: float) -> None:
    values = [True] * passed + [False] * (164 - passed)

    rate = pass_rate(values)

    assert round(100 * rate.value, 2) == percent
    assert round(100 * (stderr([float(v) for v in values]) or 0), 2) == error
    assert (round(100 * (rate.low or 0), 1), round(100 * (rate.high or 0), 1)) == (low, high)


def test_one_value_has_no_interval_and_none_is_refused() -> None:
    one = estimate([3.0])

    assert (one.value, one.sd, one.low, one.high) == (3.0, None, None, None)
    with pytest.raises(ValueError, match="no values"):
        estimate([])
    assert stderr([1.0]) is None


def test_students_t_is_that_of_the_tables() -> None:
    assert [round(t95(n), 3) for n in (1, 2, 9, 30, 40, 60, 120)] == [
        12.706, 4.303, 2.262, 2.042, 2.021, 2.000, 1.980,
    ]  # fmt: skip
    assert round(t95(31), 3) == 2.040


def test_wilson_at_the_ends_stays_inside() -> None:
    assert wilson(0, 10)[0] == 0
    assert wilson(10, 10)[1] == 1
    assert wilson(0, 0) == (0, 1)
    assert round(wilson(10, 10)[0], 3) == 0.722


@pytest.mark.parametrize(
    ("b", "c", "p"), [(0, 0, 1.0), (5, 5, 1.0), (0, 5, 0.0625), (1, 9, 0.021484375), (9, 1, 0.0215)]
)
def test_mcnemar_is_exact(b: int, c: int, p: float) -> None:
    assert mcnemar(b, c) == pytest.approx(p, abs=1e-4)


def simulated(effect: float, n: int, seed: int, cv: float = 0.05) -> list[Pair]:
    """``n`` prompts of three domains that differ by 12 %, measured once under each arm with noise ``cv``."""
    dice = random.Random(seed)
    pairs = []
    for number in range(n):
        speed = 50 * (1 + dice.gauss(0, 0.12))
        first, second = (speed * factor * (1 + dice.gauss(0, cv)) for factor in (1, effect))
        pairs.append(Pair(("code", "math", "general")[number % 3], (first,), (second,)))
    return pairs


@pytest.mark.parametrize("n", [5, 9, 30])
def test_a_profile_against_itself_is_indistinguishable(n: int) -> None:
    verdicts = [compare(simulated(1.0, n, seed)).verdict for seed in range(20)]

    assert verdicts.count("indistinguishable") >= 19


@pytest.mark.parametrize(("effect", "word"), [(1.1, "faster"), (1 / 1.1, "slower")])
def test_a_known_difference_is_found_with_as_many_as_planned(effect: float, word: str) -> None:
    n = planned_n(0.05, 0.1)

    verdicts = [compare(simulated(effect, n, seed)).verdict for seed in range(20)]

    assert n < 30
    assert verdicts.count(word) >= 17
    assert set(verdicts) <= {word, "indistinguishable"}


def test_intervals_over_prompts_cover_the_truth() -> None:
    truth, covered = 1.1, 0
    for seed in range(40):
        found = compare(simulated(truth, 24, seed))
        assert found.low is not None
        assert found.high is not None
        covered += found.low <= truth <= found.high

    assert covered >= 35


def test_too_few_prompts_get_their_range_and_no_interval() -> None:
    found = compare(simulated(1.5, 4, 0))

    assert (found.verdict, found.low, found.high) == ("too few", None, None)
    assert found.least <= found.ratio <= found.most
    assert pooled([[Share(3, 4), Share(1, 4)]]).low is None


def test_a_margin_is_not_a_difference() -> None:
    same = [Pair("code", (100.0,), (100.5 + 0.01 * i,)) for i in range(8)]

    assert compare(same).verdict == "indistinguishable"
    assert compare(same, margin=0).verdict == "faster"
    with pytest.raises(ValueError, match="margin"):
        planned_n(0.05, 0.01)


def test_the_same_numbers_give_the_same_interval() -> None:
    pairs = simulated(1.05, 12, 3)

    assert compare(pairs) == compare(pairs)
