"""``gpubox bench ab|sweep|soak|save|resume`` on an engine that answers at 50 tok/s."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from gpubox.bench.model import Plan, Target
from gpubox.bench.run_store import create_run, find_run
from gpubox.bench.target_server import SWITCHING
from gpubox.paths import MAIN_INSTANCE, Paths
from gpubox.server.instance import observe
from tests.bench_server import BenchServer
from tests.cli.verbs import gpubox

TINY = ("--prompts", "2", "--max-tokens", "8")
TWICE = ("--starts", "2")


def running(capfd: pytest.CaptureFixture[str]) -> str | None:
    return json.loads(gpubox(capfd, "status", "--json")[1])["server"]["profile"]  # type: ignore[no-any-return]


def test_a_sweep_tells_its_plan_keeps_what_cannot_load_and_is_saved(
    box: int, capfd: pytest.CaptureFixture[str], paths: Paths
) -> None:
    assert gpubox(capfd, "start", "b")[0] == 0

    code, out, err = gpubox(capfd, "bench", "sweep", "a", "--over", "c=13,2048,3072", "--context", "0", *TINY, *TWICE)

    assert code == 0, err
    assert "3 cells: ctx-size=2048, ctx-size=13, ctx-size=3072." in err
    assert "Afterwards b runs again." in err
    assert "13 brings bad luck" in out
    assert "cannot be told: there were too few starts." in out
    assert running(capfd) == "b"
    code, out, _ = gpubox(capfd, "bench", "save", "--cell", "3072", "--name", "wide", "--json")
    assert (code, json.loads(out)["cell"]) == (0, "ctx-size=3072")
    assert "ctx-size = 3072" in (paths.profiles / "wide.toml").read_text()
    assert gpubox(capfd, "bench", "save", "--cell", "3072", "--name", "wide")[0] == 2  # there is one already
    code, _, err = gpubox(capfd, "bench", "save", "--cell", "ctx")
    assert (code, "3 of this run's targets" in err) == (2, True)


def test_a_sweep_over_files_of_this_folder_and_over_profiles(
    box: int, capfd: pytest.CaptureFixture[str], tiny_gguf: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path,
    write_profile: Callable[[str, str], Path], paths: Paths,
) -> None:  # fmt: skip
    for quant in ("Q4_K_M", "Q8_0"):
        (tmp_path / f"tiny-{quant}.gguf").write_bytes(tiny_gguf.read_bytes())
    monkeypatch.chdir(tmp_path)
    files = "model=tiny-Q4_K_M.gguf,tiny-Q8_0.gguf"

    once = ("--prompts", "1", "--domains", "code", "--max-tokens", "4", "--context", "0", "--starts", "1")
    code, out, err = gpubox(capfd, "bench", "sweep", "a", "--over", files, *once)

    assert code == 0, err
    assert re.search(r"tiny-Q4_K_M +Q4_K_M ", out)
    assert re.search(r"tiny-Q8_0 +Q8_0 ", out)
    assert {Path(own.model_path).name for own in find_run(paths, "last").info.provenance.values()} == {
        "tiny.gguf", "tiny-Q4_K_M.gguf", "tiny-Q8_0.gguf",
    }  # fmt: skip
    assert str(tmp_path) not in out
    assert gpubox(capfd, "bench", "save", "--cell", "Q8_0", "--name", "other", "--json")[0] == 0
    assert f'model = "{tmp_path}/tiny-Q8_0.gguf"' in (paths.profiles / "other.toml").read_text()
    code, _, err = gpubox(capfd, "bench", "sweep", "a", "--over", "model=tiny-Q8_0.gguf,gone.gguf")
    assert (code, "gone.gguf" in err) == (1, True)

    write_profile("short", f'model = "{tiny_gguf}"\n[flags]\nc = 1024\n')  # another name for ctx-size
    code, out, err = gpubox(capfd, "bench", "sweep", "a", "short", "--over", "ctx-size=3072", *once, "--json")
    assert code == 0, err
    cells = json.loads(out)["run"]["provenance"]
    argvs = [own["argv"] for name, own in cells.items() if name != "own flags"]
    assert len(argvs) == 2
    assert all("-c" not in argv and argv.count("--ctx-size") == 1 for argv in argvs), argvs


def test_a_cell_whose_server_dies_is_left_after_the_second_death(
    box: int, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, paths: Paths
) -> None:
    monkeypatch.setenv("FAKE_DIES_WITH", "2048")

    code, out, err = gpubox(capfd, "bench", "sweep", "a", "--over", "c=2048,3072", "--context", "0", *TINY)

    assert code == 0, err
    results = find_run(paths, "last").results()
    first, *others = [result for name, result in results.items() if "2048" in name]
    assert [doubt.kind for doubt in first.doubts] == ["crash", "crash"]
    assert {(result.skipped, result.error) for result in others} == {(True, f"the server died during {first.item}")}
    assert all(result.ok for name, result in results.items() if "3072" in name)
    assert re.search(r"crash in 00\d/ctx-size=2048/warm-up", out)


def test_ab_of_two_profiles_says_how_often_it_restarts(box: int, capfd: pytest.CaptureFixture[str]) -> None:
    code, out, err = gpubox(capfd, "bench", "ab", "a", "b", *TINY, *TWICE, "--json")

    assert code == 0, err
    assert "At most 4 starts of a and b, in random order" in err
    assert "Afterwards nothing runs, as now." in err
    assert err.count("✓ load") == 4  # the server is restarted even if the same side comes twice in a row
    report = json.loads(out)["report"]
    assert [table["title"] for table in report["tables"]] == ["Cells", "b over a"]
    assert [row[-1] for row in report["tables"][0]["rows"]] == ["now", "cannot tell"]
    assert report["verdict"].startswith("Whether b is faster than a cannot be told: there were too few starts. `gpubox")
    code, _, err = gpubox(capfd, "bench", "save")
    assert (code, "--cell saves one all the same: a, b." in err) == (2, True)


def test_speed_over_several_starts_has_its_interval_over_them(box: int, capfd: pytest.CaptureFixture[str]) -> None:
    quick = ("--preset", "quick", "--repeats", "2", "--max-tokens", "8")
    code, out, err = gpubox(capfd, "bench", "speed", "a", "b", "--starts", "2", *quick, "--json")

    assert code == 0, err
    assert err.count("✓ load") == 4
    tg = [metric for metric in json.loads(out)["report"]["metrics"] if metric["name"] == "tg"]
    assert {(metric["estimate"]["method"], metric["estimate"]["n"]) for metric in tg} == {("t over starts", 2)}
    assert all(len(metric["starts"]) == 2 for metric in tg)
    code, _, err = gpubox(capfd, "bench", "speed", "--url", "http://127.0.0.1:9", "--starts", "2")
    assert (code, "cannot restart a server given by its address" in err) == (2, True)


def test_ab_of_one_profile_asked_two_ways_starts_it_once(box: int, capfd: pytest.CaptureFixture[str]) -> None:
    code, out, err = gpubox(capfd, "bench", "ab", "a", "--vary", "thinking", "--domains", "code", *TINY)

    assert code == 0, err
    assert "a is started" in err
    assert "Whether a thinking is faster than a cannot be told" in out
    assert "nothing was restarted" in out


def test_soak_of_what_runs(box: int, capfd: pytest.CaptureFixture[str]) -> None:
    assert gpubox(capfd, "start", "a")[0] == 0

    code, out, err = gpubox(capfd, "bench", "soak", "--minutes", "0.01", "--window", "0.3", "--max-tokens", "8")

    assert code == 0, err
    assert "3 measurements" in err
    assert "Agent-like load" in out
    assert "first third" in out


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("ab", "a"), "needs two sides"),
        (("ab", "a", "nope"), "nope"),
        (("ab", "a", "b", "--vary", "mtp"), "Leave out B and --set"),
        (("ab", "a", "--set", "n-cpu-mo=4"), "n-cpu-mo: this engine has no such flag"),
        (("ab", "a", "--vary", "thinking", "--starts", "3"), "nothing is restarted"),
        (("ab", "a", "b", "--domains", "poetry"), "no domain 'poetry'"),
        (("ab", "http://127.0.0.1:9"), "needs two sides"),
        (("ab", "http://127.0.0.1:9", "a"), "is not the address of a server"),
        (("sweep", "a"), "--over"),
        (("sweep", "a", "--over", "ctx-size"), "is not FLAG=VALUES"),
        (("sweep", "a", "--over", "ctx-sise=1,2"), "did you mean ctx-size?"),
        (("sweep", "a", "--over", "c=512,1024", "--set", "ctx-size=8"), "is swept"),
        (("sweep", "synthetic", "--over", "draft-max=1..4"), "--set spec-synth-len=2.5"),
        (("ab", "a", "--set", "host=0.0.0.0"), "host is a field of the profile"),
        (("ab", "a", "--set", "port=1"), "port is a field of the profile"),
        (("ab", "a", "--set", "api-key=abc"), "api-key is a secret"),
        (("ab", "a", "b", "--starts", "999998"), "A run has at most 20,000 items"),
        (("ab", "a", "b", "--context", "9" * 20), "context-tokens must be at most"),
        (("ab", "http://127.0.0.1:9", "http://127.0.0.1:99999"), "is not the address of a server"),
        (("sweep", "a", "--over", "host=0.0.0.0"), "host is a field of the profile"),
        (("sweep", "a", "--over", "ctx-size=1..5:-2"), "is not a range"),
        (("sweep", "a", "--over", "ctx-size=0.5..1.5:0.5"), "is not a range"),
        (("sweep", "a", "--over", f"ctx-size={'9' * 20}..{'9' * 20}"), "out of range for any flag"),
        (("sweep", "a", *(f"--over={flag}=1..199" for flag in ("c", "t", "b"))), "7,880,599 cells"),
        (("sweep", "a", "--over", "c=512,1024", "--starts", "999999"), "A run has at most 20,000 items"),
        (("soak", "a", "--minutes", "nan"), "minutes must be a number, not nan"),
        (("soak", "a", "--minutes", "inf"), "minutes must be at most"),
        (("soak", "a", "--minutes", "1e6"), "A run has at most 20,000 items"),
        (("soak", "a", "--window", "1e-300"), "A run has at most 20,000 items"),
        (("soak", "a", "--minutes", "0"), "--minutes"),
        (("resume", "--restore"), "No interrupted run has a server to restore."),
    ],
)
def test_what_cannot_be_is_said(
    box: int, capfd: pytest.CaptureFixture[str], words: tuple[str, ...], message: str
) -> None:
    code, out, err = gpubox(capfd, "bench", *words)

    assert (code, message in err) == (2, True), err
    assert out == ""


def killed(paths: Paths, *, applied_argv: tuple[str, ...]) -> str:
    """The id of a run that was killed while b ran; a ran before it."""
    before = observe(paths, MAIN_INSTANCE).state.last_good
    run = create_run(paths, Plan("speed", (Target("b", "b"),), {"preset": "quick"}), [])
    run.save(replace(run.info, state="running", previous=before, restore_pending=True, applied_argv=applied_argv))
    return run.id


@pytest.mark.parametrize("between", [False, True])
def test_restore_after_a_killed_run(box: int, capfd: pytest.CaptureFixture[str], paths: Paths, between: bool) -> None:
    assert gpubox(capfd, "start", "a")[0] == 0
    name = killed(paths, applied_argv=SWITCHING)
    assert gpubox(capfd, "switch", "b")[0] == 0
    view = observe(paths, MAIN_INSTANCE)
    assert view.running
    run = find_run(paths, name)
    if not between:
        run.save(replace(run.info, applied_argv=view.running.launch.argv))

    code, out, err = gpubox(capfd, "bench", "resume", "--restore", "--json")

    assert code == 0, err
    outcome = json.loads(out)
    assert (outcome["run"], outcome["profile"]) == (name, "a")
    assert running(capfd) == "a"
    assert not find_run(paths, name).info.restore_pending


def test_the_next_run_restores_what_a_killed_one_left(
    box: int, capfd: pytest.CaptureFixture[str], paths: Paths
) -> None:
    assert gpubox(capfd, "start", "a")[0] == 0
    name = killed(paths, applied_argv=SWITCHING)
    assert gpubox(capfd, "switch", "b")[0] == 0

    code, _, err = gpubox(capfd, "bench", "ab", "b", "--vary", "thinking", "--domains", "code", *TINY)

    assert code == 0, err
    assert running(capfd) == "a"
    assert not find_run(paths, name).info.restore_pending


@pytest.mark.parametrize(("applied_argv", "chosen"), [(("something", "else"), "b"), (SWITCHING, "synthetic")])
def test_a_server_that_the_owner_chose_since_stays(
    box: int, capfd: pytest.CaptureFixture[str], paths: Paths, applied_argv: tuple[str, ...], chosen: str
) -> None:
    assert gpubox(capfd, "start", "a")[0] == 0
    killed(paths, applied_argv=applied_argv)
    assert gpubox(capfd, "switch", chosen)[0] == 0

    with BenchServer() as server:
        quick = ("--prompts", "short", "--depths", "0", "--repeats", "1", "--max-tokens", "4")
        assert gpubox(capfd, "bench", "speed", "--url", server.url, *quick)[0] == 0

    assert running(capfd) == chosen
    assert gpubox(capfd, "bench", "resume", "--restore")[0] == 2
