"""Every action of the screens, once. Key bindings, palette, key bar and help screen are made from this table."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from textual.binding import Binding

from gpubox.tui.dashboard.layout import PANES


class Scope(StrEnum):
    """Where the key of an action works."""

    ANYWHERE = "anywhere"
    DASHBOARD = "on the dashboard"
    CHAT = "in the chat"
    BENCH = "on the Bench screen"
    MODELS = "on the models screen"
    LIST = "in the profile list"
    LISTS = "in a list or the log"
    EDITOR = "in the editor"
    TRIAL = "during a trial"
    CLIENTS = "on the Clients screen"
    CONNECT = "while connecting a client"
    ADVICE = "in the advice"


@dataclass(frozen=True, slots=True)
class Action:
    """One thing the owner can do. ``id`` is the binding's id, and ``action_<id>`` the method that does it."""

    id: str
    key: str
    """Textual's name; several separated by commas."""
    key_label: str
    title: str
    help: str
    scope: Scope = Scope.ANYWHERE
    bar_priority: int = 0
    """Position in the key bar; 0: not in it. High numbers are dropped first on a narrow terminal."""
    bar_label: str = ""
    command: str = ""
    """The CLI verb that does the same; empty if there is none."""
    key_label_typing: str = ""
    """Replaces ``key_label`` while a text input has the focus."""
    palette: bool = True
    changes_server: bool = False
    """Refused on a server that gpubox did not start."""


