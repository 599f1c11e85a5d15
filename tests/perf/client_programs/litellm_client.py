"""The packages ``litellm`` and ``langchain-openai`` against a gateway: run by gateway_clients.py in their venv."""

from __future__ import annotations

import importlib
from typing import Any

from client_steps import QUESTION, check, given, refused, run

litellm: Any = importlib.import_module("litellm")
langchain: Any = importlib.import_module("langchain_openai")
litellm.num_retries = 0
GIVEN = given()
BASE: dict[str, Any] = {"api_base": f"{GIVEN.base_url}/v1", "api_key": GIVEN.key}
MESSAGES = [{"role": "user", "content": QUESTION}]
SHAPE = {"title": "good", "type": "object", "properties": {"good": {"type": "boolean"}}, "required": ["good"]}


def ask(model: str = GIVEN.model, kind: str = "openai", **more: Any) -> Any:
    return litellm.completion(**BASE | {"model": f"{kind}/{model}", "messages": MESSAGES, "max_tokens": 12} | more)


def chain(**more: Any) -> Any:
    values = {"base_url": BASE["api_base"], "api_key": GIVEN.key, "model": GIVEN.model, "max_tokens": 12}
    return langchain.ChatOpenAI(**values | {"max_retries": 0} | more)


def litellm_chat() -> None:
    check(ask().usage.completion_tokens, "empty")
    check("".join(part.choices[0].delta.content or "" for part in ask(stream=True) if part.choices), "empty stream")
    check(ask(kind="anthropic", api_base=GIVEN.base_url).choices[0].message.content, "empty by Anthropic's API")
    check(len(litellm.embedding(**BASE, model=f"openai/{GIVEN.embeddings}", input=["a", "b"]).data) == 2, "not two")


def litellm_refusals() -> None:
    refused(lambda: ask("nope"), litellm.NotFoundError, "no profile 'nope'")
    refused(lambda: ask(api_key="wrong"), litellm.AuthenticationError, "key is missing or wrong")


def langchain_chat() -> None:
    check(chain().invoke(QUESTION).content, "empty")
    check("".join(part.content for part in chain().stream(QUESTION)), "empty stream")
    check(chain(use_responses_api=True, max_tokens=16).invoke(QUESTION).content, "empty by the responses API")
    check(len(chain().batch(["one", "two", "three", "four"])) == 4, "not four")
    check("good" in chain(max_tokens=60).with_structured_output(SHAPE).invoke("Good? As JSON"), "no such field")


def langchain_refusals() -> None:
    refused(lambda: chain(model="nope").invoke("Hi"), Exception, "no profile 'nope'")
    refused(lambda: chain(api_key="wrong").invoke("Hi"), Exception, "key is missing or wrong")


run(litellm_chat, litellm_refusals, langchain_chat, langchain_refusals)
