"""An engine gets its owner's environment, whoever starts it: a verb, the gateway, the screen, the watcher."""

from __future__ import annotations

import ast
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import gpubox as package
from gpubox.children import own_program
from gpubox.config import load_config
from gpubox.engines.find import EMBEDDED_COMMAND
from gpubox.hardware.process import MARKER_VARIABLE, find_by_marker
from gpubox.paths import Paths
from gpubox.server.instance import observe
from gpubox.server.state import pending_trial
from gpubox.storage import lock_holder
from gpubox.tui.bench.bench_runs import BenchRuns
from tests.cli.test_trial import CHILD
from tests.cli.verbs import gpubox
from tests.conftest import until
from tests.ports import free_port
from tests.raw_http import ask

ROOT = Path(package.__file__).parent
QUICK = ("--prompts", "short", "--depths", "0", "--prefix", "warm", "--repeats", "1", "--max-tokens", "8")
TUNE = ("--over", "threads=1,2", "--minutes", "0.05", "--context", "0", "--prompts", "1", "--max-tokens", "8")
OWNERS = {"PYTHONPATH": "/the/owners/own", "OWNERS_WORD": "a b"}
FOR_GPUBOX = {"GPUBOX_URL_KEY": "a-secret", "GPUBOX_WATCHER": "0", "GPUBOX_API_KEY": "box-key"}
ADDED = {"LLAMA_API_KEY": "box-key", "PROFILES_WORD": "1"}
"""What gpubox documents for a server: the box's key, and the profile's [env]; and its marker."""
SHELLS = ("PWD", "OLDPWD", "SHLVL", "_", "PYTEST_CURRENT_TEST", "COLUMNS", "LINES", "KMP_BLOCKTIME")
"""They differ by themselves: a dry run has a shell in between, pytest says what it does, and in the tests' process
readline and llama.cpp (ggml-cpu.c) set some that ``os.environ`` does not show."""


class Witness:
    """The environments in which the engine was called, as the kernel knows them."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def check(self, servers: int) -> None:
        """All calls since the last check had the owner's variables; so many of them, or more, were servers."""
        owners = {name: value for name, value in os.environ.items() if not name.startswith("GPUBOX_")}
        count = 0
        for file in self.folder.iterdir():
            words = [word for word in file.read_bytes().decode().split("\0") if word]
            env = dict(word.split("=", 1) for word in words)
            if env.pop(MARKER_VARIABLE, ""):
                count += 1
                assert {name: env.pop(name, "") for name in ADDED} == ADDED
            for name in (*SHELLS, "PROFILES_WORD"):
                env.pop(name, None)
            assert env == {name: value for name, value in owners.items() if name not in SHELLS}
            file.unlink()
        assert count >= servers


