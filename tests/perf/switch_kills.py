"""kill -9 of gpubox in a switch, a restart, a trial: is a server back within 10 seconds, and only one?

usage: switch_kills.py MODEL.gguf [--engine LLAMA-SERVER] [--kills 100] [--by switch,gateway] [--seed 1]
The process that is killed is the one that changes the server: a verb, the gateway's child, or the screen. Two of five
kills come between the stop of the old server and the start of the new one, the others at random moments of the
operation. ``--by``: switch, restart, try, gateway, screen.
"""

from __future__ import annotations

import http.client
import json
import os
import random
import signal
import statistics
import subprocess
import sys
import threading
import time
from contextlib import ExitStack, suppress
from pathlib import Path

import tomli_w
from box import Screen, gpubox, options, own_folders, until

from gpubox.hardware.process import find_by_marker, is_alive
from gpubox.paths import MAIN_INSTANCE, Paths
from gpubox.server.instance import observe
from gpubox.server.state import Operation, load_state
from gpubox.storage import is_locked
from tests.gateway_process import Gateway
from tests.ports import free_port
from tests.raw_http import ask

NAMES = ("a", "b", "c", "d", "e", "f")
UNCERTAIN = {"GGML_CUDA_ENABLE_UNIFIED_MEMORY": "1"}
"""With this variable whether a profile fits is not certain: the gateway runs it alone."""
MOST_SECONDS = 10.0
GIVE_UP_SECONDS = 60.0
STOP_STEPS = ("stop", "VRAM settled")
BEGUN = (*STOP_STEPS, "KV saved", "load", "first token", "KV put back")


def main() -> None:
    arguments = options(__doc__, "model", "--engine", kills=100, by="switch,gateway", seed=1)
    chance, faults, back = random.Random(arguments.seed), list[str](), list[float]()
    with own_folders(arguments.engine) as folder, ExitStack() as stack:
        port = free_port()
        for name in NAMES:
            values = {"model": arguments.model, "port": port, "env": UNCERTAIN, "title": name,
                      "flags": {"ctx-size": 1024, "parallel": 1, "threads": 1}}  # fmt: skip
            (folder / "profiles" / f"{name}.toml").write_text(tomli_w.dumps(values))
        paths, ways = Paths.default(), arguments.by.split(",")
        gpubox("start", "a")
        began = time.monotonic()
        gpubox("switch", "b", "--now")
        seconds = time.monotonic() - began
        gateway = stack.enter_context(_gateway()) if "gateway" in ways else None
        number = late = 0
        while number < arguments.kills:
            way = ways[number % len(ways)]
            in_stop = number // len(ways) % 5 < 2
            running = observe(paths, MAIN_INSTANCE).running
            before = running.launch.profile if running else ""
            others = [name for name in NAMES if name != before]
            target = chance.choice(others)
            os.utime(folder / "profiles" / f"{target}.toml")  # the gateway then forgives what has failed
            change = Change(way, target, before, gateway)
            killed = change.kill(paths, chance, seconds, in_stop)
            at = time.monotonic()
            if not killed:
                late += 1
                time.sleep(0.5)
            else:
                number += 1
                took, problem = wait_for_server(paths, at)
                back.append(took)
                faults += [f"kill {number}: {problem}"] if problem else []
                view = observe(paths, MAIN_INSTANCE)
                now = view.running.launch.profile if view.running else "nothing"
                print(f"{number:3} {way:8} {before} -> {change.target} killed at {killed:14} after {took:4.1f} s {now} "
                      f"answers: {view.message}  {problem}", flush=True)  # fmt: skip
            change.close()
    print(f"{number} kills ({late} came too late and do not count): {len(faults)} faults; a server answered after "
          f"{statistics.median(back):.1f} s (median), {max(back):.1f} s at most")  # fmt: skip
    for fault in faults:
        print("   ", fault)
    sys.exit(bool(faults))


class _gateway:
    def __enter__(self) -> Gateway:
        self.gateway = Gateway()
        return self.gateway

    def __exit__(self, *error: object) -> None:
        self.gateway.stop()


