"""kill -9 of the gateway at random moments, under load: what lives, what is counted, what clients see.

usage: gateway_kills.py [LLAMA-SERVER DENSE.gguf HYBRID.gguf] [--kills 30] [--seed 1]
Without a llama-server the servers are synthetic ones. The address is open all the time, as systemd's socket unit has
it: no connection may be refused. After each kill of the gateway: the servers live (one that was being replaced may have
gone, its successor answers), the next gateway takes them over, and no request was answered twice, by the servers' own
logs. In the end the ledger holds each answer that a client has whole exactly once.
"""

from __future__ import annotations

import argparse
import random
import socket
import statistics
import sys
import threading
import time
from collections import Counter
from dataclasses import dataclass, field

from box import options, until
from gateway_box import chat, chosen_engines, gateway_config, generations, launch_profile, ledger_lines, llama_servers

from tests.gateway_process import Gateway
from tests.ports import free_port
from tests.raw_http import Reply

NAMES = ("dense", "hybrid")
GONE_SECONDS = 90.0


@dataclass(slots=True)
class Clients:
    """Clients that send one request after another, each under a name of its own."""

    port: int
    sent: dict[str, Reply] = field(default_factory=dict)
    profile: dict[str, str] = field(default_factory=dict)
    ended: threading.Event = field(default_factory=threading.Event)
    threads: list[threading.Thread] = field(default_factory=list)
    count: int = 0
    refused: int = 0
    lock: threading.Lock = field(default_factory=threading.Lock)

    def start(self, number: int, seed: int) -> None:
        self.threads = [threading.Thread(target=self._run, args=(random.Random(seed + n),)) for n in range(number)]
        for thread in self.threads:
            thread.start()

    def _run(self, chance: random.Random) -> None:
        name = chance.choice(NAMES)
        while not self.ended.is_set():
            if chance.random() < 0.15:
                name = chance.choice(NAMES)
            with self.lock:
                number, self.count = self.count, self.count + 1
            words, tokens = number % 40, 4 + number // 40 % 60
            reply = chat(
                self.port, name, "one " * words, tokens, stream=chance.random() < 0.6, ignore_eos=True,
                headers={"User-Agent": f"k{number}/1"}, timeout=GONE_SECONDS, prompt_tokens=20 + words,
            )  # fmt: skip
            self.sent[f"k{number}"], self.profile[f"k{number}"] = reply, name
            self.refused += "Refused" in reply.error

    def stop(self) -> None:
        self.ended.set()
        for thread in self.threads:
            thread.join()


def main() -> None:
    arguments = options(__doc__, "engine?", "dense?", "hybrid?", kills=30, seed=1)
    with (
        chosen_engines(arguments, NAMES) as (folder, engines, device, models),
        socket.create_server(("127.0.0.1", free_port()), backlog=128) as listener,
    ):
        gateway_config(folder, {name: engines / name for name in NAMES})
        for name in NAMES:
            flags = {"ctx-size": 2048, "parallel": 2, "threads": 1, **device}
            launch_profile(folder, name, models[name], name, flags, port=0)
        clients = Clients(listener.getsockname()[1])
        faults = kill_gateways(clients, listener, arguments)
        time.sleep(2)  # the servers' logs are written behind their answers
        faults += judge(clients, {name: generations(engines, name) for name in NAMES})
    print(f"{len(faults)} faults")
    for fault in faults:
        print("   ", fault)
    sys.exit(bool(faults))


def kill_gateways(clients: Clients, listener: socket.socket, arguments: argparse.Namespace) -> list[str]:
    chance = random.Random(arguments.seed)
    faults, starts = [], []
    gateway = Gateway(clients.port, listener=listener)
    clients.start(4, arguments.seed)
    for number in range(1, arguments.kills + 1):
        time.sleep(chance.uniform(0.2, chance.choice([2.0, 15.0])))
        steps = [event for _, event in gateway.named("switch")]
        switching = bool(steps) and steps[-1]["step"] not in ("done", "failed")
        before = llama_servers()
        gateway.kill()
        problems = gateway.problems()
        if problems:
            faults.append(f"kill {number}: {problems}")
        lost = set(before) - set(llama_servers())
        if lost and not switching:
            faults.append(f"kill {number}: the servers {lost} ended with the gateway")
        began = time.monotonic()
        gateway = Gateway(clients.port, listener=listener)
        starts.append(time.monotonic() - began)
        kept = {str(port) for port in llama_servers().values()}
        shown = {
            profile["base_url"].rsplit(":", 1)[1] for profile in gateway.status()["profiles"] if profile["base_url"]
        }
        if not switching and not shown >= kept:
            faults.append(f"kill {number}: the servers at {kept - shown} are not taken over")
        state = "in a switch" if switching else "between switches"
        print(f"{number:3} killed {state:17} servers {sorted(before)} -> {sorted(llama_servers())}, "
              f"{len(clients.sent)} requests so far", flush=True)  # fmt: skip
    clients.stop()
    if clients.refused:
        faults.append(f"{clients.refused} connections were refused")
    until(lambda: not gateway.status()["requests"], "the end of all requests")
    print(f"the next gateway answered after {statistics.median(starts):.2f} s (median), {max(starts):.2f} s at most")
    gateway.stop()
    return faults + ([gateway.problems()] if gateway.problems() else [])


def judge(clients: Clients, counted: dict[str, Counter[tuple[int, int]]]) -> list[str]:
    """What does not agree between the clients, the servers' logs and the ledger."""
    faults = []
    whole = {}
    for client, reply in clients.sent.items():
        if "Timeout" in reply.error:
            faults.append(f"{client} hung")
        if reply.status == 200 and reply.whole and "usage" in reply.final:
            usage = whole[client] = reply.final["usage"]
            pair = (usage["prompt_tokens"], usage["completion_tokens"])
            if clients.count <= 2400 and counted[clients.profile[client]][pair] > 1:
                faults.append(f"{client} was answered {counted[clients.profile[client]][pair]} times")
    lines = Counter(line.get("client", "broken") for line in ledger_lines())
    done = {line["client"]: line for line in ledger_lines() if line.get("outcome") == "done"}
    faults += [f"{name} stands {times} times in the ledger" for name, times in lines.items() if times > 1]
    missing = [client for client in whole if client not in done]
    faults += [f"{client} has its whole answer and no line in the ledger" for client in missing]
    phantom = [client for client in done if client in clients.sent and client not in whole]
    keys = ("prompt_tokens", "completion_tokens"), ("prompt_tokens", "generated_tokens")
    both = [(client, whole[client], done[client]) for client in whole if client in done]
    wrong = [client for client, usage, line in both if [usage[k] for k in keys[0]] != [line[k] for k in keys[1]]]
    faults += [f"{client}: the ledger has other tokens" for client in wrong]
    cut = sum(not reply.whole for reply in clients.sent.values())
    errors = Counter(reply.status for reply in clients.sent.values() if reply.status != 200)
    print(f"{len(clients.sent)} requests, {len(whole)} whole, {cut} cut by a kill, statuses {dict(errors)}; "
          f"ledger: {len(done)} done, {len(missing)} missing, {len(phantom)} done that the client has not whole, "
          f"{lines['broken']} broken lines")  # fmt: skip
    return faults


if __name__ == "__main__":
    main()
