"""The agent loop when all goes well: rounds, prompt prefix, parallel calls, approvals, stopping, limits, timings."""

from __future__ import annotations

import asyncio
import itertools
import json
from contextlib import aclosing
from dataclasses import replace
from typing import Any

import msgspec
import pytest

from gpubox.agent.conversation import Conversation, request_messages
from gpubox.agent.events import (
    AgentEvent,
    Message,
    Notice,
    PrefillProgress,
    QuestionAsked,
    ReasoningDelta,
    RoundFinished,
    RoundRestarted,
    RoundStarted,
    TextDelta,
    ToolFinished,
    ToolRequested,
    TurnFailed,
    TurnFinished,
    TurnStarted,
    TurnTotals,
    decode_event,
    event_values,
)
from gpubox.agent.loop import AgentLoop
from gpubox.agent.settings import AgentSettings
from gpubox.agent.tools import Answer, OwnerQuestion, ToolCall, ToolOutput
from gpubox.errors import GpuboxError
from gpubox.server.client import connect
from gpubox.tui.chat.turn_parts import waterfall
from tests.scripted_server import FENCED, Play, ScriptedServer, call, chunk, refuses, runs, says
from tests.unit.agent_turns import Echo, run_turn


def _two_rounds() -> ScriptedServer:
    first = says("I look.", reasoning="hm", calls=[runs("print(6*7)")], finish="tool_calls", prompt=100)
    return ScriptedServer(first, says("It is 42.", prompt=30, cached=100))


async def test_the_events_of_a_turn_come_in_order() -> None:
    result = await run_turn(_two_rounds(), tools=[Echo("42")])
    kinds = [type(event) for event in result.events]
    order: list[type[AgentEvent]] = [TurnStarted, RoundStarted, PrefillProgress, ReasoningDelta, TextDelta]
    positions = [kinds.index(kind) for kind in order]
    assert positions == sorted(positions) and kinds[-1] is TurnFinished
    assert kinds.index(ToolRequested) < kinds.index(ToolFinished) < kinds.index(RoundFinished)
    assert result.shown == "I look.It is 42."
    assert result.finished.text == "It is 42." and result.finished.reason == "answered"
    assert [message.role for message in result.conversation.messages] == ["user", "assistant", "tool", "assistant"]


async def test_every_event_survives_json() -> None:
    for event in (await run_turn(_two_rounds(), tools=[Echo()])).events:
        line = msgspec.json.encode(event)
        assert b"\n" not in line and decode_event(line) == event and event_values(event)["event"] in line.decode()


async def test_a_conversation_rebuilt_from_its_events_is_sent_unchanged() -> None:
    result = await run_turn(_two_rounds(), tools=[Echo()])
    again = Conversation([Message("user", "go")])
    for event in result.events:
        again.apply(decode_event(msgspec.json.encode(event)))
    assert request_messages(again, "s", native=True) == request_messages(result.conversation, "s", native=True)


async def test_each_request_starts_with_the_one_before() -> None:
    conversation = Conversation()
    bodies: list[dict[str, Any]] = []
    for number in range(2):
        bodies += (await run_turn(_two_rounds(), f"task {number}", tools=[Echo()], conversation=conversation)).bodies
    for before, after in itertools.pairwise(bodies):
        assert json.dumps(after["messages"]).startswith(json.dumps(before["messages"])[:-1])
        rest = [{k: v for k, v in body.items() if k != "messages"} for body in (before, after)]
        assert json.dumps(rest[0]) == json.dumps(rest[1]), "tools and system text are the same bytes"
    assert bodies[1]["messages"][2]["reasoning_content"] == "hm"


async def test_reprocessed_tokens_are_those_the_server_had() -> None:
    def lost() -> ScriptedServer:
        first = says("a", calls=[runs("print(1)")], finish="tool_calls", prompt=100)
        return ScriptedServer(first, says("b", prompt=80, cached=60))

    first, second = (event.timing for event in (await run_turn(lost(), tools=[Echo()])).of(RoundFinished))
    assert (first.prefill_new_tokens, first.prefill_reprocessed_tokens) == (100, 0)
    assert (second.prefill_reprocessed_tokens, second.prefill_new_tokens) == (101 - 60, 80 - 41)
    assert second.prefill_reprocessed_seconds == pytest.approx(0.0008 * 41 / 80, rel=0.01)
    first, second = (event.timing for event in (await run_turn(_two_rounds(), tools=[Echo()])).of(RoundFinished))
    assert second.prefill_reprocessed_tokens == 2, "of three generated tokens the last is not in the cache"