@pytest.fixture
def witness(box: int, paths: Paths, fake_engine: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Witness:
    """The engine is a script that writes down its environment; its owner has variables of his own, and for gpubox."""
    folder = tmp_path / "calls"
    folder.mkdir()
    first = f"cat /proc/$$/environ >'{folder}'/$$; case \"$*\" in *--log-jsonl*) exit 1 ;; esac"  # a dry run's flag
    fake_engine.write_text(fake_engine.read_text().replace("\n", f"\n{first}\n", 1))
    for name in ("a", "b"):
        profile = paths.profiles / f"{name}.toml"
        profile.write_text(f'{profile.read_text()}[env]\nPROFILES_WORD = "1"\n')
    for name, value in {**OWNERS, **FOR_GPUBOX}.items():
        monkeypatch.setenv(name, value)
    return Witness(folder)


def test_of_a_verb(witness: Witness, capfd: pytest.CaptureFixture[str]) -> None:
    gpubox(capfd, "fit", "a")  # a dry run
    for words in (("start", "a"), ("switch", "b"), ("try", "a", "--set", "ctx-size=512", "--revert", "--no-measure")):
        assert gpubox(capfd, *words)[0] == 0
    witness.check(servers=4)


def test_of_a_benchmark(witness: Witness, capfd: pytest.CaptureFixture[str]) -> None:
    assert gpubox(capfd, "bench", "speed", "a", *QUICK)[0] == 0
    assert gpubox(capfd, "tune", "a", *TUNE)[0] in (0, 1)  # three seconds are short
    witness.check(servers=2)


async def test_of_the_screens_benchmark(witness: Witness, paths: Paths) -> None:
    await BenchRuns(paths, load_config(paths)).run(["speed", "a", *QUICK], now=False)
    witness.check(servers=1)


def test_of_the_gateway(witness: Witness, capfd: pytest.CaptureFixture[str], paths: Paths) -> None:
    port = free_port()
    assert gpubox(capfd, "serve", "--detach", "--port", str(port))[0] == 0
    try:
        for name in ("a", "b"):
            body: dict[str, object] = {"model": name, "messages": [], "max_tokens": 1}
            assert ask(port, "/v1/chat/completions", body, headers={"Authorization": "Bearer box-key"}).status == 200
        assert ask(port, "/metrics", headers={"Authorization": "Bearer box-key"}).status == 200
    finally:
        assert gpubox(capfd, "serve", "--stop")[0] == 0
    witness.check(servers=2)


def test_of_the_watchers_restart_and_of_the_trials_guard(
    witness: Witness, capfd: pytest.CaptureFixture[str], paths: Paths, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GPUBOX_WATCHER", "1")
    profile = paths.profiles / "a.toml"
    profile.write_text("restart = true\n" + profile.read_text())
    assert gpubox(capfd, "start", "a")[0] == 0
    try:
        until(lambda: lock_holder(paths.watcher_lock("main")))
        ((server, _),) = find_by_marker(f"{paths.state}|main|")
        os.kill(server.pid, signal.SIGKILL)

        def answers() -> bool:
            running = observe(paths, "main").running
            return bool(running and running.process != server and running.ready_at)

        until(answers)
        witness.check(servers=2)
        child = subprocess.run([sys.executable, "-c", CHILD, "running"], cwd=ROOT.parent, check=False)
        assert child.returncode == -signal.SIGKILL
        until(lambda: pending_trial(paths) is None)
        witness.check(servers=2)
    finally:
        assert gpubox(capfd, "stop")[0] == 0  # else the watcher would start it again


def test_a_program_of_gpubox_runs_in_any_folder_and_takes_nothing_from_there(tmp_path: Path) -> None:
    for name in ("gpubox", "json", "click"):  # left by a model's program
        (tmp_path / f"{name}.py").write_text("raise SystemExit('planted')")
    for words in (own_program("gpubox.cli.entry", "--version"), [*EMBEDDED_COMMAND, "--version"]):
        done = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, check=False)
        assert "planted" not in done.stderr
        assert done.returncode == 0, done.stderr


def test_gpubox_changes_no_environment_and_takes_no_module_from_the_current_folder() -> None:
    """A variable set in this process, or for a child of gpubox's own, would be in every engine that it starts."""
    guilty = []
    for path in ROOT.rglob("*.py"):
        source = path.read_text()
        for node in ast.walk(ast.parse(source)) if "environ" in source or "sys.executable" in source else ():
            text = ast.unparse(node) if isinstance(node, ast.Call | ast.Assign | ast.List | ast.Tuple) else ""
            sets = text.startswith(("os.environ[", "os.environ.setdefault(", "os.environ.update(", "os.environ.pop("))
            if sets or text.startswith(("[sys.executable, '-m'", "(sys.executable, '-m'")):
                guilty.append(f"{path.relative_to(ROOT)}: {text}")
    assert sorted(guilty) == [
        "cli/commands/completion.py: os.environ.pop(name)",  # a shell asks what can follow: nothing is started
        "engines/embedded_flags.py: os.environ['NO_COLOR'] = '1'",  # an engine itself
        "gateway/background.py: os.environ.pop(name, '')",  # systemd's own, which no child may inherit
        "sandbox/boot.py: os.environ['PYTHONPATH'] = CONFIG['work']",  # in the sandbox
    ]
