"""Tools of the servers under ``[mcp]`` in config.toml, which the chat calls by name: ``mcp SERVER.TOOL {...}``.

A client of the Model Context Protocol for tools alone: JSON-RPC, a message a line, over the stdio of a process
(modelcontextprotocol.io, versions 2024-11-05 to 2025-11-25). A server may die, hang, flood, or write what is no
protocol: each is a sentence. It is read only while a request waits, so a flood stands still between two requests.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import select
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import IO, Any, TypeVar

from gpubox.agent.tools import ToolOutput
from gpubox.children import guarded
from gpubox.concurrency import run_in_thread
from gpubox.config import McpServer
from gpubox.errors import GpuboxError
from gpubox.hardware.process import descendants, kill_group
from gpubox.sanitize import sanitize_line
from gpubox.storage import json_line, read_json, write_atomically
from gpubox.toml_table import closest_match
from gpubox.units import KIB, MIB

T = TypeVar("T")

PROMPT = "The command `mcp` lists tools of the owner's servers."
"""For the system prompt, if config.toml names servers."""
VERSION = "2025-06-18"
"""What is offered. A server may answer with any other: tools are listed and called alike in all."""
START_SECONDS, CALL_SECONDS, EXIT_SECONDS = 60.0, 120.0, 1.0
"""``npx -y`` downloads a server at its first start."""
MAX_ANSWER_BYTES, MAX_LOG_BYTES = 16 * MIB, 64 * KIB
_LINE_COST = KIB
"""What a line counts besides its bytes: a million empty lines must end, too."""
MAX_PAGES, MAX_LISTING = 50, 6000
"""Pages of a list of tools; its characters, with descriptions."""
_NO_SUCH_METHOD = {"code": -32601, "message": "gpubox offers no such method."}
_USAGE = "`mcp SERVER.TOOL` explains a tool, `mcp SERVER.TOOL {JSON of its arguments}` calls it."

Tools = dict[str, dict[str, Any]]
"""Name -> the tool, as its server describes it."""


class McpServers:
    """The owner's servers, for one chat. Each starts at its first use; ``close`` ends them all."""

    def __init__(self, servers: Mapping[str, McpServer], logs: Path) -> None:
        """``logs``: the folder that gets the end of their stderr, a file for each."""
        self._servers = {name: _Server(name, each, logs / f"mcp-{name}.log") for name, each in servers.items()}

    def question(self, command: str) -> str:
        """What the owner must allow before ``run``: a sentence; empty: nothing."""
        words = command.split(maxsplit=2)
        server = self._servers.get(words[1].partition(".")[0]) if len(words) == 3 and words[0] == "mcp" else None
        return f"Call {words[1]} outside the sandbox with {words[2]}" if server and server.settings.ask else ""

    async def run(self, command: str) -> ToolOutput | None:
        """The output of a command ``mcp ...``; None if it is another, or if there are no servers."""
        words = command.split(maxsplit=2)
        if not self._servers or words[:1] != ["mcp"]:
            return None
        began = time.monotonic()
        try:
            text, ok = await self._run(*words[1:])
        except GpuboxError as error:
            text, ok = str(error), False
        return ToolOutput(text, ok=ok, seconds=time.monotonic() - began)

    async def listed(self, *names: str) -> dict[str, Tools | GpuboxError]:
        """The tools of these servers (of all), or why one cannot be used."""

        async def tools_of(server: _Server) -> Tools | GpuboxError:
            try:
                return await server.in_thread(server.list_tools)
            except GpuboxError as error:
                return error

        names = names or tuple(self._servers)
        return dict(zip(names, await asyncio.gather(*(tools_of(self._servers[name]) for name in names)), strict=True))

    async def close(self) -> None:
        """Ends all servers. May be called twice."""
        await asyncio.gather(*(server.close() for server in self._servers.values()))

    async def _run(self, target: str = "", arguments: str = "") -> tuple[str, bool]:
        name, _, tool_name = target.partition(".")
        if name and name not in self._servers:
            raise GpuboxError(f"There is no server {name[:80]!r}.", f"There are: {', '.join(self._servers)}. {_USAGE}")
        if not tool_name:
            return _listing(await self.listed(*([name] if name else []))), True
        server = self._servers[name]
        tools = await server.in_thread(server.list_tools)
        if (tool := tools.get(tool_name)) is None:
            near = closest_match(tool_name, tools)
            hint = f"Did you mean {name}.{near}?" if near else f"`mcp {name}` lists them."
            raise GpuboxError(f"{name} has no tool {tool_name[:80]!r}.", hint)
        if not arguments:
            schema = json_line(tool.get("inputSchema")).decode()
            return f"{name}.{tool_name}: {tool.get('description')}\nJSON schema of its arguments: {schema}", True
        given = _read_arguments(arguments)
        result = await server.in_thread(lambda: server.call(tool_name, given))
        return _result_text(result), result.get("isError") is not True


