"""Every action of the screens, once. Key bindings, key bar, menus, palette and help are made from this table."""

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


_MOVES, _OPENS, _CHANGES, _DESTROYS, _DECIDES = Effect
_D, _C, _B, _M, _E, _T = Scope.DASHBOARD, Scope.CHAT, Scope.BENCH, Scope.MODELS, Scope.EDITOR, Scope.TRIAL
_DIFF = Scope.DIFF
_G, _CONNECT, _ADVICE, _ALL = Scope.CLIENTS, Scope.CONNECT, Scope.ADVICE, Scope.ANYWHERE


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
        return _KEY_LABELS.get(key) or key.replace("ctrl+", "^")


_KEY_LABELS = {
    "enter": "⏎", "slash": "/", "question_mark": "?", "escape": "esc", "equals_sign": "=", "delete": "del",
    "up": "↑", "left_square_bracket": "[", "right_square_bracket": "]", "right": "→", "left": "←", "backspace": "⌫",
}  # fmt: skip
_TEXT_KEYS = {"slash", "question_mark", "space", "plus", "minus", "backspace"}
"""Keys with a name of their own that type or delete a character."""

ACTIONS = (
    Action("switch", "enter", "Switch to the highlighted profile", "Starts it, or replaces the running server. "
           "If it does not start, the previous profile is restored. On a model without a profile: makes one.",
           Scope.LIST, _CHANGES, 1, "switch", "switch", "start run load launch use swap change another other model "
           "profile", "profiles", changes_server=True),
    Action("search", "slash", "Search the profiles", "Searches name, title, text and model; esc shows all. In the log "
           "and in the requests: shows only what contains the text.", _D, _MOVES, 5, "find", "ls", "find look",
           "profiles"),
    Action("edit", "e", "Edit the highlighted profile", "Every flag of its engine, with the command line and the "
           "planned memory. Nothing is written before ^s; t tries the change first. A profile with `companion = true` "
           "runs beside the active one.", _D, _OPENS, 5, "edit", "edit",
           "change modify flag flags option port host context length size window ctx bigger longer smaller threads "
           "layers ngl n-cpu-moe temperature sampling alias personas companion two second models at once beside "
           "parallel simultaneously flash attention batch template mtp", "profiles", changes_server=True),
    Action("trial", "t", "Try a change, or show the trial", "The trial that is under way, else the change that was "
           "tried last, else the editor, where a change is tried.", _D, _OPENS, 11, "try", "try", "experiment test "
           "flags keep revert measure once", "profiles", changes_server=True),
    Action("show_chat", "c,2", "Chat with the model", "The model writes code, runs it in the sandbox and corrects it. "
           "1 or esc returns to the dashboard.", _ALL, _OPENS, 4, "chat", "chat", "talk ask prompt question message "
           "write code agent sandbox"),
    Action("bench_speed", "b", "Measure the active profile", "Runs the speed benchmark's preset quick on the Bench "
           "screen. Shows the plan and asks first.", _D, _CHANGES, 9, "measure", "bench speed --preset quick",
           "speed benchmark bench test fast how many tokens per second tok/s performance", "throughput requests"),
    Action("show_models", "m,4", "Models", "Finds models on this machine and on Hugging Face, says which quant would "
           "fit, and downloads it. 1 or esc returns to the dashboard.", _ALL, _OPENS, 8, "models", "find",
           "download get pull hf huggingface hub gguf quant quants quantization fit size new model browse library disk "
           "llama qwen gemma mistral"),
    Action("undo", "u", "Undo", "Takes back what was done last: the previous profile runs again, the former text of an "
           "edited profile comes back, also after a kept trial, or a deleted profile. The bar names it.",
           _D, _CHANGES, 2, "undo", "edit PROFILE --undo", "back go previous before revert restore undelete mistake "
           "oops wrong recover profile model last", "profiles *", changes_server=True),
    Action("stop", "s", "Stop the server", "Asks first. If a running companion is highlighted, stops it instead.",
           _D, _DESTROYS, 7, "stop", "stop", "model kill end shut down unload free memory vram release off", "profiles",
           changes_server=True),
    Action("restart", "r", "Restart the server", "Reads the profile file again first. Starts the profile again that "
           "ended.", _D, _CHANGES, 10, "restart", "restart", "reboot reload again start hangs stuck", "profiles",
           changes_server=True),
    Action("connect", "o", "Connect a client", "Settings of opencode, aider, Continue, Cline, curl and Python "
           "with the address of the gateway, a model and a key.", _D, _OPENS, 12, "connect", "connect",
           "opencode aider continue cline vscode cursor zed editor ide coding agent openai api key url endpoint "
           "address port base laptop phone tablet remote network lan wifi curl python goose crush qwen claude "
           "codex webui", "*"),
    Action("zoom_profiles", "p", "Show only the profiles", "The profile list on the whole screen, and back.",
           _D, _MOVES, 4, "profiles", "ls", "list models all", "profiles"),
    Action("zoom_memory", "v", "Show only the memory", "VRAM and CPU offload on the whole screen, and back.",
           _D, _MOVES, 13, "memory", "status", "gpu vram ram usage used free full oom out of card offload experts "
           "temperature hot heat cool fan power watts electricity energy", "vram offload"),
    Action("zoom_requests", "h", "Show only throughput and requests", "Both on the whole screen, and back: also those "
           "of launches before. Enter on a request shows all its fields.", _D, _MOVES, 14, "requests",
           "history --requests", "history list tokens per second now graph past prompts usage queries calls",
           "throughput requests"),
    Action("zoom_log", "l", "Show only the log", "The log on the whole screen, and back.",
           _D, _MOVES, 15, "log", "logs", "logs output messages llama-server stdout stderr where", "log"),
    Action("filter_requests", "", "Filter the requests of all launches", "profile:x client:y day:today or "
           "2026-11-20, and any text; esc shows all. The same: / in the requests.", _D, _MOVES, command="history",
           words="search find request client day", panes="requests", bound=False),
    Action("graph_longer", "left_square_bracket", "Show a longer time in the graph", "5 min, 1 h, 1 day, 30 days: "
           "all but the first come from the history.", _D, _MOVES, words="hour day week month yesterday last past "
           "history zoom out", panes="throughput requests", bound=False),
    Action("graph_shorter", "right_square_bracket", "Show a shorter time in the graph", "The last 5 min are live.",
           _D, _MOVES, words="zoom in minutes live now", panes="throughput requests", bound=False),
    Action("slower_since", "", "Show what became slower, and since when", "The figures before and after, and what "
           "changed then.", _D, _OPENS, command="history", words="yesterday before regression update driver changed "
           "worse than", panes="*", bound=False),
    Action("filter_log", "", "Filter the log", "Shows only lines that contain the text; esc shows all. The same: / in "
           "the log.", _D, _MOVES, command="logs", words="search find grep lines", panes="log", bound=False),
    Action("failed_log", "f", "Show the log of the last failure", "Of the last start that failed, or the last "
           "server that crashed.", _D, _OPENS, command="logs --failed", words="error errors crash crashed died dead "
           "fails broken wont start why problem went wrong stop stopped", panes="log profiles", bound=False),
    Action("zoom_detail", "i", "Show only the details", "Everything about the highlighted profile, and back.",
           _D, _MOVES, command="show", words="info profile about description flags", panes="profiles detail",
           bound=False),
    Action("copy", "y", "Copy the command line", "The exact command line of the highlighted profile, to the "
           "terminal's clipboard (OSC 52, works over SSH).", _D, _OPENS, command="show --command", words="clipboard "
           "yank llama-server arguments argv shell script show", panes="profiles detail", bound=False),
    Action("new_profile", "n", "New profile", "From a model or a pasted command line.", _D, _OPENS, command="import",
           words="add create make import model gguf llama-swap ollama modelfile lmstudio koboldcpp docker compose "
           "systemd script paste config", panes="profiles", bound=False, changes_server=True),
    Action("duplicate", "d", "Duplicate the highlighted profile", "Copies its comments, too.", _D, _CHANGES,
           command="edit --copy", words="copy clone profile variant", panes="profiles", bound=False),
    Action("rename", "w", "Rename the highlighted profile", "Its file gets the name, too.", _D, _CHANGES,
           command="edit --rename", words="name call", panes="profiles", bound=False),
    Action("delete", "delete", "Delete the highlighted profile", "Asks first; u brings it back. gpubox deletes "
           "no model file.", _D, _DESTROYS, command="edit --delete", words="model remove erase trash", panes="profiles",
           bound=False),
    Action("compare", "equals_sign", "Compare two profiles", "Choose it on one, then on the other: flags, memory "
           "and measured speeds side by side.", _D, _OPENS, command="show A B", words="difference diff versus better "
           "which models", panes="profiles", bound=False),
    Action("external_editor", "", "Edit the profile's file in $EDITOR", "Also a file that is broken.", _D, _OPENS,
           command="edit --editor", words="vim nano emacs toml text raw file comments", panes="profiles", bound=False),
    Action("toggle_shipped", "", "Show or hide the shipped profiles", "Hidden at first if you have a profile of "
           "your own; shipped-profiles in config.toml changes that. A search includes them always.",
           _D, _MOVES, command="ls --all", words="examples example builtin", panes="profiles", bound=False),
    Action("tune", "", "Tune the highlighted profile", "Measures which flags would be faster. Shows the plan and asks "
           "first; saves nothing by itself.", _D, _CHANGES, command="tune", words="faster optimize optimise speed up "
           "make best find flags threads automatic improve", panes="profiles", bound=False, changes_server=True),
    Action("advice", "a", "Advice: why it is slow, and what to change", "What to change on what runs, else on the "
           "highlighted profile: the evidence, the flags, and a key that tries them.", _D, _OPENS, command="advice",
           words="slow help bottleneck recommend suggestion problem speed improve bad", panes="*", bound=False),
    Action("hold", "", "Pause the gateway, or resume it", "It keeps all requests waiting; nothing is lost. Running "
           "ones end.", _D, _CHANGES, command="clients --hold", words="hold requests stop wait go on continue",
           panes="requests", bound=False),
    Action("show_dashboard", "1", "Dashboard", "What runs, its memory and its speed.", _ALL, _OPENS, command="status",
           words="home main overview start status back"),
    Action("show_bench", "3", "Benchmarks", "Runs, reports, leaderboard and comparisons. 1 or esc returns to the "
           "dashboard.", _ALL, _OPENS, command="bench ls", words="bench runs results measurements reports tests",
           panes="*"),
    Action("show_clients", "5", "Clients", "The gateway: who sends requests, what each one waits for, reads and "
           "generates, and the last requests. 1 or esc returns to the dashboard.", _ALL, _OPENS, command="clients",
           words="who users using connected gateway server proxy agents keys address port", panes="requests *"),
    Action("menu", "x", "Menu", "What can be done with the focused pane, or on this screen. Its rows run.",
           _ALL, _OPENS, 2, "menu", words="actions more options", palette=False),
    Action("help", "question_mark,f1", "Help", "Keys, terms, marks and file locations. While you type: F1.",
           _ALL, _OPENS, 3, "help", words="keys keyboard shortcuts hotkeys manual documentation docs how meaning "
           "glossary menu",
           slash="help", label_typing="F1"),
    Action("command_palette", "ctrl+p", "Command palette", "Finds actions, profiles, terms and files by plain words.",
           _ALL, _OPENS, 16, "palette", palette=False),
    Action("theme", "", "Change the colours", "Another theme, which is remembered. `theme` in config.toml sets it for "
           "good.", _ALL, _OPENS, words="theme dark light mode color colors colour bright white black background",
           bound=False),
    Action("quit", "q", "Quit", "Closes gpubox; the server keeps running. While you type: Ctrl-Q.",
           _ALL, _MOVES, 2, "quit", words="exit close leave end", label_typing="^q"),
    Action("back", "escape", "Back", "Closes the search, the filter or the single pane. Never quits.",
           _ALL, _MOVES, 3, "back", palette=False),
    Action("down", "j", "Down", "", Scope.LISTS, _MOVES, palette=False, label="j ↓"),
    Action("up", "k", "Up", "", Scope.LISTS, _MOVES, palette=False, label="k ↑"),
    Action("top", "home", "Go to the first line", "", Scope.LISTS, _MOVES, palette=False),
    Action("bottom", "end", "Go to the last line", "The log follows new lines again.", Scope.LISTS, _MOVES,
           palette=False),
    Action("next_pane", "tab", "Go to the next pane", "Shift-tab goes back.", _ALL, _MOVES, palette=False),
    Action("chat_send", "enter", "Send the prompt", "", _C, _CHANGES, 1, "send", "chat", palette=False),
    Action("chat_write", "i", "Go to the prompt", "Moves the focus to the prompt.", _C, _MOVES, 1, "prompt",
           palette=False),
    Action("chat_new_line", "ctrl+j", "New line in the prompt", "", _C, _MOVES, palette=False),
    Action("chat_last", "up", "Edit the last prompt", "Works in an empty prompt. Enter sends it as a new branch; "
           "the last turn is kept.", _C, _MOVES, 6, "edit last", palette=False),
    Action("chat_list", "ctrl+l,l", "Show the chats", "Each is kept by itself. Open, rename or delete one.",
           _C, _OPENS, 4, "chats", "chat ls", "old past conversations list history save saved keep "
           "chat"),
    Action("chat_search", "slash", "Search all chats", "Searches names and texts.", _C, _MOVES, command="chat search",
           words="find conversations"),
    Action("chat_diff", "ctrl+d,d", "Show what changed, and decide", "The changes that wait: take all, some files or "
           "some hunks, or drop them and say why. Enter in an empty prompt does the same.", _C, _OPENS, 1, "diff",
           "chat diff", slash="diff", words="changes files hunks review accept apply reject approve patch"),
    Action("chat_undo", "u", "Undo the last turn", "Its files are as before, also those that were taken, and the "
           "model no longer knows of it.", _C, _CHANGES, 3, "undo", "chat undo", slash="undo", words="revert back "
           "restore mistake oops"),
    Action("chat_redo", "", "Redo the turn that was undone", "Its files and its place in the conversation come back.",
           _C, _CHANGES, command="chat redo", slash="redo", words="again forward", bound=False),
    Action("chat_test", "", "Run the project's tests", "Over the files as the model sees them.", _C, _CHANGES,
           slash="test", words="pytest check verify", bound=False),
    Action("chat_commit", "", "Commit what was taken", "Proposes a message, which can be changed. Uses your git.",
           _C, _CHANGES, slash="commit", words="git save message", bound=False),
    Action("chat_plan", "p", "Plan only, or write again", "While planning the model writes nothing, and its programs "
           "only read the workspace.", _C, _CHANGES, slash="plan", words="mode read only apply ask turn"),
    Action("chat_model", "", "Switch the model", "Shows the profiles; Enter starts one. The chat goes on with it, "
           "which reads all of it again.", _C, _OPENS, slash="model", words="profile change another", bound=False),
    Action("chat_agent", "", "Choose who answers", "gpubox's own agent, or another one that runs confined in here.",
           _C, _OPENS, slash="agent", words="host opencode qwen codex claude acp other another coding", bound=False),
    Action("chat_mode", "", "Mode and model of the agent", "What a hosted agent lets you choose.", _C, _OPENS,
           slash="mode", words="thinking options", bound=False),
    Action("chat_compact", "", "Shorten the conversation", "A summary stands for all but the last turns. Shows the "
           "cost and asks first.", _C, _CHANGES, slash="compact", words="summary context full compress", bound=False),
    Action("chat_share", "", "Write the chat to a file", "One Markdown file with the prompts, the answers and the "
           "diffs.", _C, _CHANGES, slash="share", words="export markdown save post", bound=False),
    Action("chat_new", "ctrl+n,n", "New chat", "Named after its first prompt.", _C, _OPENS, 7, "new chat",
           slash="new", words="conversation clear reset fresh empty start"),
    Action("chat_settings", "ctrl+t,t", "Settings of this chat", "System prompt, thinking, sampling, workspace, what "
           "becomes of changes, and limits. An empty field means the default.", _C, _OPENS, 5, "settings",
           words="temperature top-p reasoning thinking turn off on stop folder tools apply ask plan"),
    Action("chat_fold", "ctrl+o,o", "Unfold or fold thinking and tools", "A click unfolds or folds a single one.",
           _C, _MOVES, 2, "unfold all", words="show hide reasoning expand collapse"),
    Action("chat_retry", "ctrl+r,r", "Ask the last prompt again", "The previous answer is kept. If the server "
           "died: starts it again.", _C, _CHANGES, 8, "retry", words="regenerate repeat another answer"),
    Action("chat_branch", "", "Branch into a new chat", "Copies the turns up to the one in view; this chat is "
           "unchanged.", _C, _CHANGES, command="chat branch", words="fork copy", bound=False),
    Action("chat_copy_code", "ctrl+y,y", "Copy the code", "The last code block of the turn in view. Press again "
           "for the one before it.", _C, _OPENS, 9, "copy code", words="clipboard"),
    Action("chat_save_code", "ctrl+s,w", "Save the code to a file", "The block copied last, else the last block. "
           "Never overwrites a file.", _C, _CHANGES, 10, "save code", words="write export"),
    Action("chat_copy_answer", "", "Copy the answer", "The text selected with the mouse, else the answer of the "
           "turn in view.", _C, _OPENS, words="clipboard", bound=False),
    Action("chat_rename", "", "Rename this chat", "The one that is highlighted in the list, else the open one.",
           _C, _CHANGES, command="chat rename", words="name", bound=False),
    Action("chat_delete", "delete", "Delete this chat", "The one that is highlighted in the list, else the open one. "
           "Asks first.", _C, _DESTROYS, command="chat rm", words="remove erase conversation", bound=False),
    Action("chat_back", "escape", "Stop the answer, or go back", "What it wrote is kept. Closes the list or the edit; "
           "then returns to the dashboard.", _C, _MOVES, 4, "stop, back", palette=False),
    Action("diff_take", "t", "Take what is marked", "Writes it into the workspace. Asks by name about what runs by "
           "itself; a conflict is never overwritten. Undoing the turn undoes this, too.", _DIFF, _CHANGES, 1, "take",
           "chat take", words="accept apply yes"),
    Action("diff_mark", "space", "Mark a file or a hunk", "On a file: all of it.", _DIFF, _MOVES, 2, "mark",
           words="select choose toggle", palette=False),
    Action("diff_mark_all", "a", "Mark all, or none", "All but what is in doubt.", _DIFF, _MOVES, 3, "all or none",
           palette=False),
    Action("diff_drop", "d", "Drop what is marked", "The model no longer sees it. You may say why, and it reads that.",
           _DIFF, _CHANGES, 4, "drop, say why", "chat drop", words="reject refuse no discard"),
    Action("diff_back", "escape", "Decide later", "The changes wait.", _DIFF, _MOVES, 5, "later", palette=False),
    Action("bench_open", "enter", "Show only the report", "esc returns to the list.",
           _B, _OPENS, 1, "report", "bench show", palette=False),
    Action("bench_plan", "n", "Plan a run", "Kind, profile and options; shows what the run will do before it "
           "starts.", _B, _OPENS, 2, "new", "bench KIND --dry-run", "new benchmark quality coding good humaneval suite "
           "soak sweep ab accuracy smart test start needle perplexity"),
    Action("bench_measure", "b", "Measure the active profile", "Runs the speed benchmark, as on the dashboard.",
           _B, _CHANGES, 10, "measure", "bench speed --preset quick", palette=False),
    Action("bench_mark", "space", "Mark a run", "v compares two marked runs.", _B, _CHANGES, 7, "mark",
           words="select choose"),
    Action("bench_compare", "v", "Compare the two marked runs", "Which is faster, or what would tell it.",
           _B, _OPENS, 5, "compare", "bench show A B", "difference faster"),
    Action("bench_board", "l", "Leaderboard", "Ranks the profiles, one table per protocol. Again for the report.",
           _B, _OPENS, 6, "leaderboard", "bench show --as leaderboard", "ranking rank best fastest table winner"),
    Action("bench_live", "o", "Show the active run", "Also one that was started elsewhere.", _B, _MOVES, 9,
           "active run", words="progress benchmark now"),
    Action("bench_resume", "r", "Resume a run", "Measures only what has no result yet.",
           _B, _CHANGES, 4, "resume", "bench resume", "continue interrupted benchmark"),
    Action("bench_save", "w", "Save what a sweep or a tune has found", "As a profile of your own.",
           _B, _CHANGES, 3, "save as profile", "bench save", "best flags keep"),
    Action("bench_restore", "u", "Restore what ran before a killed run", "The results of the run are kept.",
           _B, _CHANGES, 3, "restore", "bench resume --restore", "undo interrupted benchmark"),
    Action("bench_remove", "delete", "Stop or delete a run", "Stops the active one, deletes any other. Asks first.",
           _B, _DESTROYS, command="bench rm", words="cancel abort remove benchmark", bound=False),
    Action("bench_export", "e", "Export what is shown", "Markdown, CSV, JSON or SVG, without paths, hosts and keys.",
           _B, _OPENS, command="bench show -o FILE", words="csv json markdown svg file spreadsheet report",
           bound=False),
    Action("bench_post", "p", "Post the run", "Writes a card (SVG) and a Markdown block for a forum, without "
           "anything private, and copies the block.", _B, _OPENS, command="bench show --as post", words="share publish "
           "reddit forum result results card", bound=False),
    Action("bench_copy", "y", "Copy the report", "The text selected with the mouse, else all text of the pane.",
           _B, _OPENS, words="clipboard"),
    Action("edit_value", "enter", "Type the value", "An on/off flag changes at once.", _E, _OPENS, 1, "value",
           palette=False),
    Action("edit_more", "plus,right,space", "Change the value", "+ or →: the next value, or a larger "
           "number; - or ←: the previous one.", _E, _CHANGES, 3, "change", palette=False, label="+ -"),
    Action("edit_less", "minus,left", "Previous value, or a smaller number", "Also ←.", _E, _CHANGES, palette=False,
           label="-"),
    Action("edit_default", "backspace,delete", "Back to the default", "Removes the flag from the profile.",
           _E, _CHANGES, 5, "use default", words="reset remove flag"),
    Action("edit_undo", "u", "Undo the last change", "", _E, _CHANGES, 6, "undo"),
    Action("edit_search", "slash", "Search all flags", "In the names and the help; esc shows all.", _E, _MOVES, 2,
           "find", palette=False),
    Action("edit_try", "t", "Try the changed profile", "Measures what runs, switches, and measures again. "
           "Nothing is written until you keep it.", _E, _CHANGES, 2, "try", "try", "test measure", changes_server=True),
    Action("edit_save", "ctrl+s", "Save the changes", "Comments and all other lines of the file stay.",
           _E, _CHANGES, 2, "save", "edit --set", "write keep"),
    Action("edit_save_as", "d", "Save as a new profile", "The profile itself stays as it is.", _E, _CHANGES,
           command="edit --copy --set", words="copy duplicate", bound=False),
    Action("edit_back", "escape", "Close the editor", "Asks if changes would be lost.", _E, _MOVES, 4, "back",
           palette=False),
    Action("trial_keep", "", "Keep the change", "The profile is written. Its server keeps running.",
           _T, _DECIDES, bound=False, words="save accept"),
    Action("trial_again", "", "Measure the change again", "Judges it again, too.", _T, _CHANGES, bound=False,
           words="repeat"),
    Action("trial_skip", "", "Skip the measurement", "The trial goes on with the next step.", _T, _CHANGES,
           bound=False),
    Action("trial_revert", "", "Revert the change", "What ran before comes back.", _T, _DECIDES, bound=False,
           words="undo discard back"),
    Action("trial_choose", "enter", "Do what the highlighted row says", "", _T, _DECIDES, 1, "choose", palette=False),
    Action("trial_back", "escape", "Back to the dashboard", "The trial goes on; t shows it again.",
           _T, _MOVES, 4, "dashboard", palette=False),
    Action("finder_open", "enter", "Download, or make a profile", "Shows size and free disk and asks first. For "
           "a model on this machine: makes a profile.", _M, _OPENS, 1, "download", "find --download", palette=False),
    Action("finder_search", "slash", "Search models", "Words of a name, user/name, or the address of a page.",
           _M, _MOVES, 2, "search", "find TEXT", "find hugging face"),
    Action("finder_profile", "n", "Make a profile of the model", "With the flags that make it fit. Its first start "
           "downloads the model.", _M, _CHANGES, 3, "new profile", "import"),
    Action("finder_measure", "f", "Measure the memory in a dry run", "The engine reads only the header: exact "
           "compute buffers before a download.", _M, _OPENS, 5, "measure memory", "find user/name:QUANT",
           "would it fit"),
    Action("finder_stop", "", "Stop the download", "The downloaded part is kept; Enter resumes the download.",
           _M, _DESTROYS, words="cancel abort pause", bound=False),
    Action("clients_open", "enter", "Show only the requests of a client", "Again for all. On a request: all its "
           "fields.", _G, _OPENS, 2, "client's requests", "clients", palette=False),
    Action("clients_connect", "o", "Connect a client", "As on the dashboard.", _G, _OPENS, 1, "connect a client",
           "connect", palette=False),
    Action("clients_hold", "", "Pause the gateway, or resume it", "It keeps all requests waiting; nothing is lost.",
           _G, _CHANGES, palette=False, bound=False),
    Action("clients_cancel", "delete", "Cancel a request", "One that runs or waits. Its client gets an error. Asks "
           "first if it is being answered.", _G, _DESTROYS, command="clients cancel", words="abort kill end",
           bound=False),
    Action("clients_toggle", "s", "Start or stop the gateway", "It keeps running when gpubox closes; after a boot "
           "only with `gpubox serve --install`. Asks before it stops; the servers go on.", _G, _DESTROYS, 1,
           "start the gateway", "serve --detach", "serve proxy openai endpoint listen boot autostart"),
    Action("clients_back", "escape", "Back", "Shows all requests again; then returns to the dashboard.",
           _G, _MOVES, 4, "back", palette=False),
    Action("connect_write", "enter", "Connect the client", "Starts the gateway if none runs. Writes the settings into "
           "the client's own file, keeps all else in it and a copy beside it; else copies them.",
           _CONNECT, _CHANGES, 1, "connect", "connect --write", "write save configure apply", palette=False),
    Action("connect_undo", "u", "Undo what was written", "The client's file is as it was before.", _CONNECT, _CHANGES,
           1, "undo", words="revert back"),
    Action("connect_copy", "y", "Copy the settings", "To the terminal's clipboard (OSC 52, works over SSH).",
           _CONNECT, _OPENS, 2, "copy", "connect", "clipboard"),
    Action("connect_model", "right", "Name the next model", "A profile or one of its aliases.", _CONNECT, _MOVES, 2,
           "next model", palette=False),
    Action("connect_previous", "left", "Name the previous model", "", _CONNECT, _MOVES, palette=False),
    Action("connect_key", "n", "Make a key for the client", "It is shown once, and written into the settings.",
           _CONNECT, _CHANGES, 3, "new key", "keys add", "api token password secret"),
    Action("connect_back", "escape", "Back", "", _CONNECT, _MOVES, 4, "back", palette=False),
    Action("advice_try", "t", "Try the change", "Measures what runs, switches, and measures again. Nothing is "
           "written until you keep it.", _ADVICE, _CHANGES, 1, "try", "try", "apply test", changes_server=True),
    Action("advice_dismiss", "d", "Dismiss the advice for good", "For this profile. On a dismissed one: shows it "
           "again.", _ADVICE, _CHANGES, command="advice --dismiss", words="hide ignore", bound=False),
    Action("advice_all", "a", "Show or hide the dismissed ones", "", _ADVICE, _MOVES, 3, "dismissed ones",
           "advice --all"),
    Action("advice_back", "escape", "Back to the dashboard", "", _ADVICE, _MOVES, 4, "back", palette=False),
    *(Action(f"zoom_{pane.name}", pane.key, f"Show only {pane.title}", "On the whole screen, and back.", _D, _MOVES,
             panes=pane.name, bound=False) for pane in PANES if pane.key),
)  # fmt: skip

