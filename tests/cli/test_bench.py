"""``gpubox bench``: its report, its exit code, and the server that runs afterwards."""

from __future__ import annotations

import asyncio
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from gpubox.bench.kinds.speed.speed import Speed
from gpubox.bench.model import Item
from gpubox.bench.run_store import find_run
from gpubox.bench.target_server import TargetServer
from gpubox.hardware.process import find_by_marker
from gpubox.paths import Paths
from tests.bench_runs import speed_run
from tests.bench_server import BenchServer
from tests.cli.verbs import gpubox, values

QUICK = ("--prompts", "short", "--depths", "0", "--repeats", "2", "--max-tokens", "8")


@pytest.fixture
def server() -> Iterator[BenchServer]:
    with BenchServer() as server:
        yield server


def test_a_server_by_its_address(server: BenchServer, capfd: pytest.CaptureFixture[str], paths: Paths) -> None:
    code, out, err = gpubox(capfd, "bench", "speed", "--url", server.url, *QUICK)

    assert code == 0, err
    shown = re.sub(r"\d{8}-\d{6}-speed-[\d.-]+", "ID", out.replace(server.url.removeprefix("http://"), "HOST"))
    shown = re.sub(r"\d{4}-\d\d-\d\d, finished, took [\d:.]+ ?m?s?", "DATE, finished, took TIME", shown)
    assert [re.sub(r" {2,}", "  ", line).strip() for line in shown.splitlines() if "TTFT" not in line] == [
        "HOST writes 50.0 tok/s (short prompt).",
        "Speed over HTTP  (ID, DATE, finished, took TIME)",
        "",
        "HOST  (gpubox  b1-test)",
        "mean  ± sd  median  range  n",
        "pp  100.0  100.0  2  tok/s",
        "tg  50.00  50.00  2  tok/s",
        "mean accepted length  2.00  2.00  —  1  tokens/step",
        "acceptance  25.00  25.00  —  1  %",
        "tg  50.00  50.00  2  tok/s",
        "mean accepted length  2.00  2.00  —  1  tokens/step",
        "acceptance  25.00  25.00  —  1  %",  # two answers to one greedy prompt are one observation
        "",
        "One start of each server: what stands beside a mean is the range of its repeats; another start may be slower.",
        "Energy per token: — (the driver gives no power reading).",
    ]
    assert "run 2" in err and " 0 items" not in err
    assert "6/6  writes 50.0 tok/s" in err
    assert "\x1b" not in err

    code, listed = values(capfd, "bench", "ls")
    assert (code, [(r["kind"], r["state"], r["done"]) for r in listed["runs"]]) == (0, [("speed", "finished", 6)])
    code, shown_again = values(capfd, "bench", "show")
    assert (code, shown_again["run"]["state"], len(shown_again["report"]["metrics"])) == (0, "finished", 9)
    assert "before" not in shown_again["run"]
    assert "every result is the same" in gpubox(capfd, "bench", "resume", "--rescore", "last")[1]
    assert "there is nothing left to do" in gpubox(capfd, "bench", "resume")[2]
    code, _, err = gpubox(capfd, "bench", "rm", "last")
    assert (code, "Add --yes" in err) == (2, True)
    assert gpubox(capfd, "bench", "rm", "last", "--yes")[0] == 0
    assert values(capfd, "bench", "ls")[1]["runs"] == []


@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        (("speed",), 3, "Nothing is running."),
        (("speed", "nope"), 2, "nope"),
        (("speed", "a", "--url", "http://127.0.0.1:9"), 2, "--url takes no profile"),
        (("speed", "a", "--model", "m"), 2, "--model needs --url"),
        (("speed", "a", "--preset", "fast"), 2, "'fast' is not one of 'quick', 'game', 'lengths', 'chat'"),
        (("speed", "a", "--depths", "many"), 2, "--depths takes whole numbers"),
        (("speed", "a", "--prompts", "x"), 2, "no prompt 'x'"),
        (("speed", "beside"), 2, "runs beside"),
        (("speed", "--url", "http://127.0.0.1:9"), 3, "does not answer"),
        (("speed", "--url", "http://[::1"), 2, "is not the address of a server"),
        (("speed", "--url", "http://box:99999"), 2, "is not the address of a server"),
        (("speed", "--url", "http://box/v1?key=abc"), 2, "question mark"),
        (("speed", "a", "--url", ""), 2, "--url takes no profile"),
        (("speed", "a", "--repeats", "999999"), 2, "A run has at most 20,000 items"),
        (("speed", "a", "--repeats", "99999999999"), 2, "repeats must be at most 10,000,000"),
        (("speed", "a", "--depths", "99999999999"), 2, "depths must be at most"),
        (("speed", "a", "--max-tokens", "9" * 30), 2, "max-tokens must be at most"),
        (("speed", "a", "--preset", "game", "--repeats", "3"), 2, "it takes no --repeats"),
        (("speed", "a", "--preset", "chat", "--prefix", "warm"), 2, "it takes no --prefix"),
        (("humaneval", "a", "--temperature", "nan"), 2, "temperature must be a number"),
        (("humaneval", "a", "--parallel", "1000"), 2, "--parallel"),
        (("suite", "a", "--repeats", "9999999"), 2, "at most 20,000"),
        (("suite", "a", "--ref-tps", "inf"), 2, "ref-tps must be at most"),
        (("show",), 2, "no run yet"),
        (("resume", "x"), 2, "no run yet"),
        (("spede",), 2, "Did you mean 'speed'?"),
    ],
)
def test_what_cannot_be_is_said(
    box: int, capfd: pytest.CaptureFixture[str], words: tuple[str, ...], code: int, message: str
) -> None:
    exit_code, out, err = gpubox(capfd, "bench", *words)

    assert (exit_code, message in err) == (code, True), err
    assert out == ""


