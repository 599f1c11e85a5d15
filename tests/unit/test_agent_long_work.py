"""Long work: budgets and the question to go on, what is typed meanwhile, compaction, what was read again, images."""

from __future__ import annotations

import asyncio
import itertools
import json
import re
from pathlib import Path
from typing import Any

import msgspec
import pytest

from gpubox.agent.chat_log import ChatLog, TurnHeader
from gpubox.agent.compaction import GO_ON, SUMMARY_REQUEST, compact, compaction_cost, read_ahead, wants_compaction
from gpubox.agent.conversation import UNDERSTOOD, Conversation, request_messages
from gpubox.agent.events import (
    AgentEvent,
    Compacted,
    Message,
    QuestionAsked,
    RoundFinished,
    RoundStarted,
    ToolFinished,
    decode_event,
)
from gpubox.agent.files_named import read_named
from gpubox.agent.images import MAX_BYTES, image_urls, store_image
from gpubox.agent.loop import FINISHED_OUTPUT, LAST_REPLY, AgentLoop
from gpubox.agent.settings import AgentSettings
from gpubox.agent.tools import Answer, AskOwner, OwnerQuestion, ToolCall, ToolOutput
from gpubox.errors import GpuboxError
from gpubox.sandbox.layers import View
from gpubox.server.client import connect
from tests.scripted_server import FENCED, Play, ScriptedServer, call, refuses, runs, says
from tests.unit.agent_turns import Echo, run_turn

SUMMARY_START = SUMMARY_REQUEST[:30]


def rounds(count: int, first: int = 0, **how: Any) -> list[Play]:
    return [
        says(f"n{n}", calls=[runs(f"print({n})", identity=f"c{n}")], finish="tool_calls", **how)
        for n in range(first, first + count)
    ]


def answering(*answers: Answer) -> tuple[list[OwnerQuestion], AskOwner]:
    questions: list[OwnerQuestion] = []

    async def ask(question: OwnerQuestion) -> Answer:
        questions.append(question)
        return answers[len(questions) - 1]

    return questions, ask


# -- budgets -----------------------------------------------------------------------------------------


async def test_a_yes_adds_as_many_rounds_again() -> None:
    questions, ask = answering(Answer(True))
    server = ScriptedServer(*rounds(3), says("Done."))
    result = await run_turn(
        server, tools=[Echo()], settings=AgentSettings(rounds=2), loop=AgentLoop(ask, retry_seconds=0)
    )
    assert result.finished.reason == "answered" and result.finished.text == "Done."
    assert [question.kind for question in questions] == ["go_on"]
    assert questions[0].text == "2 rounds are used, 4 tokens, 0 minutes. Go on for as many again?"
    assert [(event.round, event.rounds) for event in result.of(RoundStarted)] == [(1, 2), (2, 2), (3, 4), (4, 4)]
    used = [event.generated_tokens for event in result.of(RoundStarted)]
    assert used == [0, 2, 4, 6] and result.of(RoundStarted)[0].max_generated_tokens == 65536
    assert not any(LAST_REPLY in json.dumps(body) for body in result.bodies)


async def test_a_no_ends_the_turn_with_one_last_reply_that_runs_nothing() -> None:
    _, ask = answering(Answer(False, "enough"))
    tool = Echo()
    server = ScriptedServer(*rounds(2), says("So far.", calls=[runs("print(9)")], finish="tool_calls"))
    result = await run_turn(
        server, tools=[tool], settings=AgentSettings(rounds=2), loop=AgentLoop(ask, retry_seconds=0)
    )
    assert (result.finished.reason, result.finished.text) == ("rounds", "So far.")
    assert tool.codes == ["print(0)", "print(1)"]
    assert [message["role"] for message in result.bodies[-1]["messages"]][-3:] == ["tool", "assistant", "user"]
    assert result.bodies[-1]["messages"][-1]["content"] == LAST_REPLY
    result = await run_turn(ScriptedServer(says("ok")), "more", tools=[tool], conversation=result.conversation)
    assert result.finished.text == "ok"


