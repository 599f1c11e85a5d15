"""What the gateway adds: time and processor time per token and request, first token, memory; beside a direct way.

usage: gateway_cost.py [--engine LLAMA-SERVER --model MODEL.gguf] [--streams 1 8 64] [--seconds 4] [--rounds 5]
                       [--requests 12000]
A synthetic llama-server, which the gateway started, stamps each token with the moment at which it was written, so a
token's way is known to the microsecond. Direct and through the gateway take turns in one run; what is added is the
median of their pairs. With an engine the same figures for a real server, where a token's way cannot be stamped: first
token, tokens/s and processor time. Then --requests short requests on connections that stay open. Limits: see LIMITS;
those of a token and of the first token are for 64 streams x 100 tok/s. Exits 1 where one is broken.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import math
import os
import re
import statistics
import sys
import time
from dataclasses import dataclass, field
from typing import Any

from box import own_folders, profile
from gateway_box import base_port, chat_body, gateway_config, launch_profile

from tests.gateway_process import Gateway, cpu_seconds, empty_model, paced_engine, resident_mib
from tests.ports import free_port
from tests.raw_http import request_bytes

STAMP = re.compile(rb'"content":" (\d+)"')
TEXT = re.compile(rb'"content":"[^"]')
LIMITS = {
    "token p50 ms": 0.6, "CPU us/token": 50.0, "first token of 64 ms": 8.0, "first token p50 ms": 3.0, "MiB": 60.0,
    "CPU ms/request": 0.45, "MiB grown": 2.0,
}  # fmt: skip
"""``first token p50``: of requests one by one. ``grown``: by all requests but the first sixth of them."""
BODY_BYTES = 10_000
STREAM_SECONDS = 4.0
REQUESTS, CONNECTIONS = 100, 8


@dataclass(slots=True)
class Measured:
    """What the clients of one stretch saw."""

    delays: list[float] = field(default_factory=list)
    """Milliseconds from the server's write to the client's read, of each token but the first ones."""
    first: list[float] = field(default_factory=list)
    """Milliseconds from the request's last byte to the first token's."""
    begins_at: float = 0.0
    """time.monotonic(): what comes before is not counted, nor what comes after ``ends_at``."""
    ends_at: float = math.inf
    tokens: int = 0
    cut: int = 0
    cpu: float = 0.0
    seconds: float = 0.0
    rounds: list[tuple[float, float]] = field(default_factory=list)
    """``(token p50, first token p50)`` of each round: rounds of both ways stand beside each other in time."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--engine")
    parser.add_argument("--model")
    parser.add_argument("--streams", type=int, nargs="*", default=[1, 8, 64])
    parser.add_argument("--seconds", type=float, default=4.0)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--requests", type=int, default=12_000)
    arguments = parser.parse_args()
    with own_folders(arguments.engine or "/bin/false") as folder:
        gateway_config(folder, {"paced": paced_engine(folder)}, queue=256)
        launch_profile(folder, "paced", empty_model(folder), "paced", {"parallel": 96}, port=0)
        if arguments.engine:
            flags: dict[str, object] = {"ctx-size": 4096, "parallel": 2, "threads": 1}
            profile(folder, "real", arguments.model, free_port(), flags)
        gateway = Gateway()
        try:
            worst = synthetic(gateway, arguments)
            worst["CPU ms/request"], worst["MiB grown"] = asyncio.run(short_requests(gateway, arguments.requests))
            if arguments.engine:
                real(gateway, arguments)
        finally:
            gateway.stop()
    broken = [name for name, limit in LIMITS.items() if worst[name] > limit]
    for name, limit in LIMITS.items():
        print(f"{name:20} {worst[name]:8.2f}   limit {limit:6.1f}   {'BROKEN' if name in broken else 'kept'}")
    sys.exit(bool(broken))


