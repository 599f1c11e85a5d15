"""Tools of the servers under ``[mcp]`` in config.toml, which the chat calls by name: ``mcp SERVER.TOOL {...}``.

A client of the Model Context Protocol for tools alone: JSON-RPC, a message a line, over the stdio of a process
(modelcontextprotocol.io, versions 2024-11-05 to 2025-11-25). A server may die, hang, flood, or write what is no
protocol: each is a sentence, and ends it. Its next use starts it again.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import time
from asyncio.subprocess import Process, SubprocessStreamProtocol
from collections.abc import Coroutine, Mapping
from pathlib import Path
from typing import Any

from gpubox.agent.tools import ToolOutput
from gpubox.children import guarded
from gpubox.config import McpServer
from gpubox.errors import GpuboxError
from gpubox.hardware.process import descendants, kill_group
from gpubox.json_rpc import NO_SUCH_METHOD, Peer, RpcError
from gpubox.sanitize import sanitize_line
from gpubox.storage import json_line, read_json, write_atomically
from gpubox.toml_table import closest_match
from gpubox.units import KIB, MIB

PROMPT = "The command `mcp` lists tools of the owner's servers."
"""For the system prompt, if config.toml names servers."""
VERSION = "2025-06-18"
"""What is offered. A server may answer with any other: tools are listed and called alike in all."""
START_SECONDS, CALL_SECONDS, EXIT_SECONDS = 60.0, 120.0, 1.0
"""``npx -y`` downloads a server at its first start."""
MAX_ANSWER_BYTES, MAX_LOG_BYTES = 16 * MIB, 64 * KIB
MAX_PAGES, MAX_LISTING = 50, 6000
"""Pages of a list of tools; its characters, with descriptions."""
_USAGE = "`mcp SERVER.TOOL` explains a tool, `mcp SERVER.TOOL {JSON of its arguments}` calls it."

_Tasks = list[asyncio.Task[Any]]
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
                return await server.list_tools()
            except GpuboxError as error:
                return error

        names = names or tuple(self._servers)
        return dict(zip(names, await asyncio.gather(*(tools_of(self._servers[name]) for name in names)), strict=True))

    async def close(self) -> None:
        """Ends all servers. May be called twice."""
        await asyncio.gather(*(server.stop() for server in self._servers.values()))

    async def _run(self, target: str = "", arguments: str = "") -> tuple[str, bool]:
        name, _, tool_name = target.partition(".")
        if name and name not in self._servers:
            raise GpuboxError(f"There is no server {name[:80]!r}.", f"There are: {', '.join(self._servers)}. {_USAGE}")
        if not tool_name:
            return _listing(await self.listed(*([name] if name else []))), True
        server = self._servers[name]
        tools = await server.list_tools()
        if (tool := tools.get(tool_name)) is None:
            near = closest_match(tool_name, tools)
            hint = f"Did you mean {name}.{near}?" if near else f"`mcp {name}` lists them."
            raise GpuboxError(f"{name} has no tool {tool_name[:80]!r}.", hint)
        if not arguments:
            schema = json_line(tool.get("inputSchema")).decode()
            return f"{name}.{tool_name}: {tool.get('description')}\nJSON schema of its arguments: {schema}", True
        given = _read_arguments(arguments)
        result = await server.call(tool_name, given)
        return _result_text(result), result.get("isError") is not True


async def list_once(servers: Mapping[str, McpServer], logs: Path) -> dict[str, Tools | GpuboxError]:
    """Starts all servers, lists their tools, and ends them."""
    started = McpServers(servers, logs)
    try:
        return await started.listed()
    finally:
        await started.close()


class _Server:
    """One server, and its process while it runs. What it does wrong is a GpuboxError. One request at a time."""

    def __init__(self, name: str, settings: McpServer, log: Path) -> None:
        self.settings, self._title, self._log = settings, f"The MCP server {name}", log
        self._child: tuple[Process, asyncio.SubprocessTransport, int, Peer, _Tasks] | None = None
        self._busy = asyncio.Lock()
        self._tools: Tools | None = None
        self._stderr = b""

    async def list_tools(self) -> Tools:
        """Asked once, and again after the server says that they changed."""
        async with self._busy:
            peer = await self._started()
            if self._tools is None:
                tools: Tools = {}
                cursor: Any = None
                for _ in range(MAX_PAGES):
                    page = await self._request(peer, "tools/list", {"cursor": cursor} if cursor else {}, START_SECONDS)
                    for tool in listed if isinstance(listed := page.get("tools"), list) else ():
                        if isinstance(tool, dict) and isinstance(name := tool.get("name"), str):
                            tools.setdefault(name, tool)
                    if not (cursor := page.get("nextCursor")):
                        break
                self._tools = tools
            return self._tools

    async def call(self, tool: str, arguments: dict[str, Any]) -> dict[str, Any]:
        """The result, as the server wrote it."""
        async with self._busy:
            values = {"name": tool, "arguments": arguments}
            return await self._request(await self._started(), "tools/call", values, CALL_SECONDS)

    async def stop(self) -> None:
        """Ends the process and all below it: by the end of its input, after EXIT_SECONDS by force."""
        child, self._child = self._child, None
        if child:
            await asyncio.shield(asyncio.create_task(self._end(*child)))

    async def _end(
        self, process: Process, pipes: asyncio.SubprocessTransport, lifeline: int, peer: Peer, tasks: _Tasks
    ) -> None:
        below = []
        for pid in descendants(process.pid) if process.returncode is None else ():  # some may have left the group
            with contextlib.suppress(OSError):
                below.append(os.pidfd_open(pid))
        peer.close()
        await asyncio.wait(tasks[:1], timeout=EXIT_SECONDS)
        for fd in below:
            with contextlib.suppress(OSError):
                signal.pidfd_send_signal(fd, signal.SIGKILL)
            os.close(fd)
        if process.returncode is None:
            kill_group(process.pid)
        os.close(lifeline)  # the guard ends the rest of the group
        await asyncio.wait(tasks, timeout=EXIT_SECONDS)
        pipes.close()
        asyncio.gather(*tasks, return_exceptions=True).cancel()
        with contextlib.suppress(OSError):
            write_atomically(self._log, self._stderr, wait=False)

    async def _started(self) -> Peer:
        if self._child and self._child[0].returncode is None and not self._child[3].problem:
            return self._child[3]
        await self.stop()
        home = os.path.expanduser("~")  # noqa: ASYNC240, PTH111  pathlib raises without a home folder
        command = [home + word[1:] if word.startswith("~/") else word for word in self.settings.command]
        environment = {key: os.environ[key] for key in ("PATH", "HOME", "LANG") if key in os.environ}
        loop = asyncio.get_running_loop()
        theirs, lifeline = os.pipe()
        try:
            pipes, streams = await loop.subprocess_exec(
                lambda: SubprocessStreamProtocol(MAX_ANSWER_BYTES, loop), *guarded(command, theirs),
                # never the workspace: npx prefers what a project's node_modules calls by that name
                cwd=self.settings.cwd or home, env=environment | dict(self.settings.env), pass_fds=(theirs,),
                start_new_session=True,
            )  # fmt: skip
        except BaseException as error:
            os.close(lifeline)
            if isinstance(error, OSError | ValueError):  # ValueError: a NUL in its command
                raise GpuboxError(f"{self._title} cannot be started: {error}.") from None
            raise
        finally:
            os.close(theirs)
        assert streams.stdin and streams.stdout and streams.stderr
        peer = Peer(streams.stdout, streams.stdin, self._answer, self._heed, title=self._title, budget=MAX_ANSWER_BYTES)
        process = Process(pipes, streams, loop)
        work: tuple[Coroutine[Any, Any, Any], ...] = process.wait(), peer.run(), self._keep_stderr(streams.stderr)
        self._child, self._tools = (process, pipes, lifeline, peer, [asyncio.create_task(each) for each in work]), None
        offer = {"protocolVersion": VERSION, "capabilities": {}, "clientInfo": {"name": "gpubox", "version": "1"}}
        try:
            await self._request(peer, "initialize", offer, START_SECONDS)
        except BaseException:
            await self.stop()
            raise
        await peer.notify("notifications/initialized", {})
        return peer

    async def _keep_stderr(self, stderr: asyncio.StreamReader) -> None:
        self._stderr = b""
        while data := await stderr.read(MAX_LOG_BYTES):
            self._stderr = (self._stderr + data)[-MAX_LOG_BYTES:]

    async def _answer(self, method: str, params: dict[str, Any]) -> dict[str, Any]:
        if method == "ping":
            return {}
        raise RpcError("gpubox offers no such method.", NO_SUCH_METHOD)

    def _heed(self, method: str, params: dict[str, Any]) -> None:
        if method == "notifications/tools/list_changed":
            self._tools = None

    async def _request(self, peer: Peer, method: str, params: dict[str, Any], seconds: float) -> dict[str, Any]:
        """The result. A refusal leaves the server as it is; after every other error it is stopped."""
        try:
            result = await peer.request(method, params, seconds=seconds, withdraw="notifications/cancelled")
        except GpuboxError as error:
            if not isinstance(error, RpcError):
                await self.stop()
                said = sanitize_line(self._stderr[-300:].decode("utf-8", "replace").strip().rpartition("\n")[2])
                error.message += f" Its last line: {said}" if said else ""
                error.hint = f"Its messages are in {self._log}."
            raise
        if isinstance(result, dict):
            return result
        raise GpuboxError(f"{self._title} refused {method}: what it answers is no object.")


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
        known, nothing = ({}, tools.message) if isinstance(tools, GpuboxError) else (tools, "no tools")
        lines += [f"{name}.{_tool_line(tool)}" for tool in known.values()] or [f"{name}: {nothing}"]
        short.append(f"{name}: {', '.join(known) or nothing}")
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
