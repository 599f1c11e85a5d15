"""What an action is: where its key works, what it does at most, and how its key is written."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Scope(StrEnum):
    """Where the key of an action works."""

    ANYWHERE = "anywhere"
    DASHBOARD = "on the dashboard"
    CHAT = "in the chat"
    DIFF = "in the diff"
    BENCH = "on the Bench screen"
    MODELS = "on the models screen"
    LIST = "in the profile list"
    LISTS = "in a list or the log"
    EDITOR = "in the editor"
    TRIAL = "during a trial"
    CLIENTS = "on the Clients screen"
    CONNECT = "while connecting a client"
    ADVICE = "in the advice"


class Effect(StrEnum):
    """What an action does at most. A key that moves or opens on one screen never destroys or decides on another."""

    MOVES = "moves"
    OPENS = "opens"
    CHANGES = "changes"
    DESTROYS = "destroys"
    DECIDES = "decides"


@dataclass(frozen=True, slots=True)
class Action:
    """One thing the owner can do. ``id`` is the binding's id, and ``action_<id>`` the method that does it."""

    id: str
    key: str
    """Textual's name; several separated by commas. Of an action that is not ``bound``: its letter in the menu."""
    title: str
    help: str
    scope: Scope
    effect: Effect
    bar_priority: int = 0
    """Position in the key bar; 0: not in it. High numbers are dropped first on a narrow terminal."""
    bar_label: str = ""
    command: str = ""
    """The CLI verb that does the same; empty if there is none."""
    words: str = ""
    """What somebody may call it who does not know its title: the palette finds it by them."""
    panes: str = ""
    """The panes of the dashboard in whose menu it stands; ``*``: all. On other screens the menu has all actions."""
    bound: bool = True
    """False: its key works only in the menu."""
    label: str = ""
    """Replaces the key's name."""
    label_typing: str = ""
    """Replaces ``key_label`` while a text input has the focus."""
    palette: bool = True
    slash: str = ""
    """What runs it in the prompt of the chat, behind a slash."""
    changes_server: bool = False
    """Refused on a server that gpubox did not start."""

    @property
    def keys(self) -> tuple[str, ...]:
        return tuple(filter(None, self.key.split(",")))

    @property
    def key_label(self) -> str:
        """Its key as it is written on the screen; ``menu`` if it works only there; empty if it has none."""
        if self.bound:
            return self.label or self.letter
        return {Scope.ANYWHERE: "", Scope.TRIAL: "⏎"}.get(self.scope, "menu")

    @property
    def letter(self) -> str:
        """Its first key as the menu shows it."""
        key = self.keys[0] if self.keys else ""
        return KEY_LABELS.get(key) or key.replace("ctrl+", "^")


KEY_LABELS = {
    "enter": "⏎", "slash": "/", "question_mark": "?", "escape": "esc", "equals_sign": "=", "delete": "del",
    "up": "↑", "left_square_bracket": "[", "right_square_bracket": "]", "right": "→", "left": "←", "backspace": "⌫",
}  # fmt: skip
TEXT_KEYS = {"slash", "question_mark", "space", "plus", "minus", "backspace"}
"""Keys with a name of their own that type or delete a character."""