async def list_once(servers: Mapping[str, McpServer], logs: Path) -> dict[str, Tools | GpuboxError]:
    """Starts all servers, lists their tools, and ends them."""
    started = McpServers(servers, logs)
    try:
        return await started.listed()
    finally:
        await started.close()


class _Server:
    """One server, and its process while it runs. What it does wrong is a GpuboxError. Blocks: use ``in_thread``."""

    def __init__(self, name: str, settings: McpServer, log: Path) -> None:
        self.settings, self._title, self._log = settings, f"The MCP server {name}", log
        self._process: subprocess.Popen[bytes] | None = None
        self._lifeline, self._last_id = -1, 0
        self._busy, self._given_up = threading.Lock(), threading.Event()
        self._tools: Tools | None = None
        self._open: list[IO[bytes]] = []
        self._received, self._unsent, self._stderr = bytearray(), bytearray(), b""

    async def in_thread(self, work: Callable[[], T]) -> T:
        """Runs ``work`` in a thread, one at a time. Cancelling it gives a request up."""
        given_up = threading.Event()

        def run() -> T:
            with self._busy:
                self._given_up = given_up
                if given_up.is_set():
                    raise GpuboxError("It was given up.")
                return work()

        try:
            return await run_in_thread(run)
        finally:
            given_up.set()

    async def close(self) -> None:
        """Ends it. What runs is given up."""

        def end() -> None:
            with self._busy:
                self.stop()

        self._given_up.set()
        await run_in_thread(end)  # also if this wait is cancelled

    def list_tools(self) -> Tools:
        """Asked once, and again after the server says that they changed."""
        self._start()
        if self._tools is None:
            tools: Tools = {}
            cursor: Any = None
            for _ in range(MAX_PAGES):
                page = self._request("tools/list", {"cursor": cursor} if cursor else {}, START_SECONDS)
                listed = page.get("tools")
                for tool in listed if isinstance(listed, list) else ():
                    if isinstance(tool, dict) and isinstance(name := tool.get("name"), str):
                        tools.setdefault(name, tool)
                if not (cursor := page.get("nextCursor")):
                    break
            self._tools = tools
        return self._tools

    def call(self, tool: str, arguments: dict[str, Any]) -> dict[str, Any]:
        """The result, as the server wrote it."""
        self._start()
        return self._request("tools/call", {"name": tool, "arguments": arguments}, CALL_SECONDS)

    def stop(self) -> None:
        """Ends the process and all below it: by the end of its input, after EXIT_SECONDS by force."""
        process, self._process = self._process, None
        if process is None:
            return
        assert process.stdin and process.stdout and process.stderr
        below = []
        for pid in descendants(process.pid) if process.poll() is None else ():  # some may have left the group
            with contextlib.suppress(OSError):
                below.append(os.pidfd_open(pid))
        process.stdin.close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(EXIT_SECONDS)
        for fd in below:
            with contextlib.suppress(OSError):
                signal.pidfd_send_signal(fd, signal.SIGKILL)
            os.close(fd)
        if process.poll() is None:
            kill_group(process.pid)
        os.close(self._lifeline)  # the guard ends the rest of the group
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(EXIT_SECONDS)
        with contextlib.suppress(OSError):
            self._keep_stderr(process.stderr)
        with contextlib.suppress(OSError):
            write_atomically(self._log, self._stderr, wait=False)
        for file in (process.stdout, process.stderr):
            file.close()

    def _start(self) -> None:
        if self._process and self._process.poll() is None:
            return
        self.stop()
        home = os.path.expanduser("~")  # noqa: PTH111  pathlib raises without a home folder
        command = [home + word[1:] if word.startswith("~/") else word for word in self.settings.command]
        environment = {key: os.environ[key] for key in ("PATH", "HOME", "LANG") if key in os.environ}
        theirs, self._lifeline = os.pipe()
        try:
            process = self._process = subprocess.Popen(
                guarded(command, theirs), bufsize=0, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                stderr=subprocess.PIPE, env=environment | dict(self.settings.env), pass_fds=(theirs,),
                # never the workspace: npx prefers what a project's node_modules calls by that name
                cwd=self.settings.cwd or home, start_new_session=True,
            )  # fmt: skip
        except (OSError, ValueError) as error:  # ValueError: a NUL in its command
            os.close(self._lifeline)
            raise GpuboxError(f"{self._title} cannot be started: {error}.") from None
        finally:
            os.close(theirs)
        assert process.stdin and process.stdout and process.stderr
        os.set_blocking(process.stdin.fileno(), False)
        os.set_blocking(process.stderr.fileno(), False)
        self._open, self._tools = [process.stdout, process.stderr], None
        self._received, self._unsent, self._stderr = bytearray(), bytearray(), b""
        offer = {"protocolVersion": VERSION, "capabilities": {}, "clientInfo": {"name": "gpubox", "version": "1"}}
        try:
            self._request("initialize", offer, START_SECONDS)
        except GpuboxError:
            self.stop()
            raise
        self._send({"method": "notifications/initialized"})

    def _keep_stderr(self, stderr: IO[bytes]) -> bool:
        """Reads what is there. False: there will be no more."""
        data = os.read(stderr.fileno(), MAX_LOG_BYTES)
        self._stderr = (self._stderr + data)[-MAX_LOG_BYTES:]
        return bool(data)

    def _request(self, method: str, parameters: dict[str, Any], seconds: float) -> dict[str, Any]:
        """The result. A refusal leaves the server as it is; after every other error it is stopped."""
        self._last_id += 1
        self._send({"id": self._last_id, "method": method, "params": parameters})
        try:
            answer = self._answer(str(self._last_id), time.monotonic() + seconds)
        except InterruptedError:
            self._send({"method": "notifications/cancelled", "params": {"requestId": self._last_id}})
            raise GpuboxError(f"{method} was given up.") from None
        except (TimeoutError, EOFError, BufferError) as error:
            self.stop()
            said = sanitize_line(self._stderr[-300:].decode("utf-8", "replace").strip().rpartition("\n")[2])
            problem = f"did not answer {method} within {seconds:g} s" if isinstance(error, TimeoutError) else error
            more = f" Its last line: {said}" if said else ""
            raise GpuboxError(f"{self._title} {problem}.{more}", f"Its messages are in {self._log}.") from None
        if isinstance(result := answer.get("result"), dict):
            return result
        refusal = answer.get("error")
        why = refusal.get("message") if isinstance(refusal, dict) else refusal
        raise GpuboxError(f"{self._title} refused {method}: {str(why)[:2000]}")

    def _send(self, message: dict[str, Any]) -> None:
        self._unsent += json_line({"jsonrpc": "2.0", **message}) + b"\n"
        self._write()

    def _write(self) -> None:
        """Writes what fits into the pipe. It never waits: the server may be writing, too."""
        assert self._process and self._process.stdin
        with contextlib.suppress(BlockingIOError):
            try:
                del self._unsent[: os.write(self._process.stdin.fileno(), self._unsent)]
            except BrokenPipeError:  # it closed its input
                self._unsent.clear()

    def _answer(self, number: str, deadline: float) -> dict[str, Any]:
        """The answer to one request. What the server asks is answered; all else is passed over."""
        budget = MAX_ANSWER_BYTES
        while True:
            line = self._line(budget, deadline)
            budget -= len(line) + _LINE_COST
            message = None
            with contextlib.suppress(ValueError):  # many a program greets on stdout
                message = read_json(line)
            if not isinstance(message, dict):
                continue
            if method := message.get("method"):
                if method == "notifications/tools/list_changed":
                    self._tools = None
                if "id" in message and len(self._unsent) < MIB:
                    reply = {"result": {}} if method == "ping" else {"error": _NO_SUCH_METHOD}
                    self._send({"id": message["id"], **reply})
            elif str(message.get("id")) == number:
                return message

    def _line(self, budget: int, deadline: float) -> bytes:
        """The next line. Raises EOFError, TimeoutError, BufferError (too long), InterruptedError (given up)."""
        assert self._process and self._process.stdin and self._process.stdout
        searched = 0
        while (end := self._received.find(b"\n", searched)) < 0 or budget < 0:
            searched = len(self._received)
            if searched > budget:
                raise BufferError(f"wrote more than {MAX_ANSWER_BYTES // MIB} MiB and no answer")
            if self._given_up.is_set():
                raise InterruptedError
            if time.monotonic() > deadline:
                raise TimeoutError
            to_write = [self._process.stdin] if self._unsent else []
            readable, writable, _ = select.select(self._open, to_write, [], 0.1)
            if writable:
                self._write()
            if self._process.stderr in readable and not self._keep_stderr(self._process.stderr):
                self._open.remove(self._process.stderr)
            if self._process.stdout in readable:
                if not (data := os.read(self._process.stdout.fileno(), 64 * KIB)):
                    raise EOFError("ended")
                self._received += data
        line = bytes(self._received[:end])
        del self._received[: end + 1]
        return line


