"""A/B runs: random order of starts, no verdict from noise or drift, an early end after a clear verdict."""

from __future__ import annotations

import math
import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from gpubox.bench.kinds.ab.ab import Ab
from gpubox.bench.kinds.ab.ab_report import summarise
from gpubox.bench.kinds.ab.plan import items_of, parse_options, questions_of, start_order
from gpubox.bench.kinds.ab.verdict import contrast_rows, early_stop_reason
from gpubox.bench.model import Flag, Item, Plan, Result, RunInfo, Target
from gpubox.bench.overrides import toggle_mmap, toggle_mtp
from gpubox.bench.plan_outline import outline_plan
from gpubox.bench.plan_runner import PlanRunner
from gpubox.bench.questions import question_of
from gpubox.bench.report.load import info_and_report
from gpubox.bench.report.model import Report
from gpubox.bench.run_store import find_run
from gpubox.bench.start_comparison import Noise
from gpubox.config import Config
from gpubox.engines.capabilities import parse_help
from gpubox.engines.flag_changes import flag_key
from gpubox.errors import UsageError
from gpubox.paths import Paths
from gpubox.profiles.profile import Profile
from tests.bench_server import BenchServer

TWO = (Target("a", "a"), Target("b", "b"))
SIDES = [{"name": "a", "target": "a"}, {"name": "b", "target": "b"}]
ONE = [{"name": "a", "target": "a"}, {"name": "again", "target": "a"}]


def options(sides: list[dict[str, Any]] = SIDES, **changes: Any) -> Any:
    return parse_options({"sides": sides, "prompts": 3, **changes}, TWO)


def scored(items: list[Item], rate: Any) -> list[tuple[Item, Result]]:
    results = []
    for item in items:
        tg = rate(item)
        values = {"tg": tg, "effective": tg * 0.9, "pp": 10 * tg, "ttft_seconds": 1 / tg}
        values |= {"generated_tokens": 128, "generation_seconds": 128 / tg, "load_seconds": 2.0}
        results.append((item, Result(item.id, values)))
    return results


def report(opts: Any, results: list[tuple[Item, Result]]) -> Report:
    plan = Plan("ab", TWO, {})
    return summarise(opts, RunInfo("x", plan, "2026-01-01T00:00:00Z", len(results)), results)


def test_starts_are_randomised_in_blocks_of_four_and_each_asks_every_prompt(tmp_path: Path) -> None:
    opts = options()
    items = items_of(opts, seed=3)

    letters = [side.name for side in start_order(opts, 3)]
    assert len(letters) == 12
    assert all(letters[at : at + 4].count("a") == 2 for at in (0, 4, 8))
    assert len({tuple(side.name for side in start_order(opts, seed)) for seed in range(40)}) > 30  # drawn, not fixed
    plan = Plan("ab", TWO, {"sides": SIDES, "prompts": 3}, seed=3)
    assert outline_plan(plan, Paths(tmp_path, tmp_path, tmp_path)).starts == tuple(letters)
    for start in range(1, 13):
        mine = [item for item in items if item.start == start]
        assert [item.warmup for item in mine] == [True] + [False] * 9
        assert {item.target for item in mine} == {letters[start - 1]}
        assert [question_of(item).name for item in mine[1:]] == [question.name for question in questions_of(opts)]
    assert len({item.id for item in items}) == len(items)


def test_one_server_is_asked_abba_prompt_by_prompt(tmp_path: Path) -> None:
    items = [item for item in items_of(options(ONE)) if not item.warmup]

    assert [item.values["side"] for item in items[:8]] == ["a", "again", "again", "a", "again", "a", "a", "again"]
    assert len({question_of(item).name for item in items[:4]}) == 1
    plan = Plan("ab", TWO[:1], {"sides": ONE, "prompts": 3})
    assert outline_plan(plan, Paths(tmp_path, tmp_path, tmp_path)).starts == ("a",)


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


def drawn(opts: Any, seed: int, *, launch: float, effect: float = 0.0, starts: int = 12) -> list[tuple[Item, Result]]:
    """Prompts differ by 12 %, answers by 1 %, launches by ``launch``; b is faster by ``effect``."""
    dice = random.Random(seed)
    own = {question.name: 50 * math.exp(dice.gauss(0, 0.12)) for question in questions_of(opts)}
    of_start = [math.exp(dice.gauss(0, launch)) for _ in range(starts + 1)]
    items = [item for item in items_of(opts, seed) if not item.warmup and item.start <= starts]
    gain = {"a": 1.0, "b": 1 + effect}

    def rate(item: Item) -> float:
        worth = own[question_of(item).name] * of_start[item.start] * gain[item.target]
        return worth * math.exp(dice.gauss(0, 0.01))

    return scored(items, rate)


def test_noise_of_one_per_cent_between_starts_gives_no_verdict() -> None:
    opts = options(prompts=4)
    verdicts = [[row.verdict for row in contrast_rows(opts, drawn(opts, seed, launch=0.01))] for seed in range(40)]

    assert sum(any(verdict != "indistinguishable" for verdict in row) for row in verdicts) <= 3
    holds = [contrast_rows(opts, drawn(opts, seed, launch=0.01))[0].contrast.interval for seed in range(40)]
    assert 34 <= sum(low <= 1 <= high for low, high in holds) <= 40


