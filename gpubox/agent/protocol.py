"""How a model is to call tools: by its template's own way where it has one, else by a fenced block. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from gpubox.agent.settings import AgentSettings
from gpubox.agent.tools import Tool

CODE_TOOL = "code_execution"
IGNORED_PROGRAMS = 2
"""Programs that a model wrote and did not run, until it is taken for one that cannot call tools."""

NATIVE = (
    "Each call of code_execution is a fresh Python interpreter: include everything it needs and print what you want "
    "to see. Files stay. Do not repeat a call that gave you the answer. When you know the answer, say it."
)
FENCED = (
    "You can run Python. To run a program, write it in one fenced block:\n"
    "```python\nprint(6 * 7)\n```\n"
    "and stop; what it printed comes back to you. Each program is a fresh interpreter: include everything it needs "
    "and print what you want to see. Files stay. When you know the answer, say it in words, without a ```python block."
)


@dataclass(frozen=True, slots=True)
class ToolProtocol:
    """The protocol of one turn; ``system`` and ``tools`` are the same bytes in every turn with these settings."""

    name: str
    """``native``, ``fenced`` or ``none``."""
    why: str
    system: str
    tools: tuple[dict[str, Any], ...] = ()
    offered: tuple[str, ...] = ()
    """Names of the tools that the model is told of."""
    parallel: bool = False
    system_role: bool = True
    """Whether the template takes a system message; else it begins the first user's."""

    @property
    def native(self) -> bool:
        """Whether calls come as ``tool_calls``."""
        return self.name == "native"


def choose_protocol(
    settings: AgentSettings, tools: Sequence[Tool], props: dict[str, Any] | None, *, ignored: int = 0
) -> ToolProtocol:
    """The protocol for the model that ``/props`` (or nothing) describes.

    ``ignored`` answers of this chat held a program that the model did not run (``programs_not_run``).
    """
    chosen = _choose(settings, tools, _caps(props), ignored)
    return replace(chosen, system_role=_caps(props).get("supports_system_role") is not False)


def _caps(props: dict[str, Any] | None) -> dict[str, Any]:
    caps = (props or {}).get("chat_template_caps")
    return caps if isinstance(caps, dict) else {}


def _choose(settings: AgentSettings, tools: Sequence[Tool], caps: dict[str, Any], ignored: int) -> ToolProtocol:
    can = bool(caps.get("supports_tools") and caps.get("supports_tool_calls"))
    names = tuple(tool.name for tool in tools)
    if not tools or settings.protocol == "none":
        return ToolProtocol("none", "no tools", settings.system_prompt)
    idle = can and ignored >= IGNORED_PROGRAMS and CODE_TOOL in names
    if settings.protocol == "native" or (settings.protocol == "auto" and can and not idle):
        why = "as set" if settings.protocol == "native" else "the chat template knows tool calls"
        system = _joined(settings.system_prompt, NATIVE if CODE_TOOL in names else "")
        parallel = bool(caps.get("supports_parallel_tool_calls"))
        return ToolProtocol("native", why, system, tool_schemas(tools), names, parallel)
    without = "the chat template knows no tool calls" if caps else "the server does not say what its template knows"
    if CODE_TOOL not in names:
        return ToolProtocol("none", without, settings.system_prompt)
    why = "the model writes programs but calls no tool" if idle else without
    why = "as set" if settings.protocol == "fenced" else why
    return ToolProtocol("fenced", why, _joined(settings.system_prompt, FENCED), offered=(CODE_TOOL,))


def _joined(*parts: str) -> str:
    return "\n\n".join(part for part in parts if part)


def tool_schemas(tools: Sequence[Tool]) -> tuple[dict[str, Any], ...]:
    """The ``tools`` of a request."""
    return tuple(
        {
            "type": "function",
            "function": {"name": tool.name, "description": tool.description, "parameters": tool.parameters},
        }
        for tool in tools
    )


def context_size(props: dict[str, Any] | None) -> int | None:
    """Tokens of one slot's context, as ``/props`` says."""
    generation = (props or {}).get("default_generation_settings")
    size = generation.get("n_ctx") if isinstance(generation, dict) else None
    return size if isinstance(size, int) and size > 0 else None
