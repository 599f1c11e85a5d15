"""Is the TTFT that gpubox shows the one that the clients saw, when they wait for a slot?

usage: ttft.py MODEL.gguf --engine LLAMA-SERVER [--rounds 3] [--keep FOLDER]
For 1 and 2 slots: six clients at once, by chat and by /completion, in each round; between them one that leaves while
it waits and one that leaves while it is answered. In every third round also a request that the server refuses, two
prompts in one request, and two answers to one prompt: where those leave a choice, the TTFT is unknown. Prints the
errors of `gpubox requests` against each client's own stopwatch, and exits 1 where the median is over 50 ms, any is over
0.5 s, or more than a third of the requests have no TTFT. ``--keep`` saves the logs.
"""

from __future__ import annotations

import argparse
import contextlib
import http.client
import json
import random
import shutil
import statistics
import sys
import threading
import time
from datetime import datetime
from pathlib import Path
from typing import Any

from box import gpubox, own_folders, profile

from tests.gateway_process import free_port

WORDS = "the quick brown fox jumps over the lazy dog "
CLIENTS = 6


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("--engine", required=True)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--keep", type=Path)
    arguments = parser.parse_args()
    kept = True
    with own_folders(arguments.engine) as folder:
        for slots in (1, 2):
            port = free_port()
            profile(folder, f"slots{slots}", arguments.model, port, {"ctx-size": 4096 * slots, "parallel": slots})
            gpubox("switch", f"slots{slots}", "--now")
            seen: list[tuple[float, float]] = []
            for number in range(arguments.rounds):
                one_round(port, number, seen)
            rows = json.loads(gpubox("requests", "-n", "500", "--json"))["requests"]
            kept &= compare(slots, seen, rows)
            if arguments.keep:
                shutil.copy(gpubox("logs", "--path").strip(), arguments.keep / f"slots{slots}.log")
                (arguments.keep / f"slots{slots}.json").write_text(json.dumps(seen))
    sys.exit(0 if kept else 1)


def one_round(port: int, number: int, seen: list[tuple[float, float]]) -> None:
    """All clients at once; ``seen`` takes when each got its first token, and after how many seconds."""
    rng = random.Random(number)
    jobs: list[tuple[str, dict[str, Any], float | None]] = []
    for client in range(CLIENTS):
        text = f"Client {client}, round {number}: " + WORDS * rng.randrange(1, 8)
        length = rng.randrange(5, 30)
        chat = {"messages": [{"role": "user", "content": text}], "max_tokens": length}
        jobs.append(("/v1/chat/completions", chat, None) if client % 2 else ("/completion", raw(text, length), None))
    jobs.append(("/completion", raw("I leave the queue " + WORDS, 20), 0.4))
    jobs.append(("/completion", raw("I leave early " + WORDS, 200), 3.0))
    if number % 3 == 2:
        jobs.append(("/completion", {"prompt": "refused", "n_probs": "many"}, None))
        jobs.append(
            ("/completion", {**raw("", 8), "prompt": ["a first prompt", "and a second"], "stream": False}, 99.0)
        )
        chat = {"messages": [{"role": "user", "content": "Say it twice."}], "max_tokens": 8, "n": 2}
        jobs.append(("/v1/chat/completions", {**chat, "stream": False}, 99.0))
    rng.shuffle(jobs)
    threads = [threading.Thread(target=one_request, args=(port, *job, seen)) for job in jobs]
    for thread in threads:
        thread.start()
        time.sleep(rng.random() * 0.3)
    for thread in threads:
        thread.join()


def raw(prompt: str, length: int) -> dict[str, Any]:
    return {"prompt": prompt, "n_predict": length, "ignore_eos": True}


def one_request(
    port: int, path: str, body: dict[str, Any], leave: float | None, seen: list[tuple[float, float]]
) -> None:
    """One streamed request; one that leaves after ``leave`` seconds is not compared."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=leave or 600)
    began = time.time()
    with contextlib.suppress(TimeoutError):
        connection.request("POST", path, json.dumps({"stream": True, **body}), {"Content-Type": "application/json"})
        response = connection.getresponse()
        while response.status == 200 and (line := response.readline()):
            if leave is not None and time.time() - began > leave:
                break
            if leave is None and line.startswith(b"data: {") and has_text(json.loads(line[6:])):
                seen.append((time.time(), time.time() - began))
                leave = float("inf")
    connection.close()


def has_text(chunk: dict[str, Any]) -> bool:
    choice = (chunk.get("choices") or [{}])[0]
    return bool(chunk.get("content") or choice.get("delta", {}).get("content"))


def compare(slots: int, seen: list[tuple[float, float]], rows: list[dict[str, Any]]) -> bool:
    """Prints the errors; whether they are small."""
    known = [row for row in rows if row["ttft_seconds"] is not None]
    errors, unknown = [], 0
    for at, waited in seen:
        nearest = min(rows, key=lambda row: abs(first_token(row) - at))
        if nearest["ttft_seconds"] is None:
            unknown += 1
        else:
            errors.append(abs(nearest["ttft_seconds"] - waited))
    waits = [row["queue_seconds"] for row in known]
    print(f"{slots} slots: {len(seen)} requests, {unknown} without; longest wait {max(waits):.2f} s; "
          f"error median {statistics.median(errors) * 1000:.0f} ms, worst {max(errors) * 1000:.0f} ms")  # fmt: skip
    return statistics.median(errors) <= 0.05 and max(errors) <= 0.5 and unknown <= len(seen) / 3


def first_token(row: dict[str, Any]) -> float:
    return datetime.fromisoformat(row["at"]).timestamp() + (row["slot_ttft_seconds"] or 0)


if __name__ == "__main__":
    main()
