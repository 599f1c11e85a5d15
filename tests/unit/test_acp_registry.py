"""Which agents can be hosted, where they are installed, and what starts them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from gpubox.acp.registry import agent_start, known_agent, known_agents
from gpubox.config import Config, OwnAgent, load_config
from gpubox.errors import GpuboxError, UsageError
from gpubox.interchange.client_settings import ClientModel, ClientTarget
from gpubox.paths import Paths

TARGET = ClientTarget("gpubox", "http://127.0.0.1:8080", (ClientModel("coder", "Coder", 32768, 8192),), "sk-secret")


def install(folder: Path, name: str, text: str = "#!/bin/sh\n") -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / name).write_text(text)
    (folder / name).chmod(0o755)
    return folder / name


@pytest.mark.parametrize("name", known_agents(Config()))
def test_every_agent_is_pointed_at_the_gateway(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    agent = known_agent(Config(), name)
    install(tmp_path / "bin", agent.command[0])
    monkeypatch.setenv("PATH", f"{tmp_path}/bin:/usr/bin")
    start = agent_start(agent, TARGET, "/agent")
    told = json.dumps([dict(start.env), dict(start.files), list(start.argv)])
    assert "http://127.0.0.1:8080" in told
    assert "coder" in told
    assert "sk-secret" in json.dumps([dict(start.env), dict(start.files)])
    assert not any("sk-secret" in word for word in start.argv)
    assert start.argv[0] == f"{tmp_path}/bin/{agent.command[0]}"
    assert "{" not in "".join(start.argv)


def test_an_agent_that_is_not_installed_says_what_installs_it(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(GpuboxError, match="opencode is not installed") as raised:
        agent_start(known_agent(Config(), "opencode"), TARGET, "/agent")
    assert "npm install -g opencode-ai" in raised.value.hint


def test_an_unknown_name_says_which_there_are() -> None:
    with pytest.raises(UsageError) as raised:
        known_agent(Config(), "opncode")
    assert "opencode" in raised.value.hint


def test_where_a_program_is_installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    prefix, node = tmp_path / "prefix", tmp_path / "node"
    script = install(prefix / "lib/node_modules/opencode-ai/node_modules/x/bin", "opencode", "#!/usr/bin/env node\n")
    (prefix / "bin").mkdir()
    (prefix / "bin/opencode").symlink_to(script)
    install(node / "bin", "node", "\x7fELF")
    (node / "lib/node_modules").mkdir(parents=True)
    monkeypatch.setenv("PATH", f"{prefix}/bin:{node}/bin")
    start = agent_start(known_agent(Config(), "opencode"), TARGET, "/agent")
    assert prefix / "lib/node_modules" in start.folders
    assert node in start.folders
    assert prefix not in start.folders
    assert str(node / "bin") in start.env["PATH"].split(":")


def test_a_single_file_and_a_venv(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    install(tmp_path / "bin", "goose", "\x7fELF")
    monkeypatch.setenv("PATH", f"{tmp_path}/bin:{tmp_path}/venv/bin")
    assert tmp_path / "bin/goose" in agent_start(known_agent(Config(), "goose"), TARGET, "/agent").folders
    python = install(tmp_path / "venv/bin", "python", "\x7fELF")
    (tmp_path / "venv/pyvenv.cfg").write_text("")
    install(tmp_path / "venv/bin", "vibe", f"#!{python}\n")
    own = Config(agents={"vibe": OwnAgent(command=("vibe", "--acp"))})
    assert tmp_path / "venv" in agent_start(known_agent(own, "vibe"), TARGET, "/agent").folders


def test_the_owner_adds_an_agent_and_a_host(paths: Paths) -> None:
    paths.config_file.parent.mkdir(parents=True, exist_ok=True)
    paths.config_file.write_text(
        '[agents.mine]\ncommand = ["mine", "acp"]\ntitle = "Mine"\n'
        '[agents.opencode]\nhosts = ["example.org"]\nenv = { OPENCODE_X = "1" }\n'
    )
    agents = known_agents(load_config(paths))
    assert agents["mine"].title == "Mine"
    assert agents["opencode"].hosts == ("example.org",)
    assert agents["opencode"].command == ("opencode", "acp")
    assert agents["opencode"].env == {"OPENCODE_X": "1"}
    paths.config_file.write_text('[agents."a b"]\n')
    with pytest.raises(UsageError, match="needs a name"):
        load_config(paths)
