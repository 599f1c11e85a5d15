"""Misbehaving models and servers, scripted: each turn ends well or with one clear sentence."""

from __future__ import annotations

import asyncio
import json
import random
from typing import Any

import pytest

from gpubox.agent.conversation import Conversation
from gpubox.agent.events import Message, ReasoningDelta, RoundRestarted, ToolFinished, TurnFailed, TurnStarted
from gpubox.agent.loop import AgentLoop
from gpubox.agent.settings import AgentSettings
from gpubox.server.client import connect
from tests.scripted_server import FENCED, Play, ScriptedServer, call, chunk, refuses, runs, says
from tests.unit.agent_turns import Echo, run_turn

BLOCK = "Let me see.\n```python\nprint(6*7)\n```\n"
OVERFLOW = {"type": "exceed_context_size_error", "n_prompt_tokens": 5031, "n_ctx": 4096}


async def test_reply_of_only_thinking_is_requested_again_without_thinking() -> None:
    result = await run_turn(ScriptedServer(says(reasoning="hm hm"), says("42")))
    assert result.finished.text == "42"
    assert "thinking" not in json.dumps(result.bodies[0].get("chat_template_kwargs", {}))
    assert result.bodies[1]["chat_template_kwargs"] == {"enable_thinking": False}
    assert result.bodies[0]["messages"] == result.bodies[1]["messages"]


async def test_two_replies_of_only_thinking_fail_the_turn() -> None:
    result = await run_turn(
        ScriptedServer(says(reasoning="hm", finish="length"), says(reasoning="hm", finish="length"))
    )
    assert "only thinks" in result.failed.message and "max-tokens" in result.failed.hint
    assert "max_tokens ended" in result.of(RoundRestarted)[0].why


async def test_unclosed_thinking_is_neither_answer_nor_code() -> None:
    tool = Echo()
    server = ScriptedServer(says("<think>\nI try\n```python\nBAD\n```\n", finish="length"), says("Fine."), caps=FENCED)
    result = await run_turn(server, tools=[tool])
    assert result.finished.text == "Fine." and tool.codes == []
    assert "BAD" in "".join(event.text for event in result.of(ReasoningDelta)) and "BAD" not in result.shown


@pytest.mark.parametrize("content", ["", " \n\n "])
async def test_empty_answer_is_requested_again_then_fails_the_turn(content: str) -> None:
    result = await run_turn(ScriptedServer(says(content), says("Yes.")))
    assert result.finished.text == "Yes."
    result = await run_turn(ScriptedServer(says(content), says(content)))
    assert result.failed.message == "The model gave an empty answer twice." and result.failed.hint
    assert result.failed.by_model


async def test_content_of_parts_and_null_is_parsed() -> None:
    lines = [chunk({"content": [{"type": "text", "text": "A "}]}), chunk({"content": None})]
    result = await run_turn(
        ScriptedServer(Play([*lines, chunk({"content": {"text": "chip."}}), chunk({}, finish="stop")]))
    )
    assert result.finished.text == "A chip."


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        ('{"code": "print("hi")"}', 'print("hi")'),
        ('{"code": "a = 1\nprint(a)"}', "a = 1\nprint(a)"),
        ('"{\\"code\\": \\"print(1)\\"}"', "print(1)"),
        ("```python\nprint(2)\n```", "print(2)\n"),
        ("print(3)", "print(3)"),
        ('{"code": "print(4)"', "print(4)"),
    ],
)
async def test_malformed_arguments_are_repaired_and_sent_back_as_json(arguments: str, code: str) -> None:
    tool = Echo()
    result = await run_turn(
        ScriptedServer(says(calls=[call("run", arguments)], finish="tool_calls"), says("ok")), tools=[tool]
    )
    assert tool.codes == [code] and result.notices == ["repaired"] and result.finished.text == "ok"
    sent = result.bodies[1]["messages"][-2]["tool_calls"][0]["function"]["arguments"]
    assert json.loads(sent) == {"code": code}


