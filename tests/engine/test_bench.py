"""A speed run on a real engine: killed -9 half way, resumed, reported, and the previous server restored."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.engine.conftest import Box
from tests.engine.outside import GPUBOX, SLOWLY, gpubox, until

pytestmark = pytest.mark.engine

SMALL = ("--prompts", "short", "--depths", "0", "--repeats", "4", "--max-tokens", "16")


def results_of(box: Box, known: set[Path]) -> list[bytes]:
    """The results so far of the run that is not in ``known``."""
    new = set((box.paths.state / "runs").iterdir()) - known
    return [line for run in new if (run / "results.jsonl").exists() for line in (run / "results.jsonl").open("rb")]


@pytest.fixture
def known(box: Box) -> Iterator[set[Path]]:
    """The runs that are there already. The server that each test has to give back is "before"."""
    box.profile("before", {"threads": 1})
    box.profile("measured", {"threads": 1, "ctx-size": 1024})
    assert gpubox("start", "before").returncode == 0
    (box.paths.state / "runs").mkdir(exist_ok=True)
    yield set((box.paths.state / "runs").iterdir())
    assert gpubox("stop").returncode == 0


def test_a_run_survives_kill_9_and_gives_the_server_back(box: Box, known: set[Path]) -> None:
    def lines() -> list[bytes]:
        return results_of(box, known)

    with subprocess.Popen([*SLOWLY, "bench", "speed", "measured", *SMALL], stderr=subprocess.DEVNULL) as process:
        until(lambda: len(lines()) >= 1, process)
        process.kill()
    kept = lines()
    runs = json.loads(gpubox("bench", "ls", "--json").stdout)["runs"]
    (listed,) = [run for run in runs if run["id"] not in {folder.name for folder in known}]
    assert (listed["state"], listed["done"]) == ("interrupted", len(kept))
    assert len(kept) < listed["items"] == 10

    resumed = gpubox("bench", "resume", "--json")

    assert resumed.returncode == 0, resumed.stderr
    values = json.loads(resumed.stdout)
    assert values["run"]["state"] == "finished"
    assert lines()[: len(kept)] == kept
    metrics = {(m["group"], m["name"]): m["estimate"] for m in values["report"]["metrics"]}
    for group in ("short prompt", "short prompt, cached"):
        assert metrics[group, "tg"]["n"] == 4
        assert metrics[group, "tg"]["value"] > 0
    flags = {doubt["kind"] for doubt in values["report"]["doubts"]}
    assert not flags & {"foreign request", "cache", "length", "crash", "setup"}
    provenance = values["run"]["provenance"]["measured"]
    assert len(provenance["model_sha256"]) == len(provenance["engine_sha256"]) == 64
    server = json.loads(gpubox("status", "--json").stdout)["server"]
    assert (server["profile"], server["state"]) == ("before", "ready")
    assert len(box.servers()) == 1


def test_ctrl_c_stops_a_run_and_gives_the_server_back(box: Box, known: set[Path], tmp_path: Path) -> None:
    before = box.servers()
    with (tmp_path / "err").open("wb") as err:
        process = subprocess.Popen([*SLOWLY, "bench", "speed", "measured", *SMALL], stderr=err)
    until(lambda: bool(results_of(box, known)), process)
    process.send_signal(2)

    assert process.wait(timeout=60) == 130
    assert "bench resume" in (tmp_path / "err").read_text()
    server = json.loads(gpubox("status", "--json").stdout)["server"]
    assert (server["profile"], server["state"]) == ("before", "ready")
    assert box.servers() != before


def test_a_server_that_dies_costs_one_item(box: Box, known: set[Path]) -> None:
    """The server is killed during the run; the run restarts it, reports that, and has every number."""
    process = subprocess.Popen(
        [*GPUBOX, "bench", "speed", "before", *SMALL, "--json"], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    )
    until(lambda: bool(results_of(box, known)), process)
    for pid in box.servers():
        os.kill(pid, 9)
    out, _ = process.communicate(timeout=120)

    assert process.returncode == 0
    values = json.loads(out)
    assert "crash" in {doubt["kind"] for doubt in values["report"]["doubts"]}
    assert all(m["estimate"]["n"] == 4 for m in values["report"]["metrics"] if m["name"] == "tg")
