"""What Open WebUI sends, read from its source (backend/open_webui/routers/{openai,ollama}.py, 2026), and what it reads.

It needs no package. REQUESTS are those to its OpenAI connection (``/v1``) and to its Ollama connection; for the second
it adds ``:latest`` to each name without a colon, and looks it up in ``/api/tags``.
"""

from __future__ import annotations

import json
import re
import urllib.error
import urllib.request
from datetime import datetime
from typing import Any

from client_steps import QUESTION, check, given, run

GIVEN = given()
NAME, VECTORS = f"{GIVEN.model}:latest", f"{GIVEN.embeddings}:latest"
USER = {"X-OpenWebUI-User-Name": "Ada%20L", "X-OpenWebUI-User-Id": "1", "X-OpenWebUI-User-Email": "a@b",
        "X-OpenWebUI-User-Role": "admin", "X-OpenWebUI-Chat-Id": "chat-1"}  # fmt: skip
MESSAGES = [{"role": "system", "content": "You are brief."}, {"role": "user", "content": QUESTION}]
SHORT = {"num_predict": 12, "temperature": 0.8}
STREAM = {"stream": True, "stream_options": {"include_usage": True}}
JSON, EVENTS, LINES = "application/json", "text/event-stream", "application/x-ndjson"
REQUESTS: tuple[tuple[str, dict[str, Any] | None, str, str], ...] = (
    # path, body, the type of the answer (aiohttp's json() wants the right one), what is in it
    ("/v1/models", None, JSON, GIVEN.model),
    ("/v1/chat/completions", {"model": GIVEN.model, "messages": MESSAGES, "max_tokens": 4, **STREAM}, EVENTS, "[DONE]"),
    ("/v1/chat/completions", {"model": GIVEN.model, "stream": False, "max_completion_tokens": 12,
                              "messages": [{"role": "user", "content": "Generate a title"}]}, JSON, '"content"'),
    ("/v1/embeddings", {"model": GIVEN.embeddings, "input": ["a", "b"]}, JSON, '"embedding"'),
    ("/api/show", {"model": NAME}, JSON, '"details"'),
    ("/api/chat", {"model": NAME, "messages": MESSAGES, "options": SHORT, "stream": True}, LINES, '"done":true'),
    ("/api/chat", {"model": NAME, "messages": MESSAGES, "options": SHORT, "stream": False}, JSON, '"content"'),
    ("/api/generate", {"model": NAME, "prompt": "Once", "options": SHORT, "stream": False}, JSON, '"response"'),
    ("/v1/chat/completions", {"model": NAME, "messages": MESSAGES, "max_tokens": 4}, JSON, '"content"'),
    ("/v1/completions", {"model": NAME, "prompt": "Once", "max_tokens": 4}, JSON, '"text"'),
    ("/api/embed", {"model": VECTORS, "input": ["a", "b"], "truncate": True}, JSON, '"embeddings"'),
    ("/api/embeddings", {"model": VECTORS, "prompt": "a"}, JSON, '"embedding"'),
    ("/api/generate", {"model": NAME, "keep_alive": 0, "prompt": ""}, JSON, '"done":true'),
    ("/api/chat", {"model": NAME, "messages": MESSAGES, "options": SHORT, "stream": False}, JSON, '"content"'),
)  # fmt: skip


def call(path: str, body: dict[str, Any] | None = None, key: str = GIVEN.key) -> tuple[int, str, str]:
    """Status, type and text of the answer."""
    headers = {"Content-Type": JSON, "Authorization": f"Bearer {key}", **USER}
    data = None if body is None else json.dumps(body).encode()
    try:
        with urllib.request.urlopen(urllib.request.Request(GIVEN.base_url + path, data, headers), timeout=300) as reply:
            return reply.status, reply.headers["Content-Type"], reply.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.headers["Content-Type"], error.read().decode()


def requests() -> None:
    for path, body, kind, inside in REQUESTS:
        status, got, text = call(path, body)
        check(status == 200 and got.startswith(kind) and inside in text, (path, body, status, got, text[-300:]))


def lists() -> None:
    version = json.loads(call("/api/version")[2])["version"]
    check(len([int(part) for part in re.sub(r"^v|-.*", "", version).split(".")]) == 3, version)
    models = {model["model"]: model["name"] for model in json.loads(call("/api/tags")[2])["models"]}
    check(models[NAME] == NAME, models)
    for model in json.loads(call("/api/ps")[2])["models"]:
        datetime.fromisoformat(model["expires_at"])


def refusals() -> None:
    """Its user sees ``error`` of the answer."""
    asked: dict[str, Any] = {"model": "nope:latest", "messages": MESSAGES, "prompt": "x"}
    for path in ("/api/chat", "/v1/chat/completions", "/api/show", "/api/generate"):
        status, _, text = call(path, asked)
        check(status == 404 and "nope" in str(json.loads(text)["error"]), (path, status, text))
    for path in ("/api/tags", "/v1/models"):
        status, _, text = call(path, key="wrong")
        check(status == 401 and "key is missing or wrong" in str(json.loads(text)["error"]), (path, status, text))
    for path in ("/api/pull", "/api/create", "/api/copy", "/api/push"):
        status, _, text = call(path, {"model": NAME})
        check(400 <= status < 500 and json.loads(text)["error"], (path, status, text))


run(requests, lists, refusals)
