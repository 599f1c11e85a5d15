"""The Sampler and a server that gpubox did not start."""

from __future__ import annotations

import subprocess
import sys
from http.server import BaseHTTPRequestHandler

import pytest

from gpubox.paths import Paths
from gpubox.server.status import can_sleep_at
from gpubox.telemetry import sampler as sampler_module
from tests.unit.llama_box import LlamaBox, metrics, send, slot
from tests.unit.sampling import DENIED, NO_SLOTS, Make, Time, healthy, until

# -- a server that gpubox did not start ------------------------------------------------------------------------


async def test_a_server_by_its_url(box: LlamaBox, make: Make) -> None:
    snapshot = await make(url=box.url).sample(wait=True)

    assert (snapshot.server.state, snapshot.server.model_path, snapshot.server.pid) == ("ready", "/m.gguf", None)
    assert (snapshot.throughput.state, snapshot.totals.generated_tokens, snapshot.problems) == ("idle", 7, ())
    assert snapshot.memory == ()


async def test_the_totals_of_a_server_by_its_url_move(box: LlamaBox, make: Make) -> None:
    sampler = make(url=box.url)
    await until(sampler.sample, lambda s: s.totals.generated_tokens == 7)
    box.answers["/slots"] = [slot(busy=True, task=2, generated=3)]
    await until(sampler.sample, lambda s: s.throughput.state == "answering")

    box.answers["/metrics"] = metrics(prompt=20, generated=57)
    box.answers["/slots"] = [slot(task=2)]
    await until(sampler.sample, lambda s: s.totals.generated_tokens == 57)


async def test_a_server_by_its_url_that_loads_first(box: LlamaBox, make: Make) -> None:
    wanted = dict(box.answers)
    box.answers |= {"/health": 503, "/slots": 503, "/metrics": 503, "/props": 503}
    sampler = make(url=box.url)
    snapshot = await sampler.sample(wait=True)
    assert (snapshot.throughput.state, snapshot.problems) == ("loading", ())

    box.answers |= wanted
    snapshot = await sampler.sample(wait=True)
    assert (snapshot.server.state, snapshot.server.model_path) == ("ready", "/m.gguf")


async def test_a_server_by_its_url_that_is_not_there_and_comes(paths: Paths, make: Make, box: LlamaBox) -> None:
    box._close_http()
    sampler = make(url=box.url)
    snapshot = await sampler.sample(wait=True)
    assert (snapshot.server.state, snapshot.throughput.state) == ("unreachable", "down")
    assert snapshot.server.message == f"Nothing answers at {box.url}."
    assert snapshot.problems == (f"nothing answers at {box.url} (nothing accepts connections there)",)

    box.start_serving()
    snapshot = await until(lambda: sampler.sample(wait=True), lambda s: s.throughput.slots == 1)
    assert (snapshot.server.state, snapshot.server.message) == ("ready", "")


@pytest.mark.parametrize("body", ["<html>router</html>", '[1, {"a": null}]', '{"slots": [[', 404, 500])
async def test_a_program_by_its_url_that_is_no_llama_server(body: str | int, box: LlamaBox, make: Make) -> None:
    wanted = dict(box.answers)
    box.answers = dict.fromkeys(wanted, body)
    sampler = make(url=box.url)
    snapshot = await sampler.sample(wait=True)
    what = f"HTTP {body}" if isinstance(body, int) else "an HTML page or broken JSON"
    assert (snapshot.server.state, snapshot.throughput.state) == ("error", "down")
    assert snapshot.server.message == f"It answers /health with {what}: it is not a llama-server."
    assert snapshot.problems == (f"{box.url} answers with {what}",)

    box.answers = wanted
    assert healthy(await sampler.sample(wait=True))


async def test_a_key_that_all_can_read_is_not_sent_and_ends_nothing(box: LlamaBox, make: Make, paths: Paths) -> None:
    box.key = "sesame"
    paths.api_key_file.parent.mkdir(parents=True, exist_ok=True)
    paths.api_key_file.write_text("sesame")
    paths.api_key_file.chmod(0o644)
    box.start()

    assert (await make(url=box.url).sample(wait=True)).problems == (DENIED,)
    assert (await make().sample(wait=True)).problems == (DENIED,)


