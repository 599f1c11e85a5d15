"""``tune`` as a benchmark: its course, what a kill leaves, its time, the report, the picture, the saved profile."""

from __future__ import annotations

import itertools
import json
import math
import random
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest

from gpubox.bench.compare.contest import predicted_rates
from gpubox.bench.kinds.tune.live import tune_progress
from gpubox.bench.kinds.tune.protocol import (
    FIRST_CHOICE,
    OWN,
    AxisRecord,
    Protocol,
    TuneOptions,
    fitted_protocol,
    load_result,
    needed_context,
)
from gpubox.bench.kinds.tune.tune import Tune
from gpubox.bench.model import Item, Plan, RawRecord, Result, RunInfo, Target
from gpubox.bench.questions import question_of
from gpubox.bench.report.model import Report
from gpubox.bench.saved_profile import save_target
from gpubox.errors import UsageError
from gpubox.paths import Paths
from gpubox.profiles.loader import load_profile
from tests.bench_course import Scored, follow

LEVELS: Mapping[str, tuple[int, ...]] = {"n-cpu-moe": (4, 6, 8, 10), "threads": (2, 4, 8), "ubatch-size": (256, 512)}
OWN_VALUES = {"n-cpu-moe": 10, "threads": 2, "ubatch-size": 512}


def plan_of(levels: Mapping[str, tuple[int, ...]] = LEVELS, **options: Any) -> Plan:
    axes = [
        AxisRecord(flag, tuple(map(str, values)), {"n-cpu-moe": -1, "ubatch-size": 1}.get(flag, 0))
        for flag, values in levels.items()
    ]
    cells: dict[str, tuple[int, ...]] = {}
    targets = []
    for place in itertools.product(*(range(len(values)) for values in levels.values())):
        values = {flag: own[at] for (flag, own), at in zip(levels.items(), place, strict=True)}
        changes = {flag: value for flag, value in values.items() if value != OWN_VALUES[flag]}
        name = " ".join(f"{flag}={value}" for flag, value in changes.items()) or OWN
        cells[name] = place
        targets.append(Target(name, "moe", changes))
    targets.sort(key=lambda target: target.name != OWN)
    options = {"pruned": {"they would not fit": 7}, **options}
    return Plan("tune", tuple(targets), msgspec.to_builtins(TuneOptions(tuple(axes), cells, **options)), seed=3)


def speed(target: Target) -> float:
    values = {**OWN_VALUES, **target.overrides}
    return 400 / (4 + int(str(values["n-cpu-moe"])) * (2.0 if values["threads"] == 2 else 1.0))


def done(kind: Tune, most: int | None = None, *, flat: bool = False, factor: float = 1.0, start: float = 6.0) -> Scored:
    """Follows the tune on a box that loads in ``start`` seconds; n-cpu-moe=4 ubatch-size=512 does not load."""
    dice = random.Random(1)
    targets = {target.name: target for target in kind.plan.targets}

    def answer(item: Item) -> Result:
        values = {**OWN_VALUES, **targets[item.target].overrides}
        if values["n-cpu-moe"] == 4 and values["ubatch-size"] == 512:
            return Result(item.id, {}, 5.0 * item.warmup, error="out of VRAM: weights on CUDA0", skipped=True)
        noise = math.exp(random.Random(f"{kind.plan.seed} {item.start}").gauss(0, 0.01) + dice.gauss(0, 0.003))
        question = question_of(item)
        tg = factor * (40.0 if flat else speed(targets[item.target])) * noise * (1 + len(question.text) / 500)
        seconds = question.max_tokens / tg + (question.context_tokens + 60) / (9 * tg)
        own = {"start_seconds": start, "load_seconds": 4.0, "vram_bytes": 9e9} if item.warmup else {}
        return Result(item.id, {"tg": tg, "pp": 9 * tg, **own}, seconds)

    return follow(kind, answer, most)


def report_of(kind: Tune, results: Scored) -> Report:
    return kind.summarise(RunInfo("run", kind.plan, "2026-01-01T00:00:00Z", len(results)), results)


@pytest.fixture(scope="module")
def whole() -> tuple[Tune, Scored]:
    kind = Tune(plan_of())
    return kind, done(kind)


def test_the_report_says_the_answer_the_changed_flags_and_every_cell(whole: tuple[Tune, Scored]) -> None:
    kind, results = whole
    best = kind.best(results)
    report = report_of(kind, results)

    assert best and speed(best) > 0.97 * speed(Target("", "", {"n-cpu-moe": 4, "threads": 8}))
    compared = len({i.target for i, r in results if r.ok})
    assert report.verdict == f"{best.name} is faster than your flags: the best of the {compared} compared."
    assert "95 % interval" in report.notes[0]
    assert "To keep it: gpubox bench save run" in report.notes
    assert any("7 sets of flags were not tried: they would not fit" in note for note in report.notes)
    assert any("out of VRAM" in note for note in report.notes)
    flags, cells = report.tables
    assert {row[0]: (row[1], row[2]) for row in flags.rows} == {
        flag: (str(OWN_VALUES[flag]), str(value)) for flag, value in best.overrides.items()
    }
    words = [row[-1] for row in cells.rows]
    assert "faster" in words and words.count("now") == 1
    assert len(cells.rows) == len(kind.plan.targets)


