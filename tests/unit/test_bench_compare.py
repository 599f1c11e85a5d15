"""Comparison of two runs: noise between runs limits it, p values are corrected, flags show in every form."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest

from gpubox.bench import stats
from gpubox.bench.model import Flag, Plan, Provenance, RunInfo
from gpubox.bench.report.chart import charts
from gpubox.bench.report.formats import FORMS, export_text
from gpubox.bench.report.leaderboard import leaderboard_rows
from gpubox.bench.report.load import load_comparison, load_leaderboards, load_report
from gpubox.bench.report.model import Metric, Report
from gpubox.bench.report.plot import StyledRow
from gpubox.bench.report.report_rows import row_texts
from gpubox.bench.report.run_comparison import compare_runs, comparison_rows, run_differences
from gpubox.bench.report.run_summaries import run_summaries
from gpubox.errors import UsageError
from gpubox.paths import Paths
from gpubox.profiles.profile import Profile
from tests.bench_runs import speed_run


@pytest.fixture
def box(tmp_path: Path) -> Paths:
    return Paths(tmp_path / "config", tmp_path / "state", tmp_path / "cache")


def no_profile(name: str) -> Profile:
    raise UsageError(f"There is no profile {name}.")


def text_of(rows: list[StyledRow]) -> list[str]:
    return list(row_texts(rows))


def metric(name: str, method: str, values: list[float], *, better: str = "higher") -> Metric:
    estimate = replace(stats.estimate(values), method=method)
    samples = tuple((f"task-{at}", value) for at, value in enumerate(values))
    return Metric(name, "", "p", "%", better, estimate, samples)  # type: ignore[arg-type]


def run_of(*metrics: Metric, kind: str = "speed") -> tuple[RunInfo, Report]:
    return RunInfo("id", Plan(kind, ()), "t", 0), Report(kind, "t", metrics)


def test_differences_within_the_noise_between_runs_are_no_verdict(box: Paths) -> None:
    first = speed_run(box, tg=60.0, seed=1)
    again = speed_run(box, tg=62.0, seed=2)
    slower = speed_run(box, tg=48.0, seed=3, argv=("/opt/llama/llama-server", "--n-cpu-moe", "28"))

    same = load_comparison(first, again)
    assert {row.outcome for row in same.rows if row.name == "tg"} == {"noise"}
    assert same.differs == ()
    text = "\n".join(text_of(list(comparison_rows(same))))
    assert re.search(r"differences in speed under about \d+(?: to \d+)? % cannot be detected", text)
    assert "2.5 % from run to run is assumed, because this box has no history of them" in text
    assert "corrected for the" in text
    assert "gpubox bench ab" in text

    worse = load_comparison(first, slower)
    assert {row.outcome for row in worse.rows if row.name == "tg"} == {"regression"}
    assert {row.outcome for row in worse.rows if row.name == "TTFT"} == {"noise"}
    assert any("--n-cpu-moe 20 → 28" in text for text in worse.differs)
    text = "\n".join(text_of(list(comparison_rows(worse))))
    assert "regression" in text
    better = load_comparison(slower, first)
    assert {row.outcome for row in better.rows if row.name == "tg"} == {"better"}
    for form in FORMS:
        assert export_text(box, no_profile, ["compare", first.id, slower.id], form)


def test_repeated_runs_give_the_noise_between_runs(box: Paths) -> None:
    for seed, rate in enumerate((60.0, 60.2, 59.9, 60.1, 60.0)):
        speed_run(box, tg=rate, seed=seed, spread=0.001)
    first, second = speed_run(box, tg=60.0, spread=0.001, seed=9), speed_run(box, tg=63.0, spread=0.001, seed=10)

    comparison = load_comparison(first, second)

    assert {row.outcome for row in comparison.rows if row.name == "tg"} == {"better"}
    assert "in at least 5 past runs" in comparison.noise
    other = speed_run(box, "another", tg=63.0, spread=0.001, seed=10, argv=("/opt/llama/llama-server", "-c", "9"))
    assert "assumed" in load_comparison(first, other).noise  # of that one there is no history
    (tg,) = (row for row in comparison.rows if row.name == "tg" and row.group == "short, cold, depth 0")
    assert tg.detectable_difference is not None
    assert 0.01 < tg.detectable_difference < 0.05


def test_flags_show_in_every_form_of_a_comparison_a_leaderboard_and_a_chart(box: Paths) -> None:
    busy = [Flag("busy CPU", "other programs kept 1.2 cores busy"), Flag("throttling", "held back")]
    first, second = speed_run(box, tg=60.0, seed=1), speed_run(box, tg=40.0, seed=2, flags=busy)

    comparison = load_comparison(first, second)
    text = "\n".join(text_of(list(comparison_rows(comparison, 100))))

    assert "doubtful: busy CPU in 1 item, throttling in 1 item" in text
    bundle = load_report(second, no_profile)
    assert all("busy CPU" in chart.title for chart in charts(bundle.report))
    assert run_summaries(box)[-1].headline.endswith("! busy CPU, throttling")
    board = "\n".join(text_of(list(leaderboard_rows(load_leaderboards(box, "speed"), 100))))
    assert "is doubtful: busy CPU, throttling" in board
    for form in FORMS:
        for what in (["compare", first.id, second.id], ["leaderboard", "speed"], [second.id]):
            assert re.search("busy.CPU", export_text(box, no_profile, what, form)), (form, what)


def test_differences_of_url_targets_are_listed_for_every_target(box: Paths) -> None:
    infos = []
    for dialect, model, names in (("vllm", "m1", "ab"), ("ollama", "m2", "ac")):
        provenance = {n: Provenance(n, url=f"http://{n}", dialect=dialect if n != "a" else "vllm",
                              model_path=model if n != "a" else "m0") for n in names}  # fmt: skip
        infos.append(RunInfo("id", Plan("ab", ()), "t", 0, provenance=provenance))

    assert list(run_differences(*infos)) == [
        "b and c: The model files differ: m1 and m2.", "b and c: The engines differ: vllm and ollama.",
    ]  # fmt: skip


def test_a_comparison_shows_no_key(box: Paths) -> None:
    runs = [
        speed_run(box, argv=("/opt/llama-server", "--api-key", key, "-c", key[-1])) for key in ("s3cret1", "s3cret2")
    ]

    assert load_comparison(*runs).differs == ("The flags differ: -c 1 → 2.",)


def test_three_prompts_are_too_few_for_a_verdict() -> None:
    some, others = [10.0, 40.0, 60.0], [11.0, 44.0, 66.0]
    row = compare_runs(run_of(metric("acceptance", "", some)), run_of(metric("acceptance", "", others))).rows[0]

    assert (row.method, row.outcome) == ("paired by prompt", "too few")
    assert row.ratio == pytest.approx(1.1)


def test_runs_without_a_common_row_are_not_compared(box: Paths) -> None:
    first = speed_run(box)
    other = speed_run(box, options={"prompts": ["long"], "depths": [0], "prefixes": ["cold"], "repeats": 2})

    with pytest.raises(UsageError, match="no row in common"):
        load_comparison(first, other)


def test_pass_rates_are_compared_by_mcnemar() -> None:
    passed = [100.0] * 40 + [0.0] * 24
    gained = [100.0] * 56 + [0.0] * 8

    row = compare_runs(run_of(metric("pass@1", "Wilson", passed)), run_of(metric("pass@1", "Wilson", gained))).rows[0]
    assert (row.method, row.outcome, row.n) == ("McNemar", "better", 64)
    assert row.p is not None
    assert row.p < 0.001

    row = compare_runs(run_of(metric("pass@1", "Wilson", passed)), run_of(metric("pass@1", "Wilson", passed))).rows[0]
    assert (row.outcome, row.p) == ("noise", 1.0)


def test_prompts_are_paired() -> None:
    slow = [10.0, 20.0, 30.0, 40.0, 50.0, 60.0]
    fast = [value * (1.05 + 0.002 * at) for at, value in enumerate(slow)]

    paired = compare_runs(run_of(metric("acceptance", "", slow)), run_of(metric("acceptance", "", fast))).rows[0]
    assert (paired.method, paired.outcome) == ("paired by prompt", "better")
    lower = compare_runs(
        run_of(metric("words", "", slow, better="lower")), run_of(metric("words", "", fast, better="lower"))
    ).rows[0]
    assert lower.outcome == "regression"


def test_p_values_are_corrected_for_the_number_of_rows() -> None:
    """2.4 standard errors: alone a verdict, among ten rows none."""

    def rows_(count: int, factor: float) -> list[Metric]:
        return [replace(metric("tg", "", [50.0 * factor]), group=f"row {at}", unit="tok/s") for at in range(count)]

    alone = compare_runs(run_of(*rows_(1, 1.0)), run_of(*rows_(1, 1.10))).rows
    among = compare_runs(run_of(*rows_(10, 1.0)), run_of(*rows_(10, 1.0)[1:], *rows_(1, 1.10))).rows

    assert [row.outcome for row in alone] == ["better"]
    assert {row.outcome for row in among} == {"noise"}


def test_tasks_of_a_suite_are_paired_even_if_one_scored_zero() -> None:
    tasks = [100.0, 60.0, 0.0, 80.0, 50.0, 90.0, 70.0, 100.0]
    same = compare_runs(
        run_of(metric("points", "", tasks), kind="suite"), run_of(metric("points", "", tasks), kind="suite")
    )
    assert [(row.method, row.outcome) for row in same.rows] == [("McNemar", "noise")]


def test_welchs_interval_is_the_textbooks() -> None:
    # log values 1, 2, 3, 4 against 2, 4, 6, 8: t = 2.5 / sqrt(5/12 + 5/3), 4.41 -> 4 degrees of freedom
    comparison = stats.welch([2.718281828459045**v for v in (1, 2, 3, 4)], [2.718281828459045**v for v in (2, 4, 6, 8)])
    assert comparison.low is not None
    assert comparison.high is not None
    half = stats.t95(4) * (5 / 12 + 5 / 3) ** 0.5
    assert comparison.ratio == pytest.approx(2.718281828459045**2.5)
    assert comparison.high == pytest.approx(2.718281828459045 ** (2.5 + half))
    assert stats.welch([50.0, 50.0], [60.0, 60.0]).verdict == "too few"
    assert stats.welch([50.0] * 5, [60.0] * 5).verdict == "faster"
