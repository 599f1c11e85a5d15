"""Many clients, many switches, kills, broken profiles, clients that leave: is a request lost, answered twice, or hung?

usage: gateway_storm.py [LLAMA-SERVER DENSE.gguf HYBRID.gguf] [--requests 1000] [--clients 20] [--leavers 150]
                        [--kills 30] [--owner] [--seed 1]
Without a llama-server the servers are synthetic ones, and minutes are enough. Every fifth request is for a broken
profile (its file is missing, or its server dies while it loads), others for a companion. Each good answer must be whole
and counted exactly once in its servers' own logs; with a llama-server also equal to direct ones: the text of all of
them, every byte of a sample. --kills: kill -9 of a random server or operation, so often; only a stream of which a
token had gone out may end with an error then. --owner: meanwhile `gpubox switch` in a loop, which nothing may refuse.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import os
import queue
import random
import re
import signal
import statistics
import subprocess
import sys
import threading
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from box import options
from gateway_box import (
    base_port,
    chat,
    chosen_engines,
    gateway_config,
    generations,
    launch_profile,
    llama_servers,
    masked,
    operations,
)

from tests.gateway_process import Gateway, descriptors, resident_mib
from tests.raw_http import Reply

EXCLUSIVE = ("dense", "hybrid", "hybrid-long")
GOOD = (*EXCLUSIVE, "beside")
BROKEN = ("missing", "dies")
HUNG_SECONDS = 180.0
LONGEST = 13
SAMPLE = 24


@dataclass(slots=True)
class Job:
    """One request, and what became of it."""

    number: int
    profile: str
    words: int
    tokens: int
    stream: bool
    leaves: str = ""
    """Where the client goes away: queue, prompt or stream."""
    reply: Reply = field(default_factory=Reply)
    began: float = 0.0
    seconds: float = 0.0

    @property
    def prompt(self) -> str:
        return "Count: " + "one " * self.words


@dataclass(slots=True)
class Chaos:
    """What happens meanwhile: kills, and the owner's own switches."""

    ended: threading.Event = field(default_factory=threading.Event)
    kills: list[float] = field(default_factory=list)
    of_operations: int = 0
    switches: int = 0
    unlucky: int = 0
    """Switches of the owner that a kill met."""
    refusals: list[str] = field(default_factory=list)

    def kill(self, count: int, chance: random.Random) -> None:
        """A server, or an operation that is at work."""
        while len(self.kills) < count and not self.ended.wait(chance.uniform(0.5, 4.0)):
            of_operation = chance.random() < 0.4
            pids = operations() if of_operation else list(llama_servers())
            if pids:
                self.of_operations += of_operation
                self.kills.append(time.monotonic())
                with contextlib.suppress(ProcessLookupError):
                    os.kill(chance.choice(pids), signal.SIGKILL)

    def own(self, chance: random.Random) -> None:
        """The owner switches, looks for a while, and switches again."""
        while not self.ended.wait(chance.uniform(1.0, 6.0)):
            began, name = time.monotonic(), chance.choice(EXCLUSIVE)
            words = [sys.executable, "-m", "gpubox", "switch", name]
            done = subprocess.run(words, capture_output=True, text=True, timeout=HUNG_SECONDS, check=False)
            self.switches += 1
            if done.returncode and self.killed_between(began, time.monotonic()):
                self.unlucky += 1
            elif done.returncode:
                self.refusals.append(f"{name} after {time.monotonic() - began:.1f} s: {done.stderr.strip()[-300:]}")

    def ago(self, at: float) -> str:
        """The last kill before that."""
        seconds = min((at - kill for kill in self.kills if kill <= at), default=None)
        return "" if seconds is None else f"{seconds:.1f} s after a kill, "

    def killed_between(self, began: float, ended: float) -> int:
        """How many kills there were, those shortly before among them: they show late."""
        return sum(began - 3 <= at <= ended for at in self.kills)


def main() -> None:
    arguments = options(__doc__, "engine?", "dense?", "hybrid?", requests=1000, clients=20, leavers=150, wait=60.0,
                        seed=1, kills=0, owner=False)  # fmt: skip
    names = (*GOOD, "dies")
    with chosen_engines(arguments, names) as (folder, engines, device, models):
        gateway_config(folder, {name: engines / name for name in names}, wait_seconds=arguments.wait)
        write_profiles(folder, engines, device, models)
        gateway = Gateway()
        try:
            good = storm(gateway, engines, arguments)
        finally:
            seconds, problems = gateway.stop(), gateway.problems()
            print(f"the gateway ended in {seconds:.1f} s{problems}")
    sys.exit(not good or bool(problems))


