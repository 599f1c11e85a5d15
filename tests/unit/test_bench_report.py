"""Reports with reference figures, charts, leaderboards, exports, and their redaction."""

from __future__ import annotations

import asyncio
import csv
import io
import json
import os
import re
import socket
import xml.etree.ElementTree as ET
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from gpubox.bench.benchmark import make_benchmark
from gpubox.bench.model import Doubt, Plan, Result, RunInfo, Target
from gpubox.bench.plan_runner import PlanRunner
from gpubox.bench.report.chart import Chart, ChartBar, StyledRow, charts, plot, ticks
from gpubox.bench.report.formatting import interval_column, validity_warnings
from gpubox.bench.report.load import ReportBundle, load_comparison, load_report
from gpubox.bench.report.model import Report, ReportTable, Series
from gpubox.bench.report.post import make_post
from gpubox.bench.report.privacy import redact_report
from gpubox.bench.report.run_summaries import SUMMARY, RunFollower, active_run, run_summaries
from gpubox.bench.run_store import Run, create_run
from gpubox.bench.stats import Estimate
from gpubox.config import Config
from gpubox.errors import GpuboxError, UsageError
from gpubox.paths import Paths
from gpubox.profiles.profile import Profile
from gpubox.views.documents import document_rows, document_text, row_texts
from gpubox.views.runs import leaderboard_documents, report_document, run_documents
from tests.bench_runs import speed_run


@pytest.fixture
def box(tmp_path: Path) -> Paths:
    return Paths(tmp_path / "config", tmp_path / "state", tmp_path / "cache")


def no_profile(name: str) -> Profile:
    raise UsageError(f"There is no profile {name}.")


FORMS = ("markdown", "csv", "json", "svg")


def shown(bundle: ReportBundle, width: int | None = None) -> str:
    return "\n".join(row_texts(document_rows(report_document(bundle), width, plots=True)))


def written(box: Paths, form: str, view: str, *runs: str) -> str:
    return document_text(run_documents(box, view, runs), form)


def text_of(rows: list[StyledRow]) -> list[str]:
    return list(row_texts(rows))


# -- one report -----------------------------------------------------------------------------------------------------


def test_a_report_fits_the_terminal_it_is_shown_on(box: Paths) -> None:
    bundle = load_report(speed_run(box, draft=True))

    for width in (80, 120, 200):
        lines = shown(bundle, width).splitlines()
        assert max(map(len, lines)) <= width
        assert any("short prompt, after 8K tokens" in line for line in lines)
        assert any("71.09" in line for line in lines)  # acceptance: 91 of 128 tokens


def test_doubts_are_explained(box: Paths) -> None:
    bundle = load_report(speed_run(box, doubts=[Doubt("throttling", "power cap for 40 % of the time")]))

    assert "power cap for 40 % of the time - the GPU could have been faster" in shown(bundle)
    assert run_summaries(box)[0].doubts == ("throttling",)


def test_reports_hide_paths_hosts_and_keys(box: Paths, monkeypatch: pytest.MonkeyPatch) -> None:
    run = speed_run(
        box,
        "mybox.lan:8080",
        url="http://mybox.lan:8080/v1",
        argv=("/home/ann/llama/llama-server", "--model", "/home/ann/my models/q.gguf", "--api-key", "s3cretword",
              "--rpc", "192.168.1.7:50052", "--hf-token=hf_0123456789abcdef"),
    )  # fmt: skip
    monkeypatch.setattr(socket, "gethostname", lambda: "code")  # a word of the reports, too
    note = (
        f"{Path.home()}/x/y.gguf on {socket.gethostname()} at 10.0.0.3, tok/s and short/cold/d0/1; "
        "key sk-0123456789abcdefgh"
    )
    info = run.info
    info, report = redact_report(
        info, Report("speed", "code", notes=(note,), doubts=(Doubt("crash", note, "short/cold/d0/1"),))
    )
    everything = repr((info, report))

    secrets = ("mybox", "/home/ann", f"{Path.home()}/", "s3cretword", "192.168", "10.0.0.3", "hf_0123", "sk-0123")
    assert [secret for secret in secrets if secret in everything] == []
    assert "y.gguf on HOST at HOST" in report.notes[0]
    assert report.title == "code"
    assert "tok/s and short/cold/d0/1" in report.notes[0]
    assert info.provenance["HOST:8080"].argv[2] == "q.gguf"
    local = replace(info, plan=Plan("speed", (Target("127.0.0.1:1", url="http://127.0.0.1:1"),)))
    assert redact_report(local, report)[0].plan.targets[0].url == "http://127.0.0.1:1"


