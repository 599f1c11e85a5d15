"""``gpubox chat run``."""

from __future__ import annotations

import asyncio
import json
import tempfile
from pathlib import Path

import pytest

from gpubox.cli.main import run
from gpubox.config import Config
from gpubox.sandbox import bubblewrap, landlock, runner
from gpubox.sandbox.policy import Confinement
from tests.guards import needs_open_python


@pytest.fixture
def confined() -> None:
    confinement = asyncio.run(runner.probe(Config()))
    if confinement.isolation is None:
        pytest.skip(confinement.problem)


def program(folder: Path, text: str) -> str:
    path = folder / "p.py"
    path.write_text(text)
    return str(path)


@pytest.mark.usefixtures("confined")
def test_the_program_speaks_on_stdout_and_how_it_ended_on_stderr(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "w"
    folder.mkdir()

    code = run(["chat", "run", program(tmp_path, "print('hi'); open('f', 'w')"), "--workdir", str(folder)])

    out, err = capfd.readouterr()
    assert (code, out) == (0, "hi\n")
    assert err.startswith(f"files changed: f\n{folder} itself is unchanged.\nexit 0, ")
    assert err.endswith(" ms, bubblewrap\n")
    assert list(folder.iterdir()) == []


@pytest.mark.usefixtures("confined")
def test_what_a_program_changes_is_named_and_thrown_away(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    folder, place = tmp_path / "w", Path(tempfile.gettempdir())
    (folder / "old").mkdir(parents=True)
    for name in ("old/x", "gone", "kept"):
        (folder / name).write_text("1")
    text = "import os, shutil; os.remove('gone'); shutil.rmtree('old'); open('kept', 'a').write('2'); os.mkdir('.git')"
    before = set(place.glob("gpubox-run-*"))

    assert run(["chat", "run", program(tmp_path, text), "--workdir", str(folder), "--json"]) == 0

    names = json.loads(capfd.readouterr().out)["files_changed"]
    assert {name.partition(" ")[0].rstrip("/") for name in names} >= {"gone", "kept"}
    assert (folder / "kept").read_text() == (folder / "old/x").read_text() == (folder / "gone").read_text() == "1"
    assert not (folder / ".git").exists()
    assert set(place.glob("gpubox-run-*")) <= before


@pytest.mark.usefixtures("confined")
@pytest.mark.parametrize(
    ("text", "words", "message"),
    [
        ("raise SystemExit(3)", [], "exit 3, "),
        ("while True: pass", ["--seconds", "0.3"], "SIGKILL: time: longer than 0.3 s"),
    ],
)
def test_a_program_that_fails_is_6(
    text: str, words: list[str], message: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    assert run(["chat", "run", program(tmp_path, text), *words]) == 6
    assert message in capfd.readouterr().err


@pytest.mark.usefixtures("confined")
def test_json_is_the_whole_outcome(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert run(["chat", "run", program(tmp_path, "1/0"), "--json"]) == 6

    values = json.loads(capfd.readouterr().out)
    assert values["output"].endswith("ZeroDivisionError: division by zero\n")
    del values["output"], values["seconds"]
    assert values == {
        "schema_version": 1, "ok": False, "exit_code": 1, "signal": None, "ended_by": None, "isolation": "bubblewrap",
        "files_changed": [], "dropped_bytes": 0, "why": None, "notes": [], "weakness": None,
    }  # fmt: skip


@needs_open_python
@pytest.mark.skipif(landlock.version() < 1, reason="this kernel has no Landlock")
def test_each_result_of_a_weaker_sandbox_says_what_is_weaker(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runner, "_known", {"bubblewrap": Confinement("landlock")})

    assert run(["chat", "run", program(tmp_path, "print(1)")]) == 0
    assert "weaker: it cannot keep a program from seeing the host's processes" in capfd.readouterr().err


def test_a_file_that_is_not_there_is_usage(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert run(["chat", "run", str(tmp_path / "none.py")]) == 2
    assert "none.py': No such file or directory" in capfd.readouterr().err


def test_nothing_runs_where_nothing_confines(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runner, "_known", {})
    monkeypatch.setattr(bubblewrap, "installed", lambda: [])

    assert run(["chat", "run", program(tmp_path, "print('ran')"), "--json"]) == 1

    out, err = capfd.readouterr()
    assert "ran" not in out
    assert json.loads(out)["error"] == "Code cannot be run here: bubblewrap is not installed."
    assert "apt install bubblewrap" in err
