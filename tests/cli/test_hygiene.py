"""What a verb imports, and how it behaves in a pipe."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from gpubox.cli.main import run
from gpubox.paths import Paths
from tests.conftest import until

IMPORTED = """
import json, sys
from gpubox.cli.main import run
run({words!r})
sys.stderr.write("MODULES" + json.dumps(sorted(name.partition(".")[0] for name in sys.modules)))
"""


def imported(*words: str) -> set[str]:
    script = IMPORTED.format(words=list(words))
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=True)
    return set(json.loads(done.stderr.rpartition("MODULES")[2]))


@pytest.fixture(autouse=True)
def engine(paths: Paths, fake_engine: Path) -> None:
    paths.config.mkdir(parents=True)
    paths.config_file.write_text(f'default-engine = "fake"\n[engines]\nfake = "{fake_engine}"\n')


@pytest.mark.parametrize(
    "words", [("ls",), ("show", "demo"), ("logs",), ("doctor",), ("engines",), ("--help",), ("bench", "ls")]
)
def test_verbs_without_http_import_no_http_and_no_screen(words: tuple[str, ...]) -> None:
    heavy = {"textual", "rich", "httpx", "aiohttp", "xllamacpp", "yaml"}

    assert imported(*words) & heavy == set()


@pytest.mark.parametrize("words", [("status",), ("status", "--all"), ("stop",)])
def test_verbs_with_http_import_no_screen(words: tuple[str, ...]) -> None:
    assert imported(*words) & {"textual", "rich", "pygments", "xllamacpp", "yaml"} == set()


POLLED = """
import json, sys
from gpubox.cli.entry import main
sys.argv = ["gpubox", "status", "--json"]
try:
    main()
finally:
    sys.stderr.write("MODULES" + json.dumps(sorted(sys.modules)))
"""


def polled() -> tuple[dict[str, Any], set[str]]:
    """The output of `gpubox status --json`, and the modules it imports."""
    done = subprocess.run([sys.executable, "-c", POLLED], capture_output=True, text=True, timeout=60)
    return json.loads(done.stdout), set(json.loads(done.stderr.rpartition("MODULES")[2]))


def test_what_is_polled_imports_only_what_it_needs(box: int) -> None:
    """Each of these modules would take a tenth of its time or more."""
    never = {"click", "textual", "httpx", "psutil", "platformdirs", "msgspec", "yaml", "pynvml"}
    never |= {"shutil", "tempfile", "email.message", "gpubox.engines.capabilities", "gpubox.server.supervisor"}
    stopped, modules = polled()
    assert modules & never - {"pynvml"} == set()
    assert {name for name in modules if name.startswith("http")} == set()

    assert run(["start", "a"]) == 0
    running, modules = polled()
    assert (stopped["server"]["state"], running["server"]["state"]) == ("stopped", "ready")
    assert modules & never - {"pynvml", "email.message"} == set()


def test_status_says_the_same_on_its_short_way(paths: Paths, capsys: pytest.CaptureFixture[str]) -> None:
    short, _ = polled()
    assert run(["status", "--json"]) == 3
    through_click = json.loads(capsys.readouterr().out)

    assert short.keys() == through_click.keys()
    assert (short["server"], short["offload"], short["totals"]) == (
        through_click["server"],
        through_click["offload"],
        through_click["totals"],
    )


def run_gpubox(*words: str, **more: object) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "gpubox", *words]
    return subprocess.Popen(command, stderr=subprocess.PIPE, **more)  # type: ignore[call-overload,no-any-return]


def test_a_reader_that_left_is_no_failure() -> None:
    reader, writer = os.pipe()
    os.close(reader)
    with run_gpubox("ls", stdout=writer) as process:
        os.close(writer)
        _, err = process.communicate(timeout=60)

    assert (process.returncode, err) == (0, b"")


def test_a_full_disk_is_one_sentence() -> None:
    for words in (("ls",), ("chat", "ls", "--json"), ("chat", "show", "x", "--json")):
        with Path("/dev/full").open("wb") as full, run_gpubox(*words, stdout=full) as process:
            _, err = process.communicate(timeout=60)
        message = "There is no chat x." if "x" in words else "The output cannot be written: No space left on device."
        assert err.decode().splitlines()[0] == f"gpubox: {message}"
        assert b"Traceback" not in err and process.returncode == (2 if "x" in words else 1)


def test_closed_streams_are_empty_ones(paths: Paths) -> None:
    command = f"{shlex.quote(sys.executable)} -m gpubox chat -p - <&-"
    with subprocess.Popen(["sh", "-c", command], stderr=subprocess.PIPE) as process:
        _, err = process.communicate(timeout=60)
    assert process.returncode == 2 and b"The prompt is empty." in err


def test_a_terminal_without_unicode_still_lists() -> None:
    env = {**os.environ, "LC_ALL": "C", "PYTHONIOENCODING": "ascii", "PYTHONUTF8": "0"}
    with run_gpubox("ls", stdout=subprocess.PIPE, env=env) as process:
        out, err = process.communicate(timeout=60)

    assert process.returncode == 0, err
    assert b"demo" in out


def test_an_interrupted_follow_exits_130(paths: Paths) -> None:
    paths.logs.mkdir(parents=True)
    paths.instance_log("main").write_text("one\n")
    with run_gpubox("logs", "-f", stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"one\n"
        process.send_signal(2)
        _, err = process.communicate(timeout=60)

    assert process.returncode == 130
    assert b"Traceback" not in err


def test_ctrl_c_again_and_again_is_still_130(paths: Paths) -> None:
    paths.logs.mkdir(parents=True)
    paths.instance_log("main").write_text("one\n")
    with run_gpubox("logs", "-f", stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"one\n"

        def has_ended_after_ctrl_c() -> bool:
            process.send_signal(2)
            return process.poll() is not None

        until(has_ended_after_ctrl_c)
        _, err = process.communicate(timeout=60)

    assert (process.returncode, err.strip()) == (130, b"gpubox: interrupted")


def test_a_follow_as_json_is_one_object_a_line(paths: Paths) -> None:
    paths.logs.mkdir(parents=True)
    paths.instance_log("main").write_text("0.00.500.000 I one\n")
    with run_gpubox("logs", "-f", "--json", stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        first = json.loads(process.stdout.readline())
        with paths.instance_log("main").open("a") as log:
            log.write("two\n")
        second = json.loads(process.stdout.readline())
        process.send_signal(15)
        rest, err = process.communicate(timeout=60)

    assert first == {"schema_version": 1, "text": "one", "seconds": 0.5, "level": "I"}
    assert second == {"schema_version": 1, "text": "two", "seconds": None, "level": None}
    assert (process.returncode, rest, err.strip()) == (130, b"", b"gpubox: interrupted")


def test_python_m_gpubox_and_the_script_are_the_same() -> None:
    with run_gpubox("--version", stdout=subprocess.PIPE) as process:
        out, _ = process.communicate(timeout=60)

    assert (process.returncode, out[:7]) == (0, b"gpubox,")