@pytest.mark.parametrize(
    "url",
    ["http://mybox", "http://mybox.lan", "https://my_box.lan/v1", "http://mybox-2.lan:8080/v1",
     f"http://mybox.{'very-long-name.' * 4}lan:8080", "http://[fd00::2:1]:8080"],
)  # fmt: skip
def test_exports_hide_the_host_in_a_runs_id(box: Paths, url: str) -> None:
    first, second = (speed_run(box, url.partition("://")[2], url=url) for _ in range(2))
    views = (("report", first.id), ("compare", first.id, second.id), ("leaderboard",))
    everything = "".join(written(box, form, *view) for form in FORMS for view in views)

    assert [word for word in ("mybox", "my_box", "my-box", "very", "fd00") if word in everything] == []
    assert first.id[:15] in everything


def test_hosts_of_a_command_line_are_redacted_and_similar_texts_are_not(box: Paths) -> None:
    argv = (
        "/opt/llama/llama-server", "--host", "mybox.lan", "--rpc", "worker7:50052,10.0.0.9:50052", "--port", "1",
        "--slot-save-path", "/home/ann", "--api-key", "s3cret",
    )  # fmt: skip
    note = "worker7 at fe80::1:2 and 2001:db8::7; took 14:02:11, a[1:2:3], b[x::2], ::1, 127.0.0.1 and std::vector"
    info, report = redact_report(speed_run(box, argv=argv).info, Report("speed", "t", notes=(note,)))

    assert info.provenance["qwen36-mtp-16gb"].argv[2:5] == ("HOST", "--rpc", "HOST-2:50052,HOST:50052")
    assert info.provenance["qwen36-mtp-16gb"].argv[-4:] == ("--slot-save-path", "~", "--api-key", "***")
    assert (
        redact_report(info, Report("speed", "/home/ann and /Users/bea, /home/ann/x.gguf"))[1].title == "~ and ~, x.gguf"
    )
    assert report.notes == (
        "HOST-2 at HOST and HOST; took 14:02:11, a[1:2:3], b[x::2], ::1, 127.0.0.1 and std::vector",
    )
    keys = "file:///home/zoe/a.gguf AKIAIOSFODNN7EXAMPLE github_pat_11ABCDEFG0123456 AIzaSyA1234567890abcdef"
    assert redact_report(info, Report("speed", keys))[1].title == "a.gguf *** *** ***"


def test_untrusted_text_is_no_markup_in_any_form(box: Paths) -> None:
    hostile = "\x1b[31m<img src=x> ![x](http://evil/x.png) | `\x00"
    table = ReportTable(
        "Failed problems", ("why",), ((hostile,), ("`--flag <x>`",)), hostile, (f"{hostile}\n```\n</details>", "")
    )
    report = Report("humaneval", hostile, tables=(table,), notes=(hostile,), doubts=(Doubt("crash", hostile),))
    info = RunInfo("id", Plan("humaneval", (Target("p", profile="p"),)), "t", 0)

    bars = (ChartBar('<script>&"\x1b', 1.0, 0.5, 1.5), ChartBar("b", 0.0))
    document = replace(report_document(ReportBundle(info, report)), charts=[Chart("<b>", "x", bars=bars)])
    marked = document_text([document], "markdown")
    assert "\x1b" not in marked and "\x00" not in marked
    spoken = [line for line in marked.splitlines() if "evil" in line and not line.startswith("    ")]
    summary = spoken.pop(3)
    assert summary.startswith("<details><summary>") and "<img" not in summary
    assert len(spoken) == 5
    assert not [line for line in spoken if re.search(r"(?<!\\)[<\[]", line)]
    assert "| `--flag <x>` |" in marked
    picture = document_text([document], "svg")
    assert "<script>" not in picture
    assert any("evil" in (text.text or "") for text in ET.fromstring(picture).iter())  # an escape character is no XML
    assert "\x1b" not in "".join(row_texts(document_rows(document, plots=True)))


