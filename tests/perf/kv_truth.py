"""Kept KV around switches by gpubox, on a real llama-server: what is reused, how fast, the same text, each flag change.

usage: kv_truth.py DENSE.gguf HYBRID.gguf --engine LLAMA-SERVER [--tokens 2000] [--answers 100] [--slots 10]
For each model it prints
  away and back   saved tokens, what the next chat request reused of them (at least 99 %), and the seconds of the
                  restore over those of the reading (at most a tenth)
  same text       how many of so many restored answers at temperature 0 equal the answers without a restart
  flags           what each change of flags does to a kept state, against what is known of build 11434, and what
                  llama-server itself says to the file (HTTP 400 or not)
Exit code 1 if one of them is not as it should be. Nothing of the owner's is touched: all folders are temporary.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import random
import shutil
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx

from gpubox.config import Config
from gpubox.errors import GpuboxError
from gpubox.paths import Paths
from gpubox.profiles.profile import FlagValue, Profile
from gpubox.server.client import connect
from gpubox.server.events import ServerEvent, Step, StepDone
from gpubox.server.kv_store import KvStore
from gpubox.server.supervisor import Supervisor
from tests.ports import free_port

WORDS = [
    "the",
    "box",
    "has",
    "many",
    "parts",
    "that",
    "can",
    "be",
    "seen",
    "from",
    "afar",
    "by",
    "those",
    "who",
    "look",
]


@dataclass
class Bench:
    """One model, its server, and the steps that gpubox reported."""

    paths: Paths
    config: Config
    model: str
    port: int
    steps: dict[Step, StepDone] = field(default_factory=dict)
    failed: list[str] = field(default_factory=list)

    def emit(self, event: ServerEvent) -> None:
        if isinstance(event, StepDone):
            self.steps[event.step] = event

    async def up(self, flags: Mapping[str, FlagValue], name: str = "it") -> None:
        """Switches to a profile with these flags."""
        self.steps.clear()
        given = {"threads": 2, "ctx-size": 4096, **flags}
        await self.supervisor().switch(Profile(name, self.model, port=self.port, flags=given), force_restart=True)

    def supervisor(self) -> Supervisor:
        return Supervisor(self.paths, self.config, emit=self.emit)

    def ask(self, path: str, **body: Any) -> dict[str, Any]:
        answer = httpx.post(f"http://127.0.0.1:{self.port}{path}", json={"temperature": 0, **body}, timeout=600)
        values: dict[str, Any] = answer.raise_for_status().json()
        return values

    def tokens(self, text: str) -> list[int]:
        tokens: list[int] = self.ask("/tokenize", content=text)["tokens"]
        return tokens

    def note(self, step: Step) -> str:
        return self.steps[step].note if step in self.steps else ""

    def check(self, good: bool, line: str) -> None:
        print(f"  {'ok ' if good else 'NOT'} {line}", flush=True)
        if not good:
            self.failed.append(line)


def text(words: int, seed: int) -> str:
    chosen = random.Random(seed)
    return " ".join(chosen.choice(WORDS) for _ in range(words))


@contextmanager
def bench(model: str, engine: str) -> Iterator[Bench]:
    with tempfile.TemporaryDirectory() as root:
        paths = Paths(Path(root, "config"), Path(root, "state"), Path(root, "cache"))
        config = Config(engines={"lab": engine}, default_engine="lab")
        yield Bench(paths, config, str(Path(model).absolute()), free_port())


async def away_and_back(b: Bench, tokens: int) -> None:
    print("away and back")
    await b.up({})
    talk = [{"role": "system", "content": text(tokens, 1)}, {"role": "user", "content": text(40, 2)}]
    first = b.ask("/v1/chat/completions", messages=talk, max_tokens=24)
    reading = first["timings"]["prompt_ms"] / 1000
    await b.up({"flash-attn": "off"}, "other")
    saved = KvStore(b.paths.kept_kv, 1 << 40).states()[0].tokens
    await b.up({})
    seconds = b.steps[Step.RESTORE_KV].seconds if Step.RESTORE_KV in b.steps else float("inf")
    talk += [{"role": "assistant", "content": first["choices"][0]["message"]["content"] or ""}]
    again = b.ask(
        "/v1/chat/completions", messages=[*talk, {"role": "user", "content": text(20, 3)}], max_tokens=8
    )["timings"]  # fmt: skip
    b.check(
        again["cache_n"] >= 0.99 * saved,
        f"saved {saved} tokens, reused {again['cache_n']} ({again['cache_n'] / saved:.1%}), read {again['prompt_n']}",
    )
    b.check(
        seconds <= reading / 10,
        f"restore {seconds:.3f} s, reading {reading:.2f} s ({seconds / reading:.1%}; {b.note(Step.RESTORE_KV)})",
    )
    await b.supervisor().stop()


async def same_text(b: Bench, answers: int, slots: int) -> None:
    print("same text")
    separate: dict[str, FlagValue] = {
        "parallel": slots, "ctx-size": 512 * slots,
    }  # fmt: skip
    # Not one shared cache: there sums round differently with the cells that a slot has, with and without a restart.
    equal = reused = 0
    for start in range(0, answers, slots):
        seeds = range(start, min(answers, start + slots))
        shutil.rmtree(b.paths.kept_kv, ignore_errors=True)
        await b.up(separate)
        prompts = [b.tokens(f"{seed} {text(280, seed)}") for seed in seeds]
        more = [[*prompt, *b.tokens(f" {text(20, 7000 + at)}")] for at, prompt in enumerate(prompts)]

        def answer(at: int, prompt: list[int], count: int) -> dict[str, Any]:
            return b.ask("/completion", prompt=prompt, n_predict=count, id_slot=at)

        for at, prompt in enumerate(prompts):
            answer(at, prompt, 0)
        unrestored = [answer(at, prompt, 16)["content"] for at, prompt in enumerate(more)]
        for at, prompt in enumerate(prompts):
            b.ask(f"/slots/{at}?action=erase")
            answer(at, prompt, 0)
        await b.up(separate)
        for prompt, expected in zip(more, unrestored, strict=True):
            # as a client that names no slot: the server finds the one that holds its prompt
            reply = b.ask("/completion", prompt=prompt, n_predict=16)
            equal += reply["content"] == expected
            reused += reply["timings"]["cache_n"] >= 0.99 * (len(prompt) - 30)
    b.check(equal == answers, f"{equal} of {answers} restored answers equal the unrestored ones; {reused} reused")
    await b.supervisor().stop()


ALIKE: list[dict[str, FlagValue]] = [
    {}, {"ctx-size": 8192}, {"ctx-size": 1024}, {"ubatch-size": 128}, {"parallel": 4, "kv-unified": True},
    {"parallel": 1}, {"n-gpu-layers": 0}, {"kv-offload": False}, {"flash-attn": "on"}, {"cache-idle-slots": False},
]  # fmt: skip
HYBRID_ALIKE: list[dict[str, FlagValue]] = [{"n-cpu-moe": 1}, {"spec-type": "draft-mtp"}]
UNLIKE: list[tuple[dict[str, FlagValue], str]] = [
    ({"ctx-size": 512}, "the context holds"),
    ({"cache-type-k": "q8_0"}, "K cache f16, now q8_0"),
    ({"cache-type-k": "bf16", "cache-type-v": "bf16"}, "K cache f16, now bf16"),
    ({"flash-attn": "off"}, "flash attention on, now off"),
    ({"parallel": 2}, "1 KV streams, now 2"),
]


async def flags(b: Bench, hybrid: bool) -> None:
    print("flags (a state of about 600 tokens, saved with the defaults)")
    shutil.rmtree(b.paths.kept_kv, ignore_errors=True)
    await b.up({})
    talk = [{"role": "system", "content": text(540, 1)}, {"role": "user", "content": text(40, 2)}]
    first = b.ask("/v1/chat/completions", messages=talk, max_tokens=16)
    answer = first["choices"][0]["message"]["content"] or ""
    await b.supervisor().stop()
    state = KvStore(b.paths.kept_kv, 1 << 40).states()[0]
    aside = b.paths.cache / "aside"
    shutil.copytree(b.paths.kept_kv, aside)
    expectations = [(given, "") for given in [*ALIKE, *(HYBRID_ALIKE if hybrid else ())]] + UNLIKE
    for given, refused in expectations:
        await b.supervisor().stop()
        shutil.rmtree(b.paths.kept_kv)
        shutil.copytree(aside, b.paths.kept_kv)
        name = " ".join(f"{key} {value}" for key, value in given.items()) or "the same flags"
        try:
            await b.up(given)
        except GpuboxError as error:
            b.check(False, f"{name}: {error.message}")
            continue
        note = b.note(Step.RESTORE_KV)
        longer = [
            *talk,
            {"role": "assistant", "content": answer},
            {"role": "user", "content": "and now " + text(20, 3)},
        ]
        if refused:
            own = await server_says(b, aside / state.file)
            b.check(refused in note and own.startswith("HTTP 400"), f"{name}: {note}; llama-server: {own[:60]}")
        else:
            reused = b.ask("/v1/chat/completions", messages=longer, max_tokens=4)["timings"]["cache_n"]
            b.check(reused >= 0.99 * state.tokens, f"{name}: reused {reused} of {state.tokens}; {note}")
    await b.supervisor().stop()


async def server_says(b: Bench, file: Path) -> str:
    """What llama-server answers if the file is restored all the same."""
    shutil.copy(file, b.paths.kept_kv / "forced.kv")
    async with connect(f"http://127.0.0.1:{b.port}") as client:
        try:
            answer = await client.restore_slot(0, "forced.kv", timeout=60.0)
        except GpuboxError as error:
            return error.message.partition(": ")[2]
        return f"it takes {answer.tokens} tokens"


async def measure(model: str, hybrid: bool, arguments: argparse.Namespace) -> list[str]:
    print(f"{Path(model).name}{' (hybrid)' if hybrid else ''}")
    with bench(model, arguments.engine) as b:
        try:
            await away_and_back(b, arguments.tokens)
            await flags(b, hybrid)
            await same_text(b, arguments.answers, arguments.slots)
        finally:
            await b.supervisor().stop()
        return b.failed


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("dense")
    parser.add_argument("hybrid")
    parser.add_argument("--engine", required=True)
    parser.add_argument("--tokens", type=int, default=2000, help="words of the long prompt")
    parser.add_argument("--only", choices=("dense", "hybrid"))
    parser.add_argument("--answers", type=int, default=100)
    parser.add_argument("--slots", type=int, default=10)
    arguments = parser.parse_args()
    os.environ["GPUBOX_WATCHER"] = "0"
    failed = []
    for model, hybrid in ((arguments.dense, False), (arguments.hybrid, True)):
        if arguments.only in (None, "hybrid" if hybrid else "dense"):
            failed += asyncio.run(measure(model, hybrid, arguments))
    print(f"{len(failed)} not as they should be" if failed else "all as it should be")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