@pytest.mark.parametrize("usage", [None, {"completion_tokens": 2, "prompt_tokens": 10_991}])
async def test_what_a_server_does_not_report_is_unknown(usage: dict[str, Any] | None) -> None:
    """vLLM, mlx and others send no timings, and no count of reused tokens; some send no usage at all."""

    def play(**delta: Any) -> Play:
        end = [chunk(None, usage=usage)] if usage else []
        finish = "tool_calls" if "tool_calls" in delta else "stop"
        return Play([chunk(delta), chunk({}, finish=finish), *end, b"data: [DONE]\n\n"])

    server = ScriptedServer(play(content="a", tool_calls=[runs("print(1)")]), play(content="b"))
    result = await run_turn(server, tools=[Echo()])
    totals = result.finished.totals.timing
    for timing in (*(event.timing for event in result.of(RoundFinished)), totals):
        counts = (timing.prefill_new_tokens, timing.prefill_reprocessed_tokens, timing.cached_tokens)
        assert counts == (None, None, None)
        assert (timing.context_tokens, timing.pp_tokens_per_second, timing.from_server) == (None, None, False)
    shown = "".join(text for line in waterfall(result.finished.totals, "", 200) for text, _ in line)
    assert "prompt — read, — reused" in shown and "reprocessed" not in shown
    assert f"~{totals.generated_tokens} tok" in shown


async def test_the_context_of_a_chat_is_what_its_own_rounds_used() -> None:
    rounds = [event.timing for event in (await run_turn(_two_rounds(), tools=[Echo()])).of(RoundFinished)]
    for timing in rounds:
        whole = (
            (timing.prefill_new_tokens or 0) + (timing.prefill_reprocessed_tokens or 0) + (timing.cached_tokens or 0)
        )
        assert timing.context_tokens == whole + timing.generated_tokens > 0


async def test_totals_are_the_sum_of_the_rounds() -> None:
    result = await run_turn(_two_rounds(), tools=[Echo()])
    rounds = [event.timing for event in result.of(RoundFinished)]
    totals = result.finished.totals
    assert totals.rounds == 2 and totals.tool_calls == 1 and totals.failed_tool_calls == 0
    assert totals.timing.wall_seconds == pytest.approx(sum(timing.wall_seconds for timing in rounds))
    assert totals.timing.generated_tokens == sum(timing.generated_tokens for timing in rounds)
    assert totals.effective_tokens_per_second == pytest.approx(
        totals.timing.generated_tokens / totals.timing.wall_seconds
    )


class Waiting(Echo):
    """Runs until as many calls as ``together`` are inside."""

    def __init__(self, together: int, parallel_safe: bool = True) -> None:
        super().__init__()
        self.inside = self.most = 0
        self.parallel_safe = parallel_safe
        self.all_in = asyncio.Event()
        self.together = together
        self.cancelled = 0

    async def run(self, call: ToolCall) -> ToolOutput:
        self.inside += 1
        self.most = max(self.most, self.inside)
        if self.inside >= self.together:
            self.all_in.set()
        try:
            await asyncio.wait_for(self.all_in.wait(), 20)
        except asyncio.CancelledError:
            self.cancelled += 1
            raise
        finally:
            self.inside -= 1
        return await super().run(call)


async def test_independent_calls_run_in_parallel_and_are_answered_in_order() -> None:
    tool = Waiting(3)
    calls = [runs(f"print({n})", n) for n in range(3)]
    result = await run_turn(ScriptedServer(says(calls=calls, finish="tool_calls"), says("ok")), tools=[tool])
    assert tool.most == 3
    assert [m["content"] for m in result.bodies[1]["messages"][-3:]] == [f"ran: print({n})" for n in range(3)]


async def test_calls_that_write_run_one_after_the_other() -> None:
    tool = Waiting(1, parallel_safe=False)
    calls = [runs(f"print({n})", n) for n in range(3)]
    await run_turn(ScriptedServer(says(calls=calls, finish="tool_calls"), says("ok")), tools=[tool])
    assert tool.most == 1 and len(tool.codes) == 3