def _read_arguments(text: str) -> dict[str, Any]:
    """The JSON object after a tool's name, also in a shell's quotes. Raises GpuboxError."""
    try:
        value = read_json(text[1:-1] if text[0] == text[-1] == "'" else text, strict=False)
    except ValueError as error:
        value = f" ({error})"
    if isinstance(value, dict):
        return value
    raise GpuboxError(f"What follows the tool is not one JSON object{value if isinstance(value, str) else ''}.", _USAGE)


def _listing(servers: Mapping[str, Tools | GpuboxError]) -> str:
    """A line for each tool; if that is long, only their names."""
    lines, short = [], []
    for name, tools in servers.items():
        if isinstance(tools, GpuboxError):
            lines.append(f"{name}: {tools.message}")
            short.append(lines[-1])
        else:
            lines += [f"{name}.{_tool_line(tool)}" for tool in tools.values()] or [f"{name}: no tools"]
            short.append(f"{name}: {', '.join(tools) or 'no tools'}")
    return "\n".join([*(lines if sum(map(len, lines)) <= MAX_LISTING else short), _USAGE])


def _tool_line(tool: dict[str, Any]) -> str:
    """``read {path, head?}  Reads a file.``"""
    schema = tool["inputSchema"] if isinstance(tool.get("inputSchema"), dict) else {}
    properties, required = schema.get("properties"), schema.get("required")
    needed = required if isinstance(required, list) else ()
    words = [name if name in needed else f"{name}?" for name in (properties if isinstance(properties, dict) else ())]
    description = str(tool.get("description") or "").strip().partition("\n")[0]
    return f"{tool['name']} {{{', '.join(words)[:200]}}}  {description[:120]}".rstrip()


def _result_text(result: dict[str, Any]) -> str:
    """The texts of a result. Images and the like are named."""
    content = result.get("content")
    parts = [_part_text(each) for each in content if isinstance(each, dict)] if isinstance(content, list) else []
    if not parts and "structuredContent" in result:
        parts = [json_line(result["structuredContent"]).decode()]
    return "\n".join(parts) or "[the tool returned nothing]"


def _part_text(part: dict[str, Any]) -> str:
    inner = part | (part["resource"] if isinstance(part.get("resource"), dict) else {})
    if isinstance(text := inner.get("text"), str):
        return text
    names = [str(inner[key])[:200] for key in ("type", "uri", "name", "mimeType") if inner.get(key)]
    return f"[{', '.join(names)}: not shown]"
