"""What the walls cost a turn of a whole agent: the same scripted turn bare and confined, in turns, and the medians.

    python -m tests.perf.hosted_turn HOME TIMES FOLDER[:FOLDER] PROGRAM [ARGUMENT...]

HOME: a folder for the agent's state, used by both and warm after the first turn. FOLDER: where the agent is installed.
The model is a script of three calls and an answer, for agents that speak ACP; opencode and Qwen Code are pointed at it.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import shutil
import signal
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from gpubox.acp.relay import GATEWAY, Relay
from gpubox.config import Config
from gpubox.json_rpc import Peer
from gpubox.sandbox.policy import Policy
from gpubox.sandbox.resident import start_resident
from gpubox.sandbox.runner import Sandbox
from gpubox.sandbox.spawn import ResidentProgram

PORT = 18477
CODE = "def add(a, b):\n    return a - b\n"
URL = f"http://127.0.0.1:{PORT}/v1"
PROVIDER = {"npm": "@ai-sdk/openai-compatible", "options": {"baseURL": URL, "apiKey": "x"}, "models": {"box": {}}}
OPENCODE = {"model": "box/box", "share": "disabled", "autoupdate": False, "provider": {"box": PROVIDER}}
AGENT_ENV = {
    "OPENCODE_CONFIG_CONTENT": json.dumps(OPENCODE), "OPENCODE_DISABLE_MODELS_FETCH": "1",
    "OPENAI_BASE_URL": URL, "OPENAI_API_KEY": "x", "OPENAI_MODEL": "box", "NO_BROWSER": "1",
}  # fmt: skip


async def model(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Asks for a read, an edit and a command, and then answers."""
    try:
        while True:
            head = (await reader.readuntil(b"\r\n\r\n")).decode()
            length = next((int(f.split(":")[1]) for f in head.split("\r\n") if f.lower().startswith("content-len")), 0)
            body = json.loads(await reader.readexactly(length) or b"{}")
            writer.write(b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Type: text/event-stream\r\n\r\n")
            writer.write("".join(f"data: {event}\n\n" for event in (*answer(body), "[DONE]")).encode())
            await writer.drain()
            break
    except (asyncio.IncompleteReadError, OSError):
        pass
    writer.close()


def answer(body: dict[str, Any]) -> list[str]:
    names = [tool["function"]["name"] for tool in body.get("tools") or ()]
    done = sum(message.get("role") == "tool" for message in body.get("messages", ()))
    deltas: list[tuple[dict[str, Any], str | None]] = [({"role": "assistant", "content": "Done."}, None), ({}, "stop")]
    if names and done < 3:
        path = f"{CWD[0]}/calc.py"
        where = {"file_path": path, "path": path, "filePath": path, "absolute_path": path}
        old, new = "return a - b", "return a + b"
        call = (
            (next(n for n in ("read_file", "read") if n in names), where),
            ("edit", where | {"old_string": old, "new_string": new, "oldString": old, "newString": new}),
            (next(n for n in ("run_shell_command", "bash") if n in names),
             {"command": "python3 -c 'import calc; print(calc.add(1, 2))'", "description": "run",
              "is_background": False}),
        )[done]  # fmt: skip
        function = {"name": call[0], "arguments": json.dumps(call[1])}
        calls = [{"index": 0, "id": f"c{done}", "type": "function", "function": function}]
        deltas = [({"role": "assistant", "tool_calls": calls}, None), ({}, "tool_calls")]
    usage = {"prompt_tokens": 1000, "completion_tokens": 20, "total_tokens": 1020}
    return [
        json.dumps({
            "id": "x", "object": "chat.completion.chunk", "created": 0, "model": "box", "usage": usage,
            "choices": [{"index": 0, "delta": delta, "finish_reason": reason}],
        })
        for delta, reason in deltas
    ]  # fmt: skip


CWD = [""]
"""Where the agent works now."""


async def converse(streams: tuple[asyncio.StreamReader, asyncio.StreamWriter], cwd: str) -> tuple[float, float]:
    """Seconds until the session is there, and of its one turn."""
    CWD[0] = cwd

    async def respond(method: str, params: dict[str, Any]) -> Any:
        assert method == "session/request_permission", method
        options = [option["optionId"] for option in params["options"] if "allow" in option["kind"]]
        return {"outcome": {"outcome": "selected", "optionId": options[0]}}

    peer = Peer(*streams, respond, lambda *_: None, title="the agent")
    running = asyncio.create_task(peer.run())
    began = time.monotonic()
    await peer.request("initialize", {"protocolVersion": 1, "clientCapabilities": {}}, seconds=60)
    session = await peer.request("session/new", {"cwd": cwd, "mcpServers": []}, seconds=60)
    ready = time.monotonic()
    prompt = [{"type": "text", "text": "Fix add in calc.py."}]
    await peer.request("session/prompt", {"sessionId": session["sessionId"], "prompt": prompt}, seconds=120)
    ended = time.monotonic()
    running.cancel()
    return ready - began, ended - ready


async def bare(argv: list[str], home: Path, folder: Path) -> tuple[float, float]:
    env = AGENT_ENV | {"HOME": str(home), "PATH": os.environ["PATH"]}
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(
        *argv, stdin=pipe, stdout=pipe, stderr=asyncio.subprocess.DEVNULL, cwd=folder, env=env, limit=1 << 25,
        start_new_session=True,
    )  # fmt: skip
    assert process.stdin and process.stdout
    try:
        return await converse((process.stdout, process.stdin), str(folder))
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        await process.wait()


async def confined(
    sandbox: Sandbox, argv: list[str], home: Path, folder: Path, folders: list[Path]
) -> tuple[float, float]:
    chat = folder.parent / "chat"
    (chat / "1/up").mkdir(parents=True)
    async with Relay(("127.0.0.1", PORT)) as relay:
        program = ResidentProgram(tuple(argv), tuple(folders), home, AGENT_ENV, relay.folder, {PORT: GATEWAY})
        began = time.monotonic()
        resident = await start_resident(sandbox, program, Policy.for_agents(folder), chat)
        try:
            await resident.begin_turn((chat / "1/up",))
            walls = time.monotonic() - began
            session, turn = await converse((resident.reader, resident.writer), "/workspace")
            began = time.monotonic()
            await resident.end_turn()
            walls += time.monotonic() - began
            assert (chat / "1/up/calc.py").exists(), resident.last_words
            return session, turn + walls
        except Exception:
            print(resident.last_words[-2000:], resident.why)
            raise
        finally:
            await resident.close()


@contextlib.contextmanager
def new_project() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="hosted-") as root:
        Path(root).chmod(0o755)
        folder = Path(root, "work")
        folder.mkdir()
        (folder / "calc.py").write_text(CODE)
        yield folder