class Writing(Echo):
    parallel_safe = False

    def question(self, call: ToolCall) -> OwnerQuestion | None:
        return OwnerQuestion("network", "+ line", call=call)


@pytest.mark.parametrize("allowed", [True, False])
async def test_the_owner_is_asked(allowed: bool) -> None:
    diffs: list[str] = []

    async def approve(question: OwnerQuestion) -> Answer:
        diffs.append(question.text)
        return Answer(allowed, "" if allowed else "too big")

    tool = Writing()
    server = ScriptedServer(says(calls=[runs("x = 1")], finish="tool_calls"), says("ok"))
    result = await run_turn(server, tools=[tool], loop=AgentLoop(approve, retry_seconds=0))
    assert diffs == ["+ line"] and result.of(QuestionAsked)[0].question.text == "+ line"
    assert tool.codes == (["x = 1"] if allowed else [])
    assert result.of(ToolFinished)[0].output.ended_by == ("" if allowed else "denied")
    if not allowed:
        assert result.bodies[1]["messages"][-1]["content"] == "The owner said no: too big"
    assert result.finished.text == "ok"


async def test_approval_time_is_not_tool_time() -> None:
    async def approve(question: OwnerQuestion) -> Answer:
        await asyncio.sleep(0.05)
        return Answer(True)

    settings = AgentSettings(max_turn_seconds=60)
    server = ScriptedServer(says(calls=[runs("x = 1")], finish="tool_calls"), says("ok"))
    result = await run_turn(server, tools=[Writing()], loop=AgentLoop(approve), settings=settings)
    timing = result.of(RoundFinished)[0].timing
    assert timing.approval_seconds >= 0.05 and timing.tool_seconds <= timing.wall_seconds - 0.05


class Refusing(Echo):
    async def run(self, call: ToolCall) -> ToolOutput:
        raise GpuboxError("Code cannot be run here: no bubblewrap.", "Install bubblewrap.")


class Broken(Echo):
    async def run(self, call: ToolCall) -> ToolOutput:
        raise KeyError("x")


async def test_the_model_reads_why_a_tool_refused_or_failed() -> None:
    for tool, error, notices in ((Refusing(), "no bubblewrap", ["refused"]), (Broken(), "KeyError", [])):
        server = ScriptedServer(says(calls=[runs("1")], finish="tool_calls"), says("ok"))
        result = await run_turn(server, tools=[tool])
        assert error in result.bodies[1]["messages"][-1]["content"] and result.notices == notices
        assert result.finished.totals.failed_tool_calls == 1


async def _stop_when(server: ScriptedServer, ready: asyncio.Event, tools: list[Any], *, cancel: bool) -> Conversation:
    conversation = Conversation([Message("user", "go")])
    loop = AgentLoop()
    events: list[Any] = []

    async def consume() -> None:
        async with (
            connect(server.url) as client,
            aclosing(loop.run(conversation, AgentSettings(), tools, client)) as run,
        ):
            async for event in run:
                events.append(event)

    async with server:
        task = asyncio.create_task(consume())
        await asyncio.wait_for(ready.wait(), 20)
        if cancel:
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
        else:
            loop.stop()
            await asyncio.wait_for(task, 20)
            assert isinstance(events[-1], TurnFinished) and events[-1].reason == "stopped"
        if any(play.hang for play in server.plays) or not tools:
            await asyncio.wait_for(server.left.wait(), 20)
    return conversation


@pytest.mark.parametrize("cancel", [False, True], ids=["stop", "cancel"])
async def test_stopping_in_mid_answer_closes_the_stream_and_keeps_the_text(cancel: bool) -> None:
    server = ScriptedServer(says("half an answer", hang=True))
    conversation = await _stop_when(server, server.streaming, [], cancel=cancel)
    assert conversation.messages[0].content == "go"
    for message in conversation.messages[1:]:
        assert message.partial and "half an answer".startswith(message.content)
    result = await run_turn(ScriptedServer(says("better")), "again", conversation=conversation)
    assert result.finished.text == "better"


