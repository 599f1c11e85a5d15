"""The lines of the panes: what is dropped where there is no room, and what never is."""

from __future__ import annotations

import random
from dataclasses import replace
from itertools import pairwise

import pytest

from gpubox.server.launch import EngineCompatibility
from gpubox.telemetry.history.values import UsageSum
from gpubox.telemetry.recent import History
from gpubox.telemetry.snapshot import Throughput
from gpubox.tui.dashboard import detail, graph, offload, profiles, requests, throughput, vram
from gpubox.tui.dashboard.layout import visible_panes
from gpubox.tui.messages import ProfileEntry
from gpubox.tui.styled_lines import StyledLine, cell_width, figure_of
from gpubox.views.figures import Box, explain
from tests.tui.fake import BUSY, MINE, READY
from tests.tui.scenes import SCENES
from tests.tui.snapshots import ANSWERING, GIB, IDLE, IDLE_SLOT, MIB, PREFILL, READING_SLOT, REQUESTS, SPLIT, snapshot
from tests.unit.invariants import broken


def plain_text(line: StyledLine) -> str:
    return "".join(text for text, _ in line)


@pytest.mark.parametrize("width", [34, 46, 60, 78, 110])
def test_prefill_has_a_bar_and_a_percentage_at_any_width(width: int) -> None:
    (line,) = throughput.state_lines(snapshot(BUSY, throughput=PREFILL, slots=(READING_SLOT,)), width)
    assert cell_width(line) <= width
    assert plain_text(line).startswith("● reading ▓▓▓") and "62%" in plain_text(line)


def test_a_gap_in_the_graph_says_that_a_prompt_was_read() -> None:
    history = History()
    for at in range(60):
        through = PREFILL if 20 <= at < 40 else ANSWERING if at >= 40 else IDLE
        history.push(snapshot(BUSY, float(at), throughput=replace(through)))
    reading = history.reading_columns(6, 60, 60)
    assert reading == {2, 3}
    values = history.columns(6, 60, 60)
    foot = graph.area_graph(values, 100, 3, reading)[-1]
    assert plain_text(foot)[graph.AXIS_CELLS :] == "  ░░██"
    assert next(style for text, style in foot if "░" in text) == "$accent"


def drawn(width: int, marks: dict[int, tuple[str, str]]) -> str:
    """The axis without its zero."""
    row = graph.time_axis(width, 300, marks)
    assert cell_width(row) == width + graph.AXIS_CELLS
    return plain_text(row)[graph.AXIS_CELLS :]


@pytest.mark.parametrize(
    ("marks", "expected"),
    [
        ({}, "5 min ago ──────┬───────┬───────┬─── now"),
        # The words stand before their glyph, also at the right edge.
        ({20: ("start", "demo")}, "5 min ago ─────demo ▲───┬───────┬─── now"),
        ({36: ("start", "demo")}, "5 min ago ──────┬───────┬──────demo ▲───"),
        ({39: ("switch", "qwen")}, "5 min ago ──────┬───────┬───────┬─qwen ▲"),
        # At the left edge the scale gives way to the glyph.
        ({8: ("crash", "oom")}, "5 min ──✗───────┬───────┬───────┬─── now"),
        ({2: ("crash", "oom")}, "┬─✗─────┬───────┬───────┬───────┬─── now"),
        # Near each other a glyph stands alone, or as much of the words as there is room for.
        ({20: ("stop", "demo"), 22: ("start", "qwen")}, "5 min ago ─────demo ▽─▲─┬───────┬─── now"),
        ({20: ("stop", "demo"), 30: ("start", "longer")}, "5 min ago ─────demo ▽───long… ▲─┬─── now"),
        ({32: ("stop", "demo"), 39: ("start", "qwen")}, "5 min ago ──────┬───────┬──demo ▽──────▲"),
    ],
)  # fmt: skip
def test_the_marks_of_the_axis(marks: dict[int, tuple[str, str]], expected: str) -> None:
    assert drawn(40, marks) == expected