def synthetic(gateway: Gateway, arguments: argparse.Namespace) -> dict[str, float]:
    """The exact figures. Returns those of the limits."""
    worst = dict.fromkeys(LIMITS, 0.0)
    asyncio.run(
        drive(gateway.port, "paced", 8, 0.5, 100.0, gateway.pid)
    )  # what is loaded and connected late is not measured
    port = base_port(gateway.status(), "paced")
    print(f"idle: {resident_mib(gateway.pid):.1f} MiB, {idle_cpu(gateway.pid):.2f} % of a core")
    for streams in arguments.streams:
        ways: dict[str, Measured] = {"direct": Measured(), "gateway": Measured()}
        for number in range(arguments.rounds):
            for way in sorted(ways, reverse=bool(number % 2)):
                at = gateway.port if way == "gateway" else port
                add(ways[way], asyncio.run(drive(at, "paced", streams, arguments.seconds, 100.0, gateway.pid)))
        direct, through = ways["direct"], ways["gateway"]
        for way, measured in ways.items():
            print(f"{streams:3} streams {way:8} {describe(measured)}")
        if not (direct.delays and through.delays) or through.cut or direct.cut:
            sys.exit(f"{through.cut} answers through the gateway and {direct.cut} direct ones were cut")
        pairs = list(zip(through.rounds, direct.rounds, strict=True))
        added, first = (statistics.median(ours[n] - theirs[n] for ours, theirs in pairs) for n in (0, 1))
        each = through.cpu / through.tokens * 1e6
        core = 100 * through.cpu / through.seconds
        print(f"    added: token p50 {added:.3f} ms, first token p50 {first:.2f} ms; {each:.0f} us CPU/token, "
              f"{core:.0f} % of a core, {resident_mib(gateway.pid):.1f} MiB")  # fmt: skip
        worst["token p50 ms"] = max(worst["token p50 ms"], added)
        worst["MiB"] = max(worst["MiB"], resident_mib(gateway.pid))
        if streams == 64:
            worst["CPU us/token"], worst["first token of 64 ms"] = each, first
    worst["first token p50 ms"] = first_tokens(gateway.port, port)
    return worst


def first_tokens(through: int, direct: int) -> float:
    """Milliseconds that the gateway adds to the first token of a request on an idle server (median of pairs)."""
    pairs = []
    for _ in range(REQUESTS):
        ways = [Measured(), Measured()]
        for port, measured in zip((through, direct), ways, strict=True):
            asyncio.run(one(port, json.dumps(chat_body("paced", "Hi" * 5000, 2, stream=True)).encode(), True, measured))
        pairs.append((ways[0].first[0], ways[1].first[0]))
    medians = [statistics.median(pair[way] for pair in pairs) for way in (0, 1)]
    print(f"first token of {REQUESTS} requests one by one: {medians[0]:.2f} ms, direct {medians[1]:.2f} ms")
    return statistics.median(ours - theirs for ours, theirs in pairs)


