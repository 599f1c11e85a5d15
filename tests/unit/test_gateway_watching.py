"""A box as its viewers get it: whole, without what is secret, and without cost while nobody looks."""

from __future__ import annotations

import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest

from gpubox.errors import GpuboxError
from gpubox.gateway import gateway_client, watching
from gpubox.gateway.gateway_client import NotAGateway, RemoteBox
from gpubox.gateway.http_connection import HttpRequest, RequestRefused
from gpubox.gateway.watching import BoxWatch, log_since
from gpubox.paths import MAIN_INSTANCE, Paths
from gpubox.server.log import LogReader
from gpubox.telemetry.recorder import header_line, snapshot_line
from gpubox.telemetry.snapshot import Request
from tests.fake_gateway import FakeGateway, fake_gateway, watched
from tests.unit.test_telemetry_recorder import RICH

DEBUG = "0.01.000.000 D request: {\n  secret prompt\n}\n"
INFO = "0.01.000.000 I slot 0\nand more of it\n"


def test_the_log_comes_without_the_prompts_that_verbose_servers_write(tmp_path: Path) -> None:
    path = tmp_path / "main.log"
    path.write_text(INFO + "0.00.500.000 I init: api_keys: ****beef\n" + DEBUG)
    lines, position = log_since(path, "")
    assert lines == INFO.splitlines()
    with path.open("a") as log:
        log.write("  secret continuation\n" + INFO + "half a li")
    lines, position = log_since(path, position)
    assert lines == INFO.splitlines()
    with path.open("a") as log:
        log.write("ne\n")
    assert log_since(path, position)[0] == ["half a line"]
    path.rename(tmp_path / "main.log.1")
    path.write_text(INFO)
    assert log_since(path, position)[0] == INFO.splitlines(), "a new launch has a new log"


@pytest.mark.parametrize("asked", ["x", "-", "9" * 50 + "-1", "1-²", "-5", "1-2-3", "d", "0-0d"])
def test_a_position_that_a_viewer_invents_reads_nothing_else(tmp_path: Path, asked: str) -> None:
    path = tmp_path / "main.log"
    path.write_text(INFO * 3)
    assert len(log_since(path, asked)[0]) <= 6
    assert log_since(tmp_path / "none", asked)[0] == []


def test_who_is_far_behind_misses_lines_and_is_told(tmp_path: Path) -> None:
    path = tmp_path / "main.log"
    path.write_text(INFO)
    position = LogReader(path, from_end=True).position
    path.write_text(INFO * 20_000)
    lines, _ = log_since(path, position)
    assert "of the log are not shown" in lines[0]
    assert sum(map(len, lines)) <= watching.LOG_BYTES


def asking(query: str = "") -> HttpRequest:
    return HttpRequest("GET", f"/gpubox/watch?{query}", (), b"", True, True, "", 0.0, 0.0)


async def test_one_child_samples_for_all_and_ends_when_nobody_looks(
    paths: Paths, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    paths.instance_log(MAIN_INSTANCE).parent.mkdir(parents=True)
    paths.instance_log(MAIN_INSTANCE).write_text(INFO)
    second = replace(RICH, time="2026-01-01T00:00:01.000Z", requests=(Request(2, "x", 0, 2), *RICH.requests))
    lines = tmp_path / "lines"
    lines.write_bytes(
        header_line("1")
        + snapshot_line(RICH, ())
        + snapshot_line(second, RICH.requests)
        + snapshot_line(second, second.requests)
    )
    sample = "import sys, time\nfor line in open(sys.argv[1]): print(line, end='', flush=True)\n"
    sample += "while True:\n  time.sleep(.02)\n  print(line, end='', flush=True)"
    watch, status = BoxWatch(paths), FakeGateway().status
    monkeypatch.setattr(watch, "_words", [sys.executable, "-c", sample, str(lines)])
    assert watch._task is None, "nothing runs before somebody looks"
    box = RemoteBox("http://box:8080", None)
    readings = [box.read_body(await watch.answer(asking(), status))]
    while readings[-1].snapshot != second:
        readings.append(box.read_body(await watch.answer(asking(box.query()), status)))
    assert readings[0].gateway == status
    assert [line for reading in readings for line in reading.log] == INFO.splitlines(), "each line once"
    again = await watch.answer(asking(box.query()), status)
    assert b'"requests":[]' in again and b'"requests_kept":2' in again, "the viewer has them"
    assert box.read_body(again).snapshot == second
    monkeypatch.setattr(watching, "IDLE_SECONDS", 0.1)
    assert watch._task is not None
    await watch._task


async def test_a_box_that_cannot_be_read_is_one_sentence(paths: Paths, monkeypatch: pytest.MonkeyPatch) -> None:
    watch = BoxWatch(paths)
    for words in (["/nonexistent"], [sys.executable, "-c", "print('hello')"], [sys.executable, "-c", "pass"]):
        monkeypatch.setattr(watch, "_words", words)
        with pytest.raises(RequestRefused, match="cannot be read now"):
            await watch.answer(asking(), FakeGateway().status)
    await watch.close()


GOOD = watched(RICH, FakeGateway().status)
HEADER, LINE, NEWS = GOOD.splitlines()
REFUSED = b'{"error": {"message": "The key is \\u001b[31m wrong."}, "gpubox": "0.1"}'


@pytest.mark.parametrize(
    ("status", "body", "said"),
    [
        (401, REFUSED, "The key is.* wrong"),
        (503, REFUSED, "The key is"),
        (200, HEADER.replace(b'n":1', b'n":2') + b"\n{}\n{}", "another version of gpubox"),
        (200, HEADER + b"\n" + LINE, "another version"),
        (200, HEADER + b"\n" + LINE[:-9] + b"\n" + NEWS, "another version"),
        (200, HEADER + b"\n" + b"[" * 100_000 + b"\n" + NEWS, "another version"),
        (200, GOOD.replace(b'"at":12345.678', b'"at":1e999'), "another version"),
        (200, b"x" * (gateway_client._WATCH_BYTES + 1), "more than 16 MiB"),
    ],
)  # fmt: skip
def test_a_hostile_gateway_is_one_sentence(paths: Paths, status: int, body: bytes, said: str) -> None:
    with fake_gateway(paths) as gateway:
        gateway.answer = (status, body)
        with pytest.raises(GpuboxError, match=said) as error:
            RemoteBox(gateway.url, "k").read()
        assert not isinstance(error.value, NotAGateway)
        assert "\x1b" not in str(error.value) and len(str(error.value)) < 700


@pytest.mark.parametrize(
    ("status", "body"),
    [(200, b"<html>"), (302, b""), (404, b'{"error":{"message":"File Not Found"}}'), (401, b"{}"), (200, b"[" * 10**5)],
)
def test_what_is_no_gateway_is_watched_as_a_server(paths: Paths, status: int, body: bytes) -> None:
    with fake_gateway(paths) as gateway:
        gateway.answer = (status, body)
        with pytest.raises(NotAGateway):
            RemoteBox(gateway.url, "k").read()


def test_readings_that_stand_still_are_not_taken_for_new_ones(paths: Paths, monkeypatch: pytest.MonkeyPatch) -> None:
    with fake_gateway(paths) as gateway:
        gateway.answer = (200, GOOD)
        box = RemoteBox(gateway.url, "k")
        box.read()
        box.read()
        later = time.monotonic() + gateway_client._STILL_SECONDS + 1
        monkeypatch.setattr(time, "monotonic", lambda: later)
        with pytest.raises(GpuboxError, match="no new readings"):
            box.read()
