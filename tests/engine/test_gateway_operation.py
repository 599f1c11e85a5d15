"""What the gateway's child does to real servers: two beside each other, and none is lost for a profile that fails."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from gpubox.cli.main import run
from gpubox.config import load_config
from gpubox.profiles.loader import load_catalog
from gpubox.server.instance import find_instance, observe
from gpubox.server.supervisor import OperationFailed, Supervisor
from tests.engine.conftest import Box
from tests.gateway_child import Child

pytestmark = [pytest.mark.engine, pytest.mark.usefixtures("patient")]


@pytest.fixture(scope="module")
def pair(box: Box) -> Iterator[Box]:
    """Two small models beside each other, started one after the other."""
    for name, port in (("a", box.port), ("b", box.port)):
        box.profile(name, port=port)
        child = Child(box.paths, {"kind": "start", "profile": name, "asked_by": "opencode"})
        assert child.until("placed")["instances"]
        assert child.end() == 0
    yield box
    assert run(["stop", "--all"]) == 0
    assert box.servers() == []


def base_url(box: Box, profile: str) -> str:
    instance = find_instance(box.paths, profile)
    assert instance is not None
    running = observe(box.paths, instance).running
    assert running and running.ready_at
    return running.launch.base_url


def answer(box: Box, profile: str) -> str:
    body = {"prompt": "The capital of France is", "n_predict": 4, "temperature": 0}
    reply = httpx.post(f"{base_url(box, profile)}/completion", json=body, timeout=60)
    return str(reply.json()["content"])


def test_two_that_fit_run_beside_each_other(pair: Box) -> None:
    assert (find_instance(pair.paths, "a"), find_instance(pair.paths, "b")) == ("main", "b")
    assert base_url(pair, "a") != base_url(pair, "b")
    assert answer(pair, "a") == answer(pair, "b") != ""


def test_a_profile_that_a_check_refuses_interrupts_no_answer(pair: Box) -> None:
    pair.profile("missing", model=str(pair.root / "no.gguf"))
    pair.profile("huge", {"ctx-size": 40_000_000})
    body = {"prompt": "Once upon a time", "n_predict": 200, "stream": True, "ignore_eos": True}
    before, tokens, refused = sorted(pair.servers()), 0, list[dict[str, Any]]()
    with httpx.stream("POST", f"{base_url(pair, 'a')}/completion", json=body, timeout=60) as stream:
        for line in stream.iter_lines():
            tokens += line.startswith("data: ")
            if tokens == 2 and not refused:
                for name in ("missing", "huge"):
                    child = Child(pair.paths, {"kind": "start", "profile": name})
                    refused.append(child.until("failed"))
                    child.wait()
    assert "no.gguf" in refused[0]["message"] and (refused[1]["exit_code"], refused[1]["temporary"]) == (5, False)
    assert tokens >= 200
    assert sorted(pair.servers()) == before


def test_what_dies_brings_back_every_server_that_stopped_for_it(pair: Box) -> None:
    pair.profile("dies", engine="die")
    texts = [answer(pair, name) for name in ("a", "b")]

    supervisor = Supervisor(pair.paths, load_config(pair.paths), asked_by="opencode")
    with pytest.raises(OperationFailed, match=r"GGML_ASSERT.* a is restored \(.*\. b is restored \(") as failed:
        asyncio.run(supervisor.place(load_catalog(pair.paths).get("dies"), displaces=("b",)))

    assert failed.value.code == 4
    assert [answer(pair, name) for name in ("a", "b")] == texts
    assert len(pair.servers()) == 2