def test_every_form_of_an_export(box: Paths) -> None:
    run = speed_run(box)
    texts_ = {form: written(box, form, "report", run.id) for form in FORMS}

    assert "| short prompt | TTFT |" in texts_["markdown"]
    assert "RTX 4080 SUPER" in texts_["markdown"]
    assert "/opt/llama" not in "".join(texts_.values())
    table = list(csv.DictReader(io.StringIO(texts_["csv"])))
    tg = next(row for row in table if (row["group"], row["name"]) == ("short prompt", "tg"))
    assert float(tg["estimate_value"]) == pytest.approx(60, rel=0.03)
    assert (tg["estimate_low"], tg["estimate_high"]) == ("", "")  # one start has no interval
    values = json.loads(texts_["json"])
    assert (values["schema_version"], values["run"]["id"], "before" in values["run"]) == (1, run.id, False)
    drawn = "".join(ET.fromstring(texts_["svg"]).itertext())
    assert "tg, tok/s" in drawn


# -- charts ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("low", "high", "most", "expected"),
    [
        (0, 249.3, 6, [0, 50, 100, 150, 200, 250]),
        (0, 0.012, 5, [0, 0.005, 0.01, 0.015]),
        (3, 3, 5, [3, 4, 5, 6]),
        (-2, 7, 4, [-5, 0, 5, 10]),
    ],
)
def test_axes_have_round_numbers(low: float, high: float, most: int, expected: list[float]) -> None:
    assert ticks(low, high, most) == pytest.approx(expected)


def test_nothing_to_rank_is_said_in_every_form(box: Paths) -> None:
    documents = leaderboard_documents([])
    assert "No finished run can be ranked yet." in document_text(documents, "markdown")
    assert json.loads(document_text(documents, "json"))["leaderboards"] == []


def test_a_plot_of_lines_has_axes_and_a_mark_for_each_series() -> None:
    cells = ((4096.0, 61.0), (8192.0, 58.0), (16384.0, 44.0))
    series = (
        Series("context", "q8_0", "ctx-size", "tok/s", cells),
        Series("context", "f16", "ctx-size", "tok/s", tuple((x, y * 0.9) for x, y in cells)),
    )
    lines = text_of(plot(Chart("tg by context", "tok/s", "ctx-size", series=series), 72))

    assert max(map(len, lines)) <= 72
    assert "● q8_0" in lines[1]
    assert "○ f16" in lines[1]
    assert sum(line.count("●") for line in lines[2:]) == 3
    assert any(line.lstrip().startswith("60 ┤") for line in lines)
    assert lines[-2].split() == ["4,096", "8,192", "16,384"]
    assert lines[-1].strip() == "ctx-size"


def test_a_value_of_zero_and_a_single_point_can_be_drawn() -> None:
    assert plot(Chart("x", "s", bars=(ChartBar("a", 0.0), ChartBar("b", 0.0))), 40)
    point = Series("x", "", "n", "s", ((1.0, 2.0),))
    assert any("●" in line for line in text_of(plot(Chart("x", "s", "n", series=(point,)), 40)))
    assert charts(Report("speed", "t")) == []


# -- many runs ------------------------------------------------------------------------------------------------------


def test_summaries_read_the_results_of_each_run_once(box: Paths, monkeypatch: pytest.MonkeyPatch) -> None:
    runs = [speed_run(box, f"p{number}") for number in range(3)]
    first = run_summaries(box)
    assert {head.done for head in first} == {len(runs[0].items())}
    assert all((run.folder / SUMMARY).is_file() for run in runs)

    def never(self: object) -> None:
        raise AssertionError("results were read again")

    monkeypatch.setattr(type(runs[0]), "results", never)
    assert run_summaries(box) == first


