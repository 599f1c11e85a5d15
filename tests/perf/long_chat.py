"""What a long chat costs in prefill: 40 rounds in a small context, on a real llama-server.

usage: long_chat.py LLAMA_SERVER MODEL.gguf [--context 8192] [--turns 8] [--rounds 5] [--no-reuse]
A proxy passes every request to the real server, which reads the prompt, and answers with a scripted text in the
model's place; it then has the server read that text too, as if it had written it. Printed: each compaction, the tokens
read again outside of them (the promise: none but the end of a template), the extra prefill (at most 5 %), and at each
turn's end how much of the prompt is cached after one or two turns were taken back (at least 99 %).
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import subprocess
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

from gpubox.agent.compaction import SUMMARY_REQUEST, compact, compaction_cost, read_ahead, wants_compaction
from gpubox.agent.conversation import Conversation
from gpubox.agent.events import AgentEvent, Compacted, Message, RoundFinished, TurnFailed, TurnStarted
from gpubox.agent.loop import AgentLoop
from gpubox.agent.settings import AgentSettings
from gpubox.server.client import LlamaClient, connect
from tests.ports import free_port
from tests.scripted_server import Play, ScriptedServer, says
from tests.unit.agent_turns import Echo

SUMMARY = (
    "Task: make durations.py parse hours and days. Decided: keep parse() as the only entry, no new dependency. Found: "
    "the table of units is in UNITS, the tests are in tests/test_durations.py and read samples/durations.txt. Changed: "
    "parse() and UNITS. Left to do: the error text for an empty string, and the README's example."
)

AFTER = SUMMARY_REQUEST[:30]


class RealServer(ScriptedServer):
    """The scripted server, with the prefill of a real one."""

    def __init__(self, real: str, answers: list[str], *, reuse: bool) -> None:
        super().__init__()
        self.real, self.answers, self.reuse = real, answers, reuse
        self.asides: list[int] = []
        """Tokens that the requests of compactions read."""
        self._props = json.loads(urllib.request.urlopen(f"{real}/props").read())

    async def _play(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        body = self.bodies[-1]
        last, ahead = str(body["messages"][-1]["content"]), body.get("n_cache_reuse")
        if not self.reuse:
            body.pop("n_cache_reuse", None)
        try:
            values = await asyncio.to_thread(
                self._post, "/v1/chat/completions", {**body, "stream": False, "max_tokens": 1}
            )
        except urllib.error.HTTPError as error:
            self.plays = [Play(status=error.code, body=error.read())]
            await super()._play(reader, writer)
            return
        read, reused = values["timings"]["prompt_n"], values["timings"]["cache_n"]
        aside = AFTER in last
        if aside or ahead:
            new = last.partition(AFTER)[0] if aside else ""  # outputs that had to be read anyway
            self.asides.append(
                read - len((await asyncio.to_thread(self._post, "/tokenize", {"content": new}))["tokens"])
            )
        answer = SUMMARY if aside else "." if ahead else self.answers.pop(0)
        if not ahead:
            prompt = await asyncio.to_thread(self._post, "/apply-template", {"messages": body["messages"]})
            whole = {"prompt": prompt["prompt"] + answer, "n_predict": 1, "cache_prompt": True}
            await asyncio.to_thread(self._post, "/completion", whole)
        tokens = await asyncio.to_thread(self._post, "/tokenize", {"content": answer})
        pieces = [answer[:1], *[""] * (len(tokens["tokens"]) - 1), answer[1:]]
        self.plays = [says([piece for piece in pieces if piece] or ".", prompt=read, cached=reused)]
        count = len(tokens["tokens"])
        last_lines = self.plays[0].lines
        self.plays[0].lines = [line.replace(b'"predicted_n": 2', b'"predicted_n": %d' % count) for line in last_lines]
        await super()._play(reader, writer)

    def _post(self, path: str, body: dict[str, Any]) -> Any:
        content = json.dumps(body).encode()
        request = urllib.request.Request(f"{self.real}{path}", content, {"Content-Type": "application/json"})
        return json.load(urllib.request.urlopen(request, timeout=600))


def script(turns: int, rounds: int) -> list[str]:
    """Programs, and at the end of each turn an answer."""
    answers = []
    for turn in range(turns):
        for number in range(rounds - 1):
            lines = "\n".join(f"check_{turn}_{number}_{line} = parse('{line + number}h {turn}m')" for line in range(4))
            answers.append(f"I look at part {number} of step {turn}.\n```python\n{lines}\nprint(check)\n```\n")
        answers.append(f"Step {turn} is done: the units are read from the table, and the checks of this step pass. ")
    return answers


class Output(Echo):
    """About 300 tokens in a context of 8k, other ones each time."""

    def __init__(self, context: int) -> None:
        super().__init__()
        self.lines = 25 * context // 8192

    async def run(self, call: Any) -> Any:
        lines = [f"{hash((call.code, line)) % 9973} job {line} took {line % 9}h" for line in range(self.lines)]
        self.text = "\n".join(lines)
        return await super().run(call)


async def measure(real: str, context: int, turns: int, rounds: int, *, reuse: bool) -> None:
    server = RealServer(real, script(turns, rounds), reuse=reuse)
    conversation, settings = (
        Conversation([Message("user", "AGENTS.md\n" + "Keep it short. " * 60, fixed=True)]),
        AgentSettings(),
    )
    read = again = asides = compactions = 0
    tools = [Output(context)]
    starts: list[list[Message]] = []
    least_cached = 1.0
    before: list[Any] = []
    changed_bytes = 0
    async with server, connect(server.url, timeout=300) as client:
        for turn in range(turns):
            starts.append(list(conversation.messages))
            conversation.add(Message("user", f"Step {turn}: look at the next unit, and check it."))
            events: list[AgentEvent] = []
            async for event in AgentLoop().run(conversation, settings, tools, client):
                events.append(event)
                if isinstance(event, RoundFinished):
                    read += event.timing.prefill_new_tokens or 0
                    again += event.timing.prefill_reprocessed_tokens or 0
                    if event.timing.reread_from and (event.timing.prefill_reprocessed_tokens or 0) > 8:
                        print("   read again:", event.timing.prefill_reprocessed_tokens, event.timing.reread_from)
                if isinstance(event, Compacted):
                    compactions += 1
                    print(f"turn {turn}: compacted in the turn, summary {event.timing.prefill_new_tokens} tokens read")
            assert not isinstance(events[-1], TurnFailed), events[-1]
            assert any(isinstance(event, TurnStarted) for event in events)
            if any(isinstance(event, Compacted) for event in events):
                starts.clear()
            for start in starts[:-3:-1]:
                least_cached = min(least_cached, await cached_after(start, server, client, settings, tools))
            await cached_after(conversation.messages, server, client, settings, tools)
            if wants_compaction(conversation, context):
                starts.clear()
                cost = compaction_cost(conversation, context, 400.0)
                held = conversation.server_cache_tokens
                await compact(conversation, settings, tools, client, lambda _: None)
                timing = await read_ahead(conversation, settings, tools, client)
                compactions += 1
                print(
                    f"turn {turn}: compacted from {held:,} to {conversation.server_cache_tokens:,} tokens, read again "
                    f"{timing.prefill_reprocessed_tokens} (at most {cost.read_tokens}; {cost.freed_tokens:,} are free)"
                )
    for body in server.bodies:
        now = body["messages"]
        same = json.dumps(now).startswith(json.dumps(before)[:-1]) if before else True
        ahead = "n_cache_reuse" in body or str(now[-1]["content"]) == "..."
        aside = AFTER in str(now[-1]["content"])
        if not same and not ahead and not aside:
            changed_bytes += len(json.dumps(before))
        before = [] if ahead or aside else now
    asides = sum(server.asides)
    print(
        f"context {context}: {turns * rounds} rounds, {read:,} tokens read; {compactions} compactions: {asides:,} more"
    )
    print(
        f"read again outside of compactions: {again} tokens, {changed_bytes} bytes; extra {(asides + again) / read:.1%}"
    )
    print(f"cached after an undo, a branch or a rewind: at least {least_cached:.1%}")


async def cached_after(
    start: list[Message], server: RealServer, client: LlamaClient, settings: AgentSettings, tools: list[Output]
) -> float:
    """Which share of the messages ``start`` is cached when the next question follows them."""
    question = Message("user", "Do it in another way, please.")
    server.answers.insert(0, "Yes.")
    sent = len(server.bodies)
    async for event in AgentLoop().run(Conversation([*start, question]), settings, tools, client):
        if isinstance(event, RoundFinished):
            cached = event.timing.cached_tokens or 0
    kept = server.bodies[sent]["messages"][:-1]
    del server.bodies[sent:]
    text = (await asyncio.to_thread(server._post, "/apply-template", {"messages": kept}))["prompt"]
    tokens = (await asyncio.to_thread(server._post, "/tokenize", {"content": text}))["tokens"]
    return cached / len(tokens)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("server", type=Path)
    parser.add_argument("model", type=Path)
    parser.add_argument("--context", type=int, default=8192)
    parser.add_argument("--turns", type=int, default=8)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--no-reuse", action="store_true")
    arguments = parser.parse_args()
    port = free_port()
    command = [arguments.server, "-m", arguments.model, "--port", str(port), "-c", str(arguments.context), "-np", "1"]
    process = subprocess.Popen([*map(str, command), "-t", "2", "--no-webui", "--jinja"], stdout=-3, stderr=-3)
    url = f"http://127.0.0.1:{port}"
    try:
        for _ in range(600):
            with contextlib.suppress(OSError):
                urllib.request.urlopen(f"{url}/health")
                break
            time.sleep(0.1)
        asyncio.run(measure(url, arguments.context, arguments.turns, arguments.rounds, reuse=not arguments.no_reuse))
    finally:
        process.terminate()
        process.wait()


if __name__ == "__main__":
    main()
