"""Conversations through the gateway, with a switch of models between their turns: is what it calls restored reused?

usage: gateway_kv.py LLAMA-SERVER MODEL.gguf [--slots 1,2,4] [--rounds 5] [--words 700] [--flags "swa-full ..."]
                     [--at-once 1]
Two or more conversations (a growing prompt each; every other one names itself in x-session-id) ask profile `first`,
a title is asked for between their turns, then profile `second` takes the device, and the conversations go on. For
each number of slots it prints
  said     states that the gateway said it restored, and how many of them the next answers reused at least 99 % of
  reused   turns after a switch that reused at least 99 % of their conversation's prompt, of all such turns
  equal    answers at temperature 0 that equal those of a server of their own, which never stopped and was asked each
           of the same prompts alone; and of the others, how far apart the gateway's first other token and the best one
           lay there. A server is exact only if the same part of a prompt is read at once: that it reads a prompt in
           other parts, or beside another one, moves its log probabilities. By how much is measured with the same
           prompt, once with and once without the server's cache. An answer within that is as good as the direct one.
           --at-once 0: no two turns at the same time. A plain server, too, answers a hybrid model's prompts otherwise
           when they come at once (build 11434: 27 of 42 equal; one after another 42 of 42).
Exit code 1 if something was said and not reused, or if an answer is further off. Both profiles share one RPC device
(`ggml-rpc-server` beside LLAMA-SERVER), which serves one server at a time: so every switch is a real one.
"""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from box import gpubox, options, own_folders
from gateway_box import gateway_config, launch_profile, one_device
from kv_truth import WORDS

from tests.gateway_process import Gateway
from tests.ports import free_port
from tests.raw_http import Reply, ask

SHARE = 0.99
ANSWER_TOKENS, BEST = 16, 100
TITLE = "Write a title of three words for this conversation, without quotes."


@dataclass(frozen=True)
class Answer:
    """A text, and the log probabilities of the best tokens at each place."""

    text: str
    best: list[dict[str, float]]

    def distance(self, other: Answer) -> float:
        """How far the other answer's first other token is below the best one here, at least; 0: there is none."""
        for mine, theirs in zip(self.best, other.best, strict=False):
            if (token := max(theirs, key=theirs.__getitem__)) != max(mine, key=mine.__getitem__):
                return max(mine.values()) - mine.get(token, min(mine.values()))
        return 0.0

    def noise(self, other: Answer) -> float:
        """The largest change of a log probability, as long as both answers begin alike."""
        largest = 0.0
        for mine, theirs in zip(self.best, other.best, strict=False):
            largest = max([largest, *(abs(mine[token] - theirs[token]) for token in mine.keys() & theirs.keys())])
            if max(mine, key=mine.__getitem__) != max(theirs, key=theirs.__getitem__):
                break
        return largest


@dataclass
class Talk:
    """One conversation, and what was measured of it."""

    seed: int
    headers: dict[str, str]
    messages: list[dict[str, str]] = field(default_factory=list)
    prompt_tokens: int = 0
    """Of its last turn."""
    answers: list[Answer] = field(default_factory=list)
    shares: list[float] = field(default_factory=list)
    """What each turn but the first reused of the prompt before it."""
    cached: int = 0

    def turn(self, port: int, words: int) -> None:
        chance = random.Random(f"{self.seed} {len(self.messages)}")
        if not self.messages:
            self.messages.append({"role": "system", "content": f"{self.seed} {some(words, chance)}"})
        self.messages.append({"role": "user", "content": some(25, chance)})
        reply = chat(port, self.messages, self.headers)
        timings = reply.json()["timings"]
        self.cached = timings["cache_n"]
        if self.prompt_tokens:
            self.shares.append(self.cached / self.prompt_tokens)
        self.prompt_tokens = timings["cache_n"] + timings["prompt_n"]
        self.answers.append(answer_of(reply))
        self.messages.append({"role": "assistant", "content": self.answers[-1].text})


def some(words: int, chance: random.Random) -> str:
    return " ".join(chance.choice(WORDS) for _ in range(words))


def answer_of(reply: Reply) -> Answer:
    choice = reply.json()["choices"][0]
    best = [{token["token"]: token["logprob"] for token in place["top_logprobs"]}
            for place in choice["logprobs"]["content"]]  # fmt: skip
    return Answer(choice["message"]["content"] or "", best)


def chat(
    port: int, messages: list[dict[str, str]], headers: dict[str, str], model: str = "first", **more: object
) -> Reply:
    fixed = {"max_tokens": ANSWER_TOKENS, "temperature": 0, "seed": 1, "logprobs": True, "top_logprobs": BEST}
    values = {"model": model, "messages": messages, **fixed, **more}
    reply = ask(port, "/v1/chat/completions", values, headers=headers, timeout=600)
    if reply.status != 200:
        sys.exit(f"{model}: {reply.status} {reply.body[:300]!r} {reply.error}")
    return reply


