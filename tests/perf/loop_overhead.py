"""The overhead of the agent loop: HumanEval problems with the agentic prompt, five rounds each.

usage: loop_overhead.py URL HUMANEVAL.jsonl[.gz] [--count 20] [--rounds 5] [--max-tokens 512] [--protocol auto]
Prints for each problem the wall time, the server's prefill and generation time, the tool time and the rest (the
overhead); then the sums, and the tokens that were processed again after round 1. The promise: the overhead is at most
5 % of the wall time without tools, and only the end of the template is processed again. Start the server with
--parallel 1, on an idle machine.
"""

from __future__ import annotations

import argparse
import asyncio
import gzip
import json
from pathlib import Path
from typing import Any

from gpubox.agent.conversation import Conversation
from gpubox.agent.events import Message, RoundFinished, RoundTiming, TurnFailed, TurnFinished
from gpubox.agent.loop import AgentLoop
from gpubox.agent.run_tools import Programs, RunTool
from gpubox.agent.settings import AgentSettings
from gpubox.config import Config
from gpubox.sandbox.policy import Policy
from gpubox.sandbox.runner import Sandbox
from gpubox.server.client import LlamaClient, connect

TASK = "Complete this Python function. Write it, run it with a few checks, and fix it until they pass.\n\n{}"
PARTS = ("queue", "prefill_new", "prefill_reprocessed", "thinking", "answer", "tool", "loop")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("url")
    parser.add_argument("problems", type=Path)
    parser.add_argument("--count", type=int, default=20)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--max-tokens", type=int, default=512)
    parser.add_argument("--protocol", default="auto", choices=["auto", "native", "fenced"])
    asyncio.run(measure(parser.parse_args()))


async def measure(arguments: argparse.Namespace) -> None:
    settings = AgentSettings(
        rounds=arguments.rounds,
        max_tokens=arguments.max_tokens,
        protocol=arguments.protocol,
        sampling={"temperature": 0.6, "seed": 1},
    )
    sandbox = Sandbox(Config())
    print(f"sandbox: {await sandbox.confinement()}")
    rounds: list[tuple[int, RoundTiming]] = []
    worst = 0.0
    print(f"{'problem':14} {'rounds':>6} {'wall s':>8} {'server s':>9} {'tool s':>7} {'left %':>7} {'again':>7}  end")
    async with connect(arguments.url) as client:
        for problem in load(arguments.problems)[: arguments.count]:
            timings, end = await turn(client, problem["prompt"], settings, RunTool(Programs(sandbox, policy=Policy())))
            rounds += enumerate(timings, 1)
            wall, server, tool = seconds(timings)
            share = (wall - server - tool) / max(wall - tool, 1e-9)
            worst = max(worst, share)
            again = sum(timing.prefill_reprocessed_tokens or 0 for timing in timings[1:])
            name = problem["task_id"]
            print(f"{name:14} {len(timings):6} {wall:8.2f} {server:9.2f} {tool:7.3f} {share:7.2%} {again:7}  {end}")
    report([timing for _, timing in rounds], [timing for number, timing in rounds if number > 1], worst)


def load(path: Path) -> list[dict[str, Any]]:
    with gzip.open(path, "rt") if path.suffix == ".gz" else path.open() as file:
        return [json.loads(line) for line in file]


async def turn(
    client: LlamaClient, prompt: str, settings: AgentSettings, tool: RunTool
) -> tuple[list[RoundTiming], str]:
    """The timings of one problem's rounds, and why the turn ended. Each problem is a conversation of its own."""
    timings: list[RoundTiming] = []
    end = ""
    conversation = Conversation([Message("user", TASK.format(prompt))])
    async for event in AgentLoop().run(conversation, settings, [tool], client):
        if isinstance(event, RoundFinished):
            timings.append(event.timing)
        elif isinstance(event, TurnFinished):
            end = event.reason
        elif isinstance(event, TurnFailed):
            end = event.message
    return timings, end


def seconds(timings: list[RoundTiming]) -> tuple[float, float, float]:
    """Wall, server (prefill and generation) and tool seconds."""
    server = sum(
        t.prefill_new_seconds + t.prefill_reprocessed_seconds + t.thinking_seconds + t.answer_seconds for t in timings
    )
    return sum(t.wall_seconds for t in timings), server, sum(t.tool_seconds for t in timings)


def report(rounds: list[RoundTiming], later: list[RoundTiming], worst: float) -> None:
    wall, server, tool = seconds(rounds)
    print("\nall rounds:")
    for part in PARTS:
        spent = sum(getattr(timing, f"{part}_seconds") for timing in rounds)
        print(f"  {part:15} {spent:8.3f} s  {spent / wall:7.2%}")
    generated = sum(timing.generated_tokens for timing in rounds)
    again = sum(timing.prefill_reprocessed_tokens or 0 for timing in later)
    most = max((timing.prefill_reprocessed_tokens or 0 for timing in later), default=0)
    cached = sum(timing.cached_tokens or 0 for timing in later)
    left = wall - server - tool
    print(f"wall {wall:.2f} s = server {server:.2f} + tools {tool:.2f} + left {left:.3f}")
    print(f"overhead: {left / (wall - tool):.2%} of the wall without tools ({left / wall:.2%} with), worst {worst:.2%}")
    print(f"after round 1: {again} tokens processed again in {len(later)} rounds (most {most}), {cached} were cached")
    print(f"generated {generated} tokens, effective {generated / wall:.1f} tok/s")


main()
