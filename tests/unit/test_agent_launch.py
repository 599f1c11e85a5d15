"""What starts an agent: everything that its settings say, and the key where no other user can list it."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path
from typing import Any

import pytest

from gpubox.errors import UsageError
from gpubox.interchange.agent_launch import LAUNCHED, AgentLaunch, agent_launch, launched_agent
from gpubox.interchange.client_settings import CLIENTS, ClientModel, ClientTarget

BASE, KEY, FOLDER = "http://127.0.0.1:8080", "gb-secret", Path("/state/launch/x")
CHAT = ClientModel("qwen", "Qwen, 16 GB", 32768, 8192)
ODD = ClientModel('it\'s "odd" $HOME {x}', "odd\\", 1024, 256)
UNKNOWN = ClientModel("qwen", "Qwen")


def started(agent: str, *models: ClientModel) -> AgentLaunch:
    return agent_launch(launched_agent(agent), ClientTarget("gpubox", BASE, models or (CHAT,), KEY), FOLDER)


def all_texts(launch: AgentLaunch) -> str:
    return "\n".join([*launch.arguments, *launch.environment.values(), *launch.files.values()])


def of_codex(launch: AgentLaunch) -> dict[str, Any]:
    """Codex's settings as it reads them from its arguments."""
    options, leaves = launch.arguments[::2], launch.arguments[1::2]
    assert set(options) == {"-c"}
    return tomllib.loads("\n".join(leaves))


@pytest.mark.parametrize("agent", LAUNCHED)
@pytest.mark.parametrize("model", [CHAT, ODD, UNKNOWN])
def test_each_agent_gets_address_and_model_and_the_key_is_no_argument(agent: str, model: ClientModel) -> None:
    launch = started(agent, model)

    texts = all_texts(launch)
    assert BASE in texts and KEY in texts
    assert model.name in texts or json.dumps(model.name)[1:-1] in texts
    assert KEY not in " ".join(launch.arguments)
    for word in ("{url}", "{model}", "{key", "{context", "{folder}", "{data}", "{settings"):
        assert word not in texts
    assert all(isinstance(value, str) and value and "None" not in value for value in launch.environment.values())
    assert not {name for name in launch.environment if name in launch.unset}
    assert not {"GPUBOX_API_KEY", "LLAMA_API_KEY"} & {*launch.environment}, "a gpubox that the agent calls reads them"
    for text in launch.files.values():
        assert "None" not in str(json.loads(text))


def test_agents_are_named_by_their_program_or_as_in_connect() -> None:
    assert set(LAUNCHED) == {"claude", "codex", "opencode", "qwen", "goose", "crush", "aider", "pi"}
    assert {agent.client for agent in LAUNCHED.values()} <= set(CLIENTS)
    assert launched_agent("claude-code") is launched_agent("Claude") is LAUNCHED["claude"]
    with pytest.raises(UsageError, match="no agent 'cline'"):
        launched_agent("cline")


def test_opencode_has_all_its_settings_in_one_variable() -> None:
    settings = json.loads(started("opencode", ODD, CHAT).environment["OPENCODE_CONFIG_CONTENT"])

    assert settings["model"] == settings["small_model"] == f"gpubox/{ODD.name}"  # titles too: no second model is loaded
    assert settings["provider"]["gpubox"]["options"] == {"baseURL": f"{BASE}/v1", "apiKey": KEY}
    assert settings["provider"]["gpubox"]["models"]["qwen"]["limit"] == {"context": 32768, "output": 8192}
    assert settings["autoupdate"] is False


def test_claude_has_its_variables_also_above_the_owners_settings() -> None:
    launch = started("claude")

    file = json.loads(launch.files["settings.json"])
    assert launch.arguments == ("--settings", str(FOLDER / "settings.json"))
    assert file["env"].items() <= launch.environment.items()
    assert file["env"]["CLAUDE_CODE_ATTRIBUTION_HEADER"] == "0"
    assert file["env"]["ANTHROPIC_AUTH_TOKEN"] == KEY and "ANTHROPIC_API_KEY" in launch.unset


def test_codex_reads_its_key_from_the_environment() -> None:
    launch = started("codex", ODD)

    settings = of_codex(launch)
    provider = settings["model_providers"][settings["model_provider"]]
    assert (settings["model"], settings["model_context_window"]) == (ODD.name, 1024)
    assert provider == {
        "name": "gpubox", "base_url": f"{BASE}/v1", "wire_api": "responses", "env_key": "GPUBOX_AGENT_KEY",
    }  # fmt: skip
    assert launch.environment == {"GPUBOX_AGENT_KEY": KEY}
    assert settings["check_for_update_on_startup"] is settings["analytics"]["enabled"] is False


def test_the_others_have_limits_too_and_what_is_unknown_is_left_out() -> None:
    metadata = json.loads(started("aider", ODD).files["models.json"])
    assert metadata[f"openai/{ODD.name}"]["max_input_tokens"] == 1024
    assert json.loads(started("qwen").files["settings.json"])["model"]["generationConfig"]["contextWindowSize"] == 32768
    assert json.loads(started("crush").files["crush.json"])["models"]["small"]["model"] == "qwen"
    assert started("crush").environment["CRUSH_GLOBAL_DATA"] == str(FOLDER)
    assert json.loads(started("pi").environment["GPUBOX_PI_SETTINGS"])["providers"]["gpubox"]["models"][0] == {
        "id": "qwen", "name": "Qwen, 16 GB", "contextWindow": 32768, "maxTokens": 8192,
    }  # fmt: skip
    assert Path(started("pi").arguments[1]).is_file()
    assert "GOOSE_CONTEXT_LIMIT" in started("goose").environment
    for agent in LAUNCHED:
        assert "contextWindow" not in (texts := all_texts(started(agent, UNKNOWN))) and "CONTEXT" not in texts
