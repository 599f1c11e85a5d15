"""Every verb of the screen, once. Key bindings, the palette, the key bar and the help screen are made from here."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum

from textual.binding import Binding


class Scope(StrEnum):
    """What must have the keys for a verb's key to work."""

    ANYWHERE = "anywhere"
    DASHBOARD = "on the dashboard"
    CHAT = "in the chat"
    BENCH = "on the Bench screen"
    LIST = "in the profile list"
    LISTS = "in a list or the log"


@dataclass(frozen=True, slots=True)
class Action:
    """One thing the owner can do. ``id`` is also the binding's id and the name of ``action_<id>``."""

    id: str
    key: str
    """Textual's names; a comma list where several keys do it."""
    shown: str
    """The key as a person writes it."""
    title: str
    help: str
    where: Scope = Scope.ANYWHERE
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


ACTIONS = (
    Action("switch", "enter", "⏎", "Switch to the highlighted profile", "Start it, or replace what runs by it; if it "
         "does not come up, what ran before runs again. On a model without a profile: make one.",
         Scope.LIST, 1, "switch", "switch", changes=True),
    Action("stop", "s", "s", "Stop the server", "Asks first. On a companion that runs, it stops that one.",
         Scope.DASHBOARD, 6, "stop", "stop", changes=True),
    Action("restart", "r", "r", "Restart the server", "Stop and start what runs, as its profile says today.",
         Scope.DASHBOARD, 10, "restart", "restart", changes=True),
    Action("search", "slash", "/", "Search the profiles", "Narrow the list by name, title and text; esc shows all.",
         Scope.DASHBOARD, 5, "find", "ls"),
    Action("toggle_shipped", "H", "H", "Show or hide the shipped profiles", "Hidden from the start where you have a "
         "profile of your own; shipped-profiles in config.toml says otherwise. A search looks at all.", Scope.DASHBOARD,
         0, "", "ls --all"),
    Action("filter_log", "f", "f", "Filter the log", "Only lines that hold the text; esc shows all.",
         Scope.DASHBOARD, 12, "filter", "logs"),
    Action("focus_profiles", "p", "p", "Show the profiles", "The profile list on the whole screen, and back.",
         Scope.DASHBOARD, 4, "profiles", "ls"),
    Action("focus_memory", "v", "v", "Show the memory alone", "VRAM split and CPU offload on the whole screen, and back.",
         Scope.DASHBOARD, 8, "memory", "status"),
    Action("focus_requests", "t", "t", "Show throughput and requests alone", "Speed and the request list on the whole "
         "screen, and back. Enter on a request shows all its fields.", Scope.DASHBOARD, 9, "requests", "ps"),
    Action("focus_log", "l", "l", "Show the log alone", "The log on the whole screen, and back.",
         Scope.DASHBOARD, 7, "log", "logs"),
    Action("failed_log", "F", "F", "Show the log of the last failure", "Of the last start that failed, or the server "
         "that died; what was started since has its own.", Scope.DASHBOARD, 0, "", "logs --failed"),
    Action("focus_detail", "d", "d", "Show the details alone", "Everything about the highlighted profile, and back.",
         Scope.DASHBOARD, 11, "details", "show"),
    Action("copy", "y", "y", "Copy the command line", "The highlighted profile's exact command line, into the "
         "clipboard of your terminal (OSC 52, also over SSH).", Scope.DASHBOARD, 13, "copy", "show"),
    Action("show_dashboard", "1", "1", "Dashboard", "What runs, its memory and its speed.", command="status"),
    Action("show_chat", "2,c", "c", "Chat with the model", "It writes code, runs it confined, looks, and goes on. "
         "1 or esc comes back here.", Scope.ANYWHERE, 4, "chat", "chat"),
    Action("show_bench", "3,B", "B", "Benchmarks", "Runs, what they came to, leaderboard and comparisons. 1 or esc comes "
         "back here.", Scope.ANYWHERE, 6, "bench", "bench ls"),
    Action("bench_speed", "b", "b", "Measure what runs", "speed on the active profile: asks first, and says what it will "
         "do.", Scope.DASHBOARD, 16, "measure", "bench speed"),
    Action("help", "question_mark,f1", "?", "Help", "Keys, words, marks, and where files are. F1 also while you write.",
         Scope.ANYWHERE, 3, "help", typed="F1"),
    Action("command_palette", "ctrl+p", "^p", "Command palette", "All verbs and profiles by name.",
         Scope.ANYWHERE, 14, "palette", palette=False),
    Action("quit", "q", "q", "Quit", "Leaves this screen; the server keeps running. Ctrl-Q also while you "
         "write.", Scope.ANYWHERE, 2, "quit", typed="^q"),
    Action("back", "escape", "esc", "Back", "One level back: search, filter, a pane alone. Never quits.",
         Scope.ANYWHERE, 3, "back", palette=False),
    Action("down", "j", "j ↓", "Down", "", Scope.LISTS, palette=False),
    Action("up", "k", "k ↑", "Up", "", Scope.LISTS, palette=False),
    Action("top", "g", "g", "To the first line", "", Scope.LISTS, palette=False),
    Action("bottom", "G", "G", "To the last line", "In the log: follow it again.", Scope.LISTS, palette=False),
    Action("next_pane", "tab", "tab", "Next pane", "Shift-tab goes back.", palette=False),
    Action("chat_send", "enter", "⏎", "Send the prompt", "What stands in the box at the foot.", Scope.CHAT, 1, "send",
         "chat", palette=False),
    Action("chat_new_line", "ctrl+j", "^j", "New line in the prompt", "", Scope.CHAT, palette=False),
    Action("chat_last", "up", "↑", "Edit the last prompt", "In an empty box; Enter asks it instead of the last turn, "
         "which is kept beside it.", Scope.CHAT, 6, "edit last", palette=False),
    Action("chat_list", "ctrl+l,l", "^l", "Show the chats", "Open, rename or delete one.", Scope.CHAT, 4, "chats",
         "chat ls"),
    Action("chat_search", "slash", "/", "Search all chats", "By name and by what was said.", Scope.CHAT, 0, "",
         "chat search"),
    Action("chat_new", "ctrl+n,n", "^n", "New chat", "Its first prompt names it.", Scope.CHAT, 7, "new"),
    Action("chat_settings", "ctrl+t,t", "^t", "Settings of this chat", "System prompt, thinking, sampling, workspace, "
         "approvals and limits, where they are to differ from the profile's.", Scope.CHAT, 5, "settings"),
    Action("chat_fold", "ctrl+o,o", "^o", "Unfold or fold thinking and tools", "A click does it for one.",
         Scope.CHAT, 2, "unfold"),
    Action("chat_retry", "ctrl+r,r", "^r", "Ask the last prompt again", "The answer before is kept beside the new one.",
         Scope.CHAT, 8, "retry"),
    Action("chat_branch", "b", "b", "Branch a new chat here", "With all up to the turn in view; this one stays as it is.",
         Scope.CHAT, 0, "", "chat branch"),
    Action("chat_copy_code", "ctrl+y,y", "^y", "Copy the code", "The last block of the turn in view; again: the one "
         "before it.", Scope.CHAT, 9, "copy code"),
    Action("chat_save_code", "ctrl+s,w", "^s", "Save the code to a file", "The block that was copied last, else the last "
         "one. Never overwrites.", Scope.CHAT, 10, "save code"),
    Action("chat_copy_answer", "Y", "Y", "Copy the answer", "The text of the turn in view.", Scope.CHAT),
    Action("chat_rename", "R", "R", "Rename this chat", "", Scope.CHAT, 0, "", "chat rename"),
    Action("chat_delete", "X", "X", "Delete this chat", "Asks first.", Scope.CHAT, 0, "", "chat rm"),
    Action("chat_back", "escape", "esc", "Stop the answer, or one level back", "The list, the edit, the prompt; then the "
         "dashboard.", Scope.CHAT, 4, "stop, back", palette=False),
    Action("bench_open", "enter", "⏎", "Show the report alone", "esc comes back to the list.", Scope.BENCH, 1, "report",
         "bench show", palette=False),
    Action("bench_plan", "n", "n", "Plan a run", "Kind, profile and options; says what it will do before it begins.",
         Scope.BENCH, 2, "new", "bench --dry-run"),
    Action("bench_measure", "b", "b", "Measure what runs", "speed on the active profile, as on the dashboard.",
         Scope.BENCH, 10, "measure", "bench speed", palette=False),
    Action("bench_mark", "space", "space", "Mark a run", "Two marked runs can be compared.", Scope.BENCH, 7, "mark"),
    Action("bench_compare", "v", "v", "Compare the two marked runs", "Row by row: better, a regression, or noise.",
         Scope.BENCH, 5, "compare", "bench compare"),
    Action("bench_board", "L", "L", "Leaderboard", "The profiles in order, of each protocol; again: the report.",
         Scope.BENCH, 6, "leaderboard", "bench leaderboard"),
    Action("bench_live", "o", "o", "Show the run at work", "Whoever started it.", Scope.BENCH, 9, "at work"),
    Action("bench_resume", "r", "r", "Go on with a run", "Only what has no result yet is done.", Scope.BENCH, 4, "resume",
         "bench resume"),
    Action("bench_save", "w", "w", "Save the best cell of a sweep", "As a profile of your own.", Scope.BENCH, 3,
         "save as profile", "bench save"),
    Action("bench_restore", "u", "u", "Give back what ran before", "Where a run was killed and its server still "
         "stands there; the run stays as it is.", Scope.BENCH, 3, "give back", "bench restore"),
    Action("bench_remove", "x", "x", "Stop or delete a run", "Stops the one at work, deletes any other; asks first.",
         Scope.BENCH, 8, "stop/delete", "bench rm"),
    Action("bench_export", "e", "e", "Export what is shown", "Markdown, CSV, JSON or SVG, without paths, hosts and keys.",
         Scope.BENCH, 6, "export", "bench export"),
    Action("chat_write", "i", "i", "To the prompt", "From the text back to the box at the foot.", Scope.CHAT,
         1, "prompt", palette=False),
)  # fmt: skip

