"""Is what gpubox shows what the server measured? Shown values against the server's own final timings.

usage: accuracy.py MODEL.gguf [MTP-MODEL.gguf] [--engine LLAMA-SERVER] [--seconds 20] [--rounds 5]
For 1 and 4 parallel streams and, where an MTP model is given, with draft-mtp; in each round all streams answer for
about --seconds. Shown values come from `gpubox status --json --watch 0.25`, the truth from the answers' own
`timings`, which gpubox never sees:

  tg        what tg_tokens_per_second showed (a mean over 3 s), read once each 3 s: so each second of the generation
            counts once; slot by slot over its own generation, against the sum of the streams' predicted_per_second
  pp live   the last pp_tokens_per_second while the prompt was being read, against prompt_per_second (1 stream, a
            prompt of about PROMPT_SECONDS: a speed that is measured four times a second needs some of them)
  pp        pp_tokens_per_second of each finished request, against its own prompt_per_second
  exact     acceptance of each request, the totals, the number of requests, and context fill (prompt + generated - 1
            tokens: the last one is in no context) are the very same numbers

Takes about 2.5 minutes for each of the four cases. The server has one thread by default, so that gpubox and this
script have a core: on a busy machine the speed itself jumps about within the 3 s.

The promise: each median error is at most 3 %, and what is exact is. Exits 1 when it is not kept.
"""

from __future__ import annotations

import json
import statistics
import sys
import threading
import time
from dataclasses import dataclass, field
from typing import Any

from box import Watcher, ask, gpubox, options, own_folders, profile, until

from tests.ports import free_port

WINDOW = 3.0
ALLOWED = 0.03
PROMPT_SECONDS = 5.0
CONTEXT = {"plain": 8192, "mtp": 24576}
"""Tokens for each stream; the MTP model of the lab reads thousands in a second."""
WORDS = "the quick brown fox jumps over the lazy dog and runs through the forest until night comes "
WORD_TOKENS = 19

Line = tuple[float, dict[str, Any]]


@dataclass
class Errors:
    """What one case gave: an error each round, and what was not exact."""

    tg: list[float] = field(default_factory=list)
    pp_live: list[float] = field(default_factory=list)
    pp: list[float] = field(default_factory=list)
    different: set[str] = field(default_factory=set)

    def kept(self) -> bool:
        """Whether this case keeps the promise."""
        medians = [statistics.median(errors) for errors in (self.tg, self.pp_live, self.pp) if errors]
        return bool(self.tg and self.pp) and all(m <= ALLOWED for m in medians) and not self.different


def main() -> None:
    arguments = options(__doc__, "model", "mtp?", "--engine", seconds=20.0, rounds=5, threads=1)
    kept = []
    with own_folders(arguments.engine) as folder:
        plain: dict[str, object] = {"parallel": 4, "threads": arguments.threads, "batch-size": 128}
        port = free_port()
        profile(folder, "plain", arguments.model, port, plain | {"ctx-size": 4 * CONTEXT["plain"]})
        cases = [("plain", 1), ("plain", 4)]
        if arguments.mtp:
            spec: dict[str, object] = {
                "spec-type": "draft-mtp",
                "spec-draft-n-max": 3,
                "spec-synth-rates": "0.98,0.9,0.8",
            }
            spec["ctx-size"] = 4 * CONTEXT["mtp"]
            profile(folder, "mtp", arguments.mtp, port, plain | spec)
            cases += [("mtp", 1), ("mtp", 4)]
        print(f"{'':10} {'tg':>15} {'pp live':>15} {'pp':>15}   median error (worst)", flush=True)
        for name, streams in cases:
            gpubox("stop", check=False)
            gpubox("start", name)
            errors = measure(f"http://127.0.0.1:{port}", CONTEXT[name], streams, arguments.seconds, arguments.rounds)
            kept.append(errors.kept())
            row = " ".join(f"{summary(e):>15}" for e in (errors.tg, errors.pp_live, errors.pp))
            exact = f"DIFFERS: {', '.join(sorted(errors.different))}" if errors.different else "rest exact"
            print(f"{name + ' x' + str(streams):10} {row}   {exact}   {'kept' if kept[-1] else 'NOT KEPT'}", flush=True)
    sys.exit(0 if all(kept) else 1)


