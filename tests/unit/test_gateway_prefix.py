"""Shared system prompts: which requests begin with one, and what happens to the slots, and to requests if it fails."""

from __future__ import annotations

import asyncio
import inspect
import json
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import msgspec
import pytest

from gpubox.gateway.gateway_status import FinishedRequest
from gpubox.gateway.prefix import (
    SlotHistory,
    SlotView,
    choose_slot,
    read_prompt_head,
    read_slots,
    shared_tokens,
)
from gpubox.gateway.servers import GatewayServer
from gpubox.gateway.shared_prefixes import SharedPrefixes
from gpubox.units import GIB

SYSTEM = "You are a careful coding agent. " + " ".join(f"Rule {n}: take care." for n in range(300))
CHAT = "/v1/chat/completions"


def body_of(text: str, system: str = SYSTEM, **more: Any) -> bytes:
    messages = [{"role": "system", "content": system}, {"role": "user", "content": text}]
    return json.dumps({"model": "m", "messages": messages, "temperature": 0, **more}).encode()


def names(folder: Path) -> list[str]:
    return sorted(file.name for file in folder.iterdir())


# -- heads -------------------------------------------------------------------


def test_requests_that_begin_alike_have_one_key() -> None:
    heads = [read_prompt_head(body_of(user, user=user, seed=len(user))) for user in ("one", "another")]

    assert heads[0] and heads[1]
    assert heads[0].key == heads[1].key
    assert heads[0].is_first


@pytest.mark.parametrize(
    "more",
    [
        {"tools": [{"type": "function", "function": {"name": "ls"}}]},
        {"chat_template_kwargs": {"enable_thinking": False}},
        {"reasoning_effort": "low"},
        {"system": SYSTEM + "!"},
    ],
)
def test_what_the_template_writes_into_the_prompt_is_in_the_key(more: dict[str, Any]) -> None:
    plain, changed = read_prompt_head(body_of("one")), read_prompt_head(body_of("one", **more))

    assert plain and changed
    assert plain.key != changed.key


def test_a_later_turn_is_not_a_first_request() -> None:
    values = json.loads(body_of("one"))
    values["messages"] += [{"role": "assistant", "content": "yes"}, {"role": "user", "content": "two"}]
    later, first = read_prompt_head(json.dumps(values).encode()), read_prompt_head(body_of("one"))

    assert later and first
    assert (later.is_first, later.key) == (False, first.key)


@pytest.mark.parametrize(
    "body",
    [
        body_of("one", system="short"),
        body_of("long " * 1000, system="short"),
        body_of("one", cache_prompt=False),
        body_of("one", id_slot=1),
        b"{" + b" " * 2000,
        b"[" * 200_000,
        b'{"messages": 7, "x": "' + b"x" * 2000 + b'"}',
        b'{"messages": [{"role": "system", "content": "' + b"x" * 2000 + b'"}]}',
        b'{"messages": [{"role": 7}], "x": "' + b"x" * 2000 + b'"}',
        b'{"messages": [{"role": "system", "content": "\xff' + b"x" * 2000 + b'"}]}',
    ],
)
def test_what_cannot_be_shared_has_no_head(body: bytes) -> None:
    assert read_prompt_head(body) is None


def test_probes_differ_only_in_what_the_user_says() -> None:
    head = read_prompt_head(body_of("secret", tools=[{"type": "function"}], stream=True))
    assert head
    first, second = (json.loads(probe) for probe in head.probes())

    assert first["messages"][:-1] == second["messages"][:-1] == [{"role": "system", "content": SYSTEM}]
    assert first["messages"][-1]["content"][0] != second["messages"][-1]["content"][0]
    assert first["tools"] == [{"type": "function"}]
    assert "stream" not in first and "secret" not in str(first)


def test_a_request_to_messages_has_the_head_that_llama_server_makes_of_it() -> None:
    stamp = "x-anthropic-billing-header: cc_version=2.1; cc_entrypoint=cli; cch={};"
    values = {
        "system": [{"type": "text", "text": stamp.format("a5145")}, {"type": "text", "text": SYSTEM}],
        "tools": [{"name": "ls", "description": "Lists.", "input_schema": {"type": "object"}, "cache_control": {}}],
        "tool_choice": {"type": "any"},
        "messages": [{"role": "user", "content": [{"type": "text", "text": "one"}]}],
        "max_tokens": 5,
    }
    head = read_prompt_head(json.dumps(values).encode(), is_anthropic=True)
    values["system"][0]["text"] = stamp.format("01234")  # type: ignore[index]
    again = read_prompt_head(json.dumps(values).encode(), is_anthropic=True)
    assert head and again and head.is_first
    assert head.key == again.key
    probe = json.loads(head.probes()[0])

    assert probe["messages"][0] == {"role": "system", "content": stamp.format("fffff") + SYSTEM}
    function = {"name": "ls", "description": "Lists.", "parameters": {"type": "object"}}
    assert probe["tools"] == [{"type": "function", "function": function}]
    assert probe["tool_choice"] == "required"
    assert len(probe["messages"]) == 2


