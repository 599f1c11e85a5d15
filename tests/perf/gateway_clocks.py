"""Do the gateway's own figures equal the clients' clocks and the servers' counters?

usage: gateway_clocks.py LLAMA-SERVER MODEL.gguf [--requests 60] [--clients 3]
Clients with names of their own note when the last byte of a request left and when the first token came. The ledger's
TTFT and duration must equal that within 5 ms, its tokens the server's /metrics to the token.
"""

from __future__ import annotations

import argparse
import random
import statistics
import sys
import threading
from typing import Any

from box import options, own_folders, profile, until
from gateway_box import base_port, chat, counters, ledger_lines

from tests.gateway_process import Gateway
from tests.ports import free_port
from tests.raw_http import Reply

LIMIT_MS = 5.0
COUNTERS = {
    "prompt_tokens_total": "read",
    "prompt_tokens_cached_total": "cached_tokens",
    "tokens_predicted_total": "generated_tokens",
}


def main() -> None:
    arguments = options(__doc__, "engine", "model", requests=60, clients=3)
    with own_folders(arguments.engine) as folder:
        profile(folder, "a", arguments.model, free_port(), {"ctx-size": 4096, "parallel": 2, "threads": 1})
        gateway = Gateway()
        try:
            chat(gateway.port, "a", "Hi", 1, stream=False, headers={"User-Agent": "warm/1"})
            good = compare(gateway, arguments)
        finally:
            gateway.stop()
    sys.exit(not good)


def compare(gateway: Gateway, arguments: argparse.Namespace) -> bool:
    """Prints the differences; whether they are small."""
    port = base_port(gateway.status(), "a")
    before = counters(port)
    replies: dict[str, tuple[float, Reply]] = {}
    threads = [
        threading.Thread(target=drive, args=(gateway.port, number, arguments.requests // arguments.clients, replies))
        for number in range(arguments.clients)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    until(lambda: len(rows()) >= len(replies), "the ledger's lines")
    lines = rows()
    ttft, seconds, wrong = [], [], []
    for name, (_, reply) in replies.items():
        line = lines[name]
        if line["ttft_seconds"] is not None:
            ttft.append((line["ttft_seconds"] - (reply.first_token_at - reply.sent_at)) * 1000)
        elif reply.first_token_at:
            wrong.append(f"{name} has no TTFT")
        seconds.append((line["seconds"] - (reply.ended_at - reply.sent_at)) * 1000)
        usage = reply.final["usage"]
        cached = (usage.get("prompt_tokens_details") or {}).get("cached_tokens")
        asked = (usage["prompt_tokens"], cached, usage["completion_tokens"])
        if asked != (line["prompt_tokens"], line["cached_tokens"], line["generated_tokens"]):
            wrong.append(f"{name}: {asked} and {line}")
    good = not wrong and report("TTFT", ttft) & report("duration", seconds)
    for text in wrong:
        print("   ", text)
    return good & count(counters(port), before, list(lines.values()), list(replies))


def report(what: str, errors: list[float]) -> bool:
    """Prints how far the ledger's seconds are from the clients'."""
    size = sorted(abs(error) for error in errors)
    over = sum(error > LIMIT_MS for error in size)
    print(f"{what}: {len(size)} requests, ledger - client: median {statistics.median(errors):+.2f} ms, "
          f"worst {size[-1]:.2f} ms, {over} over {LIMIT_MS:.0f} ms")  # fmt: skip
    return not over


def count(after: dict[str, int], before: dict[str, int], lines: list[dict[str, Any]], names: list[str]) -> bool:
    """Whether the ledger's sums are the server's."""
    good = True
    mine = [line for line in lines if line["client"] in names]
    for counter, key in COUNTERS.items():
        if key == "read":
            ledger = sum(line["prompt_tokens"] - line["cached_tokens"] for line in mine)
        else:
            ledger = sum(line[key] for line in mine)
        server = after[counter] - before[counter]
        good &= ledger == server
        print(f"{counter:28} server {server:7,}   ledger {ledger:7,}   {'exact' if server == ledger else 'DIFFERS'}")
    return good


def rows() -> dict[str, dict[str, Any]]:
    """The ledger's lines of the clients, by name."""
    return {line["client"]: line for line in ledger_lines() if line.get("client", "").startswith("c")}


def drive(port: int, number: int, requests: int, replies: dict[str, tuple[float, Reply]]) -> None:
    chance = random.Random(number)
    for request in range(requests):
        name = f"c{number}x{request}"
        prompt = f"{number} " + "word " * chance.randrange(1, 60)
        stream = chance.random() < 0.7
        more = {"cache_prompt": True, "headers": {"User-Agent": f"{name}/1"}}
        reply = chat(port, "a", prompt, chance.randrange(1, 24), stream=stream, **more)
        assert reply.status == 200 and reply.whole, reply
        replies[name] = (reply.sent_at, reply)


if __name__ == "__main__":
    main()
