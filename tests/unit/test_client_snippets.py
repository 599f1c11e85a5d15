"""Settings for clients: they parse, name the address, the model and the key, and survive odd names."""

from __future__ import annotations

import ast
import json
import shlex
import tomllib
from typing import Any

import pytest
import yaml

from gpubox.errors import UsageError
from gpubox.gateway.gateway_status import SCHEMA, GatewayStatus, ProfileStatus
from gpubox.gateway.offers import choose_model, gateway_models, offered_models
from gpubox.interchange.client_settings import (
    CLIENTS,
    KEY_PLACEHOLDER,
    ClientModel,
    ClientTarget,
    client_model,
    client_snippet,
    context_per_slot,
)
from gpubox.profiles.profile import Profile

BASE = "http://127.0.0.1:8080"
CHAT = ClientModel("qwen", "Qwen, 16 GB", 32768, 8192)
EMBED = ClientModel("nomic", "Nomic", 2048, 512, embeddings=True)
ODD = ClientModel('it\'s "odd" $HOME', "odd\\", 1024, 256)


def target(*models: ClientModel, key: str = "") -> ClientTarget:
    return ClientTarget("gpubox", BASE, models or (CHAT,), key)


def status(*profiles: ProfileStatus) -> GatewayStatus:
    return GatewayStatus(SCHEMA, BASE, "", "1", False, False, "", (), profiles, (), {}, ())


@pytest.mark.parametrize("client", CLIENTS)
@pytest.mark.parametrize("model", [CHAT, ODD])
def test_every_client_gets_address_model_and_key(client: str, model: ClientModel) -> None:
    text = client_snippet(client, target(model, key="gb-secret")).text

    assert BASE in text and "gb-secret" in text
    if client in ("openai", "anthropic"):
        words = {node.value for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Constant)}
        assert {model.name, "gb-secret", BASE + ("/v1" if client == "openai" else "")} <= words
    elif client == "curl":
        argv = shlex.split(text.replace("\\\n", " "))
        assert f"{BASE}/v1/chat/completions" in argv and "Authorization: Bearer gb-secret" in argv
        assert json.loads(argv[-1])["model"] == model.name
    elif client == "opencode":
        settings = json.loads(text)
        assert settings["model"] == f"gpubox/{model.name}"
        assert settings["provider"]["gpubox"]["options"] == {"baseURL": f"{BASE}/v1", "apiKey": "gb-secret"}
    elif client == "aider":
        settings = yaml.safe_load(text)
        assert settings == {
            "model": f"openai/{model.name}", "openai-api-base": f"{BASE}/v1", "openai-api-key": "gb-secret",
        }  # fmt: skip
    elif client == "continue":
        (entry,) = yaml.safe_load(text)["models"]
        assert (entry["model"], entry["apiBase"], entry["apiKey"]) == (model.name, f"{BASE}/v1", "gb-secret")
    elif client == "codex":
        settings = tomllib.loads(text)
        provider = settings["model_providers"][settings["model_provider"]]
        assert (settings["model"], provider["experimental_bearer_token"]) == (model.name, "gb-secret")
        assert (provider["base_url"], provider["wire_api"]) == (f"{BASE}/v1", "responses")
    elif client == "crush":
        settings = json.loads(text)
        assert settings["models"]["large"] == settings["models"]["small"] == {"provider": "gpubox", "model": model.name}
        assert settings["providers"]["gpubox"]["models"][0]["context_window"] == model.context
    elif client == "zed":
        variable, _, rest = text.partition("\n")
        settings = json.loads(rest)
        assert variable.endswith(" GPUBOX_GATEWAY_API_KEY=gb-secret")
        assert settings["agent"]["default_model"] == {"provider": "gpubox-gateway", "model": model.name}
        (entry,) = settings["language_models"]["openai_compatible"]["gpubox-gateway"]["available_models"]
        assert (entry["name"], entry["max_tokens"]) == (model.name, model.context)
    elif client in ("claude-code", "goose", "ollama", "open-webui", "qwen-code"):
        words = set(shlex.split(text.replace("=", " ")))
        assert {"gb-secret", BASE} & words == {"gb-secret", BASE} or f"{BASE}/v1" in words
        assert model.name in shlex.split(text.replace("=", " ")) or client in ("ollama", "open-webui")
        assert (f"CLAUDE_CODE_MAX_CONTEXT_TOKENS={model.context}\n" in text) == (client == "claude-code")
        assert (f"GOOSE_CONTEXT_LIMIT={model.context}\n" in text) == (client == "goose")
        assert ("CLAUDE_CODE_ATTRIBUTION_HEADER=0\n" in text) == (client == "claude-code")
    elif client == "pi":
        provider = json.loads(text)["providers"]["gpubox"]
        assert (provider["baseUrl"], provider["apiKey"]) == (f"{BASE}/v1", "gb-secret")
        assert (provider["models"][0]["id"], provider["models"][0]["contextWindow"]) == (model.name, model.context)
    elif client == "vscode":
        ((entry,),) = [provider["models"] for provider in json.loads(text) if provider["apiKey"] == "gb-secret"]
        assert (entry["id"], entry["url"]) == (model.name, f"{BASE}/v1/chat/completions")
        assert (entry["maxInputTokens"], entry["toolCalling"]) == (model.context, True)
    else:
        rows = dict(row.split(": ", 1) for row in text.splitlines())
        name = "Model" if client == "roo-code" else "Model ID"
        assert rows[name].strip() == model.name and rows["API Key"].strip() == "gb-secret"


