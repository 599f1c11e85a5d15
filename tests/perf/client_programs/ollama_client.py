"""The ``ollama`` package against a gateway: run by gateway_clients.py in a venv that has it."""

from __future__ import annotations

import importlib
import json
from typing import Any

from client_steps import CITIES, QUESTION, TOOL_SCHEMA, check, given, refused, run

ollama: Any = importlib.import_module("ollama")
GIVEN = given()
NAME = f"{GIVEN.model}:latest"
CLIENT: Any = ollama.Client(host=GIVEN.base_url, headers={"Authorization": f"Bearer {GIVEN.key}"})
ASK: dict[str, Any] = {
    "model": GIVEN.model, "messages": [{"role": "user", "content": QUESTION}],
    "options": {"num_predict": 12, "temperature": 0, "seed": 1},
}  # fmt: skip
TOOLS = [{"type": "function", "function": {"name": "weather", "description": "Weather.", "parameters": TOOL_SCHEMA}}]


def models() -> None:
    listed = {model.model for model in CLIENT.list().models}
    check(NAME in listed, listed)
    shown = CLIENT.show(GIVEN.model)
    check("completion" in shown.capabilities and shown.details.format == "gguf", shown)


def chat() -> None:
    reply = CLIENT.chat(**ASK)
    check(reply.done and reply.message.content and reply.eval_count == 12 and reply.done_reason == "length", reply)
    check(CLIENT.chat(**ASK | {"model": NAME}).message.content == reply.message.content, "NAME:latest says other words")
    check(GIVEN.model in {model.model.partition(":")[0] for model in CLIENT.ps().models}, "it is not in /api/ps")


def stream() -> None:
    whole = CLIENT.chat(**ASK).message.content
    *parts, last = CLIENT.chat(**ASK, stream=True)
    check("".join(part.message.content or "" for part in [*parts, last]) == whole, parts)
    check(last.done and last.eval_count == 12 and last.total_duration and len(parts) > 3, last)


def tools() -> None:
    messages: list[dict[str, Any]] = []
    for city in CITIES:
        call = {"function": {"name": "weather", "arguments": {"city": city}}}
        messages += [{"role": "user", "content": f"Weather in {city}?"}, {"role": "assistant", "tool_calls": [call]}]
        messages.append({"role": "tool", "tool_name": "weather", "content": "sunny"})
    messages.append({"role": "user", "content": "Weather in Rome?"})
    asked = ASK | {"messages": messages, "tools": TOOLS, "options": {"num_predict": 60, "temperature": 0}}
    for reply in (CLIENT.chat(**asked), list(CLIENT.chat(**asked, stream=True))):
        calls = [call for part in (reply if isinstance(reply, list) else [reply])
                 for call in part.message.tool_calls or ()]  # fmt: skip
        check(calls and calls[0].function.arguments == {"city": "Rome"}, reply)


def json_schema() -> None:
    reply = CLIENT.chat(**ASK | {"options": {"num_predict": 60}}, format=TOOL_SCHEMA)
    check("city" in json.loads(reply.message.content), reply)


def generate() -> None:
    options = {"num_predict": 8, "temperature": 0}
    asked = {"model": GIVEN.model, "prompt": "Once upon", "system": "Be brief.", "options": options}
    whole = CLIENT.generate(**asked)
    check(whole.done and whole.response, whole)
    check("".join(part.response for part in CLIENT.generate(**asked, stream=True)) == whole.response, whole)


def embeddings() -> None:
    check(len(CLIENT.embed(model=GIVEN.embeddings, input=["one", "two"]).embeddings) == 2, "not two")


def load_and_unload() -> None:
    check(CLIENT.generate(model=GIVEN.model).done_reason == "load", "not loaded")
    check(CLIENT.generate(model=NAME, prompt="", keep_alive=0).done_reason == "unload", "not unloaded")
    check(not any(model.model == NAME for model in CLIENT.ps().models), CLIENT.ps())
    chat()


def early_end() -> None:
    for _ in zip(range(4), CLIENT.chat(**ASK | {"options": {"num_predict": 2000}}, stream=True), strict=False):
        pass
    chat()


def wrong_key() -> None:
    other = ollama.Client(host=GIVEN.base_url, headers={"Authorization": "Bearer wrong"})
    refused(lambda: other.chat(**ASK), ollama.ResponseError, "key is missing or wrong")


def wrong_model() -> None:
    for options in ({}, {"stream": True}):
        asked = ASK | {"model": "nope"} | options
        refused(lambda asked=asked: list(CLIENT.chat(**asked)), ollama.ResponseError, "no profile 'nope'")  # type: ignore[misc]


def broken_models() -> None:
    refused(lambda: CLIENT.chat(**ASK | {"model": GIVEN.missing}), ollama.ResponseError, "does not exist")


run(
    models, chat, stream, tools, json_schema, generate, embeddings, load_and_unload, early_end, wrong_key, wrong_model,
    broken_models, chat,
)  # fmt: skip