async def test_the_tokens_are_a_budget_too() -> None:
    questions, ask = answering(Answer(True), Answer(False))
    settings = AgentSettings(max_turn_tokens=3)
    server = ScriptedServer(*rounds(5), says("So far."))
    result = await run_turn(server, tools=[Echo()], settings=settings, loop=AgentLoop(ask, retry_seconds=0))
    assert len(questions) == 2 and result.finished.reason == "tokens"
    assert [body["max_tokens"] for body in result.bodies] == [3, 1, 3, 1, 1024]


async def test_the_minutes_are_asked_about_while_the_model_goes_on() -> None:
    questions, ask = answering(Answer(True), Answer(False))
    server = ScriptedServer(says("half", hang=True))
    result = await run_turn(server, settings=AgentSettings(max_turn_seconds=0.1), loop=AgentLoop(ask))
    assert [question.kind for question in questions] == ["go_on", "go_on"]
    assert result.finished.reason == "wall" and result.finished.text == "half"
    assert len(result.of(QuestionAsked)) == 2 and len(result.bodies) == 1


class Asking(Echo):
    kind: Any = "network"

    def question(self, call: ToolCall) -> OwnerQuestion | None:
        return OwnerQuestion(self.kind, f"May {call.code} run?", ("left", "right"), call)


async def test_the_clock_stops_while_any_of_several_questions_is_open() -> None:
    async def ask(question: OwnerQuestion) -> Answer:
        if question.kind == "go_on":
            return Answer(False)
        await asyncio.sleep(0.4 if "0" in question.text else 0.8)
        return Answer(True)

    calls = [runs(f"print({number})", number) for number in range(2)]
    server = ScriptedServer(says(calls=calls, finish="tool_calls"), says("ok"))
    settings = AgentSettings(max_turn_seconds=0.7)
    result = await run_turn(server, tools=[Asking()], settings=settings, loop=AgentLoop(ask, retry_seconds=0))
    assert result.finished.reason == "answered" and result.finished.text == "ok"
    timing = result.of(RoundFinished)[0].timing
    assert 0.8 <= timing.approval_seconds <= timing.wall_seconds


async def test_an_answer_is_the_output_of_the_call_that_asks() -> None:
    no = "no: ask me later"
    for answer, text in ((Answer(True, "left"), "left"), (Answer(False, no[4:]), no), (Answer(False), "you assumed.")):
        tool = Asking()
        tool.kind = "ask"
        _, ask = answering(answer)
        server = ScriptedServer(says(calls=[runs("1")], finish="tool_calls"), says("ok"))
        result = await run_turn(server, tools=[tool], loop=AgentLoop(ask, retry_seconds=0))
        assert result.of(ToolFinished)[0].output.text.endswith(text) and tool.codes == []


class Done(Echo):
    async def run(self, call: ToolCall) -> ToolOutput:
        return ToolOutput("All 3 tests pass.", ends_turn=True)


@pytest.mark.parametrize("caps", [None, FENCED], ids=["native", "fenced"])
async def test_done_ends_the_turn_with_its_text(caps: dict[str, bool] | None) -> None:
    play = says("```python\n1\n```\n") if caps else says(calls=[runs("1")], finish="tool_calls")
    result = await run_turn(ScriptedServer(play, caps=caps), tools=[Done()])
    assert (result.finished.reason, result.finished.text) == ("answered", "All 3 tests pass.")
    assert result.shown.endswith("All 3 tests pass.") and len(result.bodies) == 1
    result = await run_turn(ScriptedServer(says("ok"), caps=caps), "more", conversation=result.conversation)
    contents = [message["content"] for message in result.bodies[0]["messages"]]
    assert FINISHED_OUTPUT in contents[-3] and contents[-2:] == ["All 3 tests pass.", "more"]


async def test_a_call_that_was_too_many_runs_when_it_is_made_again() -> None:
    tool = Echo()
    calls = [runs(f"print({number})", number, f"a{number}") for number in range(9)]
    again = says(calls=[runs("print(8)", 0, "b")], finish="tool_calls")
    result = await run_turn(ScriptedServer(says(calls=calls), again, says("ok")), tools=[tool])
    assert len(tool.codes) == 9 and tool.codes[-1] == "print(8)" and result.notices == []