@pytest.mark.parametrize("cancel", [False, True], ids=["stop", "cancel"])
async def test_stopping_in_a_tool_kills_it_and_answers_its_call(cancel: bool) -> None:
    tool = Waiting(99)
    started = asyncio.Event()
    run = tool.run

    async def noted(call: ToolCall) -> ToolOutput:
        started.set()
        return await run(call)

    tool.run = noted  # type: ignore[method-assign]
    server = ScriptedServer(says("I run.", calls=[runs("while 1: pass")], finish="tool_calls"))
    conversation = await _stop_when(server, started, [tool], cancel=cancel)
    assert tool.cancelled == 1 and tool.inside == 0
    assert [m.role for m in conversation.messages] == ["user", "assistant", "tool"]
    assert "not run" in conversation.messages[-1].content
    result = await run_turn(ScriptedServer(says("ok")), "again", conversation=conversation, tools=[Echo()])
    assert result.finished.text == "ok"


async def test_the_model_is_told_of_its_last_round() -> None:
    plays = [says(f"n{n}", calls=[runs(f"print({n})", identity=f"c{n}")], finish="tool_calls") for n in range(3)]
    result = await run_turn(ScriptedServer(*plays), tools=[Echo()], settings=AgentSettings(rounds=3))
    assert result.finished.reason == "rounds" and len(result.bodies) == 3
    hinted = ["one reply left" in body["messages"][-1]["content"] for body in result.bodies]
    assert hinted == [False, False, True]


async def test_the_token_limit_of_a_turn() -> None:
    plays = [says("x" * 70, calls=[runs(f"print({n})", identity=f"c{n}")], finish="tool_calls") for n in range(3)]
    settings = AgentSettings(max_tokens=12, max_turn_tokens=20)
    result = await run_turn(ScriptedServer(*plays), tools=[Echo()], settings=settings)
    assert result.finished.reason == "tokens" and [body["max_tokens"] for body in result.bodies] == [12, 9]


async def test_a_whole_fenced_program_ends_the_reply() -> None:
    server = ScriptedServer(says("```python\nprint(6*7)\n```\nIt prints 41.", hang=True), says("42."), caps=FENCED)
    tool = Echo("42")
    result = await run_turn(server, tools=[tool])
    assert tool.codes == ["print(6*7)"] and "41" not in result.conversation.messages[1].content
    assert result.of(RoundFinished)[0].finish_reason == "program"
    assert [message["role"] for message in result.bodies[1]["messages"]] == ["system", "user", "assistant", "user"]


async def test_a_chat_continues_under_the_other_protocol() -> None:
    conversation = (await run_turn(_two_rounds(), tools=[Echo("42")])).conversation
    result = await run_turn(ScriptedServer(says("ok"), caps=FENCED), "more", tools=[Echo()], conversation=conversation)
    sent = result.bodies[0]["messages"]
    assert not any("tool_calls" in message or message["role"] == "tool" for message in sent)
    assert "```python\nprint(6*7)\n```" in sent[2]["content"] and sent[3] == {"role": "user", "content": "42"}


async def test_without_tools_nothing_runs_and_the_prompt_names_none() -> None:
    result = await run_turn(ScriptedServer(says("```python\nprint(1)\n```")))
    assert "tools" not in result.bodies[0] and "```python" not in result.bodies[0]["messages"][0]["content"]
    assert result.finished.reason == "answered" and result.of(TurnStarted)[0].tools == ()


async def test_without_system_role_the_system_prompt_begins_the_first_message() -> None:
    server = ScriptedServer(says("ok"), caps={"supports_system_role": False})
    body = (await run_turn(server, "hello", settings=AgentSettings(system_prompt="Be short."))).bodies[0]
    assert body["messages"] == [{"role": "user", "content": "Be short.\n\nhello"}]


async def test_settings_reach_the_server() -> None:
    sampling = {"temperature": 0.6, "seed": 3, "chat_template_kwargs": {"x": 1}}
    settings = AgentSettings(sampling=sampling, thinking=False, thinking_budget_tokens=64)
    body = (await run_turn(ScriptedServer(says("ok")), settings=settings)).bodies[0]
    assert (body["temperature"], body["seed"], body["thinking_budget_tokens"]) == (0.6, 3, 64)
    assert body["chat_template_kwargs"] == {"x": 1, "enable_thinking": False}
    assert body["stream"] and body["cache_prompt"] and body["return_progress"]


