"""``tune`` as a benchmark: its plan's items, what a kill leaves, the report, the live picture, the saved profile."""

from __future__ import annotations

import asyncio
import itertools
import json
import math
import random
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import msgspec
import pytest

from gpubox.bench.kinds.tune.agent_turns import load_result, needed_context
from gpubox.bench.kinds.tune.live import tune_progress
from gpubox.bench.kinds.tune.protocol import OWN, AxisRecord, TuneOptions, is_final
from gpubox.bench.kinds.tune.tune import Tune
from gpubox.bench.model import Item, Plan, RawRecord, Result, RunInfo, Target
from gpubox.bench.questions import question_of
from gpubox.bench.report.model import Report
from gpubox.bench.report.noise_history import NoiseHistory
from gpubox.bench.saved_profile import save_target
from gpubox.bench.start_comparison import Noise
from gpubox.errors import UsageError
from gpubox.paths import Paths
from gpubox.profiles.loader import load_profile

Scored = list[tuple[Item, Result]]
LEVELS: Mapping[str, tuple[int, ...]] = {"n-cpu-moe": (4, 6, 8, 10), "threads": (2, 4, 8), "ubatch-size": (256, 512)}
OWN_VALUES = {"n-cpu-moe": 10, "threads": 2, "ubatch-size": 512}


def plan_of(**options: Any) -> Plan:
    axes = [
        AxisRecord(flag, tuple(map(str, values)), True, {"n-cpu-moe": -1, "ubatch-size": 1}.get(flag, 0))
        for flag, values in LEVELS.items()
    ]
    cells: dict[str, tuple[int, ...]] = {}
    targets = []
    for place in itertools.product(*(range(len(values)) for values in LEVELS.values())):
        values = {flag: levels[at] for (flag, levels), at in zip(LEVELS.items(), place, strict=True)}
        changes = {flag: value for flag, value in values.items() if value != OWN_VALUES[flag]}
        name = " ".join(f"{flag}={value}" for flag, value in changes.items()) or OWN
        cells[name] = place
        targets.append(Target(name, "moe", changes))
    options = {"prompts": 1, "pruned": {"they would not fit": 7}, **options}
    return Plan("tune", tuple(targets), msgspec.to_builtins(TuneOptions(tuple(axes), cells, **options)), seed=3)


def speed(target: Target) -> float:
    values = {**OWN_VALUES, **target.overrides}
    return 400 / (4 + int(str(values["n-cpu-moe"])) * (2.0 if values["threads"] == 2 else 1.0))


def answer(kind: Tune, item: Item, results: Scored, dice: random.Random, flat: bool = False) -> Result:
    if why := kind.unneeded_reason(item, results):
        return Result(item.id, error=why, skipped=True, unneeded=True)
    target = next(target for target in kind.plan.targets if target.name == kind.target_of(item, results))
    values = {**OWN_VALUES, **target.overrides}
    if values["n-cpu-moe"] == 4 and values["ubatch-size"] == 512:
        why = "out of VRAM: weights on CUDA0 (9,000 MiB)"
        return Result(item.id, {"target": target.name}, 5.0 * item.warmup, error=why, skipped=True)
    noise = math.exp(random.Random(f"{kind.plan.seed} {item.start}").gauss(0, 0.01) + dice.gauss(0, 0.003))
    tg = (40.0 if flat else speed(target)) * noise * (1 + len(question_of(item).text) / 500)
    own = {"start_seconds": 6.0, "load_seconds": 4.0, "vram_bytes": 9e9} if item.warmup else {}
    return Result(item.id, {"target": target.name, "tg": tg, "pp": 9 * tg, **own}, 1.0)


def done(kind: Tune, items: int | None = None, flat: bool = False) -> Scored:
    """The first items with their results."""
    dice, results = random.Random(1), Scored()
    for item in kind.items()[:items]:
        results.append((item, answer(kind, item, results, dice, flat)))
    return results


def report_of(kind: Tune, results: Scored) -> Report:
    return kind.summarise(RunInfo("run", kind.plan, "2026-01-01T00:00:00Z", len(kind.items())), results)


@pytest.fixture(scope="module")
def whole() -> tuple[Tune, Scored]:
    kind = Tune(plan_of())
    return kind, done(kind)