@pytest.mark.parametrize("arguments", ["{]", "[1, 2]", '{"prog": "print(1)"}', '{"code": 5}', '{"code": ""}', ""])
async def test_arguments_beyond_repair_are_answered_with_the_error(arguments: str) -> None:
    tool = Echo()
    bad = call("run", arguments)
    result = await run_turn(ScriptedServer(says(calls=[bad], finish="tool_calls"), says("Sorry: 42")), tools=[tool])
    assert tool.codes == [] and result.notices == ["bad_arguments"] and result.finished.text == "Sorry: 42"
    assert result.bodies[1]["messages"][-1]["content"].startswith("Not run: ")


async def test_truncated_call_is_never_run() -> None:
    tool = Echo()
    cut = call("run", '{"code": "import os\\nfor name in os.listdir():\\n    os.remove(na')
    result = await run_turn(ScriptedServer(says(calls=[cut], finish="length"), says("Shorter.")), tools=[tool])
    assert tool.codes == [] and result.notices == ["truncated"] and result.finished.text == "Shorter."
    assert "cut off" in result.bodies[1]["messages"][-1]["content"]
    assert json.loads(result.bodies[1]["messages"][-2]["tool_calls"][0]["function"]["arguments"]) == {}


async def test_truncated_fenced_program_is_never_run() -> None:
    tool = Echo()
    server = ScriptedServer(says("```python\nprint(1", finish="length"), says("Short."), caps=FENCED)
    result = await run_turn(server, tools=[tool])
    assert tool.codes == [] and result.notices == ["truncated"] and result.finished.text == "Short."


async def test_repeated_calls_are_not_run_again_and_end_the_turn() -> None:
    tool = Echo()
    same = [says(calls=[runs("print(1)", identity=f"c{n}")], finish="tool_calls") for n in range(4)]
    result = await run_turn(ScriptedServer(*same), tools=[tool])
    assert tool.codes == ["print(1)"]
    assert result.finished.reason == "repetition" and result.notices == ["repeated", "repeated", "repetition"]
    assert "same call" in result.bodies[2]["messages"][-1]["content"]


async def test_repeated_fenced_program_is_the_answer() -> None:
    tool = Echo("42")
    result = await run_turn(ScriptedServer(says(BLOCK), says("So:\n" + BLOCK), caps=FENCED), tools=[tool])
    assert tool.codes == ["print(6*7)"] and result.finished.reason == "answered" and "So:" in result.finished.text
    assert result.notices == [] and result.conversation.messages[-1].role == "assistant"


async def test_fenced_program_that_failed_is_not_run_again_unchanged() -> None:
    tool = Echo("NameError", ok=False)
    result = await run_turn(ScriptedServer(says(BLOCK), says(BLOCK), says("I give up."), caps=FENCED), tools=[tool])
    assert len(tool.codes) == 1 and result.notices == ["repeated"] and result.finished.text == "I give up."


@pytest.mark.parametrize(
    "text",
    ["Paris is big. " * 200, "x" * 3000, "    self.assertEqual(1, 1)\n" * 60],
    ids=["sentence", "character", "line"],
)
async def test_repetition_ends_the_turn_with_a_notice(text: str) -> None:
    server = ScriptedServer(says("Well. " + text, hang=True))
    result = await run_turn(server)
    assert result.finished.reason == "repetition" and result.notices == ["repetition"]
    await asyncio.wait_for(server.left.wait(), 10)
    assert len(result.conversation.messages[-1].content) < 1000


async def test_repetition_in_thinking_is_requested_again_without_thinking() -> None:
    result = await run_turn(ScriptedServer(says(reasoning="wait, no. " * 400, hang=True), says("42")))
    assert result.finished.text == "42" and "repeated itself" in result.of(RoundRestarted)[0].why


async def test_answer_cut_by_max_tokens_is_reported() -> None:
    result = await run_turn(ScriptedServer(says("A long ans", finish="length")))
    assert result.finished.reason == "length" and result.finished.text == "A long ans"


