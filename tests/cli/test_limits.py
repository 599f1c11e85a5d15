"""Waits have limits: for busy slots, for a server that does not stop, for a load that never ends."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from gpubox.cli.main import run
from gpubox.hardware.process import find_by_marker
from gpubox.paths import Paths
from gpubox.server import loading
from gpubox.server.log import MAX_LOG_BYTES
from tests.cli.verbs import values

Write = Callable[[str, str], Path]
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


@pytest.fixture(autouse=True)
def _engines(
    box: int,
    paths: Paths,
    fake_engine: Path,
    tiny_gguf: Path,
    write_profile: Callable[[str, str], Path],
    tmp_path: Path,
) -> None:
    """Engines that never end their load."""
    engines = {"fake": fake_engine}
    for name, program in (("pours", POURS), ("trickles", TRICKLES)):
        engines[name] = tmp_path / name
        quoted = program.replace("'", "'\\''")
        engines[name].write_text(FLOODS.format(fake=fake_engine, python=sys.executable, program=quoted))
        engines[name].chmod(0o755)
        write_profile(name, f'model = "{tiny_gguf}"\nport = {box}\nengine = "{name}"\ntitle = "{name}"\n')
    lines = ['default-engine = "fake"', "stall-seconds = 1.5", "wait-seconds = 1.0", "[engines]"]
    paths.config_file.write_text("\n".join([*lines, *(f'{name} = "{path}"' for name, path in engines.items())]))


@pytest.mark.parametrize("verb", [["switch", "b"], ["restart", "a"]], ids=lambda words: words[0])
@pytest.mark.parametrize("more", [[], ["--wait", "0.3"], ["--wait", "0"]], ids=["config", "option", "at once"])
def test_a_server_that_is_always_busy_is_not_waited_for_without_end(
    verb: list[str], more: list[str], monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("FAKE_BUSY", "1")
    assert run(["start", "a"]) == 0
    pid = values(capfd, "status")[1]["server"]["pid"]

    code, story = values(capfd, *verb, *more)

    assert (code, story["ok"], story["answering"]) == (1, False, "a")
    assert "still answers requests after" in story["error"]
    assert "it keeps running" in story["error"]
    assert "--now" in story["hint"]
    assert values(capfd, "status")[1]["server"]["pid"] == pid


def test_now_and_wait_exclude_each_other(capfd: pytest.CaptureFixture[str]) -> None:
    assert values(capfd, "switch", "b", "--now", "--wait", "5")[0] == 2


@pytest.mark.parametrize("verb", [["switch", "b", "--now"], ["restart", "a", "--now"], ["stop"]], ids=lambda w: w[0])
def test_a_server_that_does_not_leave_is_gone_within_three_seconds(
    verb: list[str], paths: Paths, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("FAKE_BUSY", "1")
    monkeypatch.setenv("FAKE_STOP_SECONDS", "30")
    assert run(["start", "a"]) == 0
    old = find_by_marker(f"{paths.state}|")[0][0]
    began = time.monotonic()

    code, story = values(capfd, *verb)

    assert code == 0
    assert story["ok"]
    assert old not in [identity for identity, _ in find_by_marker(f"{paths.state}|")]
    assert time.monotonic() - began < 3 + 2  # the start of the new server takes some of it


@pytest.mark.parametrize(("name", "says"), [("pours", "into its log"), ("trickles", "hung")])
def test_more_of_the_same_lines_is_no_progress(
    name: str, says: str, paths: Paths, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(loading, "FLOOD_BYTES", 150 << 20)
    assert run(["start", "a"]) == 0

    code, story = values(capfd, "switch", name)

    assert (code, story["answering"]) == (4, "a")
    assert says in story["error"]
    assert sum({path.stat().st_ino: path.stat().st_size for path in paths.logs.iterdir()}.values()) <= 2 * MAX_LOG_BYTES
