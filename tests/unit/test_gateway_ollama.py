"""Ollama's API before a llama-server: bodies there, lines back. Replies recorded from llama-server, build 11434."""

from __future__ import annotations

import json
from typing import Any

import pytest

from gpubox.gateway.http_connection import HttpRequest, RequestRefused
from gpubox.gateway.ollama import OllamaReply, translated

CHAT, GENERATE = "/api/chat", "/api/generate"
HELLO = [{"role": "user", "content": "Hello"}]
SSE = ((b"content-type", b"text/event-stream"), (b"Server", b"llama.cpp"))
TIMINGS = {"cache_n": 30, "prompt_n": 1, "prompt_ms": 38.5, "predicted_n": 3, "predicted_ms": 21.25}


def translate(path: str, body: Any) -> tuple[HttpRequest, OllamaReply | None]:
    text = body if isinstance(body, bytes) else json.dumps(body).encode()
    return translated(HttpRequest("POST", path, (), text, True, True, "127.0.0.1", 0.0, 0.0))


def sent(path: str, **asked: Any) -> tuple[str, dict[str, Any]]:
    request, _ = translate(path, {"model": "m", **asked})
    body = json.loads(request.body)
    assert body.pop("model") == "m"
    assert body.pop("stream_options", None) in (None, {"include_usage": True})
    return request.target, body


SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}}
TOOL = {"type": "function", "function": {"name": "now", "parameters": {}}}


@pytest.mark.parametrize(
    ("path", "asked", "target", "expected"),
    [
        (CHAT, {"messages": HELLO}, "/v1/chat/completions", {"messages": HELLO, "stream": True}),
        (
            CHAT,
            {"messages": HELLO, "stream": False, "tools": [TOOL], "think": False, "format": "json"},
            "/v1/chat/completions",
            {
                "messages": HELLO, "stream": False, "tools": [TOOL], "response_format": {"type": "json_object"},
                "chat_template_kwargs": {"enable_thinking": False},
            },
        ),
        (
            CHAT,
            {"messages": HELLO, "options": {"num_ctx": 8, "num_predict": 5, "top_k": 1, "stop": ["x"]}, "think": "low"},
            "/v1/chat/completions",
            {
                "messages": HELLO, "stream": True, "max_tokens": 5, "top_k": 1, "stop": ["x"],
                "chat_template_kwargs": {"enable_thinking": True, "reasoning_effort": "low"},
            },
        ),
        (
            GENERATE,
            {"prompt": "Hello", "system": "Brief.", "format": SCHEMA, "options": {"num_predict": -1}},
            "/v1/chat/completions",
            {
                "messages": [{"role": "system", "content": "Brief."}, *HELLO], "stream": True,
                "response_format": {"type": "json_schema", "json_schema": {"name": "reply", "schema": SCHEMA}},
            },
        ),
        (GENERATE, {"prompt": "p", "raw": True}, "/v1/completions", {"prompt": "p", "stream": True}),
        (
            GENERATE, {"prompt": "p", "suffix": "s"}, "/infill",
            {"input_prefix": "p", "input_suffix": "s", "stream": True},
        ),
        (GENERATE, {}, "/models/load", {}),
        (CHAT, {"messages": [], "keep_alive": 0}, "/models/unload", {}),
        ("/api/embed", {"input": ["a", "b"]}, "/v1/embeddings", {"input": ["a", "b"]}),
        ("/api/embeddings", {"prompt": "a"}, "/v1/embeddings", {"input": "a"}),
    ],
)  # fmt: skip
def test_a_request_becomes_one_of_openais_api(
    path: str, asked: dict[str, Any], target: str, expected: dict[str, Any]
) -> None:
    assert sent(path, **asked) == (target, expected)


def test_images_are_parts_and_calls_of_tools_get_ids() -> None:
    call = {"function": {"name": "now", "arguments": {"in": "Paris"}}}
    other_call = {"function": {"name": "x", "arguments": {}}}
    _, body = sent(
        CHAT,
        messages=[
            {"role": "user", "content": "see", "images": ["/9j/4AAQ", "iVBORw0K"]},
            {"role": "assistant", "content": "", "thinking": "Hm", "tool_calls": [other_call, call]},
            {"role": "tool", "tool_name": "now", "content": "12:00"},
            {"role": "tool", "content": "y"},
        ],
    )  # fmt: skip
    user, assistant, now, other = body["messages"]
    urls = ["data:image/jpeg;base64,/9j/4AAQ", "data:image/png;base64,iVBORw0K"]
    images = [{"type": "image_url", "image_url": {"url": url}} for url in urls]
    assert user["content"] == [{"type": "text", "text": "see"}, *images]
    assert assistant["reasoning_content"] == "Hm"
    assert [c["function"]["arguments"] for c in assistant["tool_calls"]] == ["{}", '{"in":"Paris"}']
    assert [now["tool_call_id"], other["tool_call_id"]] == [c["id"] for c in assistant["tool_calls"][::-1]]