async def test_overflow_compacts_the_oldest_output_and_keeps_the_prefix() -> None:
    outputs = [
        message
        for n in range(3)
        for message in (
            Message("assistant", f"```python\nprint({n})\n```"),
            Message("tool", f"Output:\n```\n{str(n) * 3000}\n```"),
        )
    ]
    conversation = Conversation([Message("user", "first"), *outputs, Message("assistant", "ok")])
    server = ScriptedServer(refuses(400, "exceeds", **OVERFLOW), says("done"), caps=FENCED)
    result = await run_turn(server, tools=[Echo()], conversation=conversation)
    assert result.finished.text == "done" and result.notices == ["compacted"]
    before, after = (body["messages"] for body in result.bodies)
    assert before[:3] == after[:3] and before[-1] == after[-1] and "removed" in after[3]["content"]
    assert after[7] == before[7], "the newest output stays"


async def test_an_output_that_alone_overflows_loses_its_middle() -> None:
    plays = [says("```python\nprint(1)\n```\n"), refuses(400, "exceeds", **OVERFLOW), says("done")]
    result = await run_turn(ScriptedServer(*plays, caps=FENCED), tools=[Echo(f"first {'8' * 3000} last")])
    assert result.finished.text == "done" and result.notices == ["compacted"]
    refused, accepted = (body["messages"][-1]["content"] for body in result.bodies[1:])
    assert "8" * 3000 in refused
    assert "first 8" in accepted and "8 last\n```" in accepted and "left out" in accepted and len(accepted) < 1200
    again = Conversation(result.conversation.messages[:1])
    for event in result.events:
        again.apply(event)
    assert again.messages == result.conversation.messages, "the chat's file makes the same prompt again"


async def test_an_output_that_never_fits_fails_the_turn() -> None:
    plays = [says("```python\nprint(1)\n```\n"), *[refuses(400, "exceeds", **OVERFLOW)] * 20]
    result = await run_turn(ScriptedServer(*plays, caps=FENCED), tools=[Echo("8" * 3000)])
    assert "5,031 of 4,096 tokens" in result.failed.message


async def test_an_overflow_of_unknown_size_makes_room_and_ends() -> None:
    unknown = refuses(400, "exceeds", type="exceed_context_size_error")
    plays = [says("```python\nprint(1)\n```\n"), unknown, says("done")]
    result = await run_turn(ScriptedServer(*plays, caps=FENCED, context=0), tools=[Echo("8" * 7000)])
    assert result.finished.text == "done" and len(result.bodies[-1]["messages"][-1]["content"]) < 3000
    plays = [says("```python\nprint(1)\n```\n"), *[unknown] * 20]
    result = await run_turn(ScriptedServer(*plays, caps=FENCED, context=0), tools=[Echo("8" * 7000)])
    assert "does not fit" in result.failed.message and len(result.bodies) < 10


async def test_overflow_with_nothing_to_compact_fails_the_turn() -> None:
    result = await run_turn(ScriptedServer(refuses(400, "exceeds", **OVERFLOW)))
    assert "5,031 of 4,096 tokens" in result.failed.message and "ctx-size" in result.failed.hint


async def test_5xx_is_requested_again_once_with_the_same_body() -> None:
    result = await run_turn(ScriptedServer(refuses(500, "Failed to parse input at pos 3"), says("ok")))
    assert result.finished.text == "ok" and len(result.of(RoundRestarted)) == 1
    assert result.bodies[0] == result.bodies[1]
    result = await run_turn(ScriptedServer(refuses(500, "a"), refuses(500, "raise_exception: no tools")))
    assert "raise_exception: no tools" in result.failed.message


async def test_error_page_of_a_proxy_becomes_one_line() -> None:
    page = b"<html>\r\n<head><title>413 Request\n Entity Too Large</title></head>\r\n<body><h1>nginx</h1></body></html>"
    message = (await run_turn(ScriptedServer(Play(status=413, body=page)))).failed.message
    assert message == "The server refused the request (HTTP 413): 413 Request Entity Too Large"
    message = (await run_turn(ScriptedServer(Play(status=413, body=b"too\nlong\n" * 50)))).failed.message
    assert "\n" not in message and message.startswith("The server refused the request (HTTP 413): too long")


