"""The client of a llama-server that is ready, loading, protected by a key or old, and of other servers."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import Callable
from typing import Any

import httpx
import pytest

from gpubox.errors import GpuboxError, UsageError
from gpubox.server.chunks import Timings
from gpubox.server.client import ChatCompletion, LlamaClient, Reply, connect
from gpubox.server.http_get import NoResponse
from gpubox.server.responses import Health, Slot

Answered = httpx.Response | type[Exception]
LOADING = httpx.Response(503, json={"error": {"message": "Loading model", "type": "unavailable_error", "code": 503}})
DENIED = httpx.Response(
    401, json={"error": {"message": "Invalid API Key", "type": "authentication_error", "code": 401}}
)
GARBAGE = httpx.Response(200, html="<html>router</html>")
CHAT = {
    "choices": [{"message": {"content": "A GPU is a chip."}, "finish_reason": "stop"}],
    "model": "m.gguf",
    "timings": {
        "cache_n": 0,
        "prompt_n": 31,
        "prompt_ms": 400.0,
        "prompt_per_second": 77.5,
        "predicted_n": 8,
        "predicted_ms": 250.0,
        "predicted_per_second": 32.0,
    },
}


def client(reply: httpx.Response | type[Exception] | Callable[[httpx.Request], httpx.Response]) -> LlamaClient:
    def handle(request: httpx.Request) -> httpx.Response:
        if isinstance(reply, httpx.Response):
            return reply
        if isinstance(reply, type):
            raise reply("no")
        return reply(request)

    def get(path: str, limit: int) -> tuple[int, bytes]:
        try:
            response = handle(httpx.Request("GET", f"http://box:8080{path}"))
        except httpx.HTTPError as error:
            raise NoResponse(type(error).__name__) from None
        return response.status_code, response.content

    llama = LlamaClient("http://box:8080", "sesame")
    llama._httpx_client = httpx.AsyncClient(base_url="http://box:8080", transport=httpx.MockTransport(handle))
    llama._pool.get = get  # type: ignore[method-assign]
    return llama


def answering(values: Any, status: int = 200) -> LlamaClient:
    return client(httpx.Response(status, json=values))


@pytest.mark.parametrize(
    ("reply", "health"),
    [
        (httpx.Response(200, json={"status": "ok"}), Health("ok")),
        (httpx.Response(200), Health("ok")),  # as vLLM
        (httpx.Response(200, text="OK"), Health("ok")),
        (GARBAGE, Health("error", "an HTML page or broken JSON")),
        (httpx.Response(200, json=["a list"]), Health("error", "an HTML page or broken JSON")),
        (httpx.Response(200, content=b'{"slots": [[ \xff'), Health("error", "an HTML page or broken JSON")),
        (LOADING, Health("loading")),
        (DENIED, Health("error", "HTTP 401")),
        (httpx.Response(500), Health("error", "HTTP 500")),
        (httpx.Response(302), Health("error", "HTTP 302")),
        (httpx.ConnectError, Health("unreachable", "nothing accepts connections there")),
        (httpx.ReadTimeout, Health("unreachable", "no answer in time")),
        (httpx.RemoteProtocolError, Health("unreachable", "the connection broke off")),
        (TimeoutError, Health("unreachable", "no answer in time")),
    ],
)
async def test_health_never_raises(reply: Answered, health: Health) -> None:
    assert await client(reply).health() == health


async def test_the_key_goes_into_a_header_of_what_is_streamed() -> None:
    async with connect("http://127.0.0.1:1", "sesame") as llama:
        assert llama._httpx().headers["Authorization"] == "Bearer sesame"


async def test_a_proxy_of_the_environment_is_not_asked_for_what_is_streamed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HTTP_PROXY", "http://proxy.invalid:1")
    monkeypatch.setenv("ALL_PROXY", "http://proxy.invalid:1")
    async with connect("http://127.0.0.1:1") as llama:
        assert llama._httpx().trust_env is False


async def test_the_slots_of_a_busy_server() -> None:
    never_used = {"id": 0, "n_ctx": 4096, "speculative": False, "is_processing": False}
    as_array = {
        **never_used,
        "id": 1,
        "is_processing": True,
        "n_prompt_tokens": 512,
        "next_token": [{"has_next_token": True, "n_decoded": 17}],
    }
    as_object = {**as_array, "id": 2, "next_token": {"n_decoded": 3}}
    empty_array = {**as_array, "id": 3, "next_token": []}

    assert await answering([never_used, as_array, as_object, empty_array]).slots() == [
        Slot(0, False, 4096, None, None),
        Slot(1, True, 4096, 512, 17),
        Slot(2, True, 4096, 512, 3),
        Slot(3, True, 4096, 512, None),
    ]


async def test_slots_of_wrong_types_are_unknown_not_an_error() -> None:
    odd = {"id": "one", "n_ctx": "4096", "is_processing": 1, "n_prompt_tokens": True, "next_token": ["x"]}

    assert await answering([odd, 3, None, {}, {"a": None}]).slots() == [Slot(0, True, None, None, None)]


@pytest.mark.parametrize(
    "reply",
    [
        GARBAGE,
        LOADING,
        httpx.ConnectError,
        httpx.Response(501),
        httpx.Response(200, json={"slots": []}),
        httpx.Response(200, content=b"\xff\xfe"),
        httpx.Response(200, content=b"[" * 100000),
        TimeoutError,
    ],
)
async def test_a_server_that_will_not_tell_has_unknown_slots(reply: Answered) -> None:
    llama = client(reply)

    assert await llama.slots() is None
    assert not llama.denied


async def test_a_server_that_wants_another_key_is_remembered_as_such() -> None:
    llama = client(DENIED)

    assert await llama.slots() is None
    assert llama.denied


@pytest.mark.parametrize("reply", [GARBAGE, DENIED, httpx.ReadTimeout, httpx.Response(200, json=["a list"])])
async def test_props_are_a_table(reply: Answered) -> None:
    assert await client(reply).props() == {}
    assert await answering({"model_path": "/m"}).props() == {"model_path": "/m"}


def test_a_busy_slot_in_words() -> None:
    assert str(Slot(1, True, 4096, 2048, 0)) == "slot 1 is reading a prompt (2,048 tokens so far)"
    assert str(Slot(1, True, 4096, None, None)).startswith("slot 1 is reading a prompt")
    assert str(Slot(2, True, 4096, 2048, 1234)) == "slot 2 is answering (1,234 tokens so far)"


async def test_the_proof_is_one_token_or_one_embedding() -> None:
    bodies: dict[str, Any] = {}

    def serve(request: httpx.Request) -> httpx.Response:
        bodies[request.url.path] = json.loads(request.content)
        return httpx.Response(200, stream=httpx.ByteStream(b'{"content": "", "data": []}'))

    llama = client(serve)

    assert (await llama.probe_readiness(embeddings=False, timeout=60)).seconds >= 0
    assert (await llama.probe_readiness(embeddings=True, timeout=60)).seconds >= 0
    assert bodies["/completion"]["n_predict"] == 1
    assert bodies["/v1/embeddings"] == {"input": "hi"}


@pytest.mark.parametrize(
    ("reply", "words"),
    [
        (GARBAGE, "HTTP 200 with a body that is not llama-server's ('<html>router</html>')"),
        (LOADING, "HTTP 503: Loading model"),
        (DENIED, "HTTP 401: Invalid API Key"),
        (httpx.Response(200, json=["content"]), "not llama-server's"),
        (httpx.Response(200, json={"error": "as text"}), "not llama-server's"),
        (httpx.Response(200, json={}), "not llama-server's"),
        (httpx.Response(500, json={"content": "x"}), "HTTP 500"),
        (httpx.RemoteProtocolError, "does not answer a one-token request (the connection broke off)"),
        (httpx.ReadTimeout, "does not answer a one-token request (no answer in time)"),
    ],
)
async def test_any_other_answer_proves_nothing(reply: Answered, words: str) -> None:
    with pytest.raises(GpuboxError) as caught:
        await client(reply).probe_readiness(embeddings=False, timeout=60)

    assert words in caught.value.message


async def test_an_answer_comes_with_the_servers_own_timings() -> None:
    answer = await answering(CHAT).chat([], max_tokens=8)

    assert answer == ChatCompletion(
        "A GPU is a chip.", "stop", "m.gguf", Timings(0, 31, 0.4, 8, 0.25, None, None, 32.0)
    )
    assert answer.timings and answer.timings.pp_tokens_per_second == 77.5
    assert answer.timings.tg_tokens_per_second == 32.0


async def test_an_answer_of_another_server_has_unknown_timings() -> None:
    other: list[Any] = [None, [], "fast", {}]
    for timings in other:
        answer = await answering({**CHAT, "timings": timings}).chat([], max_tokens=8)
        assert (answer.text, answer.timings) == ("A GPU is a chip.", None)


async def test_a_thought_without_an_answer_is_shown() -> None:
    message = {"content": None, "reasoning_content": "hm"}

    assert (await answering({"choices": [{"message": message}]}).chat([], max_tokens=8)).text == "hm"


@pytest.mark.parametrize("values", [{"choices": []}, {"choices": [{"message": "text"}]}, {"choices": [None]}, [], {}])
async def test_an_answer_without_a_message_is_a_sentence(values: Any) -> None:
    with pytest.raises(GpuboxError, match=r"does not answer: HTTP 200|answers without a message"):
        await answering(values).chat([], max_tokens=8)


async def test_a_server_that_leaves_in_the_middle_is_not_running() -> None:
    with pytest.raises(GpuboxError) as caught:
        await client(httpx.ReadError).chat([], max_tokens=8)

    assert (caught.value.code, caught.value.message) == (3, "The server does not answer (the connection broke off).")


def test_the_servers_own_words_are_cut_short() -> None:
    assert len(Reply(500, json.dumps({"error": {"message": "x" * 9000}}).encode()).error()) < 250


@pytest.mark.parametrize("url", ["http://a:x", "http://[[::1]]:80", "http://\u2028"])
def test_an_address_that_is_none_is_a_sentence(url: str) -> None:
    with pytest.raises(UsageError, match="is not the address of a server"):
        LlamaClient(url)


async def test_an_answer_that_never_ends_is_not_waited_for_for_ever() -> None:
    async def endless(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
        try:
            while True:  # each read succeeds, so http.client's own timeout never applies
                writer.write(b"1\r\nx\r\n")
                await writer.drain()
                await asyncio.sleep(0.01)
        except (ConnectionError, asyncio.CancelledError):
            writer.close()

    server = await asyncio.start_server(endless, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    try:
        async with connect(f"http://127.0.0.1:{port}", timeout=0.1) as llama:
            # on a busy machine the timeout may end the connecting
            assert (await asyncio.wait_for(llama.health(), 60)).status == "unreachable"
            assert await asyncio.wait_for(llama.slots(), 60) is None
    finally:
        server.close()


async def test_nobody_there_is_unreachable() -> None:
    async with connect("http://127.0.0.1:1", timeout=60) as llama:
        assert (await llama.health()).status == "unreachable"
        assert await llama.slots() is None


@pytest.mark.parametrize("status", [200, 500])
async def test_an_answer_that_is_too_long_is_left_unread_and_said_to_be(status: int) -> None:
    sent = 0

    async def pour(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal sent
        head = f"HTTP/1.1 {status} OK\r\nContent-Length: {2**40}\r\n\r\n"
        writer.write(head.encode())
        with contextlib.suppress(ConnectionError, asyncio.CancelledError):
            while True:
                writer.write(b" " * 2**16)
                sent += 2**16
                await writer.drain()
        writer.close()

    server = await asyncio.start_server(pour, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    words = "answers with more than 8 MiB: that is not a llama-server"
    try:
        async with connect(f"http://127.0.0.1:{port}", timeout=30) as llama:
            assert await llama.health() == Health("error", f"/health {words}")
            assert await llama.slots() is None
            assert llama.problem == f"/slots {words}"
            assert await llama.counters() is None
            with pytest.raises(GpuboxError, match="/completion answers with more than 8 MiB") as caught:
                await llama.probe_readiness(embeddings=False, timeout=30)
            assert caught.value.code == 4
            with pytest.raises(GpuboxError, match="more than 8 MiB"):
                await llama.chat([], max_tokens=1)
    finally:
        server.close()
    assert sent < 5 * 32 * 2**20  # five answers, each read a little beyond its limit