async def test_the_same_wrong_call_again_and_again_ends_the_turn() -> None:
    wrong = [says(calls=[call("code_execution", "{]", 0, f"c{number}")], finish="tool_calls") for number in range(9)]
    result = await run_turn(ScriptedServer(*wrong), tools=[Echo()])
    assert result.finished.reason == "repetition" and len(result.bodies) == 3


# -- what is typed meanwhile -------------------------------------------------------------------------


class Typing(Echo):
    def __init__(self, loop: AgentLoop) -> None:
        super().__init__()
        self.loop = loop

    async def run(self, call: ToolCall) -> ToolOutput:
        self.loop.queued += ["Only the tests,", "please."] if not self.codes else []
        return await super().run(call)


@pytest.mark.parametrize("caps", [None, FENCED], ids=["native", "fenced"])
async def test_what_is_typed_meanwhile_is_read_in_the_next_round(caps: dict[str, bool] | None) -> None:
    loop = AgentLoop(retry_seconds=0)
    play = says("```python\n1\n```\n") if caps else says(calls=[runs("1")], finish="tool_calls")
    result = await run_turn(ScriptedServer(play, says("ok"), caps=caps), tools=[Typing(loop)], loop=loop)
    sent = result.bodies[1]["messages"]
    assert sent[-1]["role"] == "user" and sent[-1]["content"].endswith("Only the tests,\n\nplease.")
    assert result.conversation.messages[-2] == Message("user", "Only the tests,\n\nplease.") and loop.queued == []
    roles = [message["role"] for message in sent if message["role"] != "tool"]
    assert all(before != after for before, after in itertools.pairwise(roles[1:])) or caps is None


async def test_what_no_round_could_send_is_left() -> None:
    loop = AgentLoop(retry_seconds=0)
    server = ScriptedServer(says("half", hang=True))

    async def stop() -> None:
        await server.streaming.wait()
        loop.queued.append("And the README.")
        loop.stop()

    stopping = asyncio.create_task(stop())
    result = await run_turn(server, loop=loop)
    await stopping
    assert result.finished.reason == "stopped" and loop.queued == ["And the README."]


# -- compaction --------------------------------------------------------------------------------------


async def long_chat(conversation: Conversation, turns: int, events: list[list[AgentEvent]] | None = None) -> None:
    for turn in range(turns):
        plays = [*rounds(2, 10 * turn, prompt=1000), says(f"Answer {turn}.", prompt=1000)]
        result = await run_turn(
            ScriptedServer(*plays, context=32768), f"Question {turn}?", tools=[Echo("y" * 3000)],
            conversation=conversation,
        )  # fmt: skip
        if events is not None:
            events.append(result.events)


def check_valid(messages: list[dict[str, Any]]) -> None:
    """Roles alternate, and every call has its output right after it."""
    assert messages[0]["role"] == "system" and messages[1]["role"] == "user"
    calls: list[str] = []
    for before, after in itertools.pairwise(messages):
        assert (before["role"], after["role"]) not in {("user", "user"), ("assistant", "assistant"), ("tool", "user")}
        calls += [call["id"] for call in before.get("tool_calls", ())]
        if after["role"] == "tool":
            calls.remove(after["tool_call_id"])
    assert not calls


def unread(before: dict[str, Any], answer: str, after: dict[str, Any]) -> int:
    """How many words of the request ``after`` a server reads that holds ``before`` and ``answer``, and moves its cache.

    Written after llama-server b11434 (server-context.cpp, ``n_cache_reuse``): it goes through the prompt from the first
    token that differs, and a token that it does not hold further on ends the moving.
    """

    def words(body: dict[str, Any], end: str) -> list[str]:
        parts = [f"<{m['role']}> {m['content']} {m.get('tool_calls', '')} <end>" for m in body["messages"]]
        return re.findall(r"\w+|[^\w\s]", " ".join([*parts, "<assistant>", end]))

    held, wanted, least = words(before, answer), words(after, ""), after["n_cache_reuse"]
    at = place = next(i for i, (old, new) in enumerate(zip(held, wanted, strict=False)) if old != new)
    while place < len(held) and at < len(wanted):
        pairs = zip(held[place:], wanted[at:], strict=False)
        same = sum(1 for _ in itertools.takewhile(lambda pair: pair[0] == pair[1], pairs))
        at, place = (at + same, place + same) if same >= least else (at, place + 1)
    return len(wanted) - at