async def test_loading_server_and_missing_key_are_reported() -> None:
    loading = refuses(503, "Loading model")
    assert "loading" in (await run_turn(ScriptedServer(loading, loading))).failed.message
    assert "API key" in (await run_turn(ScriptedServer(refuses(401, "Invalid API Key")))).failed.message


async def test_dropped_stream_is_requested_again_then_its_text_is_kept() -> None:
    result = await run_turn(ScriptedServer(says("half an ans", drop=True), says("whole")))
    assert result.finished.text == "whole" and [m.content for m in result.conversation.messages] == ["go", "whole"]
    result = await run_turn(ScriptedServer(says("half", drop=True), says("half again", drop=True)))
    assert "middle of" in result.failed.message and result.failed.messages_kept == 1
    assert result.conversation.messages[-1] == Message("assistant", "half again", partial=True)


async def test_error_in_the_stream_is_quoted() -> None:
    broken = Play([chunk({"content": "a"}), b'data: {"error": {"code": 500, "message": "Compute error."}}\n\n'])
    result = await run_turn(ScriptedServer(broken, broken))
    assert "Compute error." in result.failed.message


async def test_unknown_tool_is_answered_with_the_tools_there_are() -> None:
    bad = call("web_search", '{"query": "x"}')
    result = await run_turn(ScriptedServer(says(calls=[bad], finish="tool_calls"), says("ok")), tools=[Echo()])
    assert result.notices == ["unknown_tool"] and result.finished.text == "ok"
    assert "run" in result.bodies[1]["messages"][-1]["content"]


@pytest.mark.parametrize("name", ["python", "functions.run", "Code_Execution", "runn"])
async def test_similar_tool_names_are_accepted(name: str) -> None:
    tool = Echo()
    near = call(name, '{"code": "print(1)"}')
    result = await run_turn(ScriptedServer(says(calls=[near], finish="tool_calls"), says("ok")), tools=[tool])
    assert tool.codes == ["print(1)"] and result.finished.text == "ok"


TEXT_CALLS = [
    '<tool_call>\n{"name": "run", "arguments": {"code": "print(1)"}}\n</tool_call>',
    '<tool_call>{"name": "run", "arguments": {"code": "print(1)"}}',
    "<function=run>\n<parameter=code>\nprint(1)\n</parameter>\n</function>",
    '[TOOL_CALLS][{"name": "run", "arguments": {"code": "print(1)"}}]',
    '<|python_tag|>{"name": "run", "parameters": {"code": "print(1)"}}',
    '{"name": "run", "arguments": {"code": "print(1)"}}',
]


@pytest.mark.parametrize("caps", [None, FENCED], ids=["native", "fenced"])
@pytest.mark.parametrize("text", TEXT_CALLS, ids=range(len(TEXT_CALLS)))
async def test_tool_calls_in_text_are_run(text: str, caps: dict[str, bool] | None) -> None:
    tool = Echo()
    text = f"I run it. {text}" if text[0] == "<" else text
    result = await run_turn(ScriptedServer(says(text), says("ok"), caps=caps), tools=[tool])
    assert tool.codes == ["print(1)"] and result.notices == ["text_call"] and result.finished.text == "ok"


QUOTED_CALLS = [
    'Of course:\n```json\n{"name": "run", "arguments": {"code": "print(1)"}}\n```\nThat runs it.',
    'Write:\n```\n<tool_call>{"name": "run", "arguments": {"code": "print(1)"}}</tool_call>\n```',
    'It is `<tool_call>{"name": "run", "arguments": {"code": "print(1)"}}</tool_call>`.',
]


@pytest.mark.parametrize("text", QUOTED_CALLS)
async def test_a_quoted_call_runs_only_if_the_server_has_no_native_calls(text: str) -> None:
    native, fenced = Echo(), Echo()
    result = await run_turn(ScriptedServer(says(text)), tools=[native])
    assert native.codes == [] and result.finished.text == text
    await run_turn(ScriptedServer(says(text), says("ok"), caps=FENCED), tools=[fenced])
    assert fenced.codes == ["print(1)"]