def write_profiles(folder: Path, engines: Path, device: dict[str, Any], models: dict[str, str]) -> None:
    alone = {"ctx-size": 2048, "parallel": 1, "threads": 1}
    for name in EXCLUSIVE:
        flags = {**alone, "ctx-size": 4096 if name == "hybrid-long" else 2048, **device}
        launch_profile(folder, name, models[name.removesuffix("-long")], name, flags, port=0)
    launch_profile(folder, "beside", models["dense"], "beside", alone, port=0, companion=True)
    launch_profile(folder, "missing", "/nowhere/at-all.gguf", "dense", {})
    (engines / "dies").write_text(
        '#!/bin/sh\ncase "$*" in *--help*|*--version*|*--list-devices*|*--log-jsonl*) '
        f'exec "{engines}/dense" "$@";; esac\necho "llama_model_load: error loading model: it dies" >&2\nexit 1\n'
    )
    launch_profile(folder, "dies", models["dense"], "dies", {"ctx-size": 1024, **device})


def jobs_of(arguments: argparse.Namespace, chance: random.Random) -> list[Job]:
    """The requests in their order; the two numbers of tokens tell each good one from the others of its profile."""
    pairs = {name: itertools.cycle(itertools.product(range(20), range(4, LONGEST + 1))) for name in GOOD}
    jobs = []
    for number in range(arguments.requests):
        if number % 5 == 4:
            jobs.append(Job(number, chance.choice(BROKEN), 1, 4, stream=chance.random() < 0.5))
            continue
        name = chance.choice(GOOD)
        words, tokens = next(pairs[name])
        jobs.append(Job(number, name, words, tokens, stream=chance.random() < 0.5))
    for number in range(arguments.leavers):
        where = ("queue", "prompt", "stream")[number % 3]
        words = 600 if where == "prompt" else 3
        at = chance.randrange(len(jobs))
        jobs.insert(at, Job(-1 - number, chance.choice(GOOD), words, 300, where == "stream" or number % 2 == 0, where))
    return jobs


def storm(gateway: Gateway, engines: Path, arguments: argparse.Namespace) -> bool:
    chance = random.Random(arguments.seed)
    waiting: queue.SimpleQueue[Job] = queue.SimpleQueue()
    jobs = jobs_of(arguments, chance)
    for job in jobs:
        waiting.put(job)
    before, chaos = resident_mib(gateway.pid), Chaos()
    meanwhile = [threading.Thread(target=chaos.kill, args=(arguments.kills, random.Random(arguments.seed + 1)))]
    if arguments.owner:
        meanwhile.append(threading.Thread(target=chaos.own, args=(random.Random(arguments.seed + 2),)))
    began = time.monotonic()
    threads = [threading.Thread(target=client, args=(gateway.port, waiting)) for _ in range(arguments.clients)]
    for thread in threads + meanwhile:
        thread.start()
    for thread in threads:
        while thread.is_alive():
            thread.join(30)
            print(
                f"  {time.monotonic() - began:6.0f} s: {waiting.qsize()} to go, {switches(gateway)} switches",
                flush=True,
            )
    chaos.ended.set()
    for thread in meanwhile:
        thread.join()
    print(f"{len(jobs)} requests in {time.monotonic() - began:.0f} s, {switches(gateway)} switches, gateway "
          f"{before:.1f} -> {resident_mib(gateway.pid):.1f} MiB, {descriptors(gateway.pid)} descriptors")  # fmt: skip
    time.sleep(2)  # the servers' logs are written behind their answers
    print(f"{len(chaos.kills)} kills, {chaos.of_operations} of them of operations; {chaos.switches} switches of the "
          f"owner, {len(chaos.refusals)} refused, {chaos.unlucky} met by a kill {chaos.refusals}")  # fmt: skip
    good = judge(jobs, {name: generations(engines, name) for name in GOOD}, chaos) and not chaos.refusals
    good &= ledger_agrees(gateway, jobs)
    return good and (not arguments.engine or compare(gateway, jobs, chance))


def switches(gateway: Gateway) -> int:
    """How often a server was started."""
    return sum((event["kind"], event["step"]) == ("start", "done") for _, event in gateway.named("switch"))


def client(port: int, waiting: queue.SimpleQueue[Job]) -> None:
    while True:
        try:
            job = waiting.get_nowait()
        except queue.Empty:
            return
        job.began = time.monotonic()
        job.reply = send(port, job)
        job.seconds = time.monotonic() - job.began


def send(port: int, job: Job) -> Reply:
    headers = {"User-Agent": f"storm/{job.number}"}
    more = {"ignore_eos": True, "headers": headers, "timeout": HUNG_SECONDS}
    more |= {"prompt_tokens": 20 + job.words, "user": str(job.number)}  # for synthetic servers
    if not job.leaves:
        return chat(port, job.profile, job.prompt, job.tokens, stream=job.stream, **more)
    if job.leaves == "stream":
        return chat(port, job.profile, job.prompt, job.tokens, stream=True,
                    leave=lambda reply: len(reply.token_times) > 3, **more)  # fmt: skip
    seconds = 0.2 if job.leaves == "queue" else 1.0
    more["delay"] = 0 if job.leaves == "queue" else 2
    began = time.monotonic()
    return chat(port, job.profile, job.prompt, job.tokens, stream=job.stream, leave_seconds=seconds,
                leave=lambda _: time.monotonic() - began > seconds, **more)  # fmt: skip


