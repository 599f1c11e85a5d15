"""Keys and ledger of a real gateway: revoked and damaged while answers run, killed, without a disk."""

from __future__ import annotations

import random
import threading
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime

import pytest

from gpubox.gateway.agent_keys import agent_key, remove_agent_key
from gpubox.gateway.client_keys import ClientKeys, ClientLimits
from gpubox.gateway.gateway_status import FinishedRequest
from gpubox.gateway.ledger import Ledger
from gpubox.paths import Paths
from tests.conftest import until
from tests.gateway_process import Gateway, paced_server, upstream_profile
from tests.raw_http import Reply, ask

NAME = "paced"


@pytest.fixture
def upstream(paths: Paths) -> Iterator[None]:
    """A profile whose server somebody else started, at an exact pace."""
    with paced_server() as (port, _):
        upstream_profile(paths.config, NAME, port)
        yield


@pytest.fixture
def gateway(upstream: None) -> Iterator[Gateway]:
    running = Gateway()
    try:
        yield running
        assert not running.problems()
    finally:
        running.stop()


def chat(port: int, key: str = "", *, client: str = "pytest", **more: object) -> Reply:
    headers = {"User-Agent": client} | ({"Authorization": f"Bearer {key}"} if key else {})
    leave = more.pop("leave", lambda _: False)
    body = {"model": NAME, "messages": [], "max_tokens": 2, "pace": 1000, **more}
    return ask(port, "/v1/chat/completions", body, headers=headers, leave=leave)  # type: ignore[arg-type]


def lines(paths: Paths) -> list[FinishedRequest]:
    return list(Ledger(paths.ledger).requests(datetime.now().astimezone().date()))


def test_keys_that_change_while_answers_run(paths: Paths, gateway: Gateway) -> None:
    """A revoked key ends its own answer with an error. A damaged file ends none, and lets nobody in."""
    keys = ClientKeys(paths)
    laptop, desk = keys.add("laptop"), keys.add("desk")
    seen = threading.Event()
    go_on = threading.Event()

    def leave(reply: Reply) -> bool:
        if reply.token_times:
            seen.set()
        return go_on.is_set()

    with ThreadPoolExecutor(2) as clients:
        long = clients.submit(chat, gateway.port, desk, max_tokens=10**6, pace=50, stream=True, leave=leave)
        assert seen.wait(60)
        cut = clients.submit(chat, gateway.port, laptop, max_tokens=10**6, pace=50, stream=True)
        until(lambda: [r["state"] for r in gateway.status()["requests"]].count("generating") == 2)
        keys.remove("laptop")
        reply = cut.result(60)
        assert (reply.status, reply.whole) == (200, True)
        assert reply.events[-1]["error"] | {"code": 0} == {
            "message": "The key of this client was revoked.", "type": "authentication_error", "code": 0,
        }  # fmt: skip
        assert chat(gateway.port, laptop).status == 401

        good = paths.client_keys.read_bytes()
        for damage in ("cut", "readable", "gone"):
            paths.client_keys.write_bytes(good[:30] if damage == "cut" else good)
            paths.client_keys.chmod(0o644 if damage == "readable" else 0o600)
            if damage == "gone":
                paths.client_keys.unlink()
            refused = chat(gateway.port, desk)
            assert (refused.status, chat(gateway.port).status) == (503, 503)
            assert str(paths.config).encode() not in refused.body
            assert ask(gateway.port, "/metrics").status == 503
        tokens = gateway.status()["requests"][0]["generated_tokens"]
        until(lambda: gateway.status()["requests"][0]["generated_tokens"] > tokens + 60)  # the watch has looked since
        paths.client_keys.write_bytes(good)
        paths.client_keys.chmod(0o600)
        assert chat(gateway.port, desk).status == 200
        go_on.set()
        assert long.result(60).left
    until(lambda: len(lines(paths)) == 3)
    assert [(line.client, line.outcome) for line in lines(paths)] == [
        ("laptop", "refused"), ("desk", "done"), ("desk", "left"),
    ]  # fmt: skip


