"""sweep, ab and soak on a real engine: killed -9 half way, resumed, reported, and the previous server restored."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.engine.conftest import Box
from tests.engine.outside import SLOWLY, gpubox, until
from tests.sampling import some_of

pytestmark = pytest.mark.engine

TINY = ("--prompts", "1", "--max-tokens", "4")
TWICE = ("--starts", "2")


BY_DAY = some_of(("ab", "soak", "sweep", "tune"), 0.25)


def killed(kind: str) -> pytest.MarkDecorator:
    """By day one kind is killed, all of them at night."""
    return pytest.mark.engine if kind in BY_DAY else pytest.mark.nightly


@pytest.fixture(scope="module")
def profiles(box: Box) -> Iterator[Box]:
    box.profile("before", {"threads": 1})
    box.profile("swept", {"threads": 1})
    assert gpubox("start", "before").returncode == 0
    yield box
    assert gpubox("stop").returncode == 0


def killed_half_way(box: Box, items: int, *words: str) -> list[bytes]:
    """Starts a run, kills it after so many measured results, and returns the lines on disk."""
    runs = box.paths.state / "runs"
    known = set(runs.iterdir()) if runs.exists() else set()

    def lines() -> list[bytes]:
        new = [path for path in runs.glob("*/results.jsonl") if path.parent not in known]
        return [line for path in new for line in path.read_bytes().splitlines()]

    verb = [] if words[0] == "tune" else ["bench"]
    with subprocess.Popen([*SLOWLY, *verb, *words], stderr=subprocess.DEVNULL) as process:
        until(lambda: sum(not json.loads(line).get("error") for line in lines()) >= items, process)
        process.kill()
    return lines()


def before_is_back(box: Box) -> bool:
    server = json.loads(gpubox("status", "--json").stdout)["server"]
    return (server["profile"], server["state"], len(box.servers())) == ("before", "ready", 1)


def resumed(box: Box, kept: list[bytes]) -> dict[str, Any]:
    done = gpubox("bench", "resume", "--json")
    assert done.returncode == 0, done.stderr
    values: dict[str, Any] = json.loads(done.stdout)
    assert values["run"]["state"] == "finished"
    folder: Path = box.paths.state / "runs" / values["run"]["id"]
    assert (folder / "results.jsonl").read_bytes().splitlines()[: len(kept)] == kept
    assert not {doubt["kind"] for doubt in values["report"]["doubts"]} & {"cache", "length", "crash", "setup"}
    return values


@killed("tune")
def test_a_tune_survives_kill_9_and_keeps_its_time_and_its_verdict(profiles: Box) -> None:
    kept = killed_half_way(
        profiles, 2, "tune", "swept", "--over", "threads=1,2", "--minutes", "0.1", "--context", "0", *TINY
    )
    assert not before_is_back(profiles)
    assert gpubox("bench", "resume", "--restore").returncode == 0
    assert before_is_back(profiles)

    values = resumed(profiles, kept)

    assert before_is_back(profiles)
    cells = values["report"]["tables"][0]
    measured = {row[0] for row in cells["rows"]}  # as far as the time reached, in an order of chance
    assert measured in ({"1"}, {"2"}, {"1", "2"})
    assert [row[-1] for row in cells["rows"]].count("now") == ("1" in measured)
    assert values["report"]["verdict"]
    name = gpubox("bench", "save", "--name", "before")
    assert name.returncode == 2


@killed("sweep")
def test_a_sweep_survives_kill_9_keeps_a_cell_that_cannot_load_and_is_saved(profiles: Box) -> None:
    kept = killed_half_way(
        profiles, 2, "sweep", "swept", "--over", "ctx-size=512,1024", "--over", "cache-type-k=f16,no-such-type",
        "--context", "0", *TINY, *TWICE,
    )  # fmt: skip
    assert not before_is_back(profiles)

    values = resumed(profiles, kept)

    assert before_is_back(profiles)
    rows = {tuple(row[:2]): row for row in values["report"]["tables"][0]["rows"]}
    measured = [rows["512", "f16"], rows["1024", "f16"]]
    assert not {row[-1] for row in measured} & {"faster", "slower"}, "two starts of each tell nothing"
    assert all(row[2] > 0 for row in measured)
    assert all("no-such-type" in rows[size, "no-such-type"][-1] for size in ("512", "1024"))
    assert any(series["chart"] == "tg over ctx-size" for series in values["report"]["series"])
    assert gpubox("bench", "save", "--name", "best").returncode == 2
    saved = gpubox("bench", "save", "--cell", "ctx-size=512 cache-type-k=f16", "--name", "best", "--json")
    assert saved.returncode == 0, saved.stderr
    assert (profiles.paths.profiles / "best.toml").exists()


@killed("ab")
def test_an_ab_survives_kill_9(profiles: Box) -> None:
    kept = killed_half_way(profiles, 1, "ab", "swept", "--set", "ctx-size=768", "--domains", "code", *TINY, *TWICE)
    assert not before_is_back(profiles)

    cells, measures = resumed(profiles, kept)["report"]["tables"]

    assert before_is_back(profiles)
    assert measures["title"] == "swept ctx-size=768 over swept"
    assert [row[-1] for row in cells["rows"]] == ["now", "cannot tell"]
    assert measures["rows"][0][2] > 0


@killed("soak")
def test_a_soak_survives_kill_9(profiles: Box) -> None:
    kept = killed_half_way(
        profiles, 2, "soak", "before", "--minutes", "0.02", "--window", "0.4", "--max-tokens", "4", "--context", "512"
    )

    report = resumed(profiles, kept)["report"]

    assert before_is_back(profiles)
    (tg,) = (metric for metric in report["metrics"] if metric["name"] == "tg")
    assert tg["estimate"]["n"] == 3
    assert "RAM of the server" in {row[0] for row in report["tables"][0]["rows"]}
    assert "tg over time" in {series["chart"] for series in report["series"]}
