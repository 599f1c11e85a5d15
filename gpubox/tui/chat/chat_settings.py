"""The settings of one chat as a form. An empty field inherits from the profile."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec
from textual import on
from textual.app import ComposeResult
from textual.containers import Vertical, VerticalScroll
from textual.widgets import Input, Static, TextArea

from gpubox.agent.chat_log import ChatSettings
from gpubox.agent.settings import AgentSettings
from gpubox.errors import UsageError
from gpubox.tui.dialogs import Dialog
from gpubox.tui.widgets.form import CycleField, FormRow

SAMPLING = ("temperature", "top_p", "top_k", "min_p", "repeat_penalty", "seed")
COUNTS = ("rounds", "max_tokens", "thinking_budget_tokens")
MAX_COUNT = 1_000_000
CHOICES: dict[str, tuple[tuple[Any, str], ...]] = {
    "thinking": ((None, "the model's default"), (True, "on"), (False, "off")),
    "tools": ((True, "on"), (False, "off")),
    "apply": (("ask", "you decide"), ("turn", "taken at each turn's end"), ("plan", "plan only: none")),
    "protocol": ((None, "chosen for the model"), ("native", "native (chat template)"), ("fenced", "```python blocks")),
}
"""Settings with a few values: each value and its label."""


@dataclass(frozen=True, slots=True)
class SettingField:
    """One row of the form; ``name`` is the setting's."""

    name: str
    label: str
    about: str
    default: str = ""
    """What an empty field means, if the profile says nothing."""


SETTING_FIELDS = (
    SettingField("agent", "who answers", "gpubox or one it hosts"),
    SettingField("thinking", "thinking", "before the answer"),
    SettingField("thinking_budget_tokens", "thinking tokens", "at most, then the answer", "no limit"),
    SettingField("tools", "tools", "run code, use files"),
    SettingField("protocol", "tool calls", "format of the calls"),
    SettingField("workdir", "workspace", "folder for its files", "none"),
    SettingField("apply", "changes", "what becomes of them"),
    SettingField("rounds", "rounds", "requests in one turn", str(AgentSettings().rounds)),
    SettingField("max_tokens", "max_tokens", "tokens in one round", str(AgentSettings().max_tokens)),
    *(SettingField(name, name, "sampling", "the server's default") for name in SAMPLING),
)