ACTIONS_BY_ID = {action.id: action for action in ACTIONS}
OPENS_INPUT = {"search", "edit_search"}
"""Bound with priority: letters typed right behind "/" must reach the search, not the list, where Enter switches.
While a text input has the focus, DashboardScreen.check_action lets these keys pass as letters."""
_BOUND_ELSEWHERE = {
    "bench_open", "clients_open", "finder_open", "switch", "edit_value", "next_pane", "chat_send", "chat_new_line",
    "chat_last", "trial_choose", "connect_write",
}  # fmt: skip
"""Their keys are bound by the list, by Textual and by the prompt themselves."""
_APP_ACTIONS = {"stop", "restart", "failed_log", "bench_speed", "tune", "advice", "menu"}
"""Actions that the app performs; the dashboard screen performs the others of its own."""
WORKSHOP_ACTIONS = frozenset({
    "edit", "external_editor", "trial", "new_profile", "duplicate", "rename", "delete", "undo", "compare",
})  # fmt: skip
"""Actions of the dashboard that the WorkshopController performs."""
_SCREENS = ("show_chat", "show_models")
CHAT_COMMANDS = frozenset(f"chat_{name}" for name in (
    "diff", "undo", "redo", "test", "commit", "plan", "model", "agent", "mode", "compact", "share", "copy_code",
    "save_code", "copy_answer", "branch", "rename", "delete",
))  # fmt: skip
"""Actions of the chat screen that its ChatCommands, Snippets and StoredChats perform."""
_NOT_IN_BAR = {
    Scope.CHAT: (*_SCREENS, "back"), Scope.DIFF: (*_SCREENS, "back", "menu"), Scope.BENCH: (),
    Scope.MODELS: ("show_models",),
    Scope.CLIENTS: (*_SCREENS, "back"), Scope.CONNECT: (*_SCREENS, "back"),
    Scope.EDITOR: (*_SCREENS, "back"), Scope.TRIAL: (*_SCREENS, "back", "menu"),
    Scope.ADVICE: (*_SCREENS, "back"),
}  # fmt: skip
"""A screen's bar leaves out its own key, in the chat keys that are letters of a prompt, and keys that do nothing."""


