"""What conversation a request continues, and what happens to the slots, and to requests if that fails."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import pytest

from gpubox.config import Config
from gpubox.gateway.conversations import Conversations
from gpubox.gateway.gateway_status import FinishedRequest
from gpubox.gateway.prefix import read_prompt_head
from gpubox.gateway.servers import GatewayServer
from gpubox.gateway.slots import LaunchSlots
from gpubox.paths import Paths
from gpubox.server.kept_kv import KeptKv
from gpubox.server.state import Launch, RestoredSlot, RunningServer

CHAT = "/v1/chat/completions"
SYSTEM = "You are a careful coding agent. " + " ".join(f"Rule {n}: take care." for n in range(300))
LONG = " ".join(f"Word {n}." for n in range(900))


def body_of(*texts: str, system: str = SYSTEM, **more: Any) -> bytes:
    roles = ("user", "assistant")
    messages = [{"role": roles[at % 2], "content": text} for at, text in enumerate(texts)]
    return json.dumps({"messages": [{"role": "system", "content": system}, *messages], **more}).encode()


def key_of(body: bytes, path: str = CHAT, client: str = "me", **headers: str) -> str:
    head = read_prompt_head(path, lambda name: headers.get(name.replace("-", "_"), ""), body, client)
    return head.conversation if head else ""


def test_a_conversation_is_known_by_its_session_and_its_beginning() -> None:
    first = key_of(body_of("one"))
    assert first == key_of(body_of("one", "yes", "two"))
    others = (
        key_of(body_of("other")),
        key_of(body_of("one"), client="you"),
        key_of(body_of("one", system=LONG)),
        key_of(body_of("one"), x_session_id="s"),
        key_of(body_of("one"), x_session_affinity="t"),
    )
    assert len({first, *others}) == 6
    assert key_of(body_of("A title?", system="short"), x_session_id="s") == ""
    assert key_of(body_of("one"), path="/v1/embeddings") == ""


def test_the_messages_of_anthropics_clients_keep_their_conversation() -> None:
    def turn(count: int, session: str, stamp: str) -> bytes:
        texts = [{"type": "text", "text": LONG}, {"type": "text", "text": "x", "cache_control": {"type": "ephemeral"}}]
        plain = [{"type": "text", "text": LONG}, {"type": "text", "text": "x"}]
        opening = {"role": "user", "content": texts if count == 1 else plain}
        system = f"x-anthropic-billing-header: cch={stamp}; Code."
        messages = [opening, {"role": "assistant", "content": "yes"}, {"role": "user", "content": "on"}][
            : 2 * count - 1
        ]
        return json.dumps({"system": system, "messages": messages, "metadata": {"user_id": session}}).encode()

    first = key_of(turn(1, "a_session_1", "abcde"), "/v1/messages")
    assert first and first == key_of(turn(2, "a_session_1", "fghij"), "/v1/messages")
    assert first != key_of(turn(1, "a_session_2", "abcde"), "/v1/messages")


@dataclass(frozen=True)
class State:
    name: str
    tokens: int


@dataclass
class Box:
    """A llama-server's slots, and the store of kept states, as a test decides."""

    conversations: Conversations
    server: GatewayServer
    slots: list[dict[str, Any]]
    states: dict[str, State] = field(default_factory=dict)
    done: list[str] = field(default_factory=list)
    answers: dict[str, tuple[int, Any]] = field(default_factory=dict)
    before_read: Callable[[], Any] | None = None
    task: int = 0
    requests: int = 0
    has_ram_cache: bool = True

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).decode()
        length = next((int(line[15:]) for line in head.split("\r\n") if line.lower().startswith("content-length:")), 0)
        values, path = json.loads(await reader.readexactly(length) or b"{}"), head.split(" ")[1]
        try:
            status, answer = self.answers.get(path) or (200, await self._answer(path, values))
        except (AttributeError, TypeError):
            status, answer = 400, {}
        data = json.dumps(answer).encode()
        if status:
            writer.write(b"HTTP/1.1 %d X\r\nContent-Length: %d\r\n\r\n" % (status, len(data)) + data)
        writer.close()

    async def _answer(self, path: str, values: dict[str, Any]) -> Any:
        if path == "/slots":
            return self.slots
        if path == "/apply-template":
            return {"prompt": " ".join(message["content"] for message in values["messages"])}
        if path == "/tokenize":
            return {"tokens": [len(word) * 1000 + ord(word[0]) for word in values["content"].split()]}
        if path == "/completion" and len(values["prompt"]) > 1:
            self.done.append("read")
            if self.before_read:
                await self.before_read()
        else:
            self.done.append("park" if path == "/completion" else f"recall {len(values['messages'])}")
        last = len(self.slots) - 1
        self.launch(last, len(values.get("prompt", [0] * 700)), busy=False)
        return {"id_slot": last, "timings": {"prompt_n": len(values.get("prompt", [0] * 700)), "cache_n": 0}}

    def launch(self, slot: int, tokens: int, *, busy: bool = True) -> None:
        self.task += 1
        self.slots[slot] |= {"is_processing": busy, "id_task": self.task, "n_prompt_tokens": tokens}

    # -- what KeptKv does ----

    async def save_one(self, running: RunningServer, index: int, conversation: str) -> State:
        if self.answers.get("save"):
            raise ValueError("no room")
        self.done.append(f"save {index}")
        self.states[conversation] = State(f"state-{len(self.states)}", self.slots[index]["n_prompt_tokens"])
        return self.states[conversation]

    async def restore_one(self, running: RunningServer, index: int, state: State) -> bool:
        self.done.append(f"restore {index}")
        return not self.answers.get("restore")

    def find(self, running: RunningServer, conversation: str, context: int) -> State | None:
        return self.states.get(conversation)

    def note_use(self, name: str, *, reused: bool) -> None:
        self.done.append("reused" if reused else "dropped")

    # -- a client ----

    async def before(self, body: bytes, number: int = 0) -> int:
        number = number or self.requests + 1
        self.requests = max(number, self.requests)
        conversation = read_prompt_head(CHAT, lambda name: "", body)
        await self.conversations.before(number, conversation, self.server, None, CHAT, body)
        return number

    def waiting(self) -> int:
        """The requests with a head that others have, too."""
        return sum(len(each) for launch in self.conversations._launches.values() for each in launch.heads.values())

    async def ask(self, body: bytes, slot: int, tokens: int, cached: int = 0) -> list[str]:
        """A whole request, which leaves so many tokens in a slot. Returns what was done for it."""
        self.done.clear()
        number = await self.before(body)
        self.launch(slot, tokens, busy=False)
        self.after(number, tokens, cached)
        await self.conversations.close()
        return list(self.done)

    def after(self, number: int, tokens: int | None, cached: int | None, status: int = 200) -> None:
        line = FinishedRequest(
            "", "me", "m", CHAT, status, "done", prompt_tokens=tokens, cached_tokens=cached, generated_tokens=1
        )  # fmt: skip
        self.conversations.after(number, line)


