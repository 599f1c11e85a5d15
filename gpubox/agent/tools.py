"""What a tool is to the loop: a schema the model reads, and a coroutine that runs one call."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, Protocol

import msgspec


class ToolCall(msgspec.Struct, frozen=True):
    """One call as the model asked for it. ``id`` is unique in its conversation."""

    id: str
    name: str
    arguments: dict[str, Any] = {}
    code: str = ""
    """The program, where the call is one; else empty. For showing."""


class ToolOutput(msgspec.Struct, frozen=True):
    """What one call gave. ``text`` is what the model reads: bounded, never markup."""

    text: str
    ok: bool = True
    """False: refused, ended by a limit, exit code not 0, or not run at all."""
    seconds: float = 0.0
    exit_code: int | None = None
    """Of the program; ``None`` where none ran or a signal ended it."""
    ended_by: str = ""
    """``wall``, ``cpu``, ``memory``, ``output``, ``cancelled`` (the Sandbox's words), ``denied`` or ``refused``."""
    isolation: str = ""
    """What confined the run; empty where nothing was run."""
    files_changed: tuple[str, ...] = ()
    dropped_bytes: int = 0
    """Output that is not in ``text``."""


class Tool(Protocol):
    """One tool. ``run`` never raises for what the model did wrong: that is an output with ``ok`` False."""

    @property
    def name(self) -> str:
        """As the model writes it: letters, digits and underscores."""

    @property
    def description(self) -> str:
        """For the model; the same bytes in every request, or the prompt prefix is lost."""

    @property
    def parameters(self) -> dict[str, Any]:
        """JSON schema of the arguments, an object; the same in every request."""

    @property
    def parallel_safe(self) -> bool:
        """Whether calls of one round may run at once: true for what writes nothing that another call reads."""

    def diff(self, call: ToolCall) -> str:
        """What the owner has to approve before ``run`` (a unified diff, a sentence); empty: nothing."""

    async def run(self, call: ToolCall) -> ToolOutput:
        """Runs the call. Cancelling it ends everything it started. Raises GpuboxError where the box refuses."""


Approve = Callable[[ToolCall, str], Awaitable[bool]]
"""Asks the owner: (call, diff) -> may it run. The loop waits; its wait is counted apart."""


async def deny_all(call: ToolCall, diff: str) -> bool:
    """The Approve of a caller who can ask nobody."""
    return False