@pytest.mark.parametrize("body", [b"[]", b"{", b"", {"messages": 7}, {"messages": [{}]}, {"messages": [7]}])
def test_what_is_no_request_is_refused(body: Any) -> None:
    with pytest.raises(RequestRefused):
        translate(CHAT, body)


def test_other_requests_stay_as_they_are() -> None:
    for path in ("/v1/chat/completions", "/api/tags"):
        request, reply = translate(path, b"x")
        assert (request.target, request.body, reply) == (path, b"x", None)


def lines(reply: OllamaReply, *events: Any, headers: Any = SSE) -> list[dict[str, Any]]:
    reply.head(headers)
    text = "".join(f"data: {json.dumps(event)}\n\n" for event in events).encode() + b"data: [DONE]\n\n"
    text = text if headers is SSE else json.dumps(events[0]).encode()
    out = b"".join(reply.feed(text[at : at + 37]) for at in range(0, len(text), 37)) + reply.end()
    for line in (values := [json.loads(each) for each in out.splitlines()]):
        line.pop("created_at", None)
    return values


def delta(**values: Any) -> dict[str, Any]:
    return {"choices": [{"index": 0, "delta": values, "finish_reason": None}]}


END = {"choices": [{"index": 0, "delta": {}, "finish_reason": "length"}]}


def test_a_stream_becomes_lines_and_its_end_has_the_figures() -> None:
    reply = OllamaReply(CHAT, "m", "")
    *parts, call, last = lines(
        reply, delta(role="assistant", content=None), delta(reasoning_content="Hm"), delta(content="Hi"),
        delta(tool_calls=[{"index": 0, "id": "a", "function": {"name": "now", "arguments": '{"in":'}}]),
        delta(tool_calls=[{"index": 0, "function": {"arguments": '"Paris"}'}}]), END,
        {"choices": [], "timings": TIMINGS},
    )  # fmt: skip
    assert [part["message"] for part in parts] == [
        {"role": "assistant", "content": "", "thinking": "Hm"}, {"role": "assistant", "content": "Hi"},
    ]  # fmt: skip
    assert call["message"]["tool_calls"] == [{"function": {"name": "now", "arguments": {"in": "Paris"}}}]
    assert not any(line["done"] for line in (*parts, call))
    assert (last["done"], last["done_reason"], last["message"]["content"]) == (True, "length", "")
    assert (last["prompt_eval_count"], last["prompt_eval_duration"]) == (31, 38_500_000)
    assert (last["eval_count"], last["eval_duration"]) == (3, 21_250_000)


def test_a_whole_reply_is_one_object() -> None:
    usage = {"prompt_tokens": 4, "completion_tokens": 2}
    chat = {"choices": [{"message": {"content": "Hi"}, "finish_reason": "stop"}], "usage": usage}
    (line,) = lines(OllamaReply(GENERATE, "m", ""), chat, headers=())
    keys = ("response", "done_reason", "prompt_eval_count", "eval_count")
    assert [line[key] for key in keys] == ["Hi", "stop", 4, 2]
    (line,) = lines(OllamaReply(GENERATE, "m", ""), {"content": "code", "timings": TIMINGS}, headers=())  # of /infill
    assert (line["response"], line["eval_count"]) == ("code", 3)
    vectors = {"data": [{"embedding": [1.5]}, {"embedding": [2]}], "usage": {"prompt_tokens": 4}}
    assert lines(OllamaReply("/api/embed", "m", ""), vectors, headers=()) == [
        {"model": "m", "embeddings": [[1.5], [2]], "prompt_eval_count": 4}
    ]
    assert lines(OllamaReply("/api/embeddings", "m", ""), vectors, headers=()) == [{"embedding": [1.5]}]
    (line,) = lines(OllamaReply(CHAT, "m", "/models/load"), {"success": True}, headers=())
    assert (line["message"]["content"], line["done_reason"]) == ("", "load")


def test_errors_are_one_sentence_also_in_the_middle() -> None:
    error = {"error": {"message": "No.", "type": "x", "code": 503}}
    assert lines(OllamaReply(CHAT, "m", ""), error, headers=()) == [{"error": "No."}]
    assert lines(OllamaReply(CHAT, "m", ""), delta(content="Hi"), error)[-1] == {"error": "No."}
    assert lines(OllamaReply(CHAT, "m", ""), {"error": {}}, headers=())[0]["error"]


def test_what_infill_streams_is_text() -> None:
    first, last = lines(OllamaReply(GENERATE, "m", ""), {"content": "code"}, {"content": "", "timings": TIMINGS})
    assert (first["response"], last["eval_count"]) == ("code", 3)


@pytest.mark.parametrize(
    "odd", [{"choices": [7]}, {"choices": [{"delta": {"tool_calls": [7]}}]}, {"timings": {"prompt_ms": "x"}}]
)
def test_an_odd_reply_breaks_nothing(odd: dict[str, Any]) -> None:
    assert lines(OllamaReply(CHAT, "m", ""), odd)[-1]["done"]
    assert lines(OllamaReply(CHAT, "m", ""), odd, headers=())[-1]["done"]
