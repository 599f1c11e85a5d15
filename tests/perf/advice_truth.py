"""Whether following an advice does what it says: ``advice_truth.py ENGINE DENSE HYBRID [--record FOLDER]``.

ENGINE: a llama-server built with GGML_RPC, beside ggml-rpc-server. Two devices of the machine's own RAM play the cards.
For the advice on the context, and on mapped weights, it prints what was before, what the advice predicts, and what was
after the change. RAM that is too full is played by telling the kernel to reclaim the mapped pages of the server
(process_madvise, as root). ``--record`` keeps the readings of both states as recordings, which the tests use.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import os
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import box
from fit_truth import rpc_servers

from tests.ports import free_port

_PIDFD_OPEN, _PROCESS_MADVISE, _MADV_PAGEOUT = 434, 440, 21
_PAUSE_SECONDS = 0.05
MIB = 1024**2


class _Range(ctypes.Structure):
    _fields_ = (("base", ctypes.c_void_p), ("length", ctypes.c_size_t))


def page_out(pid: int, file: Path) -> int:
    """Tells the kernel to reclaim the pages of ``file`` that a process has mapped. Returns the bytes asked for."""
    libc = ctypes.CDLL(None, use_errno=True)
    ranges = []
    for line in Path(f"/proc/{pid}/maps").read_text().splitlines():
        words = line.split(maxsplit=5)
        if len(words) == 6 and words[5] == str(file):
            begin, end = (int(part, 16) for part in words[0].split("-"))
            ranges.append(_Range(begin, end - begin))
    descriptor = libc.syscall(_PIDFD_OPEN, pid, 0)
    try:
        for each in ranges:
            libc.syscall(_PROCESS_MADVISE, descriptor, ctypes.byref(each), 1, _MADV_PAGEOUT, 0)
    finally:
        os.close(descriptor)
    return sum(each.length for each in ranges)


@contextmanager
def too_little_ram(pid: int, file: Path) -> Iterator[None]:
    """While it lasts, the mapped pages of ``file`` are reclaimed again and again."""
    ended = threading.Event()

    def reclaim() -> None:
        while not ended.wait(_PAUSE_SECONDS):
            page_out(pid, file)

    thread = threading.Thread(target=reclaim)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


def status() -> dict[str, Any]:
    """``gpubox status --json``."""
    values: dict[str, Any] = json.loads(box.gpubox("status", "--json"))
    return values


def advice(profile: str, rule: str) -> dict[str, Any]:
    """The advice of one rule; ends the script if the rule is silent."""
    given = json.loads(box.gpubox("advice", profile, "--json"))["advice"]
    chosen = next((each for each in given if each["rule"] == rule), None)
    if chosen is None:
        sys.exit(f"{rule} is silent: {[each['rule'] for each in given]}")
    return dict(chosen)


def follow(profile: str, given: dict[str, Any]) -> None:
    """Makes the changes of an advice and starts the profile with them."""
    words = [f"--set={name}={value}" for name, value in given["changes"].items()]
    box.gpubox("edit", profile, *words)
    box.gpubox("restart")


def record(folder: Path | None, name: str) -> None:
    """Keeps three seconds of readings."""
    if folder:
        box.gpubox("status", "--record", str(folder / f"{name}.jsonl"), "--seconds", "3")


def ask(base: str, count: int, words: int, tokens: int) -> None:
    """``count`` different prompts of about ``words`` tokens."""
    for number in range(count):
        prompt = f"{number}: " + " ".join(str((number * 7 + word) % 97) for word in range(words // 2))
        box.ask(base, "/completion", {"prompt": prompt, "n_predict": tokens, "ignore_eos": True})


def context(folder: Path, model: Path, endpoint: str, recordings: Path | None) -> bool:
    """A large context of which little is used."""
    port = free_port()
    flags: dict[str, object] = {"rpc": endpoint, "n-gpu-layers": 99, "ctx-size": 65536, "parallel": 1}
    box.profile(folder, "wide", str(model), port, flags)
    box.gpubox("switch", "wide")
    ask(f"http://127.0.0.1:{port}", 52, 40, 4)

    def on_device() -> int:
        device = next(each for each in status()["memory"] if each["kind"] == "rpc")
        return int(device["kv_bytes"] + device["compute_bytes"])

    record(recordings, "context-fires")
    before, given = on_device(), advice("wide", "context")
    follow("wide", given)
    after = on_device()
    record(recordings, "context-silent")
    print(f"context: {given['sentence']}")
    freed = before - after
    said = float(given["sentence"].split("frees ~")[1].split()[0])
    said *= 1024 * MIB if "GiB" in given["sentence"].split("frees ~")[1] else MIB
    print(f"  KV and compute buffers  before {before / MIB:.1f} MiB   predicted {(before - said) / MIB:.0f} MiB   "
          f"after {after / MIB:.1f} MiB   freed {freed / MIB:.1f} MiB")  # fmt: skip
    silent = "context" not in [each["rule"] for each in json.loads(box.gpubox("advice", "--json"))["advice"]]
    return abs(freed - said) <= 0.06 * said and silent


def mapped_weights(folder: Path, model: Path, endpoint: str, recordings: Path | None) -> bool:
    """Experts on the CPU, mapped, in RAM that is too full."""
    port = free_port()
    flags: dict[str, object] = {"rpc": endpoint, "n-gpu-layers": 99, "n-cpu-moe": 99, "ctx-size": 4096, "parallel": 1}
    box.profile(folder, "offloaded", str(model), port, flags)
    box.gpubox("switch", "offloaded")
    base = f"http://127.0.0.1:{port}"

    def pressed(name: str, *, judge: bool) -> tuple[dict[str, Any], float, float]:
        """The advice, major faults per second and tg, while RAM is too full."""
        pid = status()["server"]["pid"]
        done = threading.Event()

        def work() -> None:
            while not done.is_set():
                ask(base, 1, 32, 400)

        thread = threading.Thread(target=work)
        with too_little_ram(pid, model):
            thread.start()
            time.sleep(2)
            begin, faults = time.monotonic(), major_faults(pid)
            record(recordings, name)
            given = advice("offloaded", "mmap") if judge else {}
            time.sleep(0 if recordings or judge else 3)
            rate = (major_faults(pid) - faults) / (time.monotonic() - begin)
            done.set()
            thread.join()
        speeds = [
            each["tg_tokens_per_second"]
            for each in json.loads(box.gpubox("history", "--requests", "--json"))["requests"]
        ]
        return given, rate, sum(speeds) / len(speeds)

    given, before, tg_before = pressed("mmap-fires", judge=True)
    follow("offloaded", given)
    _, after, tg_after = pressed("mmap-silent", judge=False)
    print(f"mmap: {given['sentence']}")
    for text in given["evidence"]:
        print(f"  {text}")
    print(f"  major faults/s  before {before:.0f}   predicted 0   after {after:.0f}")
    print(f"  tg tok/s        before {tg_before:.1f}   after {tg_after:.1f}")
    host = next(each for each in status()["memory"] if each["kind"] == "host")
    print(f"  weights on disk after: {host['on_disk_bytes']}; in RAM {host['weights_bytes'] / MIB:.1f} MiB")
    return before > 50 and after < 1 and not host["on_disk_bytes"]


def major_faults(pid: int) -> int:
    """Of a process, since its start."""
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[9])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("engine", type=Path)
    parser.add_argument("dense", type=Path)
    parser.add_argument("hybrid", type=Path)
    parser.add_argument("--record", type=Path, metavar="FOLDER")
    options = parser.parse_args()
    with box.own_folders(str(options.engine)) as folder, rpc_servers(options.engine.parent, 1) as endpoints:
        right = [
            context(folder, options.dense, endpoints[0], options.record),
            mapped_weights(folder, options.hybrid, endpoints[0], options.record),
        ]
    if not all(right):
        sys.exit("an advice did not do what it says")


if __name__ == "__main__":
    main()
