"""`gpubox logs`: folded repeats, and the log of a failed start."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from gpubox.cli.main import run
from gpubox.hardware.process import find_by_marker, is_alive
from gpubox.paths import Paths
from tests.conftest import until

Write = Callable[[str, str], Path]
IDLE = "9.00.000.000 I srv  update_slots: all slots are idle\n"
DIES = """#!/bin/sh
case "$*" in
  *--help|*--version|*--list-devices) exec {fake} "$@" ;;
  *) echo '0.00.380.143 E llama_init_from_model: quantized V cache requires flash_attn to be enabled' >&2
     echo "0.00.380.164 E cmn  common_init_: failed to create context with model 'm.gguf'" >&2
     echo '0.00.381.600 E srv  llama_server: exiting due to model loading error' >&2
     exit 1 ;;
esac
"""


@pytest.fixture(autouse=True)
def _engine_that_dies(
    box: int,
    paths: Paths,
    fake_engine: Path,
    tiny_gguf: Path,
    write_profile: Callable[[str, str], Path],
    tmp_path: Path,
) -> None:
    (tmp_path / "dies").write_text(DIES.format(fake=fake_engine))
    (tmp_path / "dies").chmod(0o755)
    write_profile("dies", f'model = "{tiny_gguf}"\nport = {box}\nengine = "dies"\n')
    with paths.config_file.open("a") as config:
        config.write(f'dies = "{tmp_path / "dies"}"\n')


def logs(capfd: pytest.CaptureFixture[str], *words: str) -> str:
    capfd.readouterr()
    assert run(["logs", *words]) == 0
    return capfd.readouterr().out


def test_the_log_of_a_failed_switch_is_there_when_what_ran_is_back(capfd: pytest.CaptureFixture[str]) -> None:
    assert run(["start", "a"]) == 0
    assert run(["logs", "--failed"]) == 3
    capfd.readouterr()

    assert run(["switch", "dies"]) == 2

    err = capfd.readouterr().err
    assert "a quantized cache-type-v needs flash-attn on" in err
    assert "gpubox logs --failed" in err
    assert "listening on" in logs(capfd)
    assert run(["logs", "--failed"]) == 0
    out, err = capfd.readouterr()
    assert "quantized V cache requires flash_attn" in out
    assert err.startswith("dies, 20")
    assert "needs flash-attn on" in err
    values = json.loads(logs(capfd, "--failed", "--json"))
    assert values["failure"].startswith("dies, ")
    assert values["lines"][0]["level"] == "E"

    assert run(["restart", "a", "--now"]) == 0  # a later start does not replace it
    assert run(["stop"]) == 0
    assert "quantized V cache" in logs(capfd, "--failed")
    assert run(["logs", "--failed", "-f"]) == 2


def test_the_log_of_a_server_that_died_stays_when_the_next_one_runs(
    paths: Paths, capfd: pytest.CaptureFixture[str]
) -> None:
    assert run(["start", "a"]) == 0
    with paths.instance_log("main").open("a") as log:
        log.write("1.00.000.000 E CUDA error: an illegal memory access was encountered\n")
    ((server, _),) = find_by_marker(f"{paths.state}|")
    os.kill(server.pid, signal.SIGKILL)
    until(lambda: not is_alive(server))  # a dying process loses its marker first
    assert "illegal memory access" in logs(capfd, "--failed")

    assert run(["start", "a"]) == 0

    assert "illegal memory access" not in logs(capfd)
    assert "illegal memory access" in logs(capfd, "--failed")


def test_hours_of_an_idle_server_are_folded_and_the_lines_before_them_are_found(
    paths: Paths, capfd: pytest.CaptureFixture[str]
) -> None:
    paths.logs.mkdir(parents=True)
    before = [f"1.00.000.000 I slot print_timing: id  0 | task {n} | eval time" for n in range(60)]
    count = 5 * 1024 * 1024 // len(IDLE)
    paths.instance_log("main").write_text("".join(f"{line}\n" for line in before) + IDLE * count)

    assert logs(capfd).splitlines() == [*before[-48:], IDLE.strip(), f"… {count - 1:,} more lines like this"]
    assert logs(capfd, "--raw", "-n", "3") == IDLE * 3
    assert logs(capfd, "--grep", "task 59 ").splitlines() == before[-1:]


def test_a_log_that_is_no_file_holds_nothing_up(paths: Paths) -> None:
    paths.logs.mkdir(parents=True)
    os.mkfifo(paths.instance_log("main"))

    assert run(["logs"]) == 3
