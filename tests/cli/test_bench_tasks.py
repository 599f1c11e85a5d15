"""``bench humaneval`` and ``bench suite`` on a server by its address."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from gpubox.cli.main import run
from tests.bench_server import BenchServer


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("CONFIG", "STATE", "CACHE"):
        monkeypatch.setenv(f"XDG_{name}_HOME", str(tmp_path / name.lower()))
    monkeypatch.delenv("GPUBOX_API_KEY", raising=False)


def test_a_suite_of_two_tasks(capsys: pytest.CaptureFixture[str]) -> None:
    with BenchServer() as server:
        options = ("--tasks", "3.2,4.2", "--max-tokens", "4", "--json")
        assert run(["bench", "suite", "--url", server.url, *options]) == 0
    values = json.loads(capsys.readouterr().out)
    points = {m["group"]: m["estimate"]["value"] for m in values["report"]["metrics"]}
    assert points == {"weighted total": 0.0, "reasoning": 0.0, "tools": 0.0}
    assert values["run"]["plan"]["options"]["tasks"] == ["3.2", "4.2"]
    assert run(["bench", "show", "--as", "leaderboard"]) == 0
    assert "weighted total" in capsys.readouterr().out


def test_chat_answers_of_the_first_problems(capsys: pytest.CaptureFixture[str]) -> None:
    with BenchServer() as server:
        options = ("--mode", "chat", "--limit", "2", "--parallel", "2", "--max-tokens", "6")
        code = run(["bench", "humaneval", "--url", server.url, *options])
    captured = capsys.readouterr()
    if "nothing confines it" in captured.err:
        pytest.skip("nothing confines programs on this machine")
    assert code == 0
    assert "0 of 2" in captured.out and "no code" in captured.out and "2 problems ran at a time" in captured.out


@pytest.mark.parametrize(
    "words", [["humaneval", "--mode", "guess"], ["humaneval", "--limit", "0"], ["suite", "--tasks", "9.9"]]
)
def test_what_cannot_be(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["bench", *words, "--url", "http://127.0.0.1:9"]) == 2
    assert "Traceback" not in capsys.readouterr().err
