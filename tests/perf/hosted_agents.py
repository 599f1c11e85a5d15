"""Real coding agents, hosted: a scripted model behind the real gateway has each read, edit and run, be denied a
permission, be stopped, come back in another process, and be undone.

    python -m tests.perf.hosted_agents [--times N] [--open] [--real URL] [--tools] AGENT...

``--open``: without walls. ``--tools``: shows the tools of the first request. ``--real``: a llama-server that reads
every prompt of the chat API; its usage and timings are passed on. The programs are looked for on PATH. A HOME of one's
own is advised.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
import time
from contextlib import aclosing
from http.server import ThreadingHTTPServer
from pathlib import Path

from gpubox.acp.host import AgentOnBox, host_agents
from gpubox.acp.hosted_turn import Started
from gpubox.agent.chat import Chat
from gpubox.agent.chat_log import ChatSettings
from gpubox.agent.events import AgentEvent, QuestionAsked, RoundFinished, ToolFinished, TurnFailed, TurnFinished
from gpubox.agent.hosting import HostedTurn
from gpubox.agent.tools import Answer, OwnerQuestion
from gpubox.config import load_config
from gpubox.gateway.background import start_detached
from gpubox.gateway.gateway_client import stop
from gpubox.paths import Paths
from tests.hosted_process import start_open
from tests.scripted_model import Model

BROKEN = "def add(a, b):\n    return a - b\n"


async def opened(box: AgentOnBox, turn: HostedTurn) -> Started:
    home = Path(os.environ["HOME"]) / "homes" / box.agent.name
    start = box.prepare(home, str(home), box.target.base_url)
    return await start_open(turn, start.argv, {**start.env, "HOME": str(home)}, turn.chat.with_suffix(".open"))


class Desk:
    def __init__(self, paths: Paths, agent: str, folder: Path, *, is_open: bool) -> None:
        self.paths, self.agent, self.folder, self.config = paths, agent, folder, load_config(paths)
        self.start, self.answer = (opened if is_open else None), Answer(True)
        self.asked: list[OwnerQuestion] = []

    async def ask(self, question: OwnerQuestion) -> Answer:
        self.asked.append(question)
        return self.answer

    def chat(self, name: str = "") -> Chat:
        host = host_agents(self.paths, self.config, self.start)
        chat = Chat(self.paths, self.config, name, ask=self.ask, host=host, any_workdir=True)
        if not name:
            chat.change_settings(ChatSettings(workdir=str(self.folder), agent=self.agent))
        return chat


async def send(chat: Chat, text: str, stop_after: str = "") -> list[AgentEvent]:
    events = []
    async with aclosing(chat.send(text)) as turn:
        async for event in turn:
            events.append(event)
            if stop_after and type(event).__name__ == stop_after:
                chat.stop()
                stop_after = ""
    return events


def ended(events: list[AgentEvent]) -> str:
    last = events[-1]
    return (
        last.reason
        if isinstance(last, TurnFinished)
        else f"{last.message} {last.hint}"
        if isinstance(last, TurnFailed)
        else "?"
    )


async def one(paths: Paths, agent: str, folder: Path, *, is_open: bool) -> dict[str, str]:
    (folder / "calc.py").write_text(BROKEN)
    git = "git init -q . && git add . && git -c user.name=a -c user.email=a@example.org commit -qm one"
    await asyncio.to_thread(subprocess.run, git, shell=True, cwd=folder, check=True)
    desk, told = Desk(paths, agent, folder, is_open=is_open), dict[str, str]()
    chat = desk.chat()
    began = time.monotonic()
    try:
        events = await send(chat, "TASK FIX: remember that add is wrong, and mend it")
        told["first"] = f"{time.monotonic() - began:.1f} s"
        outputs = [event.output for event in events if isinstance(event, ToolFinished)]
        tools = [output.ok for output in outputs]
        rounds = sum(isinstance(event, RoundFinished) for event in events)
        changed = [change.path for change in await chat.changes()]
        ran = any(line in ("3", "Output: 3") for output in outputs for line in output.text.split("\n"))
        good = ended(events) == "answered" and len(tools) >= 3 and rounds >= 4 and ran
        told["turn"] = "ok" if good else f"{ended(events)}, tools {tools}, {rounds} rounds, ran {ran}"
        told["edit"] = "ok" if changed == ["calc.py"] and (folder / "calc.py").read_text() == BROKEN else f"{changed}"
        desk.answer = Answer(False)
        events = await send(chat, "TASK RUN: make a file")
        asked = any(isinstance(event, QuestionAsked) for event in events)
        files = [change.path for change in await chat.changes()]
        told["denied"] = "ok" if asked and "denied.txt" not in files else f"asked {asked}, {files}, {ended(events)}"
        desk.answer = Answer(True)
        began = time.monotonic()
        events = await send(chat, "TASK SLOW: speak", "TextDelta")
        early = "Done" not in getattr(events[-1], "text", "")
        told["cancel"] = "ok" if ended(events) == "stopped" and early else f"{ended(events)}, early {early}"
        told["cancel s"] = f"{time.monotonic() - began:.1f}"
        name = chat.name
        await chat.close()
        chat = desk.chat(name)
        events = await send(chat, "TASK NOTHING: what do you remember?")
        text = getattr(events[-1], "text", "")
        told["resume"] = (
            "ok"
            if ended(events) == "answered"
            and "1 to remember" in text.replace("2 to", "1 to").replace("3 to", "1 to").replace("4 to", "1 to")
            else f"{ended(events)} {text}"
        )
        while chat.log.head:
            await chat.undo()
        told["undo"] = "ok" if not await chat.changes() else "changes are left"
    finally:
        await chat.close()
    return told


async def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("agents", nargs="+")
    parser.add_argument("--times", type=int, default=1)
    parser.add_argument("--open", action="store_true")
    parser.add_argument("--real", default="")
    parser.add_argument("--tools", action="store_true")
    arguments = parser.parse_args()
    Model.real, Model.show_tools = arguments.real, arguments.tools
    server = ThreadingHTTPServer(("127.0.0.1", 0), Model)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    paths = Paths.default()
    paths.config.mkdir(parents=True, exist_ok=True)
    profiles = paths.config / "profiles"
    profiles.mkdir(exist_ok=True)
    (profiles / "box.toml").write_text(f'upstream = "http://127.0.0.1:{server.server_port}"\nmodel = "box"\n')
    asks = json.dumps({"bash": "ask"})
    paths.config_file.write_text(f"[agents.opencode]\nenv = {{ OPENCODE_PERMISSION = '{asks}' }}\n")
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    await asyncio.to_thread(start_detached, paths, "127.0.0.1", port)
    try:
        for agent in arguments.agents:
            for number in range(arguments.times):
                folder = Path(tempfile.mkdtemp(prefix="hosted-"))
                try:
                    print(
                        agent,
                        number + 1,
                        json.dumps(await one(paths, agent, folder, is_open=arguments.open)),
                        flush=True,
                    )
                finally:
                    shutil.rmtree(folder)
    finally:
        await asyncio.to_thread(stop, paths)
    return 0


if __name__ == "__main__":
    sys.exit(asyncio.run(main()))