def test_what_a_server_says_cannot_act_on_the_terminal(server: BenchServer, capfd: pytest.CaptureFixture[str]) -> None:
    server.refuses = "no \x1b[2J\x1b]0;owned\x07"
    code, out, err = gpubox(capfd, "bench", "speed", "--url", server.url, *QUICK)
    assert (code, "no " in out, "owned" in out + err, "\x1b" in out + err) == (0, True, False, False)
    server.status = 429
    code, out, err = gpubox(capfd, "bench", "speed", "--url", server.url, *QUICK)
    assert (code, "owned" in out + err, "\x1b" in out + err) == (3, False, False)
    assert "\x1b" not in gpubox(capfd, "bench", "ls")[1]


def test_help_lists_kinds_and_runs(capfd: pytest.CaptureFixture[str]) -> None:
    code, out, _ = gpubox(capfd, "bench", "--help")

    assert code == 0
    assert all(f"\n  {verb} " in out for verb in ("speed", "ls", "show", "resume", "save", "rm"))
    assert len(re.findall(r"\n  [a-z]+ {2,}", out)) == 12, "twelve verbs"
    assert gpubox(capfd, "bench", "speed", "--help")[0] == 0


def test_what_ran_before_runs_again(box: int, capfd: pytest.CaptureFixture[str]) -> None:
    assert gpubox(capfd, "start", "a")[0] == 0

    code, out, err = gpubox(capfd, "bench", "speed", "b", *QUICK)

    assert code == 0, err
    assert "b  (tiny.gguf" in out
    assert "50.00" in out
    server = values(capfd, "status")[1]["server"]
    assert (server["profile"], server["state"]) == ("a", "ready")


@pytest.mark.parametrize(("words", "message", "profile"), [
    (("switch", "a"), "a was started in place of b", "a"), (("stop",), "b was stopped", None),
])  # fmt: skip
def test_what_the_owner_does_to_the_server_meanwhile_ends_the_run_and_stays(
    box: int, capfd: pytest.CaptureFixture[str], paths: Paths, monkeypatch: pytest.MonkeyPatch,
    words: tuple[str, ...], message: str, profile: str | None,
) -> None:  # fmt: skip
    real = Speed.execute
    done: list[str] = []

    async def execute(self: Speed, item: Item, target_server: TargetServer) -> Any:
        if item.id.endswith("/2") and not done:
            done.append(item.id)
            gpubox_ = (sys.executable, "-m", "gpubox")
            await asyncio.to_thread(subprocess.run, [*gpubox_, *words], check=True, capture_output=True)
        return await real(self, item, target_server)

    monkeypatch.setattr(Speed, "execute", execute)
    assert gpubox(capfd, "start", "synthetic")[0] == 0

    code, _, err = gpubox(capfd, "bench", "speed", "b", *QUICK)

    assert (code, f"The run ends, because {message}." in err) == (1, True), err
    assert "The previous server is not restored" in err
    run = find_run(paths, "last")
    assert done[0] not in run.raws()  # another server answered on this port
    assert not run.info.restore_pending
    assert values(capfd, "status")[1]["server"]["profile"] == profile


def test_where_nothing_ran_nothing_runs_afterwards(box: int, capfd: pytest.CaptureFixture[str], paths: Paths) -> None:
    assert gpubox(capfd, "bench", "speed", "b", *QUICK)[0] == 0

    assert find_by_marker(f"{paths.state}|") == []


