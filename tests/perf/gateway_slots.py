"""Does the gateway schedule slots? Deadlines, the small request, the companion, the shares of two keys.

usage: gateway_slots.py [--scale 0.1] [--rounds 20] [--parts deadline,small,companion,shares,slots]
A synthetic server with 2 real slots queues what is too much for them, as llama-server does. Answers take 4 s and
wait-seconds is 10, both times --scale (1: as the limits were written, half an hour); loads take what they take. Parts:
  deadline   20 clients x 20 requests; another profile is asked for: after wait-seconds + one answer + one load at most
  small      5 tokens beside a client with 30 requests: after two answers at most
  companion  beside a switch that waits: after its own load + 1 s at most
  shares     two keys that always have requests: 45-55 % of the tokens each; with --weight 2 and 1: 60-73 %
  slots      at most slots + 1 requests are at the server, those at its own port counted
Prints a line for each limit and exits 1 where one is broken.
"""

from __future__ import annotations

import argparse
import itertools
import statistics
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from box import gpubox, options, own_folders
from gateway_box import base_port, chat, gateway_config, launch_profile

from tests.gateway_process import Gateway, empty_model, paced_engine
from tests.raw_http import Reply, ask

SLOTS, ANSWER_SECONDS, WAIT_SECONDS = 2, 4.0, 10.0
PACE = 25.0
"""Tokens per second of one answer."""
QUIET_SECONDS = 2.0
"""After so long without a request a profile goes at once."""
HUNG_SECONDS = 600.0


@dataclass(slots=True)
class Limit:
    """One line of the table."""

    what: str
    measured: list[float]
    least: float
    most: float
    unit: str

    @property
    def kept(self) -> bool:
        return bool(self.measured) and all(self.least <= value <= self.most for value in self.measured)

    def __str__(self) -> str:
        within = sum(self.least <= value <= self.most for value in self.measured)
        low, middle, high = min(self.measured), statistics.median(self.measured), max(self.measured)
        bound = f"{self.least:.0f}-{self.most:.0f}" if self.least else f"<= {self.most:.2f}"
        return (
            f"{self.what:58} {low:6.2f} {middle:6.2f} {high:6.2f} {self.unit:2} {bound:>8}  "
            f"{within} of {len(self.measured)}  {'kept' if self.kept else 'BROKEN'}"
        )


@dataclass(slots=True)
class Crowd:
    """Clients that ask one after another until they are told to stop, at least so many times each."""

    port: int
    answers: list[Reply] = field(default_factory=list)
    ended: threading.Event = field(default_factory=threading.Event)
    threads: list[threading.Thread] = field(default_factory=list)

    def start(self, clients: int, seconds: float, *, least: int = 0, **more: Any) -> None:
        """``seconds`` an answer takes; ``more``: ``user``, ``key``, or one name for all in ``client``."""
        for number in range(clients):
            client = str(more.get("client", f"c{number}"))
            work = (client, seconds, least, str(more.get("user", client)), str(more.get("key", "")))
            self.threads.append(threading.Thread(target=self._ask_on, args=work))
            self.threads[-1].start()

    def _ask_on(self, client: str, seconds: float, least: int, user: str, key: str) -> None:
        for number in itertools.count():
            if self.ended.is_set() and number >= least:
                return
            self.answers.append(say(self.port, "busy", seconds, client=client, user=user, key=key))

    def answered(self, more: int) -> None:
        """Returns when so many more answers have come."""
        count = len(self.answers) + more
        while len(self.answers) < count and any(thread.is_alive() for thread in self.threads):
            time.sleep(0.01)

    def stop(self) -> list[Reply]:
        """Ends the clients after their answers; returns those that are none."""
        self.ended.set()
        for thread in self.threads:
            thread.join()
        return [reply for reply in self.answers if reply.status != 200 or not reply.whole or not reply.text]


def main() -> None:
    arguments = options(__doc__, scale=0.1, rounds=20, parts="deadline,small,companion,shares,slots")
    parts: dict[str, Callable[[argparse.Namespace], Iterator[Limit]]] = {
        "deadline": deadline, "small": small, "companion": companion, "shares": shares, "slots": slots
    }  # fmt: skip
    broken = 0
    print(f"{'':58} {'least':>6} {'median':>6} {'most':>6}    {'limit':>8}")
    for name in arguments.parts.split(","):
        for limit in parts[name](arguments):
            print(limit, flush=True)
            broken += not limit.kept
    sys.exit(bool(broken))


