"""Every verb of the screen, once. Key bindings, the palette, the key bar and the help screen are made from here."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum

from textual.binding import Binding


class Where(StrEnum):
    """What must have the keys for a verb's key to work."""

    ANYWHERE = "anywhere"
    DASHBOARD = "on the dashboard"
    CHAT = "in the chat"
    BENCH = "on the Bench screen"
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
    typed: str = ""
    """How the key is written while a text has the keys; empty: as always."""
    palette: bool = True
    changes: bool = False
    """Whether it changes a server; refused on one that gpubox did not start."""


VERBS = (
    Verb("switch", "enter", "⏎", "Switch to the highlighted profile", "Start it, or replace what runs by it; if it "
         "does not come up, what ran before runs again. On a model without a profile: make one.",
         Where.LIST, 1, "switch", "switch", changes=True),
    Verb("stop", "s", "s", "Stop the server", "Asks first. On a companion that runs, it stops that one.",
         Where.DASHBOARD, 6, "stop", "stop", changes=True),
    Verb("restart", "r", "r", "Restart the server", "Stop and start what runs, as its profile says today.",
         Where.DASHBOARD, 10, "restart", "restart", changes=True),
    Verb("search", "slash", "/", "Search the profiles", "Narrow the list by name, title and text; esc shows all.",
         Where.DASHBOARD, 5, "find", "ls"),
    Verb("toggle_shipped", "H", "H", "Show or hide the shipped profiles", "Hidden from the start where you have a "
         "profile of your own; shipped-profiles in config.toml says otherwise. A search looks at all.", Where.DASHBOARD,
         0, "", "ls --all"),
    Verb("filter_log", "f", "f", "Filter the log", "Only lines that hold the text; esc shows all.",
         Where.DASHBOARD, 12, "filter", "logs"),
    Verb("focus_profiles", "p", "p", "Show the profiles", "The profile list on the whole screen, and back.",
         Where.DASHBOARD, 4, "profiles", "ls"),
    Verb("focus_memory", "v", "v", "Show the memory alone", "VRAM split and CPU offload on the whole screen, and back.",
         Where.DASHBOARD, 8, "memory", "status"),
    Verb("focus_requests", "t", "t", "Show throughput and requests alone", "Speed and the request list on the whole "
         "screen, and back. Enter on a request shows all its fields.", Where.DASHBOARD, 9, "requests", "ps"),
    Verb("focus_log", "l", "l", "Show the log alone", "The log on the whole screen, and back.",
         Where.DASHBOARD, 7, "log", "logs"),
    Verb("failed_log", "F", "F", "Show the log of the last failure", "Of the last start that failed, or the server "
         "that died; what was started since has its own.", Where.DASHBOARD, 0, "", "logs --failed"),
    Verb("focus_detail", "d", "d", "Show the details alone", "Everything about the highlighted profile, and back.",
         Where.DASHBOARD, 11, "details", "show"),
    Verb("copy", "y", "y", "Copy the command line", "The highlighted profile's exact command line, into the "
         "clipboard of your terminal (OSC 52, also over SSH).", Where.DASHBOARD, 13, "copy", "show"),
    Verb("show_dashboard", "1", "1", "Dashboard", "What runs, its memory and its speed.", command="status"),
    Verb("show_chat", "2,c", "c", "Chat with the model", "It writes code, runs it confined, looks, and goes on. "
         "1 or esc comes back here.", Where.ANYWHERE, 4, "chat", "chat"),
    Verb("show_bench", "3,B", "B", "Benchmarks", "Runs, what they came to, leaderboard and comparisons. 1 or esc comes "
         "back here.", Where.ANYWHERE, 6, "bench", "bench ls"),
    Verb("bench_speed", "b", "b", "Measure what runs", "speed on the active profile: asks first, and says what it will "
         "do.", Where.DASHBOARD, 16, "measure", "bench speed"),
    Verb("help", "question_mark,f1", "?", "Help", "Keys, words, marks, and where files are. F1 also while you write.",
         Where.ANYWHERE, 3, "help", typed="F1"),
    Verb("command_palette", "ctrl+p", "^p", "Command palette", "All verbs and profiles by name.",
         Where.ANYWHERE, 14, "palette", palette=False),
    Verb("quit", "q", "q", "Quit", "Leaves this screen; the server keeps running. Ctrl-Q also while you "
         "write.", Where.ANYWHERE, 2, "quit", typed="^q"),
    Verb("back", "escape", "esc", "Back", "One level back: search, filter, a pane alone. Never quits.",
         Where.ANYWHERE, 3, "back", palette=False),
    Verb("down", "j", "j ↓", "Down", "", Where.LISTS, palette=False),
    Verb("up", "k", "k ↑", "Up", "", Where.LISTS, palette=False),
    Verb("top", "g", "g", "To the first line", "", Where.LISTS, palette=False),
    Verb("bottom", "G", "G", "To the last line", "In the log: follow it again.", Where.LISTS, palette=False),
    Verb("next_pane", "tab", "tab", "Next pane", "Shift-tab goes back.", palette=False),
    Verb("chat_send", "enter", "⏎", "Send the prompt", "What stands in the box at the foot.", Where.CHAT, 1, "send",
         "chat", palette=False),
    Verb("chat_new_line", "ctrl+j", "^j", "New line in the prompt", "", Where.CHAT, palette=False),
    Verb("chat_last", "up", "↑", "Edit the last prompt", "In an empty box; Enter asks it instead of the last turn, "
         "which is kept beside it.", Where.CHAT, 6, "edit last", palette=False),
    Verb("chat_list", "ctrl+l,l", "^l", "Show the chats", "Open, rename or delete one.", Where.CHAT, 4, "chats",
         "chat ls"),
    Verb("chat_search", "slash", "/", "Search all chats", "By name and by what was said.", Where.CHAT, 0, "",
         "chat search"),
    Verb("chat_new", "ctrl+n,n", "^n", "New chat", "Its first prompt names it.", Where.CHAT, 7, "new"),
    Verb("chat_settings", "ctrl+t,t", "^t", "Settings of this chat", "System prompt, thinking, sampling, workspace, "
         "approvals and limits, where they are to differ from the profile's.", Where.CHAT, 5, "settings"),
    Verb("chat_fold", "ctrl+o,o", "^o", "Unfold or fold thinking and tools", "A click does it for one.",
         Where.CHAT, 2, "unfold"),
    Verb("chat_retry", "ctrl+r,r", "^r", "Ask the last prompt again", "The answer before is kept beside the new one.",
         Where.CHAT, 8, "retry"),
    Verb("chat_branch", "b", "b", "Branch a new chat here", "With all up to the turn in view; this one stays as it is.",
         Where.CHAT, 0, "", "chat branch"),
    Verb("chat_copy_code", "ctrl+y,y", "^y", "Copy the code", "The last block of the turn in view; again: the one "
         "before it.", Where.CHAT, 9, "copy code"),
    Verb("chat_save_code", "ctrl+s,w", "^s", "Save the code to a file", "The block that was copied last, else the last "
         "one. Never overwrites.", Where.CHAT, 10, "save code"),
    Verb("chat_copy_answer", "Y", "Y", "Copy the answer", "The text of the turn in view.", Where.CHAT),
    Verb("chat_rename", "R", "R", "Rename this chat", "", Where.CHAT, 0, "", "chat rename"),
    Verb("chat_delete", "X", "X", "Delete this chat", "Asks first.", Where.CHAT, 0, "", "chat rm"),
    Verb("chat_back", "escape", "esc", "Stop the answer, or one level back", "The list, the edit, the prompt; then the "
         "dashboard.", Where.CHAT, 4, "stop, back", palette=False),
    Verb("bench_open", "enter", "⏎", "Show the report alone", "esc comes back to the list.", Where.BENCH, 1, "report",
         "bench show", palette=False),
    Verb("bench_plan", "n", "n", "Plan a run", "Kind, profile and options; says what it will do before it begins.",
         Where.BENCH, 2, "new", "bench --plan"),
    Verb("bench_measure", "b", "b", "Measure what runs", "speed on the active profile, as on the dashboard.",
         Where.BENCH, 10, "measure", "bench speed", palette=False),
    Verb("bench_mark", "space", "space", "Mark a run", "Two marked runs can be compared.", Where.BENCH, 7, "mark"),
    Verb("bench_compare", "v", "v", "Compare the two marked runs", "Row by row: better, a regression, or noise.",
         Where.BENCH, 5, "compare", "bench compare"),
    Verb("bench_board", "L", "L", "Leaderboard", "The profiles in order, of each protocol; again: the report.",
         Where.BENCH, 6, "leaderboard", "bench leaderboard"),
    Verb("bench_live", "o", "o", "Show the run at work", "Whoever started it.", Where.BENCH, 9, "at work"),
    Verb("bench_resume", "r", "r", "Go on with a run", "Only what has no result yet is done.", Where.BENCH, 4, "resume",
         "bench resume"),
    Verb("bench_save", "w", "w", "Save the best cell of a sweep", "As a profile of your own.", Where.BENCH, 3,
         "save as profile", "bench save"),
    Verb("bench_give_back", "u", "u", "Give back what ran before", "Where a run was killed and its server still "
         "stands there; the run stays as it is.", Where.BENCH, 3, "give back", "bench give-back"),
    Verb("bench_remove", "x", "x", "Stop or delete a run", "Stops the one at work, deletes any other; asks first.",
         Where.BENCH, 8, "stop/delete", "bench rm"),
    Verb("bench_export", "e", "e", "Export what is shown", "Markdown, CSV, JSON or SVG, without paths, hosts and keys.",
         Where.BENCH, 6, "export", "bench export"),
    Verb("chat_write", "i", "i", "To the prompt", "From the text back to the box at the foot.", Where.CHAT,
         1, "prompt", palette=False),
)  # fmt: skip

