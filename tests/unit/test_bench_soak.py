"""soak: cycles are found in cycles and not in noise, drift or steps; memory growth is told from ups and downs."""

from __future__ import annotations

import math
import random
import re
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from gpubox.bench.kinds.soak.soak import Soak
from gpubox.bench.kinds.soak.soak_report import drift_sentence, findings
from gpubox.bench.kinds.soak.trends import depth_adjusted_rates, find_cycle, judge_drift, kendall_z, memory_growth
from gpubox.bench.model import Doubt, Item, Plan, Result, RunInfo, Target
from gpubox.bench.plan_runner import PlanRunner
from gpubox.bench.report.load import info_and_report
from gpubox.bench.run_store import find_run
from gpubox.config import Config
from gpubox.errors import UsageError
from gpubox.paths import Paths
from gpubox.profiles.profile import Profile
from tests.bench_server import BenchServer
from tests.soak_noises import NOISES, Noise

Series = Callable[[random.Random], list[float]]


def wander(dice: random.Random) -> list[float]:
    value, rates = 0.0, []
    for _ in range(80):
        value = 0.85 * value + dice.gauss(0, 6)
        rates.append(max(10.0, 100 + value))
    return rates


NO_CYCLE: dict[str, Series] = {
    "little noise": lambda d: [100 * (1 + d.gauss(0, 0.03)) for _ in range(80)],
    "much noise": lambda d: [100 * (1 + d.gauss(0, 0.15)) for _ in range(60)],
    "few answers": lambda d: [100 * (1 + d.gauss(0, 0.15)) for _ in range(14)],
    "a drift": lambda d: [100 - 20 * i / 80 + d.gauss(0, 4) for i in range(80)],
    "a step": lambda d: [100 - (25 if i > 40 else 0) + d.gauss(0, 4) for i in range(80)],
    "getting warm": lambda d: [70 + 30 * math.exp(-i / 15) + d.gauss(0, 3) for i in range(80)],
    "a wander": wander,
    "two levels at random": lambda d: [d.choice((100.0, 60.0)) + d.gauss(0, 3) for _ in range(80)],
    "a few hiccups": lambda d: [100 + d.gauss(0, 2) - (50 if d.random() < 0.05 else 0) for _ in range(80)],
}


@pytest.mark.parametrize("name", NO_CYCLE)
def test_there_is_no_false_alarm(name: str) -> None:
    assert [find_cycle(NO_CYCLE[name](random.Random(seed))) for seed in range(12)] == [""] * 12


def alternating(dice: random.Random, *, fast: int, slow: int, n: int, less: float, noise: float) -> list[float]:
    begin = dice.randrange(fast + slow)
    return [(100 if (i + begin) % (fast + slow) < fast else 100 - less) + dice.gauss(0, noise) for i in range(n)]


@pytest.mark.parametrize(
    ("fast", "slow", "n", "less", "noise"),
    [(5, 4, 36, 25, 5), (5, 4, 54, 25, 8), (5, 4, 63, 12, 3), (2, 2, 40, 20, 4), (9, 3, 60, 30, 5), (12, 8, 66, 25, 4)],
)
def test_five_fast_four_slow_is_found(fast: int, slow: int, n: int, less: float, noise: float) -> None:
    for seed in range(2):
        values = alternating(random.Random(seed), fast=fast, slow=slow, n=n, less=less, noise=noise)
        found_fast, found_slow, difference, _ = map(int, re.findall(r"\d+", find_cycle(values)))
        assert (found_fast, found_slow) == (fast, slow)
        assert difference == pytest.approx(less, abs=5)


def test_a_cycle_on_a_slope_is_found_and_a_tiny_one_does_not_matter() -> None:
    dice = random.Random(3)
    sloped = [v - i / 4 for i, v in enumerate(alternating(dice, fast=5, slow=4, n=72, less=25, noise=4))]
    assert find_cycle(sloped).startswith("5 fast, 4 slow (-2")
    assert find_cycle(alternating(dice, fast=5, slow=4, n=72, less=2, noise=0.2)) == ""
    assert find_cycle([]) == ""
    assert find_cycle([50.0] * 40) == ""


