"""Waits have limits: for busy slots, for a server that does not stop, for a load that never ends."""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from gpubox.cli.main import run
from gpubox.hardware.process import find_by_marker
from gpubox.paths import Paths
from gpubox.server import loading
from gpubox.server.launch import free_port
from gpubox.server.log_truncation import MAX_LOG_BYTES

FLOODS = """#!/bin/sh
case "$*" in
  *--help) exec {fake} --help ;;
  *--version) exec {fake} --version ;;
  *--list-devices) exec {fake} --list-devices ;;
  *) exec {python} -u -c '{program}' >&2 ;;
esac
"""
POURS = """
import os
os.write(2, b"0.00.001.000 I srv  load_model: loading model\\n")
while True:
    os.write(2, b"0.00.002.000 W srv: waiting for device 7 of 7\\n" * 20000)
"""
TRICKLES = """
import itertools, sys, time
for n in itertools.count():
    print("0.00.002.000 W srv: waiting for device", n, flush=True)
    time.sleep(0.05)
"""


@pytest.fixture
def box(
    paths: Paths, fake_engine: Path, tiny_gguf: Path, write_profile: Callable[[str, str], Path], tmp_path: Path
) -> Iterator[None]:
    port = free_port("127.0.0.1")
    engines = {"fake": fake_engine}
    for name, program in (("pours", POURS), ("trickles", TRICKLES)):
        engines[name] = tmp_path / name
        quoted = program.replace("'", "'\\''")
        engines[name].write_text(FLOODS.format(fake=fake_engine, python=sys.executable, program=quoted))
        engines[name].chmod(0o755)
    for name, engine in (("a", "fake"), ("b", "fake"), ("pours", "pours"), ("trickles", "trickles")):
        write_profile(name, f'model = "{tiny_gguf}"\nport = {port}\nengine = "{engine}"\ntitle = "{name}"\n')
    lines = ['default-engine = "fake"', "stall-seconds = 1.5", "wait-seconds = 1.0", "[engines]"]
    paths.config_file.write_text("\n".join([*lines, *(f'{name} = "{path}"' for name, path in engines.items())]))
    yield
    for identity, _ in find_by_marker(f"{paths.state}|"):
        os.kill(identity.pid, signal.SIGKILL)


def gpubox(capfd: pytest.CaptureFixture[str], *words: str) -> tuple[int, dict[str, Any]]:
    capfd.readouterr()
    code = run([*words, "--json"])
    return code, json.loads(capfd.readouterr().out)


@pytest.mark.parametrize("verb", [["switch", "b"], ["restart", "a"]], ids=lambda words: words[0])
@pytest.mark.parametrize("more", [[], ["--wait", "0.3"], ["--wait", "0"]], ids=["config", "option", "at once"])
def test_a_server_that_is_always_busy_is_not_waited_for_without_end(
    verb: list[str], more: list[str], box: None, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("FAKE_BUSY", "1")
    assert run(["start", "a"]) == 0
    pid = gpubox(capfd, "status")[1]["server"]["pid"]

    code, story = gpubox(capfd, *verb, *more)

    assert (code, story["ok"], story["answering"]) == (1, False, "a")
    assert "still answers requests after" in story["error"]
    assert "it keeps running" in story["error"]
    assert "--now" in story["hint"]
    assert gpubox(capfd, "status")[1]["server"]["pid"] == pid


def test_now_and_wait_exclude_each_other(box: None, capfd: pytest.CaptureFixture[str]) -> None:
    assert gpubox(capfd, "switch", "b", "--now", "--wait", "5")[0] == 2


@pytest.mark.parametrize("verb", [["switch", "b", "--now"], ["restart", "a", "--now"], ["stop"]], ids=lambda w: w[0])
def test_a_server_that_does_not_leave_is_gone_within_three_seconds(
    verb: list[str], box: None, paths: Paths, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("FAKE_BUSY", "1")
    monkeypatch.setenv("FAKE_STOP_SECONDS", "30")
    assert run(["start", "a"]) == 0
    old = find_by_marker(f"{paths.state}|")[0][0]
    began = time.monotonic()

    code, story = gpubox(capfd, *verb)

    assert code == 0
    assert story["ok"]
    assert old not in [identity for identity, _ in find_by_marker(f"{paths.state}|")]
    assert time.monotonic() - began < 3 + 2  # the start of the new server takes some of it


@pytest.mark.parametrize(("name", "says"), [("pours", "into its log"), ("trickles", "hung")])
def test_more_of_the_same_lines_is_no_progress(
    name: str, says: str, box: None, paths: Paths, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(loading, "FLOOD_BYTES", 150 << 20)
    assert run(["start", "a"]) == 0

    code, story = gpubox(capfd, "switch", name)

    assert (code, story["answering"]) == (4, "a")
    assert says in story["error"]
    assert sum({path.stat().st_ino: path.stat().st_size for path in paths.logs.iterdir()}.values()) <= 2 * MAX_LOG_BYTES