async def main(home: Path, times: int, folders: list[Path], argv: list[str]) -> None:
    sandbox = Sandbox(Config())
    print((await sandbox.confinement()).detail)
    seconds: dict[str, list[tuple[float, float]]] = {"bare": [], "confined": []}
    async with await asyncio.start_server(model, "127.0.0.1", PORT):
        for number in range(times + 1):
            for way in seconds:
                with new_project() as folder:
                    if way == "bare":
                        taken = await bare(argv, home / "bare", folder)
                    else:
                        taken = await confined(sandbox, argv, home / "confined", folder, folders)
                    if number:  # the first warms both homes
                        seconds[way].append(taken)
    medians = {way: [statistics.median(each) for each in zip(*values, strict=True)] for way, values in seconds.items()}
    for way, (session, turn) in medians.items():
        print(f"{way:10} session {session:.2f} s, turn {turn:.2f} s, together {session + turn:.2f} s")
    whole = [sum(medians[way]) for way in seconds]
    print(f"turn {medians['confined'][1] / medians['bare'][1]:.2f}x, together {whole[1] / whole[0]:.2f}x")


if __name__ == "__main__":
    program = shutil.which(sys.argv[4]) or sys.argv[4]
    (Path(sys.argv[1]) / "bare").mkdir(parents=True, exist_ok=True)
    installed = [Path(folder) for folder in sys.argv[3].split(":")]
    asyncio.run(main(Path(sys.argv[1]), int(sys.argv[2]), installed, [program, *sys.argv[5:]]))
