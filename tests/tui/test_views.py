"""Numbers to lines: what gives way where there is no room, and what never does."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gpubox.telemetry.history import History
from gpubox.tui import graph, memory_view, requests_view, throughput_view
from gpubox.tui.cells import Line, cells
from gpubox.tui.screens.arrangement import shown
from tests.tui.fake import BUSY
from tests.tui.snapshots import ANSWERING, IDLE, PREFILL, READING_SLOT, REQUESTS, snapshot


def words(line: Line) -> str:
    return "".join(text for text, _ in line)


@pytest.mark.parametrize("width", [34, 46, 60, 78, 110])
def test_prefill_has_a_bar_and_a_percentage_at_any_width(width: int) -> None:
    line = throughput_view.state_line(snapshot(BUSY, throughput=PREFILL, slots=(READING_SLOT,)), width)
    assert cells(line) <= width
    assert words(line).startswith("● prefill ▓▓▓") and "62%" in words(line)


def test_a_gap_in_the_graph_says_that_a_prompt_was_read() -> None:
    history = History()
    for at in range(60):
        through = PREFILL if 20 <= at < 40 else ANSWERING if at >= 40 else IDLE
        history.push(snapshot(BUSY, float(at), throughput=replace(through)))
    reading = history.reading_columns(6, 60, 60)
    assert reading == {2, 3}
    values = history.columns(6, 60, 60)
    foot = graph.graph(values, 100, 3, reading)[-1]
    assert words(foot)[graph.AXIS_CELLS :] == "  ░░██"
    assert next(style for text, style in foot if "░" in text) == "$accent"


def test_a_mark_at_the_right_edge_has_its_words_before_it() -> None:
    axis = words(graph.time_axis(40, 300, {39: ("switch", "qwen"), 5: ("crash", "")}))
    assert axis.endswith("qwen ▲")
    assert "✗ crash" in axis
    assert len(axis) == 40 + graph.AXIS_CELLS


@pytest.mark.parametrize("width", [44, 58, 60, 78, 87, 140])
def test_a_request_fits_and_a_re_read_says_why(width: int) -> None:
    for request in REQUESTS:
        assert cells(requests_view.row(request, width)) <= width
    again = words(requests_view.row(REQUESTS[1], width))
    assert "↻ 0+43.0k" in again
    assert ("↻ no checkpoint" in again) == (width >= 87)
    assert ("↻ no" in again) == (width >= 60)


@pytest.mark.parametrize("width", [44, 60, 78, 140])
def test_a_re_read_does_not_hide_that_a_request_was_cancelled(width: int) -> None:
    request = replace(REQUESTS[1], stop_reason="cancelled")
    row = requests_view.row(request, width)
    assert cells(row) <= width
    assert ("cance" in words(row)) == (width >= 60)
    assert ("↻ no checkpoint" in words(row)) == (width == 140)


def test_an_rpc_device_is_no_card() -> None:
    reading = snapshot(BUSY)
    rpc = replace(reading.memory[0], device="RPC0[10.0.0.2:50052]", kind="rpc", gpu_index=None)
    assert memory_view.title(replace(reading, memory=(reading.memory[0], rpc))).endswith("on 2 devices")


def test_a_tiny_terminal_shows_one_pane() -> None:
    assert shown("narrow", "up", "", tiny=True) == {"throughput"}
    assert shown("narrow", "down", "", tiny=True) == {"profiles"}
    assert shown("narrow", "up", "log", tiny=True) == {"log"}
