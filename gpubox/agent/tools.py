"""Tools, and how a model calls them: calls, outputs, questions to the owner, and the protocol that fits a server."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol

import msgspec

from gpubox.agent.settings import AgentSettings

_ANSI = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)?|[@-Z\\-_])")
_CONTROLS = dict.fromkeys([*range(9), 11, 12, *range(14, 32), 127])


def argument(kind: str, description: str = "", **more: Any) -> dict[str, Any]:
    """The JSON Schema of one argument."""
    return {"type": kind, **({"description": description} if description else {}), **more}


def arguments(required: Sequence[str] = (), /, **properties: dict[str, Any]) -> dict[str, Any]:
    """The JSON Schema of all arguments of a tool."""
    return {"type": "object", "properties": properties, **({"required": required} if required else {})}


class ToolCall(msgspec.Struct, frozen=True):
    """One tool call of the model. ``id`` is unique in its conversation."""

    id: str
    name: str
    arguments: dict[str, Any] = {}
    code: str = ""
    """The program if the call runs one, else empty. Front ends show it."""
    title: str = ""
    """What a hosted agent says of its call, shown instead of its arguments; ``name`` then is the kind of its tool."""

    @property
    def language(self) -> str:
        """Of its program: ``bash`` if it is a command line, else ``python``."""
        return "bash" if "command" in self.arguments and not self.arguments.get("code") else "python"


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
    diff: str = ""
    """What an edit or a write changed, for the screen. The model does not read it."""
    ends_turn: bool = False
    """The turn ends after this round, and ``text`` is its answer."""


class OwnerQuestion(msgspec.Struct, frozen=True):
    """What only the owner can decide."""

    kind: Literal["network", "test", "ask", "go_on", "permission"]
    """May ``call`` run, which wants the network or is the first by a test command; what the model wants to know; may
    the turn go on past its budget; may a hosted agent do ``call``: the answer is one of ``options``."""
    text: str
    """For the owner: never markup."""
    options: tuple[str, ...] = ()
    """Answers to choose from; empty: any text."""
    call: ToolCall | None = None
    """The call that asks."""
    diff: str = ""
    """What it would change."""


class Answer(msgspec.Struct, frozen=True):
    """The owner's answer."""

    yes: bool
    text: str = ""
    """The reason of a no, the option, or what was typed."""


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
    max_characters: int
    """How much of its output the model reads. The loop sets it, for each turn."""

    def question(self, call: ToolCall) -> OwnerQuestion | None:
        """What the owner is asked before ``run``; ``None``: nothing.

        The answer to a question of the kind ``ask`` is the output of the call: ``run`` is not called then.
        """

    async def run(self, call: ToolCall) -> ToolOutput:
        """Runs the call. Cancelling it ends all it started. Raises GpuboxError if the box refuses to run it."""


AskOwner = Callable[[OwnerQuestion], Awaitable[Answer]]
"""Asks the owner. The turn's time stops while the owner thinks."""


async def nobody(question: OwnerQuestion) -> Answer:
    """The AskOwner for a caller without an owner to ask: no."""
    return Answer(False)


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


RUN_TOOL = "run"
MAX_IGNORED_PROGRAMS = 2
"""A model that wrote so many programs without calling the tool gets the fenced protocol."""

NATIVE_PROMPT = (
    "Paths are relative to the workspace. What you change lies in a copy: the owner sees the diff after your turn and "
    "takes it. Each run is a new process; files stay; print what you want to see. When you know "
    "the answer, say it."
)
FENCED_PROMPT = (
    "You can run programs. Write a Python program in one fenced block:\n"
    "```python\nprint(6 * 7)\n```\n"
    "or shell commands in a ```bash block, and stop; what it printed comes back to you. Each program is a new process: "
    "include everything it needs and print what you want to see. Files stay. When you know the answer, say it in "
    "words, without such a block."
)


@dataclass(frozen=True, slots=True)
class ToolProtocol:
    """The protocol of one turn. The same settings give the same bytes of ``system_prompt`` and ``tools``."""

    name: str
    """``native``, ``fenced`` or ``none``."""
    why: str
    system_prompt: str
    tools: tuple[dict[str, Any], ...] = ()
    """The ``tools`` of a request."""
    tool_names: tuple[str, ...] = ()
    """The tools that the prompt describes."""
    parallel: bool = False
    """Whether one reply may hold several calls."""
    system_role: bool = True
    """Whether the template supports a system message."""

    @property
    def native(self) -> bool:
        """Whether calls come as ``tool_calls``."""
        return self.name == "native"


def choose_protocol(
    settings: AgentSettings, tools: Sequence[Tool], props: dict[str, Any] | None, *, ignored_programs: int = 0
) -> ToolProtocol:
    """The protocol for the model that llama-server's ``/props`` describes (``None``: the server has no ``/props``).

    ``ignored_programs``: how many answers of this chat hold a program that the model wrote but did not run.
    """
    caps = (props or {}).get("chat_template_caps")
    caps = caps if isinstance(caps, dict) else {}
    names = tuple(tool.name for tool in tools)
    has_run = RUN_TOOL in names
    system_role = caps.get("supports_system_role") is not False

    def protocol(name: str, why: str, prompt: str = "", **fields: Any) -> ToolProtocol:
        system_prompt = "\n\n".join(part for part in (settings.system_prompt, prompt) if part)
        return ToolProtocol(name, why, system_prompt, system_role=system_role, **fields)

    if not tools or settings.protocol == "none":
        return protocol("none", "no tools")
    supported = bool(caps.get("supports_tools") and caps.get("supports_tool_calls"))
    ignores_tools = supported and has_run and ignored_programs >= MAX_IGNORED_PROGRAMS
    if settings.protocol == "native" or (settings.protocol == "auto" and supported and not ignores_tools):
        return protocol(
            "native",
            "chosen in the settings" if settings.protocol == "native" else "the chat template supports tool calls",
            NATIVE_PROMPT if has_run else "",
            tools=tuple(_schema(tool) for tool in tools),
            tool_names=names,
            parallel=bool(caps.get("supports_parallel_tool_calls")),
        )
    why = (
        "the chat template does not support tool calls"
        if caps
        else "the server does not report what its chat template supports"
    )
    if not has_run:
        return protocol("none", why)
    if settings.protocol == "fenced":
        why = "chosen in the settings"
    elif ignores_tools:
        why = "the model writes programs instead of calling the tool"
    return protocol("fenced", why, FENCED_PROMPT, tool_names=(RUN_TOOL,))


def _schema(tool: Tool) -> dict[str, Any]:
    function = {"name": tool.name, "description": tool.description, "parameters": tool.parameters}
    return {"type": "function", "function": function}
