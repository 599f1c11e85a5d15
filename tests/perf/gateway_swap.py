"""A swap through the gateway, by the router of the same llama-server, and by hand: request to first token, interleaved.

usage: gateway_swap.py LLAMA-SERVER MODEL.gguf [MODEL-B.gguf] [--runs 9]
Neither uses RPC. In the gateway the two profiles exclude each other because their memory is said to be unknown. By hand
means: kill -TERM, wait for the end, start with the same flags, poll /health each 10 ms, ask for one token.
Prints the seconds of each run, the medians, the ratios, and where the time of the gateway's swaps went. Exits 1 where a
swap takes more than 1.2x the router's or one by hand.
"""

from __future__ import annotations

import argparse
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import tomli_w
from box import options, own_folders
from gateway_box import gateway_config

from tests.gateway_process import Gateway
from tests.ports import free_port
from tests.raw_http import ask

EXCLUDES = {"GGML_VK_PREFER_HOST_MEMORY": "1"}
"""Makes the planner say that it does not know the memory: then profiles do not run beside each other."""
PAUSE_SECONDS = 1.2
"""Then the profile that runs counts as idle, and goes at once."""
MOST_RATIO = 1.2
CTX = {"a": 4096, "b": 8192, "c": 6144}


def main() -> None:
    arguments = options(__doc__, "engine", "models+", runs=9)
    models = {"a": arguments.models[0], "b": arguments.models[-1]}
    with own_folders(arguments.engine) as folder:
        for name, model in models.items():
            flags = {"ctx-size": CTX[name], "parallel": 1, "threads": 1}
            text = tomli_w.dumps({"model": model, "port": 0, "flags": flags, "env": EXCLUDES})
            (folder / "profiles" / f"{name}.toml").write_text(text)
        gateway_config(folder, wait_seconds=1)
        gateway = Gateway()
        try:
            with router(arguments.engine, folder, models) as router_port, hand(arguments.engine, models) as by_hand:
                ways: dict[str, Callable[[str], float]] = {
                    "gateway": lambda name: asked(gateway.port, name),
                    "router": lambda name: asked(router_port, name),
                    "by hand": by_hand,
                }
                good = compare(ways, arguments, gateway)
        finally:
            gateway.stop()
    sys.exit(not good)


def asked(port: int, model: str) -> float:
    """Seconds until the one token of this model is here."""
    began = time.monotonic()
    reply = ask(port, "/v1/completions", {"model": model, "prompt": "hi", "max_tokens": 1}, timeout=60)
    assert reply.status == 200, (reply.status, reply.body[:300])
    return time.monotonic() - began


@contextmanager
def router(engine: str, folder: Path, models: dict[str, str]) -> Iterator[int]:
    """llama-server without a model: it loads one of its presets at a time."""
    port, preset = free_port(), folder / "presets.ini"
    sections = (
        f"[{name}]\nmodel = {model}\nctx-size = {CTX[name]}\nparallel = 1\nthreads = 1\n"
        for name, model in models.items()
    )
    preset.write_text("\n".join(sections))
    words = [engine, "--models-preset", str(preset), "--models-max", "1", "--port", str(port)]
    with subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        try:
            wait_healthy(port)
            yield port
        finally:
            process.terminate()


@contextmanager
def hand(engine: str, models: dict[str, str]) -> Iterator[Callable[[str], float]]:
    """What an owner's shell script does."""
    port, server = free_port(), list[subprocess.Popen[bytes]]()

    def swap(name: str) -> float:
        began = time.monotonic()
        if server:
            server[0].send_signal(signal.SIGTERM)
            server.pop().wait()
        words = [engine, "-m", models[name], "-c", str(CTX[name]), "-np", "1", "-t", "1", "--port", str(port)]
        server.append(subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL))
        wait_healthy(port)
        asked(port, name)
        return time.monotonic() - began

    try:
        yield swap
    finally:
        for process in server:
            process.kill()
            process.wait()


def wait_healthy(port: int) -> None:
    while ask(port, "/health", timeout=5).status != 200:
        time.sleep(0.01)


def compare(ways: dict[str, Callable[[str], float]], arguments: argparse.Namespace, gateway: Gateway) -> bool:
    for way in ways.values():  # each way has loaded both models once: nothing is probed for the first time
        for name in ("a", "b"):
            way(name)
    began = time.monotonic()
    seconds: dict[str, list[float]] = {way: [] for way in ways}
    for run in range(arguments.runs):
        for name in ("a", "b"):
            for which in sorted(ways, reverse=bool(run % 2)):
                time.sleep(PAUSE_SECONDS)
                seconds[which].append(ways[which](name))
    for which, values in seconds.items():
        words = " ".join(f"{value:5.2f}" for value in values)
        print(f"{which:8} {words}  median {statistics.median(values):.3f} s, least {min(values):.3f} s")
    good = True
    for which in ("router", "by hand"):
        ratios = [a / b for a, b in zip(seconds["gateway"], seconds[which], strict=True)]
        least = min(seconds["gateway"]) / min(seconds[which])
        print(f"gateway / {which}: median of pairs {statistics.median(ratios):.2f}, least / least {least:.2f}")
        good &= statistics.median(ratios) <= MOST_RATIO
    parts(gateway, began)
    return good


def parts(gateway: Gateway, began: float) -> None:
    """The medians of the time from each report of a swap to the next one."""
    spent: dict[str, list[float]] = {}
    before: tuple[float, str] | None = None
    for at, event in [pair for pair in gateway.named("switch") if pair[0] >= began]:
        if before and before[1] not in ("done", "failed"):
            spent.setdefault(before[1] or "begin", []).append(at - before[0])
        before = (at, event["step"])
    for step, values in spent.items():
        print(f"  {step:10} {statistics.median(values) * 1000:6.0f} ms, {len(values)} times")


if __name__ == "__main__":
    main()