def test_a_busy_server_is_not_measured_unasked(
    box: int, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FAKE_BUSY", "1")
    assert gpubox(capfd, "start", "a")[0] == 0
    monkeypatch.delenv("FAKE_BUSY")

    code, out, err = gpubox(capfd, "bench", "speed", *QUICK)

    assert (code, out) == (1, "")
    assert "A request is running on a: slot 0" in err
    assert "--now" in err


def test_one_verb_shows_one_run_compares_two_and_ranks_many(
    capfd: pytest.CaptureFixture[str], paths: Paths, tmp_path: Path
) -> None:
    first = speed_run(paths, "a", tg=60.0, seed=1)
    second = speed_run(paths, "b", tg=40.0, seed=2, argv=("llama-server", "b"))

    def show(*words: str) -> str:
        code, out, err = gpubox(capfd, "bench", "show", *words)
        assert code == 0, err
        return out

    assert "tg, tok/s" in show(first.id)
    assert show(first.id, second.id).startswith("Which is faster cannot be told")
    assert any(line.startswith("b against a") for line in show(first.id, second.id).splitlines())
    assert f"first {first.id}, second {second.id}" in show(first.id, second.id).splitlines()
    assert "`gpubox bench ab a b` tells it" in " ".join(show(first.id, second.id).split())
    code, comparison = values(capfd, "bench", "show", first.id, second.id)
    assert {row["outcome"] for row in comparison["comparison"]["rows"]} == {"cannot tell"}
    assert "cannot be told" in comparison["comparison"]["verdict"]
    ranked: tuple[tuple[str, ...], ...]
    ranked = (("--as", "leaderboard"), ("--as", "leaderboard", "speed"), (first.id, second.id, "last"))
    for own in ranked:
        assert [line.split()[:2] for line in show(*own).splitlines() if line[:1].isdigit()] == [["1", "a"], ["2", "b"]]
    assert show("--as", "leaderboard", "--as", "csv").startswith("kind,protocol,metric")
    assert show(first.id, "--as", "markdown").startswith("## Speed over HTTP")

    for name, start in (("x.svg", "<svg"), ("x.csv", "name,group"), ("x.md", "## "), ("x.json", "{")):
        file = tmp_path / name
        assert show(first.id, second.id, "-o", str(file)) == ""
        assert file.read_text().startswith(start)
    no_folder = str(tmp_path / "no" / "x.svg")
    refused: tuple[tuple[tuple[str, ...], int, str], ...] = (
        (("nothing-like-it",), 2, "no run"),
        (("speed",), 2, "2 runs match"),
        ((first.id, "-o", no_folder), 1, "cannot be written"),
        (("--as", "csv", "--as", "svg"), 2, "cannot be combined"),
        (("--as", "post", first.id, second.id), 2, "of one run"),
        (("--as", "post", "--as", "csv"), 2, "not written as csv"),
    )
    for words, code, message in refused:
        exit_code, _, err = gpubox(capfd, "bench", "show", *words)
        assert (exit_code, message in err) == (code, True), err


def test_a_run_is_made_ready_for_a_forum(capfd: pytest.CaptureFixture[str], paths: Paths, tmp_path: Path) -> None:
    run = speed_run(paths, "annas-box")
    card = tmp_path / "card.svg"

    code, out, _ = gpubox(capfd, "bench", "show", "--as", "post")
    assert code == 0
    assert out.startswith("**Qwen3.6-35B-A3B Q4_K_M** on NVIDIA GeForce RTX 4080 SUPER")
    assert "| flags | `-ncmoe 20` |" in out
    code, out, _ = gpubox(capfd, "bench", "show", run.id, "--as", "card", "-o", str(card))
    assert (code, out) == (0, "")
    assert card.read_text().startswith("<svg")
    assert "annas-box" not in card.read_text()
    code, values_ = values(capfd, "bench", "show", run.id, "--as", "post")
    cell = values_["post"]["rows"][0]["cells"]["TTFT"]
    assert (cell["n"], cell["low"]) == (5, None)
    assert cell["minimum"] < cell["value"] < cell["maximum"]


def test_a_plan_is_told_and_nothing_is_done(box: int, capfd: pytest.CaptureFixture[str], paths: Paths) -> None:
    code, outline = values(capfd, "bench", "speed", "a", "--dry-run", *QUICK)
    assert code == 0
    assert (outline["items"], outline["starts"], outline["restored_profile"], outline["seconds"]) == (
        6,
        ["a"],
        None,
        None,
    )
    code, out, _ = gpubox(capfd, "bench", "speed", "a", "--dry-run", *QUICK)
    assert out.splitlines() == [
        "speed: It makes 6 measurements; a is started, unless it runs with the same flags.",
        "Afterwards nothing runs, as now.",
    ]
    code, _, _ = gpubox(capfd, "bench", "speed", "nobody", "--dry-run")
    assert code == 2
    assert not list((paths.state / "runs").glob("*"))