def test_shared_tokens_end_before_the_prompts_part() -> None:
    assert shared_tokens([1, 2, 3, 4, 5, 6, 7, 8], [1, 2, 3, 4, 5, 6, 9]) == [1, 2]
    assert shared_tokens([1, 2], [1, 2]) == []


# -- slots -------------------------------------------------------------------


def test_a_prefix_goes_to_an_empty_slot_and_never_to_a_conversation() -> None:
    busy, talk, fresh, cleared = (
        SlotView(0, True, 0, 9), SlotView(1, False, 900, 3), SlotView(2, False, None, -1), SlotView(3, False, 0, 5),
    )  # fmt: skip

    assert choose_slot((busy, talk, fresh, cleared)) == fresh
    assert choose_slot((busy, talk)) is None
    assert choose_slot((busy, talk), spare={1}) == talk
    assert choose_slot((busy, talk, cleared), spare={0, 1}) == cleared
    assert choose_slot((busy, fresh), restored={2}) is None
    assert choose_slot((SlotView(0, False, None, 3),)) is None  # an engine that does not say what is in it


def test_a_conversation_may_go_once_the_server_has_copied_it() -> None:
    history, idle = SlotHistory(), SlotView(0, False, 900, 3)

    history.see([SlotView(0, True, 900, 3), SlotView(1, True, 100, 4)])
    history.see([idle, SlotView(1, True, 100, 4)])
    assert history.copied([idle, SlotView(1, True, 100, 4)]) == set()  # no task has begun since
    assert history.copied([idle, SlotView(1, True, 100, 5)]) == {0}
    assert history.copied([SlotView(0, False, 950, 6), SlotView(1, True, 100, 5)]) == set()  # it has gone on


def test_slots_of_build_11434_are_read() -> None:
    idle = {"id": 0, "n_ctx": 8192, "speculative": False, "is_processing": False}
    busy = {**idle, "id": 1, "is_processing": True, "id_task": 7, "n_prompt_tokens": 2811, "params": {"seed": 1}}

    assert read_slots(json.dumps([idle, busy]).encode()) == (SlotView(0, False, None, -1), SlotView(1, True, 2811, 7))
    for broken in (b"{}", b'[{"id": "x"}]', b"["):
        with pytest.raises(msgspec.DecodeError):
            read_slots(broken)


# -- with a server -----------------------------------------------------------


@dataclass
class SlotServer:
    """The slots of a llama-server whose replies and failures a test decides."""

    folder: Path
    slots: list[dict[str, Any]] = field(default_factory=lambda: [{"id": n, "is_processing": False} for n in range(4)])
    asked: list[str] = field(default_factory=list)
    answers: dict[str, tuple[int, Any]] = field(default_factory=dict)
    """Path -> what is answered instead."""
    before_read: Callable[[], Any] = lambda: None
    task: int = 0

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).decode()
        length = next((int(line[15:]) for line in head.split("\r\n") if line.lower().startswith("content-length:")), 0)
        body, path = await reader.readexactly(length), head.split(" ")[1]
        self.asked.append(path)
        try:
            status, values = self.answers.get(path) or (200, await self._answer(path, json.loads(body or b"{}")))
        except (AttributeError, TypeError):  # Python 3.11.2 would leave the connection open if this raised
            status, values = 400, {}
        if status:
            data = json.dumps(values).encode()
            writer.write(b"HTTP/1.1 %d X\r\nContent-Length: %d\r\n\r\n" % (status, len(data)) + data)
        writer.close()

    async def _answer(self, path: str, values: dict[str, Any]) -> Any:
        if path == "/slots":
            return self.slots
        if path == "/apply-template":
            return {"prompt": " ".join(message["content"] for message in values["messages"])}
        if path == "/tokenize":
            return {"tokens": [len(word) * 1000 + ord(word[0]) for word in values["content"].split()]}
        if path == "/completion":
            await self.before_read() if inspect.iscoroutinefunction(self.before_read) else self.before_read()
            self.launch(3, len(values["prompt"]), busy=False)
            return {"id_slot": 3, "timings": {"prompt_n": len(values["prompt"]), "cache_n": 0, "predicted_n": 1}}
        if path.endswith("save"):
            (self.folder / values["filename"]).write_bytes(b"state")
            return {"n_saved": self.slots[3]["n_prompt_tokens"], "n_written": 5}
        return {"n_restored": 1}

    def launch(self, slot: int, tokens: int, *, busy: bool = True) -> None:
        """A task in a slot."""
        self.task += 1
        self.slots[slot] |= {"is_processing": busy, "id_task": self.task, "n_prompt_tokens": tokens}

    def count(self, word: str) -> int:
        return sum(word in path for path in self.asked)


