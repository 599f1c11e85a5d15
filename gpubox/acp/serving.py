"""gpubox's own agent for editors: the methods of the Agent Client Protocol, over a pair of streams."""

from __future__ import annotations

import asyncio
import re
import secrets
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from gpubox import __version__
from gpubox.acp.editor import Editor
from gpubox.acp.editor_session import EditorSession
from gpubox.agent.chat_files import chat_summaries, free_name
from gpubox.concurrency import run_in_thread
from gpubox.config import Config, McpServer
from gpubox.errors import GpuboxError
from gpubox.json_rpc import BAD_PARAMETERS, NO_SUCH_METHOD, Peer, RpcError
from gpubox.paths import Paths
from gpubox.server.responses import json_object

PROTOCOL_VERSION = 1
_NOT_YET, _NOT_FOUND = -32600, -32002


class EditorAgent:
    """Answers one editor. Each of its sessions is a chat."""

    def __init__(self, paths: Paths, config: Config, *, any_workdir: bool = False) -> None:
        self._paths, self._config, self._any_workdir = paths, config, any_workdir
        self._editor = Editor()
        self._sessions: dict[str, EditorSession] = {}
        self._methods: dict[str, Callable[[dict[str, Any]], Awaitable[dict[str, Any]]]] = {
            "initialize": self._initialize,
            "session/new": self._new,
            "session/load": lambda params: self._open(params, replay=True),
            "session/resume": self._open,
            "session/list": self._list,
            "session/close": self._close,
            "session/prompt": self._prompt,
            "session/set_mode": self._set_mode,
            "session/set_config_option": self._set_option,
        }

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> str:
        """Answers until the editor closes; returns why, a sentence. Nothing that it asked for runs on."""
        peer = self._editor.peer = Peer(reader, writer, self._answer, self._heed, title="The editor", serves=True)
        try:
            return await peer.run()
        finally:
            await asyncio.gather(*(each.close() for each in self._sessions.values()), return_exceptions=True)
            peer.close()

    async def _answer(self, method: str, params: dict[str, Any]) -> dict[str, Any]:
        if method not in self._methods:
            raise RpcError(f"There is no method {method[:80]}.", NO_SUCH_METHOD)
        if not self._editor.known and method != "initialize":
            raise RpcError("initialize comes first.", _NOT_YET)
        return await self._methods[method](params)

    def _heed(self, method: str, params: dict[str, Any]) -> None:
        session = self._sessions.get(str(params.get("sessionId")))
        if method == "session/cancel" and session:
            session.cancel()

    async def _initialize(self, params: dict[str, Any]) -> dict[str, Any]:
        if type(params.get("protocolVersion")) is not int:
            raise RpcError("protocolVersion is a number.", BAD_PARAMETERS)
        self._editor.introduce(json_object(params.get("clientCapabilities")))
        return {
            "protocolVersion": PROTOCOL_VERSION,
            "agentInfo": {"name": "gpubox", "title": "gpubox", "version": __version__},
            "agentCapabilities": {
                "loadSession": True,
                "promptCapabilities": {"image": True, "audio": False, "embeddedContext": True},
                "mcpCapabilities": {"http": False, "sse": False},
                "sessionCapabilities": {"list": {}, "resume": {}, "close": {}},
            },
            "authMethods": [],
        }

    async def _new(self, params: dict[str, Any]) -> dict[str, Any]:
        folder = _folder(params)
        words = re.findall(r"[^\W_]+", Path(folder).name.casefold())
        name = free_name(self._paths, " ".join([*(word[:10] for word in words[:3]), secrets.token_hex(3)]))
        session = self._session(name, params, new=True)
        try:
            session.work_in(folder)
        except BaseException:
            await session.close()
            raise
        self._sessions[name] = session
        return {"sessionId": name, **await self._begin(session)}

    async def _open(self, params: dict[str, Any], *, replay: bool = False) -> dict[str, Any]:
        name, folder = _text(params, "sessionId"), await run_in_thread(Path(_folder(params)).resolve)
        if not (session := self._sessions.get(name)):
            try:
                session = self._session(name, params, new=False)
            except GpuboxError as error:
                raise RpcError(f"{error.message} {error.hint}".strip(), _NOT_FOUND) from None
        works_in = session.chat.settings.workdir
        if works_in and Path(works_in) != folder:
            if name not in self._sessions:
                await session.close()
            raise RpcError(f"The session {name} works in {works_in}.", BAD_PARAMETERS)
        self._sessions[name] = session
        return await self._begin(session, replay=replay)

    async def _begin(self, session: EditorSession, *, replay: bool = False) -> dict[str, Any]:
        if replay:
            await session.replay()
        offers = await session.offers()
        asyncio.get_running_loop().call_soon(session.tell_commands)  # behind this answer: the editor knows it then
        return offers

    def _session(self, name: str, params: dict[str, Any], *, new: bool) -> EditorSession:
        servers = _mcp_servers(params.get("mcpServers"))
        config = replace(self._config, mcp={**servers, **self._config.mcp})
        return EditorSession(self._paths, config, self._editor, name, new=new, any_workdir=self._any_workdir)

    async def _list(self, params: dict[str, Any]) -> dict[str, Any]:
        folder = params.get("cwd")
        listed = [
            {"sessionId": each.name, "cwd": each.workdir, "title": each.title, "updatedAt": each.changed_at}
            for each in await run_in_thread(chat_summaries, self._paths)
            if each.workdir and not each.problem and folder in (None, each.workdir)
        ]
        return {"sessions": listed}

    async def _close(self, params: dict[str, Any]) -> dict[str, Any]:
        session = self._known(params)
        del self._sessions[session.id]
        await session.close()
        return {}

    async def _prompt(self, params: dict[str, Any]) -> dict[str, Any]:
        session, blocks = self._known(params), params.get("prompt")
        if not (isinstance(blocks, list) and all(isinstance(each, dict) for each in blocks)):
            raise RpcError("prompt is a list of blocks.", BAD_PARAMETERS)
        return {"stopReason": await session.prompt(blocks)}

    async def _set_mode(self, params: dict[str, Any]) -> dict[str, Any]:
        await self._known(params).set_option("mode", _text(params, "modeId"))
        return {}

    async def _set_option(self, params: dict[str, Any]) -> dict[str, Any]:
        session = self._known(params)
        await session.set_option(_text(params, "configId"), _text(params, "value"))
        return {"configOptions": (await session.offers())["configOptions"]}

    def _known(self, params: dict[str, Any]) -> EditorSession:
        session = self._sessions.get(_text(params, "sessionId"))
        if session is None:
            raise RpcError("There is no such session.", _NOT_FOUND)
        return session


def _text(params: dict[str, Any], name: str) -> str:
    value = params.get(name)
    if not isinstance(value, str):
        raise RpcError(f"{name} is a text.", BAD_PARAMETERS)
    return value


def _folder(params: dict[str, Any]) -> str:
    folder = _text(params, "cwd")
    if not folder.startswith("/") or "\0" in folder:
        raise RpcError("cwd is an absolute path.", BAD_PARAMETERS)
    return folder


def _mcp_servers(given: Any) -> dict[str, McpServer]:
    """The editor's programs with tools; others cannot be used. Each call is asked for, as with the owner's own."""
    servers = {}
    for each in given if isinstance(given, list) else []:
        match each:
            case {"name": str(name), "command": str(command), "args": list(args), "env": list(pairs)}:
                env = {str(pair.get("name")): str(pair.get("value")) for pair in map(json_object, pairs)}
                servers[re.sub(r"[^\w-]+", "-", name)] = McpServer((command, *map(str, args)), env)
    return servers
