"""Which of stored runs is faster: two compared, many ranked; what is told, what is not, and what would tell it."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from gpubox.bench import stats
from gpubox.bench.compare.past_runs import compare_past, looks, looks_needed, told
from gpubox.bench.compare.words import runs_tell
from gpubox.bench.model import Doubt, Plan, Provenance, RunInfo, Target
from gpubox.bench.report.leaderboard import leaderboard_verdict, make_leaderboards
from gpubox.bench.report.load import load_comparison, load_leaderboards
from gpubox.bench.report.model import Metric, Report, RunSummary
from gpubox.bench.report.run_comparison import ComparedRow, compare_runs, comparison_verdict, run_differences
from gpubox.bench.report.run_summaries import run_summaries
from gpubox.bench.run_store import Run
from gpubox.errors import UsageError
from gpubox.paths import Paths
from gpubox.views.documents import document_rows, document_text, row_texts
from gpubox.views.runs import run_documents
from tests.bench_runs import speed_run

FORMS = ("markdown", "csv", "json", "svg")
PASSED = [100.0] * 40 + [0.0] * 24
TEN = [10.0, 20.0, 30.0, 40.0, 50.0, 60.0]


@pytest.fixture
def box(tmp_path: Path) -> Paths:
    return Paths(tmp_path / "config", tmp_path / "state", tmp_path / "cache")


def shown(box: Paths, view: str, *runs: str, width: int | None = None) -> list[str]:
    return [line for own in run_documents(box, view, runs) for line in row_texts(document_rows(own, width))]


def measured(box: Paths, rates: dict[str, float], rounds: int = 1, spread: float = 0.001) -> dict[str, Run]:
    """Runs of each profile in turn; the last one of each."""
    last = {}
    for number in range(rounds):
        for at, (name, rate) in enumerate(rates.items()):
            argv = ("/opt/llama/llama-server", "--alias-of", name)
            last[name] = speed_run(box, name, tg=rate, seed=50 * number + at, spread=spread, argv=argv)
    return last


# -- the rule -------------------------------------------------------------------------------------------------------


def past(*values: float, first: int = 0, step: int = 1) -> list[tuple[float, float]]:
    return [(first + step * number, value) for number, value in enumerate(values)]


@pytest.mark.parametrize(
    ("first", "second", "answer"),
    [
        ((50, 51, 49, 50), (60, 61, 59, 60), "higher"),
        ((60, 61, 59, 60), (50, 51, 49, 50), "lower"),
        ((50, 51, 49), (60, 61, 59), "cannot tell"),  # three looks at each are too few for anything
        ((50, 51, 49, 50, 50), (60, 61, 30, 60, 60), "cannot tell"),  # a bad start is one of five
        ((50, 51, 49, 50, 50, 50, 51, 50), (60, 61, 30, 60, 60, 61, 59, 60), "higher"),
        ((50.0, 50.1, 50.2, 50.1), (50.1, 50.2, 50.0, 50.1), "equal"),
        ((50, 55, 50, 55, 50), (50, 55, 55, 50, 55), "cannot tell"),  # two modes
    ],
)
def test_runs_in_turn_are_compared_by_their_ranks(first: Sequence[float], second: Sequence[float], answer: str) -> None:
    compared = compare_past(past(*first, step=2), past(*second, first=1, step=2))
    assert compared.direction == answer
    assert (compared.low is None) == (len(first) < 4)


def test_runs_of_one_side_that_follow_each_other_count_once() -> None:
    blocks = past(50, 51, 49, 50, 52), past(60, 61, 59, 60, 62, first=5)
    assert [len(side) for side in looks(*blocks)] == [1, 1]
    assert compare_past(*blocks).direction == "cannot tell"
    assert (looks_needed(), looks_needed(0.05 / 120)) == (4, 8)


def test_equal_is_said_only_if_the_whole_interval_lies_inside() -> None:
    assert [told(low, high) for low, high in ((0.99, 1.01), (0.96, 1.01), (0.9, 1.04), (None, None), (1.02, 1.03))] == [
        "equal", "equal", "cannot tell", "cannot tell", "higher",
    ]  # fmt: skip


# -- two runs -------------------------------------------------------------------------------------------------------


def test_one_run_of_each_tells_nothing_but_what_would_tell_it(box: Paths) -> None:
    runs = measured(box, {"slow": 48.0, "fast": 60.0})
    ids = runs["slow"].id, runs["fast"].id

    comparison = load_comparison(runs["slow"], runs["fast"])
    assert {row.outcome for row in comparison.rows} == {"cannot tell"}
    verdict = comparison_verdict(comparison)
    assert re.search(
        r"cannot be told .* only once, not 5 times\. `gpubox bench ab slow fast` tells it in at most \d+ minutes\.$",
        verdict,
    )
    assert not re.search(r"%|\bCI\b|interval", verdict)
    assert any("--alias-of slow → fast" in text for text in comparison.differs)
    for form in FORMS:
        assert document_text(run_documents(box, "compare", ids), form)


SET = {"ctx-size": 4096}
URL = "http://box:8080"


@pytest.mark.parametrize(
    ("kind", "options", "sides", "argvs", "unit", "tells"),
    [
        ("speed", {}, ("a", "b"), ("", ""), "tok/s", "`gpubox bench ab a b` tells it in at most 14 minutes."),
        ("speed", {}, ("a", "a"), ("--ctx-size 4096 -fa on", "--ctx-size 8192 --mlock"), "tok/s",
         "`gpubox bench ab a --set ctx-size=4096 --set fa=on --set mlock=` tells it in at most 14 minutes."),
        ("sweep", {}, (Target("a", "a"), Target("c", "a", SET)), ("", ""), "tok/s",
         "`gpubox bench ab a --set ctx-size=4096` tells it in at most 14 minutes."),
        ("speed", {}, (Target("x", url=URL), Target("x", url=URL)), ("", ""), "tok/s",
         f"Measured in turn, 5 times each, with `gpubox bench speed --url {URL}`, they tell it. "
         "It takes about 20 minutes."),
        ("suite", {"repeats": 3}, ("a", "b"), ("", ""), "points",
         "`gpubox bench suite a b --repeats 9` tells more, in about 12 minutes."),
        ("humaneval", {"limit": 41}, ("a", "b"), ("", ""), "%",
         "`gpubox bench humaneval a b` tells more, in about 16 minutes."),
        ("humaneval", {}, ("a", "b"), ("", ""), "%",
         "`gpubox bench suite a b --repeats 9` tells more, in about 12 minutes."),
        ("quality", {}, ("a", "b"), ("", ""), "",
         "`gpubox bench quality a b --text FILE`, with a text three times as long, tells more, in about 12 minutes."),
    ],
)  # fmt: skip
def test_what_would_tell_is_a_whole_command_and_its_time(
    kind: str, options: dict[str, object], sides: Sequence[str | Target], argvs: Sequence[str], unit: str, tells: str
) -> None:
    runs = []
    for at, (side, argv) in enumerate(zip(sides, argvs, strict=True)):
        target = side if isinstance(side, Target) else Target(side, side)
        known = {target.name: Provenance(target.name, argv=("llama-server", *argv.split()))}
        info = RunInfo(str(at), Plan(kind, (target,), options), f"2026-11-2{at}", 0, seconds=120.0, provenance=known)
        runs.append((info, replace(metric("x", "", TEN), target=target.name, unit=unit)))
    assert runs_tell(runs[0], runs[1], 5) == tells


def test_past_runs_in_turn_tell_which_is_faster_and_what_is_equal(box: Paths) -> None:
    runs = measured(box, {"a": 60.0, "b": 66.0, "c": 60.0}, rounds=6)

    verdicts = {name: comparison_verdict(load_comparison(runs["a"], runs[name])) for name in "bc"}
    assert verdicts["b"].startswith("b writes about 10 % faster than a (short prompt): +")
    assert "from 6 runs of each, made in turn. The " in verdicts["b"]
    assert verdicts["b"].endswith("One more of each: `gpubox bench speed a` and `gpubox bench speed b`.")
    assert verdicts["c"].startswith("a and c are equally fast, within 1 %.")
    assert comparison_verdict(load_comparison(runs["b"], runs["a"])).startswith("a writes about 9 % slower than b")
    main = load_comparison(runs["a"], runs["b"]).main
    assert (main.name, main.n, main.method) == ("tg", 6, "past runs")
    assert main.ratio == pytest.approx(1.1, abs=0.01)
    assert "▲ faster" in "\n".join(shown(box, "compare", runs["a"].id, runs["b"].id))


def test_two_runs_of_one_launch_differ_by_chance(box: Paths) -> None:
    first, second = speed_run(box, tg=60.0, seed=1), speed_run(box, tg=70.0, seed=2)

    comparison = load_comparison(first, second)
    assert comparison.differs == ()
    assert comparison_verdict(comparison).startswith("Both runs started the same flags on the same box")


def test_a_server_at_an_address_may_have_had_other_flags(box: Paths) -> None:
    first, second = (speed_run(box, url="http://127.0.0.1:8080", argv=(), seed=seed) for seed in (1, 2))

    assert comparison_verdict(load_comparison(first, second)).startswith("Which is faster cannot be told")


def test_a_comparison_fits_the_terminal(box: Paths) -> None:
    runs = measured(box, {"a": 60.0, "b": 66.0}, rounds=5)
    for width in (80, 120):
        lines = shown(box, "compare", runs["a"].id, runs["b"].id, width=width)
        assert max(map(len, lines)) <= width
        assert any("short prompt, after 8K tokens" in line for line in lines)


def metric(name: str, method: str, values: Sequence[float], *, better: str = "higher") -> Metric:
    estimate = replace(stats.estimate(values), method=method)
    samples = tuple((f"task-{at}", value) for at, value in enumerate(values))
    return Metric(name, "", "p", "%", better, estimate, samples)  # type: ignore[arg-type]


def run_of(*metrics: Metric, kind: str = "speed") -> tuple[RunInfo, Report]:
    return RunInfo("id", Plan(kind, ()), "t", 0), Report(kind, "t", metrics)


def test_runs_of_two_kinds_are_not_compared() -> None:
    with pytest.raises(UsageError, match=r"id is of the kind ab, id of the kind sweep\."):
        compare_runs(run_of(kind="ab"), run_of(kind="sweep"))


def row_of(first: Metric, second: Metric) -> ComparedRow:
    return compare_runs(run_of(first), run_of(second)).rows[0]


@pytest.mark.parametrize(
    ("first", "second", "better", "method", "outcome"),
    [
        (PASSED, [100.0] * 56 + [0.0] * 8, "higher", "McNemar", "better"),
        (PASSED, PASSED, "higher", "McNemar", "cannot tell"),
        (TEN, [value * 1.05 + at / 100 for at, value in enumerate(TEN)], "higher", "paired by prompt", "better"),
        (TEN, [value * 1.05 + at / 100 for at, value in enumerate(TEN)], "lower", "paired by prompt", "worse"),
        (TEN[:3], TEN[1:4], "higher", "", "cannot tell"),  # three prompts are too few
        ([100.0, 60.0, 0.0, 80.0, 50.0], [100.0, 60.0, 0.0, 80.0, 50.0], "higher", "paired by prompt", "equal"),
    ],
)
def test_what_no_start_changes_is_paired_by_prompt(
    first: Sequence[float], second: Sequence[float], better: str, method: str, outcome: str
) -> None:
    row = row_of(metric("x", "", first, better=better), metric("x", "", second, better=better))
    assert (row.method, row.outcome) == (method, outcome)


def test_the_rows_of_a_table_share_its_level() -> None:
    """11 of 13 problems changed sides: alone a verdict, among ten rows none; the main row keeps half of the level."""
    lost, won = [100.0] * 2 + [0.0] * 11, [0.0] * 2 + [100.0] * 11

    def rows(values: Sequence[float], count: int) -> list[Metric]:
        return [replace(metric("pass@1", "", values), group=f"row {at}") for at in range(count)]

    outcomes = [
        [row.outcome for row in compare_runs(run_of(*rows(lost, count)), run_of(*rows(won, count))).rows]
        for count in (1, 10)
    ]
    assert outcomes == [["better"], ["better", *["cannot tell"] * 9]]


def test_runs_without_a_common_row_are_not_compared(box: Paths) -> None:
    first = speed_run(box)
    other = speed_run(box, options={"prompts": ["long"], "depths": [0], "prefixes": ["cold"], "repeats": 2})

    with pytest.raises(UsageError, match="no row in common"):
        load_comparison(first, other)


def test_differences_of_url_targets_are_listed_for_every_target() -> None:
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


# -- many runs ------------------------------------------------------------------------------------------------------


def test_a_leaderboard_ranks_profiles_of_one_protocol_by_their_last_run(box: Paths) -> None:
    speed_run(box, "old-and-new", tg=10.0)
    speed_run(box, "old-and-new", tg=80.0)
    speed_run(box, "slow", tg=30.0, doubts=[Doubt("swap", "9 MiB were swapped")])
    speed_run(box, "unfinished", tg=99.0, share=0.5, state="interrupted")
    speed_run(box, "other-protocol", tg=99.0, options={"preset": "quick"})

    boards = load_leaderboards(box, ["speed"])

    assert len(boards) == 2
    board = next(board for board in boards if len(board.entries) == 2)
    assert [(entry.name, entry.against_first, entry.doubts) for entry in board.entries] == [
        ("old-and-new", "equal", ()), ("slow", "cannot tell", ("swap",)),
    ]  # fmt: skip
    assert "whether slow is behind cannot be told" in leaderboard_verdict(board)
    assert "`gpubox bench ab old-and-new slow` tells it" in leaderboard_verdict(board)
    lines = shown(box, "leaderboard", width=80)
    assert max(map(len, lines)) <= 80
    assert any("! speed, slow is doubtful: swap" in line for line in lines)
    assert "only profile" in leaderboard_verdict(load_leaderboards(box, ["other-protocol"])[0])
    for form in FORMS:
        assert "slow" in document_text(run_documents(box, "leaderboard"), form)
    with pytest.raises(UsageError, match="no run"):
        load_leaderboards(box, ["nonsense"])


def test_profiles_measured_in_turn_are_told_apart(box: Paths) -> None:
    measured(box, {"a": 60.0, "b": 66.0, "c": 50.0}, rounds=5)
    (board,) = load_leaderboards(box)
    assert [entry.against_first for entry in board.entries] == ["equal", "worse", "worse"]
    assert leaderboard_verdict(board) == "b is the fastest of the 3."


def suite_summary(name: str, points: float, repeats: int) -> RunSummary:
    samples = tuple(
        (f"{task}.1/{number}", points + task + number) for task in range(12) for number in range(1, repeats + 1)
    )
    own = Metric("points", "weighted total", name, "of 100", "higher", stats.Estimate(points, 12), samples)
    info = RunInfo(name, Plan("suite", (Target(name, name),)), "t", 12, state="finished")
    return RunSummary(name, info, title="suite", metrics=(own,))


def test_a_suite_with_one_sample_of_each_task_has_no_ranking() -> None:
    once, thrice = ([suite_summary(name, at, repeats) for name, at in (("a", 60.0), ("b", 40.0))] for repeats in (1, 3))
    (board,) = make_leaderboards(once)
    assert leaderboard_verdict(board).startswith("One sample: no ranking.")
    (board,) = make_leaderboards(thrice)
    assert leaderboard_verdict(board) == "a is the best of the 2."


def test_doubts_show_in_every_form(box: Paths) -> None:
    busy = [Doubt("busy CPU", "other programs kept 1.2 cores busy"), Doubt("throttling", "held back")]
    first, second = speed_run(box, "a", tg=60.0, seed=1), speed_run(box, "b", tg=40.0, seed=2, doubts=busy)

    assert "doubtful: busy CPU in 1 measurement, throttling in 1 measurement" in comparison_verdict(
        load_comparison(first, second)
    )
    assert run_summaries(box)[-1].headline.endswith("! busy CPU, throttling")
    views = (("report", second.id), ("compare", first.id, second.id), ("leaderboard",))
    for view, *runs in views:
        assert re.search("busy CPU", "\n".join(shown(box, view, *runs, width=100)))
        for form in FORMS:
            text = document_text(run_documents(box, view, runs), form)
            assert re.search("busy.CPU|throttling", text), (form, view)
