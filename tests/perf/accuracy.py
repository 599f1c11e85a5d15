"""Is what gpubox shows what the server measured? Speeds against the server's own final timings.

usage: accuracy.py MODEL.gguf [MTP-MODEL.gguf] [--engine LLAMA-SERVER] [--tokens 300] [--rounds 3]
For 1 and 4 parallel streams, and with draft-mtp where an MTP model is given, prints for tg and pp the relative
error of the mean shown value, and whether acceptance, totals and context fill are exactly the server's.
The promise: median error at most 3 %; acceptance and context fill exact.
"""

from __future__ import annotations

import argparse
import statistics
import threading
import time
from typing import Any

from box import Watcher, ask, gpubox, own_folders, profile

PORT = 8396
WORDS = "the quick brown fox jumps over the lazy dog and runs through the forest until night comes "


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("mtp", nargs="?")
    parser.add_argument("--engine")
    parser.add_argument("--tokens", type=int, default=800)
    parser.add_argument("--rounds", type=int, default=3)
    arguments = parser.parse_args()
    with own_folders(arguments.engine) as folder:
        plain = {"ctx-size": 32768, "parallel": 4, "threads": 2}
        profile(folder, "plain", arguments.model, PORT, plain)
        cases = [("plain", 1), ("plain", 4)]
        if arguments.mtp:
            spec = {"spec-type": "draft-mtp", "spec-draft-n-max": 3, "spec-synth-rates": "0.98,0.9,0.8"}
            profile(folder, "mtp", arguments.mtp, PORT, plain | spec)
            cases += [("mtp", 1), ("mtp", 4)]
        print(f"{'case':14} {'tg error':>9} {'worst':>7} {'pp error':>9}  acceptance  context  totals  requests")
        for name, streams in cases:
            gpubox("stop", check=False)
            gpubox("start", name)
            measure(name, streams, arguments.tokens * (3 if name == "mtp" else 1), arguments.rounds)


def measure(name: str, streams: int, tokens: int, rounds: int) -> None:
    base = f"http://127.0.0.1:{PORT}"
    watcher = Watcher()
    watcher.wait_for(6)
    tg_errors: list[float] = []
    pp_errors: list[float] = []
    drafts: list[bool] = []
    everything: list[dict[str, Any]] = []
    for number in range(rounds):
        begin = time.monotonic()
        answers = together(base, streams, tokens, number)
        end = time.monotonic()
        everything += answers
        watcher.wait_for(4)
        true_tg = sum(a["timings"]["predicted_per_second"] for a in answers)
        tg_errors.append(error_of(steady(watcher.between(begin, end), streams), true_tg))
        shown = watcher.lines[-1][1]
        slowest = [a["timings"]["prompt_per_second"] for a in answers]
        pp_errors.append(min(error_of(shown["throughput"]["pp_tokens_per_second"], v) for v in slowest))
        drafts.append(same_acceptance(shown, answers))
    context = same_context(watcher, base)
    totals = same_totals(watcher.lines[-1][1]["totals"], everything)
    watcher.close()
    print(
        f"{name + ' x' + str(streams):14} {statistics.median(tg_errors):9.2%} {max(tg_errors):7.2%}"
        f" {statistics.median(pp_errors):9.2%}  {word(all(drafts)):10}  {word(context):7}  {word(totals):6}"
        f"  {len(everything)} requests"
    )


def together(base: str, streams: int, tokens: int, number: int) -> list[dict[str, Any]]:
    """Runs ``streams`` requests side by side and returns the server's answers."""
    answers: list[dict[str, Any]] = []

    def one(stream: int) -> None:
        prompt = f"Story {number} of teller {stream}: " + WORDS * 12
        body = {"prompt": prompt, "n_predict": tokens, "ignore_eos": True, "temperature": 0.8, "cache_prompt": False}
        answers.append(ask(base, "/completion", body))

    threads = [threading.Thread(target=one, args=(stream,)) for stream in range(streams)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return answers


def steady(lines: list[dict[str, Any]], streams: int) -> float:
    """The mean shown tg while all streams were generating: the server's own figure is a mean over the same time."""
    shown = [
        line["throughput"]["tg_tokens_per_second"]
        for line in lines
        if line["throughput"]["tg_tokens_per_second"] is not None
        and sum(slot["tg_tokens_per_second"] is not None for slot in line["slots"]) == streams
    ]
    return statistics.fmean(shown) if shown else float("nan")


def same_acceptance(shown: dict[str, Any], answers: list[dict[str, Any]]) -> bool:
    drafted = [a["timings"] for a in answers if a["timings"].get("draft_n")]
    if not drafted:
        return shown["throughput"]["draft_acceptance"] is None
    rates = {t["draft_n_accepted"] / t["draft_n"] for t in drafted}
    return shown["throughput"]["draft_acceptance"] in rates


def same_context(watcher: Watcher, base: str) -> bool:
    watcher.wait_for(8)
    shown = {slot["index"]: slot["context_used_tokens"] for slot in watcher.lines[-1][1]["slots"]}
    return shown == {slot["id"]: slot.get("n_prompt_tokens") for slot in ask(base, "/slots")}


def same_totals(shown: dict[str, Any], answers: list[dict[str, Any]]) -> bool:
    """Whether requests and tokens are those that this client counted itself."""
    timings = [answer["timings"] for answer in answers]
    true = {
        "requests": len(answers),
        "prompt_tokens": sum(t["prompt_n"] for t in timings),
        "generated_tokens": sum(t["predicted_n"] for t in timings),
        "draft_tokens": sum(t.get("draft_n", 0) for t in timings),
        "draft_tokens_accepted": sum(t.get("draft_n_accepted", 0) for t in timings),
    }
    return all((shown[key] or 0) == value for key, value in true.items())


def error_of(shown: float | None, true: float) -> float:
    return abs(shown - true) / true if shown is not None else float("nan")


def word(same: bool) -> str:
    return "exact" if same else "DIFFERS"


main()
