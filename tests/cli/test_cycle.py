"""Start, status, switch and stop with a fake engine. The API key is never printed."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from gpubox.cli.main import run
from gpubox.hardware.process import find_by_marker
from gpubox.paths import Paths
from tests.cli.verbs import values

Write = Callable[[str, str], Path]


@pytest.fixture(autouse=True)
def _more_profiles(box: int, tiny_gguf: Path, write_profile: Write) -> None:
    """One for the LAN, and one that the engine refuses."""
    for name, more in (("lan", 'host = "0.0.0.0"'), ("bad", "[flags]\nnope = 1")):
        write_profile(name, f'model = "{tiny_gguf}"\nport = {box}\n{more}\n')


def test_start_look_switch_stop(
    box: int, paths: Paths, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    code, started = values(capfd, "start", "a")
    assert (code, started["ok"], started["answering"], started["exit_code"]) == (0, True, "a", 0)

    code, status = values(capfd, "status")
    server = status["server"]
    assert (code, server["state"], server["profile"], server["exposed"]) == (0, "ready", "a", None)
    assert server["base_url"] == f"http://127.0.0.1:{box}"
    assert status["throughput"]["context_size_tokens"] == 4096
    assert [row["running"] for row in values(capfd, "ls")[1]["profiles"] if row["name"] == "a"] == [True]

    code, ps = values(capfd, "status", "--all")
    assert (code, [row["profile"] for row in ps["servers"]]) == (0, ["a"])
    assert run(["status"]) == 0
    assert re.search(r"pid +\d+  since (\S+ )?\d\d:\d\d, \d+ s\n", capfd.readouterr().out)
    assert run(["logs"]) == 0
    assert f"listening on http://127.0.0.1:{box}" in capfd.readouterr().out

    code, refused = values(capfd, "switch", "bad")
    assert (code, refused["ok"], refused["answering"]) == (2, False, "a")
    assert "nope" in refused["error"]
    with monkeypatch.context() as patched:
        patched.setattr("gpubox.cli.operations.ensure_model", pytest.fail)  # it would download first
        assert values(capfd, "start", "b")[1]["error"] == "a is running."
    assert values(capfd, "status")[1]["server"]["pid"] == server["pid"]

    code, switched = values(capfd, "switch", "b")
    assert (code, switched["answering"]) == (0, "b")
    (survivor,) = find_by_marker(f"{paths.state}|")
    assert survivor[0].pid == values(capfd, "status")[1]["server"]["pid"] != server["pid"]

    code, stopped = values(capfd, "stop")
    assert (code, stopped["answering"]) == (0, None)
    assert find_by_marker(f"{paths.state}|") == []
    assert values(capfd, "status")[1]["server"]["message"] == "b was stopped."


def test_an_open_server_needs_a_key_or_a_word(capfd: pytest.CaptureFixture[str]) -> None:
    code, refused = values(capfd, "start", "lan")
    assert code == 2
    assert "without an API key" in refused["error"]

    assert values(capfd, "start", "lan", "--yes")[0] == 0
    assert values(capfd, "status")[1]["server"]["exposed"] == "LAN, no key"


def test_the_key_is_in_no_output_no_file_and_no_command_line(paths: Paths, capfd: pytest.CaptureFixture[str]) -> None:
    paths.api_key_file.write_text("sesame-open\n")
    paths.api_key_file.chmod(0o600)
    texts: list[str] = []
    for words in (
        ["start", "lan"],
        ["status"],
        ["status", "--all"],
        ["ls"],
        ["show", "lan"],
        ["doctor"],
        ["switch", "b"],
        ["switch", "lan"],
    ):
        for more in ([], ["--json"]):
            assert run([*words, *more]) == 0, words
    run(["logs"])
    texts += capfd.readouterr()
    (server,) = find_by_marker(f"{paths.state}|")
    texts.append(Path(f"/proc/{server[0].pid}/cmdline").read_text())
    texts.append(server[1])
    assert b"LLAMA_API_KEY=sesame-open" in Path(f"/proc/{server[0].pid}/environ").read_bytes()
    for folder in (paths.state, paths.cache):
        texts += [file.read_text(errors="replace") for file in folder.rglob("*") if file.is_file()]

    assert not [text for text in texts if "sesame-open" in text]
    assert values(capfd, "status")[1]["server"]["exposed"] == "LAN, key"
    paths.api_key_file.unlink()
    status = values(capfd, "status")[1]["server"]
    assert (status["state"], status["exposed"]) == ("ready", "LAN, key")
    assert "needs an API key" in status["message"]
    assert run(["stop"]) == 0


def test_stop_all_is_one_json_object(capfd: pytest.CaptureFixture[str]) -> None:
    assert values(capfd, "start", "a")[0] == values(capfd, "start", "beside")[0] == 0

    code, stopped = values(capfd, "stop", "--all")

    assert (code, stopped["ok"], stopped["exit_code"]) == (0, True, 0)
    assert [(r["ok"], r["operation"], r["profile"]) for r in stopped["results"]] == [
        (True, "stop", "beside"), (True, "stop", "a"),
    ]  # fmt: skip


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_an_interrupt_while_it_waits_is_one_json_object_and_130(
    number: int, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("FAKE_BUSY", "1")
    assert values(capfd, "start", "a")[0] == 0
    command = [sys.executable, "-m", "gpubox", "switch", "b", "--json"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as switch:
        assert switch.stderr is not None
        line = ""
        while "is busy" not in line:
            line = switch.stderr.readline()
            assert line
        switch.send_signal(number)
        out, err = switch.communicate(timeout=60)

    assert switch.returncode == 130
    assert err == "gpubox: interrupted\n"
    said = json.loads(out)
    assert (said["ok"], said["error"], said["exit_code"]) == (False, "interrupted", 130)
    assert said["answering"] == "a"