def judge(jobs: list[Job], counted: dict[str, Counter[tuple[int, int]]], chaos: Chaos) -> bool:
    """Whether each client got what it must, and the servers counted the same."""
    problems: list[str] = []
    answered: dict[str, Counter[tuple[int, int]]] = {name: Counter() for name in GOOD}
    hung = cut = 0
    for job in (job for job in jobs if not job.leaves):
        reply = job.reply
        if "Timeout" in reply.error:
            hung += 1
        if job.profile in BROKEN:
            if not refused(reply):
                problems.append(f"{job.profile} {job.number}: {reply.status} {reply.body[-200:]!r} {reply.error}")
            continue
        usage = reply.final.get("usage", {}) if reply.status == 200 and reply.whole else {}
        if reply.token_times and reply.final.get("error") and chaos.killed_between(job.began, reply.ended_at):
            cut += 1
            continue
        if usage.get("completion_tokens") != job.tokens:
            problems.append(f"{job.profile} {job.number}: {reply.status} {reply.body[-300:]!r} {reply.error} "
                            f"{chaos.ago(reply.ended_at)}after {job.seconds:.1f} s")  # fmt: skip
            continue
        answered[job.profile][usage["prompt_tokens"], usage["completion_tokens"]] += 1
    twice = sum((counted[name] - answered[name])[pair] for name in GOOD for pair in answered[name])
    never = sum((answered[name] - counted[name]).total() for name in GOOD)
    kinds = Counter(job.reply.status for job in jobs if job.profile in BROKEN)
    stayed = sum(not job.reply.left for job in jobs if job.leaves)
    slowest = sorted(job.seconds for job in jobs if not job.leaves)
    print(f"{len(problems)} lost or wrong, {twice} doubled, {never} not in the servers' logs, {hung} hung, "
          f"{cut} streams cut by a kill; "
          f"broken profiles {dict(kinds)}; {stayed} of the leavers were answered before they left; "
          f"slowest {slowest[-1]:.1f} s, median {statistics.median(slowest):.1f} s")  # fmt: skip
    for problem, count in Counter(re.sub(r"^\S+ \d+|after [\d.]+ s$", "", each) for each in problems).most_common(20):
        print(f"    {count} x {problem}")
    return not (problems or twice or never or hung)


def refused(reply: Reply) -> bool:
    """Whether a broken profile's request ended with a cause: a status, or an error event of a stream that had begun."""
    if reply.status == 503:
        return bool(reply.json()["error"]["message"])
    errors = [event["error"] for event in reply.events if "error" in event] if reply.status == 200 else []
    return bool(errors and errors[0]["message"])


def ledger_agrees(gateway: Gateway, jobs: list[Job]) -> bool:
    """Whether the events name each request exactly once."""
    own = sum(1 for _, event in gateway.named("request") if event["client"] == "storm")
    print(f"{own} requests in the gateway's events, {len(jobs)} sent")
    return own == len(jobs)


def compare(gateway: Gateway, jobs: list[Job], chance: random.Random) -> bool:
    """Whether the answers are those of direct requests: every text, and every byte of some."""
    texts = wrong_text = wrong_bytes = noise = checked = 0
    for name in GOOD:
        mine = [job for job in jobs if job.profile == name and not job.leaves and job.reply.whole]
        assert chat(gateway.port, name, "Hi", 1, stream=False, timeout=HUNG_SECONDS).status == 200
        port = base_port(gateway.status(), name)
        longest = {words: chat(port, name, "Count: " + "one " * words, LONGEST, stream=False, ignore_eos=True).text
                   for words in {job.words for job in mine}}  # fmt: skip
        for job in mine:
            texts += 1
            wrong_text += not longest[job.words].startswith(job.reply.text)
        for job in chance.sample(mine, min(len(mine), SAMPLE // len(GOOD))):
            direct, again = send(port, job), send(port, job)
            checked += 1
            noise += masked(direct.body) != masked(again.body)
            if masked(direct.body) != masked(job.reply.body):
                wrong_bytes += 1
                print(f"  differs:\n    {masked(direct.body)[-400:]!r}\n    {masked(job.reply.body)[-400:]!r}")
    print(f"{texts} texts, {wrong_text} differ; {checked} compared byte by byte, {wrong_bytes} differ "
          f"(of two direct ones: {noise})")  # fmt: skip
    return not (wrong_text or wrong_bytes)


if __name__ == "__main__":
    main()