async def shorten(
    conversation: Conversation, *plays: Play, context: int = 8192, caps: dict[str, bool] | None = None
) -> tuple[list[AgentEvent], ScriptedServer]:
    events: list[AgentEvent] = []
    server = ScriptedServer(*plays, context=context, caps=caps)
    async with server, connect(server.url) as client:
        await compact(conversation, AgentSettings(), [Echo()], client, events.append)
    return events, server


async def test_a_long_conversation_is_summed_up_in_place() -> None:
    rules = Message("user", "AGENTS.md: be short.", fixed=True)
    conversation = Conversation([rules])
    logged: list[list[AgentEvent]] = []
    await long_chat(conversation, 4, logged)
    assert wants_compaction(conversation, 4096) is False, "the server said how much it holds: little"
    conversation.server_cache_tokens = 3000
    assert wants_compaction(conversation, 4096) and not wants_compaction(conversation, 32768)
    before = list(conversation.messages)

    events, server = await shorten(conversation, says("We did four things.", prompt=60, cached=3000), context=16384)

    asked = server.bodies[0]
    sent = {"messages": request_messages(Conversation(before), AgentSettings().system_prompt, native=True)}
    assert [m["content"] for m in asked["messages"][1:-1]] == [m["content"] for m in sent["messages"][1:]], "in place"
    assert asked["messages"][-1]["content"].startswith(SUMMARY_START) and asked["tools"]
    (event,) = [event for event in events if isinstance(event, Compacted)]
    assert event.summary == "We did four things." and event.timing.prefill_new_tokens == 60
    assert conversation.messages[0] == rules and conversation.messages[1] == before[event.kept_from]
    assert conversation.messages[1].role == "user" and conversation.messages[-1].content == "We did four things."
    assert len(conversation.messages) < len(before)
    rendered = request_messages(conversation, "s", native=True)
    check_valid(rendered)
    assert rendered[2]["content"] == UNDERSTOOD

    again = Conversation(before)  # the chat's file makes the same prompt again
    again.apply(decode_event(msgspec.json.encode(event)))
    assert again.messages == conversation.messages


async def test_the_new_prompt_is_read_ahead_and_the_next_question_continues_it() -> None:
    conversation = Conversation()
    await long_chat(conversation, 4)
    _, asked = await shorten(conversation, says("Four things."))
    server = ScriptedServer(says(".", prompt=30, cached=500), says("ok"))
    async with server, connect(server.url) as client:
        timing = await read_ahead(conversation, AgentSettings(), [Echo()], client)
    assert timing.cached_tokens == 500 and conversation.server_cache_tokens == 530
    ahead = server.bodies[0]
    assert ahead["max_tokens"] == 1 and ahead["n_cache_reuse"] and ahead["messages"][-1]["content"] == "..."
    assert unread(asked.bodies[0], "Four things.", ahead) <= 20
    result = await run_turn(ScriptedServer(says("ok")), "Next?", tools=[Echo()], conversation=conversation)
    assert result.bodies[0]["messages"][:-1] == ahead["messages"][:-1] and "n_cache_reuse" not in result.bodies[0]


async def test_a_compaction_is_part_of_the_turn_before_it_in_the_file() -> None:
    conversation, logged = Conversation(), list[list[AgentEvent]]()
    await long_chat(conversation, 3, logged)
    log = ChatLog("c")
    parent = ""
    for number, turn in enumerate(logged):
        log.apply_record(TurnHeader(f"t{number}", parent, "now", f"Question {number}?"))
        parent = f"t{number}"
        for event in turn:
            log.apply_event(event)
    events, _ = await shorten(conversation, says("Three things."))
    for event in events:
        log.apply_event(event)
    assert log.turns["t2"].state == "answered" and log.turns["t2"].answer == "Answer 2."
    assert log.conversation().messages == conversation.messages
    assert len(log.turns["t2"].messages()) == 6, "the turn is still shown whole"
    log.head = "t1"
    assert len(log.conversation().messages) == 12, "before that turn nothing is summed up"


