"""The packages ``litellm`` and ``langchain-openai`` against a gateway: run by gateway_clients.py in their venv."""

from __future__ import annotations

import importlib
from typing import Any

from client_steps import QUESTION, TOOL_SCHEMA, check, given, refused, run

litellm: Any = importlib.import_module("litellm")
langchain: Any = importlib.import_module("langchain_openai")
litellm.num_retries = 0
GIVEN = given()
ASK: dict[str, Any] = {
    "model": f"openai/{GIVEN.model}", "api_base": f"{GIVEN.base_url}/v1", "api_key": GIVEN.key, "max_tokens": 12,
    "messages": [{"role": "user", "content": QUESTION}],
}  # fmt: skip


def model(**more: Any) -> Any:
    """LangChain's."""
    values = {"model": GIVEN.model, "base_url": f"{GIVEN.base_url}/v1", "api_key": GIVEN.key, "max_tokens": 12}
    return langchain.ChatOpenAI(**values | {"max_retries": 0} | more)


def litellm_chat() -> None:
    reply = litellm.completion(**ASK)
    check(reply.choices[0].message.content and reply.usage.completion_tokens, reply)


def litellm_stream() -> None:
    parts = list(litellm.completion(**ASK, stream=True))
    check("".join(part.choices[0].delta.content or "" for part in parts if part.choices), parts)


def litellm_as_anthropic() -> None:
    reply = litellm.completion(**ASK | {"model": f"anthropic/{GIVEN.model}", "api_base": GIVEN.base_url})
    check(reply.choices[0].message.content, reply)


def litellm_embeddings() -> None:
    asked = {"api_base": f"{GIVEN.base_url}/v1", "api_key": GIVEN.key, "input": ["one", "two"]}
    check(len(litellm.embedding(model=f"openai/{GIVEN.embeddings}", **asked).data) == 2, "not two")


def litellm_refusals() -> None:
    refused(lambda: litellm.completion(**ASK | {"model": "openai/nope"}), litellm.NotFoundError, "no profile 'nope'")
    wrong = ASK | {"api_key": "wrong"}
    refused(lambda: litellm.completion(**wrong), litellm.AuthenticationError, "key is missing or wrong")


def langchain_chat() -> None:
    check(model().invoke(QUESTION).content, "empty")
    check("".join(part.content for part in model().stream(QUESTION)), "an empty stream")
    check(len(model().batch(["one", "two", "three", "four"])) == 4, "not four")


def langchain_structured() -> None:
    shape = {"title": "place", **TOOL_SCHEMA}
    check("city" in model(max_tokens=60).with_structured_output(shape).invoke("Paris, as JSON"), "no city")


def langchain_responses() -> None:
    check(model(use_responses_api=True, max_tokens=16).invoke(QUESTION).content, "empty")


def langchain_embeddings() -> None:
    values = {"model": GIVEN.embeddings, "base_url": f"{GIVEN.base_url}/v1", "api_key": GIVEN.key}
    check(len(langchain.OpenAIEmbeddings(**values, check_embedding_ctx_length=False).embed_query("one")) > 100, "short")


def langchain_refusals() -> None:
    refused(lambda: model(model="nope").invoke("Hi"), Exception, "no profile 'nope'")
    refused(lambda: model(api_key="wrong").invoke("Hi"), Exception, "key is missing or wrong")


run(
    litellm_chat, litellm_stream, litellm_as_anthropic, litellm_embeddings, litellm_refusals, langchain_chat,
    langchain_structured, langchain_responses, langchain_embeddings, langchain_refusals,
)  # fmt: skip
