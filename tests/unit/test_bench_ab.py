"""A/B runs: random order of starts, one of three answers, an early end, and what would settle it."""

from __future__ import annotations

import math
import random
import re
from pathlib import Path
from typing import Any

import pytest

from gpubox.bench.kinds.ab.ab import Ab, parse_options
from gpubox.bench.model import Doubt, Item, Plan, Result, RunInfo, Target
from gpubox.bench.overrides import toggle_mmap, toggle_mtp
from gpubox.bench.plan_outline import outline_plan
from gpubox.bench.plan_runner import PlanRunner
from gpubox.bench.questions import question_of
from gpubox.bench.report.load import info_and_report
from gpubox.bench.report.model import Report
from gpubox.bench.run_store import find_run
from gpubox.config import Config
from gpubox.engines.capabilities import parse_help
from gpubox.engines.option_values import flag_key
from gpubox.errors import UsageError
from gpubox.paths import Paths
from gpubox.profiles.profile import Profile
from tests.bench_course import Scored, follow
from tests.bench_server import BenchServer

TWO = (Target("a", "a"), Target("b", "b"))
SIDES = [{"name": "a", "target": "a"}, {"name": "b", "target": "b"}]
ONE = [{"name": "a", "target": "a"}, {"name": "again", "target": "a"}]


def ab(targets: tuple[Target, ...] = TWO, sides: list[dict[str, Any]] = SIDES, seed: int = 0, **options: Any) -> Ab:
    return Ab(Plan("ab", targets, {"sides": sides, "prompts": 2, **options}, seed=seed))


def measured(
    kind: Ab, gain: float = 0.0, *, launch: float = 0.002, drift: float = 0.0, doubts: tuple[Doubt, ...] = ()
) -> Scored:
    """Prompts differ by 12 %, answers by 1 %, launches by ``launch``; b is faster by ``gain``. A start takes 10 s."""
    dice = random.Random(kind.plan.seed)
    prompts = {question.name: 50 * math.exp(dice.gauss(0, 0.12)) for question in kind.asked}
    starts = [math.exp(dice.gauss(0, launch)) for _ in range(200)]

    def answer(item: Item) -> Result:
        tg = prompts[question_of(item).name] * starts[item.start] * math.exp(dice.gauss(0, 0.01))
        tg *= (1 + gain if item.values.get("side", item.target) in ("b", "again") else 1) * (
            1 - drift * item.start / 12
        )
        values = {"tg": tg, "effective": tg * 0.9, "pp": 10 * tg, "ttft_seconds": 1 / tg, "load_seconds": 2.0}
        return Result(item.id, values, 10 / 7, doubts=doubts)

    return follow(kind, answer)


def report_of(kind: Ab, results: Scored) -> Report:
    return kind.summarise(RunInfo("x", kind.plan, "2026-01-01T00:00:00Z", len(results)), results)


def test_starts_are_randomised_in_blocks_of_four_and_each_asks_every_prompt(tmp_path: Path) -> None:
    kind = ab(seed=3)
    results = measured(kind, launch=0.05)

    starts = {item.start: item.target for item, _ in results}
    assert len(starts) == 12
    letters = "".join(starts.values())
    assert all(letters[at : at + 4].count("a") == 2 for at in (0, 4, 8))
    orders = {"".join(i.target for i, _ in measured(ab(seed=seed), launch=0.05) if i.warmup) for seed in range(20)}
    assert len(orders) > 15  # drawn, not fixed
    for start in range(1, 13):
        mine = [item for item, _ in results if item.start == start]
        assert [item.warmup for item in mine] == [True] + [False] * 6
        assert [question_of(item).name for item in mine[1:]] == [question.name for question in kind.asked]
    outline = outline_plan(kind.plan, Paths(tmp_path, tmp_path, tmp_path))
    assert (outline.items, outline.always_restarts) == (12 * 7, True)