ACTIONS_BY_ID = {verb.id: verb for verb in ACTIONS}
OPENS_INPUT = {"search", "filter_log"}
"""Handled before the pane that has the keys: what is typed right behind "/" must reach the search, not the list,
where Enter would switch. The app lets them pass as letters while a text is being typed."""
_OWN_KEYS = {"bench_open", "switch", "next_pane", "chat_send", "chat_new_line", "chat_last"}
"""Answered by the list, by Textual and by the prompt box themselves."""


_NEEDLESS = {Scope.CHAT: ("show_chat", "show_bench", "back"), Scope.BENCH: ("show_bench",)}
"""Keys that a screen's bar need not show: its own, and in the chat those that are letters of a prompt."""


def types_text(verb: Action) -> bool:
    """Whether its key is a letter where a text has the keys."""
    key = verb.key.split(",")[0]
    return not verb.typed and (len(key) == 1 or key in {"slash", "question_mark", "space"})


def bindings(*where: Scope) -> list[Binding]:
    """The bindings of the verbs that work there."""
    return [
        Binding(verb.key, _action(verb), verb.title, show=False, id=verb.id, priority=verb.id in OPENS_INPUT)
        for verb in ACTIONS
        if verb.where in where and verb.id not in _OWN_KEYS
    ]


def _action(verb: Action) -> str:
    """What its key runs: the dashboard's verbs are the app's, so that the palette finds them on any screen."""
    return f"app.{verb.id}" if verb.where is Scope.DASHBOARD else verb.id


def key_bar_actions(place: Scope = Scope.DASHBOARD) -> Iterable[Action]:
    """The verbs of the key bar of a screen, the most important first."""
    own = {Scope.ANYWHERE, *((place,) if place in _NEEDLESS else (Scope.DASHBOARD, Scope.LIST, Scope.LISTS))}
    found = [verb for verb in ACTIONS if verb.bar and verb.where in own and verb.id not in _NEEDLESS.get(place, ())]
    return sorted(found, key=lambda verb: verb.bar)