ACTIONS = (
    Action("switch", "enter", "⏎", "Switch to the highlighted profile", "Starts it, or replaces the running server. "
           "If it does not start, the previous profile is restored. On a model without a profile: makes one.",
           Scope.LIST, 1, "switch", "switch", changes_server=True),
    Action("stop", "s", "s", "Stop the server", "Asks first. If a running companion is highlighted, stops it instead.",
           Scope.DASHBOARD, 6, "stop", "stop", changes_server=True),
    Action("restart", "r", "r", "Restart the server", "Reads the profile file again first.",
           Scope.DASHBOARD, 10, "restart", "restart", changes_server=True),
    Action("search", "slash", "/", "Search the profiles", "Searches name, title, text and model; esc shows all.",
           Scope.DASHBOARD, 5, "find", "ls"),
    Action("toggle_shipped", "H", "H", "Show or hide the shipped profiles", "Hidden at first if you have a profile of "
           "your own; shipped-profiles in config.toml changes that. A search includes them always.",
           Scope.DASHBOARD, 0, "", "ls --all"),
    Action("filter_log", "f", "f", "Filter the log", "Shows only lines that contain the text; esc shows all.",
           Scope.DASHBOARD, 12, "filter", "logs"),
    Action("zoom_profiles", "p", "p", "Show only the profiles", "The profile list on the whole screen, and back.",
           Scope.DASHBOARD, 4, "profiles", "ls"),
    Action("zoom_memory", "v", "v", "Show only the memory", "VRAM and CPU offload on the whole screen, and back.",
           Scope.DASHBOARD, 8, "memory", "status"),
    Action("zoom_requests", "t", "t", "Show only throughput and requests", "Both on the whole screen, and back. Enter "
           "on a request shows all its fields.", Scope.DASHBOARD, 9, "requests", "history --requests"),
    Action("filter_requests", "h", "h", "Filter the requests of all launches", "profile:x client:y day:today or "
           "2026-11-20, and any text; esc shows all.", Scope.DASHBOARD, 0, "", "history"),
    Action("graph_longer", "left_square_bracket", "[", "Show a longer time in the graph", "5 min, 1 h, 1 day, 30 days: "
           "all but the first come from the history.", Scope.DASHBOARD),
    Action("graph_shorter", "right_square_bracket", "]", "Show a shorter time in the graph", "The last 5 min are "
           "live.", Scope.DASHBOARD),
    Action("slower_since", "S", "S", "Show what became slower, and since when", "The figures before and after, and "
           "what changed then.", Scope.DASHBOARD, 0, "", "history"),
    Action("zoom_log", "l", "l", "Show only the log", "The log on the whole screen, and back.",
           Scope.DASHBOARD, 7, "log", "logs"),
    Action("failed_log", "F", "F", "Show the log of the last failure", "Of the last start that failed, or the last "
           "server that crashed.", Scope.DASHBOARD, 0, "", "logs --failed"),
    Action("zoom_detail", "d", "d", "Show only the details", "Everything about the highlighted profile, and back.",
           Scope.DASHBOARD, 11, "details", "show"),
    Action("copy", "y", "y", "Copy the command line", "The exact command line of the highlighted profile, to the "
           "terminal's clipboard (OSC 52, works over SSH).", Scope.DASHBOARD, 13, "copy", "show --command"),
    Action("edit", "e", "e", "Edit the highlighted profile", "Every flag of its engine, with the command line and "
           "the planned memory. Nothing is written before ^s; T tries the change first.",
           Scope.DASHBOARD, 5, "edit", "edit", changes_server=True),
    Action("external_editor", "E", "E", "Edit the profile's file in $EDITOR", "Also a file that is broken.",
           Scope.DASHBOARD, 0, "", "edit --editor"),
    Action("trial", "T", "T", "Show the trial, or try the change again", "A trial is started in the editor.",
           Scope.DASHBOARD, 0, "", "try", changes_server=True),
    Action("new_profile", "n", "n", "New profile", "From a model or a pasted command line.",
           Scope.DASHBOARD, 17, "new", "import", changes_server=True),
    Action("duplicate", "D", "D", "Duplicate the highlighted profile", "Copies its comments, too.",
           Scope.DASHBOARD, 0, "", "edit --copy"),
    Action("rename", "R", "R", "Rename the highlighted profile", "", Scope.DASHBOARD, 0, "", "edit --rename"),
    Action("delete", "X", "X", "Delete the highlighted profile", "Asks first; u brings it back. The model stays.",
           Scope.DASHBOARD, 0, "", "edit --delete"),
    Action("undo_delete", "u", "u", "Bring back the deleted profile", "The one that was deleted last.",
           Scope.DASHBOARD, 0, "", "edit PROFILE --undelete"),
    Action("compare", "equals_sign", "=", "Compare two profiles", "Press it on one, then on the other: flags, memory "
           "and measured speeds side by side.", Scope.DASHBOARD, 18, "compare", "show A B"),
    Action("show_dashboard", "1", "1", "Dashboard", "What runs, its memory and its speed.", command="status"),
    Action("show_chat", "2,c", "c", "Chat with the model", "The model writes code, runs it in the sandbox and "
           "corrects it. 1 or esc returns to the dashboard.", Scope.ANYWHERE, 4, "chat", "chat"),
    Action("show_bench", "3,B", "B", "Benchmarks", "Runs, reports, leaderboard and comparisons. 1 or esc returns to "
           "the dashboard.", Scope.ANYWHERE, 6, "bench", "bench ls"),
    Action("show_models", "4,M", "M", "Models", "Finds models on this machine and on Hugging Face, says which quant "
           "would fit, and downloads it. 1 or esc returns to the dashboard.", Scope.ANYWHERE, 15, "models", "find"),
    Action("show_clients", "5,C", "C", "Clients", "The gateway: who sends requests, what each one waits for, reads and "
           "generates, and the last requests. 1 or esc returns to the dashboard.", Scope.ANYWHERE, 16, "clients",
           "clients"),
    Action("connect", "o", "o", "Connect a client", "Settings of opencode, aider, Continue, Cline, curl and Python "
           "with the address of the gateway, a model and a key.", Scope.DASHBOARD, 19, "connect", "connect"),
    Action("hold", "P", "P", "Hold all requests, or let them go on", "The gateway keeps them waiting; nothing is lost. "
           "Running ones end.", Scope.DASHBOARD, 0, "", "clients --hold"),
    Action("advice", "A", "A", "Advice", "What to change on what runs, else on the highlighted profile: the evidence, "
           "the flags, and a key that tries them.", Scope.DASHBOARD, 0, "", "advice"),
    Action("bench_speed", "b", "b", "Measure the active profile", "Runs the speed benchmark's preset quick. Shows the "
           "plan and asks first.", Scope.DASHBOARD, 16, "measure", "bench speed --preset quick"),
    Action("tune", "U", "U", "Tune the highlighted profile", "Measures which flags would be faster. Shows the plan and "
           "asks first; saves nothing by itself.", Scope.DASHBOARD, 20, "tune", "tune", changes_server=True),
    Action("help", "question_mark,f1", "?", "Help", "Keys, terms, marks and file locations. While you type: F1.",
           Scope.ANYWHERE, 3, "help", key_label_typing="F1"),
    Action("command_palette", "ctrl+p", "^p", "Command palette", "All actions and profiles by name.",
           Scope.ANYWHERE, 14, "palette", palette=False),
    Action("quit", "q", "q", "Quit", "Closes gpubox; the server keeps running. While you type: Ctrl-Q.",
           Scope.ANYWHERE, 2, "quit", key_label_typing="^q"),
    Action("back", "escape", "esc", "Back", "Closes the search, the filter or the single pane. Never quits.",
           Scope.ANYWHERE, 3, "back", palette=False),
    Action("down", "j", "j ↓", "Down", "", Scope.LISTS, palette=False),
    Action("up", "k", "k ↑", "Up", "", Scope.LISTS, palette=False),
    Action("top", "g", "g", "Go to the first line", "", Scope.LISTS, palette=False),
    Action("bottom", "G", "G", "Go to the last line", "The log follows new lines again.", Scope.LISTS, palette=False),
    Action("next_pane", "tab", "tab", "Go to the next pane", "Shift-tab goes back.", palette=False),
    Action("chat_send", "enter", "⏎", "Send the prompt", "", Scope.CHAT, 1, "send", "chat", palette=False),
    Action("chat_new_line", "ctrl+j", "^j", "New line in the prompt", "", Scope.CHAT, palette=False),
    Action("chat_last", "up", "↑", "Edit the last prompt", "Works in an empty prompt. Enter sends it as a new branch; "
           "the last turn is kept.", Scope.CHAT, 6, "edit last", palette=False),
    Action("chat_list", "ctrl+l,l", "^l", "Show the chats", "Open, rename or delete one.",
           Scope.CHAT, 4, "chats", "chat ls"),
    Action("chat_search", "slash", "/", "Search all chats", "Searches names and texts.",
           Scope.CHAT, 0, "", "chat search"),
    Action("chat_new", "ctrl+n,n", "^n", "New chat", "Named after its first prompt.", Scope.CHAT, 7, "new"),
    Action("chat_settings", "ctrl+t,t", "^t", "Settings of this chat", "System prompt, thinking, sampling, workspace, "
           "approvals and limits. An empty field means the default.", Scope.CHAT, 5, "settings"),
    Action("chat_fold", "ctrl+o,o", "^o", "Unfold or fold thinking and tools", "A click unfolds or folds a single one.",
           Scope.CHAT, 2, "unfold"),
    Action("chat_retry", "ctrl+r,r", "^r", "Ask the last prompt again", "The previous answer is kept. If the server "
           "died: starts it again.", Scope.CHAT, 8, "retry"),
    Action("chat_branch", "b", "b", "Branch into a new chat", "Copies the turns up to the one in view; this chat is "
           "unchanged.", Scope.CHAT, 0, "", "chat branch"),
    Action("chat_copy_code", "ctrl+y,y", "^y", "Copy the code", "The last code block of the turn in view. Press again "
           "for the one before it.", Scope.CHAT, 9, "copy code"),
    Action("chat_save_code", "ctrl+s,w", "^s", "Save the code to a file", "The block copied last, else the last block. "
           "Never overwrites a file.", Scope.CHAT, 10, "save code"),
    Action("chat_copy_answer", "Y", "Y", "Copy the answer", "The text selected with the mouse, else the answer of the "
           "turn in view.", Scope.CHAT),
    Action("chat_rename", "R", "R", "Rename this chat", "", Scope.CHAT, 0, "", "chat rename"),
    Action("chat_delete", "X", "X", "Delete this chat", "Asks first.", Scope.CHAT, 0, "", "chat rm"),
    Action("chat_back", "escape", "esc", "Stop the answer, or go back", "Closes the list or the edit; then returns to "
           "the dashboard.", Scope.CHAT, 4, "stop, back", palette=False),
    Action("bench_open", "enter", "⏎", "Show only the report", "esc returns to the list.",
           Scope.BENCH, 1, "report", "bench show", palette=False),
    Action("bench_plan", "n", "n", "Plan a run", "Kind, profile and options; shows what the run will do before it "
           "starts.", Scope.BENCH, 2, "new", "bench KIND --dry-run"),
    Action("bench_measure", "b", "b", "Measure the active profile", "Runs the speed benchmark, as on the dashboard.",
           Scope.BENCH, 10, "measure", "bench speed --preset quick", palette=False),
    Action("bench_mark", "space", "space", "Mark a run", "v compares two marked runs.", Scope.BENCH, 7, "mark"),
    Action("bench_compare", "v", "v", "Compare the two marked runs", "Which is faster, or what would tell it.",
           Scope.BENCH, 5, "compare", "bench show A B"),
    Action("bench_board", "L", "L", "Leaderboard", "Ranks the profiles, one table per protocol. Press again for the "
           "report.",
           Scope.BENCH, 6, "leaderboard", "bench show --as leaderboard"),
    Action("bench_live", "o", "o", "Show the active run", "Also one that was started elsewhere.",
           Scope.BENCH, 9, "active run"),
    Action("bench_resume", "r", "r", "Resume a run", "Measures only what has no result yet.",
           Scope.BENCH, 4, "resume", "bench resume"),
    Action("bench_save", "w", "w", "Save what a sweep or a tune has found", "As a profile of your own.",
           Scope.BENCH, 3, "save as profile", "bench save"),
    Action("bench_restore", "u", "u", "Restore what ran before a killed run", "The results of the run are kept.",
           Scope.BENCH, 3, "restore", "bench resume --restore"),
    Action("bench_remove", "x", "x", "Stop or delete a run", "Stops the active one, deletes any other. Asks first.",
           Scope.BENCH, 8, "stop/delete", "bench rm"),
    Action("bench_export", "e", "e", "Export what is shown", "Markdown, CSV, JSON or SVG, without paths, hosts and "
           "keys.", Scope.BENCH, 6, "export", "bench show -o FILE"),
    Action("bench_post", "p", "p", "Post the run", "Writes a card (SVG) and a Markdown block for a forum, without "
           "anything private, and copies the block.", Scope.BENCH, 7, "post", "bench show --as post"),
    Action("bench_copy", "y", "y", "Copy the report", "The text selected with the mouse, else all text of the pane.",
           Scope.BENCH),
    Action("edit_value", "enter", "⏎", "Type the value", "An on/off flag changes at once.",
           Scope.EDITOR, 1, "value", palette=False),
    Action("edit_more", "plus,right,space", "+ -", "Change the value", "+ or →: the next value, or a larger "
           "number; - or ←: the previous one.",
           Scope.EDITOR, 3, "change", palette=False),
    Action("edit_less", "minus,left", "-", "Previous value, or a smaller number", "Also ←.",
           Scope.EDITOR, palette=False),
    Action("edit_default", "backspace,delete", "⌫", "Back to the default", "Removes the flag from the profile.",
           Scope.EDITOR, 5, "default", palette=False),
    Action("edit_undo", "u", "u", "Undo the last change", "", Scope.EDITOR, 6, "undo", palette=False),
    Action("edit_search", "slash", "/", "Search all flags", "In the names and the help; esc shows all.",
           Scope.EDITOR, 2, "find", palette=False),
    Action("edit_try", "T", "T", "Try the changed profile", "Measures what runs, switches, and measures again. "
           "Nothing is written until you keep it.", Scope.EDITOR, 2, "try", "try", palette=False, changes_server=True),
    Action("edit_save", "ctrl+s", "^s", "Save the changes", "Comments and all other lines of the file stay.",
           Scope.EDITOR, 2, "save", "edit --set", palette=False),
    Action("edit_save_as", "D", "D", "Save as a new profile", "The profile itself stays as it is.",
           Scope.EDITOR, 7, "save as", "edit --copy --set", palette=False),
    Action("edit_back", "escape", "esc", "Close the editor", "Asks if changes would be lost.",
           Scope.EDITOR, 4, "back", palette=False),
    Action("trial_keep", "k", "k", "Keep the change", "Writes the profile. Its server keeps running.",
           Scope.TRIAL, 1, "keep", palette=False),
    Action("trial_revert", "r", "r", "Revert the change", "What ran before comes back. Works at any time.",
           Scope.TRIAL, 2, "revert", palette=False),
    Action("trial_skip", "s", "s", "Skip the measurement", "The trial goes on with the next step.",
           Scope.TRIAL, 3, "skip the measurement", palette=False),
    Action("trial_back", "escape", "esc", "Back to the dashboard", "The trial goes on; T shows it again.",
           Scope.TRIAL, 4, "dashboard", palette=False),
    Action("finder_open", "enter", "⏎", "Download, or make a profile", "Shows size and free disk and asks first. For "
           "a model on this machine: makes a profile.", Scope.MODELS, 1, "download", "find --download", palette=False),
    Action("finder_search", "slash", "/", "Search models", "Words of a name, user/name, or the address of a page.",
           Scope.MODELS, 2, "search", "find TEXT", palette=False),
    Action("finder_profile", "n", "n", "Make a profile", "With the flags that make it fit. Its first start downloads "
           "the model.", Scope.MODELS, 3, "new profile", "import"),
    Action("finder_measure", "f", "f", "Measure the memory in a dry run", "The engine reads only the header: exact "
           "compute buffers before a download.", Scope.MODELS, 5, "measure", "find user/name:QUANT"),
    Action("finder_stop", "x", "x", "Stop the download", "The downloaded part is kept; Enter resumes the download.",
           Scope.MODELS, 4, "stop download", palette=False),
    Action("clients_open", "enter", "⏎", "Show only the requests of a client", "Press again for all. On a request: all "
           "its fields.", Scope.CLIENTS, 2, "its requests", "clients", palette=False),
    Action("clients_connect", "o", "o", "Connect a client", "As on the dashboard.", Scope.CLIENTS, 1, "connect",
           "connect", palette=False),
    Action("clients_hold", "P", "P", "Hold all requests, or let them go on", "The gateway keeps them waiting; nothing "
           "is lost.", Scope.CLIENTS, 3, "hold requests", palette=False),
    Action("clients_cancel", "x", "x", "Cancel a request", "One that runs or waits. Its client gets an error. Asks "
           "first if it is being answered.", Scope.CLIENTS, 1, "cancel", "clients cancel", palette=False),
    Action("clients_toggle", "s", "s", "Start or stop the gateway", "It keeps running when gpubox closes. Asks before "
           "it stops; the servers go on.", Scope.CLIENTS, 1, "start the gateway", "serve --detach"),
    Action("clients_back", "escape", "esc", "Back", "Shows all requests again; then returns to the dashboard.",
           Scope.CLIENTS, 4, "back", palette=False),
    Action("connect_write", "enter", "⏎", "Connect the client", "Starts the gateway if none runs. Writes the settings "
           "into the client's own file, keeps all else in it and a copy beside it; else copies them.",
           Scope.CONNECT, 1, "connect", "connect --write", palette=False),
    Action("connect_undo", "u", "u", "Undo what was written", "The client's file is as it was before.",
           Scope.CONNECT, 1, "undo", palette=False),
    Action("connect_copy", "y", "y", "Copy the settings", "To the terminal's clipboard (OSC 52, works over SSH).",
           Scope.CONNECT, 2, "copy", "connect", palette=False),
    Action("connect_model", "m,right", "m", "Name the next model", "A profile or one of its aliases.",
           Scope.CONNECT, 2, "model", palette=False),
    Action("connect_previous", "left", "←", "Name the previous model", "", Scope.CONNECT, palette=False),
    Action("connect_key", "n", "n", "Make a key for the client", "It is shown once, and written into the settings.",
           Scope.CONNECT, 3, "new key", "keys add", palette=False),
    Action("connect_back", "escape", "esc", "Back", "", Scope.CONNECT, 4, "back", palette=False),
    Action("advice_try", "T", "T", "Try the change", "Measures what runs, switches, and measures again. Nothing is "
           "written until you keep it.", Scope.ADVICE, 1, "try", "try", palette=False, changes_server=True),
    Action("advice_dismiss", "x", "x", "Dismiss the advice for good", "For this profile. On a dismissed one: shows it "
           "again.", Scope.ADVICE, 2, "dismiss", "advice --dismiss", palette=False),
    Action("advice_all", "a", "a", "Show or hide the dismissed ones", "", Scope.ADVICE, 3, "all", "advice --all",
           palette=False),
    Action("advice_back", "escape", "esc", "Back to the dashboard", "", Scope.ADVICE, 4, "back", palette=False),
    Action("chat_write", "i", "i", "Go to the prompt", "Moves the focus to the prompt.",
           Scope.CHAT, 1, "prompt", palette=False),
    *(Action(f"zoom_{pane.name}", pane.key, pane.key, f"Show only {pane.title}", "On the whole screen, and back.",
             Scope.DASHBOARD) for pane in PANES if pane.key),
)  # fmt: skip

