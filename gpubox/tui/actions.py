"""Every verb of the screen, once. Key bindings, the palette, the key bar and the help screen are made from here."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum

from textual.binding import Binding


class Where(StrEnum):
    """What must have the keys for a verb's key to work."""

    ANYWHERE = "anywhere"
    LIST = "in the profile list"
    LISTS = "in a list or the log"


@dataclass(frozen=True, slots=True)
class Verb:
    """One thing the owner can do. ``id`` is also the binding's id and the name of ``action_<id>``."""

    id: str
    key: str
    """Textual's names; a comma list where several keys do it."""
    shown: str
    """The key as a person writes it."""
    title: str
    help: str
    where: Where = Where.ANYWHERE
    bar: int = 0
    """Place in the key bar; 0: not in it. The higher, the sooner it gives way on a narrow screen."""
    word: str = ""
    """In the key bar; the first word of the title where empty."""
    command: str = ""
    """The CLI's verb for the same; empty where it is only about looking."""
    palette: bool = True
    changes: bool = False
    """Whether it changes a server; refused on one that gpubox did not start."""


VERBS = (
    Verb("switch", "enter", "⏎", "Switch to the highlighted profile", "Start it, or replace what runs by it; if it "
         "does not come up, what ran before runs again. On a model without a profile: make one.",
         Where.LIST, 1, "switch", "switch", changes=True),
    Verb("stop", "s", "s", "Stop the server", "Asks first. On a companion that runs, it stops that one.",
         Where.ANYWHERE, 6, "stop", "stop", changes=True),
    Verb("restart", "r", "r", "Restart the server", "Stop and start what runs, as its profile says today.",
         Where.ANYWHERE, 10, "restart", "restart", changes=True),
    Verb("search", "slash", "/", "Search the profiles", "Narrow the list by name, title and text; esc shows all.",
         Where.ANYWHERE, 5, "find", "ls"),
    Verb("filter_log", "f", "f", "Filter the log", "Only lines that hold the text; esc shows all.",
         Where.ANYWHERE, 12, "filter", "logs"),
    Verb("focus_profiles", "p", "p", "Show the profiles", "The profile list on the whole screen, and back.",
         Where.ANYWHERE, 4, "profiles", "ls"),
    Verb("focus_memory", "v", "v", "Show the memory alone", "VRAM split and CPU offload on the whole screen, and back.",
         Where.ANYWHERE, 8, "memory", "status"),
    Verb("focus_requests", "t", "t", "Show throughput and requests alone", "Speed and the request list on the whole "
         "screen, and back. Enter on a request shows all its fields.", Where.ANYWHERE, 9, "requests", "ps"),
    Verb("focus_log", "l", "l", "Show the log alone", "The log on the whole screen, and back.",
         Where.ANYWHERE, 7, "log", "logs"),
    Verb("focus_detail", "d", "d", "Show the details alone", "Everything about the highlighted profile, and back.",
         Where.ANYWHERE, 11, "details", "show"),
    Verb("copy", "y", "y", "Copy the command line", "The highlighted profile's exact command line, into the "
         "clipboard of your terminal (OSC 52, also over SSH).", Where.ANYWHERE, 13, "copy", "show"),
    Verb("help", "question_mark", "?", "Help", "Keys, words, marks, and where files are.", Where.ANYWHERE, 3, "help"),
    Verb("command_palette", "ctrl+p", "^p", "Command palette", "All verbs and profiles by name.",
         Where.ANYWHERE, 14, "palette", palette=False),
    Verb("quit", "q", "q", "Quit", "Leaves this screen; the server keeps running.", Where.ANYWHERE, 2, "quit"),
    Verb("back", "escape", "esc", "Back", "One level back: search, filter, a pane alone. Never quits.",
         palette=False),
    Verb("down", "j", "j ↓", "Down", "", Where.LISTS, palette=False),
    Verb("up", "k", "k ↑", "Up", "", Where.LISTS, palette=False),
    Verb("top", "g", "g", "To the first line", "", Where.LISTS, palette=False),
    Verb("bottom", "G", "G", "To the last line", "In the log: follow it again.", Where.LISTS, palette=False),
    Verb("next_pane", "tab", "tab", "Next pane", "Shift-tab goes back.", palette=False),
)  # fmt: skip

BY_ID = {verb.id: verb for verb in VERBS}
OPENS_INPUT = {"search", "filter_log"}
"""Handled before the pane that has the keys: what is typed right behind "/" must reach the search, not the list,
where Enter would switch. The app lets them pass as letters while a text is being typed."""
_OWN_KEYS = {"switch", "next_pane"}  # the list answers Enter itself, Textual answers Tab


def bindings(*where: Where) -> list[Binding]:
    """The bindings of the verbs that work there."""
    return [
        Binding(verb.key, verb.id, verb.title, show=False, id=verb.id, priority=verb.id in OPENS_INPUT)
        for verb in VERBS
        if verb.where in where and verb.id not in _OWN_KEYS
    ]


def bar_verbs() -> Iterable[Verb]:
    """The verbs of the key bar, the most important first."""
    return sorted((verb for verb in VERBS if verb.bar), key=lambda verb: verb.bar)