@contextmanager
def box(wait_seconds: float) -> Iterator[Gateway]:
    """A gateway in folders of its own, with the profiles busy (2 slots), other, and the companion beside."""
    with own_folders("/bin/false") as folder:
        gateway_config(folder, {"paced": paced_engine(folder)}, wait_seconds=wait_seconds, queue=256)
        for name in ("busy", "other", "beside"):
            more: Mapping[str, object] = {"companion": True} if name == "beside" else {}
            flags = {"parallel": SLOTS, "ctx-size": 8192}
            launch_profile(
                folder, name, empty_model(folder), "paced", flags, port=0, env={"PACED_PACE": str(PACE)}, **more
            )
        gateway = Gateway()
        try:
            yield gateway
        finally:
            gateway.stop()
            if problems := gateway.problems():
                sys.exit(problems)


def say(port: int, model: str, seconds: float, *, client: str, user: str = "", key: str = "") -> Reply:
    """One streamed answer that takes so long once it has a slot."""
    headers = {"User-Agent": f"{client}/1"} | ({"Authorization": f"Bearer {key}"} if key else {})
    tokens = max(1, round(seconds * PACE))
    return chat(
        port, model, f"{client} asks", tokens, stream=True, headers=headers, user=user or client,
        pace=tokens / seconds, prompt_tokens=1, timeout=HUNG_SECONDS,
    )  # fmt: skip


def seconds_of(port: int, model: str, tokens: int = 1) -> float:
    """Until a short answer of that profile is there. Ends the script if it is none."""
    began = time.monotonic()
    reply = say(port, model, tokens / 1000, client="asker")
    if reply.status != 200 or not reply.whole or not reply.text:
        sys.exit(f"{model}: {reply.status} {reply.body[-300:]!r} {reply.error}")
    return time.monotonic() - began


def swaps(port: int) -> list[float]:
    """Seconds of swaps that nobody is in the way of."""
    seconds = []
    for _ in range(3):
        for model in ("other", "busy"):
            time.sleep(QUIET_SECONDS)
            seconds.append(seconds_of(port, model))
    return seconds


def last_load(gateway: Gateway, profile: str) -> float:
    """Seconds from the last word to go until that profile answered, as the gateway reports them."""
    done = [event for _, event in gateway.named("switch") if (event["profile"], event["step"]) == (profile, "done")]
    return float(done[-1]["seconds"]) if done else 0.0


def deadline(arguments: argparse.Namespace) -> Iterator[Limit]:
    answer, wait = ANSWER_SECONDS * arguments.scale, WAIT_SECONDS * arguments.scale
    with box(wait) as gateway:
        seconds_of(gateway.port, "busy")
        loads = swaps(gateway.port)
        crowd, placed = Crowd(gateway.port), []
        crowd.start(20, answer, least=20)
        for number in range(arguments.rounds):
            crowd.answered(3 + number % 7)
            placed.append(seconds_of(gateway.port, "other"))
            placed[-1] -= max(
                0, last_load(gateway, "other") - max(loads)
            )  # a load may be slower than when all is quiet
        failed = crowd.stop()
        what = f"another profile beside 20 clients, a quiet swap {max(loads):.2f}"
        yield Limit(what, placed, 0, wait + answer + max(loads), "s")
        yield Limit("  their requests that failed", [len(failed)], 0, 0, "")


def small(arguments: argparse.Namespace) -> Iterator[Limit]:
    answer = ANSWER_SECONDS * arguments.scale
    with box(60.0) as gateway:
        seconds_of(gateway.port, "busy")
        crowd, took = Crowd(gateway.port), []
        crowd.start(30, answer, client="batch")
        for number in range(arguments.rounds):
            crowd.answered(1 + number % 2)
            time.sleep(number % 5 * answer / 5)
            took.append(seconds_of(gateway.port, "busy", 5))
        failed = crowd.stop()
        yield Limit("5 tokens beside a client with 30 requests", took, 0, 2 * answer, "s")
        yield Limit("  its requests that failed", [len(failed)], 0, 0, "")


