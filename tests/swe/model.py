"""A scripted competent model. It knows what a good programmer knows, and of the project only what our tools tell it.

A script is a generator: it yields calls and gets their outputs as the model reads them. It takes line numbers, paths
and texts from these outputs, so that a wrong output leads it astray, as it would lead a real model.
"""

from __future__ import annotations

import json
import re
from collections.abc import Generator, Sequence
from typing import Any

from tests.scripted_server import Play, ScriptedServer, call, says

Step = dict[str, Any]
"""One call: ``name`` and ``arguments``."""
Script = Generator[Step | tuple[Step, ...], str, str]
"""Yields a call, or several of one reply; gets their outputs, joined; returns the answer."""
CONTEXT_TOKENS = 64_000
"""The scripted server counts a byte as a token: this is about 16k of a real model."""


class LostError(Exception):
    """The script cannot go on: an output does not say what it should."""


def list_files(path: str = ".", recursive: bool = False) -> Step:
    return _step("list", path=path, recursive=recursive)


def read(path: str, first_line: int = 1, lines: int = 0, numbers: bool = False) -> Step:
    return _step("read", path=path, first_line=first_line, numbers=numbers, **({"lines": lines} if lines else {}))


def search(pattern: str, path: str = ".", glob: str = "") -> Step:
    return _step("search", pattern=pattern, path=path, **({"glob": glob} if glob else {}))


def edit(path: str, *edits: tuple[str, str]) -> Step:
    return _step("edit", path=path, edits=[{"old": old, "new": new} for old, new in edits])


def write(path: str, content: str) -> Step:
    return _step("write", path=path, content=content)


def run(command: str, **more: Any) -> Step:
    return _step("run", command=command, **more)


def run_tests() -> Step:
    return _step("test")


def must(pattern: str, output: str) -> re.Match[str]:
    """What matches ``pattern`` in ``output``; a model that does not see it is lost."""
    match = re.search(pattern, output, re.MULTILINE)
    if match is None:
        raise LostError(f"no {pattern!r} in:\n{output}")
    return match


def must_not(pattern: str, output: str) -> None:
    """The opposite of ``must``."""
    if re.search(pattern, output, re.MULTILINE):
        raise LostError(f"{pattern!r} is in:\n{output}")


def hits(output: str) -> list[tuple[str, int, str]]:
    """Path, line number and text of each line that ``search`` printed."""
    return [(path, int(line), text) for path, line, text in re.findall(r"^([^\s:][^:\n]*):(\d+): ?(.*)$", output, re.M)]


def numbered(output: str) -> dict[int, str]:
    """The lines of a ``read`` with numbers."""
    return {int(number): text for number, text in re.findall(r"^ *(\d+)(?:[:|]|\t| \|) ?(.*)$", output, re.M)}


class Model:
    """Plays ``script`` in a conversation: from the request's body to the next reply."""

    def __init__(self, script: Script) -> None:
        self._script = script
        self._calls = self._read = 0
        self.lost = ""
        """Why the model could not do the task; empty: it did."""
        self.outputs: list[str] = []
        """What the tools said to it."""
        self.ended = False

    def reply(self, body: dict[str, Any]) -> Play:
        """The next reply. The outputs of the last calls are the messages after the last reply."""
        names = [tool["function"]["name"] for tool in body.get("tools", ())]
        outputs: list[str] = []
        for message in reversed(body["messages"]):
            if message["role"] == "assistant":
                break
            if message["role"] == "tool":
                outputs.insert(0, message["content"])
        self.outputs += outputs
        size = max(1, len(json.dumps(body["messages"])) // 4)
        tokens: dict[str, Any] = {"prompt": max(1, size - self._read), "cached": min(self._read, size - 1)}
        self._read = size
        try:
            given = self._script.send("\n".join(outputs)) if self._calls else next(self._script)
        except StopIteration as end:
            self.ended = True
            return says(str(end.value), **tokens)
        except LostError as lost:
            self.lost, self.ended = str(lost), True
            return says("I cannot go on.", **tokens)
        steps = given if isinstance(given, tuple) else (given,)
        if unknown := [step["name"] for step in steps if step["name"] not in names]:
            self.lost = f"there is no tool {unknown[0]}, only {names}"
            return says("I cannot go on.", **tokens)
        calls = []
        for index, step in enumerate(steps):
            calls.append(call(step["name"], json.dumps(step["arguments"]), index, f"call{self._calls}"))
            self._calls += 1
        return says("I look into it.", calls=calls, finish="tool_calls", **tokens)


class ModelServer(ScriptedServer):
    """A llama-server whose model plays the script of each turn."""

    def __init__(self) -> None:
        super().__init__(context=CONTEXT_TOKENS)
        self.model: Model | None = None

    async def __aenter__(self) -> ModelServer:
        await super().__aenter__()
        return self

    async def _play(self, reader: Any, writer: Any) -> None:
        assert self.model is not None
        self.plays = [self.model.reply(self.bodies[-1])]
        await super()._play(reader, writer)


def said(bodies: Sequence[dict[str, Any]], role: str) -> list[str]:
    """What stands in the last request in the messages of ``role``."""
    return [message["content"] for message in bodies[-1]["messages"] if message["role"] == role]


def _step(name: str, **arguments: Any) -> Step:
    return {"name": name, "arguments": arguments}
