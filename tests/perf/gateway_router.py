"""The gateway beside the router of the same llama-server: many clients, three models of which one fits at a time.

usage: gateway_router.py LLAMA-SERVER MODEL.gguf [--rounds 5] [--clients 12] [--requests 6]
In a round both are started anew, in alternating order, with the same flags and without RPC; --clients ask --requests
each, of changing models, one after another. The ratio is the median of the rounds' ratios: what else the machine does
slows both of a round. Limits: 1.1x the router's total time, no failure. Exits 1 where one is broken.
gateway_swap.py measures one swap.
"""

from __future__ import annotations

import argparse
import random
import statistics
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

from box import options, own_folders
from gateway_box import chat, gateway_config, launch_profile
from gateway_swap import CTX, EXCLUDES, router

from tests.gateway_process import Gateway
from tests.raw_http import Reply

HUNG_SECONDS = 300.0
MOST_RATIO = 1.1


def main() -> None:
    arguments = options(__doc__, "engine", "model", rounds=5, clients=12, requests=6)
    seconds: dict[str, list[float]] = {"router": [], "gateway": []}
    failures: dict[str, list[str]] = {"router": [], "gateway": []}
    for number in range(arguments.rounds):
        for way in sorted(seconds, reverse=bool(number % 2)):
            with own_address(arguments) if way == "gateway" else routers_address(arguments) as port:
                took, failed = crowd(port, arguments, number)
            seconds[way].append(took)
            failures[way] += failed
            print(f"round {number + 1} {way:8} {took:6.1f} s, {len(failed)} failed {failed[:2]}", flush=True)
    ratios = [ours / theirs for ours, theirs in zip(seconds["gateway"], seconds["router"], strict=True)]
    ratio, count = statistics.median(ratios), len(failures["gateway"])
    print(f"total time {ratio:.2f}x the router's ({min(ratios):.2f}-{max(ratios):.2f}), limit {MOST_RATIO}x; "
          f"{count} failed, of the router {len(failures['router'])}")  # fmt: skip
    sys.exit(ratio > MOST_RATIO or count > 0)


@contextmanager
def routers_address(arguments: argparse.Namespace) -> Iterator[int]:
    with own_folders(arguments.engine) as folder, router(
        arguments.engine, folder, dict.fromkeys(CTX, arguments.model)
    ) as port:  # fmt: skip
        yield port


@contextmanager
def own_address(arguments: argparse.Namespace) -> Iterator[int]:
    with own_folders(arguments.engine) as folder:
        gateway_config(folder)
        for name, cells in CTX.items():
            flags = {"ctx-size": cells, "parallel": 1, "threads": 1}
            launch_profile(folder, name, arguments.model, "real", flags, port=0, env=EXCLUDES)
        gateway = Gateway()
        try:
            yield gateway.port
        finally:
            gateway.stop()
            if problems := gateway.problems():
                sys.exit(problems)


def crowd(port: int, arguments: argparse.Namespace, number: int) -> tuple[float, list[str]]:
    """The seconds that all took, and what was no answer."""
    failures: list[str] = []

    def client(each: int) -> None:
        chance = random.Random(100 * number + each)
        for request in range(arguments.requests):
            prompt = f"{chance.random()} " + "one " * chance.randrange(60)
            reply = chat(
                port, chance.choice(list(CTX)), prompt, chance.randrange(4, 17), stream=bool(request % 2),
                ignore_eos=True, timeout=HUNG_SECONDS, headers={"User-Agent": f"c{each}/1"},
            )  # fmt: skip
            if not is_answer(reply):
                failures.append(f"{reply.status} {reply.body[-160:]!r} {reply.error}")

    first = chat(port, next(iter(CTX)), "Hi", 1, stream=False, timeout=HUNG_SECONDS)  # both have read their files
    assert is_answer(first), first
    began = time.monotonic()
    threads = [threading.Thread(target=client, args=(each,)) for each in range(arguments.clients)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return time.monotonic() - began, failures


def is_answer(reply: Reply) -> bool:
    return reply.status == 200 and reply.whole and bool(reply.text) and "error" not in reply.final


if __name__ == "__main__":
    main()