@pytest.fixture
async def slot_server(tmp_path: Path) -> AsyncIterator[tuple[SlotServer, GatewayServer]]:
    fake = SlotServer(tmp_path)
    listener = await asyncio.start_server(fake.serve, "127.0.0.1", 0)
    url = f"http://127.0.0.1:{listener.sockets[0].getsockname()[1]}"
    argv = ("llama-server", "--slot-save-path", str(tmp_path))
    yield fake, GatewayServer("main", "m", url, "launch-1", True, None, argv=argv)
    listener.close()


@pytest.fixture
async def prefixes(tmp_path: Path) -> AsyncIterator[SharedPrefixes]:
    shared = SharedPrefixes(LINES.append, tmp_path, 8 * GIB)
    LINES.clear()
    yield shared
    await shared.close()


LINES: list[FinishedRequest] = []


async def test_four_agents_that_start_together_read_once(
    slot_server: tuple[SlotServer, GatewayServer], prefixes: SharedPrefixes, tmp_path: Path
) -> None:
    fake, server = slot_server
    everybody = asyncio.Event()
    fake.before_read = everybody.wait
    slots = iter((3, 0, 1, 2))

    async def agent(number: int) -> None:
        await prefixes.before(number, server, None, CHAT, body_of(f"agent {number}"))
        fake.launch(next(slots), 2000)

    async with asyncio.TaskGroup() as group:
        for number in range(4):
            group.create_task(agent(number))
        while fake.count("completion") == 0:
            await asyncio.sleep(0)
        everybody.set()

    assert (fake.count("completion"), fake.count("save"), fake.count("restore")) == (1, 1, 3)
    assert [path for path in fake.asked if "restore" in path] == [f"/slots/{slot}?action=restore" for slot in (0, 1, 2)]
    assert [(line.client, line.cached_tokens, line.generated_tokens) for line in LINES] == [("gpubox", 0, 1)]
    assert LINES[0].prompt_tokens and LINES[0].prompt_tokens > 900
    for number in range(4):
        prefixes.after(number, answered=True, cached_tokens=LINES[0].prompt_tokens)
    assert prefixes.sentences() == (
        f"m: a system prompt of {LINES[0].prompt_tokens:,} tokens was read once for 4 requests.",
    )
    (saved,) = names(tmp_path)
    assert (tmp_path / saved).stat().st_mode & 0o777 == 0o600
    await prefixes.tidy(())  # the server has ended
    assert names(tmp_path) == []


async def test_one_agent_alone_writes_no_file_and_its_next_session_asks_nothing(
    slot_server: tuple[SlotServer, GatewayServer], prefixes: SharedPrefixes, tmp_path: Path
) -> None:
    fake, server = slot_server
    await prefixes.before(1, server, None, CHAT, body_of("one"))
    assert (fake.count("completion"), fake.count("save")) == (1, 0)
    fake.launch(3, 2000)
    prefixes.after(1, answered=True, cached_tokens=10_000)
    assert names(tmp_path) == []
    fake.slots[3]["is_processing"] = False

    asked = fake.count("completion")
    await prefixes.before(2, server, None, CHAT, body_of("two"))
    assert fake.count("completion") == asked


@pytest.mark.parametrize(
    ("path", "answer"),
    [
        ("/apply-template", (500, {})),
        ("/apply-template", (200, {"prompt": None})),
        ("/tokenize", (200, {"tokens": "no"})),
        ("/tokenize", (0, None)),
        ("/slots", (501, {})),
        ("/slots", (200, {"no": "slots"})),
        ("/completion", (400, {})),
        ("/completion", (200, {"content": ""})),
        ("/completion", (200, [])),
        ("/slots/3?action=save", (500, {})),
        ("/slots/3?action=save", (200, {"n_saved": 1, "n_written": 5})),
        ("/slots/1?action=restore", (400, {})),
    ],
)
async def test_requests_go_on_unchanged_if_the_server_refuses(
    slot_server: tuple[SlotServer, GatewayServer], prefixes: SharedPrefixes, tmp_path: Path, path: str, answer: Any
) -> None:
    fake, server = slot_server
    fake.answers[path] = answer
    go = asyncio.Event()
    fake.before_read = go.wait

    async def agent(number: int) -> None:
        await prefixes.before(number, server, None, CHAT, body_of(f"agent {number}"))
        fake.launch(number, 2000)
        prefixes.after(number, answered=True, cached_tokens=None)

    async with asyncio.timeout(20), asyncio.TaskGroup() as group:
        for number in range(3):
            group.create_task(agent(number))
        go.set()
    await prefixes.tidy([server])

    assert "save" not in path or names(tmp_path) == []
    assert prefixes.sentences() or path.endswith("save")


