"""ab: the order cancels drift, noise is no difference, a real one is found with as many prompts as planned."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest

from gpubox.bench import stats
from gpubox.bench.ab.plan import asked, blocks, items_of, options_of
from gpubox.bench.ab.summary import pairs_of, summarise
from gpubox.bench.asking import question_of
from gpubox.bench.flags import other_mmap, other_mtp, spelled
from gpubox.bench.model import Item, Plan, Result, RunInfo, Target
from gpubox.bench.planning import outline
from gpubox.bench.report.build import report_of
from gpubox.bench.report.model import Report
from gpubox.bench.runner import Runner
from gpubox.bench.store import find_run
from gpubox.config import Config
from gpubox.engines.capabilities import parse_help
from gpubox.errors import UsageError
from gpubox.paths import Paths
from gpubox.profiles.model import Profile
from tests.bench_server import BenchServer

TWO = (Target("a", "a"), Target("b", "b"))
ARMS = [{"name": "a", "target": "a"}, {"name": "b", "target": "b"}]
ONE = [{"name": "a", "target": "a"}, {"name": "again", "target": "a"}]


def options(arms: list[dict[str, Any]] = ARMS, **more: Any) -> Any:
    return options_of({"arms": arms, "prompts": 3, **more}, TWO)


def scored(items: list[Item], rate: Any) -> list[tuple[Item, Result]]:
    made = []
    for item in items:
        tg = rate(item)
        values = {"tg": tg, "effective": tg * 0.9, "pp": 10 * tg, "ttft_seconds": 1 / tg}
        values |= {"generated_tokens": 128, "generation_seconds": 128 / tg, "load_seconds": 2.0}
        made.append((item, Result(item.id, values)))
    return made


def report(opts: Any, results: list[tuple[Item, Result]]) -> Report:
    plan = Plan("ab", TWO, {})
    return summarise(opts, RunInfo("x", plan, "2026-01-01T00:00:00Z", len(results)), results)


def test_two_servers_take_three_starts_and_a_steady_drift_cancels_for_each_prompt(tmp_path: Path) -> None:
    opts = options()
    items = items_of(opts)

    assert [(block.arm.name, len(block.rounds)) for block in blocks(opts)] == [("a", 1), ("b", 2), ("a", 1)]
    plan = Plan("ab", TWO, {"arms": ARMS, "prompts": 3, "rounds": 4})
    assert outline(plan, Paths(tmp_path, tmp_path, tmp_path)).starts == ("a", "b", "a", "b", "a")
    places: dict[tuple[str, str], list[int]] = {}
    for place, item in enumerate(item for item in items if not item.warmup):
        places.setdefault((question_of(item).name, item.values["arm"]), []).append(place)
    for question in asked(opts):
        assert sum(places[question.name, "a"]) == sum(places[question.name, "b"])
    assert [item.id for item in items if item.warmup] == ["1/a/warm-up", "2/b/warm-up", "3/a/warm-up"]
    assert len({item.id for item in items}) == len(items)


def test_one_server_is_asked_abba_prompt_by_prompt(tmp_path: Path) -> None:
    items = [item for item in items_of(options(ONE)) if not item.warmup]

    assert [item.values["arm"] for item in items[:8]] == ["a", "again", "again", "a", "again", "a", "a", "again"]
    assert len({question_of(item).name for item in items[:4]}) == 1
    plan = Plan("ab", TWO[:1], {"arms": ONE, "prompts": 3})
    assert outline(plan, Paths(tmp_path, tmp_path, tmp_path)).starts == ("a",)


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"arms": ARMS, "rounds": 3}, "even number"),
        ({"arms": ARMS[:1]}, "two arms"),
        ({"arms": [{"name": "a", "target": "c"}, ARMS[1]]}, "no target"),
        ({"arms": ARMS, "domains": ["poetry"]}, "poetry"),
        ({"arms": ARMS, "prompts": 0}, "nothing to measure"),
        ({"arms": ARMS, "colour": {}, "prompts": "x"}, "cannot be"),
    ],
)
def test_a_plan_that_cannot_be_is_refused(values: dict[str, Any], words: str) -> None:
    with pytest.raises(UsageError, match=words):
        options_of(values, TWO)


def test_a_profile_against_itself_is_indistinguishable() -> None:
    """Prompts differ by 12 %, each answer by 3 %, each launch by 0.5 %: 19 of 20 runs must not see a difference."""
    opts = options(prompts=10)
    seen = []
    for seed in range(20):
        dice = random.Random(seed)
        own = {question.name: 50 * (1 + dice.gauss(0, 0.12)) for question in asked(opts)}
        launch = {arm: 1 + dice.gauss(0, 0.005) for arm in ("a", "b")}
        items = [item for item in items_of(opts) if not item.warmup]
        results = scored(
            items,
            lambda item: own[question_of(item).name] * launch[item.values["arm"]] * (1 + dice.gauss(0, 0.03)),  # noqa: B023
        )
        seen.append(stats.compare(pairs_of(opts, results, "tg"), seed=seed).verdict)
    assert seen.count("indistinguishable") >= 19


def test_ten_per_cent_are_found_with_as_many_prompts_as_planned() -> None:
    # the median of two rounds: an answer that differs by 10 % counts with 7 %
    n = stats.planned_n(0.07, 0.10)
    opts = options(prompts=-(-n // 3))
    found = 0
    for seed in range(20):
        dice = random.Random(seed)
        items = [item for item in items_of(opts) if not item.warmup]
        results = scored(items, lambda item: (55 if item.values["arm"] == "b" else 50) * (1 + dice.gauss(0, 0.1)))  # noqa: B023
        found += stats.compare(pairs_of(opts, results, "tg"), seed=seed).verdict == "faster"
    assert n <= 51
    assert found >= 16


def test_the_report_says_what_may_be_said() -> None:
    opts = options(prompts=4)
    dice = random.Random(1)
    results = scored(items_of(opts), lambda item: (40 if item.values["arm"] == "b" else 50) + dice.random())

    made = report(opts, results)

    table = made.tables[0]
    verdicts = {(row[0], row[1]): row[-1] for row in table.rows}
    assert verdicts["tg", "all"] == verdicts["TTFT", "all"] == verdicts["pp", "all"] == "slower"
    assert verdicts["tg", "code"] == "too few"
    assert verdicts["tg, tokens over seconds of all", "all"] == ""
    assert "b is slower than a: -20" in made.notes[0]
    assert "a x1, b x2, a x1" in made.notes[1]
    assert made.tables[1].rows == (("a", 2, 2.0, 2.0), ("b", 1, 2.0, 2.0))
    assert {metric.group for metric in made.metrics} == {"all", "code", "math", "general"}
    assert all(metric.estimate.n == 12 for metric in made.metrics if metric.group == "all")


async def test_two_addresses_from_end_to_end(tmp_path: Path) -> None:
    """A run over the wire: every request is uncached, of fixed length, and both servers get the same ones."""
    paths = Paths(tmp_path / "c", tmp_path / "s", tmp_path / "k")
    with BenchServer() as first, BenchServer() as second:
        targets = (Target("a", url=first.url), Target("b", url=second.url))
        plan = Plan("ab", targets, {"arms": ARMS, "prompts": 2, "max_tokens": 8, "context_tokens": 20})

        info = await Runner(paths, Config(), lambda name: Profile(name, "/nowhere")).run(plan)

        assert (info.state, info.flags) == ("finished", ())
        bodies = [[{**one, "model": ""} for one in sorted(s.asked, key=str)] for s in (first, second)]
        assert len(first.asked) == len(second.asked) + 1  # two starts, two warm-ups
        assert {str(one) for one in bodies[0]} == {str(one) for one in bodies[1]}
        assert all(one["cache_prompt"] is False and one["ignore_eos"] is True for one in first.asked)
        made = report_of(find_run(paths, "last"))
        assert made.tables[0].rows[0][-1] == "indistinguishable"
        assert made.flags == ()


HELP = """--spec-draft-n-max N                    window
--draft, --draft-n, --draft-max N       the argument has been removed. use --spec-draft-n-max
-lm,   --load-mode MODE                 mode
-c,    --ctx-size N                     context
"""


def test_flags_are_spelled_as_the_profile_and_this_engine_do() -> None:
    engine, old = parse_help(HELP), parse_help("--draft, --draft-max N    window\n--mmap, --no-mmap    map\n")
    profile = Profile("p", "/m", flags={"c": 512, "spec-type": "draft-mtp", "spec-synth-len": 2.5})

    assert spelled("draft-max", profile, engine) == "spec-draft-n-max"
    assert spelled("spec-draft-n-max", profile, old) == "draft-max"
    assert spelled("--ctx_size", profile, engine) == "c"
    assert spelled("lm", profile, engine) == "load-mode"
    assert spelled("no-such", profile, engine) == "no-such"
    assert other_mtp(profile) == ("without MTP", {"spec-type": "none", "spec-synth-len": ""})
    assert other_mtp(Profile("p", "/m"))[1] == {"spec-type": "draft-mtp"}
    assert other_mmap(profile, engine) == ("without mmap", {"load-mode": "none"})
    assert other_mmap(Profile("p", "/m", flags={"load-mode": "none"}), engine)[0] == "with mmap"
    assert other_mmap(profile, old) == ("without mmap", {"mmap": False})
    assert other_mmap(Profile("p", "/m", flags={"mmap": False}), old) == ("with mmap", {"mmap": ""})