LINES: list[FinishedRequest] = []


@pytest.fixture
async def box(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Box]:
    paths = Paths(tmp_path, tmp_path, tmp_path)
    conversations = Conversations(LINES.append, paths, Config())
    LINES.clear()
    slots = [{"id": number, "is_processing": False, "n_ctx": 4096} for number in range(4)]
    made = Box(conversations, GatewayServer("main", "m", "", "1", True, None), slots)
    listener = await asyncio.start_server(made.serve, "127.0.0.1", 0)
    port = listener.sockets[0].getsockname()[1]

    def look(server: GatewayServer, key: str | None) -> LaunchSlots:
        restored = (RestoredSlot(0, 900, "kept", key_of(body_of("kept"), client="")),)
        running = RunningServer(Launch("m", (), "127.0.0.1", port), "1", "2026", restored=restored)
        launch = LaunchSlots(running, None, cast(KeptKv, made), LINES.append, filled={0: -1})
        launch.has_ram_cache = made.has_ram_cache
        return launch

    monkeypatch.setattr(conversations, "_look", look)
    yield made
    await conversations.close()
    listener.close()


async def test_a_conversation_that_nobody_disturbed_asks_nothing(box: Box) -> None:
    talk = body_of(LONG, system="")
    assert await box.ask(talk, 1, 700) == []
    assert await box.ask(talk, 1, 720, 699) == []
    assert await box.ask(body_of("Title?", system=""), 2, 40) == []
    assert await box.ask(talk, 1, 740, 719) == []
    assert await box.conversations.told("1") == {key_of(talk, client=""): box.task + 1}
    assert await box.conversations.told("2") == {}


async def test_a_state_on_disk_goes_into_a_slot_before_the_next_request_and_is_judged_by_it(box: Box) -> None:
    talk, other = body_of(LONG, system=""), body_of(LONG, "yes", system="x")
    box.states = {key_of(talk, client=""): State("a", 600), key_of(other, client=""): State("b", 800)}
    assert await box.ask(talk, 1, 700, 600) == ["restore 1", "reused"]  # in slot 0 something was restored before
    assert await box.ask(other, 2, 900, 3) == ["restore 2", "dropped"]
    assert box.conversations.sentences() == (
        "m: 1 kept KV cache came back from disk; 600 of the 600 tokens were reused, not read anew.",
        "m: a kept KV cache of 800 tokens was put back, and its next request reused 3 of them: it is dropped.",
    )


async def test_of_conversations_as_long_as_each_other_nobody_guesses_the_slots(box: Box) -> None:
    talks = [body_of(f"{n} {LONG}", system="") for n in range(3)]
    for number, talk in enumerate(talks[:2], 1):
        await box.before(talk, number)
    for slot in (0, 1):
        box.launch(slot, 700, busy=False)
    for number in (1, 2):
        box.after(number, 700, 0)
    await box.ask(talks[2], 2, 700)  # alone: its task is newer than theirs
    told = await box.conversations.told("1")
    assert told == dict(zip((key_of(talk, client="") for talk in talks), (0, 0, box.task + 1), strict=True))


