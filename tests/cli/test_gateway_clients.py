"""What client programs ask besides a chat: lists of models, one model, other APIs, and what they do with an error."""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
import tomli_w

from gpubox.gateway.client_keys import ClientKeys
from gpubox.paths import Paths
from tests.gateway_process import Gateway, empty_model, paced_engine, paced_server, upstream_profile
from tests.ports import free_port
from tests.raw_http import Reply, Wire, ask, request_bytes

ANTHROPIC = {"anthropic-version": "2023-06-01"}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Of the gateway's settings."""
    root = tmp_path_factory.mktemp("clients")
    with pytest.MonkeyPatch.context() as patch:
        for name in ("CONFIG", "STATE", "CACHE"):
            patch.setenv(f"XDG_{name}_HOME", str(root / name))
        yield Path(os.environ["XDG_CONFIG_HOME"]) / "gpubox"


@pytest.fixture(scope="module")
def gateway(folder: Path) -> Iterator[Gateway]:
    """A gateway before one server that answers, and a profile whose model is missing."""
    with paced_server() as (port, _):
        rules = {"requests": {"default": {"max_tokens": 3}}, "personas": {"paced:long": {"max_tokens": 5}}}
        upstream_profile(folder, "paced", port, aliases=["gpt-4o"], **rules)
        (folder / "profiles/broken.toml").write_text('model = "/nowhere/at-all.gguf"\n')
        engines = f'default-engine = "paced"\n[engines]\npaced = "{paced_engine(folder)}"\n'
        (folder / "config.toml").write_text(engines)
        gateway = Gateway()
        yield gateway
        gateway.stop()
        assert not gateway.problems()


@pytest.fixture
def keyed(own_home: Path, paths: Paths) -> Iterator[tuple[Gateway, str]]:
    """Another gateway, which lets nobody in without its key; and that key."""
    paths.config.mkdir(parents=True)
    key = ClientKeys(paths).add("page")
    gateway = Gateway()
    yield gateway, key
    gateway.stop()


def message(reply: Reply) -> str:
    return str(reply.json()["error"]["message"])


def test_a_broken_profile_says_so_at_once_and_not_after_the_clients_retries(gateway: Gateway) -> None:
    for _ in range(2):  # when it fails, and while it is known to be broken
        reply = ask(gateway.port, "/v1/chat/completions", {"model": "broken", "messages": []})
        assert (reply.status, reply.header("x-should-retry")) == (503, "false")
        assert int(reply.header("retry-after")) > 0
        assert "/nowhere/at-all.gguf does not exist" in message(reply)


def test_the_list_of_models_has_the_fields_of_both_apis(gateway: Gateway) -> None:
    body = ask(gateway.port, "/v1/models").json()
    models = {model["id"]: model for model in body["data"]}
    names = sorted(models)
    assert {"broken", "paced"} <= set(names)
    assert (list(models), body["first_id"], body["last_id"]) == (names, names[0], names[-1])
    assert models["paced"]["architecture"] == {"input_modalities": ["text"], "output_modalities": ["text"]}
    assert (body["object"], body["has_more"]) == ("list", False)
    model = models["paced"]
    assert (model["object"], model["type"], model["display_name"]) == ("model", "model", "paced")
    assert isinstance(model["created"], int)
    assert model["created_at"].endswith("+00:00")


def test_one_model_is_asked_for_by_its_name_alias_or_persona(gateway: Gateway) -> None:
    for name, found in (("paced", "paced"), ("gpt-4o", "paced"), ("paced:long", "paced:long")):
        assert ask(gateway.port, f"/v1/models/{name}").json()["id"] == found
    reply = ask(gateway.port, "/v1/models/nope")
    assert (reply.status, "no profile 'nope'" in message(reply)) == (404, True)
    assert ask(gateway.port, "/v1/models/nope", headers=ANTHROPIC).json()["type"] == "error"


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize(("name", "tokens"), [("paced", 3), ("paced:long", 5)])
def test_a_persona_sets_its_parameters_and_the_reply_has_its_name(
    gateway: Gateway, name: str, tokens: int, stream: bool
) -> None:
    reply = ask(gateway.port, "/v1/chat/completions", {"model": name, "messages": [], "pace": 500, "stream": stream})
    assert reply.whole
    assert f'"completion_tokens": {tokens}'.encode() in reply.body
    assert reply.body.count(b"SmolLM2") == 0
    assert reply.body.count(f'"model":"{name}"'.encode()) == (tokens + 2 if stream else 0)