def test_conversations_that_grow_and_begin_anew_are_no_cycle() -> None:
    """tg falls with depth and comes back with each new conversation: at equal depth it is flat."""
    dice = random.Random(5)
    raw: list[float] = []
    depths: list[int] = []
    for talk in range(12):
        for turn in range(6):
            depth = 600 + 900 * turn
            raw.append(1 / (0.02 + depth * 2e-6) * (1 + dice.gauss(0, 0.01)))
            depths.append(depth + talk)

    assert find_cycle(raw)  # what the correction is for
    even = depth_adjusted_rates(raw, depths)
    assert find_cycle(even) == ""
    assert max(even) / min(even) < 1.08 < max(raw) / min(raw)


def test_memory_growth_is_told_from_a_server_that_settles_or_sways() -> None:
    dice, gib = random.Random(1), 1 << 30
    seconds = [20.0 * i for i in range(45)]
    leak = memory_growth([4 * gib + i * (4 << 20) + dice.gauss(0, 2 << 20) for i in range(45)], seconds)
    settles = memory_growth([4 * gib - gib * math.exp(-i / 3) + dice.gauss(0, 2 << 20) for i in range(45)], seconds)
    sways = memory_growth([4 * gib + dice.gauss(0, 200 << 20) for i in range(45)], seconds)

    assert leak is not None
    assert leak.per_hour == pytest.approx((4 << 20) * 180, rel=0.1)
    assert [leak.grows, settles and settles.grows, sways and sways.grows] == [True, False, False]
    assert memory_growth([1.0] * 5, seconds[:5]) is None
    assert kendall_z([1, 2, 3, 4, 5, 6, 7]) > 2.576 > kendall_z([1, 1, 1, 1, 1, 1, 1]) == 0


def soak(**options: Any) -> Soak:
    return Soak(Plan("soak", (Target("p", "p"),), options))


def windows(kind: Soak, rates: Callable[[int], float], **box: Callable[[int], Any]) -> list[tuple[Item, Result]]:
    """Six answers a window; ``rates`` gives the tok/s of the n-th answer."""
    results, n = [], 0
    for number, item in enumerate(kind.items()):
        rows = []
        for _ in range(6):
            rows.append({
                "tg": rates(n), "context_tokens": 1000, "ttft_seconds": 0.2, "generated_tokens": 128,
                "draft_tokens": None, "draft_tokens_accepted": None,
            })  # fmt: skip
            n += not item.warmup
        readings = {key: value(number) for key, value in box.items()}
        results.append((item, Result(item.id, {"answers": rows, **readings})))
    return results


@pytest.mark.parametrize(
    "noise", ["1 %", "wander 3 %, 25 s", "two modes -10 %, 120", "two modes -20 %, 15", "a bad start"]
)
def test_noise_is_not_called_slower(noise: str) -> None:
    """More of them, and of the servers that do become slower: tests/perf/soak_truth.py."""
    verdicts = [drift_of(NOISES[noise], seed) for seed in range(12)]
    assert sum(verdict in ("slower", "faster") for verdict in verdicts) <= 1


@pytest.mark.parametrize("noise", ["1 %", "5 %", "wander 1 %, 25 s", "two modes -5 %, 15"])
def test_a_server_that_loses_a_tenth_is_called_slower(noise: str) -> None:
    assert sum(drift_of(NOISES[noise], seed, loss=0.1) == "slower" for seed in range(8)) >= 7


def drift_of(noise: Noise, seed: int, loss: float = 0.0) -> str:
    logs = noise(random.Random(seed), 360)
    drift = judge_drift([50 * math.exp(log) * (1 - loss * n / 360) for n, log in enumerate(logs)])
    assert drift is not None and drift.low <= drift.change <= drift.high
    return drift.verdict


def test_the_report_names_every_finding() -> None:
    kind = soak(minutes=5, window_seconds=20)
    dice, gib = random.Random(2), 1 << 30
    results = windows(
        kind,
        lambda n: (50 if n % 9 < 5 else 38) * (1 - n / 400) + dice.gauss(0, 0.5),
        rss_bytes=lambda w: 2 * gib + w * (30 << 20),
        vram_bytes=lambda w: 20 * gib,
        temperature_celsius=lambda w: 60 + w,
    )

    report = kind.summarise(RunInfo("r", kind.plan, "2026-01-01T00:00:00Z", len(results)), results)

    notes = "\n".join(report.notes)
    assert "tg at equal depth goes in cycles: 5 fast, 4 slow (-2" in notes
    assert report.verdict == "It became slower." and "tg over the whole soak, at equal depth: -" in notes
    assert "RAM of the server grows:" in notes
    assert "VRAM is steady at 20.0 GiB." in notes
    table = {row[0]: row for row in report.tables[0].rows}
    assert table["temperature"][2:] == ("63 (61 – 65)", "68 (66 – 70)", "73 (71 – 75)")
    charts = {series.chart: series for series in report.series}
    assert len(charts["temperature over time"].points) == 15
    assert charts["tg over time"].points[0][0] == pytest.approx(1 / 6)
    (tg,) = (metric for metric in report.metrics if metric.name == "tg")
    assert tg.estimate.n == 15


