"""``speed``: the requests to each kind of server, the metrics of its answers, and the flags that question them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from gpubox.bench.kinds.speed.speed import Speed
from gpubox.bench.kinds.speed.streams import is_streams_item
from gpubox.bench.kinds.speed.workloads import PRESETS, parse_options, workloads_of
from gpubox.bench.measured_request import MeasuredReply, energy_joules
from gpubox.bench.model import Item, Plan, Result, RunInfo, Sample, Target
from gpubox.bench.plan_runner import PlanRunner
from gpubox.bench.prompts import CHAT_PROMPTS, filler_text
from gpubox.bench.report.load import info_and_report
from gpubox.bench.report.model import Metric, Report
from gpubox.bench.run_store import Run, find_run
from gpubox.config import Config
from gpubox.errors import GpuboxError, UsageError
from gpubox.paths import Paths
from tests.bench_runs import report_lines
from tests.bench_server import BenchServer

SMALL: dict[str, Any] = {"prompts": ["short"], "depths": [0, 64], "repeats": 2, "max_tokens": 8}


async def measured(tmp_path: Path, server: BenchServer, options: dict[str, Any] = SMALL) -> tuple[Run, Report]:
    paths = Paths(tmp_path / "config", tmp_path / "state", tmp_path / "cache")

    def no_profile(name: str) -> Any:
        raise UsageError(name)

    await PlanRunner(paths, Config(), no_profile).run(Plan("speed", (Target("box", url=server.url),), options))
    run = find_run(paths, "last")
    return run, info_and_report(run)[1]


def metric(report: Report, name: str, group: str) -> Metric:
    return next(m for m in report.metrics if (m.name, m.group) == (name, group))


async def test_llama_server_times_itself(tmp_path: Path) -> None:
    with BenchServer() as server:
        run, report = await measured(tmp_path, server)

    cold = metric(report, "tg", "short prompt").estimate
    assert (round(cold.value, 6), cold.n, cold.sd) == (50.0, 2, 0.0)
    assert metric(report, "pp", "short prompt, after 64 tokens").estimate.value == pytest.approx(100.0)
    acceptance = metric(report, "acceptance", "short prompt")
    assert (acceptance.estimate.value, acceptance.unit) == (25.0, "%")
    assert metric(report, "mean accepted length", "short prompt").estimate.value == 2.0  # 8 tokens in 8 - 4 steps
    body = server.asked[0]
    assert (body["ignore_eos"], body["cache_prompt"], body["temperature"]) == (True, False, 0.0)
    assert body["chat_template_kwargs"] == {"enable_thinking": False}
    assert [asked["cache_prompt"] for asked in server.asked] == [False] * 3 + [True] * 3 + [False] * 3 + [True] * 3
    assert report.doubts == ()
    assert sum(1 for name in {m.group for m in report.metrics} if "cached" in name) == 2
    assert all(m.name != "pp" for m in report.metrics if "cached" in m.group)
    text = "\n".join(report_lines(run.info, report))
    assert "short prompt" in text
    assert "50.00" in text


@pytest.mark.parametrize(
    ("dialect", "fields"), [("vllm", {"ignore_eos", "chat_template_kwargs"}), ("ollama", set()), ("openai", set())]
)
async def test_other_servers_are_timed_by_the_client_and_asked_only_what_they_take(
    tmp_path: Path, dialect: str, fields: set[str]
) -> None:
    with BenchServer(dialect) as server:
        run, report = await measured(tmp_path, server)

    extra = {"ignore_eos", "cache_prompt", "chat_template_kwargs", "return_progress"}
    assert extra & set(server.asked[0]) == fields
    assert server.asked[0]["model"] == "m1"
    assert run.info.provenance["box"].dialect == dialect
    contents = [asked["messages"][0]["content"] for asked in server.asked[:3]]
    assert len(set(contents)) == 3  # nothing of a cold prompt can be in its cache
    assert metric(report, "tg", "short prompt").estimate.value > 0
    assert any("measured by the client" in note for note in report.notes)


async def test_a_cache_that_was_used_all_the_same_is_flagged(tmp_path: Path) -> None:
    with BenchServer(cached=15) as server:
        _, report = await measured(tmp_path, server, {**SMALL, "prefixes": ["cold"]})

    assert {doubt.kind for doubt in report.doubts} == {"cache"}


async def test_answers_of_another_length_are_flagged(tmp_path: Path) -> None:
    with BenchServer(tokens=5) as server:
        _, report = await measured(tmp_path, server)

    assert {(doubt.kind, doubt.text) for doubt in report.doubts} == {("length", "5 tokens were generated instead of 8")}


async def test_a_server_that_counts_nothing_has_no_speed_and_it_is_said_why(tmp_path: Path) -> None:
    with BenchServer("openai") as server:
        server.counts = False
        _, report = await measured(tmp_path, server)

    assert report.metrics == ()
    assert any("does not report how many tokens it generated" in note for note in report.notes)


@pytest.mark.parametrize(("tokens", "words", "timed"), [(64, 16, False), (64, 8, True), (4, 1, True), (4, 2, False)])
async def test_an_answer_in_a_few_large_pieces_has_no_speed(
    tmp_path: Path, tokens: int, words: int, timed: bool
) -> None:
    with BenchServer("openai") as server:
        server.words = words
        _, report = await measured(tmp_path, server, {**SMALL, "depths": [0], "max_tokens": tokens})

    assert any(m.name == "tg" for m in report.metrics) == timed
    assert any("too few chunks for the client to measure its speed" in note for note in report.notes) != timed


async def test_what_a_server_cannot_be_told_is_said(tmp_path: Path) -> None:
    notes = {}
    for dialect in ("llama-server", "vllm", "ollama"):
        with BenchServer(dialect) as server:
            _, report = await measured(tmp_path / dialect, server)
        notes[dialect] = [note for note in report.notes if "does not support" in note]

    assert notes == {
        "llama-server": [],
        "vllm": ["box: vllm does not support cache_prompt, so gpubox cannot control its cache."],
        "ollama": [
            "box: ollama does not support cache_prompt, ignore_eos, chat_template_kwargs, "
            "so gpubox cannot control its cache, the length of answers, thinking."
        ],
    }


async def test_a_page_that_never_ends_holds_nobody(tmp_path: Path) -> None:
    with BenchServer("openai") as server:
        server.endless = "/props"
        _, report = await measured(tmp_path, server)

    assert report.metrics


async def test_a_depth_that_does_not_fit_is_left_out_and_said(tmp_path: Path) -> None:
    with BenchServer() as server:
        _, report = await measured(tmp_path, server, {**SMALL, "depths": [0, 8192]})

    assert not [m for m in report.metrics if "8192" in m.group]
    assert any("needs a context of 8,360 tokens; a slot has 4,096" in note for note in report.notes)


async def test_the_wrong_model_and_no_server(tmp_path: Path) -> None:
    with BenchServer("vllm") as server:
        plan = Plan("speed", (Target("box", url=server.url, model="m9"),), SMALL)
        paths = Paths(tmp_path, tmp_path / "state", tmp_path)
        with pytest.raises(GpuboxError, match="no model 'm9'"):
            await PlanRunner(paths, Config(), lambda name: pytest.fail(name)).run(plan)


def test_the_articles_protocols() -> None:
    (game,) = workloads_of(parse_options({"preset": "game"}))
    assert (game.max_tokens, game.repeats, game.warmups) == (2000, 10, 0)
    assert game.sampling == {"temperature": 0.6, "top_k": 20, "min_p": 0.0}
    assert [(c.max_tokens, c.repeats) for c in workloads_of(parse_options({"preset": "lengths"}))] == [
        (128, 3), (512, 3), (2048, 3),
    ]  # fmt: skip
    chat = workloads_of(parse_options({"preset": "chat"}))
    assert (len(chat), sum(map(len, CHAT_PROMPTS.values()))) == (150, 50)
    assert {(c.max_tokens, c.sampling["seed"]) for c in chat} == {(64, 42), (64, 1337), (64, 2024)}


def test_chat_prompts_are_the_sampling_unit() -> None:
    plan = Plan("speed", (Target("box"),), {"preset": "chat"})
    kind = Speed(plan)
    values = {"tg": 50.0, "draft_tokens": 10, "draft_tokens_accepted": 7}
    results = [(item, Result(item.id, {**values, "tg": 40.0 + n % 50})) for n, item in enumerate(kind.items())]

    report = kind.summarise(RunInfo("id", plan, "t", len(results)), results)

    tg = metric(report, "tg", "all")
    assert (tg.estimate.n, len(tg.samples), tg.estimate.low, tg.estimate.minimum) == (50, 150, None, 40.0)
    assert any("the range of 50 prompts" in note for note in report.notes)
    assert report.verdict == "box writes 64.5 tok/s."
    assert [metric(report, "acceptance", domain).estimate.n for domain in CHAT_PROMPTS] == [17, 17, 16]
    assert metric(report, "acceptance", "all").estimate.value == pytest.approx(70.0)


@pytest.mark.parametrize("preset", PRESETS)
def test_the_same_plan_gives_the_same_items(preset: str) -> None:
    plan = Plan("speed", (Target("a", "a"), Target("b", "b")), {"preset": preset})

    first, second = Speed(plan).items(), Speed(plan).items()

    assert first == second
    assert len({item.id for item in first}) == len(first)


@pytest.mark.parametrize(
    "options",
    [{"preset": "x"}, {"prompts": ["x"]}, {"repeats": 0}, {"depths": [-1]}, {"depths": "8"}, {"prompts": []}],
)
def test_options_that_cannot_be(options: dict[str, Any]) -> None:
    with pytest.raises(UsageError):
        parse_options(options)


def test_made_up_prose_is_always_the_same() -> None:
    assert filler_text(50) == filler_text(50)
    assert len(filler_text(50).split()) == 50


def test_the_published_runs_take_as_many_steps_as_their_table_says() -> None:
    accepted = (1454, 1441, 1448, 1448, 1446, 1434, 1440, 1445, 1444, 1430)
    everything = MeasuredReply("", "", "length", 1.0, 0.1, 10, 0, 20_000, 0.1, 80.0, 100.0, 250.0, 16664, sum(accepted))

    assert round(everything.mean_accepted_length or 0, 2) == 3.59
    assert round(100 * (everything.draft_tokens_accepted or 0) / (everything.draft_tokens or 1), 2) == 86.59


def test_energy_is_the_power_of_a_phase_alone_times_its_seconds() -> None:
    readings = ((0, 50), (1, 200), (2, 300), (3, 300), (4, 40))
    samples = tuple(Sample(at, power_watts=watts) for at, watts in readings)

    assert energy_joules(samples, 1, 3) == 600  # the reading at 1 is the mean of the second before the phase
    assert energy_joules(samples, 1, 2.5) is None
    assert energy_joules((Sample(1), Sample(2), Sample(3)), 0, 3) is None


def flat(report: Report) -> Sequence[str]:
    return report_lines(RunInfo("id", Plan("speed", ()), "t", 0), report)


def test_an_empty_report_is_a_title() -> None:
    assert flat(Report("speed", "Nothing")) == ["Nothing  (id, t, running)"]


def quick_results(*, slots: int, deep: bool = True) -> tuple[Speed, RunInfo, list[tuple[Item, Result]]]:
    """A run of the preset quick: 36 tok/s alone, 29 behind 8,192 tokens, 48 together."""
    speed = Speed(Plan("speed", (Target("box", "box"),), {"preset": "quick"}))
    items, results = speed.items(), []
    for item in items:
        if is_streams_item(item):
            values = {"aggregate": 48.0, "tg": 24.0, "waited": 0, "slots": slots, "streams": []}
            result = Result(item.id, values) if slots > 1 else Result(item.id, error="one slot")
        elif item.values["depth"] and not deep:
            result = Result(item.id, error="needs a context of 8,416 tokens; a slot has 8,192")
        else:
            result = Result(item.id, {"tg": 29.0 if item.values["depth"] else 36.0, "ttft_seconds": 0.1})
        results.append((item, result))
    return speed, RunInfo("r", speed.plan, "2026-11-22T10:00:00Z", len(items)), results


def test_the_quick_preset_opens_with_what_the_box_does_and_names_the_longer_plans() -> None:
    speed, info, results = quick_results(slots=2)
    report = speed.summarise(info, results)

    assert report.verdict == "This box: 36.0 tok/s short answers, 29.0 after 8K tokens; room for 2 users, 24.0 each."
    assert speed.headline(results) == "36.0 tok/s short answers, 29.0 after 8K tokens; room for 2 users, 24.0 each"
    assert any("Longer presets" in note for note in report.notes)
    tokens = sum(i.values["max_tokens"] * i.values.get("streams", 1) for i, _ in results)
    assert tokens / 20 < 45  # seconds at 20 tok/s; the rest of the minute is for reading 8,192 tokens


def test_the_first_sentence_says_only_what_was_measured() -> None:
    speed, info, results = quick_results(slots=1, deep=False)
    report = speed.summarise(info, results)
    assert report.verdict.startswith("This box: 36.0 tok/s short answers. Not measured: short prompt, after 8K tokens")
    assert "Not measured: 2 streams: one slot." in report.verdict
    assert not any("Not measured" in note for note in report.notes)  # it is said once
    assert speed.headline([]) == ""
