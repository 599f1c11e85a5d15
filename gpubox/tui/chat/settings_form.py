"""What a chat does differently from its profile, as rows of a form: value to text and back. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import msgspec

from gpubox.agent.settings import AgentSettings
from gpubox.agent.transcript.records import ChatSettings
from gpubox.errors import UsageError
from gpubox.tui.chat.service import ProfileDefaults

SAMPLING = ("temperature", "top_p", "top_k", "min_p", "repeat_penalty", "seed")
CYCLES: dict[str, tuple[tuple[Any, str], ...]] = {
    "thinking": ((None, "as the model does"), (True, "on"), (False, "off")),
    "tools": ((True, "on"), (False, "off")),
    "approvals": (("ask", "ask for each"), ("workspace", "allow in the workspace"), ("never", "never")),
    "protocol": ((None, "chosen for the model"), ("native", "the template's own"), ("fenced", "```python blocks")),
}
"""Fields with a few values each: the value, and its word."""


@dataclass(frozen=True, slots=True)
class SettingField:
    """One row: the field's name, its label, what it is for."""

    name: str
    label: str
    about: str
    placeholder: str = ""
    """What holds where nothing is written."""


SETTING_FIELDS = (
    SettingField("thinking", "thinking", "before it answers"),
    SettingField("thinking_budget_tokens", "thinking tokens", "then its thinking is closed", "no limit"),
    SettingField("tools", "tools", "run code, use files"),
    SettingField("protocol", "tool calls", "how the model asks for them"),
    SettingField("workdir", "workspace", "a folder it may work in", "none"),
    SettingField("approvals", "writes", "into the workspace"),
    SettingField("rounds", "rounds", "requests in one turn", str(AgentSettings().rounds)),
    SettingField("max_tokens", "max_tokens", "of one round", str(AgentSettings().max_tokens)),
    *(SettingField(name, name, "sampling", "the server's own") for name in SAMPLING),
)


def placeholder_of(row: SettingField, defaults: ProfileDefaults) -> str:
    """What holds where nothing is written in ``row``."""
    value = defaults.sampling.get(row.name)
    return row.placeholder if value is None else f"{value:g}, as the profile has it"


def field_texts(settings: ChatSettings) -> dict[str, str]:
    """What stands in the rows that are written in; empty: as the profile has it."""
    found = {name: _text(getattr(settings, name)) for name in ("rounds", "max_tokens", "thinking_budget_tokens")}
    found["workdir"] = settings.workdir
    return found | {name: _text(settings.sampling.get(name)) for name in SAMPLING}


def changed_settings(
    settings: ChatSettings, written: Mapping[str, str], cycled: Mapping[str, Any], system: str | None
) -> ChatSettings:
    """The settings with what was written and cycled. Raises UsageError for a text that is no number."""
    sampling = {name: value for name, value in settings.sampling.items() if name not in SAMPLING}
    for name in SAMPLING:
        if (value := _number(name, written[name])) is not None:
            sampling[name] = value
    counts = {name: _count(name, written[name]) for name in ("rounds", "max_tokens", "thinking_budget_tokens")}
    return msgspec.structs.replace(
        settings, **counts, **cycled, sampling=sampling, workdir=written["workdir"].strip(), system_prompt=system
    )


def next_value(name: str, value: Any) -> Any:
    """The value after ``value`` in a row that cycles."""
    values = [one for one, _ in CYCLES[name]]
    return values[(values.index(value) + 1) % len(values)] if value in values else values[0]


def value_label(name: str, value: Any) -> str:
    """The word of a value in a row that cycles."""
    return next((value_label for one, value_label in CYCLES[name] if one == value), str(value))


def _text(value: float | None) -> str:
    return "" if value is None else f"{value:g}"


def _number(name: str, text: str) -> float | None:
    if not text.strip():
        return None
    try:
        value = float(text.replace(",", "."))
    except ValueError:
        raise UsageError(f"{name} must be a number, not {text.strip()[:40]!r}.") from None
    if value != value or value in (float("inf"), float("-inf")):
        raise UsageError(f"{name} must be a number, not {text.strip()[:40]!r}.")
    return int(value) if value.is_integer() else value


def _count(name: str, text: str) -> int | None:
    value = _number(name, text)
    if value is None:
        return None
    if not isinstance(value, int) or not 1 <= value <= 1_000_000:
        raise UsageError(f"{name.replace('_', ' ')} must be a whole number from 1, not {text.strip()[:40]!r}.")
    return value