async def short_requests(gateway: Gateway, count: int) -> tuple[float, float]:
    """Milliseconds of processor time of each, and by how many MiB the gateway has grown."""
    body = json.dumps(chat_body("paced", "Hi", 1, stream=False)).encode()
    request = request_bytes("POST", "/v1/chat/completions", body)

    async def client(requests: int) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", gateway.port)
        for _ in range(requests):
            writer.write(request)
            head = (await reader.readuntil(b"\r\n\r\n")).lower()
            if not head.startswith(b"http/1.1 200"):
                sys.exit(f"a short request got {head!r}")
            if length := re.search(rb"content-length: (\d+)", head):
                await reader.readexactly(int(length[1]))
            else:
                await reader.readuntil(b"\r\n0\r\n\r\n")
        writer.close()

    async def all_of_them(requests: int) -> None:
        await asyncio.gather(*(client(requests // CONNECTIONS) for _ in range(CONNECTIONS)))

    await all_of_them(count // 6)
    size, before = resident_mib(gateway.pid), cpu_seconds(gateway.pid)
    await all_of_them(count - count // 6)
    each = (cpu_seconds(gateway.pid) - before) / (count - count // 6) * 1000
    grown = resident_mib(gateway.pid) - size
    print(
        f"{count} short requests: {each:.3f} ms CPU each, {size:.1f} MiB after the first sixth, {grown:+.1f} MiB then"
    )
    return each, grown


def real(gateway: Gateway, arguments: argparse.Namespace) -> None:
    """The same clients at a real server that the gateway started."""
    asyncio.run(drive(gateway.port, "real", 1, 1.0, 0, gateway.pid))
    at = next(profile["base_url"] for profile in gateway.status()["profiles"] if profile["name"] == "real")
    port = int(at.rsplit(":", 1)[1])
    for streams in (1, 2):
        ways: dict[str, Measured] = {"direct": Measured(), "gateway": Measured()}
        for number in range(2 * arguments.rounds):
            for way in sorted(ways, reverse=bool(number % 2)):
                asked = gateway.port if way == "gateway" else port
                add(ways[way], asyncio.run(drive(asked, "real", streams, arguments.seconds / 2, 0, gateway.pid)))
        for way, measured in ways.items():
            rate, each = measured.tokens / measured.seconds, measured.cpu / measured.tokens * 1e6
            print(f"real server, {streams} streams {way:8} first token p50 {statistics.median(measured.first):.1f} ms, "
                  f"{rate:.1f} tok/s, {measured.cut} cut; {each:.0f} us CPU/token")  # fmt: skip


def idle_cpu(pid: int) -> float:
    """Per cent of one core that it takes with nothing to do."""
    before, began = cpu_seconds(pid), time.monotonic()
    time.sleep(3)
    return 100 * (cpu_seconds(pid) - before) / (time.monotonic() - began)


def add(to: Measured, more: Measured) -> None:
    to.delays += more.delays
    to.first += more.first
    if more.delays and more.first:
        to.rounds.append((statistics.median(more.delays), statistics.median(more.first)))
    to.tokens, to.cut = to.tokens + more.tokens, to.cut + more.cut
    to.seconds, to.cpu = to.seconds + more.seconds, to.cpu + more.cpu


def describe(measured: Measured) -> str:
    cuts = statistics.quantiles(measured.delays, n=100)
    return (
        f"token p50 {statistics.median(measured.delays):.3f} p99 {cuts[98]:.2f} ms, "
        f"first token p50 {statistics.median(measured.first):.2f} ms, {measured.tokens / measured.seconds:.0f} tok/s"
    )


async def drive(port: int, model: str, streams: int, seconds: float, pace: float, gateway: int) -> Measured:
    """So many clients, each with one stream after another, in ``seconds`` in which all of them are there.

    They begin spread over a stream's length. ``pace`` 0: a real server. ``gateway``: whose processor time is taken.
    """
    measured = Measured(begins_at=time.monotonic() + (STREAM_SECONDS if pace and streams > 1 else 0.0))
    end = measured.ends_at = measured.begins_at + seconds
    running = [
        asyncio.ensure_future(client(port, model, number / streams, end, pace, measured)) for number in range(streams)
    ]
    await asyncio.sleep(measured.begins_at - time.monotonic())
    before = cpu_seconds(gateway)
    await asyncio.sleep(end - time.monotonic())
    measured.cpu, measured.seconds = cpu_seconds(gateway) - before, seconds
    await asyncio.gather(*running)
    return measured


async def client(port: int, model: str, phase: float, end: float, pace: float, measured: Measured) -> None:
    await asyncio.sleep(phase * STREAM_SECONDS)
    while end > time.monotonic():
        tokens = round(STREAM_SECONDS * pace) if pace else 16
        body: dict[str, Any] = chat_body(
            model, os.urandom(BODY_BYTES // 2).hex() if pace else "Say hi", tokens, stream=True
        )
        await one(port, json.dumps(body).encode(), bool(pace), measured)


async def one(port: int, body: bytes, stamped: bool, measured: Measured) -> None:
    """One streamed answer. Only what must be is done for each piece: the client shares the machine."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(request_bytes("POST", "/v1/chat/completions", body, {"Connection": "close"}))
    await writer.drain()
    sent, first, tail = time.monotonic_ns(), 0, b""
    while data := await reader.read(65536):
        now = time.monotonic_ns()
        if now > measured.ends_at * 1e9:  # its tokens were counted
            writer.close()
            return
        counts = now >= measured.begins_at * 1e9
        stamps = STAMP.findall(data) if stamped else [0] * len(TEXT.findall(data))
        if not stamps:
            pass
        elif first and counts:
            measured.delays += [(now - int(stamp)) / 1e6 for stamp in stamps]
        elif not first:
            first = now
            measured.first += [(now - sent) / 1e6] * counts
        measured.tokens += len(stamps) * counts
        tail = (tail + data)[-64:]
        if tail.endswith(b"0\r\n\r\n"):
            break
    measured.cut += b"[DONE]" not in tail
    writer.close()


if __name__ == "__main__":
    main()