async def test_without_native_calls_only_the_sandbox_is_called() -> None:
    class Write(Echo):
        name = "write_file"

    tools = [Echo(), Write()]
    for text in (*TEXT_CALLS, QUOTED_CALLS[0]):
        text = text.replace("run", "write_file")
        await run_turn(ScriptedServer(says(text), says("ok"), caps=FENCED), tools=tools)
    assert [tool.codes for tool in tools] == [[], []]


ODD_ARGUMENTS = [
    '{"code": "print(1)", "x": "\\ud800"}', '{"code": "print(\\udfff)"}', '{"code": "1", "\\ud83d": 1}',
    '{"code": "1", "n": 1e999, "m": -Infinity, "k": NaN}', '{"code": "1", "n": 1' + "0" * 4000 + "}",
    '{"code": "1", "n": 1' + "0" * 5000 + "}", '{"code": "1", "n": ' + "[" * 90 + "]" * 90 + "}",
    '{"code": "1", "n": ' + "[" * 900 + "]" * 900 + "}", "[" * 20_000, '{"code":' * 5_000, "{'code': '\\ud800'}",
    '{"code": "\x00"}', '{"code": "1", "code": "2"}', '{"code": null}', "null", "\ufeff{}", '{"code": ["1"]}',
]  # fmt: skip


@pytest.mark.parametrize("arguments", ODD_ARGUMENTS, ids=range(len(ODD_ARGUMENTS)))
async def test_no_arguments_end_a_turn(arguments: str) -> None:
    odd = call("run", arguments)
    names = ('"name": "run", "arguments": ', "<tool_call>{", "}</tool_call>")
    text = f"{names[1]}{names[0]}{arguments}{names[2]}"
    server = ScriptedServer(says(calls=[odd], finish="tool_calls"), says(text), says(text), says("ok"), says("ok"))
    result = await run_turn(server, tools=[Echo()])
    assert result.finished.reason


async def test_json_that_is_not_a_call_is_an_answer() -> None:
    result = await run_turn(ScriptedServer(says('{"name": "Bob", "arguments": {"age": 3}}')), tools=[Echo()])
    assert result.finished.text.startswith("{") and result.notices == []


async def test_garbage_lines_are_skipped_and_only_garbage_is_an_error() -> None:
    good = says("fine")
    good.lines[2:2] = [b"data: {not json\n\n", b"<html>\n", b": ping\n\n", b'data: ["list"]\n\n', b"data: \xff\xfe\n\n"]
    assert (await run_turn(ScriptedServer(good))).finished.text == "fine"
    garbage = Play([b"<html><body>router</body></html>\n"])
    result = await run_turn(ScriptedServer(garbage, Play(list(garbage.lines))))
    assert "not a completion stream" in result.failed.message and "llama-server" in result.failed.hint


async def test_nonsense_values_in_chunks_raise_nothing() -> None:
    odd: list[Any] = [
        {"content": 5},
        {"tool_calls": "x"},
        {"tool_calls": [None, {"index": "a", "function": 3}, {"index": -1}]},
        {"reasoning_content": {"a": 1}},
    ]
    lines = [*(chunk(delta, timings={"predicted_n": "many"}, usage=[1]) for delta in odd), b'data: {"choices": 3}\n\n']
    result = await run_turn(ScriptedServer(Play([*lines, chunk({"content": "ok"}), chunk({}, finish="stop")])))
    assert result.finished.text == "ok"


async def test_a_long_line_is_text_and_an_endless_one_is_an_error() -> None:
    long_text = "".join(f"{n} " for n in range(150_000))
    result = await run_turn(ScriptedServer(says([long_text])))
    assert result.finished.text == long_text.strip()
    endless = Play([b'data: {"choices": [{"delta": {"content": "' + b"x" * (9 << 20)])
    assert "that is too long" in (await run_turn(ScriptedServer(endless))).failed.message


async def test_ansi_rtl_markup_and_half_an_emoji_stay_text() -> None:
    nasty = "[/foo] \x1b[31mred\x1b[0m \u202eabc\u202c \x00 [bold]x[/bold] \U0001f600 "
    line = chunk({"content": "z"}).replace(b'"z"', b'"\\ud83d"')
    play_it = says(nasty)
    play_it.lines.insert(-3, line)
    result = await run_turn(ScriptedServer(play_it))
    assert result.finished.text == nasty.strip()


