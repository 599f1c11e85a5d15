"""Whether the chat stays smooth: a paced server streams Markdown into the real screen, in a real pty.

usage: python -m tests.perf.chat_lag [--tokens 10000] [--rate 100] [--size 120x36] [--rest 10]
Prints how late the UI loop is (a 10 ms sleep that takes longer), and the share of one core: at rest beside the same
server, and while the answer streams. The server is another process, so its cost is not counted.
"""

from __future__ import annotations

import argparse
import asyncio
import fcntl
import json
import multiprocessing
import os
import pty
import random
import select
import signal
import socket
import struct
import tempfile
import termios
import time
from pathlib import Path
from typing import Any

from tests.scripted_server import chunk, timings

PROMPT = 900


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--tokens", type=int, default=10_000)
    parser.add_argument("--rate", type=float, default=100.0)
    parser.add_argument("--size", default="120x36")
    parser.add_argument("--rest", type=float, default=10.0)
    asked = parser.parse_args()
    columns, rows = map(int, asked.size.split("x"))
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    server = multiprocessing.Process(target=serve, args=(port, asked.tokens, asked.rate), daemon=True)
    server.start()
    with tempfile.TemporaryDirectory() as folder:
        told = Path(folder) / "told.json"
        pid, terminal = pty.fork()
        if pid == 0:
            os.environ |= {"TERM": "xterm-256color", "COLORTERM": "truecolor", "HOME": folder}
            os.environ |= {f"XDG_{name}_HOME": f"{folder}/{name}" for name in ("CONFIG", "STATE", "CACHE")}
            watch(f"http://127.0.0.1:{port}", told, asked.rest)
            os._exit(0)
        fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
        sent, limit = 0, time.monotonic() + asked.rest + 4 * asked.tokens / asked.rate + 60
        while not told.exists() and time.monotonic() < limit:
            sent += drain(terminal, 1.0)
        found = json.loads(told.read_text()) if told.exists() else {"problem": "the turn did not end"}
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
    server.terminate()
    found["bytes_to_terminal"] = sent
    print(json.dumps(found, indent=1))


def watch(url: str, told: Path, rest: float) -> None:
    """Opens the screen, asks, and writes down what it cost."""
    from textual.pilot import Pilot

    from gpubox.agent.chat_log import ChatSettings
    from gpubox.config import Config
    from gpubox.paths import Paths
    from gpubox.tui.app import GpuboxApp
    from gpubox.tui.services import LocalServices

    app = GpuboxApp(LocalServices(Paths.default(), Config(), url))

    async def drive(pilot: Pilot[Any]) -> None:
        await until(lambda: app.bridge.overview and app.bridge.overview.status.up)
        app.action_show("chat")
        await until(lambda: app.chat and app.chat.is_current and app.chat.sandbox)
        assert app.chat
        await asyncio.sleep(2)  # what is imported late is in by then
        await app.chat.change_settings(ChatSettings(tools=False))  # the code in it is to be shown, not run
        at_rest = await measured(rest)
        app.chat.ask("Explain everything.")
        late: list[float] = []
        listening = asyncio.create_task(listen(late))
        began, used = time.monotonic(), time.process_time()
        await until(lambda: app.chat and app.chat.runner.turn and app.chat.runner.turn.over)
        seconds = time.monotonic() - began
        share = (time.process_time() - used) / seconds
        listening.cancel()
        late.sort()
        turn = app.chat.runner.turn
        assert turn
        values: dict[str, Any] = {
            "tokens": turn.progress.deltas, "lines": app.chat.transcript.virtual_size.height,
            "seconds": round(seconds, 1),
            "core_at_rest": round(at_rest, 4), "core_streaming": round(share, 4),
            "core_added": round(share - at_rest, 4),
            "late_ms_p50": ms(late, 0.5), "late_ms_p99": ms(late, 0.99), "late_ms_max": ms(late, 1.0),
        }  # fmt: skip
        told.with_suffix(".part").write_text(json.dumps(values))
        told.with_suffix(".part").rename(told)

    app.run(auto_pilot=drive)