async def test_a_prefix_that_is_read_again_keeps_its_new_file(
    slot_server: tuple[SlotServer, GatewayServer], prefixes: SharedPrefixes, tmp_path: Path
) -> None:
    fake, server = slot_server
    for number in range(2):
        await prefixes.before(number, server, None, CHAT, body_of(f"agent {number}"))
        fake.launch(3, 2000)
    refused = names(tmp_path)
    fake.answers = {f"/slots/{slot}?action=restore": (400, {}) for slot in range(4)}
    await prefixes.before(2, server, None, CHAT, body_of("agent 2"))
    fake.answers = {}

    await prefixes.before(3, server, None, CHAT, body_of("agent 3"))
    await prefixes.tidy([server])

    assert (fake.count("completion"), fake.count("save"), fake.count("restore")) == (3, 2, 1)
    assert len(names(tmp_path)) == 1
    assert names(tmp_path) != refused


async def test_a_prefix_that_does_not_help_twice_is_off_with_a_sentence(
    slot_server: tuple[SlotServer, GatewayServer], prefixes: SharedPrefixes
) -> None:
    fake, server = slot_server
    for number in range(2):
        await prefixes.before(100 + number, server, None, CHAT, body_of("somebody else"))
        await prefixes.before(number, server, None, CHAT, body_of("one"))
        fake.launch(number, 2000)
        prefixes.after(number, answered=True, cached_tokens=3)
        prefixes.after(100 + number, answered=True, cached_tokens=3)
    assert "did not help" in prefixes.sentences()[0]

    asked = len(fake.asked)
    await prefixes.before(7, server, None, CHAT, body_of("one"))
    assert len(fake.asked) == asked


async def test_clients_that_leave_while_the_prefix_is_read_hold_nobody_up(
    slot_server: tuple[SlotServer, GatewayServer], prefixes: SharedPrefixes
) -> None:
    fake, server = slot_server
    go = asyncio.Event()
    fake.before_read = go.wait
    leaving = [
        asyncio.ensure_future(prefixes.before(number, server, None, CHAT, body_of("one"))) for number in range(3)
    ]
    while fake.count("completion") == 0:
        await asyncio.sleep(0)
    leaving[0].cancel()  # the one that had it read
    await asyncio.wait(leaving[:1])
    prefixes.after(0, answered=False, cached_tokens=None)
    go.set()
    await asyncio.wait_for(leaving[1], 20)
    prefixes.after(1, answered=False, cached_tokens=None)  # its client left before any slot was seen
    await asyncio.wait_for(leaving[2], 20)

    assert fake.count("completion") == 1


async def test_nothing_is_asked_without_slot_files_or_with_adapters_or_one_slot(
    slot_server: tuple[SlotServer, GatewayServer], prefixes: SharedPrefixes
) -> None:
    fake, server = slot_server
    plain = GatewayServer("main", "m", server.base_url, "launch-2", True, None, argv=("llama-server",))
    await prefixes.before(1, plain, None, CHAT, body_of("one"))
    lora = GatewayServer("main", "m", server.base_url, "launch-3", True, None, argv=(*server.argv, "--lora", "a.gguf"))
    await prefixes.before(2, lora, None, CHAT, body_of("one"))
    draft = replace(lora, launch_id="launch-4", argv=(*server.argv, "-md", "d.gguf"))
    await prefixes.before(5, draft, None, CHAT, body_of("one"))
    await prefixes.before(3, server, None, "/v1/embeddings", body_of("one"))
    assert fake.asked == []
    assert len(prefixes.sentences()) == 3

    fake.slots = fake.slots[:1]
    await prefixes.before(4, server, None, CHAT, body_of("one"))
    assert fake.count("completion") == 0
    assert "one slot" in prefixes.sentences()[0]


async def test_files_of_a_killed_gateway_are_removed(
    slot_server: tuple[SlotServer, GatewayServer], prefixes: SharedPrefixes, tmp_path: Path
) -> None:
    _, server = slot_server
    for name in (".prefix-999999999-launch-0-key", "0123456789abcdef.kv", ".lock", ".prefix-1-launch-0-key"):
        (tmp_path / name).touch()
    await prefixes.before(1, server, None, CHAT, body_of("one"))
    await prefixes.tidy([server])

    assert names(tmp_path) == [
        ".lock",
        ".prefix-1-launch-0-key",
        "0123456789abcdef.kv",
    ]