@pytest.mark.parametrize("name", ["gpt-4", "", "x" * 5000])
def test_an_unknown_model_is_refused_with_the_names_there_are(gateway: Gateway, name: str) -> None:
    reply = ask(gateway.port, "/v1/chat/completions", {"model": name, "messages": []})
    assert reply.status == 404
    assert "There are: broken, paced, gpt-4o" in message(reply)
    assert len(message(reply)) < 500


@pytest.mark.parametrize(("path", "body"), [("/api/v0/models", None), ("/api/pull", {"model": "broken"})])
def test_other_apis_are_refused_before_a_model_is_loaded(
    gateway: Gateway, path: str, body: dict[str, object] | None
) -> None:
    before = len(gateway.named("switch"))
    reply = ask(gateway.port, path, body)
    assert (reply.status, "Use OpenAI's at /v1" in reply.json()["error"]) == (404, True)
    assert len(gateway.named("switch")) == before


def test_a_body_that_cannot_be_read_is_refused_in_the_words_of_its_api(gateway: Gateway) -> None:
    with Wire(gateway.port) as wire:
        for path, fields in (("/api/chat", ["error"]), ("/v1/messages", ["type", "error"])):
            wire.send(request_bytes("POST", path, b"{bad"))
            reply = wire.read()
            assert (reply.status, list(reply.json())) == (400, fields)
            assert isinstance(reply.json()["error"], str) is (path == "/api/chat")


def test_a_profile_that_was_changed_counts_as_soon_as_its_server_is_started(gateway: Gateway, folder: Path) -> None:
    for flags in ("", "[flags]\nslot-save-path = '.'\n"):
        assert ask(gateway.port, "/unload", {}).status == 200
        (folder / "profiles/slots.toml").write_text(f"model = '{empty_model(folder)}'\nport = 0\n{flags}")
        assert ask(gateway.port, "/models/load", {"model": "slots"}).status == 200
        saved = ask(gateway.port, "/slots/0?action=save", {"model": "slots", "filename": "x"})
        assert (saved.status == 403) is not bool(flags), (flags, saved)
    assert ask(gateway.port, "/unload", {}).status == 200


def test_a_client_of_ollama_finds_the_models_and_gets_its_lines(gateway: Gateway) -> None:
    assert ask(gateway.port, "/api/version").json()["version"]
    names = [model["model"] for model in ask(gateway.port, "/api/tags").json()["models"]]
    assert {"broken:latest", "paced:latest", "paced:long"} <= set(names)
    assert ask(gateway.port, "/api/show", {"name": "paced:latest"}).json()["capabilities"] == ["completion", "tools"]
    assert ask(gateway.port, "/api/ps").json() == {"models": []}
    chat = {"model": "paced:long", "messages": [{"role": "user", "content": "x"}]}
    reply = ask(gateway.port, "/api/chat", chat)
    lines = [json.loads(line) for line in reply.body.splitlines()]
    assert (reply.header("content-type"), len(lines)) == ("application/x-ndjson", 6)
    assert all(line["model"] == "paced:long" and line["message"]["content"] for line in lines[:-1])
    assert (lines[-1]["done"], lines[-1]["eval_count"], lines[-1]["eval_duration"]) == (True, 5, 1_000_000)
    whole = ask(gateway.port, "/api/generate", {"model": "paced", "prompt": "x", "stream": False}).json()
    assert (whole["response"], whole["done"], whole["eval_count"]) == (" word" * 3, True, 3)
    refused = ask(gateway.port, "/api/chat", {**chat, "model": "gpt-4"})
    assert (refused.status, "There are: broken" in refused.json()["error"]) == (404, True)


def test_what_runs_is_listed_as_llama_swap_does(gateway: Gateway) -> None:
    assert ask(gateway.port, "/running").json() == {"running": []}
    assert ask(gateway.port, "/models/load", {"model": "paced"}).json() == {"success": True}
    assert ask(gateway.port, "/unload", {}).json() == {"success": True}
    assert ask(gateway.port, "/models/load", {"model": "gpt-4"}).status == 404


def test_a_fallback_answers_for_a_profile_that_does_not_load(folder: Path, gateway: Gateway) -> None:
    nowhere = {"model": "/nowhere/big.gguf"}
    for name, values in {
        "z-big": {**nowhere, "fallback": "z-far"},
        "z-far": {"upstream": f"http://127.0.0.1:{free_port()}", "fallback": "paced"},  # nobody is there either
        "z-one": {**nowhere, "fallback": "z-two"},
        "z-two": {**nowhere, "fallback": "z-one"},
    }.items():
        (folder / f"profiles/{name}.toml").write_text(tomli_w.dumps(values))
    for stream in (False, True):
        reply = ask(gateway.port, "/v1/chat/completions", {"model": "z-big", "messages": [], "stream": stream})
        assert (reply.status, reply.whole, reply.header("x-gpubox-model")) == (200, True, "paced")
    line = gateway.status()["finished"][0]
    assert (line["asked"], line["profile"], line["outcome"]) == ("z-big", "paced", "done")
    assert ask(gateway.port, "/v1/chat/completions", {"model": "z-one", "messages": []}).status == 503


