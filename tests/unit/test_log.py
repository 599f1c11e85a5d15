"""The server's log: its lines, a file that grows, is rotated or cut, and repeats that are folded."""

from __future__ import annotations

import fcntl
import os
import random
import shutil
from datetime import UTC, datetime
from pathlib import Path

import pytest

from gpubox.errors import GpuboxError
from gpubox.server import log as log_module
from gpubox.server.log import (
    COPY_SECONDS,
    CUT_MARKER,
    FOLD_WINDOW,
    KEPT_LOGS,
    LINE_BYTES,
    UNLOADED_BYTES,
    LogLine,
    LogReader,
    RepeatFold,
    exceeds_limit,
    fold_repeats,
    load_stage,
    parse_line,
    repeats_line,
    rotate_log,
    tail_text,
    truncate_log,
)
from gpubox.storage import open_regular
from gpubox.telemetry.log_source import LogSource
from tests.unit.llama_box import LOADED, done, taken

STARTUP = """\
0.00.001.426 I srv  llama_server: initializing ...
0.00.003.079 I cmn  common_param: common_params_print_info: verbosity = 3 (adjust with the `-lv N` CLI arg)
0.00.003.309 W srv  llama_server: security: no API key is set and CORS allows all origins (see ...)
0.00.005.439 I srv    load_model: loading model 'models/SmolLM2-135M-Instruct.Q4_1.gguf'
0.00.261.411 I cmn          init: llama threadpool init, n_threads = 2
0.00.299.759 I srv    load_model: initializing, n_slots = 4, n_ctx_slot = 4096, kv_unified = 'true'
0.00.304.946 I srv  llama_server: model loaded
0.00.304.993 I srv  llama_server: listening on http://127.0.0.1:8291
"""
"""A start of build 11434 at -lv 3, as recorded."""


def test_every_recorded_line_has_time_level_and_text() -> None:
    lines = [parse_line(line) for line in STARTUP.splitlines()]

    assert [line.level for line in lines] == ["I", "I", "W", "I", "I", "I", "I", "I"]
    assert [line.seconds for line in lines] == sorted(line.seconds or -1 for line in lines)
    assert lines[0] == LogLine("srv  llama_server: initializing ...", 1 / 1e3 + 426 / 1e6, "I")


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "main.log"


def test_minutes_count() -> None:
    assert parse_line("62.05.250.001 D x").seconds == pytest.approx(62 * 60 + 5.250001)


@pytest.mark.parametrize(
    "line",
    [
        "error: invalid argument: --no-mmap",
        "",
        "    top_k = 40, top_p = 0.950, min_p = 0.050",
        "0.00.001.426 X srv",
        "0.0.001.426 I srv",
        " 0.00.001.426 I srv",
        "[bold red]0.00.001.426 I[/]",
        "\x00\x01",
    ],
)
def test_a_line_without_prefix_is_only_text(line: str) -> None:
    assert parse_line(line) == LogLine(line, None, None)


def test_the_stages_of_a_recorded_load() -> None:
    lines = (
        "load_tensors: loading model tensors, this can take a while... (load_mode = mmap)",
        "load_tensors:   CPU_Mapped model buffer size =    92.10 MiB",
        "llama_kv_cache:        CPU KV buffer size =    90.00 MiB",
        "sched_reserve:        CPU compute buffer size =    46.39 MiB",
        "creating MTP draft context against the target model 'm.gguf'",
    )

    assert [stage for line in STARTUP.splitlines() if (stage := load_stage(line))] == [
        "reading the GGUF",
        "loaded",
        "listening",
    ]
    assert [load_stage(line) for line in lines] == [
        "loading weights",
        "loading weights",
        "allocating the KV cache",
        "reserving compute buffers",
        "creating the MTP context",
    ]
    assert load_stage("slot print_timing: id  3 | task 0 |    graphs reused =         12") is None


def append(path: Path, data: bytes) -> None:
    with path.open("ab") as file:
        file.write(data)