@pytest.mark.parametrize("play", [says(""), says(reasoning="hm"), refuses(500, "x")], ids=["empty", "thinks", "500"])
async def test_without_a_summary_nothing_changes(play: Play) -> None:
    conversation = Conversation()
    await long_chat(conversation, 3)
    before = list(conversation.messages)
    with pytest.raises(GpuboxError):
        await shorten(conversation, play)
    assert conversation.messages == before
    with pytest.raises(GpuboxError, match="short"):
        await shorten(Conversation([Message("user", "hi")]), says("never"))


@pytest.mark.parametrize("caps", [None, FENCED], ids=["native", "fenced"])
@pytest.mark.parametrize("fixed", [True, False], ids=["rules", "plain"])
async def test_a_full_context_is_summed_up_in_the_middle_of_a_turn(caps: dict[str, bool] | None, fixed: bool) -> None:
    conversation = Conversation([Message("user", "AGENTS.md", fixed=True)] if fixed else ())

    def play(number: int, prompt: int) -> Play:
        text = f"n{number}\n```python\nprint({number})\n```\n" if caps else f"n{number}"
        calls = [] if caps else [runs(f"print({number})", identity=f"c{number}")]
        return says([text], calls=calls, finish="tool_calls", prompt=prompt)

    plays = [play(0, 500), play(1, 1500), says("Part 0 is done."), says("."), play(2, 600), says("Done.")]
    server = ScriptedServer(*plays, caps=caps, context=2000)
    result = await run_turn(
        server, "Fix the parser.", tools=[Echo("y" * 1500)], settings=AgentSettings(max_tokens=100),
        conversation=conversation,
    )  # fmt: skip
    assert result.finished.text == "Done." and result.notices == ["compacted"]
    assert result.bodies[2]["messages"][-1]["content"].rpartition("\n\n")[2].startswith(SUMMARY_START)
    assert unread(result.bodies[2], "Part 0 is done.", result.bodies[3]) <= 20
    after = result.bodies[4]["messages"]
    check_valid([message for message in after if message["role"] != "tool" or not caps])
    contents = "\n".join(str(message["content"]) for message in after)
    assert "Fix the parser." in contents and "Part 0 is done." in contents and after[-1]["content"].endswith(GO_ON)
    assert len(json.dumps(after)) < len(json.dumps(result.bodies[1]["messages"])) + 1500
    assert result.finished.totals.rounds == 4
    again = Conversation(conversation.messages[:0])
    again.messages = [
        *([Message("user", "AGENTS.md", fixed=True)] if fixed else ()),
        Message("user", "Fix the parser."),
    ]
    for event in result.events:
        again.apply(decode_event(msgspec.json.encode(event)))
    assert again.messages == conversation.messages

    _, asked = await shorten(conversation, says("All is done."), context=1400, caps=caps)
    server = ScriptedServer(says("."), caps=caps)
    async with server, connect(server.url) as client:
        await read_ahead(conversation, AgentSettings(), [Echo()], client)
    assert unread(asked.bodies[0], "All is done.", server.bodies[0]) <= 20, "the second time too"


async def test_a_summary_that_the_server_refuses_does_not_end_the_turn() -> None:
    plays = [*rounds(2, prompt=1500), refuses(400, "no"), says("Done.")]
    settings = AgentSettings(max_tokens=100)
    server = ScriptedServer(*plays, context=2000)
    result = await run_turn(server, tools=[Echo("y" * 1500)], settings=settings)
    assert result.finished.text == "Done."


def test_the_cost_is_known_before() -> None:
    turn = [Message("user", "q" * 300), Message("assistant", "a" * 600)]
    conversation = Conversation(turn * 10)
    cost = compaction_cost(conversation, 8192, 100.0)
    assert cost.read_tokens == 900 + 512 and cost.seconds == pytest.approx(14.12) and cost.freed_tokens == 2100
    assert compaction_cost(conversation, None, None).seconds is None


# -- what was read again -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("cached", "name"), [(0, "the tools"), (1000, "message 4, a tool's output"), (2900, "message 6, a tool's output")]
)
async def test_what_the_server_lost_has_a_name(cached: int, name: str) -> None:
    conversation = Conversation()
    await long_chat(conversation, 1)
    conversation.server_cache_tokens = 3000
    server = ScriptedServer(says("ok", prompt=3100 - cached, cached=cached), context=32768)
    result = await run_turn(server, "And now?", tools=[Echo()], conversation=conversation)
    assert result.of(RoundFinished)[0].timing.reread_from == name


