"""Conversations through the gateway and switches: what each long prompt reused, what was said, the same answers.

usage: kv_conversations.py MODEL.gguf --engine LLAMA-SERVER [--slots 1] [--switches 20] [--conversations 2]
                           [--head 100] [--words 250] [FLAG=VALUE ...]
Each conversation has a session header and a system prompt of --head words that all share. After each turn comes a title
request of the same session. Then `gpubox switch` loads another profile, and this one again. Afterwards the same
requests go to a plain llama-server with the same flags, without titles and switches. It prints, for each turn, what was
reused of the prompt before it; at the end what the gateway says, and how many answers equal the direct ones.
Exit code 1 if less than 99 % was reused after a switch, unless the gateway says that nothing is kept.
"""

from __future__ import annotations

import argparse
import os
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import httpx
import tomli_w

from tests.ports import free_port

GPUBOX = Path(sys.executable).with_name("gpubox")
WORDS = ("the", "box", "has", "many", "parts", "that", "can", "be", "seen", "from", "afar", "by", "those", "who")
Messages = list[dict[str, str]]


def text(words: int, seed: int) -> str:
    chosen = random.Random(seed)
    return " ".join(chosen.choice(WORDS) for _ in range(words))


class Box:
    """A gateway with two profiles, in a folder of its own."""

    def __init__(self, root: Path, arguments: argparse.Namespace, flags: Mapping[str, object]) -> None:
        folders = {f"XDG_{name.upper()}_HOME": str(root / name) for name in ("config", "state", "cache")}
        self.env = {**os.environ, **folders, "GPUBOX_WATCHER": "0"}
        self.root, self.port = root, free_port()
        profiles = root / "config" / "gpubox" / "profiles"
        profiles.mkdir(parents=True)
        config = {"default-engine": "lab", "engines": {"lab": arguments.engine}}
        (profiles.parent / "config.toml").write_text(tomli_w.dumps(config))
        for name, given in (("a", flags), ("b", {"threads": 2, "ctx-size": 1024, "flash-attn": "off"})):
            values = {"model": str(Path(arguments.model).absolute()), "port": free_port(), "flags": dict(given)}
            (profiles / f"{name}.toml").write_text(tomli_w.dumps(values))
        self.serving = subprocess.Popen([GPUBOX, "serve", "--port", str(self.port)], env=self.env, stdout=log(root))
        wait_for(self.port)

    def verb(self, *words: str) -> list[str]:
        """What a verb says about KV."""
        done = subprocess.run([GPUBOX, *words], env=self.env, capture_output=True, text=True)
        return [line.strip() for line in (done.stdout + done.stderr).splitlines() if "KV" in line or done.returncode]

    def said(self) -> list[str]:
        record = httpx.Response(200, content=(self.root / "state/gpubox/gateway/gateway.json").read_bytes()).json()
        headers = {"Authorization": f"Bearer {record['token']}"}
        answer = httpx.get(f"http://127.0.0.1:{self.port}/gpubox/status", headers=headers).json()
        return [str(sentence) for sentence in answer["kept_kv"]]

    def close(self) -> None:
        self.verb("serve", "--stop")
        self.serving.wait(60)
        self.verb("stop", "--all")


def log(root: Path) -> Any:
    return (root / "output").open("w")


def wait_for(port: int) -> None:
    while True:
        try:
            if httpx.get(f"http://127.0.0.1:{port}/health").status_code == 200:
                return
        except httpx.HTTPError:
            pass
        time.sleep(0.1)


def chat(port: int, messages: Messages, session: str, tokens: int) -> tuple[str, int, int]:
    """The answer, and how many tokens of the prompt were cached and read."""
    body = {"model": "a", "messages": messages, "temperature": 0, "seed": 1, "max_tokens": tokens}
    url, headers = f"http://127.0.0.1:{port}/v1/chat/completions", {"x-session-id": session}
    values = httpx.post(url, json=body, headers=headers, timeout=600).raise_for_status().json()
    timings = values["timings"]
    return values["choices"][0]["message"]["content"] or "", timings["cache_n"], timings["prompt_n"]


def talk(port: int, arguments: argparse.Namespace, between: Any) -> tuple[list[str], list[float]]:
    """The answers of all turns, and what each reused of the prompt before it."""
    system = {"role": "system", "content": text(arguments.head, 99)}
    count = arguments.conversations
    talks: list[Messages] = [
        [system, {"role": "user", "content": text(arguments.words, 10 + number)}] for number in range(count)
    ]
    answers, shares, known = [], [], [0] * count
    for turn in range(arguments.switches + 1):
        for number in random.Random(turn).sample(range(count), count):
            answer, cached, read = chat(port, talks[number], f"session-{number}", 12)
            answers.append(answer)
            if known[number]:
                shares.append(cached / known[number])
                print(f"  turn {turn}, conversation {number}: {cached} of {known[number]} ({shares[-1]:.1%}) reused")
            known[number] = cached + read
            more = {"role": "user", "content": "and " + text(12, 1000 * turn + number)}
            talks[number] += [{"role": "assistant", "content": answer}, more]
            between(number)
        if turn < arguments.switches:
            between(-1)
    return answers, shares


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("flags", nargs="*", metavar="FLAG=VALUE")
    parser.add_argument("--engine", required=True)
    for name, value in (("slots", 1), ("switches", 20), ("conversations", 2), ("head", 100), ("words", 250)):
        parser.add_argument(f"--{name}", type=int, default=value)
    arguments = parser.parse_args()
    flags: dict[str, object] = {"threads": 2, "ctx-size": 8192, "parallel": arguments.slots}
    for name, _, value in (each.partition("=") for each in arguments.flags):
        flags[name] = int(value) if value.isdigit() else True if value == "true" else value
    with tempfile.TemporaryDirectory() as folder:
        box = Box(Path(folder), arguments, flags)
        title = [{"role": "system", "content": "Make a title."}, {"role": "user", "content": text(30, 77)}]

        def between(number: int) -> None:
            if number >= 0:
                chat(box.port, title, f"session-{number}", 4)
            else:
                print("   ", *box.verb("switch", "b"), *box.verb("switch", "a"), flush=True)

        try:
            answers, shares = talk(box.port, arguments, between)
            said = box.said()
        finally:
            box.close()
        words = [word for name, value in flags.items() for word in (f"--{name}", "" if value is True else str(value))]
        command = [arguments.engine, "--model", arguments.model, "--jinja", "--port", str(port := free_port())]
        plain = subprocess.Popen([*command, *filter(None, words)], stdout=log(Path(folder)), stderr=subprocess.STDOUT)
        try:
            wait_for(port)
            print("without gateway, titles and switches")
            direct, _ = talk(port, arguments, lambda number: None)
        finally:
            plain.kill()
            plain.wait()
    refused = any("not kept" in sentence for sentence in said)
    good = sum(share >= 0.99 for share in shares)
    equal = sum(one == other for one, other in zip(answers, direct, strict=True))
    print(*said, sep="\n")
    print(f"{good} of {len(shares)} prompts reused (99 %); {equal} of {len(direct)} answers equal the direct ones")
    return 0 if refused or good == len(shares) else 1


if __name__ == "__main__":
    sys.exit(main())
