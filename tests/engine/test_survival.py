"""kill -9 at any moment, and many commands at once: never two servers, never an unknown one."""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import subprocess
import time
from collections.abc import Iterator
from typing import Any

import pytest

from gpubox.storage import lock_holder
from tests.conftest import until
from tests.engine.conftest import Box
from tests.engine.outside import GPUBOX, gpubox
from tests.sampling import sampled

pytestmark = pytest.mark.engine


def status() -> dict[str, Any]:
    """The server now. Waits while a server stops."""
    server: dict[str, Any] = {}

    def settled() -> bool:
        server.update(json.loads(gpubox("status", "--json").stdout)["server"])
        return server["state"] not in ("unreachable", "stopping")

    until(settled)
    return server


@pytest.fixture(scope="module")
def with_watchers(box: Box) -> Iterator[None]:
    """Each server has its watcher, as in normal use; none is left at the end."""
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("GPUBOX_WATCHER", raising=False)
        yield


@pytest.fixture(scope="module")
def pair(box: Box, with_watchers: None) -> Iterator[Box]:
    box.profile("a")
    box.profile("b", {"batch-size": 256})
    assert gpubox("start", "a").returncode == 0
    began = time.monotonic()
    assert gpubox("switch", "b").returncode == 0
    box.switch_seconds = time.monotonic() - began
    yield box
    gpubox("stop")
    assert box.servers() == []
    assert lock_holder(box.paths.watcher_lock("main")) is None


@pytest.mark.parametrize("seed", sampled(range(20)))
def test_kill_9_in_a_switch_leaves_one_server_or_none_and_a_reason(pair: Box, seed: int) -> None:
    target = "ab"[seed % 2 == 0]
    killed = subprocess.Popen([*GPUBOX, "switch", target, "--now"], stderr=subprocess.DEVNULL)
    # A random moment between the start of Python and the readiness probe. The wait is the experiment itself.
    try:
        killed.wait(timeout=random.Random(seed).uniform(0.1, 1.0) * pair.switch_seconds)
    except subprocess.TimeoutExpired:
        if seed % 3 == 2 and (watching := lock_holder(pair.paths.watcher_lock("main"))):
            with contextlib.suppress(ProcessLookupError):
                os.kill(watching, signal.SIGKILL)
        killed.kill()
        killed.wait()

    assert len(pair.servers()) <= 1
    server = status()
    assert len(pair.servers()) <= 1
    if server["pid"]:
        assert server["state"] in ("loading", "ready", "answering")
        assert server["profile"] in ("a", "b")
    else:
        assert server["state"] in ("stopped", "crashed")
        assert server["message"]
    again = gpubox("switch", "a", "--now", "--json")
    assert again.returncode == 0, again.stderr
    assert status()["profile"] == "a"
    assert len(pair.servers()) == 1


def test_ten_switches_at_once_are_one_at_a_time(pair: Box) -> None:
    racers = [
        subprocess.Popen([*GPUBOX, "switch", "ba"[n % 2], "--now"], stderr=subprocess.PIPE, text=True)
        for n in range(10)
    ]
    outcomes = [(racer.communicate(timeout=120)[1], racer.returncode) for racer in racers]

    assert any(code == 0 for _, code in outcomes)
    for output, code in outcomes:
        assert code == 0 or "Another gpubox" in output
    assert len(pair.servers()) == 1
    server = status()
    assert server["state"] == "ready"
    assert server["pid"] == pair.servers()[0]


def test_a_server_killed_from_outside_is_a_crash_and_can_be_started_again(pair: Box) -> None:
    os.kill(pair.servers()[0], 9)
    until(lambda: not pair.servers())

    server = status()

    assert server["state"] == "crashed"
    assert "died" in server["message"]
    assert gpubox("status").returncode == 3
    assert gpubox("start", "a").returncode == 0


def test_a_damaged_state_file_does_not_lose_the_server(pair: Box) -> None:
    assert gpubox("switch", "a", "--now").returncode == 0
    before = pair.servers()
    pair.paths.instance_state("main").write_text("{ not json")

    server = status()

    assert server["pid"] == before[0]
    assert server["profile"] == "a"
    assert gpubox("switch", "b", "--now").returncode == 0
    assert len(pair.servers()) == 1


def test_ctrl_c_in_a_load_goes_back_to_what_ran(pair: Box) -> None:
    gpubox("switch", "a", "--now")
    pair.profile("hung", engine="hang")
    racer = subprocess.Popen([*GPUBOX, "switch", "hung"], stderr=subprocess.PIPE, text=True)
    assert racer.stderr is not None
    for line in racer.stderr:
        if "VRAM settled" in line:
            break
    racer.send_signal(2)
    output = racer.stderr.read()

    assert racer.wait(timeout=60) == 130, output
    server = status()
    assert (server["profile"], server["state"]) == ("a", "ready")
    assert len(pair.servers()) == 1
