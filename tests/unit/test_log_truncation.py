"""Cutting the log of a server that keeps writing: the load stays, the rest is moved aside."""

from __future__ import annotations

import fcntl
import os
import shutil
from datetime import UTC, datetime
from pathlib import Path

import pytest

from gpubox.server import log as log_module
from gpubox.server.log import COPY_SECONDS, CUT_MARKER, UNLOADED_BYTES, LogReader, exceeds_limit, truncate_log
from gpubox.telemetry.log_source import LogSource
from tests.unit.llama_box import LOADED, done, taken

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
