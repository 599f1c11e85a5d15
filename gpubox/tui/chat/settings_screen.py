"""The settings of one chat. Empty is: as the profile has it."""

from __future__ import annotations

from typing import Any

from textual import events, on
from textual.app import ComposeResult
from textual.containers import Horizontal, Vertical, VerticalScroll
from textual.content import Content
from textual.message import Message
from textual.screen import ModalScreen
from textual.widgets import Input, Static, TextArea

from gpubox.agent.transcript.records import ChatSettings
from gpubox.errors import UsageError
from gpubox.tui.chat.service import ProfileDefaults
from gpubox.tui.chat.settings_form import (
    CYCLES,
    SETTING_FIELDS,
    SettingField,
    changed_settings,
    field_texts,
    next_value,
    placeholder_of,
    value_label,
)


class CycleField(Static, can_focus=True):
    """A value out of a few: Enter, space and the arrows go on to the next."""

    class Turned(Message):
        """Another value."""

    def __init__(self, name: str, value: Any) -> None:
        super().__init__(markup=False, classes="value")
        self.field, self.value = name, value
        self._show()

    def _show(self) -> None:
        self.update(Content.assemble(("‹ ", "$quiet"), value_label(self.field, self.value), (" ›", "$quiet")))

    def on_key(self, event: events.Key) -> None:
        if event.key in ("enter", "space", "right", "left"):
            event.stop()
            times = len(CYCLES[self.field]) - 1 if event.key == "left" else 1
            for _ in range(times):
                self.value = next_value(self.field, self.value)
            self._show()

    def on_click(self) -> None:
        self.value = next_value(self.field, self.value)
        self._show()


class ChatSettingsScreen(ModalScreen[ChatSettings | None]):
    """Returns the new settings; ``None`` for esc. ctrl+s takes them, as Enter does in a row that is written in."""

    DEFAULT_CSS = """
    ChatSettingsScreen { align: center middle; background: $background 60%; }
    ChatSettingsScreen > Vertical {
        width: 88; max-width: 100%; height: auto; max-height: 100%; padding: 0 1; background: $panel;
        border: round $line-focus; border-title-color: $foreground; border-title-style: bold;
        border-subtitle-color: $quiet;
    }
    ChatSettingsScreen VerticalScroll { height: auto; max-height: 1fr; scrollbar-size-vertical: 1; }
    ChatSettingsScreen Horizontal { height: 1; }
    ChatSettingsScreen .label { width: 16; color: $secondary; }
    ChatSettingsScreen .value { width: 31; height: 1; background: $line; margin-right: 1; padding: 0 1; }
    ChatSettingsScreen Static.value, ChatSettingsScreen .about { text-wrap: nowrap; text-overflow: ellipsis; }
    ChatSettingsScreen .value:focus { background: $cursor; text-style: bold; }
    ChatSettingsScreen .about { width: 1fr; color: $quiet; }
    ChatSettingsScreen .head { height: 1; color: $secondary; margin-top: 1; }
    ChatSettingsScreen TextArea {
        height: 5; border: none; padding: 0 1; background: $line; scrollbar-size-vertical: 1;
        & .text-area--cursor-line { background: $line; }
        & .text-area--placeholder { color: $quiet; }
    }
    ChatSettingsScreen #wrong { height: auto; color: $error; }
    """
    BINDINGS = [  # noqa: RUF012
        ("escape", "dismiss(None)", "Cancel"),
        ("ctrl+s", "take", "Take"),
        ("down", "app.focus_next", "Next"),
        ("up", "app.focus_previous", "Previous"),
    ]

    def __init__(self, settings: ChatSettings, defaults: ProfileDefaults) -> None:
        super().__init__()
        self.settings, self.defaults = settings, defaults
        self.inputs: dict[str, Input] = {}
        self.cycles: dict[str, CycleField] = {}

    def compose(self) -> ComposeResult:
        with Vertical() as box:
            box.border_title, box.border_subtitle = "This chat", "ctrl+s takes it, esc leaves it as it was"
            with VerticalScroll(can_focus=False):
                written = field_texts(self.settings)
                for row in SETTING_FIELDS:
                    yield from self._row(row, written)
                yield Static("system prompt", classes="head", markup=False)
                self.system = TextArea(
                    self.settings.system_prompt or "", tab_behavior="focus", show_line_numbers=False,
                    highlight_cursor_line=False, placeholder=self.defaults.system_prompt,
                )  # fmt: skip
                self.system.cursor_blink = False
                yield self.system
            self.wrong = Static("", id="wrong", markup=False)
            yield self.wrong

    def on_mount(self) -> None:
        self.set_focus(self.cycles["thinking"])

    def _row(self, row: SettingField, written: dict[str, str]) -> ComposeResult:
        with Horizontal():
            yield Static(row.label, classes="label", markup=False)
            if row.name in CYCLES:
                self.cycles[row.name] = CycleField(row.name, getattr(self.settings, row.name))
                yield self.cycles[row.name]
            else:
                field = Input(
                    written[row.name], compact=True, classes="value", placeholder=placeholder_of(row, self.defaults)
                )
                self.inputs[row.name] = field
                yield field
            yield Static(row.about, classes="about", markup=False)

    @on(Input.Submitted)
    def action_take(self) -> None:
        system = self.system.text.strip() or None
        try:
            made = changed_settings(
                self.settings,
                {name: field.value for name, field in self.inputs.items()},
                {name: cycle.value for name, cycle in self.cycles.items()},
                system,
            )
        except UsageError as error:
            self.wrong.update(error.message)
            return
        self.dismiss(made)