def companion(arguments: argparse.Namespace) -> Iterator[Limit]:
    answer, wait = ANSWER_SECONDS * arguments.scale, 5.0
    with box(wait) as gateway:
        seconds_of(gateway.port, "busy")
        loads = []
        for _ in range(5):
            loads.append(seconds_of(gateway.port, "beside"))
            gpubox("stop", "beside")
        crowd, took, unswitched = Crowd(gateway.port), [], 0
        crowd.start(20, answer)
        for _ in range(max(1, arguments.rounds // 2)):
            crowd.answered(4)
            waits = threading.Thread(target=seconds_of, args=(gateway.port, "other"))
            waits.start()
            time.sleep(0.5)
            unswitched += waits.is_alive()
            took.append(seconds_of(gateway.port, "beside"))
            waits.join()
            gpubox("stop", "beside")
        failed = crowd.stop()
        what = f"a companion beside a waiting switch ({unswitched} waited), load {max(loads):.2f}"
        yield Limit(what, took, 0, max(loads) + 1, "s")
        yield Limit("  requests that failed", [len(failed)], 0, 0, "")


def shares(arguments: argparse.Namespace) -> Iterator[Limit]:
    """The tokens of the key one, in per cent of those of both."""
    long = ANSWER_SECONDS * arguments.scale
    cases = (  # weight of the key one, and the clients of each key and how long their answers are
        (1, (10, long), (10, long)),
        (1, (4, long), (16, long)),
        (1, (10, long / 4), (10, long)),
        (2, (10, long), (10, long)),
        (2, (4, long), (16, long / 4)),
    )
    for weight, *asked in cases:
        with box(60.0) as gateway:
            weights = {"one": weight, "two": 1}
            keys = {name: new_key(name, each) for name, each in weights.items()}
            chat(gateway.port, "busy", "Hi", 1, stream=False, headers={"Authorization": f"Bearer {keys['one']}"})
            crowd, server = Crowd(gateway.port), base_port(gateway.status(), "busy")
            for name, (clients, seconds) in zip(keys, asked, strict=True):
                crowd.start(clients, seconds, client=name, user=name, key=keys[name])
            crowd.answered(8)
            before = tokens_of(server)
            time.sleep(80 * long)  # what is owed when it begins must weigh little
            given = {name: count - before.get(name, 0) for name, count in tokens_of(server).items()}
            failed = crowd.stop()
        share = 100 * given.get("one", 0) / max(1, given.get("one", 0) + given.get("two", 0))
        sizes = " and ".join(f"{clients} x {seconds / arguments.scale:.0f} s" for clients, seconds in asked)
        least, most = (45, 55) if weight == 1 else (60, 73)
        yield Limit(f"tokens of a key, weights {weight}:1, {sizes}", [share], least, most, "%")
        yield Limit("  requests that failed", [len(failed)], 0, 0, "")


def new_key(name: str, weight: int) -> str:
    return gpubox("keys", "add", name, "--weight", str(weight)).strip().splitlines()[-1]


def tokens_of(server: int) -> dict[str, int]:
    """The tokens that the server gave to each user."""
    given: dict[str, int] = ask(server, "/seen").json()["tokens"]
    return given


def slots(arguments: argparse.Namespace) -> Iterator[Limit]:
    answer = ANSWER_SECONDS * arguments.scale
    with box(60.0) as gateway:
        seconds_of(gateway.port, "busy")
        server, crowd = base_port(gateway.status(), "busy"), Crowd(gateway.port)
        crowd.start(20, answer)
        crowd.answered(20)
        most = float(ask(server, "/seen").json()["most_running"])
        direct = Crowd(server)
        direct.start(1, 5 * answer, client="direct")
        time.sleep(2.0)  # the gateway sees the other one
        seen = []
        for _ in range(100):
            time.sleep(answer / 10)
            seen.append(float(ask(server, "/seen").json()["running"]))
        failed = crowd.stop() + direct.stop()
        yield Limit("requests at a server with 2 slots", [most], 0, SLOTS + 1, "")
        yield Limit("  with one at its own port, 95 % of the time", sorted(seen)[:95], 0, SLOTS + 1, "")
        yield Limit("  requests that failed", [len(failed)], 0, 0, "")


if __name__ == "__main__":
    main()