async def test_an_emoji_in_two_halves_is_one() -> None:
    play_it = says("ab")
    halves = [chunk({"content": "z"}).replace(b'"z"', half) for half in (b'"\\ud83d"', b'"\\ude00!"')]
    play_it.lines[-3:-3] = halves
    assert (await run_turn(ScriptedServer(play_it))).finished.text == "ab\U0001f600!"


async def test_ansi_in_tool_output_does_not_reach_the_model() -> None:
    tool = Echo("\x1b[31mred\x1b[0m [/foo] \u202e" + "y" * 50_000 + "the end")
    result = await run_turn(ScriptedServer(says(calls=[runs("x")], finish="tool_calls"), says("ok")), tools=[tool])
    sent = result.bodies[1]["messages"][-1]["content"]
    assert sent.startswith("red [/foo]") and sent.endswith("the end") and len(sent) < 9000
    assert result.of(ToolFinished)[0].output.dropped_bytes > 40_000


async def test_a_silent_server_fails_the_turn() -> None:
    settings = AgentSettings(silence_seconds=0.2)
    result = await run_turn(ScriptedServer(says("a", hang=True)), settings=settings)
    assert "silent" in result.failed.message and result.failed.hint


async def test_an_endless_stream_reaches_the_time_limit() -> None:
    settings = AgentSettings(max_turn_seconds=0.3)
    result = await run_turn(ScriptedServer(says("a", hang=True)), settings=settings)
    assert result.finished.reason == "wall" and result.notices == ["wall"]


async def test_a_server_that_is_gone_fails_the_turn() -> None:
    async with ScriptedServer() as server:
        pass
    conversation = Conversation([Message("user", "go")])
    async with connect(server.url) as client:
        run = AgentLoop(retry_seconds=0).run(conversation, AgentSettings(), [], client)
        end = [event async for event in run][-1]
    assert isinstance(end, TurnFailed) and "does not answer" in end.message and end.hint


async def test_the_protocol_follows_the_template() -> None:
    for caps, protocol in ((None, "native"), (FENCED, "fenced")):
        result = await run_turn(ScriptedServer(says("ok"), caps=caps), tools=[Echo()])
        started = result.of(TurnStarted)[0]
        assert started.protocol == protocol and started.why and ("tools" in result.bodies[0]) == (protocol == "native")


ATOMS = [*'{}[\\"\n ', "```python\n", "```\n", "~~~", "print(1)\n", "def f(:\n", "<think>", "</think>", "<tool_call>"]
ATOMS += [
    "</tool_call>",
    '{"name": "run", "arguments": ',
    '{"code": "print(1)"}',
    "<function=run>",
]
ATOMS += ["<parameter=code>", "[TOOL_CALLS]", "<|python_tag|>", "hello ", "\x1b[31m", "[/foo]", "\u202e", "\U0001f600"]


@pytest.mark.parametrize("seed", range(4))
async def test_random_replies_leave_a_usable_chat(seed: int) -> None:
    dice = random.Random(seed)
    conversation = Conversation()

    def random_text(max_parts: int) -> str:
        return "".join(dice.choice(ATOMS) for _ in range(dice.randrange(max_parts)))

    def nonsense() -> Play:
        if dice.random() < 0.1:
            return refuses(dice.choice([400, 500, 503]), "bad")
        names = ["run", "python", "x", ""]
        calls = [call(dice.choice(names), random_text(5), i, dice.choice(["", "a"])) for i in range(dice.randrange(3))]
        finish = dice.choice(["stop", "length", "tool_calls"])
        return says(random_text(20), reasoning=random_text(4), calls=calls, finish=finish, drop=dice.random() < 0.1)

    for caps in (None, FENCED, {}, None, FENCED):
        plays = [nonsense() for _ in range(7)]  # run_turn() checks the requests and the end
        await run_turn(ScriptedServer(*plays, caps=caps), tools=[Echo()], conversation=conversation)