@pytest.mark.parametrize("width", [10, 14, 25, 40, 90, 170])
def test_marks_never_touch_each_other(width: int) -> None:
    dice = random.Random(width)
    for _ in range(300):
        columns = sorted(dice.sample(range(width), dice.randint(0, min(width, 12))))
        marks = {
            at: (dice.choice(list(graph.EVENT_STYLES)), "語" * (at % 2) + "q" * dice.randint(0, 20)) for at in columns
        }
        row = drawn(width, marks)
        assert cell_width(((row, ""),)) == width
        placed = graph.place_events(width, "5 min", marks)
        ends = [(at, at + cell_width(((text, ""),))) for at, text in (placed[column] for column in columns)]
        assert all(end <= at for (_, end), (at, _) in pairwise(ends))
        assert all(text in row and graph.EVENT_STYLES[marks[at][0]][0] in text for at, (_, text) in placed.items())
        assert all(0 <= at <= column < end <= width for column, (at, end) in zip(columns, ends, strict=True))


@pytest.mark.parametrize("width", [44, 58, 60, 78, 87, 140])
def test_a_request_fits_and_a_re_read_says_why(width: int) -> None:
    for request in REQUESTS:
        assert cell_width(requests.request_row(request, width)) <= width
    again = plain_text(requests.request_row(REQUESTS[1], width))
    assert "↻ 41.1k" in again and ("stop" in again) == (width >= 60)
    assert ("no checkpoint" in again) == ("no ch" in again) == (width >= 87), "a reason is never cut"


@pytest.mark.parametrize("width", [44, 60, 78, 140])
def test_a_re_read_does_not_hide_that_a_request_was_cancelled(width: int) -> None:
    request = replace(REQUESTS[1], stop_reason="cancelled")
    row = requests.request_row(request, width)
    assert cell_width(row) <= width
    assert ("cancelled" in plain_text(row)) == (width >= 60)
    assert ("no checkpoint" in plain_text(row)) == ("no ch" in plain_text(row)) == (width == 140)


@pytest.mark.parametrize("width", [18, 24, 40])
@pytest.mark.parametrize("size", [5 * MIB, 12 * GIB, -400 * MIB])
def test_a_part_of_memory_keeps_its_number_whole(width: int, size: int) -> None:
    entry = plain_text(vram.legend_entry(vram.MemoryPart("other", "chrome-sandb +12", size), width=width))
    assert len(entry) == width
    assert entry.endswith({5 * MIB: " 5 MiB", 12 * GIB: " 12.0 GiB", -400 * MIB: " −400 MiB"}[size])


def test_an_rpc_device_is_no_card() -> None:
    reading = snapshot(BUSY)
    rpc = replace(reading.memory[0], device="RPC0[10.0.0.2:50052]", kind="rpc", gpu_index=None)
    assert vram.VramPane().title(replace(reading, memory=(reading.memory[0], rpc))).endswith("on 2 devices")


def test_a_tiny_terminal_shows_one_pane() -> None:
    assert visible_panes("narrow", "up", "", tiny=True) == {"throughput"}
    assert visible_panes("narrow", "down", "", tiny=True) == {"profiles"}
    assert visible_panes("narrow", "up", "log", tiny=True) == {"log"}


def test_a_missing_model_is_named_by_its_file() -> None:
    profile = replace(MINE, model="/models/qwen/Qwen3.gguf")
    entry = ProfileEntry(
        "profile:mine",
        "profile",
        "mine",
        profile,
        EngineCompatibility("llama-server", True, missing="model missing: /models/qwen/Qwen3.gguf"),
    )
    assert plain_text(profiles.entry_row(entry, "no model", "", 50)).split() == ["?", "mine", "no", "Qwen3.gguf"]
    assert plain_text(profiles.entry_row(entry, "running", "", 50, server="stuck")).startswith("✗ mine")
    assert detail.model_state(entry, None) == "missing"
    elsewhere = replace(entry, profile=replace(profile, model="env:MODEL"))
    assert detail.model_state(elsewhere, None) == "missing: /models/qwen/Qwen3.gguf"


