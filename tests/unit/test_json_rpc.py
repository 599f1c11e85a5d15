"""Two ends of JSON-RPC over real pipes, and other ends that speak badly."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from gpubox import json_rpc
from gpubox.errors import GpuboxError
from gpubox.json_rpc import NO_MESSAGE, NO_SUCH_METHOD, Peer, RpcError, pipe_streams


async def _pipe() -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    reading, writing = os.pipe()
    return await pipe_streams(os.fdopen(reading, "rb"), os.fdopen(writing, "wb"))


class _Ends:
    """A Peer, and the two streams of its other end."""

    def __init__(self, peer: Peer, theirs: asyncio.StreamReader, to_peer: asyncio.StreamWriter) -> None:
        self.peer, self.theirs, self.to_peer = peer, theirs, to_peer
        self.heeded: list[tuple[str, dict[str, Any]]] = []

    async def receive(self) -> dict[str, Any]:
        async with asyncio.timeout(10):
            line: dict[str, Any] = json.loads(await self.theirs.readline())
        return line

    def say(self, *lines: bytes | dict[str, Any]) -> None:
        for line in lines:
            self.to_peer.write(line if isinstance(line, bytes) else json.dumps(line).encode() + b"\n")


@asynccontextmanager
async def _ends(*, serves: bool = False, budget: int = 0) -> AsyncIterator[_Ends]:
    reader, to_peer = await _pipe()
    theirs, writer = await _pipe()

    async def answer(method: str, params: dict[str, Any]) -> Any:
        if method == "echo":
            return params
        if method == "wait":
            await asyncio.Event().wait()
        if method == "break":
            raise KeyError(method)
        raise RpcError("There is no such method.", NO_SUCH_METHOD)

    ends = _Ends(
        Peer(reader, writer, answer, lambda *each: ends.heeded.append(each), title="it", serves=serves, budget=budget),
        theirs,
        to_peer,
    )
    running = asyncio.create_task(ends.peer.run())
    try:
        yield ends
    finally:
        running.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await running
        ends.peer.close()
        to_peer.close()


async def test_a_request_gets_its_answer_whatever_stands_between() -> None:
    async with _ends() as ends:
        asking = asyncio.create_task(ends.peer.request("hello", {"a": 1}))
        asked = await ends.receive()
        ends.say(b"Welcome to agent 1.0\n", {"method": "news", "params": {"n": 1}}, {"id": 99, "result": 0}, b"[1]\n",
                 {"id": str(asked["id"]), "result": {"b": 2}})  # fmt: skip

        assert await asking == {"b": 2}
        assert asked == {"jsonrpc": "2.0", "id": asked["id"], "method": "hello", "params": {"a": 1}}
        assert ends.heeded == [("news", {"n": 1})]
        assert [*ends.peer.strange] == ["Welcome to agent 1.0", "[1]"]


async def test_a_refusal_says_why() -> None:
    async with _ends() as ends:
        asking = asyncio.create_task(ends.peer.request("hello", {}))
        asked = await ends.receive()
        ends.say(
            {"id": asked["id"], "error": {"code": -32000, "message": "no \x1b[31mkey", "data": {"details": "set X"}}}
        )

        with pytest.raises(RpcError, match=r"^it refused hello: no .*key \(set X\)$") as raised:
            await asking
        assert raised.value.rpc_code == -32000
        assert "\x1b" not in raised.value.message


async def test_requests_of_the_other_end_are_answered_beside_each_other() -> None:
    async with _ends() as ends:
        ends.say(
            {"id": 1, "method": "wait"},
            {"id": "b", "method": "echo", "params": {"x": [1]}},
            {"id": 3, "method": "none"},
        )

        assert [await ends.receive(), await ends.receive()] == [
            {"jsonrpc": "2.0", "id": "b", "result": {"x": [1]}},
            {"jsonrpc": "2.0", "id": 3, "error": {"code": NO_SUCH_METHOD, "message": "There is no such method."}},
        ]


async def test_two_requests_of_one_id_end_with_the_conversation() -> None:
    before = asyncio.all_tasks()
    async with _ends() as ends:
        ends.say({"id": 1, "method": "wait"}, {"id": 1, "method": "wait"}, {"id": 2, "method": "echo"})
        await ends.receive()
    assert asyncio.all_tasks() == before


async def test_a_fault_of_gpubox_is_an_answer_too() -> None:
    reported: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: reported.append(context))
    async with _ends() as ends:
        ends.say({"id": 1, "method": "break"})

        assert (await ends.receive())["error"]["message"] == "gpubox failed: KeyError."
        await asyncio.sleep(0)
    assert [type(each["exception"]) for each in reported] == [KeyError]


async def test_who_serves_answers_garbage() -> None:
    async with _ends(serves=True) as ends:
        ends.say(b"{nonsense\n")

        assert (await ends.receive())["error"]["code"] == NO_MESSAGE


async def test_silence_ends_by_the_clock_and_later_answers_are_passed_over() -> None:
    async with _ends() as ends:
        with pytest.raises(GpuboxError, match=r"^it did not answer slow within 0.01 s\.$"):
            await ends.peer.request("slow", {}, seconds=0.01)
        asked = await ends.receive()
        again = asyncio.create_task(ends.peer.request("next", {}))
        second = await ends.receive()
        ends.say({"id": asked["id"], "result": "late"}, {"id": second["id"], "result": "now"})

        assert await again == "now"
        assert not ends.peer.strange


@pytest.mark.parametrize(
    ("said", "problem"),
    [
        (b"", "it ended."),
        (b'{"id": 1, "resu', "it ended in the middle of a line."),
        (b"x" * 200 + b"\n", "it writes what is no JSON-RPC: " + "x" * 80),
        (b'{"id": 1, "result": "' + b"y" * 3000, "it wrote a line of more than 0 MiB."),
    ],
    ids=["closes", "half a line", "garbage", "a line without end"],
)
async def test_what_is_no_conversation_ends_every_request(
    said: bytes, problem: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(json_rpc, "MAX_LINE", 2000)
    monkeypatch.setattr(json_rpc, "_MAX_GARBAGE", 100)
    async with _ends() as ends:
        asking = asyncio.create_task(ends.peer.request("hello", {}))
        await ends.receive()
        ends.say(said)
        ends.to_peer.close()

        with pytest.raises(GpuboxError) as raised:
            await asking
        assert raised.value.message == problem
        with pytest.raises(GpuboxError) as raised:
            await ends.peer.request("again", {})
        assert raised.value.message == problem


async def test_one_socket_may_be_both_streams() -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs, theirs.makefile("rb") as reading, theirs.makefile("wb") as writing:
        peer = Peer(*await pipe_streams(reading, writing), _same, lambda *_: None, title="it")
        running = asyncio.create_task(peer.run())
        for number in range(3):
            ours.sendall(b'{"id": %d, "method": "echo"}\n' % number)
            reply = await asyncio.get_running_loop().run_in_executor(None, ours.recv, 1000)
            assert json.loads(reply)["id"] == number
        ours.shutdown(socket.SHUT_WR)
        assert await running == "it ended."
        peer.close()


async def test_a_budget_ends_who_floods_and_each_request_renews_it() -> None:
    async with _ends(budget=20_000) as ends:
        for _ in range(3):
            asking = asyncio.create_task(ends.peer.request("hello", {}))
            asked = await ends.receive()
            ends.say(*[{"method": "news"}] * 15, {"id": asked["id"], "result": 1})
            assert await asking == 1
        asking = asyncio.create_task(ends.peer.request("hello", {}))
        await ends.receive()
        ends.say(b"\n" * 30)

        with pytest.raises(GpuboxError, match=r"^it wrote more than 0 MiB and no answer\.$"):
            await asking


async def test_a_request_that_is_given_up_is_withdrawn() -> None:
    async with _ends() as ends:
        asking = asyncio.create_task(ends.peer.request("hello", {}, withdraw="cancelled"))
        asked = await ends.receive()
        asking.cancel()

        assert await ends.receive() == {"jsonrpc": "2.0", "method": "cancelled", "params": {"requestId": asked["id"]}}


async def _same(method: str, params: dict[str, Any]) -> Any:
    return params


async def test_who_reads_nothing_holds_nobody_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(json_rpc, "_NOTICE_SECONDS", 0.01)
    async with _ends() as ends:
        with pytest.raises(GpuboxError, match="did not answer big within"):
            await ends.peer.request("big", {"text": "z" * 10_000_000}, seconds=0.05)
        await ends.peer.notify("cancel", {})
