"""``gpubox history --requests``, ``gpubox status --record`` and ``gpubox --replay``."""

from __future__ import annotations

import json
import resource
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from gpubox.cli.main import run
from gpubox.paths import Paths
from gpubox.telemetry.recorder import read_recording
from tests.conftest import until

FIXTURE = Path(__file__).parents[1] / "fixtures" / "logs" / "b11434-moe-mtp-rpc.log"


@pytest.fixture
def served(box: int, paths: Paths) -> None:
    """A server with the log of real requests."""
    assert run(["start", "a"]) == 0
    with paths.instance_log("main").open("a") as log:
        log.write(FIXTURE.read_text(encoding="utf-8"))


def answered(capfd: pytest.CaptureFixture[str], *words: str) -> dict[str, Any]:
    capfd.readouterr()
    assert run([*words, "--json"]) == 0
    return dict(json.loads(capfd.readouterr().out))


@pytest.mark.usefixtures("served")
def test_a_figure_is_explained(capfd: pytest.CaptureFixture[str]) -> None:
    said = answered(capfd, "status", "--explain", "Slowed by")
    assert said["figure"] == "slowed by" and said["here"].startswith("Not known: ") and said["moved_by"]
    assert run(["status", "--explain", "pq"]) == 2
    assert "TTFT" in capfd.readouterr().err
    assert run(["status", "--explain", "pp", "--all"]) == 2


@pytest.mark.usefixtures("served")
def test_the_last_requests(paths: Paths, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    later = SimpleNamespace(time=lambda: time.time() + 3600)  # the log's times count from the start just now
    monkeypatch.setattr("gpubox.cli.commands.history.time", later)
    requests = ("history", "--requests", "-n", "1000")
    every = answered(capfd, *requests)["requests"]
    first = next(request for request in every if request["prompt_tokens"] == 32)
    assert (first["slot"], first["generated_tokens"], first["cached_tokens"]) == (1, 150, 0)
    assert (first["tg_tokens_per_second"], first["draft_tokens_accepted"]) == (190.21, 110)
    assert first["draft_acceptance"] == pytest.approx(110 / 117)
    assert [request["number"] for request in every] == sorted(request["number"] for request in every)
    (newest,) = answered(capfd, "history", "--requests", "-n", "1")["requests"]
    assert newest["number"] == every[-1]["number"]

    assert run([*requests]) == 0
    head, *rows = capfd.readouterr().out.splitlines()
    columns = ["TIME", "PROFILE", "CLIENT", "READ", "REUSED", "OUT", "TTFT", "PP", "TG", "DRAFT", "TOOK", "END"]
    assert (head.split(), len(rows)) == (columns, len(every))
    row = rows[every.index(first)]
    assert row.split()[2:7] == ["a", "—", "32", "0", "150"] and "94%" in row


@pytest.mark.usefixtures("served")
def test_a_recording_ends_by_itself(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "r.jsonl"

    values = answered(capfd, "status", "--record", str(file), "--seconds", "0.6")

    snapshots = list(read_recording(file))
    assert (values["path"], values["snapshots"]) == (str(file), len(snapshots))
    assert 1 <= len(snapshots) <= 4  # fewer on a busy machine, never more than 4 a second
    assert snapshots[-1].server.profile == "a"
    assert run(["status", "--record", str(file)]) == 2
    assert "exists already" in capfd.readouterr().err


def test_a_recording_on_a_full_disk_says_so_and_goes_on(tmp_path: Path) -> None:
    """The size of the file is limited, and the limit is raised again during the recording."""
    file = tmp_path / "r.jsonl"
    command = [sys.executable, "-m", "gpubox", "status", "--record", str(file)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as record:
        assert record.stderr is not None
        assert "Ctrl-C stops" in record.stderr.readline()
        until(lambda: file.read_bytes().count(b"\n") >= 2)  # its modules are imported, so no bytecode file is truncated
        hard = resource.prlimit(record.pid, resource.RLIMIT_FSIZE)[1]
        resource.prlimit(record.pid, resource.RLIMIT_FSIZE, (file.stat().st_size, hard))
        assert "not recorded" in record.stderr.readline()
        resource.prlimit(record.pid, resource.RLIMIT_FSIZE, (hard, hard))
        assert "recording again" in record.stderr.readline()
        record.send_signal(signal.SIGINT)
        _, err = record.communicate(timeout=60)

    assert record.returncode == 1
    assert "The recording lacks" in err
    assert list(read_recording(file))


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_ctrl_c_is_the_usual_end_of_a_recording(number: int, tmp_path: Path) -> None:
    file = tmp_path / "r.jsonl"
    command = [sys.executable, "-m", "gpubox", "status", "--record", str(file)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as record:
        assert record.stderr is not None
        assert "Ctrl-C stops" in record.stderr.readline()
        until(lambda: file.read_bytes().count(b"\n") >= 3 or record.poll() is not None)
        assert record.poll() is None
        record.send_signal(number)
        out, err = record.communicate(timeout=60)

    assert (record.returncode, err) == (0, "")
    assert out.startswith(f"{len(list(read_recording(file)))} readings in ")


def test_replay_opens_the_screen_with_the_recording(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    opened: list[dict[str, Any]] = []
    monkeypatch.setattr("gpubox.cli.commands.screen.open_screen", lambda context, **more: opened.append(more))

    assert run(["--replay", str(tmp_path / "r.jsonl")]) == 0
    assert run([]) == 0
    assert [more["replay"] for more in opened] == [tmp_path / "r.jsonl", None]
    assert run(["--replay", "r", "--url", "http://box"]) == 2
    assert run(["--replay", "r", "status"]) == 2
    assert "gpubox --replay r" in capfd.readouterr().err
