"""Do the rules of every Snapshot hold on real servers? Records what gpubox reads in many states and checks each line.

usage: walk.py --engine LLAMA-SERVER MODEL.gguf [--mtp MODEL.gguf] [--swa MODEL.gguf] [--rpc HOST:PORT]
For each model, and with an RPC device where one is given: 1 and 4 slots, six clients that stream, wait and leave, with
mmap and without, while `gpubox record` reads. Prints how many snapshots there were in which state, the rules that were
broken (tests/unit/invariants.py), and whether `totals` are the clients' own counts. Exits 1 where a rule was broken.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import threading
from collections import Counter
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2]))

from box import ask, gpubox, own_folders, profile

from gpubox.telemetry.recorder import read_recording
from tests.gateway_process import free_port
from tests.unit.invariants import broken

CLIENTS, EACH, TOKENS = 6, 2, 40
WORDS = "the quick brown fox jumps over the lazy dog and runs through the forest until night comes "


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("--engine", required=True)
    for name in ("mtp", "swa", "rpc"):
        parser.add_argument(f"--{name}")
    arguments = parser.parse_args()
    failed = False
    with own_folders(arguments.engine) as folder:
        for name, model, flags in cases(arguments):
            port = free_port()
            profile(folder, name, model, port, {"threads": 1, **flags})
            gpubox("stop", check=False)
            recording = folder / f"{name}.jsonl"
            recorder = subprocess.Popen(
                [sys.executable, "-m", "gpubox", "record", str(recording)], stdout=subprocess.DEVNULL
            )
            gpubox("start", name)
            counted = clients(f"http://127.0.0.1:{port}")
            recorder.terminate()
            recorder.wait()
            failed |= report(name, recording, counted)
    sys.exit(1 if failed else 0)


def cases(arguments: argparse.Namespace) -> list[tuple[str, str, dict[str, Any]]]:
    found: list[tuple[str, str, dict[str, Any]]] = [
        ("one", arguments.model, {"ctx-size": 4096, "parallel": 1}),
        ("four", arguments.model, {"ctx-size": 8192, "parallel": 4, "load-mode": "none"}),
        ("unified", arguments.model, {"ctx-size": 4096, "parallel": 3, "kv-unified": True, "load-mode": "mmap+mlock"}),
    ]
    if arguments.mtp:
        draft = {"spec-type": "draft-mtp", "spec-synth-rates": "0.98,0.9,0.8", "ctx-size": 8192}
        found.append(("mtp", arguments.mtp, {**draft, "parallel": 2}))
    if arguments.swa:
        found.append(("swa", arguments.swa, {"ctx-size": 4096, "parallel": 1}))
    if arguments.rpc:
        far = {"rpc": arguments.rpc, "n-gpu-layers": 99, "ctx-size": 4096, "parallel": 2}
        found.append(("rpc", arguments.model, far))
        if arguments.mtp:
            found.append(("rpc-moe", arguments.mtp, {**far, "n-cpu-moe": 4}))
    return found


def clients(base: str) -> Counter[str]:
    """All clients; what their answers' own timings came to."""
    counted: Counter[str] = Counter()
    lock = threading.Lock()

    def one(number: int) -> None:
        for turn in range(EACH):
            text = f"Teller {number}, turn {turn}: {WORDS * (1 + number)}"
            answer = ask(base, "/completion", {"prompt": text, "n_predict": TOKENS, "ignore_eos": True})
            with lock:
                counted["requests"] += 1
                counted["prompt_tokens"] += answer["timings"]["prompt_n"]
                counted["generated_tokens"] += answer["timings"]["predicted_n"]

    threads = [threading.Thread(target=one, args=(number,)) for number in range(CLIENTS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return counted


def report(name: str, recording: Path, counted: Counter[str]) -> bool:
    """Prints what was found; whether anything was wrong."""
    import json

    snapshots = list(read_recording(recording))
    wrong = Counter(rule for snapshot in snapshots for rule in broken(snapshot))
    states = Counter(snapshot.throughput.state for snapshot in snapshots)
    words = Counter(snapshot.offload.bottleneck or "—" for snapshot in snapshots if snapshot.throughput.busy_slots)
    status = json.loads(gpubox("status", "--json"))
    different = {
        key: (status["totals"][key], count) for key, count in counted.items() if status["totals"][key] != count
    }
    now = status["throughput"]
    print(f"{name:8} {len(snapshots)} snapshots {dict(states)}  bottleneck {dict(words)}")
    print(f"         tg median {now['tg_median'] or 0:.1f} peak {now['tg_peak'] or 0:.1f} effective "
          f"{now['effective_tokens_per_second'] or 0:.1f}, a request {now['request_tg_median'] or 0:.1f}; "
          f"totals {different or 'equal'}", flush=True)  # fmt: skip
    for rule, count in wrong.most_common(10):
        print(f"         BROKEN {count} times: {rule}")
    return bool(wrong or different)


if __name__ == "__main__":
    main()