class ChatSettingsScreen(Dialog[ChatSettings | None]):
    """Returns the new settings, or ``None`` for esc. ctrl+s accepts them, as Enter does in a text field."""

    DEFAULT_CSS = """
    ChatSettingsScreen > Vertical { width: 88; max-width: 100%; height: auto; max-height: 100%; padding: 0 1; }
    ChatSettingsScreen VerticalScroll { height: auto; max-height: 1fr; scrollbar-size-vertical: 1; }
    ChatSettingsScreen FormRow .label { width: 16; }
    ChatSettingsScreen FormRow .value { width: 31; }
    ChatSettingsScreen .head { height: 1; color: $secondary; margin-top: 1; }
    ChatSettingsScreen TextArea {
        height: 5; border: none; padding: 0 1; background: $line; scrollbar-size-vertical: 1;
        & .text-area--cursor-line { background: $line; }
        & .text-area--placeholder { color: $quiet; }
    }
    ChatSettingsScreen #error { height: auto; color: $error; }
    """
    BINDINGS = [  # noqa: RUF012
        ("ctrl+s", "accept", "Accept"),
        ("down", "app.focus_next", "Next"),
        ("up", "app.focus_previous", "Previous"),
    ]

    def __init__(
        self, settings: ChatSettings, system_prompt: str, sampling: Mapping[str, float], agents: Sequence[str]
    ) -> None:
        """``system_prompt`` and ``sampling``: what the chat inherits from the profile; ``agents``: can be hosted."""
        super().__init__()
        self.settings = settings
        self.cycles = {
            name: CycleField(name, choices, getattr(settings, name), enter_cycles=True)
            for name, choices in {**CHOICES, "agent": [("", "gpubox"), *((name, name) for name in agents)]}.items()
        }
        self.inputs = {
            name: Input(text, compact=True, classes="value", placeholder=_placeholder(name, sampling))
            for name, text in _field_texts(settings).items()
        }
        self.system_prompt = TextArea(
            settings.system_prompt or "", tab_behavior="focus", show_line_numbers=False,
            highlight_cursor_line=False, placeholder=system_prompt,
        )  # fmt: skip
        self.system_prompt.cursor_blink = False
        self.error = Static("", id="error", markup=False)

    def compose(self) -> ComposeResult:
        with Vertical() as box:
            box.border_title, box.border_subtitle = "This chat", "^s applies, esc cancels"
            with VerticalScroll(can_focus=False):
                for field in SETTING_FIELDS:
                    yield FormRow(field.label, self.cycles.get(field.name) or self.inputs[field.name], field.about)
                yield Static("system prompt", classes="head", markup=False)
                yield self.system_prompt
            yield self.error

    def on_mount(self) -> None:
        self._show_what_holds()
        self.set_focus(self.cycles["agent" if self.settings.agent else "thinking"])

    @on(CycleField.Changed)
    def _show_what_holds(self) -> None:
        """A hosted agent has settings of its own for all but the workspace."""
        for name, field in {**self.cycles, **self.inputs, "system_prompt": self.system_prompt}.items():
            field.disabled = bool(self.cycles["agent"].value) and name not in ("agent", "workdir", "apply")

    @on(Input.Submitted)
    def action_accept(self) -> None:
        texts = {name: field.value for name, field in self.inputs.items()}
        chosen = {name: field.value for name, field in self.cycles.items()}
        try:
            settings = _changed_settings(self.settings, texts, chosen, self.system_prompt.text.strip() or None)
        except UsageError as error:
            self.error.update(error.message)
        else:
            self.dismiss(settings)


def _field_texts(settings: ChatSettings) -> dict[str, str]:
    """The texts of the text fields; empty: inherited."""
    values = {name: getattr(settings, name) for name in COUNTS}
    values |= {name: settings.sampling.get(name) for name in SAMPLING}
    texts = {name: "" if value is None else f"{value:g}" for name, value in values.items()}
    return texts | {"workdir": settings.workdir}


def _changed_settings(
    settings: ChatSettings, texts: Mapping[str, str], chosen: Mapping[str, Any], system_prompt: str | None
) -> ChatSettings:
    """``settings`` with the texts and chosen values of the form. Raises UsageError if a number is none."""
    sampling = {name: value for name, value in settings.sampling.items() if name not in SAMPLING}
    for name in SAMPLING:
        if (value := _number(name, texts[name])) is not None:
            sampling[name] = value
    counts = {name: _count(name, texts[name]) for name in COUNTS}
    return msgspec.structs.replace(
        settings, **counts, **chosen, sampling=sampling, workdir=texts["workdir"].strip(), system_prompt=system_prompt
    )


def _placeholder(name: str, sampling: Mapping[str, float]) -> str:
    """What an empty field means."""
    if (value := sampling.get(name)) is not None:
        return f"{value:g}, from the profile"
    return next(field.default for field in SETTING_FIELDS if field.name == name)


def _number(name: str, text: str) -> float | None:
    text = text.strip()
    if not text:
        return None
    try:
        value = float(text.replace(",", "."))
    except ValueError:
        value = math.nan
    if not math.isfinite(value):
        raise UsageError(f"{name} must be a number, not {text[:40]!r}.")
    return int(value) if value.is_integer() else value


def _count(name: str, text: str) -> int | None:
    value = _number(name, text)
    if value is not None and not (isinstance(value, int) and 1 <= value <= MAX_COUNT):
        raise UsageError(f"{name.replace('_', ' ')} must be a positive whole number, not {text.strip()[:40]!r}.")
    return None if value is None else int(value)