@pytest.mark.parametrize("client", CLIENTS)
def test_without_keys_no_client_is_told_of_one_and_the_insisting_ones_get_a_word(client: str) -> None:
    text = client_snippet(client, target()).text

    assert KEY_PLACEHOLDER not in text
    assert "Bearer" not in text
    assert ("none" in text) == (client not in ("opencode", "continue", "codex", "curl"))


def test_the_placeholder_is_noticed() -> None:
    assert client_snippet("curl", target(key=KEY_PLACEHOLDER)).needs_key
    assert not client_snippet("curl", target(key="gb-x")).needs_key


def test_embeddings_go_only_to_clients_that_use_them() -> None:
    assert "/v1/embeddings" in client_snippet("curl", target(EMBED)).text
    assert "embeddings.create" in client_snippet("openai", target(EMBED)).text
    for client in ("opencode", "aider", "cline", "anthropic"):
        with pytest.raises(UsageError, match="serves embeddings"):
            client_snippet(client, target(EMBED))
    assert list(json.loads(client_snippet("opencode", target(CHAT, EMBED)).text)["provider"]["gpubox"]["models"]) == [
        "qwen"
    ]


def test_models_are_the_loaded_ones_first_then_the_owners_then_aliases() -> None:
    profiles = {
        "shipped": Profile("shipped", "x.gguf", shipped=True),
        "mine": Profile("mine", "x.gguf", title="Mine", flags={"ctx-size": 8192, "parallel": 2}),
        "loaded": Profile("loaded", "x.gguf", shipped=True),
    }
    now = status(
        ProfileStatus("shipped", "down"), ProfileStatus("mine", "down", aliases=("gpt-4o",)),
        ProfileStatus("loaded", "up"), ProfileStatus("far", "upstream"),
    )  # fmt: skip
    models = gateway_models(now, profiles)

    assert [model.name for model in models] == ["loaded", "mine", "far", "shipped", "gpt-4o"]
    assert models[1].context == 4096 and models[-1].context == 4096
    assert [m.name for m in choose_model(models, "gpt-4o")][:2] == ["gpt-4o", "loaded"]
    assert {m.name for m in offered_models(models, "mine", now)} == {"mine", "loaded", "far"}
    served = gateway_models(status(ProfileStatus("mine", "up", aliases=("gpt-4o",), context=2048)), profiles)
    assert {model.context for model in served} == {2048}  # what the server says, before the flags
    with pytest.raises(UsageError, match="no model 'lod'"):
        choose_model(models, "lod")
    with pytest.raises(UsageError, match="no profile"):
        choose_model((), None)


def test_an_unknown_client_names_the_known_ones() -> None:
    with pytest.raises(UsageError, match="emacs") as error:
        client_snippet("emacs", target())
    assert "opencode" in error.value.hint


@pytest.mark.parametrize(
    ("flags", "context"),
    [
        ({}, None),
        ({"ctx-size": 0}, None),
        ({"c": 4096}, 4096),
        ({"ctx-size": 16384, "parallel": 4}, 4096),
        ({"ctx-size": 16384, "np": 4, "kv-unified": True}, 16384),
        ({"ctx-size": 4096, "parallel": -1}, 4096),
    ],
)
def test_the_context_of_one_conversation(flags: dict[str, Any], context: int | None) -> None:
    assert context_per_slot(Profile("p", "a.gguf", flags=flags)) == context


def test_the_clients_name_for_the_model_is_its_alias() -> None:
    assert client_model(Profile("p", "a.gguf", flags={"alias": "qwen,gpt"}), context=8192).name == "qwen"
    assert client_model(Profile("p", "a.gguf"), context=8192).output == 2048
    assert client_model(Profile("p", "a.gguf", flags={"n-predict": 100}), context=8192).output == 100