@pytest.mark.parametrize("kills", [3, pytest.param(20, marks=pytest.mark.nightly)])
def test_a_killed_gateway_has_written_each_answer_that_a_client_got(paths: Paths, upstream: None, kills: int) -> None:
    """kill -9 at random moments, with clients that ask all the time: each whole answer is one line, with its tokens."""
    got: dict[str, int] = {}
    stop = threading.Event()
    gateway = Gateway()

    def asks(number: int) -> None:
        count = 0
        while not stop.is_set():
            count += 1
            name, tokens = f"c{number}-{count}", random.randint(1, 6)
            reply = chat(gateway.port, client=name, max_tokens=tokens, stream=count % 2 == 0)
            if reply.status == 200 and reply.whole:
                got[name] = tokens
            else:
                stop.wait(0.05)

    threads = [threading.Thread(target=asks, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    try:
        for _ in range(kills):
            enough = len(got) + random.randint(5, 40)
            until(lambda enough=enough: len(got) > enough)  # type: ignore[misc]
            gateway.kill()
            gateway = Gateway(gateway.port)
        before = len(got)
        until(lambda: len(got) > before + 5)
    finally:
        stop.set()
        for thread in threads:
            thread.join()
        gateway.stop()

    done = Counter(line.client for line in lines(paths) if line.outcome == "done")
    assert set(done.values()) == {1}
    assert set(got) <= set(done)
    assert {line.client: line.generated_tokens for line in lines(paths) if line.client in got} == got
    sums = Ledger(paths.ledger).sums(datetime.now().astimezone().date())
    assert sum(client.generated_tokens for client in sums.values()) >= sum(got.values())


def test_a_ledger_that_cannot_be_written_breaks_no_request(paths: Paths, gateway: Gateway) -> None:
    assert chat(gateway.port).status == 200
    assert len(lines(paths)) == 1  # before the client had the last byte
    paths.ledger.rename(paths.gateway / "away")
    paths.ledger.write_text("a file, where the folder was")

    assert [chat(gateway.port).status for _ in range(3)] == [200, 200, 200]
    metrics = ask(gateway.port, "/metrics").body.decode()
    assert f'gpubox_gateway_generated_tokens_total{{client="pytest",profile="{NAME}"}} 8\n' in metrics

    [problem] = gateway.status()["problems"]
    assert problem.startswith("The ledger cannot be written: ")
    paths.ledger.unlink()
    (paths.gateway / "away").rename(paths.ledger)
    assert chat(gateway.port).status == 200
    assert gateway.status()["problems"] == []
    assert len(lines(paths)) == 5  # nothing is lost
    assert gateway.status()["clients"]["pytest"]["generated_tokens"] == 10


def test_a_key_keeps_its_limits(paths: Paths, gateway: Gateway) -> None:
    keys = ClientKeys(paths)
    few = keys.add("few", ClientLimits(tokens_per_day=30))
    assert chat(gateway.port, few).status == 200  # it costs 34
    refused = chat(gateway.port, few)
    assert (refused.status, b"The 30 tokens of few for today are used up" in refused.body) == (429, True)
    assert 0 < int(refused.header("retry-after")) <= 25 * 3600
    key = keys.add("other", ClientLimits(models=("another",)))
    unload = ask(gateway.port, "/unload", {"model": NAME}, headers={"Authorization": f"Bearer {key}"})
    for other in (chat(gateway.port, key), unload):
        assert (other.status, b"not for paced" in other.body) == (403, True)
    single = keys.add("single", ClientLimits(requests_at_once=1))
    with ThreadPoolExecutor(2) as clients:
        both = [clients.submit(chat, gateway.port, single, max_tokens=50, pace=100) for _ in range(2)]
        until(
            lambda: (
                [r["waits_for"] for r in gateway.status()["requests"]]
                == [None, {"kind": "limit", "behind": [["single", 1]]}]
            )
        )
        assert [each.result().status for each in both] == [200, 200]
    waits = [line.queue_seconds for line in lines(paths) if line.client == "single"]
    assert waits[0] == 0.0 < waits[1]


def test_an_agent_of_the_box_is_named_whether_keys_are_needed_or_not(paths: Paths, gateway: Gateway) -> None:
    agent = agent_key(paths, "opencode")
    assert [chat(gateway.port, key).status for key in (agent, "")] == [200, 200]
    laptop = ClientKeys(paths).add("laptop")
    assert [chat(gateway.port, key).status for key in (agent, laptop, "")] == [200, 200, 401]
    ClientKeys(paths).add("opencode", ClientLimits(models=("another",)))  # its limits hold for the agent
    assert chat(gateway.port, agent).status == 403
    assert remove_agent_key(paths, "opencode")
    assert chat(gateway.port, agent).status == 401
    assert chat(gateway.port, agent_key(paths, "codex")).status == 200
    until(lambda: len(lines(paths)) == 6)
    assert [line.client for line in lines(paths)] == ["opencode", "pytest", "opencode", "laptop", "opencode", "codex"]


def test_a_removed_agent_is_cut_also_where_nobody_needs_a_key(paths: Paths, gateway: Gateway) -> None:
    agent = agent_key(paths, "opencode")
    with ThreadPoolExecutor(1) as clients:
        running = clients.submit(chat, gateway.port, agent, max_tokens=10**6, pace=50, stream=True)
        until(lambda: [r["state"] for r in gateway.status()["requests"]] == ["generating"])
        remove_agent_key(paths, "opencode")
        assert "revoked" in running.result(60).events[-1]["error"]["message"]