def test_the_report_says_the_verdict_the_changed_flags_and_the_evidence(whole: tuple[Tune, Scored]) -> None:
    kind, results = whole
    best = kind.best(results)
    report = report_of(kind, results)

    assert best and speed(best) > 0.97 * speed(Target("", "", {"n-cpu-moe": 4, "threads": 8}))
    assert report.notes[0].startswith(f"{best.name} is faster by ")
    assert "95 % interval" in report.notes[0]
    assert "To keep it: gpubox bench save run" in report.notes
    assert any("7 sets of flags were not tried: they would not fit" in note for note in report.notes)
    assert any("ran out of VRAM" in note or "out of VRAM" in note for note in report.notes)
    flags, evidence = report.tables
    assert {row[0]: (row[1], row[2]) for row in flags.rows} == {
        flag: (str(OWN_VALUES[flag]), str(value)) for flag, value in best.overrides.items()
    }
    assert [row[-1] for row in evidence.rows].count("keep") == 1
    assert "your flags" in [row[-1] for row in evidence.rows]
    assert sum(int(row[3] or 0) for row in evidence.rows) <= kind.options.space.starts_limit


def test_starts_after_the_verdict_are_not_needed(whole: tuple[Tune, Scored]) -> None:
    kind, results = whole
    made = {item.start for item, result in results if not result.unneeded}

    assert len(made) < kind.options.space.starts_limit
    assert all(result.ok or result.skipped for _, result in results)
    assert kind.seconds_left(results) == 0.0
    assert kind.headline(results)


def test_a_killed_tune_goes_on_with_the_same_starts(whole: tuple[Tune, Scored]) -> None:
    kind, results = whole
    for count in (1, 5, 14, 37, 61):
        fresh = Tune(kind.plan)
        kept = results[:count]
        for item, result in results[count : count + 9]:
            if result.unneeded:
                continue
            assert fresh.target_of(item, kept) == result.values["target"], item.id
            kept.append((item, result))


def test_the_choice_of_a_start_that_was_killed_half_way_is_kept() -> None:
    kind = Tune(plan_of())
    results = done(kind, 9)
    warmup, question = kind.items()[8], kind.items()[9]
    other = next(target.name for target in kind.plan.targets if target.name != results[8][1].values["target"])
    results[8] = (warmup, replace(results[8][1], values={**results[8][1].values, "target": other}))

    assert kind.target_of(question, results) == other
    assert not kind.unneeded_reason(question, results)


def test_flags_that_are_as_good_are_not_saved() -> None:
    kind = Tune(plan_of())
    results = done(kind, flat=True)
    best = kind.best(results)

    assert best and best.name == OWN
    assert report_of(kind, results).notes[0].startswith("Your flags are as good as any: within ")


class PastRuns:
    """A box whose starts hardly ever differed."""

    def between_starts(self, *_: object) -> Noise:
        return Noise(0.004, 30, 31)


@pytest.mark.parametrize("seed", range(3))
def test_the_report_says_what_is_saved_if_the_time_ends_within_the_comparison(seed: int) -> None:
    kind = Tune(replace(plan_of(minutes=4.0), seed=seed))
    kind.history = cast(NoiseHistory, PastRuns())
    dice, results = random.Random(1), Scored()
    for item in kind.items():
        result = answer(kind, item, results, dice)
        slow = is_final(item) and not result.skipped  # 30 s for a start, not 10 s
        results.append((item, replace(result, seconds=6.0) if slow else result))
    best, notes = kind.best(results), report_of(kind, results).notes

    assert any("the time is over" in note for note in notes)
    assert best and ("To keep it: gpubox bench save run" in notes) is (best.name != OWN)


def test_the_live_picture_at_every_moment(whole: tuple[Tune, Scored]) -> None:
    kind, results = whole
    phases = []
    for count in (0, 1, 4, 30, 60, 90, len(results)):
        progress = tune_progress(kind.plan, results[:count], active=True)
        phases.append(progress.phase)
        own, *others = progress.candidates
        assert own.own and own.name == OWN
        assert {each.name for each in progress.candidates} == {target.name for target in kind.plan.targets}
        assert progress.starts_done <= progress.starts_limit
        assert sum(each.state == "measuring" for each in progress.candidates) == (progress.phase != "finished")
        for each in (own, *others):
            assert each.rate is None or each.low is None or each.low <= each.rate <= (each.high or math.inf)
            assert each.estimated is (each.starts == 0 and each.rate is not None)
            assert each.reason or each.state != "out"
        json.dumps(msgspec.to_builtins(progress), allow_nan=False)
    assert phases[0] == "screening"
    assert phases[-1] == "finished"
    last = tune_progress(kind.plan, results)
    best = kind.best(results)
    assert best and [each.name for each in last.candidates if each.state == "best"] == [best.name]
    assert last.verdict
    assert last.pruned == (("they would not fit", 7),)