def test_a_program_that_is_no_llama_server_is_named() -> None:
    foreign = replace(READY, state="error", message="It answers /health with 404.")
    (line,) = throughput.state_lines(snapshot(foreign, throughput=Throughput("down")), 100)
    assert "error" in plain_text(line) and "It answers /health with 404." in plain_text(line)


def test_slots_that_share_one_cache_have_its_room_once() -> None:
    """llama-server without `parallel`: four slots, each with the context of the whole unified cache."""
    slots = tuple(replace(IDLE_SLOT, index=at, context_used_tokens=1000, context_size_tokens=4096) for at in range(4))
    memory = (replace(SPLIT, kv_bytes=4096 * 1024),)
    shared = snapshot(READY, slots=slots, memory=memory, kv_bytes_per_token=1024.0, kv_cells=4096)
    assert "4,000 of 4,096 tokens in all slots" in plain_text(vram.conversation_lines(shared, 90)[0])
    unread = replace(shared, slots=tuple(replace(slot, context_used_tokens=None) for slot in slots))
    assert "conversations — of 4 MiB (reserved at load)   — of 4,096" in plain_text(
        vram.conversation_lines(unread, 90)[0]
    )
    nothing = replace(IDLE, context_used_tokens=None, busy_slots=None, slots=4)
    row = plain_text(throughput._context_line(replace(unread, throughput=nothing), 90))
    assert "fullest slot — of" in row and "slots — of 4" in row and "0" not in row.replace("131,072", "")
    own = replace(shared, kv_cells=4 * 4096)
    assert "4,000 of 16,384 tokens" in plain_text(vram.conversation_lines(own, 90)[0])


@pytest.mark.parametrize("scene", SCENES)
@pytest.mark.parametrize("width", [42, 58, 78, 120])
def test_every_figure_explains_itself_and_no_reason_is_cut(scene: str, width: int) -> None:
    """In all scenes: each figure is in the table; what slows the server, and why it does nothing, stand whole."""
    reading = snapshot(SCENES[scene].status, **SCENES[scene].readings)
    box = Box(reading, UsageSum("x", 40, tg_median=61.0, pp_median=500.0, ttft_median=1.0), None)
    offloaded = offload.OffloadPane().lines(reading, width, 30)
    state = throughput.state_lines(reading, width)
    makers = (throughput._prompt_line, throughput._draft_line, throughput._context_line)
    rows = [*offloaded, *state, *(make(reading, width) for make in makers), *vram.vram_lines(reading, width, False)]
    for name in {figure_of(style) for row in rows for _, style in row} - {""}:
        lines = explain(name, box)
        assert 2 <= len(lines) <= 3 and all(text.endswith(".") for _, text in lines), lines
    assert max(map(cell_width, [*offloaded, *state])) <= width
    shown = " ".join(" ".join(map(plain_text, [*offloaded, *state])).split())
    assert reading.offload.bottleneck_reason in shown
    if reading.throughput.state == "down" and reading.server.state != "stopped":
        assert reading.server.message in shown


@pytest.mark.parametrize("scene", SCENES)
def test_the_pictures_keep_the_rules_of_every_reading(scene: str) -> None:
    state = SCENES[scene]

    assert broken(snapshot(state.status, **state.readings)) == []


def test_a_machine_without_a_gpu_says_each_thing_once() -> None:
    box = snapshot(SCENES["no_gpu"].status, **SCENES["no_gpu"].readings)
    pane = offload.OffloadPane()
    assert pane.title(box).startswith("CPU") and "offload" not in pane.title(box)
    line = plain_text(offload._compact_line(box, 120))
    assert "on GPU 0/31 layers" in line and "threads 1.9/2" in line and "1.9 of 2" not in line


def test_a_stuck_server_says_what_can_be_done() -> None:
    stuck = snapshot(BUSY, **SCENES["stuck"].readings)
    lines = throughput.state_lines(stuck, 200, keys="r restarts it, l shows the log")
    assert " ".join(map(plain_text, lines)).endswith("; r restarts it, l shows the log")