async def test_a_full_context_is_compacted_before_the_server_refuses() -> None:
    turns = [
        says("a", calls=[runs(f"print({n})", identity=f"c{n}")], finish="tool_calls", prompt=1500) for n in range(3)
    ]
    server = ScriptedServer(*turns, says("done"), context=2000)
    result = await run_turn(server, tools=[Echo("y" * 5000)], settings=AgentSettings(max_tokens=100))
    assert result.finished.text == "done" and "compacted" in result.notices
    assert all(len(m["content"]) <= 2100 for body in result.bodies for m in body["messages"] if m["role"] == "tool")


async def test_a_server_that_says_when_to_ask_again_is_asked_again() -> None:
    busy = replace(refuses(429, "too many requests"), retry_after="0.01")
    result = await run_turn(ScriptedServer(busy, says("later")), tools=[])
    assert result.finished.text == "later" and len(result.bodies) == 2
    result = await run_turn(ScriptedServer(replace(busy, retry_after="3600"), says("later")), tools=[])
    assert "too many requests" in result.of(TurnFailed)[0].message and len(result.bodies) == 1


async def test_a_full_context_in_the_words_of_another_server_is_compacted() -> None:
    words = "This model's maximum context length is 4096 tokens. However, your request has 5000 input tokens."
    conversation = Conversation()
    for number in range(3):
        plays = ScriptedServer(says(calls=[runs(f"print('{'x' * 2000}{number}')")], finish="tool_calls"), says("ok"))
        await run_turn(plays, tools=[Echo()], conversation=conversation)
    full = Play(status=400, body={"error": {"message": words, "code": 400}})
    result = await run_turn(ScriptedServer(full, says("short")), tools=[Echo()], conversation=conversation)
    assert result.finished.text == "short"
    assert len(json.dumps(result.bodies[1])) < len(json.dumps(result.bodies[0]))


async def test_an_answer_that_a_filter_cut_is_said_to_be_cut() -> None:
    result = await run_turn(ScriptedServer(says("half", finish="content_filter")), tools=[])
    assert [notice.kind for notice in result.of(Notice)] == ["filtered"]


async def test_without_server_timings_the_client_measures() -> None:
    bare = says("abc def ghi")
    bare.lines = [line for line in bare.lines if b"delta" in line and b"progress" not in line]
    bare.lines = [line.replace(b"timings", b"ignored") for line in bare.lines]
    timing = (await run_turn(ScriptedServer(bare))).of(RoundFinished)[0].timing
    assert not timing.from_server and timing.generated_tokens == 2 and timing.draft_tokens is None


async def test_identical_calls_in_one_reply_run_once() -> None:
    tool = Echo()
    server = ScriptedServer(says(calls=[runs("1", 0), runs("1", 1)], finish="tool_calls"), says("ok"))
    result = await run_turn(server, tools=[tool])
    assert tool.codes == ["1"] and result.finished.text == "ok"


async def test_calls_under_one_index_with_ids_of_their_own_are_several() -> None:
    calls = [runs(f"print({number})", 0, f"c{number}") for number in range(3)]
    result = await run_turn(ScriptedServer(says("a", calls=calls, finish="tool_calls"), says("b")), tools=[Echo()])
    assert [event.call.code for event in result.of(ToolRequested)] == ["print(0)", "print(1)", "print(2)"]


async def test_an_old_function_call_is_a_call() -> None:
    legacy = {"name": "run", "arguments": '{"code": "print(1)"}'}
    first = Play([chunk({"function_call": legacy}), chunk({}, finish="function_call"), b"data: [DONE]\n\n"])
    result = await run_turn(ScriptedServer(first, says("b")), tools=[Echo()])
    assert [event.call.code for event in result.of(ToolRequested)] == ["print(1)"]


async def test_the_model_reads_which_of_many_calls_did_not_run() -> None:
    calls = [runs(f"print({number})", number) for number in range(11)]
    result = await run_turn(ScriptedServer(says("a", calls=calls, finish="tool_calls"), says("b")), tools=[Echo()])
    outputs = [event.output for event in result.of(ToolFinished)]
    assert [output.ok for output in outputs] == [True] * 8 + [False] * 3
    assert "a reply may hold 8 calls" in outputs[-1].text


