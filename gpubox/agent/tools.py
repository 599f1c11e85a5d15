"""The interface between the agent loop and its tools: calls, outputs, the Tool protocol, approval."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable
from typing import Any, Protocol

import msgspec

_ANSI = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)?|[@-Z\\-_])")
_CONTROLS = dict.fromkeys([*range(9), 11, 12, *range(14, 32), 127])


class ToolCall(msgspec.Struct, frozen=True):
    """One tool call of the model. ``id`` is unique in its conversation."""

    id: str
    name: str
    arguments: dict[str, Any] = {}
    code: str = ""
    """The program if the call runs one, else empty. Front ends show it."""


class ToolOutput(msgspec.Struct, frozen=True):
    """The result of one call. ``text`` is what the model reads: bounded, never markup."""

    text: str
    ok: bool = True
    """False if the call was refused, ended by a limit, not run at all, or its exit code is not 0."""
    seconds: float = 0.0
    exit_code: int | None = None
    """The program's exit code; ``None`` if no program ran or a signal ended it."""
    ended_by: str = ""
    """The Sandbox's ``wall``, ``cpu``, ``memory``, ``output``, ``cancelled``, or the loop's ``denied``, ``refused``."""
    isolation: str = ""
    """The confinement of the run; empty if no program ran."""
    files_changed: tuple[str, ...] = ()
    dropped_bytes: int = 0
    """Size of the output that ``text`` leaves out."""


class Tool(Protocol):
    """One tool. ``run`` does not raise for a mistake of the model: it returns an output with ``ok`` False."""

    name: str
    """As the model writes it: letters, digits and underscores."""
    description: str
    """For the model. It must not change within a chat: it is part of the cached prompt prefix."""
    parameters: dict[str, Any]
    """JSON schema of the arguments, an object. It must not change within a chat either."""
    parallel_safe: bool
    """Whether calls of one round may run in parallel: true if the tool writes nothing that another call reads."""

    def diff(self, call: ToolCall) -> str:
        """What the owner must approve before ``run``: a unified diff or a sentence. Empty: no approval is needed."""

    async def run(self, call: ToolCall) -> ToolOutput:
        """Runs the call. Cancelling it ends all it started. Raises GpuboxError if the box refuses to run it."""


Approve = Callable[[ToolCall, str], Awaitable[bool]]
"""Asks the owner whether a call may run: (call, diff) -> allowed. The wait does not count as tool time."""


async def deny_all(call: ToolCall, diff: str) -> bool:
    """The Approve for a caller without an owner to ask."""
    return False


def truncate_output(text: str, limit: int) -> tuple[str, int]:
    """``(text, dropped)``: head and tail of ``text``, about ``limit`` characters in all, without control codes."""
    dropped = max(0, len(text) - 4 * limit)
    if dropped:  # before the regular expression, which is slow on a huge text
        text = text[: 2 * limit] + text[-2 * limit :]
    text = _ANSI.sub("", text).replace("\r\n", "\n").replace("\r", "\n").translate(_CONTROLS)
    if len(text) <= limit and not dropped:
        return text, 0
    half = limit // 2
    dropped += max(0, len(text) - 2 * half)
    return f"{text[:half]}\n[... {dropped:,} characters left out ...]\n{text[-half:]}", dropped
