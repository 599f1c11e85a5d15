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
TOOLS = [{"type": "function", "function": {"name": "weather", "description": "Weather.", "parameters": TOOL_SCHEMA}}]


def ask(tokens: int = 12, client: Any = CLIENT, **more: Any) -> Any:
    options = {"num_predict": tokens, "temperature": 0, "seed": 1}
    values = {"model": GIVEN.model, "messages": [{"role": "user", "content": QUESTION}], "options": options}
    return client.chat(**values | more)


def models() -> None:
    check(NAME in {model.model for model in CLIENT.list().models}, CLIENT.list())
    shown = CLIENT.show(GIVEN.model)
    check("completion" in shown.capabilities and shown.details.format == "gguf", shown)


def chat() -> None:
    reply = ask()
    check(reply.done and reply.message.content and reply.eval_count == 12 and reply.done_reason == "length", reply)
    check(ask(model=NAME).message.content == reply.message.content, "NAME:latest says other words")
    *parts, last = ask(stream=True)
    check("".join(part.message.content or "" for part in [*parts, last]) == reply.message.content, parts)
    check(last.done and last.eval_count == 12 and last.total_duration and len(parts) > 3, last)
    check(NAME in {model.model for model in CLIENT.ps().models}, CLIENT.ps())


def tools() -> None:
    messages: list[dict[str, Any]] = []
    for city in CITIES:
        call = {"function": {"name": "weather", "arguments": {"city": city}}}
        messages += [{"role": "user", "content": f"Weather in {city}?"}, {"role": "assistant", "tool_calls": [call]}]
        messages.append({"role": "tool", "tool_name": "weather", "content": "sunny"})
    messages.append({"role": "user", "content": "Weather in Rome?"})
    for parts in (
        [ask(60, messages=messages, tools=TOOLS)],
        list(ask(60, messages=messages, tools=TOOLS, stream=True)),
    ):
        calls = [call.function.arguments for part in parts for call in part.message.tool_calls or ()]
        check(calls and calls[0] == {"city": "Rome"}, parts)
    check("city" in json.loads(ask(60, format=TOOL_SCHEMA).message.content), "no city")


def generate() -> None:
    asked = {"model": GIVEN.model, "prompt": "Once upon", "options": {"num_predict": 8, "temperature": 0}}
    whole = CLIENT.generate(**asked)
    check(whole.done and whole.response, whole)
    check("".join(part.response for part in CLIENT.generate(**asked, stream=True)) == whole.response, whole)
    check(len(CLIENT.embed(model=GIVEN.embeddings, input=["one", "two"]).embeddings) == 2, "not two")


def load_and_unload() -> None:
    check(CLIENT.generate(model=GIVEN.model).done_reason == "load", "not loaded")
    check(CLIENT.generate(model=NAME, prompt="", keep_alive=0).done_reason == "unload", "not unloaded")
    check(not any(model.model == NAME for model in CLIENT.ps().models), CLIENT.ps())


def early_end() -> None:
    for _ in zip(range(4), ask(2000, stream=True), strict=False):
        pass
    chat()


def refusals() -> None:
    other = ollama.Client(host=GIVEN.base_url, headers={"Authorization": "Bearer wrong"})
    refused(lambda: ask(client=other), ollama.ResponseError, "key is missing or wrong")
    refused(lambda: ask(model="nope"), ollama.ResponseError, "no profile 'nope'")
    refused(lambda: list(ask(model="nope", stream=True)), ollama.ResponseError, "no profile 'nope'")
    refused(lambda: ask(model=GIVEN.missing), ollama.ResponseError, "does not exist")


run(models, chat, tools, generate, load_and_unload, early_end, refusals)