ACTIONS_BY_ID = {action.id: action for action in ACTIONS}
OPENS_INPUT = {"search", "filter_log", "filter_requests", "edit_search"}
"""Bound with priority: letters typed right behind "/" must reach the search, not the list, where Enter switches.
While a text input has the focus, DashboardScreen.check_action lets these keys pass as letters."""
_BOUND_ELSEWHERE = {
    "bench_open",
    "clients_open",
    "connect_write",
    "finder_open",
    "switch",
    "edit_value",
    "next_pane",
    "chat_send",
    "chat_new_line",
    "chat_last",
}
"""Their keys are bound by the list, by Textual and by the prompt themselves."""
_APP_ACTIONS = {"stop", "restart", "failed_log", "bench_speed", "tune", "advice"}
"""Actions of the dashboard that the app performs; the dashboard screen performs the others."""
WORKSHOP_ACTIONS = frozenset({
    "edit", "external_editor", "trial", "new_profile", "duplicate", "rename", "delete", "undo_delete", "compare",
})  # fmt: skip
"""Actions of the dashboard that the WorkshopController performs."""
_SCREENS = ("show_chat", "show_bench", "show_models", "show_clients")
_NOT_IN_BAR = {
    Scope.CHAT: (*_SCREENS, "back"), Scope.BENCH: ("show_bench", "show_models", "show_clients"),
    Scope.MODELS: _SCREENS, Scope.CLIENTS: (*_SCREENS, "back"), Scope.CONNECT: (*_SCREENS, "back"),
    Scope.EDITOR: (*_SCREENS, "back"), Scope.TRIAL: (*_SCREENS, "back"),
    Scope.ADVICE: (*_SCREENS, "back"),
}  # fmt: skip
"""A screen's bar leaves out its own key, in the chat keys that are letters of a prompt, and keys that do nothing."""


