"""tg and pp over depth, where tg has halved, and the energy of each token."""

from __future__ import annotations

from typing import Any

import pytest

from gpubox.bench.kinds.speed.speed import Speed
from gpubox.bench.measured_request import NO_POWER, TOO_SHORT, energy_values
from gpubox.bench.model import Plan, RawRecord, Result, RunInfo, Sample, Target
from gpubox.bench.report.chart import charts
from gpubox.bench.report.model import Report


def report_of(depths: list[int], *, starts: int = 1, halves_at: float = 6000.0, **values: Any) -> Report:
    """tg falls from 60 tok/s at depth 0 to half of it at ``halves_at``; a start is 1 % faster than the one before."""
    options = {"prompts": ["short"], "depths": depths, "repeats": 2, "starts": starts}
    kind = Speed(Plan("speed", (Target("moe", "moe"),), options))
    results = []
    for item in kind.items():
        depth = item.values["depth"]
        tg = 60 / (1 + depth / halves_at) * 1.01**item.start
        own = {"tg": tg, "pp": 500.0 - depth / 100, "ttft_seconds": 1.0, **values}
        results.append((item, Result(item.id, own)))
    return kind.summarise(RunInfo("run", kind.plan, "t", len(results)), results)


def test_where_tg_has_halved_is_said_if_it_was_measured() -> None:
    note = report_of([0, 4096, 8192, 16384]).notes[0]
    # 60/(1+4096/6000) = 35.7 and 60/(1+8192/6000) = 25.4; the line between them crosses 30 at 6,348.
    assert note == (
        "moe: tg has halved between 4,096 and 8,192 tokens of context (~6,348 on a straight line): 25.4 tok/s at "
        "8,192, 42 % of 60.0 at 0."
    )
    assert report_of([0, 4096]).notes[0] == (
        "moe: tg has not halved up to 4,096 tokens of context: 35.7 tok/s there, 59 % of 60.0 at 0."
    )
    assert "42 % (95 % CI 42 to 42 %)" in report_of([0, 4096, 8192], starts=3).notes[0]
    assert not any("halved" in note for note in report_of([0]).notes)


def test_the_curves_have_intervals_only_of_several_starts_and_pp_begins_above_depth_0() -> None:
    once, thrice = report_of([0, 4096, 8192]), report_of([0, 4096, 8192], starts=3)

    lines = {(series.chart, series.name): series for series in thrice.series}
    assert {name for _, name in lines} == {"cached", "not cached"}
    tg = lines["tg over depth: short prompt, 128 tokens", "not cached"]
    assert [x for x, _ in tg.points] == [0, 4096, 8192]
    assert all(low < y < high for (_, y), (_, low, high) in zip(tg.points, tg.intervals, strict=True))
    pp = lines["pp over depth: short prompt, 128 tokens", "not cached"]
    assert [x for x, _ in pp.points] == [4096, 8192]
    assert all(series.intervals == () for series in once.series)
    assert charts(thrice)[0].x_label == "depth, tokens of context before the prompt"


def test_energy_has_charts_and_says_what_it_includes_or_why_it_is_unknown() -> None:
    known = report_of([0, 4096], joules_per_token=3.0, joules_per_prompt_token=0.1)
    titles = [chart.title for chart in charts(known)]
    for title in ("J per generated token over depth: short prompt, 128 tokens", "energy, J/token", "read energy"):
        assert any(own.startswith(title) for own in titles), titles
    assert any("idle power included" in note for note in known.notes)

    assert "Energy per token: — (the driver gives no power reading)." in report_of([0], no_energy=NO_POWER).notes
    assert any("too short" in note for note in report_of([0], no_energy=TOO_SHORT).notes)


@pytest.mark.parametrize(
    ("watts", "first", "end", "expected"),
    [
        (200.0, 3.0, 6.0, {"joules_per_token": 200 * 3 / 100, "joules_per_prompt_token": 200 * 3 / 50}),
        (200.0, 0.5, 6.0, {"joules_per_token": 200 * 5.5 / 100, "joules_per_prompt_token": None}),
        (200.0, 0.5, 1.0, {"joules_per_token": None, "joules_per_prompt_token": None, "no_energy": TOO_SHORT}),
        (None, 3.0, 6.0, {"joules_per_token": None, "joules_per_prompt_token": None, "no_energy": NO_POWER}),
    ],
)
def test_energy_of_the_phases(watts: float | None, first: float, end: float, expected: dict[str, Any]) -> None:
    samples = tuple(Sample(number / 2, power_watts=watts) for number in range(13))
    raw = RawRecord("item", "t", end, {}, samples)

    values = energy_values(raw, first, end, prompt=50, generated=100)

    assert values == pytest.approx(expected) if watts and end > 1 else values == expected