def drain(terminal: int, seconds: float) -> int:
    """Reads what comes for ``seconds``; how many bytes that were."""
    end, count = time.monotonic() + seconds, 0
    while (left := end - time.monotonic()) > 0:
        if select.select([terminal], [], [], left)[0]:
            try:
                count += len(os.read(terminal, 65536))
            except OSError:
                break
    return count


async def until(true: Any) -> None:
    while not true():
        await asyncio.sleep(0.05)


async def measured(seconds: float) -> float:
    """The share of a core while nothing is asked."""
    used = time.process_time()
    await asyncio.sleep(seconds)
    return (time.process_time() - used) / seconds


async def listen(late: list[float]) -> None:
    """How much longer than 10 ms each sleep of 10 ms took."""
    loop = asyncio.get_running_loop()
    while True:
        began = loop.time()
        await asyncio.sleep(0.01)
        late.append(loop.time() - began - 0.01)


def ms(sorted_: list[float], share: float) -> float:
    return round(sorted_[min(len(sorted_) - 1, int(share * len(sorted_)))] * 1000, 2)


def document(tokens: int) -> list[str]:
    """So many pieces of Markdown: paragraphs, lists, code, tables. Its words do not repeat: the loop would stop it."""
    choose = random.Random(7)

    def word() -> str:
        made = "".join(choose.choices("abcdefghilmnoprstuvw", k=choose.randint(3, 9)))
        return choose.choice([made] * 9 + [f"`{made}`", f"**{made}**", f"*{made}*"]) + " "

    pieces: list[str] = []
    while len(pieces) < tokens:
        kind = choose.randrange(5)
        if kind == 0:
            pieces += ["## ", word(), "heading\n", "\n"]
        elif kind == 1:
            for _ in range(choose.randint(3, 9)):
                pieces += ["- ", *(word() for _ in range(9)), "\n"]
            pieces.append("\n")
        elif kind == 2:
            pieces += ["```", "python\n"]
            for number in range(choose.randint(5, 60)):
                pieces += [word().strip("`* "), " = ", "compute(", f"{number}, ", f'"{word()}"', ")  ", "# why\n"]
            pieces += ["```", "\n\n"]
        elif kind == 3:
            pieces += ["| name | value |\n", "|---|---|\n"]
            for number in range(choose.randint(3, 12)):
                pieces += ["| ", word(), "| ", f"{number * 7} ", "|\n"]
            pieces.append("\n")
        else:
            pieces += [word() for _ in range(choose.randint(30, 200))]
            pieces.append("\n\n")
    return pieces[:tokens]


def serve(port: int, tokens: int, rate: float) -> None:
    """A llama-server that says ``document`` at ``rate`` tokens a second."""
    pieces = document(tokens)
    props = {"chat_template_caps": {}, "default_generation_settings": {"n_ctx": 131072}, "build_info": "b11434-perf"}

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).decode()
        length = next((int(s.split(":")[1]) for s in head.lower().splitlines() if s.startswith("content-len")), 0)
        await reader.readexactly(length)
        if head.startswith("GET"):
            known = {"/health": {"status": "ok"}, "/props": props, "/slots": []}
            body = json.dumps(known.get(head.split()[1], {})).encode()
            writer.write(b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Type: application/json\r\n")
            writer.write(b"Content-Length: %d\r\n\r\n" % len(body) + body)
        else:
            writer.write(b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Type: text/event-stream\r\n\r\n")
            began = time.monotonic()
            for number, piece in enumerate(pieces, 1):
                await asyncio.sleep(max(0.0, began + number / rate - time.monotonic()))
                writer.write(chunk({"content": piece}, timings=timings(PROMPT, 0, number)))
                await writer.drain()
            writer.write(
                chunk({}, finish="stop") + chunk(None, timings=timings(PROMPT, 0, tokens)) + b"data: [DONE]\n\n"
            )
        await writer.drain()
        writer.close()

    async def run() -> None:
        server = await asyncio.start_server(handle, "127.0.0.1", port)
        await server.serve_forever()

    asyncio.run(run())


if __name__ == "__main__":
    main()