async def test_call_ids_are_unique_in_a_chat() -> None:
    conversation = Conversation()
    for n in range(2):
        plays = ScriptedServer(says(calls=[call("run", f'{{"code": "{n}"}}')]), says("ok"))
        await run_turn(plays, tools=[Echo()], conversation=conversation)
    call_ids = [c.id for message in conversation.messages for c in message.tool_calls]
    assert len(set(call_ids)) == len(call_ids) == 2


async def test_a_stale_connection_is_replaced_silently() -> None:
    server = ScriptedServer(*(says(f"answer {n}") for n in range(3)))
    server.stale = True
    conversation = Conversation()
    async with server, connect(server.url) as client:
        for _ in range(3):
            conversation.add(Message("user", "go"))
            run = AgentLoop(retry_seconds=0).run(conversation, AgentSettings(), [Echo()], client)
            events = [event async for event in run]
            assert isinstance(events[0], TurnStarted) and events[0].protocol == "native"
            assert isinstance(events[-1], TurnFinished) and not any(isinstance(e, RoundRestarted) for e in events)


async def test_a_model_that_writes_programs_but_calls_nothing_gets_the_fenced_protocol() -> None:
    conversation = Conversation()
    block = "So:\n```python\nprint(1)\n```\n"
    protocols = []
    for plays in ((says(block),), (says(block),), (says(block), says("1.")), (says("No."),)):
        result = await run_turn(ScriptedServer(*plays), tools=[Echo()], conversation=conversation)
        protocols.append(result.of(TurnStarted)[0].protocol)
    assert protocols == ["native", "native", "fenced", "fenced"]


async def test_thinking_has_its_own_time_and_tokens() -> None:
    result = await run_turn(ScriptedServer(says("1234567" * 2, reasoning="1234567" * 6)))
    timing = result.of(RoundFinished)[0].timing
    assert (timing.thinking_tokens, timing.generated_tokens) == (6, 8)
    assert timing.thinking_seconds / (timing.thinking_seconds + timing.answer_seconds) == pytest.approx(6 / 8)


async def test_a_repeated_request_counts_in_the_totals() -> None:
    result = await run_turn(ScriptedServer(says("1234567" * 3, drop=True), says("ok")))
    given_up, kept = result.of(RoundRestarted)[0].timing, result.of(RoundFinished)[0].timing
    total = result.finished.totals.timing
    assert (given_up.generated_tokens, kept.generated_tokens, total.generated_tokens) == (3, 1, 4)
    assert total.wall_seconds == pytest.approx(given_up.wall_seconds + kept.wall_seconds)


async def test_an_endless_answer_is_cut_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gpubox.agent.completion.MAX_REPLY_CHARACTERS", 500)
    long_text = "".join(f"{n} " for n in range(1000))
    result = await run_turn(ScriptedServer(says(long_text, hang=True)))
    assert result.finished.reason == "length" and 500 < len(result.finished.text) < 600


class Reading(Echo):
    name = "read_file"


async def test_turn_started_names_the_tools_of_the_prompt() -> None:
    for caps, tools in ((None, ("run", "read_file")), (FENCED, ("run",))):
        result = await run_turn(ScriptedServer(says("ok"), caps=caps), tools=[Echo(), Reading()])
        assert result.of(TurnStarted)[0].tools == tools
    result = await run_turn(ScriptedServer(says("ok"), caps=FENCED), tools=[Reading()])
    assert result.of(TurnStarted)[0].protocol == "none" and "template" in result.of(TurnStarted)[0].why


async def test_a_turn_stopped_before_it_began_is_finished() -> None:
    loop = AgentLoop()
    async with ScriptedServer() as server, connect(server.url) as client:
        run = loop.run(Conversation([Message("user", "go")]), AgentSettings(), [], client)
        first = asyncio.ensure_future(anext(run))
        asyncio.get_running_loop().call_soon(loop.stop)
        assert await first == TurnFinished(TurnTotals(), "stopped")
        await run.aclose()


async def test_stopped_thinking_is_closed_in_the_history() -> None:
    server = ScriptedServer(says("<think>I wonder <b>", hang=True))
    conversation = await _stop_when(server, server.streaming, [], cancel=False)
    for message in conversation.messages[1:]:
        assert message.content.endswith("</think>\n")
