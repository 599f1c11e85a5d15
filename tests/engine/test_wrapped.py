"""The server is found again if its engine is a wrapper script, and if its record could not be written."""

from __future__ import annotations

import json
import os
import signal
import sys

import pytest

from gpubox.cli.main import run
from gpubox.hardware.host import read_process
from gpubox.hardware.process import identity_of
from tests.conftest import until
from tests.engine.conftest import Box

pytestmark = pytest.mark.engine


def server(capfd: pytest.CaptureFixture[str]) -> dict[str, object]:
    capfd.readouterr()
    run(["status", "--json"])
    server = json.loads(capfd.readouterr().out)["server"]
    assert isinstance(server, dict)
    return server


def test_an_engine_behind_a_script_is_started_found_and_stopped(box: Box, capfd: pytest.CaptureFixture[str]) -> None:
    script = box.root / "wrapper"
    real = os.environ.get("GPUBOX_TEST_ENGINE") or f"{sys.executable} -m gpubox.engines.embedded_server"
    script.write_text(f'#!/bin/sh\nexport WRAPPED=1\n{real} "$@"\nexit $?\n')  # no exec: the server is a child
    script.chmod(0o755)
    with box.paths.config_file.open("a") as config:
        config.write(f'\nwrapped = "{script}"\n')
    box.profile("wrapped", engine="wrapped")

    assert run(["start", "wrapped"]) == 0
    until(lambda: server(capfd)["state"] == "ready")
    assert run(["stop"]) == 0
    assert box.servers() == []


def test_a_server_whose_record_was_lost_is_still_found_and_stopped(box: Box, capfd: pytest.CaptureFixture[str]) -> None:
    box.profile("old")
    assert run(["start", "old"]) == 0
    pid = box.servers()[0]
    state = box.paths.instance_state("main")
    state.write_text(json.dumps({**json.loads(state.read_text()), "running": None}))  # as a full disk leaves it

    assert server(capfd)["pid"] == pid
    assert run(["stop"]) == 0
    assert box.servers() == []


def test_a_suspended_server_is_unhealthy_and_well_again_when_it_goes_on(
    box: Box, capfd: pytest.CaptureFixture[str]
) -> None:
    box.profile("old")
    assert run(["start", "old"]) == 0
    pid = box.servers()[0]
    identity = identity_of(pid)
    assert identity is not None
    os.kill(pid, signal.SIGSTOP)
    try:
        until(lambda: (reading := read_process(identity)) and reading.stopped)
        assert run(["status"]) == 4
        assert "SIGSTOP" in capfd.readouterr().out
    finally:
        os.kill(pid, signal.SIGCONT)
    until(lambda: (reading := read_process(identity)) and not reading.stopped)
    until(lambda: run(["status"]) == 0)
    assert run(["stop"]) == 0