PREFLIGHT = {"Access-Control-Request-Method": "POST", "Access-Control-Request-Headers": "authorization,content-type"}


def preflight(port: int, origin: str) -> Reply:
    with Wire(port) as wire:
        wire.send(request_bytes("OPTIONS", "/v1/chat/completions", headers={"Origin": origin, **PREFLIGHT}))
        return wire.read()


def test_a_client_in_a_browser_may_read_the_answers(gateway: Gateway) -> None:
    page = "http://localhost:3000"
    asked = preflight(gateway.port, page)
    assert (asked.status, asked.header("access-control-allow-origin")) == (200, page)
    assert asked.header("access-control-allow-headers") == "authorization,content-type"
    for path in ("/v1/models", "/v1/models/nope"):
        assert ask(gateway.port, path, headers={"Origin": page}).header("access-control-allow-origin") == page
    assert preflight(gateway.port, "https://evil.example").status == 403  # without keys


def test_a_page_of_another_site_may_ask_with_a_key(keyed: tuple[Gateway, str]) -> None:
    (gateway, client_key), page = keyed, {"Origin": "https://chat.example"}
    assert preflight(gateway.port, page["Origin"]).status == 200
    assert ask(gateway.port, "/v1/models", headers=page).status == 401
    assert ask(gateway.port, "/v1/models", headers={**page, "Authorization": f"Bearer {client_key}"}).status == 200


def test_an_upstream_has_its_own_endpoints(gateway: Gateway) -> None:
    reply = ask(gateway.port, "/api/chat", {"model": "paced", "messages": [], "max_tokens": 1})
    assert reply.whole
    assert b"Use OpenAI" not in reply.body


def test_an_upstream_that_is_down_says_so(gateway: Gateway, folder: Path) -> None:
    upstream_profile(folder, "down", free_port())
    try:
        reply = ask(gateway.port, "/v1/chat/completions", {"model": "down", "messages": []})
    finally:
        (folder / "profiles/down.toml").unlink()
    assert reply.status == 502
    assert message(reply).startswith("down: the server does not take connections (")


@pytest.mark.parametrize("stream", [True, False])
def test_the_owner_cancels_a_request_in_the_middle_of_its_answer(gateway: Gateway, folder: Path, stream: bool) -> None:
    body = {"model": "paced", "messages": [], "max_tokens": 100_000, "pace": 20, "stream": stream, "user": "endless"}
    replies: list[Reply] = []
    asking = threading.Thread(target=lambda: replies.append(ask(gateway.port, "/v1/chat/completions", body)))
    asking.start()
    while not (open_requests := gateway.status()["requests"]) or stream != (open_requests[0]["state"] == "generating"):
        assert asking.is_alive()
    number = open_requests[0]["id"]
    assert gateway.control(f"cancel/{number}", post=True).status == 200
    asking.join(1.0)  # else the server would go on
    assert replies and "cancelled" in replies[0].body.decode()
    assert replies[0].status == (200 if stream else 403)
    assert gateway.status()["finished"][0]["outcome"] == "cancelled"
    left = folder.parents[1] / "STATE/gpubox/gateway/left"  # without a stream its server must be left alone, to see it
    assert left.exists() is not stream
    left.unlink(missing_ok=True)
    assert [gateway.control(f"cancel/{id_}", post=True).status for id_ in (number, "x", "")] == [404] * 3


@pytest.mark.parametrize("stream", [True, False])
def test_a_server_that_dies_before_its_first_byte_is_asked_once_more(gateway: Gateway, stream: bool) -> None:
    body = {"model": "paced", "messages": [], "max_tokens": 3, "stream": stream, "die": 0}
    whole = ask(gateway.port, "/v1/chat/completions", {**body, "dies": 1, "user": f"once-{stream}"})
    assert (whole.status, whole.whole, len(whole.text.split())) == (200, True, 3)
    failed = ask(gateway.port, "/v1/chat/completions", {**body, "user": f"always-{stream}"})
    assert (failed.status, "closed the connection" in message(failed)) == (502, True)
    other = ask(gateway.port, "/v1/tokenize", {**body, "dies": 1, "user": f"tokenize-{stream}"})
    assert other.status == 502