BY_ID = {verb.id: verb for verb in VERBS}
OPENS_INPUT = {"search", "filter_log"}
"""Handled before the pane that has the keys: what is typed right behind "/" must reach the search, not the list,
where Enter would switch. The app lets them pass as letters while a text is being typed."""
_OWN_KEYS = {"bench_open", "switch", "next_pane", "chat_send", "chat_new_line", "chat_last"}
"""Answered by the list, by Textual and by the prompt box themselves."""


_NEEDLESS = {Where.CHAT: ("show_chat", "show_bench", "back"), Where.BENCH: ("show_bench",)}
"""Keys that a screen's bar need not show: its own, and in the chat those that are letters of a prompt."""


def writes(verb: Verb) -> bool:
    """Whether its key is a letter where a text has the keys."""
    key = verb.key.split(",")[0]
    return not verb.typed and (len(key) == 1 or key in {"slash", "question_mark", "space"})


def bindings(*where: Where) -> list[Binding]:
    """The bindings of the verbs that work there."""
    return [
        Binding(verb.key, _action(verb), verb.title, show=False, id=verb.id, priority=verb.id in OPENS_INPUT)
        for verb in VERBS
        if verb.where in where and verb.id not in _OWN_KEYS
    ]


def _action(verb: Verb) -> str:
    """What its key runs: the dashboard's verbs are the app's, so that the palette finds them on any screen."""
    return f"app.{verb.id}" if verb.where is Where.DASHBOARD else verb.id


def bar_verbs(place: Where = Where.DASHBOARD) -> Iterable[Verb]:
    """The verbs of the key bar of a screen, the most important first."""
    own = {Where.ANYWHERE, *((place,) if place in _NEEDLESS else (Where.DASHBOARD, Where.LIST, Where.LISTS))}
    found = [verb for verb in VERBS if verb.bar and verb.where in own and verb.id not in _NEEDLESS.get(place, ())]
    return sorted(found, key=lambda verb: verb.bar)
