"""Agents that share a system prompt and start together, through the gateway, with a real engine and a real model."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from tests.engine.conftest import Box
from tests.gateway_process import Gateway
from tests.ports import free_port
from tests.raw_http import Reply, ask

pytestmark = [pytest.mark.engine, pytest.mark.usefixtures("patient")]

SYSTEM = "You are a careful agent. " + " ".join(f"Rule {number}: take care of file {number}." for number in range(53))


def body_of(number: int, **more: Any) -> dict[str, Any]:
    messages = [
        {"role": "system", "content": SYSTEM},
        {"role": "user", "content": f"{number} is my number. And yours?"},
    ]
    return {"model": "agents", "messages": messages, "max_tokens": 6, "temperature": 0, "seed": 1, **more}


def test_two_agents_that_start_together_read_their_system_prompt_once(box: Box) -> None:
    flags: dict[str, object] = {"ctx-size": 4096, "parallel": 2}
    box.profile("agents", flags, port=free_port())
    gateway = Gateway()
    try:
        first = ask(gateway.port, "/v1/chat/completions", body_of(0, messages=[{"role": "user", "content": "Hi"}]))
        assert first.status == 200, first.body
        replies: dict[int, Reply] = {}

        def talk(number: int) -> None:
            replies[number] = ask(gateway.port, "/v1/chat/completions", body_of(number), timeout=300)

        threads = [threading.Thread(target=talk, args=(number,)) for number in (1, 2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        status = gateway.status()
        (server,) = [profile for profile in status["profiles"] if profile["name"] == "agents"]
        port = int(server["base_url"].rpartition(":")[2])
        alone = ask(port, "/v1/chat/completions", body_of(2, cache_prompt=False), timeout=300)
    finally:
        gateway.stop()

    own = [line["prompt_tokens"] for line in status["finished"] if line["client"] == "gpubox"]
    (prefix,) = [tokens for tokens in own if tokens > 1]  # with one token it has a slot moved to the cache in RAM
    assert prefix > 512
    for reply in replies.values():
        timings = reply.json()["timings"]
        assert timings["cache_n"] >= prefix  # more if it went where the other one had been
        assert timings["prompt_n"] < 60
    assert replies[2].json()["choices"] == alone.json()["choices"]
    tokens = 2 * prefix
    assert status["kept_kv"] == [
        f"agents: 2 kept KV caches came back from disk; {tokens:,} of the {tokens:,} tokens were reused, not read anew."
    ]
    assert gateway.problems() == ""