def test_a_difference_of_five_per_cent_is_found_at_the_first_interim_analysis() -> None:
    kind = Ab(Plan("ab", TWO, {"sides": SIDES}))
    early_stops = 0
    for seed in range(20):
        results = drawn(kind.options, seed, launch=0.005, effect=0.05, starts=8)
        early_stops += early_stop_reason(kind.options, results, 4).startswith("the verdict is clear")
    assert early_stops >= 18
    results = drawn(kind.options, 0, launch=0.005, effect=0.05, starts=8)
    later = next(item for item in kind.items() if item.start == 9)
    assert kind.unneeded_reason(later, results) == "the verdict is clear after 4 starts of each"
    assert kind.unneeded_reason(next(item for item in kind.items() if item.start == 8), results) == ""


def test_a_drift_of_ten_per_cent_favours_no_side() -> None:
    opts = options(prompts=4)
    for seed in range(10):
        items = [item for item in items_of(opts, seed) if not item.warmup]
        places = {item.id: at / len(items) for at, item in enumerate(items)}
        results = scored(items, lambda item: 50 * (1 - 0.1 * places[item.id]))  # noqa: B023
        row = contrast_rows(opts, results)[0]
        assert row.verdict == "indistinguishable"
        assert abs(row.contrast.log_ratio) < 0.005


def test_the_report_states_verdicts_intervals_and_doubts() -> None:
    opts = options(prompts=4)
    dice = random.Random(1)
    results = scored(items_of(opts), lambda item: (40 if item.values["side"] == "b" else 50) + dice.random())
    at = next(at for at, (item, _) in enumerate(results) if not item.warmup)
    busy = Flag("busy CPU", "other programs kept 1.2 cores busy", results[at][0].id)
    results[at] = (results[at][0], replace(results[at][1], flags=(busy,)))

    summary = report(opts, results)

    main = summary.tables[0]
    verdicts = {(row[0], row[1]): row[-1] for row in main.rows}
    assert verdicts["tg", "all"] == verdicts["TTFT", "all"] == verdicts["pp", "all"] == "slower"
    assert verdicts["tg, tokens over seconds of all", "all"] == ""
    assert "corrected for these 7 rows (Holm" in main.note
    assert "b is slower than a: -19.8 %" in summary.notes[0]
    assert "over 6 starts of each" in summary.notes[0]
    assert summary.notes[0].endswith("- doubtful: busy CPU in 1 item.")
    assert "One more start of each would narrow" in summary.notes[1]
    assert summary.tables[1].rows == (("a", 6, 2.0, 2.0), ("b", 6, 2.0, 2.0))
    assert {metric.group for metric in summary.metrics} == {"all", "code", "math", "general"}
    assert all(len(metric.starts) == 6 for metric in summary.metrics if metric.name == "tg")


def test_fewer_than_four_starts_use_the_noise_history_and_say_so() -> None:
    opts = options(prompts=4, starts=2)
    near = report(opts, drawn(opts, 1, launch=0.0, effect=0.02, starts=4))

    assert near.tables[0].rows[0][-1] == "too few"
    assert near.notes[0].startswith("Too few starts to compare b with a in tg: differences under about ")
    assert "starts differ with an sd of 2.5 %, assumed, because this box has no history of it" in near.notes[0]
    far = drawn(opts, 1, launch=0.0, effect=0.3, starts=4)
    assert contrast_rows(opts, far)[0].verdict == "too few", "an assumption is no ground for a verdict"
    assert contrast_rows(opts, far, noise=Noise(0.02, 20, 21))[0].verdict == "faster"
    known = contrast_rows(opts, drawn(opts, 1, launch=0.0, effect=0.02, starts=4), noise=Noise(0.002, 20, 21))
    assert known[0].contrast.detectable_difference(0.05) < contrast_rows(opts, drawn(opts, 1, launch=0.0, starts=4))[
        0
    ].contrast.detectable_difference(0.05)


def test_flags_that_change_answers_are_named_with_the_verdict() -> None:
    targets = (Target("a", "p"), Target("b", "p", {"cache-type-k": "q4_0"}))
    opts = parse_options({"sides": SIDES, "prompts": 2}, targets)
    info = RunInfo("x", Plan("ab", targets, {}), "2026-01-01T00:00:00Z", 1)

    summary = summarise(opts, info, scored(items_of(opts), lambda item: 50.0 if item.target == "a" else 60.0))

    assert any("differ in cache-type-k, which also changes the answers" in note for note in summary.notes)


async def test_two_servers_by_url_from_end_to_end(tmp_path: Path) -> None:
    """A run over the wire: every request is uncached, of fixed length, and both servers get the same ones."""
    paths = Paths(tmp_path / "c", tmp_path / "s", tmp_path / "k")
    with BenchServer() as first, BenchServer() as second:
        targets = (Target("a", url=first.url), Target("b", url=second.url))
        plan = Plan("ab", targets, {"sides": SIDES, "prompts": 2, "max_tokens": 8, "context_tokens": 20, "starts": 4})

        info = await PlanRunner(paths, Config(), lambda name: Profile(name, "/nowhere")).run(plan)

        assert (info.state, info.flags) == ("finished", ())
        bodies = [[{**request, "model": ""} for request in sorted(s.asked, key=str)] for s in (first, second)]
        assert len(first.asked) == len(second.asked)
        assert {str(request) for request in bodies[0]} == {str(request) for request in bodies[1]}
        assert all(request["cache_prompt"] is False and request["ignore_eos"] is True for request in first.asked)
        summary = info_and_report(find_run(paths, "last"))[1]
        assert summary.tables[0].rows[0][-1] == "too few"  # one launch of each, however often it is asked
        assert any("cannot restart a server given by its address" in note for note in summary.notes)
        assert summary.flags == ()


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
