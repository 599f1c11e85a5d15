"""An editor on the other end of ``gpubox acp``: real pipes, and each message held against the protocol's schema."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from gpubox.acp.serving import EditorAgent
from gpubox.config import Config
from gpubox.json_rpc import pipe_streams
from gpubox.paths import Paths

DEFS: dict[str, Any] = json.loads((Path(__file__).parent / "fixtures/acp/schema.json").read_text())["$defs"]
RESPONSES = {each["x-method"]: name for name, each in DEFS.items() if name.endswith("Response") and "x-method" in each}
REQUESTS = {each["x-method"]: name for name, each in DEFS.items() if name.endswith("Request") and "x-method" in each}
_TYPES: dict[str, Any] = {
    "string": str, "boolean": bool, "integer": int, "number": (int, float), "object": dict, "array": list,
    "null": type(None),
}  # fmt: skip


def problem(value: Any, schema: Any) -> str:
    """Why ``value`` does not fit; empty: it does. As much of JSON Schema as the protocol's schema has."""
    if not isinstance(schema, dict):
        return ""
    if "$ref" in schema and (why := problem(value, DEFS[schema["$ref"].rsplit("/", 1)[1]])):
        return f"{schema['$ref']}: {why}"
    if kinds := schema.get("type"):
        kinds = kinds if isinstance(kinds, list) else [kinds]
        fits = isinstance(value, tuple(_TYPES[kind] for kind in kinds))
        if not fits or (isinstance(value, bool) and "boolean" not in kinds):
            return f"{value!r} is not {kinds}"
    if "const" in schema and value != schema["const"]:
        return f"{value!r} is not {schema['const']!r}"
    if "minimum" in schema and isinstance(value, int) and value < schema["minimum"]:
        return f"{value} is too small"
    if isinstance(value, dict):
        missing = [name for name in schema.get("required", ()) if name not in value]
        if missing:
            return f"{missing} missing in {value!r}"
        for name, inner in schema.get("properties", {}).items():
            if name in value and (why := problem(value[name], inner)):
                return f".{name}: {why}"
    if isinstance(value, list):
        for item in value:
            if why := problem(item, schema.get("items")):
                return why
    for inner in schema.get("allOf", ()):
        if why := problem(value, inner):
            return why
    for key in ("anyOf", "oneOf"):
        whys = [problem(value, inner) for inner in schema.get(key, ())]
        if whys and all(whys):
            return " | ".join(whys)[:2000]
    return ""


Reply = Callable[[str, dict[str, Any]], Any]


class TestEditor:
    """Asks, and answers what it is asked by ``reply``: (method, parameters) -> the result, or None to stay silent."""

    __test__ = False

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer
        self.updates: list[dict[str, Any]] = []
        self.asked: list[tuple[str, dict[str, Any]]] = []
        self.came = asyncio.Condition()
        self.reply: Reply = lambda method, params: {"outcome": {"outcome": "cancelled"}}
        self.broken: list[str] = []
        """Messages that do not fit the schema."""
        self.garbage = 0
        self._answers: dict[int, asyncio.Future[dict[str, Any]]] = {}
        self._methods: dict[int, str] = {}
        self._number = 0

    def say(self, message: dict[str, Any] | bytes) -> None:
        self.writer.write(message if isinstance(message, bytes) else json.dumps(message).encode() + b"\n")

    def ask(self, method: str, **params: Any) -> asyncio.Future[dict[str, Any]]:
        self._number += 1
        answer: asyncio.Future[dict[str, Any]] = asyncio.get_running_loop().create_future()
        self._answers[self._number], self._methods[self._number] = answer, method
        self.say({"jsonrpc": "2.0", "id": self._number, "method": method, "params": params})
        return answer

    async def get(self, method: str, **params: Any) -> dict[str, Any]:
        async with asyncio.timeout(60):
            answer = await self.ask(method, **params)
        assert "error" not in answer, answer
        result: dict[str, Any] = answer["result"]
        return result

    async def error(self, method: str, **params: Any) -> dict[str, Any]:
        async with asyncio.timeout(60):
            error: dict[str, Any] = (await self.ask(method, **params))["error"]
        return error

    async def start(self, folder: Path, **capabilities: Any) -> str:
        """Introduces itself and opens a session, whose id is returned."""
        await self.get("initialize", protocolVersion=1, clientCapabilities=capabilities)
        session: str = (await self.get("session/new", cwd=str(folder), mcpServers=[]))["sessionId"]
        return session

    def prompt(self, session: str, *blocks: str | dict[str, Any]) -> asyncio.Future[dict[str, Any]]:
        texts = [{"type": "text", "text": each} if isinstance(each, str) else each for each in blocks]
        return self.ask("session/prompt", sessionId=session, prompt=texts)

    async def turn(self, session: str, *blocks: str | dict[str, Any]) -> str:
        """Why it stopped."""
        async with asyncio.timeout(60):
            answer = await self.prompt(session, *blocks)
        assert "error" not in answer, answer
        return str(answer["result"]["stopReason"])

    def of(self, kind: str) -> list[dict[str, Any]]:
        return [each["update"] for each in self.updates if each["update"]["sessionUpdate"] == kind]

    def said(self) -> str:
        return "".join(each["content"]["text"] for each in self.of("agent_message_chunk"))

    async def until(self, test: Callable[[], bool]) -> None:
        async with asyncio.timeout(60), self.came:
            await self.came.wait_for(test)

    async def read(self) -> None:
        while line := await self.reader.readline():
            message = json.loads(line)
            self._check(message)
            if "method" not in message:
                if message.get("id") is None:
                    self.garbage += 1
                elif not (answer := self._answers[message["id"]]).done():
                    answer.set_result(message)
            elif message["method"] == "session/update":
                self.updates.append(message["params"])
            else:
                self.asked.append((message["method"], message["params"]))
                result = self.reply(message["method"], message["params"])
                if result is not None:
                    self.say({"jsonrpc": "2.0", "id": message["id"], **({"error": {"code": -32603, "message": "no"}}
                             if isinstance(result, Exception) else {"result": result})})  # fmt: skip
            async with self.came:
                self.came.notify_all()

    def _check(self, message: dict[str, Any]) -> None:
        assert message["jsonrpc"] == "2.0"
        if "method" in message:
            name = "SessionNotification" if "id" not in message else REQUESTS[message["method"]]
            why = problem(message["params"], DEFS[name])
        elif "error" in message:
            why = problem(message["error"], DEFS["Error"])
        else:
            why = problem(message["result"], DEFS[RESPONSES[self._methods[message["id"]]]])
        self.broken += [f"{message}: {why}"] if why else []


@asynccontextmanager
async def editor(paths: Paths, config: Config | None = None) -> AsyncIterator[tuple[TestEditor, asyncio.Task[str]]]:
    """An editor, and the agent that serves it. What the agent sent is held against the schema at the end."""
    pipes = [tuple(map(os.fdopen, os.pipe(), ("rb", "wb"))) for _ in range(2)]
    (to_agent, from_editor), (to_editor, from_agent) = pipes
    agent = asyncio.create_task(EditorAgent(paths, config or Config()).serve(*await pipe_streams(to_agent, from_agent)))
    there = TestEditor(*await pipe_streams(to_editor, from_editor))
    reading = asyncio.create_task(there.read())
    try:
        yield there, agent
        assert not there.broken, there.broken
        assert not reading.done() or agent.done() or not reading.exception(), reading
    finally:
        there.writer.close()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(30):
                await agent
        reading.cancel()
        await asyncio.wait([reading])