def test_a_reader_gives_each_whole_line_once(path: Path) -> None:
    reader = LogReader(path)
    assert reader.read() == []
    append(path, b"one\ntw")
    assert reader.read() == ["one"]
    assert reader.read() == []
    append(path, b"o\n\nthree\r\n")
    assert reader.read() == ["two", "", "three"]


def test_a_reader_from_the_end_sees_only_what_is_new(path: Path) -> None:
    path.write_bytes(b"old\n")
    reader = LogReader(path, from_end=True)
    append(path, b"new\n")

    assert reader.read() == ["new"]


def test_a_reader_goes_on_in_the_new_file_after_a_rotation(path: Path) -> None:
    path.write_bytes(b"first launch\nhalf a li")
    reader = LogReader(path)
    reader.read()
    rotate_log(path)
    path.write_bytes(b"second launch, longer than the first file ever was\n")

    assert reader.read() == ["second launch, longer than the first file ever was"]


def test_a_rotation_between_opening_and_looking_shows_nothing_twice(
    monkeypatch: pytest.MonkeyPatch, path: Path
) -> None:
    path.write_bytes(b"old line\n")
    reader = LogReader(path)
    assert reader.read() == ["old line"]

    def open_then_rotate(path: Path) -> object:
        file = open_regular(path)
        rotate_log(path)
        with path.open("ab") as server:
            server.write(b"new line\n")
        return file

    monkeypatch.setattr(log_module, "open_regular", open_then_rotate)
    first = reader.read()
    monkeypatch.undo()

    assert first + reader.read() == ["new line"]


def test_a_reader_begins_again_in_a_file_that_was_cut(path: Path) -> None:
    path.write_bytes(b"a long first line\nrest")
    reader = LogReader(path)
    reader.read()
    with path.open("r+b") as file:
        file.truncate(0)
    append(path, b"new\n")

    assert reader.read() == ["new"]


def test_bytes_that_are_no_text_are_shown_as_such(path: Path) -> None:
    path.write_bytes(b"caf\xff\n\x1b[31mred\n" + "naïve\n".encode())

    assert LogReader(path).read() == ["caf\ufffd", "\x1b[31mred", "naïve"]


def test_a_letter_cut_in_two_by_a_partial_write_is_whole(path: Path) -> None:
    reader = LogReader(path)
    append(path, b"na" + "ï".encode()[:1])
    assert reader.read() == []
    append(path, "ï".encode()[1:] + b"ve\n")

    assert reader.read() == ["naïve"]


def test_a_reader_takes_a_long_log_in_bites(path: Path) -> None:
    path.write_bytes(b"".join(b"line %d\n" % n for n in range(100)))
    reader = LogReader(path)

    bites = [reader.read(limit=50) for _ in range(20)]

    assert [line for bite in bites for line in bite] == [f"line {n}" for n in range(100)]
    assert max(map(len, bites)) < 10


