"""``speed --streams``: what is sent at once, what is counted, and where the knee is."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest

from gpubox.bench.events import BenchEvent, Emit, Note, ignore_event
from gpubox.bench.kinds.speed.speed import Speed
from gpubox.bench.kinds.speed.streams import knee_of, score_streams, streams_of
from gpubox.bench.kinds.speed.workloads import parse_options
from gpubox.bench.measured_request import MeasuredReply
from gpubox.bench.model import Plan, RawRecord, Result, RunInfo, Sample, Target
from gpubox.bench.plan_runner import PlanRunner
from gpubox.bench.report.chart import charts, plot
from gpubox.bench.report.load import info_and_report
from gpubox.bench.report.model import Report
from gpubox.bench.run_store import find_run
from gpubox.config import Config
from gpubox.errors import UsageError
from gpubox.paths import Paths
from gpubox.views.documents import row_texts
from tests.bench_runs import report_lines
from tests.bench_server import BenchServer


async def measured(tmp_path: Path, server: BenchServer, emit: Emit = ignore_event, **options: Any) -> Report:
    paths = Paths(tmp_path / "config", tmp_path / "state", tmp_path / "cache")
    plan = Plan("speed", (Target("box", url=server.url),), {"repeats": 2, "max_tokens": 16, **options})
    await PlanRunner(paths, Config(), lambda name: pytest.fail(name), emit).run(plan)
    return info_and_report(find_run(paths, "last"))[1]


async def test_every_stream_asks_a_prompt_of_its_own_and_who_waits_is_counted(tmp_path: Path) -> None:
    with BenchServer() as server:  # it has one slot
        events: list[BenchEvent] = []
        report = await measured(tmp_path, server, events.append, streams=[1, 3])

    assert Note("The server has 1 slot: of 3 streams, some have to wait.") in events  # before hours of measuring
    asked = [request for request in server.asked if request["max_tokens"] == 16]
    assert len(asked) == 2 * (1 + 3)
    assert len(server.asked) == len(asked) + 1 + 3  # and a short warm-up of each
    assert all(request["cache_prompt"] is False and request["ignore_eos"] is True for request in asked)
    assert len({request["messages"][0]["content"] for request in asked}) >= 6
    (table,) = report.tables
    waited = table.columns.index("had to wait")
    assert [(row[0], row[waited]) for row in table.rows] == [(1, 0), (3, 2)]
    assert any("The server has 1 slot: 2 of 3 requests had to wait" in note for note in report.notes)
    assert any("parallel=3" in note for note in report.notes)
    assert {metric.name for metric in report.metrics} == {"aggregate tg", "tg", "TTFT", "slowest TTFT"}


async def test_a_server_that_does_not_tell_its_slots_has_no_number_of_waiting_requests(tmp_path: Path) -> None:
    with BenchServer("vllm") as server:
        report = await measured(tmp_path, server, streams=[2])

    assert report.tables[0].rows[0][report.tables[0].columns.index("had to wait")] is None
    assert any("does not say how many slots" in note for note in report.notes)


async def test_a_request_that_is_refused_gives_no_number(tmp_path: Path) -> None:
    with BenchServer() as server:
        server.refuses = "no more"
        report = await measured(tmp_path, server, streams=[2])

    assert report.metrics == ()
    assert any("no more" in note for note in report.notes)


@pytest.mark.parametrize(
    ("points", "knee"),
    [
        ([(1, 100), (2, 190), (4, 300), (8, 310)], 4),
        ([(1, 100), (2, 190), (4, 300), (8, 330)], None),
        ([(1, 100), (2, 104), (4, 103)], 1),
        ([(1, 100), (2, 104), (3, 108), (4, 113)], 3),  # 1 is none: small steps add up
        ([(4, 300), (8, 200)], 4),
        ([(4, 300)], None),
        ([], None),
    ],
)
def test_the_knee_is_the_first_that_no_larger_number_beats_by_5_percent(
    points: Sequence[tuple[int, float]], knee: int | None
) -> None:
    assert knee_of(points) == knee


def reply(ttft: float, wall: float, tokens: int) -> dict[str, Any]:
    own = MeasuredReply("x", "", "length", wall, ttft, 30, 0, tokens, 0.1, wall - ttft, 300.0, tokens / (wall - ttft))
    return {"request": {}, "reply": msgspec.to_builtins(own)}


def test_aggregate_is_all_tokens_between_the_first_and_the_last() -> None:
    item = next(i for i in speed(streams=[2], max_tokens=20).items() if not i.warmup)
    data = {"slots": 4, "streams": [{"at": 0.0, **reply(1.0, 3.0, 20)}, {"at": 0.5, **reply(1.5, 4.5, 20)}]}
    samples = tuple(Sample(second, power_watts=100.0) for second in range(6))

    values = score_streams(item, RawRecord(item.id, "t", 5.0, data, samples)).values

    assert values["aggregate"] == pytest.approx(39 / 4)  # first token at 1 s, last one at 5 s
    assert values["tg"] == pytest.approx(statistics.fmean([20 / 2, 20 / 3]))
    assert (values["ttft_seconds"], values["ttft_slowest_seconds"]) == (1.25, 1.5)
    assert (values["waited"], values["slots"]) == (0, 4)
    assert values["joules_per_token"] == pytest.approx(100 * 4 / 40)


def speed(*, starts: int = 1, **options: Any) -> Speed:
    return Speed(Plan("speed", (Target("moe", "moe"),), {"starts": starts, "repeats": 3, **options}, seed=5))


def report_of(kind: Speed, rates: dict[int, float], spread: float = 0.0) -> Report:
    """A report in which N streams run at ``rates[N]``; starts differ by ``spread`` and share it."""
    results = []
    for item in kind.items():
        count = streams_of(item).streams
        rate = rates[count] * math.exp(spread * (item.start % 3 - 1))
        values = {"aggregate": rate, "tg": rate / count, "ttft_seconds": 0.1 * count, "waited": max(0, count - 4),
                  "ttft_slowest_seconds": 0.2 * count, "slots": 4}  # fmt: skip
        results.append((item, Result(item.id, values)))
    return kind.summarise(RunInfo("run", kind.plan, "t", len(results)), results)


def test_repeats_of_one_start_give_no_interval_and_starts_do() -> None:
    rates = {1: 100.0, 4: 300.0, 8: 305.0}
    once = report_of(speed(streams=[1, 4, 8]), rates)
    thrice = report_of(speed(streams=[1, 4, 8], starts=3), rates, spread=0.02)

    assert all(metric.estimate.low is None for metric in once.metrics)
    assert all(series.intervals == () for series in once.series)
    assert any("gains have no interval" in note for note in once.notes)
    aggregate = next(
        metric for metric in thrice.metrics if (metric.name, metric.group) == ("aggregate tg", "4 streams")
    )
    low, high = aggregate.estimate.low, aggregate.estimate.high
    assert low is not None and high is not None and low < 300 < high
    assert aggregate.estimate.method == "t over starts"
    # What a start does to all numbers of streams alike is not in their ratio.
    assert any("8 streams: +1.7 % (95 % CI +1.7 to +1.7 %). The server has 4 slots" in note for note in thrice.notes)


def test_the_knee_is_in_the_table_the_chart_and_the_sentence() -> None:
    report = report_of(speed(streams=[1, 4, 8]), {1: 100.0, 4: 300.0, 8: 305.0})

    assert [row[-1] for row in report.tables[0].rows] == ["", "knee", ""]
    assert report.notes[0].startswith("Knee at 4 streams, 300 tok/s together: no larger number measured gives 5 % more")
    chart = next(chart for chart in charts(report) if chart.title.startswith("tg over streams: 128 tokens each"))
    assert [series.mark for series in chart.series] == [(4.0, "knee"), None]
    assert "knee" in "\n".join(row_texts(plot(chart, 70)))
    grown = report_of(speed(streams=[1, 4, 8]), {1: 100.0, 4: 300.0, 8: 400.0})
    assert grown.notes[0] == "No knee up to 8 streams: aggregate tg still grows (+33.3 % from 4 to 8)."
    text = "\n".join(report_lines(RunInfo("id", Plan("speed", ()), "t", 0), report, 80))
    assert "had to wait" in text


def test_each_round_has_every_number_once_in_an_order_of_its_own() -> None:
    kind = speed(streams=[8, 1, 2, 4], starts=2)
    items = [item for item in kind.items() if not item.warmup]

    orders = [[streams_of(item).streams for item in items[i : i + 4]] for i in range(0, len(items), 4)]
    assert all(sorted(order) == [1, 2, 4, 8] for order in orders)
    assert len({tuple(order) for order in orders}) > 1
    assert kind.items() == speed(streams=[8, 1, 2, 4], starts=2).items()
    assert {item.start for item in items} == {1, 2}


@pytest.mark.parametrize(
    "options",
    [{"streams": [0]}, {"streams": [65]}, {"streams": [2, 2]}, {"streams": [2], "preset": "quick"},
     {"streams": [2], "prompts": ["short"]}, {"streams": [2], "prefixes": ["warm"]}],
)  # fmt: skip
def test_streams_that_cannot_be(options: dict[str, Any]) -> None:
    with pytest.raises(UsageError):
        parse_options(options)