def measure(base: str, context: int, streams: int, seconds: float, rounds: int) -> Errors:
    """All rounds of one case."""
    errors = Errors()
    everything = together(base, streams, 100, WORDS * (40 if streams == 1 else 10), 0)
    timings = [answer["timings"] for answer in everything]
    words = int(PROMPT_SECONDS * timings[0]["prompt_per_second"] / WORD_TOKENS) if streams == 1 else 10
    prompt = WORDS * min(max(words, 10), context // 2 // WORD_TOKENS)
    tokens = max(50, min(int(seconds * min(t["predicted_per_second"] for t in timings)), context // 2 - 100))
    watcher = Watcher()
    watcher.wait_for(6)
    for number in range(1, rounds + 1):
        begin = time.monotonic()
        answers = together(base, streams, tokens, prompt, number)
        end = time.monotonic()
        everything += answers
        settled(watcher, everything)
        lines = watcher.between(begin, end)
        true = sum(a["timings"]["predicted_per_second"] for a in answers)
        errors.tg.append(error_of(shown_tg(lines), true))
        if not all(sums_up(line) for _, line in lines):
            errors.different.add("tg of all slots")
        if streams == 1:
            errors.pp_live.append(error_of(shown_pp(lines), answers[0]["timings"]["prompt_per_second"]))
        compare_requests(errors, answers)
        compare_context(errors, watcher.last(), answers)
    compare_totals(errors, watcher.last()["totals"], everything)
    watcher.close()
    return errors


def together(base: str, streams: int, tokens: int, prompt: str, number: int) -> list[dict[str, Any]]:
    """Runs ``streams`` requests side by side and returns the server's answers."""
    answers: list[dict[str, Any]] = []

    def one(stream: int) -> None:
        text = f"Story {number} of teller {stream}: {prompt}"
        body = {"prompt": text, "n_predict": tokens, "ignore_eos": True, "temperature": 0.8, "cache_prompt": False}
        answers.append(ask(base, "/completion", body))

    threads = [threading.Thread(target=one, args=(stream,)) for stream in range(streams)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if len(answers) < streams:
        sys.exit("the server did not answer every request")
    return answers


def settled(watcher: Watcher, everything: list[dict[str, Any]]) -> None:
    """Returns when gpubox has seen every request end and has polled once more."""
    until(lambda: (watcher.last()["totals"]["requests"] or 0) >= len(everything), "gpubox sees every request")
    watcher.wait_for(10)  # /metrics is asked less often than /slots


def shown_tg(lines: list[Line]) -> float:
    """The streams' shown speeds, each a mean over its whole generation, summed up."""
    slots = {slot["index"] for _, line in lines for slot in line["slots"] if slot["state"] == "answering"}
    return sum(tiled([(at, s) for at, v in lines for s in v["slots"] if s["index"] == index]) for index in slots)


def tiled(readings: list[Line]) -> float:
    """The mean of one slot's shown 3-second means, laid side by side: no second counts twice."""
    working = [(at, slot["tg_tokens_per_second"]) for at, slot in readings if slot["state"] == "answering"]
    shown = [(at, tg) for at, tg in working if tg is not None]
    if not shown:
        return float("nan")
    begin, end = working[0][0], shown[-1][0]
    ends = [begin + WINDOW * (n + 1) for n in range(int((end - begin) / WINDOW))]
    tiles = [(WINDOW, min(shown, key=lambda point, at=at: abs(point[0] - at))[1]) for at in ends]  # type: ignore[misc]
    tiles.append((end - begin - WINDOW * len(ends), shown[-1][1]))  # what is left at the end, by its share
    return float(sum(width * tg for width, tg in tiles) / (end - begin))


def sums_up(line: dict[str, Any]) -> bool:
    """Whether the one tg shown is that of all slots together; unknown where a generating slot has no speed yet."""
    generating = [slot["tg_tokens_per_second"] for slot in line["slots"] if slot["state"] == "answering"]
    speeds = [speed for speed in generating if speed is not None]
    shown = line["throughput"]["tg_tokens_per_second"]
    if shown is None:
        return len(speeds) < len(generating) or not speeds
    return bool(abs(shown - sum(speeds)) < 0.01)


def shown_pp(lines: list[Line]) -> float | None:
    """The last speed shown of a prompt that was being read."""
    shown = [
        slot["pp_tokens_per_second"]
        for _, line in lines
        for slot in line["slots"]
        if slot["state"] == "prefill" and slot["pp_tokens_per_second"] is not None
    ]
    return shown[-1] if shown else None


def compare_requests(errors: Errors, answers: list[dict[str, Any]]) -> None:
    """Each request of this round in `gpubox history --requests`, by its slot."""
    rows = json.loads(gpubox("history", "--requests", "-n", str(len(answers)), "--json"))["requests"]
    by_slot = {row["slot"]: row for row in rows}
    if len(by_slot) != len(answers):
        errors.different.add("requests")
        return
    for answer in answers:
        row, true = by_slot[answer["id_slot"]], answer["timings"]
        errors.pp.append(error_of(row["pp_tokens_per_second"], true["prompt_per_second"]))
        same = {
            "prompt": (row["prompt_tokens"] - row["cached_tokens"], true["prompt_n"]),
            "generated": (row["generated_tokens"], true["predicted_n"]),
            "acceptance": (
                (row["draft_tokens_accepted"] or 0, row["draft_tokens"] or 0),
                (true.get("draft_n_accepted", 0), true.get("draft_n", 0)),
            ),
        }
        errors.different |= {name for name, (ours, theirs) in same.items() if ours != theirs}


def compare_context(errors: Errors, shown: dict[str, Any], answers: list[dict[str, Any]]) -> None:
    used = {slot["index"]: slot["context_used_tokens"] for slot in shown["slots"]}
    for answer in answers:
        timings = answer["timings"]
        true = timings["cache_n"] + timings["prompt_n"] + timings["predicted_n"] - 1
        if used[answer["id_slot"]] != true:
            errors.different.add(f"context {used[answer['id_slot']]} for {true}")


def compare_totals(errors: Errors, shown: dict[str, Any], answers: list[dict[str, Any]]) -> None:
    """Whether requests and tokens are those that this client counted itself."""
    timings = [answer["timings"] for answer in answers]
    true = {
        "requests": len(answers),
        "prompt_tokens": sum(t["prompt_n"] for t in timings),
        "generated_tokens": sum(t["predicted_n"] for t in timings),
        "draft_tokens": sum(t.get("draft_n", 0) for t in timings),
        "draft_tokens_accepted": sum(t.get("draft_n_accepted", 0) for t in timings),
    }
    errors.different |= {f"{k} {shown[k]} for {v}" for k, v in true.items() if (shown[k] or 0) != v}


def error_of(shown: float | None, true: float) -> float:
    return abs(shown - true) / true if shown is not None else float("inf")


def summary(errors: list[float]) -> str:
    return f"{statistics.median(errors):.2%} ({max(errors):.2%})" if errors else "—"


if __name__ == "__main__":
    main()