async def test_what_was_restored_at_the_start_is_judged_too(box: Box) -> None:
    assert await box.ask(body_of("kept", "yes", "on"), 0, 950, 900) == ["reused"]


async def test_before_a_server_stops_a_conversation_in_ram_is_brought_back(box: Box) -> None:
    talk = body_of(LONG, system="", stream=True)
    await box.ask(talk, 1, 700)
    box.done.clear()
    (key,) = await box.conversations.told("1")
    assert await box.conversations.recall(key) == {"tokens": 700}
    assert box.done == ["recall 2"]
    assert await box.conversations.recall("nobody") == {}
    box.answers[CHAT] = (500, {})
    assert await box.conversations.recall(key) == {}


async def test_conversations_with_the_same_long_head_are_saved_before_one_spoils_the_other(box: Box) -> None:
    first, second = body_of("one" * 200), body_of("two" * 200)
    await box.ask(first, 1, 1200)
    assert await box.ask(second, 1, 1300, 900) == ["save 1"]
    assert await box.ask(first, 1, 1400, 1200) == ["save 1", "restore 2", "reused"]


async def test_without_a_prompt_cache_in_ram_each_conversation_is_saved_before_anything_else_is_sent(box: Box) -> None:
    box.has_ram_cache = False
    talk = body_of(LONG, system="")
    await box.ask(talk, 1, 700)
    assert await box.ask(body_of("Title?", system=""), 1, 40) == ["save 1"]
    assert await box.ask(body_of("Title?", system=""), 1, 41) == []
    assert await box.ask(talk, 2, 740, 700) == ["restore 2", "reused"]
    assert await box.conversations.recall(key_of(talk, client="")) == {"tokens": 700}  # it is in its slot
    await box.ask(body_of("Title?", system=""), 1, 42)
    assert await box.conversations.recall(key_of(talk, client="")) == {}


async def test_four_agents_that_start_together_read_their_system_prompt_once(box: Box) -> None:
    everybody = asyncio.Event()
    box.before_read = everybody.wait
    box.launch(0, 0, busy=False)

    async def agent(number: int) -> None:
        await box.before(body_of(f"agent {number}"), number)

    async with asyncio.TaskGroup() as group:
        for number in range(1, 5):
            group.create_task(agent(number))
        while not box.done or box.waiting() < 4:
            await asyncio.sleep(0)
        everybody.set()
    assert box.done[:2] == ["read", "save 3"]
    assert sorted(word for word in box.done if "restore" in word) == [f"restore {slot}" for slot in range(4)]
    (line,) = [line for line in LINES if line.prompt_tokens and line.prompt_tokens > 900]
    assert line.client == "gpubox"
    for number in range(1, 5):
        box.after(number, 2000, line.prompt_tokens)
    tokens = 4 * (line.prompt_tokens or 0)
    assert box.conversations.sentences() == (
        f"m: 4 kept KV caches came back from disk; {tokens:,} of the {tokens:,} tokens were reused, not read anew.",
    )


async def test_one_agent_alone_saves_nothing(box: Box) -> None:
    assert await box.ask(body_of("one"), 3, 2000) == ["read"]


@pytest.mark.parametrize(
    ("path", "answer"),
    [
        ("/apply-template", (500, {})), ("/apply-template", (200, {"prompt": None})),
        ("/tokenize", (200, {"tokens": "no"})), ("/tokenize", (0, None)), ("/slots", (501, {})),
        ("/slots", (200, {"no": "slots"})), ("/completion", (400, {})), ("/completion", (200, [])),
        ("save", (500, {})),
    ],
)  # fmt: skip
async def test_requests_go_on_if_the_server_refuses(box: Box, path: str, answer: Any) -> None:
    box.answers[path] = answer
    async with asyncio.timeout(20), asyncio.TaskGroup() as group:
        for number in range(1, 4):
            group.create_task(box.before(body_of(f"agent {number}"), number))
    assert box.conversations.sentences()


async def test_clients_that_leave_while_the_prefix_is_read_hold_nobody_up(box: Box) -> None:
    go = asyncio.Event()
    box.before_read = go.wait
    leaving = [asyncio.ensure_future(box.before(body_of("one"), number)) for number in range(1, 4)]
    while not box.done or box.waiting() < 3:
        await asyncio.sleep(0)
    leaving[0].cancel()  # the one that had it read
    await asyncio.wait(leaving[:1])
    box.after(1, None, None, 0)
    go.set()
    await asyncio.wait_for(asyncio.gather(*leaving[1:]), 20)
    assert box.done.count("read") == 1


async def test_what_is_remembered_is_bounded(box: Box, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gpubox.gateway.conversations.MAX_BODY_BYTES", 20_000)
    monkeypatch.setattr("gpubox.gateway.conversations.MAX_TALKS", 3)
    for number in range(6):
        await box.ask(body_of(f"{number} {LONG}", system=""), 1, 700 + number)
    assert list((await box.conversations.told("1")).values()) == [6, 7]