def test_time_is_kept_over_a_resume() -> None:
    kind = Tune(plan_of(minutes=2.0))  # a start takes 10 s
    results = done(kind)
    starts = len({item.start for item, result in results if not result.unneeded})

    assert 8 <= starts <= 13


@pytest.mark.parametrize(
    "change",
    [
        {"cells": {OWN: [0, 0, 0]}},
        {"cells": "none"},
        {"minutes": 0},
        {"minutes": float("nan")},
        {"goal": "fast"},
        {"axes": []},
        {"streams": 0},
    ],
)
def test_a_damaged_plan_is_refused(change: dict[str, Any]) -> None:
    plan = plan_of()
    with pytest.raises(UsageError):
        Tune(replace(plan, options={**plan.options, **change}))


def test_a_saved_profile_keeps_its_comments(tmp_path: Path) -> None:
    paths = Paths(tmp_path / "config", tmp_path / "state", tmp_path / "cache")
    paths.profiles.mkdir(parents=True)
    file = paths.profiles / "moe.toml"
    file.write_text(
        '# my box\nmodel = "m.gguf"\naliases = ["m"]\n\n[flags]\nn-cpu-moe = 10  # all that fits\nthreads = 2\n\n'
        '[[reference]]\nwhat = "generation"\nvalue = 50.0\nunit = "tok/s"\nhardware = "card"\n'
    )
    base = load_profile(file)
    target = Target("x", "moe", {"n-cpu-moe": 6, "threads": "", "flash-attn": "on"})

    path = save_target(base, target, "tuned", "run-1", paths)

    text, saved = path.read_text(), load_profile(path)
    assert "# my box" in text and "# all that fits" in text and "run-1" in text.splitlines()[0]
    assert dict(saved.flags) == {"n-cpu-moe": 6, "flash-attn": "on"}
    assert (saved.references, saved.aliases) == ((), ())
    with pytest.raises(UsageError, match="There is a profile"):
        save_target(base, target, "tuned", "run-1", paths)


def reply(seconds: float, tokens: int = 48) -> dict[str, Any]:
    values: dict[str, Any] = dict.fromkeys(
        ("prompt_tokens", "cached_tokens", "prompt_seconds", "generation_seconds", "pp", "tg"), 10
    )
    return {"text": "t", "reasoning": "", "finish_reason": "length", "wall_seconds": seconds, "ttft_seconds": 0.1,
            "generated_tokens": tokens, **values}  # fmt: skip


def test_an_agents_load_is_turns_per_minute() -> None:
    turns = [{"stream": n % 3, "turn": n // 3, "at": 0.0, "reply": reply(1.0 + n)} for n in range(9)]
    item = Item("001/load", "search 1", {}, start=1)
    result = load_result(item, RawRecord(item.id, "", 12.0, {"turns": turns, "wall_seconds": 12.0}))

    assert result.values["agent"] == pytest.approx(45.0)
    assert result.values["turn_seconds"] == 5.0
    turns[4]["reply"] = reply(1.0, 0)
    assert load_result(item, RawRecord(item.id, "", 1.0, {"turns": turns, "wall_seconds": 12.0})).error


def test_the_goal_agent_measures_one_load_in_each_start() -> None:
    kind = Tune(plan_of(goal="agent", context_tokens=1000))
    items = kind.items()

    assert [item.id for item in items[:4]] == ["001/warm-up", "001/load", "002/warm-up", "002/load"]
    assert needed_context(kind.options) > 1000 + kind.options.turns * kind.options.max_tokens


def test_choosing_a_start_does_not_block_the_loop(whole: tuple[Tune, Scored]) -> None:
    kind, results = whole
    fresh = Tune(kind.plan)
    item = next(item for item, _ in results if item.start == 6)
    earlier = [pair for pair in results if pair[0].start < 6]
    asyncio.run(fresh.before_start(item, earlier))

    assert fresh.target_of(item, earlier) == next(r.values["target"] for i, r in results if i.start == 6)
