"""A hundred odd servers: the turn ends as an answer, a run or a sentence, and the chat goes on."""

from __future__ import annotations

import asyncio
import gzip
import json
from typing import Any

import pytest

from gpubox.agent.conversation import Conversation
from gpubox.agent.events import TurnFailed
from gpubox.agent.settings import AgentSettings
from tests.scripted_server import FENCED, Play, ScriptedServer, call, chunk, refuses, runs, says
from tests.unit.agent_turns import Echo, run_turn

END = [chunk({}, finish="stop"), b"data: [DONE]\n\n"]
HI = [chunk({"content": "hi "}), chunk({"content": "there"})]
DONE = b"data: [DONE]\n\n"
OK = says("hi there")
STREAM = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n"
CLOSE = b"Connection: close\r\n\r\n"
GZIP = STREAM + b"Content-Encoding: gzip\r\n" + CLOSE
WHOLE = {"choices": [{"index": 0, "finish_reason": "stop", "message": {"role": "assistant", "content": "hi there"}}]}
DEEP = '{"choices": ' + "[" * 3000 + "]" * 3000 + "}"
CALL = runs("print(1)")
CALLED = chunk({}, finish="tool_calls")


def sse(*lines: bytes, end: bool = True) -> Play:
    return Play([*lines, *(END if end else ())])


def raw(*pieces: bytes, head: bytes = STREAM + CLOSE) -> Play:
    return Play(raw=[head, *pieces])


def joined(*lines: bytes) -> bytes:
    return b"".join([*lines, *END])


def data(values: Any) -> bytes:
    return b"data: " + json.dumps(values).encode() + b"\n\n"


def with_field(**fields: Any) -> Play:
    """Every chunk has these odd fields."""
    values = {"choices": [{"index": 0, "delta": {"content": "hi there"}, "finish_reason": None}], **fields}
    return sse(data(values))


def with_delta(**delta: Any) -> Play:
    return sse(chunk({"content": "hi there"}), chunk(delta))


def status(code: int, body: bytes = b"", headers: bytes = b"") -> Play:
    head = b"HTTP/1.1 %d X\r\nContent-Length: %d\r\n" % (code, len(body))
    return Play(raw=[head + headers + CLOSE, body])


def called(*calls: dict[str, Any], end: bytes = CALLED) -> Play:
    return Play([*(chunk({"tool_calls": [item]}) for item in calls), end, DONE])


def piece(**function: Any) -> dict[str, Any]:
    return {"index": 0, "function": function}


