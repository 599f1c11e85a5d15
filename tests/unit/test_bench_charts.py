"""Charts: no text lies over another, axes show what was measured; and the runs of a sampled prompt, row by row."""

from __future__ import annotations

import xml.etree.ElementTree as ET
from dataclasses import replace
from pathlib import Path

import pytest

from gpubox.bench.model import Result
from gpubox.bench.report.chart import Chart, ChartBar, plot
from gpubox.bench.report.load import info_and_report
from gpubox.bench.report.model import Series
from gpubox.paths import Paths
from gpubox.views.documents import Document, document_text, row_texts
from tests.bench_runs import report_lines, speed_run

RATES = ((0.0, 60.0), (512.0, 59.0), (2048.0, 55.0), (8192.0, 41.0), (32768.0, 33.0))
NAMES = ("f16", "q8_0", "q4_0")
CHARTS = {
    "bars": Chart("pp, tok/s: prompt processing, 95 % CI", "tok/s", bars=tuple(
        ChartBar(f"{name} prompt, after {depth} tokens", value, 0.9 * value, 1.1 * value)
        for name, depth, value in (("short", 0, 900.0), ("mean accepted length", 32768, 2499.0), ("code", 8192, 2.5))
    )),
    "lines": Chart("tg over depth", "tg, tok/s", "tokens of context", series=tuple(
        Series("tg over depth", f"threads={n} ubatch-size=512", "", "", tuple((x, y + 20 * n) for x, y in RATES))
        for n in range(8)
    )),
    "names": Chart("tg over cache-type-k", "tg, tok/s", "cache-type-k", series=(
        Series("", "", "", "", ((1.0, 40.0), (2.0, 44.0), (3.0, 12.0)), NAMES),
    )),
}  # fmt: skip


@pytest.mark.parametrize("name", CHARTS)
@pytest.mark.parametrize("width", [60, 110])
def test_a_chart_keeps_its_width_and_its_picture_has_every_text_in_its_column(name: str, width: int) -> None:
    rows = list(row_texts(plot(CHARTS[name], width)))
    assert max(map(len, rows)) <= width
    drawn = ET.fromstring(document_text([Document("qwen36 against qwen36-256k", charts=[CHARTS[name]])], "svg"))
    right = float(drawn.get("width", "0"))
    ends: dict[str, float] = {}
    for text in drawn.iter("{http://www.w3.org/2000/svg}text"):
        left, row = float(text.get("x", "0")), text.get("y", "")
        assert ends.get(row, 0.0) <= left, text.text
        ends[row] = left + float(text.get("textLength", "0"))
        assert ends[row] <= right, text.text


def test_an_axis_of_names_has_the_names_and_one_of_numbers_what_was_measured() -> None:
    named = list(row_texts(plot(CHARTS["names"], 60)))
    assert named[-2].split() == list(NAMES)
    measured = list(row_texts(plot(replace(CHARTS["lines"], series=CHARTS["lines"].series[:1]), 100)))
    assert measured[-2].split() == ["0", "2,048", "8,192", "32,768"]  # 512 would touch 0


def test_the_ten_runs_of_the_game_are_ten_rows(tmp_path: Path) -> None:
    """The table of the article: each run with its speed and its drafts; a run that failed keeps its row."""
    run = speed_run(Paths(tmp_path, tmp_path / "state", tmp_path), options={"preset": "game"}, draft=True)
    results = run.results()
    with run.owned():
        run.add_result(Result("game/cold/d0/7", error="the server died"))
    info, report = info_and_report(run)
    rows = report_lines(info, report)

    (table,) = report.tables
    assert table.columns == ("run", "tg, tok/s", "drafted", "accepted", "acceptance, %")
    assert [row[0] for row in table.rows] == [str(number) for number in range(1, 11)]
    assert table.rows[0] == ("1", results["game/cold/d0/1"].values["tg"], 2000, 1420, 71.0)
    assert table.rows[6] == ("7", None, None, None, None)
    assert [x for x, _ in report.series[0].points] == [1, 2, 3, 4, 5, 6, 8, 9, 10]
    assert "tg, run by run, qwen36-mtp-16gb" in rows
    assert any(row.split() == ["7", *"————"] for row in rows)


def test_repeats_of_one_greedy_answer_are_no_rows(tmp_path: Path) -> None:
    _, report = info_and_report(speed_run(Paths(tmp_path, tmp_path / "state", tmp_path)))
    assert not [table for table in report.tables if "run by run" in table.title]
    assert not [series for series in report.series if "run by run" in series.chart]