def test_one_server_is_asked_abba_prompt_by_prompt(tmp_path: Path) -> None:
    kind = ab(TWO[:1], ONE, prompts=3)
    results = measured(kind, 0.05)
    items = [item for item, _ in results if not item.warmup]

    assert [item.values["side"] for item in items[:8]] == ["a", "again", "again", "a", "again", "a", "a", "again"]
    assert len({question_of(item).name for item in items[:4]}) == 1
    assert outline_plan(kind.plan, Paths(tmp_path, tmp_path, tmp_path)).starts == ("a",)
    report = report_of(kind, results)
    assert report.verdict == "again is faster than a."
    assert "nothing was restarted" in " ".join(report.notes)
    assert report_of(kind, measured(kind)).verdict == "again and a are equally fast, within 2%."


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"sides": SIDES, "starts": 0}, "needs a start"),
        ({"sides": ONE, "starts": 4}, "nothing is restarted"),
        ({"sides": SIDES[:1]}, "two sides"),
        ({"sides": [{"name": "a", "target": "c"}, SIDES[1]]}, "no target"),
        ({"sides": SIDES, "domains": ["poetry"]}, "poetry"),
        ({"sides": SIDES, "prompts": 0}, "nothing to measure"),
        ({"sides": SIDES, "colour": {}, "prompts": "x"}, "Invalid benchmark options"),
    ],
)
def test_invalid_options_are_refused(values: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        parse_options(values, TWO)


BUSY = (Doubt("busy CPU", "other programs kept 1.2 cores busy"),)


@pytest.mark.parametrize(
    ("gain", "launch", "options", "doubts", "verdict"),
    [
        (0.10, 0.002, {}, (), r"b is faster than a\."),
        (-0.10, 0.002, {}, (), r"b is slower than a\."),
        (0.0, 0.002, {}, (), r"b and a are equally fast, within \d%\."),
        (0.03, 0.06, {}, (), r"Whether b is faster than a cannot be told: speeds differ more from start to start than "
         r"between them\. `gpubox bench ab a b --starts \d+ --prompts 2` would settle it, in about \d+ minutes\."),
        (0.03, 0.06, {}, BUSY, r"Whether b is faster than a cannot be told: your CPU was busy\."),
        (0.30, 0.002, {"starts": 2}, (), r"Whether b is faster than a cannot be told: there were too few starts\. "
         r"`gpubox bench ab a b --prompts 2` would settle it, in about 2 minutes\."),
    ],
)  # fmt: skip
def test_one_of_three_answers_opens_the_report(
    gain: float, launch: float, options: dict[str, Any], doubts: tuple[Doubt, ...], verdict: str
) -> None:
    kind = ab(seed=5, **options)
    results = measured(kind, gain, launch=launch, doubts=doubts)
    report = report_of(kind, results)

    assert re.match(verdict, report.verdict), report.verdict
    assert not re.search(r"interval|CI|%", report.verdict.replace("within", "")) or "equally" in report.verdict
    assert ("95 % interval" in report.notes[0]) is ("starts" not in options)
    assert (kind.headline(results) + ".").startswith(report.verdict.partition(". ")[0])


def test_a_clear_answer_ends_the_run_and_the_report_gives_the_figures() -> None:
    kind = ab()
    results = measured(kind, 0.10)
    report = report_of(kind, results)

    assert results[-1][0].start == 8  # four of each
    assert report.notes[0].startswith("b measured +")
    assert "4 starts of each." in report.notes[0]
    assert "it ended because the answer is clear" in report.notes[-1]
    sides, measures = report.tables
    assert [row[0] for row in sides.rows] == ["a", "b"]
    assert [row[-1] for row in sides.rows] == ["now", "faster"]
    assert {(row[0], row[1]) for row in measures.rows} >= {
        ("tg", "all"),
        ("tg", "code"),
        ("TTFT", "all"),
        ("pp", "all"),
    }
    assert {metric.group for metric in report.metrics} == {"all", "code", "math", "general"}
    assert all(len(metric.starts) == 4 for metric in report.metrics if metric.name == "tg")


def test_noise_and_drift_give_no_verdict() -> None:
    told = covered = 0
    for seed in range(40):
        kind = ab(seed=seed)
        contest = kind.contest_after(measured(kind, launch=0.01, drift=0.1 * (seed % 2)))
        row = contest.judged()["b"]
        assert row.interval
        told += row.answer in ("faster", "slower")
        covered += row.interval[0] <= 1 <= row.interval[1]
    assert told <= 3
    assert covered >= 34


def test_what_changes_answers_is_named_and_only_changed_flags_can_be_saved() -> None:
    lossy = ab((Target("a", "p"), Target("b", "p", {"cache-type-k": "q4_0"})))
    results = measured(lossy, 0.2)

    assert any(
        "differ in cache-type-k, which also changes the answers" in note for note in report_of(lossy, results).notes
    )
    best = lossy.best(results)
    assert best and best.name == "b"
    assert lossy.best(measured(lossy, -0.2)) is None
    assert lossy.best(measured(lossy)) is None
    assert not any("To keep it" in note for note in report_of(ab(), measured(ab(), 0.2)).notes)  # two profiles


async def test_two_servers_by_url_from_end_to_end(tmp_path: Path) -> None:
    """A run over the wire: every request is uncached, of fixed length, and both servers get the same ones."""
    paths = Paths(tmp_path / "c", tmp_path / "s", tmp_path / "k")
    with BenchServer() as first, BenchServer() as second:
        targets = (Target("a", url=first.url), Target("b", url=second.url))
        plan = Plan("ab", targets, {"sides": SIDES, "prompts": 2, "max_tokens": 8, "context_tokens": 20, "starts": 4})

        info = await PlanRunner(paths, Config(), lambda name: Profile(name, "/nowhere")).run(plan)

        assert (info.state, info.doubts) == ("finished", ())
        bodies = [[{**request, "model": ""} for request in sorted(s.asked, key=str)] for s in (first, second)]
        assert len(first.asked) == len(second.asked)
        assert {str(request) for request in bodies[0]} == {str(request) for request in bodies[1]}
        assert all(request["cache_prompt"] is False and request["ignore_eos"] is True for request in first.asked)
        summary = info_and_report(find_run(paths, "last"))[1]
        assert summary.verdict.startswith("Whether b is faster than a cannot be told")
        assert "gpubox cannot restart a server by its address" in summary.verdict
        assert summary.doubts == ()


HELP = """--spec-draft-n-max N                    window
--draft, --draft-n, --draft-max N       the argument has been removed. use --spec-draft-n-max
-lm,   --load-mode MODE                 mode
-c,    --ctx-size N                     context
"""


def test_flags_get_the_names_of_the_profile_and_the_engine() -> None:
    engine, old = parse_help(HELP), parse_help("--draft, --draft-max N    window\n--mmap, --no-mmap    map\n")
    profile = Profile("p", "/m", flags={"c": 512, "spec-type": "draft-mtp", "spec-synth-len": 2.5})

    assert flag_key("draft-max", profile, engine) == "spec-draft-n-max"
    assert flag_key("spec-draft-n-max", profile, old) == "draft-max"
    assert flag_key("--ctx_size", profile, engine) == "c"
    assert flag_key("lm", profile, engine) == "load-mode"
    assert flag_key("no-such", profile, engine) == "no-such"
    assert toggle_mtp(profile) == ("without MTP", {"spec-type": "none", "spec-synth-len": ""})
    assert toggle_mtp(Profile("p", "/m"))[1] == {"spec-type": "draft-mtp"}
    assert toggle_mmap(profile, engine) == ("without mmap", {"load-mode": "none"})
    assert toggle_mmap(Profile("p", "/m", flags={"load-mode": "none"}), engine)[0] == "with mmap"
    assert toggle_mmap(profile, old) == ("without mmap", {"mmap": False})
    assert toggle_mmap(Profile("p", "/m", flags={"mmap": False}), old) == ("with mmap", {"mmap": ""})