ARGUMENTS = '{"code": "print(1)"}'
ANSWERS: dict[str, list[Play]] = {
    # -- framing
    "no DONE": [Play([*HI, END[0]])],
    "broken, then whole": [Play([HI[0]], drop=True), OK],
    "ended before its end, then whole": [Play([HI[0]]), OK],
    "CRLF": [raw(joined(*HI).replace(b"\n", b"\r\n"))],
    "a BOM first": [raw(b"\xef\xbb\xbf" + joined(chunk({"role": "assistant"}), *HI))],
    "no space after the colon": [raw(joined(*HI).replace(b"data: ", b"data:"))],
    "tabs and spaces after the colon": [raw(joined(*HI).replace(b"data: ", b"data: \t  "))],
    "no blank lines": [raw(joined(*HI).replace(b"\n\n", b"\n"))],
    "many blank lines": [raw(joined(*HI).replace(b"\n\n", b"\n\n\n\r\n\n"))],
    "comments": [sse(b": ping\n\n", HI[0], b":\n\n", b": ping\n\n", HI[1])],
    "event, id and retry fields": [sse(b"event: message\nid: 1\nretry: 10\n", HI[0], b"id\n", HI[1])],
    "DONE twice": [Play([*HI, *END, DONE, DONE])],
    "text after DONE": [Play([*HI, *END, chunk({"content": "more"})])],
    "garbage after DONE": [raw(joined(*HI), b"\x00\xff garbage\n" * 9)],
    "garbage between": [sse(HI[0], b"<html>\n", b"data: {not json\n\n", b"\x00\x01\x02\n", HI[1])],
    "empty data": [sse(HI[0], b"data:\n\n", b"data: \n\n", HI[1])],
    "data null, list, number": [sse(HI[0], b"data: null\n\ndata: []\n\ndata: 7\n\n", HI[1])],
    "byte for byte": [raw(*(bytes([byte]) for byte in joined(*HI)))],
    "the last line without its end": [raw(joined(*HI).removesuffix(DONE).rstrip(b"\n"))],
    "a whole answer instead of a stream": [raw(json.dumps(WHOLE).encode(), head=b"HTTP/1.1 200 OK\r\n" + CLOSE)],
    "a whole answer in one event": [Play([data(WHOLE), DONE])],
    "HTTP/1.0 without a length": [raw(joined(*HI), head=b"HTTP/1.0 200 OK\r\n\r\n")],
    "no content type": [raw(joined(*HI), head=b"HTTP/1.1 200 OK\r\n" + CLOSE)],
    "JSON as content type": [raw(joined(*HI), head=b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n" + CLOSE)],
    "gzip that nobody asked for": [raw(gzip.compress(joined(*HI)), head=GZIP)],
    "a length that is too large": [raw(joined(*HI), head=STREAM + b"Content-Length: 99999\r\n\r\n")],
    "100 Continue first": [raw(joined(*HI), head=b"HTTP/1.1 100 Continue\r\n\r\n" + STREAM + CLOSE)],
    "many headers": [raw(joined(*HI), head=STREAM + b"X-A: b\r\n" * 90 + CLOSE)],
    # -- fields
    "null delta": [sse(*HI, data({"choices": [{"delta": None}]}))],
    "null and empty choices": [sse(HI[0], data({"choices": None}), data({"choices": []}), data({}), HI[1])],
    "choices of other types": [sse(*HI, data({"choices": "x"}), data({"choices": [None]}), data({"choices": [[1]]}))],
    "two choices": [sse(data({"choices": [{"delta": {"content": "hi there"}}, {"delta": {"content": "or not"}}]}))],
    "content null": [with_delta(content=None)],
    "content is a number": [with_delta(content=5)],
    "content in parts": [sse(chunk({"content": [{"type": "text", "text": "hi "}, {"text": "there"}, 7, None]}))],
    "content in nested parts": [sse(chunk({"content": {"text": "hi there"}}))],
    "text of a completion": [sse(data({"choices": [{"text": "hi there"}]}))],
    "role only": [with_delta(role="assistant")],
    "an unknown role": [with_delta(role="wizard")],
    "reasoning twice": [with_delta(reasoning="a", reasoning_content="a")],
    "reasoning of another type": [with_delta(reasoning_content={"a": [1]})],
    "a finish reason that is a number": [sse(*HI, data({"choices": [{"delta": {}, "finish_reason": 7}]}))],
    "no finish reason": [Play([*HI, DONE])],
    "an unknown finish reason": [Play([*HI, chunk({}, finish="eos_token"), DONE])],
    "negative usage": [with_field(usage={"prompt_tokens": -5, "completion_tokens": -1})],
    "usage in words": [with_field(usage={"prompt_tokens": "many", "completion_tokens": [], "x": 3})],
    "huge usage": [with_field(usage={"prompt_tokens": 10**30, "completion_tokens": 1e300})],
    "usage is a list": [with_field(usage=[1, 2])],
    "timings in words": [with_field(timings={"prompt_n": "x", "predicted_n": None, "prompt_ms": "y"})],
    "negative timings": [with_field(timings={"prompt_n": -1, "cache_n": -9, "predicted_n": -3, "predicted_ms": -1})],
    "huge timings": [with_field(timings={"prompt_n": 2**60, "predicted_n": 2**60, "predicted_ms": 1e308})],
    "progress in words": [with_field(prompt_progress={"total": "all", "cache": {}, "processed": -1})],
    "progress of nothing": [with_field(prompt_progress={"total": 0, "cache": 0, "processed": 0})],
    "a model that is a list": [with_field(model=["a"], id=3, created="now")],
    "a huge id": [with_field(id="x" * 300_000)],
    "no error": [with_field(error=None)],
    "an empty error": [with_field(error="")],
    "deep nesting": [sse(*HI, f"data: {DEEP}\n\n".encode())],
    "NaN and Infinity": [sse(*HI, b'data: {"choices": [], "x": NaN, "y": -Infinity}\n\n')],
    "a key twice": [sse(*HI, b'data: {"choices": [], "choices": []}\n\n')],
    "halves of an emoji": [sse(*HI, b'data: {"choices": [{"delta": {"content": "\\ud83d"}}], "x": "\\udc00"}\n\n')],
    "control codes": [sse(*HI, chunk({"reasoning_content": "\x1b[2J\x00\u202e"}))],
    "tool calls null": [with_delta(tool_calls=None)],
    "tool calls of other types": [with_delta(tool_calls={"0": 1})],
    "a function call null": [with_delta(function_call=None)],
    # -- statuses, then well
    "429 with Retry-After": [status(429, b"{}", b"Retry-After: 0\r\n"), OK],
    "500": [status(500, b"oops"), OK],
    "502 of a proxy": [status(502, b"<html><title>Bad gateway</title></html>"), OK],
    "503 loading": [refuses(503, "Loading model"), OK],
    "504": [status(504), OK],
    "529": [status(529, b'{"error": "overloaded"}'), OK],
    "closed at once": [Play(raw=[b""]), OK],
    "garbage instead of HTTP": [Play(raw=[b"\x15\x03\x01\x00\x02\x02\x16"]), Play(raw=[b"SSH-2.0-x\r\n"]), OK],
    "an empty 200": [status(200), OK],
    "only pings": [sse(b": ping\n\n", end=False), OK],
    "an empty answer": [sse(), OK],
}  # fmt: skip
RUNS: dict[str, Play] = {
    "arguments as an object": called(piece(name="run", arguments={"code": "print(1)"})),
    "arguments in pieces": called(
        piece(name="run", arguments=""), *(piece(arguments=letter) for letter in ARGUMENTS)
    ),
    "arguments null first": called(piece(name="run", arguments=None), piece(arguments=ARGUMENTS)),
    "no index": called({"function": {"name": "run", "arguments": ARGUMENTS}}),
    "an index in words": called({"index": "0", "id": 5} | {"function": CALL["function"]}),
    "an empty id": called(call("run", ARGUMENTS) | {"id": ""}),
    "a huge id": called(call("run", ARGUMENTS, identity="i" * 100_000)),
    "the same id twice": called(call("run", ARGUMENTS, 0, "a"), call("run", ARGUMENTS, 1, "a")),
    "an empty name beside it": called(CALL, call("", "{}", 1)),
    "a name null beside it": called(CALL, {"index": 1, "function": {"name": None, "arguments": None}}),
    "an unknown type": called(CALL | {"type": "custom"}),
    "finished as if it were none": called(CALL, end=chunk({}, finish="stop")),
    "after the finish reason": Play([chunk({}, finish="tool_calls"), chunk({"tool_calls": [CALL]}), DONE]),
    "with text": Play([*HI, chunk({"tool_calls": [CALL]}), CALLED, DONE]),
    "of old": Play([
        chunk({"function_call": {"name": "run", "arguments": ARGUMENTS}}),
        chunk({}, finish="function_call"), DONE,
    ]),
    "in a whole answer": raw(
        json.dumps({"choices": [{"message": {"tool_calls": [CALL]}, "finish_reason": "tool_calls"}]}).encode()
    ),
}  # fmt: skip
FAILS: dict[str, tuple[list[Play], str]] = {
    "HTML": ([raw(b"<html>\n<body>router</body>\n</html>\n")] * 2, "not a completion stream"),
    "two objects a line": ([raw(b'data: {"a": 1}{"b": 2}\n\n')] * 2, "not a completion stream"),
    "CR alone": ([raw(joined(*HI).replace(b"\n", b"\r"))] * 2, "not a completion stream"),
    "an error as a 200": ([raw(b'{"error": {"message": "out of memory"}}')] * 2, "out of memory"),
    "an error in the stream": ([sse(HI[0], data({"error": {"message": "kaput"}}))] * 2, "kaput"),
    "an error without words": ([sse(HI[0], data({"error": {"code": 5}}))] * 2, "an error without a message"),
    "an endless line": ([raw(*[b"x" * 2**20] * 9)], "too long"),
    "204": ([status(204)], "HTTP 204"),
    "vLLM's overflow": (
        [refuses(400, "This model's maximum context length is 4096 tokens. However, you requested 5000 tokens.")],
        "5,000 of 4,096",
    ),
    "broken twice": ([Play([HI[0]], drop=True)] * 2, "middle of"),
    "ended too early twice": ([Play([HI[0]])] * 2, "middle of its answer"),
    "gzip that is none": ([raw(joined(*HI), head=GZIP)] * 2, "broke"),
    "broken chunks": ([raw(b"zz\r\nhi", head=STREAM + b"Transfer-Encoding: chunked\r\n\r\n")] * 2, "broke"),
    "301": ([status(301, b"", b"Location: http://127.0.0.1:1/\r\n")], "HTTP 301"),
    "307": ([status(307, b"", b"Location: /elsewhere\r\n")], "HTTP 307"),
    "400 with a text": ([status(400, b'{"error": "bad field"}')], "bad field"),
    "400 with null": ([status(400, b'{"error": null}')], "HTTP 400"),
    "400 with a list": ([status(400, b"[1]")], "HTTP 400"),
    "401": ([status(401)], "API key"),
    "402": ([status(402, b'{"error": {"message": "Insufficient credits"}}')], "Insufficient credits"),
    "403": ([status(403, b"<title>Forbidden</title>")], "Forbidden"),
    "404": ([status(404)], "no chat completions endpoint"),
    "404 of a model": ([status(404, b'{"error": {"message": "model x not found"}}')], "model x not found"),
    "408": ([status(408)], "HTTP 408"),
    "413": ([status(413, b"<title>Too large</title>")], "Too large"),
    "422": ([status(422, b'{"detail": [{"msg": "field required"}]}')], "field required"),
    "429": ([status(429, b"slow down")], "slow down"),
    "500 twice": ([status(500, b"oops")] * 2, "oops"),
    "silence": ([says("hi", hang=True)], "silent"),
    "an overflow that stays": (
        [refuses(400, "x", type="exceed_context_size_error", n_ctx=9, n_prompt_tokens=99)], "99 of 9 tokens"
    ),
}  # fmt: skip


async def goes_on(conversation: Conversation) -> None:
    """The chat can go on after whatever was."""
    result = await run_turn(ScriptedServer(says("fine")), "And now?", tools=[Echo()], conversation=conversation)
    assert result.finished.text == "fine"


@pytest.mark.parametrize("name", ANSWERS)
async def test_an_odd_server_answers(name: str) -> None:
    conversation = Conversation()
    async with asyncio.timeout(20):
        result = await run_turn(ScriptedServer(*ANSWERS[name]), tools=[Echo()], conversation=conversation)
        assert result.finished.text == "hi there"
        await goes_on(conversation)


@pytest.mark.parametrize("name", RUNS)
async def test_an_odd_call_runs(name: str) -> None:
    tool, conversation = Echo(), Conversation()
    async with asyncio.timeout(20):
        result = await run_turn(ScriptedServer(RUNS[name], says("ok")), tools=[tool], conversation=conversation)
        assert tool.codes == ["print(1)"] and result.finished.text == "ok"
        await goes_on(conversation)


@pytest.mark.parametrize("name", FAILS)
async def test_an_odd_server_ends_the_turn_with_a_sentence(name: str) -> None:
    plays, words = FAILS[name]
    conversation = Conversation()
    async with asyncio.timeout(20):
        settings = AgentSettings(silence_seconds=0.3)
        result = await run_turn(ScriptedServer(*plays), tools=[Echo()], settings=settings, conversation=conversation)
        assert isinstance(result.end, TurnFailed) and words in result.end.message, result.end
        assert result.end.message.count("\n") == 0 and len(result.end.message) < 400
        await goes_on(conversation)


def test_there_are_a_hundred() -> None:
    assert len(ANSWERS) + len(RUNS) + len(FAILS) >= 100


# -- the families of calls, where the server did not read them ----------------------------------------

FAMILIES = {
    "hermes": '<tool_call>\n{"name": "run", "arguments": {"code": "print(1)"}}\n</tool_call>',
    "qwen3-coder": "<tool_call>\n<function=run>\n<parameter=code>\nprint(1)\n</parameter>\n</function>\n</tool_call>",
    "glm": "<tool_call>run\n<arg_key>code</arg_key>\n<arg_value>print(1)</arg_value>\n</tool_call>",
    "minimax": '<minimax:tool_call>\n<invoke name="run">\n<parameter name="code">print(1)</parameter>\n</invoke>\n</minimax:tool_call>',  # noqa: E501
    "harmony": '<|start|>assistant<|channel|>commentary to=functions.run <|constrain|>json<|message|>{"code": "print(1)"}<|call|>',  # noqa: E501
    "deepseek": '<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>run<｜tool▁sep｜>{"code": "print(1)"}<｜tool▁call▁end｜><｜tool▁calls▁end｜>',  # noqa: E501
    "deepseek r1": '<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>run\n```json\n{"code": "print(1)"}\n```<｜tool▁call▁end｜>',  # noqa: E501
    "kimi": '<|tool_calls_section_begin|><|tool_call_begin|>functions.run:0<|tool_call_argument_begin|>{"code": "print(1)"}<|tool_call_end|><|tool_calls_section_end|>',  # noqa: E501
    "llama": '<|python_tag|>{"name": "run", "parameters": {"code": "print(1)"}}',
    "pythonic": "[run(code='print(1)')]",
    "llama 4": '<|python_start|>[run(code="print(1)")]<|python_end|>',
    "mistral": '[TOOL_CALLS]run{"code": "print(1)"}',
    "mistral of old": '[TOOL_CALLS][{"name": "run", "arguments": {"code": "print(1)"}}]',
    "gemma": '<|tool_call>call:run{code:<|"|>print(1)<|"|>}<tool_call|>',
    "json": '{"name": "run", "arguments": {"code": "print(1)"}}',
}  # fmt: skip


@pytest.mark.parametrize("caps", [None, FENCED], ids=["native", "fenced"])
@pytest.mark.parametrize("name", FAMILIES)
async def test_a_call_of_every_family_runs(name: str, caps: dict[str, bool] | None) -> None:
    tool = Echo()
    result = await run_turn(ScriptedServer(says(FAMILIES[name]), says("ok"), caps=caps), tools=[tool])
    assert tool.codes == ["print(1)"] and result.finished.text == "ok"


QUOTES = (
    "```\n{}\n```", "```xml\n{}\n```\nThat is it.", "~~~\n{}\n~~~", "````\n```\n{}\n```\n````",
    "````\na ``` b\n{}\n````", "See:\n\n    {}\n", "See:\n\t{}\n", "The file says:\n> {}\n", "> > {}",
    'It says "{}".', "It says '{}'.", "It says \u201c{}\u201d.", "It is `{}`.", "It is `` {} ``.",
    "- a\n  ```\n  {}\n  ```", "<pre>{}</pre>", "<pre>\n{}\n</pre>", "<code>{}</code>", "<!-- {} -->",
    "| form | {} |", "```\n{}", "1. ```\n   {}\n   ```",
)  # fmt: skip


@pytest.mark.parametrize("quote", QUOTES)
async def test_a_quoted_call_does_not_run_where_calls_are_native(quote: str) -> None:
    for name, text in FAMILIES.items():
        tool = Echo()
        result = await run_turn(ScriptedServer(says([quote.format(text)]), says("ok")), tools=[tool])
        assert tool.codes == [] and len(result.bodies) == 1, name
