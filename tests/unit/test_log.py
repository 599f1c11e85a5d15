"""The server's log: parsing its lines, and reading a file that grows, is rotated or is cut."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpubox.errors import GpuboxError
from gpubox.server import log
from gpubox.server.log import KEPT_LOGS, LINE_BYTES, LogLine, LogReader, load_stage, parse_line, rotate_log, tail_text
from gpubox.storage import open_regular

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


def test_a_reader_gives_each_whole_line_once(tmp_path: Path) -> None:
    path = tmp_path / "main.log"
    reader = LogReader(path)
    assert reader.read() == []
    append(path, b"one\ntw")
    assert reader.read() == ["one"]
    assert reader.read() == []
    append(path, b"o\n\nthree\r\n")
    assert reader.read() == ["two", "", "three"]


def test_a_reader_from_the_end_sees_only_what_is_new(tmp_path: Path) -> None:
    path = tmp_path / "main.log"
    path.write_bytes(b"old\n")
    reader = LogReader(path, from_end=True)
    append(path, b"new\n")

    assert reader.read() == ["new"]


def test_a_reader_goes_on_in_the_new_file_after_a_rotation(tmp_path: Path) -> None:
    path = tmp_path / "main.log"
    path.write_bytes(b"first launch\nhalf a li")
    reader = LogReader(path)
    reader.read()
    rotate_log(path)
    path.write_bytes(b"second launch, longer than the first file ever was\n")

    assert reader.read() == ["second launch, longer than the first file ever was"]


def test_a_rotation_between_opening_and_looking_shows_nothing_twice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "main.log"
    path.write_bytes(b"old line\n")
    reader = LogReader(path)
    assert reader.read() == ["old line"]

    def open_then_rotate(path: Path) -> object:
        file = open_regular(path)
        rotate_log(path)
        with path.open("ab") as server:
            server.write(b"new line\n")
        return file

    monkeypatch.setattr(log, "open_regular", open_then_rotate)
    first = reader.read()
    monkeypatch.undo()

    assert first + reader.read() == ["new line"]


def test_a_reader_begins_again_in_a_file_that_was_cut(tmp_path: Path) -> None:
    path = tmp_path / "main.log"
    path.write_bytes(b"a long first line\nrest")
    reader = LogReader(path)
    reader.read()
    with path.open("r+b") as file:
        file.truncate(0)
    append(path, b"new\n")

    assert reader.read() == ["new"]


def test_bytes_that_are_no_text_are_shown_as_such(tmp_path: Path) -> None:
    path = tmp_path / "main.log"
    path.write_bytes(b"caf\xff\n\x1b[31mred\n" + "naïve\n".encode())

    assert LogReader(path).read() == ["caf\ufffd", "\x1b[31mred", "naïve"]


def test_a_letter_cut_in_two_by_a_partial_write_is_whole(tmp_path: Path) -> None:
    path = tmp_path / "main.log"
    reader = LogReader(path)
    append(path, b"na" + "ï".encode()[:1])
    assert reader.read() == []
    append(path, "ï".encode()[1:] + b"ve\n")

    assert reader.read() == ["naïve"]


def test_a_reader_takes_a_long_log_in_bites(tmp_path: Path) -> None:
    path = tmp_path / "main.log"
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


def test_an_empty_log_is_not_rotated(tmp_path: Path) -> None:
    path = tmp_path / "main.log"
    path.touch()
    rotate_log(path)

    assert [file.name for file in tmp_path.iterdir()] == ["main.log"]


def test_a_log_folder_that_cannot_be_made_is_a_sentence(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")

    with pytest.raises(GpuboxError, match=r"log folder .* cannot be written"):
        rotate_log(tmp_path / "file" / "main.log")


def test_a_line_without_an_end_is_cut_and_reading_goes_on(tmp_path: Path) -> None:
    path = tmp_path / "main.log"
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


def test_a_whole_line_is_cut_too(tmp_path: Path) -> None:
    path = tmp_path / "main.log"
    append(path, b"x" * (3 * LINE_BYTES) + b"\nafter\n")

    assert [len(line) for line in LogReader(path).read()] == [LINE_BYTES, 5]


def test_the_tail_is_the_end_of_the_file(tmp_path: Path) -> None:
    path = tmp_path / "main.log"
    path.write_bytes(b"x" * 100 + b"end\xff")

    assert tail_text(path, 6) == "xxend\ufffd"
    assert tail_text(tmp_path / "nope") == ""