class Change:
    """One operation on the server, and the kill of whoever does it."""

    def __init__(self, way: str, target: str, before: str, gateway: Gateway | None) -> None:
        self.way, self.target = way, before if way in ("restart", "try") else target
        self._screen: Screen | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._asking: threading.Thread | None = None
        size = 256 * (1 + time.monotonic_ns() % 8)
        words = {
            "switch": ["switch", target, "--now"],
            "restart": ["restart", "--now"],
            "try": ["try", before, "--set", f"ctx-size={size}", "--keep", "--no-measure", "--now"],
        }
        if way in words:
            command = [sys.executable, "-m", "gpubox", *words[way]]
            self._process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        elif way == "gateway":
            assert gateway
            body = {"model": target, "messages": [{"role": "user", "content": "Hi"}], "max_tokens": 1}
            self._asking = threading.Thread(target=ask, args=(gateway.port, "/v1/chat/completions", body))
            self._asking.start()
        else:
            self._screen = Screen()
            self._screen.painted()
            os.write(self._screen.terminal, b"\x1b[B" * NAMES.index(target) + b"\r")

    def kill(self, paths: Paths, chance: random.Random, seconds: float, in_stop: bool) -> str:
        """Kills it at a moment of the operation. Returns the step at which it was; empty: it was over."""
        try:
            until(lambda: self._under_way(paths) is not None or self._ended(), "an operation")
        except SystemExit:
            return ""
        if in_stop:
            until(lambda: (now := self._under_way(paths)) is None or now.step in STOP_STEPS, "the stop")
            time.sleep(chance.choice([0.0, 0.0, chance.uniform(0.0, 0.15)]))
        else:
            time.sleep(chance.uniform(0.0, seconds))
        operation = self._under_way(paths)
        if operation is None or (in_stop and operation.step not in BEGUN):
            return ""
        with suppress(ProcessLookupError):
            os.kill(operation.owner.pid, signal.SIGKILL)
        until(lambda: not is_alive(operation.owner), "the end of the killed")
        last = load_state(paths.instance_state(MAIN_INSTANCE)).operation
        return last.step if last and last.owner == operation.owner else ""

    def _under_way(self, paths: Paths) -> Operation | None:
        operation = load_state(paths.instance_state(MAIN_INSTANCE)).operation
        return operation if operation and is_alive(operation.owner) and operation.kind != "restore" else None

    def _ended(self) -> bool:
        if self._process:
            return self._process.poll() is not None
        return self._asking is not None and not self._asking.is_alive()

    def close(self) -> None:
        if self._process:
            self._process.wait()
        if self._asking:
            self._asking.join()
        if self._screen:
            with suppress(ProcessLookupError, ChildProcessError):
                self._screen.close()


def wait_for_server(paths: Paths, since: float) -> tuple[float, str]:
    """Seconds from ``since`` until the server that stays answers a request, and what is wrong; empty: nothing."""
    answered: dict[str, float] = {}
    while time.monotonic() - since < GIVE_UP_SECONDS:
        launch = answering(paths)
        answered.setdefault(launch, time.monotonic() - since)
        view = observe(paths, MAIN_INSTANCE)
        changing = view.operation or view.interrupted or is_locked(paths.instance_lock(MAIN_INSTANCE))
        if launch and not changing and answering(paths) == launch:
            break
        time.sleep(0.05)
    else:
        state = "answers" if launch else "does not answer"
        return time.monotonic() - since, f"the server {state}; {'still changing' if changing else 'at rest'}"
    took = answered[launch]
    problems = [f"a server only after {took:.1f} s"] if took > MOST_SECONDS else []
    if (servers := len(find_by_marker(f"{paths.state}|"))) != 1:
        problems.append(f"{servers} servers")
    if (watchers := sum(is_watcher(each, paths) for each in Path("/proc").glob("[0-9]*"))) > 1:
        problems.append(f"{watchers} watchers")
    return took, "; ".join(problems)


def is_watcher(process: Path, paths: Paths) -> bool:
    words = f"watcher_idle.py\0{paths.watcher_lock(MAIN_INSTANCE)}".encode()
    with suppress(OSError):
        return words in (process / "cmdline").read_bytes()
    return False


def answering(paths: Paths) -> str:
    """The launch of the server, if it gives a token; else empty."""
    running = observe(paths, MAIN_INSTANCE).running
    if running is None:
        return ""
    connection = http.client.HTTPConnection("127.0.0.1", running.launch.port, timeout=5)
    try:
        connection.request("POST", "/completion", json.dumps({"prompt": "Hi", "n_predict": 1}))
        return running.launch_id if connection.getresponse().status == 200 else ""
    except (OSError, http.client.HTTPException):
        return ""
    finally:
        connection.close()


if __name__ == "__main__":
    main()