def test_an_unreadable_run_does_not_hide_the_others(box: Paths) -> None:
    speed_run(box)
    plan = Plan("humaneval", (Target("p", profile="p"),), {"limit": 1})
    run = create_run(box, plan, list(make_benchmark(plan).items()))
    with run.owned():
        run.add_result(Result(run.items()[0].id))  # of a gpubox that kept other values

    problems = {head.id: head.problem for head in run_summaries(box)}
    assert problems.pop(run.id) == "its results cannot be read (KeyError)"
    assert list(problems.values()) == [""]


@pytest.mark.parametrize(
    "read",
    [
        lambda run, box: load_report(run),
        lambda run, box: load_comparison(run, run),
        lambda run, box: make_post(run),
        lambda run, box: RunFollower(run).read(),
        lambda run, box: asyncio.run(PlanRunner(box, Config(), no_profile).resume(run)),
    ],
)
def test_results_of_another_gpubox_are_one_sentence(box: Paths, read: Callable[[Run, Paths], object]) -> None:
    plan = Plan("humaneval", (Target("p", profile="p"),), {"limit": 2})
    run = create_run(box, plan, list(make_benchmark(plan).items()))
    with run.owned():
        run.add_result(Result(run.items()[0].id))  # of a gpubox that kept other values

    with pytest.raises(GpuboxError, match=r": its results cannot be read \(KeyError\)\.") as raised:
        read(run, box)
    assert "rescore" in raised.value.hint


def test_a_cached_summary_is_renewed_after_a_change(box: Paths) -> None:
    run = speed_run(box, share=0.5, state="interrupted")
    before = run_summaries(box)[0]
    with run.owned():
        for item in run.items()[before.done :]:
            run.add_result(run.results()[run.items()[0].id].__class__(item.id, error="no"))

    after = run_summaries(box)[0]

    assert (after.done, after.failed) == (len(run.items()), len(run.items()) - before.done)
    (run.folder / SUMMARY).write_text("{")
    assert run_summaries(box)[0] == after


def test_a_damaged_run_is_listed_as_damaged(box: Paths) -> None:
    run = speed_run(box)
    (run.folder / "run.json").write_text("{")

    head = run_summaries(box)[0]

    assert (head.state, head.id) == ("damaged", run.id)
    assert "damaged" in head.problem


def test_the_active_run_is_found_among_many(box: Paths) -> None:
    runs = [speed_run(box, f"p{number}") for number in range(6)]
    assert active_run(box) is None
    with runs[1].owned():
        runs[1].save(replace(runs[1].info, state="running"))
        active = active_run(box)
        assert active
        assert (active.id, active.owner) == (runs[1].id, os.getpid())
    assert active_run(box) is None
    assert runs[1].owner is None


def test_a_warning_for_several_items_quotes_the_last_one() -> None:
    doubts = [Doubt("busy CPU", "0.3 cores", "a"), Doubt("busy CPU", "0.6 cores", "b"), Doubt("swap", "1 MiB", "a")]
    busy, swap = validity_warnings(doubts)
    assert busy.startswith("! busy CPU in 2 measurements: the last one: 0.6 cores")
    assert swap.startswith("! swap in a: 1 MiB")


INTERVAL, RANGE = Estimate(50.0, 3, low=48.76, high=51.24), Estimate(50.0, 3, minimum=49.5, maximum=50.5)
ONE, SAME = Estimate(50.0, 1, minimum=50.0, maximum=50.0), Estimate(50.0, 3, minimum=50.0, maximum=50.0)


@pytest.mark.parametrize(
    ("samples", "title", "cells"),
    [
        ([INTERVAL, ONE], "95 % CI", ["48.76 – 51.24", "—"]),
        ([INTERVAL, RANGE, None], "95 % CI or range", ["48.76 – 51.24", "range 49.50 – 50.50", ""]),
        ([RANGE, SAME], "range", ["49.50 – 50.50", ""]),
    ],
)
def test_a_range_is_called_one_once_and_equal_values_have_none(
    samples: list[Estimate | None], title: str, cells: list[str]
) -> None:
    assert interval_column(samples) == (title, cells)