def test_a_steady_server_is_said_to_be_steady() -> None:
    kind, dice = soak(minutes=5, window_seconds=20), random.Random(4)
    results = windows(kind, lambda n: 50 * (1 + dice.gauss(0, 0.02)))
    report = kind.summarise(RunInfo("r", kind.plan, "2026-01-01T00:00:00Z", len(results)), results)

    assert report.verdict == "It kept its speed."
    assert [note.partition(":")[0] for note in report.notes] == [
        "tg over the whole soak, at equal depth",
        "tg at equal depth shows no cycle of fast and slow answers; cycles of up to 30 answers were looked for.",
    ]


def test_a_short_soak_says_what_is_unknown_and_flags_are_in_every_finding() -> None:
    kind = soak(minutes=2, window_seconds=20)
    results = windows(kind, lambda n: 50.0, rss_bytes=lambda w: (2 << 30) + w * (300 << 20))
    results[-1] = (results[-1][0], replace(results[-1][1], doubts=(Doubt("throttling", "power cap", "006"),)))
    report = kind.summarise(RunInfo("r", kind.plan, "2026-01-01T00:00:00Z", len(results)), results)

    assert any("6 windows are too few to tell whether RAM of the server grows" in note for note in report.notes)
    assert all(note.endswith("- doubtful: throttling in 1 measurement.") for note in report.notes)
    short = list(findings([(1, results[0][1])], 20.0, [50.0], None))
    assert drift_sentence(None) == "Cannot tell whether it keeps its speed: too few answers."
    assert any("are too few to tell whether tg at equal depth goes in cycles" in note for note in short)


def test_where_the_answers_differ_too_much_nothing_is_said_to_be_steady() -> None:
    kind, dice = soak(minutes=15, window_seconds=20), random.Random(4)
    slow_minutes = [dice.choice((0.1, 0.5, 1.0, 2.0)) for _ in range(60)]
    results = windows(kind, lambda n: 50 * slow_minutes[n // 6] * (1 + dice.gauss(0, 0.02)))
    report = kind.summarise(RunInfo("r", kind.plan, "2026-01-01T00:00:00Z", len(results)), results)

    assert report.verdict.startswith("Cannot tell whether it keeps its speed: ")
    assert " to +" in report.notes[0]


@pytest.mark.parametrize("values", [{"minutes": 0}, {"minutes": "x"}, {"max_tokens": 1}, {"context_tokens": 5}])
def test_invalid_options_are_refused(values: dict[str, Any]) -> None:
    with pytest.raises(UsageError):
        soak(**values)


async def test_the_load_is_conversations_that_grow_and_begin_anew(tmp_path: Path) -> None:
    paths = Paths(tmp_path / "c", tmp_path / "s", tmp_path / "k")
    with BenchServer() as server:
        plan = Plan("soak", (Target("a", url=server.url),), {"minutes": 0.02, "window_seconds": 0.4, "max_tokens": 8})
        info = await PlanRunner(paths, Config(), lambda name: Profile(name, "/nowhere")).run(plan)
        requests = server.asked

    assert (info.state, info.items) == ("finished", 4)
    lengths = [len(body["messages"]) for body in requests]
    assert lengths[:2] == [2, 4]  # system and task; then with the answer and the tool's output
    assert lengths.count(2) >= 1
    for before, after in pairwise(requests):
        if len(after["messages"]) > 2:
            assert after["messages"][: len(before["messages"])] == before["messages"]
            assert after["messages"][len(before["messages"])]["role"] == "assistant"
    assert all(body["cache_prompt"] is True for body in requests)
    run = find_run(paths, "last")
    stored = [answer for raw in run.raws().values() for answer in raw.data["answers"]]
    assert len(stored) == len(requests)
    assert {answer["request"]["messages_before"] + len(answer["request"]["messages"]) for answer in stored} == set(
        lengths
    )
    assert any("tg" in row for row in info_and_report(run)[1].tables[0].rows)
