"""The Sampler and a server that gpubox did not start."""

from __future__ import annotations

from http.server import BaseHTTPRequestHandler

from gpubox.paths import Paths
from tests.unit.llama_box import METRICS, LlamaBox, send, slot
from tests.unit.sampling import DENIED, NO_SLOTS, Make, until

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

    box.answers["/metrics"] = METRICS.format(prompt=20, generated=57)
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
    assert snapshot.problems == (f"nothing answers at {box.url} (ConnectError)",)

    box.start_serving()
    snapshot = await until(lambda: sampler.sample(wait=True), lambda s: s.throughput.slots == 1)
    assert (snapshot.server.state, snapshot.server.message) == ("ready", "")


async def test_a_server_by_its_url_that_wants_a_key(box: LlamaBox, make: Make, brief: None) -> None:
    box.key = "sesame"
    sampler = make(url=box.url)
    assert (await sampler.sample(wait=True)).problems == (DENIED,)

    box.key = None
    assert (await sampler.sample(wait=True)).problems == ()


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

    box.answers = dict.fromkeys(box.answers, web_page)
    snapshot = await make(url=box.url).sample(wait=True)

    assert (snapshot.problems, snapshot.throughput.state) == ((NO_SLOTS,), "idle")
