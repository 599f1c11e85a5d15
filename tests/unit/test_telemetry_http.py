"""The Sampler and the server's HTTP side: failures and recoveries."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from http.server import BaseHTTPRequestHandler

import pytest

from gpubox.paths import Paths
from gpubox.server import client
from gpubox.telemetry.sampler import STUCK_SECONDS
from gpubox.telemetry.snapshot import Snapshot
from tests.fake_nvml import GIB
from tests.unit.llama_box import LlamaBox, done, metrics, slot, taken
from tests.unit.sampling import DENIED, NO_METRICS, NO_SLOTS, Make, Time, healthy, until

# -- the server's HTTP side ----------------------------------------------------------------------------------


async def test_401_and_the_key_comes_later(box: LlamaBox, make: Make, paths: Paths) -> None:
    box.key = "sesame"
    box.start()
    sampler = make()
    snapshot = await sampler.sample(wait=True)
    assert snapshot.problems == (DENIED,)
    assert (snapshot.server.message, snapshot.totals.generated_tokens) == (
        "It needs an API key that gpubox does not have.",
        None,
    )
    assert snapshot.memory[0].weights_bytes == GIB

    paths.api_key_file.parent.mkdir(parents=True, exist_ok=True)
    paths.api_key_file.write_text("sesame")
    paths.api_key_file.chmod(0o600)
    snapshot = await sampler.sample(wait=True)
    assert healthy(snapshot)
    assert snapshot.server.message == ""


@pytest.mark.parametrize("foreign", [False, True], ids=["own", "by url"])
async def test_401_and_the_server_stops_asking_for_a_key(foreign: bool, box: LlamaBox, make: Make, eager: None) -> None:
    box.key = "sesame"
    box.start()
    sampler = make(url=box.url) if foreign else make()
    await until(sampler.sample, lambda s: s.problems == (DENIED,))

    box.key = None
    await until(sampler.sample, healthy)


@pytest.mark.parametrize("status", [501, 404, 500])
async def test_slots_are_off(status: int, box: LlamaBox, make: Make) -> None:
    box.answers["/slots"] = status
    box.start()
    sampler = make()
    snapshot = await sampler.sample(wait=True)
    assert snapshot.problems == (NO_SLOTS,)
    assert (snapshot.server.state, snapshot.throughput.slots, snapshot.totals.generated_tokens) == ("ready", None, 6)

    box.write(taken("0.01.000.000", 1))
    assert (await sampler.sample(wait=True)).throughput.state == "answering"  # from the log
    box.write(done("0.05.000.000", 1))
    assert len((await sampler.sample(wait=True)).requests) == 1

    box.answers["/slots"] = [slot()]
    assert healthy(await sampler.sample(wait=True))


@pytest.mark.parametrize("status", [501, 404, 500])
async def test_metrics_are_off(status: int, box: LlamaBox, make: Make, eager: None) -> None:
    box.answers["/metrics"] = status
    box.start()
    sampler = make()
    snapshot = await sampler.sample(wait=True)
    assert snapshot.problems == (NO_METRICS,)
    assert snapshot.totals.generated_tokens is None
    assert snapshot.throughput.slots == 1

    box.answers["/metrics"] = metrics(prompt=12, generated=7)
    assert healthy(await sampler.sample(wait=True))


async def test_metrics_are_read_when_a_request_ended_and_else_left_alone(box: LlamaBox, make: Make) -> None:
    box.start()
    sampler = make()
    for _ in range(5):
        await sampler.sample(wait=True)
    assert box.asked.count("/metrics") == 1

    box.answers["/metrics"] = metrics(prompt=100, generated=51)
    box.write(taken("0.01.000.000", 1) + done("0.05.000.000", 1))
    assert (await sampler.sample(wait=True)).totals.generated_tokens == 50
    assert box.asked.count("/metrics") == 2


@pytest.mark.parametrize(
    "body",
    [
        "{",
        "<html>404</html>",
        "",
        "null",
        "[]",
        "{}",
        '"slots"',
        "[1, null, [], true]",
        "[" * 100_000,
        "9" * 5000,
        '[{"id": "x", "is_processing": 1, "n_ctx": [], "next_token": 3, "params": []}]',
        f'[{{"id": 0, "is_processing": true, "n_ctx": {"9" * 400}, "next_token": [{{"n_decoded": {"9" * 400}}}]}}]',
        '[{"id": 0, "is_processing": true, "n_ctx": -1, "n_prompt_tokens": -5, "next_token": [{"n_decoded": -9}]}]',
        '[{"id": 0, "is_processing": true, "n_ctx": NaN, "next_token": [{"n_decoded": 1e400}]}]',
        '[{"id": 0, "is_processing": true, "next_token": []}, {"id": 0, "is_processing": true}]',
    ],
    ids=lambda body: body[:12] or "empty",
)
async def test_garbage_from_slots(body: str, box: LlamaBox, make: Make) -> None:
    box.answers["/slots"] = body
    box.start()
    box.write(taken("0.00.001.000", 1))
    sampler = make()
    for _ in range(3):
        snapshot = await sampler.sample(wait=True)
    assert snapshot.problems in ((NO_SLOTS,), ())
    assert (snapshot.throughput.tg_tokens_per_second or 0) >= 0
    assert (snapshot.throughput.context_size_tokens or 0) >= 0

    box.answers["/slots"] = [slot()]
    box.write(done("0.00.002.000", 1))
    assert healthy(await sampler.sample(wait=True))


@pytest.mark.parametrize(
    "body",
    [
        "<html></html>",
        "llamacpp:tokens_predicted_total nan\nllamacpp:prompt_tokens_total inf\n",
        "llamacpp:tokens_predicted_total -5\n",
        f"llamacpp:tokens_predicted_total {'9' * 400}\n",
        "llamacpp:tokens_predicted_total\nllamacpp:_total \n\0\n",
        "llamacpp:tokens_predicted_total 1e300\n" * 50,
    ],
    ids=["html", "nan", "negative", "long", "bare", "huge"],
)
async def test_garbage_from_metrics(body: str, box: LlamaBox, make: Make, eager: None) -> None:
    box.answers["/metrics"] = body
    box.start()
    sampler = make()
    snapshot = await sampler.sample(wait=True)
    assert snapshot.totals.prompt_tokens is None

    box.answers["/metrics"] = metrics(prompt=12, generated=7)
    box.write(taken("0.01.000.000", 1) + done("0.05.000.000", 1))
    assert (await sampler.sample(wait=True)).totals.generated_tokens == 6


def endless(box: LlamaBox) -> Callable[[BaseHTTPRequestHandler], None]:
    def answer(handler: BaseHTTPRequestHandler) -> None:
        handler.send_response(200)
        handler.end_headers()
        handler.close_connection = True
        try:
            while not box.unblock.wait(0.01):
                handler.wfile.write(b" " * 64)
                handler.wfile.flush()
        except OSError:
            return

    return answer


@pytest.mark.parametrize("path", ["/slots", "/metrics", "/health"])
@pytest.mark.parametrize("how", ["endless", "silent", "cut off"])
async def test_an_answer_that_never_ends(path: str, how: str, box: LlamaBox, make: Make, brief: None) -> None:
    def cut(handler: BaseHTTPRequestHandler) -> None:
        handler.wfile.write(b"HTTP/1.1 200 OK\r\nContent-Length: 5000\r\n\r\n[")
        handler.close_connection = True

    healthy_answer = box.answers[path]
    box.answers[path] = {"endless": endless(box), "silent": box.hang, "cut off": cut}[how]
    if path == "/health":
        box.answers["/slots"] = 501
    box.start()
    sampler = make()
    expected = {"/slots": NO_SLOTS, "/metrics": NO_METRICS, "/health": f"nothing answers at {box.url}"}[path]
    state = "down" if path == "/health" else "idle"

    def said(snapshot: Snapshot) -> bool:
        return snapshot.throughput.state == state and any(p.startswith(expected) for p in snapshot.problems)

    await until(lambda: sampler.sample(wait=True), said)

    box.unblock.set()
    box.answers[path] = healthy_answer
    box.answers["/slots"] = [slot()]
    await until(lambda: sampler.sample(wait=True), healthy)


@pytest.mark.parametrize("path", ["/slots", "/metrics"])
async def test_an_answer_that_is_too_long_is_reported(
    path: str, box: LlamaBox, make: Make, eager: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client, "MAX_RESPONSE_BYTES", 2**20)
    box.answers[path], short = "[" + " " * 2**20 + "]", box.answers[path]
    box.start()
    sampler = make()
    snapshot = await sampler.sample(wait=True)
    assert snapshot.problems == (f"{path} answers with more than 1 MiB: that is not a llama-server",)
    assert snapshot.throughput.state == "idle"

    box.answers[path] = short
    assert healthy(await sampler.sample(wait=True))


async def test_a_health_that_is_no_llama_servers(box: LlamaBox, make: Make) -> None:
    box.answers |= {"/health": 418, "/slots": 418, "/metrics": 418}
    box.start()
    snapshot = await make().sample(wait=True)

    assert snapshot.problems == (f"{box.url} answers with HTTP 418",)
    assert snapshot.throughput.state == "down"


async def test_polling_goes_on_after_an_unexpected_error(
    box: LlamaBox, make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    box.start()
    sampler = make()
    await until(sampler.sample, healthy)
    launched = sampler._launch
    assert launched is not None

    async def broken() -> None:
        raise LookupError

    with monkeypatch.context() as patch:
        patch.setattr(launched.http.client, "slots", broken)
        snapshot = await until(sampler.sample, lambda s: s.problems != ())
    assert snapshot.problems == (f"{box.url} answers with LookupError",)
    await until(sampler.sample, healthy)


@pytest.mark.parametrize("foreign", [False, True], ids=["own", "by url"])
async def test_a_server_that_hangs_delays_no_snapshot_and_is_reported(
    foreign: bool, box: LlamaBox, make: Make, ahead: Time
) -> None:
    box.start()
    sampler = make(url=box.url) if foreign else make()
    await until(sampler.sample, healthy)
    box.answers["/slots"] = box.hang
    seen = len(box.asked)
    async with asyncio.timeout(10):
        while "/slots" not in box.asked[seen:]:
            await asyncio.sleep(0.01)

    ahead.ahead += 5
    snapshot = await sampler.sample()  # its answer comes when the test says so: this does not wait for it
    assert snapshot.problems == ("the server has not answered for 5 s",)

    ahead.ahead += STUCK_SECONDS
    assert (await sampler.sample()).throughput.state == "stuck"

    box.answers["/slots"] = [slot()]
    box.unblock.set()
    await until(sampler.sample, lambda s: s.throughput.state == "idle" and s.problems == ())


async def test_a_sleeping_server_is_not_woken_by_slots(box: LlamaBox, make: Make, ahead: Time) -> None:
    box.start(launch=replace(box.launch, argv=("llama-server", "--sleep-idle-seconds", "60")))
    sampler = make()
    snapshot = await sampler.sample(wait=True)
    assert snapshot.throughput.state == "idle"
    assert snapshot.problems == ("/slots is not read, so that the server can sleep: no live speed, no context fill",)

    box.write("1.00.000.000 I que    start_loop: entering sleeping state\n")
    snapshot = await sampler.sample(wait=True)
    assert (snapshot.throughput.state, snapshot.problems) == ("sleeping", ())
    assert snapshot.memory == ()  # its memory is free again

    for _ in range(5):
        ahead.ahead += 30
        await sampler.sample(wait=True)
    assert "/slots" not in box.asked

    box.write("2.00.000.000 I que    start_loop: exiting sleeping state\n")
    box.write((box.log.read_text().partition("0.00.000.008")[0]).replace("0.00.000", "2.00.100"))
    snapshot = await sampler.sample(wait=True)
    assert (snapshot.throughput.state, snapshot.memory[0].weights_bytes) == ("idle", GIB)
