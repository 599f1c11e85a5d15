"""The first snapshot is right whatever was read by then; the queue; no file is read on the event loop."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler
from typing import Any

import pytest

from gpubox.paths import Paths
from gpubox.telemetry import http_source, log_source
from gpubox.telemetry import sampler as sampler_module
from tests.unit.llama_box import LlamaBox, done, metrics, send, slot, taken
from tests.unit.sampling import Make, Time, healthy, until


async def test_the_first_snapshot_of_a_busy_server_is_busy(box: LlamaBox, make: Make) -> None:
    box.start()
    box.answers["/slots"] = [slot(busy=True, task=1, generated=5)]
    snapshot = await make().sample()  # as the screen asks: nothing is waited for but the first answer

    assert (snapshot.server.state, snapshot.throughput.state, snapshot.throughput.slots) == (
        "answering",
        "answering",
        1,
    )
    assert snapshot.problems == ()


async def test_before_the_first_http_reading_the_log_decides(
    box: LlamaBox, make: Make, ahead: Time, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sampler_module, "FIRST_SECONDS", 0.05)
    box.answers["/slots"] = box.hang
    box.start()
    box.write(taken("0.01.000.000", 1))
    sampler = make()
    snapshot = await sampler.sample()
    assert (snapshot.throughput.state, snapshot.problems) == ("answering", ("the server has not been polled yet",))

    box.write(done("0.05.000.000", 1))
    assert (await sampler.sample()).throughput.state == "idle"

    box.answers["/slots"] = [slot()]
    box.unblock.set()
    await until(sampler.sample, healthy)


async def test_readings_from_the_load_are_dropped_when_the_server_is_ready(
    box: LlamaBox, make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(handler: BaseHTTPRequestHandler) -> None:
        handler.close_connection = True

    hanging = threading.Event()

    def hang(handler: BaseHTTPRequestHandler) -> None:
        hanging.set()
        box.hang(handler)

    monkeypatch.setattr(sampler_module, "FIRST_SECONDS", 0.05)
    box.answers |= {"/slots": refuse, "/health": refuse}
    box.start(ready_at=None)
    sampler = make()
    await until(sampler.sample, lambda _: len(box.asked) > 2)
    assert (await sampler.sample()).throughput.state == "loading"

    box.answers |= {"/slots": hang, "/health": hang}  # the server computes the first batch of a request
    await until(sampler.sample, lambda _: hanging.is_set())
    box.record(ready_at="t")
    snapshot = await sampler.sample()
    assert (snapshot.server.state, snapshot.throughput.state) == ("ready", "idle")
    assert snapshot.problems == ("the server has not been polled yet",)


async def test_a_request_that_begins_during_the_poll_is_in_the_snapshot(box: LlamaBox, make: Make) -> None:
    def busy(handler: BaseHTTPRequestHandler) -> None:
        box.write(taken("0.01.000.000", 7))
        send(handler, json.dumps([slot(busy=True, task=7, n_prompt_tokens_processed=250)]).encode())

    box.start()
    box.answers["/slots"] = busy
    snapshot = await make().sample(wait=True)

    assert (snapshot.throughput.state, snapshot.slots[0].prompt_tokens) == ("prefill", 1000)
    assert snapshot.throughput.prefill_progress == pytest.approx(0.25)


async def test_requests_that_wait_for_a_slot_are_counted(box: LlamaBox, make: Make, ahead: Time) -> None:
    box.start()
    box.answers["/slots"] = [slot(0, busy=True, task=1, generated=1), slot(1, busy=True, task=2, generated=1)]
    box.answers["/metrics"] = metrics(processing=2, deferred=3)
    sampler = make()
    assert (await sampler.sample(wait=True)).throughput.queued_requests == 3

    box.answers["/metrics"] = metrics(processing=2, deferred=1)
    for step in range(1, 5):
        box.answers["/slots"] = [slot(n, busy=True, task=n + 1, generated=1 + step) for n in range(2)]
        ahead.ahead += http_source.QUEUE_SECONDS / 2
        snapshot = await sampler.sample(wait=True)
    assert snapshot.throughput.queued_requests == 1
    assert box.asked.count("/metrics") == 3  # not at every poll: it resets gauges that other watchers read

    box.answers["/slots"] = [slot(0, busy=True, task=1, generated=9), slot(1, task=2)]
    assert (await sampler.sample(wait=True)).throughput.queued_requests == 0


async def test_the_queue_is_unknown_without_slots_and_counters(box: LlamaBox, make: Make) -> None:
    box.start()
    box.answers |= {"/slots": [slot(busy=True, generated=1)], "/metrics": 501}

    assert (await make().sample(wait=True)).throughput.queued_requests is None


async def test_no_file_is_read_on_the_event_loop(
    box: LlamaBox, make: Make, paths: Paths, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A disk that hangs holds up a thread, not the screen."""
    where: dict[str, bool] = {}

    def watched(name: str, work: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            where[name] = where.get(name, False) or threading.current_thread() is threading.main_thread()
            return work(*args, **kwargs)

        return call

    readers = {name: sampler_module for name in ("truncate_log", "read_process", "LogSource")}
    for name, module in {"observe": sampler_module, **readers}.items():
        monkeypatch.setattr(module, name, watched(name, getattr(module, name)))
    monkeypatch.setattr(log_source.LogSource, "read", watched("read", log_source.LogSource.read))
    box.start()
    sampler = make()
    await until(sampler.sample, healthy)
    await make(url=box.url).sample()

    assert where == dict.fromkeys(("observe", "truncate_log", "read_process", "LogSource", "read"), False)
