"""``gpubox demo --once``: it has an instance of its own and leaves nothing behind."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from gpubox.hardware.process import find_by_marker
from gpubox.paths import Paths
from gpubox.server.instance import instance_names, observe
from tests.conftest import until

Write = Callable[[str, str], Path]
ONCE = [sys.executable, "-m", "gpubox", "demo", "--once", "--json"]


@pytest.fixture(autouse=True)
def _demo(box: int, tiny_gguf: Path, write_profile: Write) -> None:
    write_profile("demo", f'model = "{tiny_gguf}"\nport = 0\n')


def begin(gate: Path) -> subprocess.Popen[str]:
    """A run whose answer waits until ``gate`` exists."""
    env = {**os.environ, "FAKE_CHAT_UNTIL": str(gate)}
    return subprocess.Popen(ONCE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=env)


def asking(paths: Paths) -> Callable[[], bool]:
    """Whether a server is ready."""
    return lambda: any((view := observe(paths, name).running) and view.ready_at for name in instance_names(paths))


def left(paths: Paths) -> list[str]:
    folders = (paths.instance_state("x").parent, paths.logs)
    files = [file.name for folder in folders if folder.is_dir() for file in folder.iterdir() if "once" in file.name]
    return files + [mark for _, mark in find_by_marker(f"{paths.state}|")]


def test_it_answers_and_leaves_nothing(paths: Paths) -> None:
    done = subprocess.run(ONCE, capture_output=True, text=True, timeout=60, check=True)

    assert json.loads(done.stdout)["answer"] == "A chip."
    assert left(paths) == []


def test_a_second_one_at_the_same_time_is_refused(paths: Paths, tmp_path: Path) -> None:
    run = begin(tmp_path / "gate")
    until(asking(paths))

    second = subprocess.run(ONCE, capture_output=True, text=True, timeout=60, check=False)
    (tmp_path / "gate").touch()

    assert (second.returncode, json.loads(second.stdout)["error"]) == (1, "Another `gpubox demo --once` runs.")
    assert json.loads(run.communicate(timeout=60)[0])["answer"] == "A chip."
    assert left(paths) == []


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
@pytest.mark.parametrize("times", [1, 3])
def test_an_interrupt_leaves_nothing(
    number: int, times: int, paths: Paths, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FAKE_STOP_SECONDS", "0.5")
    run = begin(tmp_path / "never")
    until(asking(paths))

    for _ in range(times):
        run.send_signal(number)
        time.sleep(0.1)  # a fast second Ctrl-C, during clean-up or after it
    out, err = run.communicate(timeout=60)

    assert run.returncode == 130
    assert "Traceback" not in err
    assert err.count("gpubox: interrupted\n") == 1
    assert json.loads(out) == {
        "schema_version": 1, "ok": False, "error": "interrupted", "hint": None, "exit_code": 130,
    }  # fmt: skip
    assert left(paths) == []


def test_the_next_run_clears_away_what_a_killed_one_left(paths: Paths, tmp_path: Path) -> None:
    run = begin(tmp_path / "never")
    until(asking(paths))
    run.kill()
    run.communicate()
    assert len(find_by_marker(f"{paths.state}|")) == 1
    (state,) = paths.instance_state("x").parent.glob("*once*.json")
    Path(f"{state}half1234").touch()  # left by a kill during a write

    subprocess.run(ONCE, capture_output=True, timeout=60, check=True)

    assert left(paths) == []


def test_the_real_error_is_told_and_nothing_is_left(paths: Paths, write_profile: Write) -> None:
    write_profile("demo", 'model = "/no/such.gguf"\nport = 0\n')

    done = subprocess.run(ONCE, capture_output=True, text=True, timeout=60, check=False)

    assert done.returncode == 1
    assert "/no/such.gguf does not exist" in json.loads(done.stdout)["error"]
    assert left(paths) == []
