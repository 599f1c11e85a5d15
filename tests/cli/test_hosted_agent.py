"""gpubox chat --agent: an agent in real walls, whose only way out is a real gateway."""

from __future__ import annotations

import io
import json
import sys
from collections.abc import Iterator
from datetime import date
from pathlib import Path
from typing import Any

import pytest

from gpubox.agent.tools import Answer, OwnerQuestion
from gpubox.cli.chat_turn import ApprovalPrompt
from gpubox.gateway.ledger import Ledger
from gpubox.paths import Paths
from tests import acp_agent_faults
from tests.cli.verbs import gpubox, may_mount, values
from tests.gateway_process import Gateway, paced_server, upstream_profile


@pytest.fixture
def robot(paths: Paths, tmp_path: Path) -> Path:
    """Installs the scripted agent, and returns a project."""
    text = Path(acp_agent_faults.__file__).with_name("acp_agent.py").read_text()
    program = tmp_path / "bin/robot"
    program.parent.mkdir()
    program.write_text(f"#!{sys.executable}\n{text}")
    program.chmod(0o755)
    paths.config.mkdir(parents=True, exist_ok=True)
    command = json.dumps([str(program), "", "/agent/state.json"])
    paths.config_file.write_text(
        f'[agents.robot]\ncommand = {command}\ntitle = "Robot"\nlaunch = "qwen"\nenv = {{ ROBOT_MODEL = "paced" }}\n'
    )
    project = tmp_path / "project"
    project.mkdir()
    (project / "calc.py").write_text("def add(a, b):\n    return a - b\n")
    return project


@pytest.fixture
def gateway(robot: Path, paths: Paths) -> Iterator[Gateway]:
    with paced_server() as (port, _):
        upstream_profile(paths.config, "paced", port)
        running = Gateway()
        try:
            yield running
        finally:
            running.stop()


def ask(capfd: pytest.CaptureFixture[str], *words: str) -> tuple[int, list[dict[str, Any]], str]:
    code, out, err = gpubox(capfd, "chat", "--json", *words)
    return code, [json.loads(line) for line in out.splitlines()], err


@pytest.mark.skipif(not may_mount(), reason="bubblewrap cannot mount here")
def test_a_hosted_agent_edits_and_asks_its_model(
    robot: Path, gateway: Gateway, paths: Paths, capfd: pytest.CaptureFixture[str]
) -> None:
    code, events, err = ask(capfd, "-p", "read, edit, run and model", "--agent", "robot", "--workdir", str(robot))
    assert code == 0, (events[-2:], err)
    last = next(event for event in events if event["event"] == "turn_finished")
    assert last["text"] == "[no]200 in /workspace, home /agent. Done."
    changed = next(event["files"] for event in events if event["event"] == "files_changed")
    assert [file["path"] for file in changed] == ["calc.py"]
    asked = next(event["question"] for event in events if event["event"] == "question_asked")
    assert asked["kind"] == "permission"
    assert last["totals"]["rounds"] == 1
    assert [line.client for line in Ledger(paths.ledger).requests(date.today())] == ["hosted-robot"]
    name = events[0]["chat"]
    code, events, _ = ask(capfd, "-p", "recall", "--continue", name)
    assert "read, edit, run and model << recall" in events[-1]["text"]


def test_without_a_gateway_or_of_an_unknown_name_nothing_is_recorded(
    robot: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    code, events, _ = ask(capfd, "-p", "x", "--agent", "robot", "--workdir", str(robot))
    assert code == 3
    assert "gateway" in events[-1]["error"]
    assert "gpubox serve --detach" in events[-1]["hint"]
    code, events, _ = ask(capfd, "-p", "x", "--agent", "robto")
    assert code == 2
    assert "robot" in events[-1]["hint"]
    assert values(capfd, "chat", "ls")[1]["chats"] == []


TYPED = {"2": Answer(True, "Always"), "y": Answer(True), "n": Answer(False, "n"), "3": Answer(False, "3")}


@pytest.mark.parametrize(("typed", "answer"), TYPED.items())
async def test_a_permission_is_answered_by_a_number(
    typed: str, answer: Answer, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO(f"{typed}\n"))
    prompt = ApprovalPrompt(True)
    prompt.call_shown.set()
    assert await prompt(OwnerQuestion("permission", "May it do this? \x1b[2Jrm", ("Allow", "Always"))) == answer
    said = capfd.readouterr().err
    assert "1  Allow" in said
    assert "\x1b" not in said


def test_the_agents_there_are(robot: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    agents = {agent["name"]: agent for agent in values(capfd, "chat", "agents")[1]["agents"]}
    assert agents["opencode"]["program"] is None
    assert agents["robot"]["program"].endswith("bin/robot")