def turns(talks: list[Talk], port: int, words: int, *, at_once: bool) -> None:
    """One turn of each, one after another or at the same time; then the title of the first."""
    if at_once:
        threads = [threading.Thread(target=talk.turn, args=(port, words)) for talk in talks]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    else:
        for talk in talks:
            talk.turn(port, words)
    chat(port, [{"role": "system", "content": TITLE}, talks[0].messages[1]], talks[0].headers)


def new_talks(count: int) -> list[Talk]:
    """Every other one is known by its prefix alone."""
    return [Talk(n, {} if n % 2 else {"x-session-id": f"session-{n}"}) for n in range(count)]


def said_tokens() -> list[int]:
    """The tokens of each state that the record of the running server calls restored, the most first."""
    found: list[int] = []
    for path in (Path(os.environ["XDG_STATE_HOME"]) / "gpubox/servers").glob("*.json"):
        running = json.loads(path.read_text()).get("running") or {}
        if (running.get("launch") or {}).get("profile") == "first":
            found += [slot["tokens"] for slot in running.get("restored", ())]
    return sorted(found, reverse=True)


def measure(gateway: Gateway, slots: int, arguments: Any) -> tuple[list[Talk], int, int, list[str]]:
    """The conversations; states said to be restored, and those of them reused; and where more was said."""
    talks, said, used, wrong = new_talks(max(2, slots)), 0, 0, []
    turns(talks, gateway.port, arguments.words, at_once=False)
    for number in range(arguments.rounds):
        chat(gateway.port, [{"role": "user", "content": "Hello"}], {}, "second")
        turns(talks, gateway.port, arguments.words, at_once=bool(arguments.at_once and number % 2))
        states, cached = said_tokens(), sorted((talk.cached for talk in talks), reverse=True)
        reused = sum(SHARE * tokens <= count for tokens, count in zip(states, cached, strict=False))
        said, used = said + len(states), used + reused
        if reused < len(states):
            wrong.append(f"round {number + 1}: said {states}, reused {cached}")
    return talks, said, used, wrong


def directly(engine: str, model: str, flags: dict[str, Any], talks: list[Talk]) -> tuple[int, list[float], float]:
    """The same prompts, one after another, to a server that never stops.

    Returns how many answers are equal, how far off the others are, and how far off the server is from itself.
    """
    port, equal, off, noise = free_port(), 0, list[float](), 0.0
    words = [engine, "--model", model, "--port", str(port), "--host", "127.0.0.1"]
    for name, value in flags.items():
        words += [f"--{name}", *([] if value is True else [str(value)])]
    with subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        try:
            while ask(port, "/health", timeout=5).status != 200:
                time.sleep(0.05)
            for talk in talks:
                for number, ours in enumerate(talk.answers):
                    prompt = talk.messages[: 2 + 2 * number]
                    theirs = answer_of(chat(port, prompt, {}))
                    equal += ours.text == theirs.text
                    if ours.text != theirs.text or number == len(talk.answers) - 1:
                        noise = max(noise, theirs.noise(answer_of(chat(port, prompt, {}, cache_prompt=False))))
                        off += [theirs.distance(ours)] * (ours.text != theirs.text)
            return equal, off, noise
        finally:
            process.kill()


def main() -> None:
    arguments = options(__doc__, "engine", "model", slots="1,2,4", rounds=5, words=700, flags="", at_once=1)
    failed = False
    with own_folders(arguments.engine) as folder, one_device(arguments.engine) as first, \
            one_device(arguments.engine) as other:  # fmt: skip
        gateway_config(folder, wait_seconds=2)
        for slots in (int(word) for word in arguments.slots.split(",")):
            flags: dict[str, Any] = {"ctx-size": 4096 * slots, "parallel": slots, "threads": 1}
            for word in arguments.flags.split():
                name, _, value = word.partition("=")
                flags[name] = value or True
            launch_profile(folder, "first", arguments.model, "real", {**flags, **first})
            launch_profile(folder, "second", arguments.model, "real", {"ctx-size": 512, "threads": 1, **first})
            gateway = Gateway()
            try:
                talks, said, used, wrong = measure(gateway, slots, arguments)
                sentences = gateway.status().get("kept_kv", ())
            finally:
                gateway.stop()
                gpubox("stop", "--all")
            equal, off, noise = directly(arguments.engine, arguments.model, {**flags, **other}, talks)
            shares = [share for talk in talks for share in talk.shares]
            print(
                f"{slots} slots: {used} of {said} states said to be restored were reused; "
                f"{sum(share >= SHARE for share in shares)} of "
                f"{len(shares)} turns reused 99 % (least {min(shares):.1%}); "
                f"{equal} of {equal + len(off)} answers equal, the others at most {max(off, default=0):.3f} off, "
                f"the server itself {noise:.3f}{gateway.problems()}",
                *wrong, *sentences, sep="\n    ", flush=True,
            )  # fmt: skip
            failed = failed or bool(wrong) or max(off, default=0) > noise
    sys.exit(failed)


if __name__ == "__main__":
    main()