_TEXT_KEYS = {
    "slash", "question_mark", "space", "equals_sign", "plus", "minus", "backspace", "left_square_bracket",
    "right_square_bracket",
}  # fmt: skip
"""Keys with a name of their own that type or delete a character."""


def types_text(action: Action) -> bool:
    """Whether its key types a character if a text input has the focus."""
    key = action.key.split(",")[0]
    return not action.key_label_typing and (len(key) == 1 or key in _TEXT_KEYS)


def bindings(*scopes: Scope) -> list[Binding]:
    """The bindings of the actions of these scopes."""
    return [
        Binding(action.key, action_name(action), action.title, show=False, id=action.id,
                priority=action.id in OPENS_INPUT)
        for action in ACTIONS
        if action.scope in scopes and action.id not in _BOUND_ELSEWHERE
    ]  # fmt: skip


def action_name(action: Action) -> str:
    """The action as Textual dispatches it; ``app.`` if the app performs it, ``zoom('log')`` for ``zoom_log``."""
    if action.id.startswith("zoom_"):
        return f"zoom('{action.id.removeprefix('zoom_')}')"
    if action.id.startswith("show_"):
        return f"app.show('{action.id.removeprefix('show_')}')"
    if action.id in WORKSHOP_ACTIONS:
        return f"app.workshop('{action.id}')"
    if action.id in ("hold", "connect"):
        return f"app.gateway('{action.id}')"
    return f"app.{action.id}" if action.id in _APP_ACTIONS else action.id


def key_bar_actions(scope: Scope) -> list[Action]:
    """The actions in the key bar of a screen, the most important first."""
    own = {scope} if scope in _NOT_IN_BAR else {Scope.DASHBOARD, Scope.LIST, Scope.LISTS}
    actions = [action for action in ACTIONS if action.bar_priority and action.scope in own | {Scope.ANYWHERE}]
    return sorted(
        (action for action in actions if action.id not in _NOT_IN_BAR.get(scope, ())), key=lambda a: a.bar_priority
    )