async def test_a_changed_part_is_what_was_read_again() -> None:
    for system, question, name in (
        ("Other.", "Question 0?", "the system prompt"),
        (None, "Changed?", 'message 2, "Changed?"'),
    ):
        conversation = Conversation()
        await long_chat(conversation, 1)
        conversation.server_cache_tokens = 3000
        conversation.messages[0] = Message("user", question)
        settings = AgentSettings(system_prompt=system) if system else AgentSettings()
        server = ScriptedServer(says("ok", prompt=3000, cached=100), context=32768)
        result = await run_turn(server, "And?", tools=[Echo()], conversation=conversation, settings=settings)
        assert result.of(RoundFinished)[0].timing.reread_from == name


async def test_nothing_read_again_has_no_name() -> None:
    conversation = Conversation()
    await long_chat(conversation, 1)
    server = ScriptedServer(says("ok", prompt=10, cached=1000), context=32768)
    result = await run_turn(server, "And?", tools=[Echo()], conversation=conversation)
    assert result.of(RoundFinished)[0].timing.reread_from == ""


# -- images ------------------------------------------------------------------------------------------

PNG = b"\x89PNG\r\n\x1a\n" + b"\0" * 40


def seeing(*plays: Play) -> ScriptedServer:
    server = ScriptedServer(*plays)
    server._props["modalities"] = {"vision": True}
    return server


async def test_a_model_that_sees_gets_the_image(tmp_path: Path) -> None:
    conversation = Conversation()
    conversation.images_folder = tmp_path / "c.images"
    name = store_image(conversation.images_folder, PNG)
    assert store_image(conversation.images_folder, PNG) == name
    conversation.add(Message("user", "What is this?", images=(name,)))
    result = await run_turn(seeing(says("A dot.")), "Look well.", conversation=conversation)
    (message,) = [message for message in result.bodies[0]["messages"] if message["role"] == "user"]
    assert [part["type"] for part in message["content"]] == ["text", "image_url", "text"]
    assert message["content"][1]["image_url"]["url"].startswith("data:image/png;base64,iVBOR")

    result = await run_turn(ScriptedServer(says("ok")), "And now?", conversation=conversation)  # another model
    assert "an image that you cannot see" in result.bodies[0]["messages"][1]["content"]


async def test_a_model_that_does_not_see_is_not_asked(tmp_path: Path) -> None:
    conversation = Conversation([Message("user", "What?", images=(store_image(tmp_path, PNG),))])
    conversation.images_folder = tmp_path
    server = ScriptedServer(says("never"))
    async with server, connect(server.url) as client:
        events = [event async for event in AgentLoop().run(conversation, AgentSettings(), [], client)]
    assert "does not see images" in str(events[-1]) and server.bodies == []


def test_an_image_of_the_workspace_is_not_read_through_a_link_of_a_program(tmp_path: Path) -> None:
    for folder in ("secret", "work/own", "top"):
        (tmp_path / folder).mkdir(parents=True)
        (tmp_path / folder / "a.png").write_bytes(PNG)
    (tmp_path / "top/linked").symlink_to(tmp_path / "secret")
    view = View([tmp_path / "top", tmp_path / "work"])
    assert read_named("see @own/a.png", view).images == (tmp_path / "work/own/a.png",)
    assert read_named("see @linked/a.png @../secret/a.png", view).images == ()
    (tmp_path / "top/a.png").write_bytes(PNG + b"\0" * MAX_BYTES)
    with pytest.raises(GpuboxError, match="at most 4"):
        read_named("see @a.png", view)


def test_only_images_are_kept(tmp_path: Path) -> None:
    for data in (b"#!/bin/sh\n", b"", b"RIFF....WAVE", PNG + b"\0" * MAX_BYTES):
        with pytest.raises(GpuboxError):
            store_image(tmp_path, data)
    secret = tmp_path / "secret"
    secret.write_bytes(PNG)
    (tmp_path / "gone.png").symlink_to(secret)
    assert image_urls(tmp_path, ["../secret", "secret", "gone.png", "a" * 32 + ".png", "/etc/passwd"]) == {}
