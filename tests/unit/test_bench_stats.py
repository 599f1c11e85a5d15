"""The statistics reproduce published figures and textbook tables."""

from __future__ import annotations

import math

import pytest

from gpubox.bench.stats import (
    RatioSample,
    estimate,
    holm,
    mcnemar,
    pass_rate,
    pooled_ratio,
    standard_error,
    t95,
    t_p_value,
    t_quantile,
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
    acceptance = pooled_ratio([[RatioSample(accepted, drafted) for _, drafted, accepted in GAME_RUNS]])

    assert (round(speed.value, 2), round(speed.sd or 0, 2), speed.n) == (249.30, 3.00, 10)
    assert round((speed.maximum or 0) - (speed.minimum or 0), 2) == 10.15
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
    assert round(100 * (standard_error([float(v) for v in values]) or 0), 2) == error
    assert (round(100 * (rate.low or 0), 1), round(100 * (rate.high or 0), 1)) == (low, high)


def test_one_value_has_no_interval_and_no_value_is_refused() -> None:
    single = estimate([3.0])

    assert (single.value, single.sd, single.low, single.high) == (3.0, None, None, None)
    with pytest.raises(ValueError, match="no values"):
        estimate([])
    assert standard_error([1.0]) is None


def test_students_t_agrees_with_tables() -> None:
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


@pytest.mark.parametrize(
    ("value", "freedom", "p"),
    [(0, 5, 1.0), (2.5706, 5, 0.05), (4.0321, 5, 0.01), (1.96, math.inf, 0.05), (9.0, 2.5, 0.00575)],
)
def test_p_values_of_students_t_agree_with_tables(value: float, freedom: float, p: float) -> None:
    assert t_p_value(value, freedom) == pytest.approx(p, rel=0.03, abs=1e-5)
    assert t_p_value(-value, freedom) == t_p_value(value, freedom)


def test_quantile_and_p_value_are_inverse() -> None:
    for freedom in (1, 2.7, 5, 30, 400, math.inf):
        for p in (0.5, 0.05, 0.002):
            assert t_p_value(t_quantile(p, freedom), freedom) == pytest.approx(p, rel=1e-6)
    assert t_quantile(0.05, 0) == math.inf


def test_many_rows_are_corrected_by_holm() -> None:
    assert holm([0.01, 0.04, 0.03]) == pytest.approx([0.03, 0.06, 0.06])
    assert holm([0.6, 0.7]) == [1.0, 1.0]
    assert holm([]) == []


def test_a_ratio_of_two_prompts_has_no_interval() -> None:
    assert pooled_ratio([[RatioSample(3, 4), RatioSample(1, 4)]]).low is None
