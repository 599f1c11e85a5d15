"""What Open WebUI sends, read from its source (backend/open_webui/routers/{openai,ollama}.py, 2026), and what it reads.

It needs no package: ``calls`` says each request as Open WebUI makes it, to its OpenAI connection (``/v1``) and to its
Ollama connection; for the second it adds ``:latest`` to each name without a colon.
"""

from __future__ import annotations

import json
import re
import urllib.error
import urllib.request
from collections.abc import Callable
from datetime import datetime
from typing import Any

from client_steps import QUESTION, check, given, run

GIVEN = given()
NAME = f"{GIVEN.model}:latest"
USER = {"X-OpenWebUI-User-Name": "Ada%20L", "X-OpenWebUI-User-Id": "1", "X-OpenWebUI-User-Email": "a@b",
        "X-OpenWebUI-User-Role": "admin", "X-OpenWebUI-Chat-Id": "chat-1"}  # fmt: skip
MESSAGES = [{"role": "system", "content": "You are brief."}, {"role": "user", "content": QUESTION}]


def call(path: str, body: dict[str, Any] | None = None, *, key: str = GIVEN.key) -> tuple[int, str, str]:
    """Status, content type and text of the answer."""
    headers = {"Content-Type": "application/json", "Authorization": f"Bearer {key}", **USER}
    data = None if body is None else json.dumps(body).encode()
    try:
        with urllib.request.urlopen(urllib.request.Request(GIVEN.base_url + path, data, headers), timeout=300) as reply:
            return reply.status, reply.headers["Content-Type"], reply.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.headers["Content-Type"], error.read().decode()


def read(path: str, body: dict[str, Any] | None = None) -> Any:
    """As aiohttp's ``json()`` reads it: the type must be right, too."""
    status, kind, text = call(path, body)
    check(status == 200 and kind.startswith("application/json"), (path, status, kind, text[:300]))
    return json.loads(text)


def openai_models() -> None:
    check(GIVEN.model in [model["id"] for model in read("/v1/models")["data"]], "not listed")


def openai_chat() -> None:
    asked = {"model": GIVEN.model, "messages": MESSAGES, "stream": True, "max_tokens": 12, "temperature": 0.8,
             "stream_options": {"include_usage": True}}  # fmt: skip
    status, kind, text = call("/v1/chat/completions", asked)
    check(status == 200 and kind.startswith("text/event-stream") and text.rstrip().endswith("[DONE]"), text[-300:])
    title = {"model": GIVEN.model, "stream": False, "max_completion_tokens": 12,
             "messages": [{"role": "user", "content": "### Task:\nGenerate a concise title"}]}  # fmt: skip
    check(read("/v1/chat/completions", title)["choices"][0]["message"]["content"], "no title")


def openai_embeddings() -> None:
    check(len(read("/v1/embeddings", {"input": ["a", "b"], "model": GIVEN.embeddings})["data"]) == 2, "not two")


def ollama_lists() -> None:
    check(
        len([int(part) for part in re.sub(r"^v|-.*", "", read("/api/version")["version"]).split(".")]) == 3, "version"
    )
    models = {model["model"]: model for model in read("/api/tags")["models"]}
    check(models[NAME]["name"] == NAME, models)
    for model in read("/api/ps")["models"]:
        if "expires_at" in model:
            datetime.fromisoformat(model["expires_at"])
    check(read("/api/show", {"model": NAME})["details"], "no details")


def ollama_chat() -> None:
    asked = {"model": NAME, "messages": MESSAGES, "options": {"num_predict": 12, "temperature": 0.8}, "stream": True}
    status, kind, text = call("/api/chat", asked)
    lines = [json.loads(line) for line in text.splitlines()]
    check(status == 200 and kind.startswith("application/x-ndjson") and lines[-1]["done"], (kind, text[-300:]))
    check(read("/api/chat", asked | {"stream": False})["message"]["content"], "empty")
    check(read("/api/generate", {"model": NAME, "prompt": "Once", "stream": False, "options": {"num_predict": 4}}), "")


def ollama_as_openai() -> None:
    asked = {"model": NAME, "messages": MESSAGES, "max_tokens": 4}
    check(read("/v1/chat/completions", asked)["choices"], "no answer")
    check(read("/v1/completions", {"model": NAME, "prompt": "Once", "max_tokens": 4})["choices"], "no answer")


def ollama_embeddings() -> None:
    name = f"{GIVEN.embeddings}:latest"
    check(len(read("/api/embed", {"model": name, "input": ["a", "b"], "truncate": True})["embeddings"]) == 2, "not two")
    check(read("/api/embeddings", {"model": name, "prompt": "a"})["embedding"], "none")


def ollama_unload() -> None:
    check(read("/api/generate", {"model": NAME, "keep_alive": 0, "prompt": ""})["done"], "not done")
    ollama_chat()


def refusals() -> None:
    """Its user sees ``error`` of the answer."""
    asked: dict[str, Any] = {"model": "nope:latest", "messages": MESSAGES}
    for path in ("/api/chat", "/v1/chat/completions", "/api/show", "/api/generate"):
        status, _, text = call(path, asked)
        check(status == 404 and "nope" in str(json.loads(text)["error"]), (path, status, text))
    for path in ("/api/tags", "/v1/models"):
        status, _, text = call(path, key="wrong")
        check(status == 401 and "key is missing or wrong" in str(json.loads(text)["error"]), (path, status, text))
    for path in ("/api/pull", "/api/create", "/api/copy", "/api/push"):
        status, _, text = call(path, {"model": NAME, "source": NAME, "destination": "x"})
        check(400 <= status < 500 and json.loads(text)["error"], (path, status, text))


STEPS: tuple[Callable[[], None], ...] = (
    openai_models, openai_chat, openai_embeddings, ollama_lists, ollama_chat, ollama_as_openai, ollama_embeddings,
    ollama_unload, refusals,
)  # fmt: skip
run(*STEPS)