def test_the_log_folder_may_be_a_lie(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")

    assert LogReader(tmp_path / "file" / "main.log", from_end=True).read() == []
    assert tail_text(tmp_path) == ""


def test_rotation_keeps_five_and_the_newest_is_one(tmp_path: Path) -> None:
    path = tmp_path / "logs" / "main.log"
    for launch in range(8):
        rotate_log(path)
        path.write_text(f"launch {launch}")

    kept = {file.name: file.read_text() for file in path.parent.iterdir()}

    assert KEPT_LOGS == 5
    assert kept == {"main.log": "launch 7"} | {f"main.log.{n}": f"launch {7 - n}" for n in range(1, 6)}


def test_an_empty_log_is_not_rotated(tmp_path: Path, path: Path) -> None:
    path.touch()
    rotate_log(path)

    assert [file.name for file in tmp_path.iterdir()] == ["main.log"]


def test_a_log_folder_that_cannot_be_made_is_a_sentence(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")

    with pytest.raises(GpuboxError, match=r"log folder .* cannot be written"):
        rotate_log(tmp_path / "file" / "main.log")


def test_a_line_without_an_end_is_cut_and_reading_goes_on(path: Path) -> None:
    reader = LogReader(path)
    append(path, b"before\n" + b"x" * LINE_BYTES)
    assert reader.read() == ["before"]
    lines = []
    for _ in range(5):
        append(path, b"y" * LINE_BYTES)
        lines += reader.read()
        assert len(reader._partial) <= LINE_BYTES
    assert [line[0] for line in lines] == ["x"]
    assert len(lines[0]) == LINE_BYTES
    append(path, b"its end\nafter\n")
    assert reader.read() == ["after"]


def test_a_whole_line_is_cut_too(path: Path) -> None:
    append(path, b"x" * (3 * LINE_BYTES) + b"\nafter\n")

    assert [len(line) for line in LogReader(path).read()] == [LINE_BYTES, 5]


def test_the_tail_is_the_end_of_the_file(tmp_path: Path, path: Path) -> None:
    path.write_bytes(b"x" * 100 + b"end\xff")

    assert tail_text(path, 6) == "xxend\ufffd"
    assert tail_text(tmp_path / "nope") == ""


IDLE = "{n}.00.000.000 I srv  update_slots: all slots are idle"


def idle(count: int) -> list[str]:
    return [IDLE.format(n=n) for n in range(count)]


def test_an_idle_server_is_one_line_and_a_count() -> None:
    assert list(fold_repeats([*idle(48), "9.00.000.000 I slot launch_slot_: id 0", *idle(2)])) == [
        idle(1)[0], "… 47 more lines like this", "9.00.000.000 I slot launch_slot_: id 0", "… 2 more lines like this",
    ]  # fmt: skip


def test_lines_that_repeat_in_turn_are_folded_too() -> None:
    lines = [f"1.00.000.00{n} I request: GET /{what}" for n in range(5) for what in ("health", "slots", "metrics")]

    assert list(fold_repeats(lines)) == [*lines[:3], "… 12 more lines like this"]


def test_every_line_is_shown_or_counted() -> None:
    rng = random.Random(7)
    lines = [f"1.00.000.000 {rng.choice('IE')} {rng.choice('abcdef')}" for _ in range(5000)]
    fold, shown, counted = RepeatFold(), 0, 0
    for line in lines:
        count, show = fold.add(parse_line(line))
        counted += count
        shown += show

    assert shown + counted + fold.flush() == len(lines)
    assert fold.flush() == 0
    assert FOLD_WINDOW < shown < len(lines)


def test_an_error_is_not_folded_into_the_same_words_of_another_level_and_blank_lines_stay() -> None:
    lines = ["1.00.000.000 I it failed", "1.00.000.000 E it failed", "", "", ""]

    assert list(fold_repeats(lines)) == lines


def test_after_something_else_was_shown_the_line_is_shown_again() -> None:
    fold = RepeatFold()
    assert fold.add(parse_line(idle(1)[0])) == (0, True)
    assert fold.add(parse_line(idle(1)[0])) == (0, False)
    fold.reset()

    assert fold.add(parse_line(idle(1)[0])) == (1, True)


def test_the_words_for_one_and_for_many() -> None:
    assert (repeats_line(1), repeats_line(76000)) == ("… 1 more line like this", "… 76,000 more lines like this")


MIB = 1024 * 1024
FILLER = "0.02.000.000 I srv  update_slots: all slots are idle\n" * 200


@pytest.fixture
def log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A log that is too long: a load, a request and filler."""
    monkeypatch.setattr(log_module, "MAX_LOG_BYTES", 5000)
    path = tmp_path / "main.log"
    path.write_text(LOADED + taken("0.01.000.000", 1) + done("0.05.000.000", 1) + FILLER)
    return path


def aside(path: Path) -> Path:
    return path.with_name("main.log.1")


def source(path: Path) -> LogSource:
    return LogSource(path, datetime.now(UTC))


def test_the_load_stays_and_the_server_goes_on_behind_it(log: Path) -> None:
    whole = log.read_text()
    with log.open("ab", buffering=0) as server:
        truncate_log(log)
        server.write(b"more\n")

    assert not exceeds_limit(log)
    text = log.read_text()
    assert text.startswith(LOADED)
    mark, rest = text.removeprefix(LOADED).splitlines()
    assert mark.startswith(CUT_MARKER)
    assert mark.endswith("the removed lines are in main.log.1")
    assert rest == "more"
    assert aside(log).read_text() == whole


def test_who_starts_later_knows_the_split_and_the_last_requests(log: Path) -> None:
    truncate_log(log)
    with log.open("a") as server:
        server.write(taken("0.06.000.000", 2) + done("0.09.000.000", 2))

    log_source = source(log)

    assert [log_source.breakdown.weights_of(key) for key in ("CUDA0", "Host")] == [1024 * MIB, 100 * MIB]
    assert [request.task for request in log_source.requests.finished] == [2, 1]
    assert not log_source.complete  # the cut requests cannot be counted


def test_who_was_there_reads_nothing_twice(log: Path) -> None:
    log_source = source(log)
    truncate_log(log)
    with log.open("a") as server:
        server.write(taken("0.06.000.000", 2) + done("0.09.000.000", 2))

    assert [request.task for request in log_source.read()] == [2]
    assert [request.task for request in log_source.requests.finished] == [2, 1]
    assert log_source.complete

    reader = LogReader(log, from_end=True)
    with log.open("a") as server:
        server.write(FILLER)
    reader.read()
    truncate_log(log)
    assert [line.startswith(CUT_MARKER) for line in reader.read()] == [True]


def test_a_log_is_cut_again_and_again_and_copied_but_now_and_then(log: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    copies = []
    copy = shutil.copyfile

    def count(*paths: Path) -> None:
        copies.append(paths)
        copy(*paths)

    monkeypatch.setattr(shutil, "copyfile", count)
    for _ in range(20):
        with log.open("a") as server:
            server.write(FILLER)
        truncate_log(log)
        assert not exceeds_limit(log)
    assert len(copies) == 1
    assert log.read_text().startswith(LOADED)
    assert log.read_text().count(CUT_MARKER) == 1

    os.utime(aside(log), (0, 0))
    with log.open("a") as server:
        server.write(FILLER)
    truncate_log(log)
    assert len(copies) == 2
    assert COPY_SECONDS > 1


def test_of_a_log_without_a_load_the_first_lines_stay_however_often_it_is_cut(log: Path) -> None:
    log.write_text("the first line\n" + FILLER)
    for _ in range(3):
        truncate_log(log)
        text = log.read_text()
        assert text.startswith("the first line\n")
        assert len(text) < UNLOADED_BYTES + 200
        assert text.count(CUT_MARKER) == 1
        with log.open("a") as server:
            server.write(FILLER)


def test_on_a_full_disk_it_is_cut_all_the_same(log: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(source: Path, target: Path) -> None:
        target.write_text("half")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(shutil, "copyfile", full)
    truncate_log(log)

    assert not exceeds_limit(log)
    assert not aside(log).exists()
    assert "the removed lines are lost" in log.read_text()


def test_two_gpuboxes_cut_it_once(log: Path) -> None:
    before = log.read_text()
    with log.open("rb") as other:
        fcntl.flock(other, fcntl.LOCK_EX)
        truncate_log(log)

    assert log.read_text() == before
    assert not aside(log).exists()


def test_what_is_not_there_or_short_is_left_alone(tmp_path: Path) -> None:
    truncate_log(tmp_path / "nope.log")
    (tmp_path / "main.log").write_text("short\n")
    truncate_log(tmp_path / "main.log")

    assert [path.name for path in tmp_path.iterdir()] == ["main.log"]
