"""What gpubox reads of an agent's messages (agentclientprotocol.com, version 1). Pure.

An agent may send anything: unknown fields are ignored, and a value of another type than it should be is left out.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Literal, TypeVar

import msgspec

from gpubox.agent.events import AgentChoice, AgentCommand, PlanStep
from gpubox.sanitize import sanitize_line

T = TypeVar("T")
VERSION = 1
READABLE = (1, 2)
"""Version 2 is a draft: what is left of version 1 is read in the same way."""
AUTH_REQUIRED = -32000
MAX_TITLE, MAX_DESCRIPTION = 200, 400
"""Characters."""
MAX_STEPS, MAX_COMMANDS, MAX_CHOICES, MAX_OPTIONS = 100, 200, 20, 200


class _Read(msgspec.Struct, frozen=True, rename="camel"):
    pass


class ToolUpdate(_Read, frozen=True):
    """A ``tool_call`` or a ``tool_call_update``, whose absent fields stay as they are."""

    tool_call_id: str
    title: Any = None
    kind: Any = None
    status: Any = None
    content: Any = None
    raw_input: Any = None
    raw_output: Any = None


class PermissionOption(_Read, frozen=True):
    """One answer to a permission."""

    option_id: str
    name: str = ""
    kind: Any = None

    @property
    def allows(self) -> bool:
        return str(self.kind).startswith("allow")


class Diff(_Read, frozen=True):
    """What an edit did to a file."""

    path: str
    new_text: str
    old_text: str | None = None


class Option(_Read, frozen=True):
    """One of an AgentChoice's, in any of the three forms that agents use."""

    value: str = ""
    id: str = ""
    model_id: str = ""
    name: str = ""


class ConfigOption(_Read, frozen=True):
    """What the owner may choose."""

    id: str
    name: str = ""
    current_value: str = ""
    options: Any = None


def read(kind: type[T], value: Any) -> T | None:
    """``value`` as ``kind``; ``None`` if it is none."""
    try:
        return msgspec.convert(value, kind)
    except (msgspec.ValidationError, RecursionError):
        return None


def read_all(kind: type[T], values: Any, most: int) -> list[T]:
    """Those of a list that can be read, at most so many."""
    items = values[: 4 * most] if isinstance(values, list) else []
    return [item for value in items if (item := read(kind, value)) is not None][:most]


def line(value: Any, most: int = MAX_TITLE) -> str:
    """A text for one line; empty if it is none."""
    return sanitize_line(value[: 2 * most])[:most].strip() if isinstance(value, str) else ""


def is_count(value: Any) -> bool:
    """Whether it is a number of tokens or lines."""
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def text_of(content: Any, most: int) -> str:
    """The text of a content block: of what is no text, what it is."""
    match content:
        case {"type": "text", "text": str(text)}:
            return text[:most]
        case {"type": "resource_link", "uri": str(uri)}:
            return line(uri)
        case {"type": "resource", "resource": {"text": str(text)}}:
            return text[:most]
        case {"type": str(kind)} if kind != "text":
            return f"[{line(kind, 20)}]"
    return ""


def plan_of(entries: Any) -> tuple[PlanStep, ...]:
    """The steps of a plan."""
    known: dict[Any, Literal["pending", "in_progress", "completed"]]
    known = {"in_progress": "in_progress", "completed": "completed"}
    dicts = read_all(dict[str, Any], entries, MAX_STEPS)
    steps = [(line(entry.get("content"), MAX_DESCRIPTION), str(entry.get("status"))) for entry in dicts]
    return tuple(PlanStep(text, known.get(status, "pending")) for text, status in steps if text)


def commands_of(values: Any) -> tuple[AgentCommand, ...]:
    """The commands that an agent offers."""
    dicts = read_all(dict[str, Any], values, MAX_COMMANDS)
    commands = [
        AgentCommand(line(each.get("name"), 80), line(each.get("description"), MAX_DESCRIPTION), _hint(each))
        for each in dicts
    ]
    return tuple(command for command in commands if command.name)


def _hint(command: dict[str, Any]) -> str:
    given = command.get("input")
    return line(given.get("hint"), 80) if isinstance(given, dict) else ""


def choices_of(session: dict[str, Any]) -> tuple[AgentChoice, ...]:
    """What may be chosen in a session: its ``configOptions``, else its ``modes`` and ``models``."""
    options = read_all(ConfigOption, session.get("configOptions"), MAX_CHOICES)
    choices = [_choice(each.id, each.name, each.current_value, each.options) for each in options]
    if not choices:
        modes, models = (session.get(key) for key in ("modes", "models"))
        if isinstance(modes, dict):
            choices.append(_choice("mode", "Mode", modes.get("currentModeId"), modes.get("availableModes")))
        if isinstance(models, dict):
            choices.append(_choice("model", "Model", models.get("currentModelId"), models.get("availableModels")))
    return tuple(choice for choice in choices if choice.options)


def _choice(name: str, title: str, value: Any, options: Any) -> AgentChoice:
    named = [
        (option.value or option.id or option.model_id, line(option.name or option.value)) for option in _flat(options)
    ]
    given = tuple((key, shown or line(key)) for key, shown in named if 0 < len(key) <= MAX_TITLE)
    return AgentChoice(name[:80], line(title) or line(name), value[:MAX_TITLE] if isinstance(value, str) else "", given)


def _flat(options: Any) -> Iterator[Option]:
    """Options may stand in groups."""
    for value in options[:MAX_OPTIONS] if isinstance(options, list) else ():
        group = value.get("options") if isinstance(value, dict) else None
        yield from read_all(Option, group if isinstance(group, list) else [value], MAX_OPTIONS)