async def test_a_server_by_its_url_without_slots_or_metrics(box: LlamaBox, make: Make) -> None:
    def web_page(handler: BaseHTTPRequestHandler) -> None:
        send(handler, b"<html>It works!</html>")

    box.answers = dict.fromkeys(box.answers, web_page) | {"/health": ""}
    snapshot = await make(url=box.url).sample(wait=True)

    assert (snapshot.problems, snapshot.throughput.state) == ((NO_SLOTS,), "ready")


@pytest.mark.parametrize("props", [404, {}, {"model_path": 3, "build_info": ["b1"]}])
async def test_what_a_foreign_server_does_not_say_is_unknown(props: object, box: LlamaBox, make: Make) -> None:
    box.answers["/props"] = props
    server = (await make(url=box.url).sample(wait=True)).server

    assert (server.state, server.instance, server.model_path, server.engine_version) == ("ready", None, None, None)


async def test_a_foreign_server_without_readings_is_not_called_idle(box: LlamaBox, make: Make) -> None:
    box.answers |= {"/slots": 501, "/metrics": 501}
    sampler = make(url=box.url)
    snapshot = await sampler.sample(wait=True)
    assert (snapshot.server.state, snapshot.throughput.state) == ("ready", "ready")

    box.answers["/slots"] = [slot()]
    assert (await sampler.sample(wait=True)).throughput.state == "idle"


NOT_ASKED = "/slots is not read, so that the server can sleep: no live speed, no context fill"


async def test_a_server_by_its_url_that_sleeps_is_left_asleep(box: LlamaBox, make: Make, ahead: Time) -> None:
    box.answers["/props"]["is_sleeping"] = True
    sampler = make(url=box.url)
    for _ in range(4):
        snapshot = await sampler.sample(wait=True)
        ahead.ahead += 30
    assert (snapshot.server.state, snapshot.throughput.state, snapshot.problems) == ("ready", "sleeping", ())
    assert snapshot.server.model_path == "/m.gguf"

    box.answers["/props"]["is_sleeping"] = False
    box.answers["/metrics"] = metrics(processing=1)
    snapshot = await sampler.sample(wait=True)
    assert (snapshot.throughput.state, snapshot.problems) == ("answering", (NOT_ASKED,))

    ahead.ahead += 3
    box.answers["/metrics"] = metrics()
    assert (await sampler.sample(wait=True)).throughput.state == "idle"
    assert "/slots" not in box.asked  # it would have been woken, or never fallen asleep again


async def test_a_server_that_falls_asleep_while_it_is_watched(box: LlamaBox, make: Make) -> None:
    sampler = make(url=box.url)
    assert (await sampler.sample(wait=True)).throughput.slots == 1
    box.answers["/props"]["is_sleeping"] = True
    seen = len(box.asked)
    snapshot = await sampler.sample(wait=True)

    assert (snapshot.throughput.state, snapshot.slots) == ("sleeping", ())
    assert "/slots" not in box.asked[seen:]


def test_a_server_of_this_machine_that_may_sleep_is_known_by_its_command_line() -> None:
    script = "import socket, sys; s = socket.create_server(('127.0.0.1', 0)); print(s.getsockname()[1]); input()"
    argv = [sys.executable, "-uc", script, "--sleep-idle-seconds", "60"]
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as child:
        assert child.stdout is not None
        port = int(child.stdout.readline())
        assert can_sleep_at(f"http://127.0.0.1:{port}")
        assert not can_sleep_at(f"http://192.0.2.1:{port}")
        child.communicate("\n", timeout=30)
    assert not can_sleep_at(f"http://127.0.0.1:{port}")
    assert not can_sleep_at("http://127.0.0.1")


async def test_such_a_server_is_never_asked_for_its_slots(
    box: LlamaBox, make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sampler_module, "can_sleep_at", lambda url: True)
    snapshot = await make(url=box.url).sample(wait=True)

    assert (snapshot.throughput.state, snapshot.problems) == ("idle", (NOT_ASKED,))
    assert "/slots" not in box.asked
