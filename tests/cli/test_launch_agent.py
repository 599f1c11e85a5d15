"""gpubox launch: an agent in the place of gpubox, at the gateway, known by name; nothing of its owner changes."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from datetime import date
from pathlib import Path
from typing import Any

import pytest

from gpubox.gateway.client_keys import ClientKeys
from gpubox.gateway.ledger import Ledger
from gpubox.paths import Paths
from tests.cli.verbs import gpubox, values
from tests.conftest import until
from tests.gateway_process import Gateway, paced_server, upstream_profile
from tests.ports import free_port

AGENT = """#!{python}
import json, os, sys, urllib.request
settings = json.loads(os.environ["OPENCODE_CONFIG_CONTENT"])
options = settings["provider"]["gpubox"]["options"]
body = dict(model=settings["model"].partition("/")[2], messages=[], max_tokens=2, pace=1000)
headers = {{"Authorization": "Bearer " + options["apiKey"], "Content-Type": "application/json"}}
request = urllib.request.Request(options["baseURL"] + "/chat/completions", json.dumps(body).encode(), headers)
status = urllib.request.urlopen(request, timeout=60).status
print(json.dumps(dict(argv=sys.argv[1:], cwd=os.getcwd(), pid=os.getpid(), mine=os.environ.get("MINE"), status=status)))
sys.exit(7)
"""

SIGNALS = """#!/bin/sh
while read -r name value; do
    case $name in SigIgn:) echo "{\\"ignored\\": \\"$value\\"}" ;; esac
done < /proc/$$/status
"""


@pytest.fixture
def programs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder that is all of PATH."""
    folder = tmp_path / "programs"
    folder.mkdir()
    monkeypatch.setenv("PATH", str(folder))
    return folder


@pytest.fixture
def opencode(programs: Path) -> Path:
    """An agent that asks the gateway once, prints what it was given and exits with 7."""
    program = programs / "opencode"
    program.write_text(AGENT.format(python=sys.executable))
    program.chmod(0o755)
    return program


@pytest.fixture
def upstream(paths: Paths) -> Iterator[None]:
    with paced_server() as (port, _):
        upstream_profile(paths.config, "paced", port)
        yield


@pytest.fixture
def gateway(upstream: None) -> Iterator[Gateway]:
    running = Gateway()
    try:
        yield running
    finally:
        running.stop()


def start(*words: str, cwd: Path) -> tuple[int, dict[str, Any], str, int]:
    """Exit code, what the agent printed, what gpubox said, and the pid of gpubox."""
    process = subprocess.Popen(
        [sys.executable, "-m", "gpubox", "launch", *words], cwd=cwd, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
        stderr=subprocess.PIPE, text=True, env={**os.environ, "MINE": "stays"},
    )  # fmt: skip
    out, err = process.communicate(timeout=120)
    return process.returncode, json.loads(out or "{}"), err, process.pid


def test_the_agent_takes_the_place_of_gpubox_and_has_a_name(
    opencode: Path, gateway: Gateway, paths: Paths, tmp_path: Path
) -> None:
    project = tmp_path / "project"
    project.mkdir()
    words = ("--model", "x", "--", "-c", "a b", "")

    code, agent, said, pid = start("opencode", "--model", "paced", "--", *words, cwd=project)

    assert (code, agent["argv"], agent["cwd"]) == (7, list(words), str(project))
    assert (agent["pid"], agent["mine"], agent["status"]) == (pid, "stays", 200)
    assert "opencode uses paced at http://127.0.0.1" in said
    until(lambda: [line.client for line in Ledger(paths.ledger).requests(date.today())] == ["opencode"])
    assert not ClientKeys(paths).any  # nobody else needs a key for it
    assert not [*project.iterdir()]

    ClientKeys(paths).add("laptop")  # now everybody does
    assert start("opencode", cwd=project)[0] == 7


def test_a_gateway_is_started_if_none_runs(
    opencode: Path, upstream: None, paths: Paths, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    with (paths.config / "config.toml").open("a") as file:
        file.write(f"\n[gateway]\nport = {free_port()}\n")
    try:
        code, agent, said, _ = start("opencode", "--model", "paced", cwd=tmp_path)
        assert (code, agent.get("status")) == (7, 200), said
        assert "one is started, and stays. `gpubox serve --stop` ends it." in said
        assert "one is started" not in start("opencode", "--model", "paced", cwd=tmp_path)[2]
    finally:
        assert gpubox(capfd, "serve", "--stop")[0] == 0


def test_its_settings_are_the_owners_alone_and_its_signals_as_usual(
    programs: Path, gateway: Gateway, paths: Paths, tmp_path: Path
) -> None:
    (programs / "claude").write_text(SIGNALS)
    (programs / "claude").chmod(0o755)

    code, printed, said, _ = start("claude", "--model", "paced", cwd=tmp_path)

    assert not int(printed["ignored"], 16) >> (signal.SIGPIPE - 1) & 1  # as a shell starts it

    file = paths.agent_settings("claude", "paced") / "settings.json"
    assert code == 0, said
    assert json.loads(file.read_text())["env"]["ANTHROPIC_MODEL"] == "paced"
    assert (file.stat().st_mode & 0o777, file.parent.stat().st_mode & 0o777) == (0o600, 0o700)


def test_what_stands_in_the_way_is_one_sentence(
    programs: Path, capfd: pytest.CaptureFixture[str], write_profile: Callable[[str, str], Path]
) -> None:
    write_profile("a", 'model = "~/x.gguf"\n')
    for words, code, sentence in (
        (("codex",), 1, "Codex is not installed: codex is not on PATH."),
        (("cline",), 2, "gpubox starts no agent 'cline'."),
        (("--model", "a"), 2, "An agent is missing."),
        (("codex", "--json"), 2, "--json is only for the list"),
        (("claude", "-p", "hi"), 2, "gpubox launch AGENT -- -p"),
    ):
        result, out, err = gpubox(capfd, "launch", *words)
        assert (result, sentence in err) == (code, True), (out, err)
    assert "npm install -g @openai/codex" in gpubox(capfd, "launch", "codex")[2]


def test_a_broken_program_and_an_unknown_model_are_said(programs: Path, gateway: Gateway, tmp_path: Path) -> None:
    (programs / "codex").write_text("#!/nowhere/at/all\n")
    (programs / "codex").chmod(0o755)
    assert "no model 'nope'" in start("codex", "--model", "nope", cwd=tmp_path)[2]
    code, _, said, _ = start("codex", "--model", "paced", cwd=tmp_path)
    assert (code, "codex cannot be started: No such file" in said) == (1, True)


def test_no_name_of_a_model_leaves_the_folder_of_settings(paths: Paths) -> None:
    folders = [paths.agent_settings("claude", name) for name in ("a", "..", ".", "../../x", "a/b", "/etc", "coder:b")]
    assert len({*folders}) == len(folders) and {folder.parent for folder in folders} == {paths.state / "launch/claude"}
    assert not {".", ".."} & {folder.name for folder in folders}


def test_the_agents_are_listed(opencode: Path, capfd: pytest.CaptureFixture[str]) -> None:
    code, listed = values(capfd, "launch")
    agents = {agent["name"]: agent for agent in listed["agents"]}
    assert (code, agents["opencode"]["program"], agents["claude"]["program"]) == (0, str(opencode), None)
    assert "missing: npm install -g @anthropic-ai/claude-code" in gpubox(capfd, "launch")[1]