def test_every_cell_is_started_once_if_there_are_at_most_24(whole: tuple[Tune, Scored]) -> None:
    kind, results = whole
    first = list(dict.fromkeys(item.target for item, _ in results))
    assert len(kind.plan.targets) == 24
    out = {name for name in (t.name for t in kind.plan.targets) if kind.contest_after(results).hopeless(name)}
    assert set(first) | out == {target.name for target in kind.plan.targets}
    assert first[0] == OWN


def test_of_a_large_space_the_best_changes_are_combined() -> None:
    wide = {"n-cpu-moe": (4, 5, 6, 7, 8, 9, 10), "threads": (2, 4, 6, 8), "ubatch-size": (256, 512)}
    kind = Tune(plan_of(wide))
    results = done(kind)
    searched = {item.target for item, _ in results if item.values["stage"] == "search"}
    best = kind.best(results)

    assert len(searched) < 30 < len(kind.plan.targets)
    assert best and best.overrides["n-cpu-moe"] in (4, 5) and best.overrides["threads"] != 2
    places = {f"{a}{b}": (a, b) for a in range(3) for b in range(3)}
    known = {"00": 0.0, "10": 1.0, "20": 3.0, "01": 0.5}
    rates = predicted_rates(places, known)
    assert max(rates, key=lambda cell: rates[cell]) in ("21", "22")


def test_a_killed_tune_goes_on_with_the_same_starts(whole: tuple[Tune, Scored]) -> None:
    kind, results = whole
    answers = {item.id: result for item, result in results}
    again = follow(Tune(kind.plan), lambda item: answers[item.id])
    assert [item for item, _ in again] == [item for item, _ in results]


def test_flags_that_are_as_good_are_not_saved() -> None:
    kind = Tune(plan_of())
    results = done(kind, flat=True)

    assert kind.best(results) is None
    assert "your flags are equally fast, within" in report_of(kind, results).verdict
    assert tune_progress(kind.plan, results).changes == ()


@pytest.mark.parametrize(("minutes", "factor"), [(5.0, 0.5), (5.0, 4.0), (2.0, 4.0), (0.5, 4.0)])
def test_what_is_asked_fits_the_time(minutes: float, factor: float) -> None:
    kind = Tune(plan_of({"n-cpu-moe": (8, 10), "threads": (2, 4), "ubatch-size": (512,)}, minutes=minutes))
    results = done(kind, factor=factor, start=2.0)
    spent = sum(result.seconds + (2.0 if item.warmup else 0.0) for item, result in results)
    contest = kind.contest_after(results)

    assert spent <= 60 * minutes + 2 * (contest.per_start or 0)
    if minutes >= 2:
        assert contest.judged(), "something is compared"
        assert report_of(kind, results).verdict.startswith("n-cpu-moe=8 threads=4 is faster than your flags")
    else:
        assert "--minutes" in report_of(kind, results).verdict or "gpubox bench ab" in report_of(kind, results).verdict


@pytest.mark.parametrize("goal", ["tg", "pp", "agent"])
def test_a_fast_box_is_asked_more_than_a_slow_one(goal: Any) -> None:
    options = msgspec.convert(plan_of(goal=goal).options, TuneOptions)
    fast, slow = fitted_protocol(options, 1.0, 4000.0, 200.0), fitted_protocol(options, 5.0, 60.0, 5.0)

    assert fast == FIRST_CHOICE[options.goal]
    assert slow.context_tokens < fast.context_tokens
    given = replace(options, context_tokens=777)
    assert fitted_protocol(given, 5.0, 60.0, 5.0).context_tokens == 777
    assert fitted_protocol(replace(options, most_context=0), 1.0, 4000.0, 200.0).context_tokens == 0


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
            assert each.reason or each.state != "out"
        json.dumps(msgspec.to_builtins(progress), allow_nan=False)
    assert (phases[0], phases[-1]) == ("searching", "finished")
    last, best = tune_progress(kind.plan, results), kind.best(results)
    assert best and [each.name for each in last.candidates if each.state == "best"] == [best.name]
    assert last.verdict
    assert last.pruned == (("they would not fit", 7),)


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
    item = Item("001/load", "own flags", {}, start=1)
    result = load_result(item, RawRecord(item.id, "", 12.0, {"turns": turns, "wall_seconds": 12.0}))

    assert result.values["agent"] == pytest.approx(45.0)
    assert result.values["turn_seconds"] == 5.0
    turns[4]["reply"] = reply(1.0, 0)
    assert load_result(item, RawRecord(item.id, "", 1.0, {"turns": turns, "wall_seconds": 12.0})).error


def test_the_goal_agent_measures_one_load_in_each_start() -> None:
    kind = Tune(plan_of(goal="agent"))
    items = [i.id for i, _ in follow(kind, lambda i: Result(i.id, {"agent": 9.0, "tg": 40.0, "pp": 400.0}, 1.0), 4)]

    assert items[:3] == ["001/own flags/warm-up", "001/own flags/load", f"002/{items[2].split('/')[1]}/warm-up"]
    load = Protocol(1, 48, 1000)
    assert needed_context(load) > 1000 + load.turns * load.max_tokens