def types_text(action: Action) -> bool:
    """Whether its key types a character if a text input has the focus."""
    key = action.keys[0]
    return not action.label_typing and (len(key) == 1 or key in _TEXT_KEYS)


def bindings(*scopes: Scope) -> list[Binding]:
    """The bindings of the actions of these scopes."""
    return [
        Binding(action.key, action_name(action), action.title, show=False, id=action.id,
                priority=action.id in OPENS_INPUT)
        for action in ACTIONS
        if action.scope in scopes and action.bound and action.id not in _BOUND_ELSEWHERE
    ]  # fmt: skip


def action_name(action: Action) -> str:
    """The action as Textual dispatches it; ``app.`` if the app performs it, ``zoom('log')`` for ``zoom_log``."""
    if action.id.startswith("zoom_"):
        return f"zoom('{action.id.removeprefix('zoom_')}')"
    if action.id.startswith("show_"):
        return f"app.show('{action.id.removeprefix('show_')}')"
    if action.id in WORKSHOP_ACTIONS:
        return f"app.workshop('{action.id}')"
    if action.id in CHAT_COMMANDS:
        return f"command('{action.id.removeprefix('chat_')}')"
    if action.id in ("hold", "connect", "clients_hold", "clients_connect", "clients_toggle"):
        return f"app.gateway('{action.id.removeprefix('clients_')}')"
    if action.id == "theme":
        return "app.change_theme"
    return f"app.{action.id}" if action.id in _APP_ACTIONS else action.id


def slash_actions() -> dict[str, Action]:
    """The actions that a command in the prompt of the chat runs, by its name."""
    actions = sorted((action for action in ACTIONS if action.slash), key=lambda action: action.scope is not Scope.CHAT)
    return {action.slash: action for action in actions}


def key_bar_actions(scope: Scope) -> list[Action]:
    """The actions in the key bar of a screen, the most important first."""
    own = {scope} if scope in _NOT_IN_BAR else {Scope.DASHBOARD, Scope.LIST, Scope.LISTS}
    actions = [action for action in ACTIONS if action.bar_priority and action.scope in own | {Scope.ANYWHERE}]
    return sorted(
        (action for action in actions if action.id not in _NOT_IN_BAR.get(scope, ())), key=lambda a: a.bar_priority
    )


def menu_actions(scope: Scope, panes: set[str]) -> list[Action]:
    """The rows of the menu on a screen: on the dashboard those of the focused ``panes``."""
    if scope in _NOT_IN_BAR:
        return [action for action in ACTIONS if action.scope is scope and action.effect is not Effect.MOVES]
    return [action for action in ACTIONS if panes & set(action.panes.split())]
