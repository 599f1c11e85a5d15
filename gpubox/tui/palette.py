"""The palette: finds actions, profiles, terms and files by plain words; and the menu of a pane or screen."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher
from functools import cache
from typing import TYPE_CHECKING

from textual import events, on
from textual.app import ComposeResult
from textual.containers import Vertical
from textual.content import Content
from textual.widgets import Input, OptionList, Static
from textual.widgets.option_list import Option

from gpubox.sanitize import sanitize_line
from gpubox.tui.actions import ACTIONS, Scope
from gpubox.tui.dialogs import ChoiceList, Dialog, FieldsScreen
from gpubox.tui.styled_lines import shorten
from gpubox.views.figures import FIGURES, explain

if TYPE_CHECKING:
    from gpubox.tui.actions import Action
    from gpubox.tui.base_screen import PersistentScreen
    from gpubox.tui.bridge import ServiceBridge
    from gpubox.tui.messages import ProfileEntry

EMPTY_WORDS = frozenset(re.findall(r"\w+", "a am an and are at be can could did do does for from get go got have "
                                            "how i if in is it its like long me much my need of on or please should "
                                            "so some that the there this to use want when will with would you "
                                            "your"))  # fmt: skip
ASKS_MEANING = frozenset(("what", "whats", "mean", "means", "meaning", "explain", "define", "definition"))
MEANT = 0.5
"""What a term counts more if its meaning is asked for."""
ENDINGS = ("ing", "ed", "es", "er", "s")
TITLED, NAMED, EXPLAINED = 1.0, 0.92, 0.5
"""What a word of the title counts; of the other names, of the key or verb; and a word of the help."""
LEAST, LEAST_OF_BEST = 0.3, 0.45
"""What a row must have of all that its words could count, and of what the best row has."""
LEAST_LIKENESS, LEAST_TYPED = 0.8, 4
"""How like a word a mistyped one must be, and from how many letters on."""
HERE = 0.06
"""What an action of the present screen counts more."""
ROWS_SHOWN = 60
IN_A_SHELL = (
    ("engines build --version latest", "Builds the newest llama-server from source. `gpubox engines` lists them.",
     "update upgrade install compile llama.cpp llama-server engine version newest"),
    ("export PROFILE --as systemd", "Writes a profile as a systemd unit, a script (sh) or for llama-swap.",
     "export settings profile unit service script backup"),
    ("serve --install", "Starts the gateway when this machine boots, and keeps it running (systemd).",
     "boot start autostart automatic login service daemon reboot gateway"),
    ("keys add NAME", "Makes a key for a client. `gpubox keys list` lists the keys and what they used.",
     "make api key token password limit quota secret"),
    ("launch AGENT", "Starts claude, codex, opencode, qwen, goose, crush, aider or pi at the gateway.",
     "coding agent claude code run start"),
    ("web", "Shows this screen in a browser, to whoever has a key.", "browser phone tablet remote http dashboard"),
    ("doctor", "Checks what this machine has and what is missing.", "check install driver cuda setup health missing"),
    ("doctor --notify", "Sends a test to the addresses under [notify] in config.toml.",
     "notify notification alert mail ntfy webhook message crashes"),
    ("fit PROFILE", "Predicts whether a profile fits into the memory; `--solve n-cpu-moe` finds the flag's value.",
     "fits memory predict plan oom enough"),
    ("status --record FILE", "Records all readings; `gpubox --replay FILE` plays them.", "record replay bug capture"),
    ("demo", "Runs a small model, without a GPU.", "example sample tiny"),
    ("completion bash", "Prints the script that completes command lines; also for zsh and fish.", "tab complete shell"),
)  # fmt: skip
"""Verbs that no action performs: (command, what it does, what somebody may call it). The palette copies them."""

OPENED_BY_ANOTHER = {Scope.DIFF, Scope.EDITOR, Scope.TRIAL, Scope.CONNECT, Scope.ADVICE}
"""Screens that lie on another one: elsewhere nothing can run their actions."""


@dataclass(frozen=True, slots=True)
class PaletteRow:
    """Something that the palette finds. ``id`` is that of the action, ``profile:``, ``term:``, ``file:``,
    ``shell:`` or ``theme:`` with a name."""

    id: str
    title: str
    about: str = ""
    words: str = ""
    key: str = ""
    here: bool = False


def palette_rows(
    scope: Scope, entries: Iterable[ProfileEntry] = (), terms: Iterable[tuple[str, str]] = (),
    files: Iterable[tuple[str, str]] = (),
) -> list[PaletteRow]:  # fmt: skip
    """All rows, those of the screen with this ``scope`` first."""
    scopes = {scope, Scope.ANYWHERE, Scope.LIST} if scope is Scope.DASHBOARD else {scope, Scope.ANYWHERE}
    actions = [action for action in ACTIONS if action.palette]
    rows = [_action_row(action, here=True) for action in actions if action.scope in scopes]
    for entry in entries:
        if entry.profile:
            words = f"switch start load use profile {entry.profile.title}"
            rows.append(PaletteRow(f"profile:{entry.name}", f"Switch to {entry.name}", entry.summary, words))
    rows += [_action_row(action) for action in actions if action.scope not in scopes | OPENED_BY_ANOTHER]
    for command, text, words in IN_A_SHELL:
        rows.append(
            PaletteRow(f"shell:gpubox {command}", f"In a shell: gpubox {command}", f"{text} ⏎ copies it.", words)
        )
    for name, text in terms:
        words = f"mean meaning term define explain {text.partition(':')[0]}"
        rows.append(PaletteRow(f"term:{name}", f"What is {name}?", text, words))
    for name, path in files:
        words = f"file folder path directory location settings backup export {path.rpartition('/')[2]}"
        rows.append(PaletteRow(f"file:{name}", f"Where: {name}", path, words))
    return rows


def _action_row(action: Action, *, here: bool = False) -> PaletteRow:
    words = f"{action.words} {action.command} {action.bar_label}"
    return PaletteRow(action.id, action.title, action.help, words, action.key_label if here else "", here)


def find(query: str, rows: Sequence[PaletteRow]) -> list[PaletteRow]:
    """The rows that fit, the best first. Each word counts the more, the fewer rows have it."""
    typed = _words(query)
    wanted = [word for word in typed if word not in EMPTY_WORDS | ASKS_MEANING]
    if not wanted:
        return list(rows)
    scores = [0.0] * len(rows)
    total = 0.0
    for word in wanted:
        fits = [_best(word, row) for row in rows]
        count = sum(score > EXPLAINED for score in fits)
        weight = math.log(1 + len(rows) / (count + 0.5))
        total += weight
        for index, score in enumerate(fits):
            scores[index] += weight * score
    explains = bool(ASKS_MEANING & set(typed))
    least = max(LEAST * total, LEAST_OF_BEST * max(scores))
    order = sorted(
        (index for index, score in enumerate(scores) if score >= least),
        key=lambda i: (
            -(scores[i] / total + HERE * rows[i].here + MEANT * (explains and rows[i].id.startswith("term:")))
        ),
    )
    return [rows[index] for index in order]


def _words(text: str) -> tuple[str, ...]:
    return tuple(word for word in re.split(r"[^a-z0-9_./-]+", text.lower().replace("'", "")) if word.strip("./-"))


def _parts(text: str) -> Iterator[str]:
    for word in _words(text):
        yield from filter(None, (word.strip("./-"), *re.split(r"[-./]", word)))


@cache
def _row_words(row: PaletteRow) -> tuple[frozenset[str], frozenset[str], frozenset[str]]:
    """The words of its title, its other names, and those of its help; of words with a hyphen their parts, too."""
    texts = row.title, f"{row.words} {row.id.partition(':')[2]}", row.about
    titled, named, explained = (frozenset(_parts(text)) for text in texts)
    return titled, named if row.key.isdigit() else named | {row.key.lower()}, explained


@cache
def _best(word: str, row: PaletteRow) -> float:
    titled, named, explained = _row_words(row)
    return max(
        TITLED * _likeness(word, titled),
        NAMED * _likeness(word, named),
        EXPLAINED * _likeness(word, explained, exact=True),
    )


def _likeness(word: str, others: frozenset[str], *, exact: bool = False) -> float:
    """1 for the same word, less for another form of it, for its beginning, and for a mistyped one."""
    if word in others:
        return 1.0
    if any(_stem(other) == _stem(word) for other in others):
        return 0.9
    if len(word) >= 2 and any(other.startswith(word) for other in others):
        return 0.7
    if exact or len(word) < LEAST_TYPED:
        return 0.0
    if any(len(other) >= LEAST_TYPED and word.startswith(other) for other in others):
        return 0.6
    near = (other for other in others if abs(len(other) - len(word)) <= 2 and len(other) >= LEAST_TYPED)
    return 0.6 if any(SequenceMatcher(None, word, other).ratio() >= LEAST_LIKENESS for other in near) else 0.0


@cache
def _stem(word: str) -> str:
    for ending in ENDINGS:
        if word.endswith(ending) and len(word) - len(ending) >= 3:
            word = word.removesuffix(ending)
            break
    return word[:-1] if len(word) > 3 and (word[-1] == "e" or word[-1] == word[-2]) else word


class PaletteScreen(Dialog[str | None]):
    """Returns the id of the chosen row, ``None`` for esc."""

    DEFAULT_CSS = """
    PaletteScreen { align: center top; }
    PaletteScreen > Vertical { width: 96; height: auto; margin-top: 1; padding: 0 1; }
    PaletteScreen Input { height: 1; background: $line; margin-bottom: 1; }
    PaletteScreen OptionList { max-height: 55vh; }
    PaletteScreen Static { height: auto; min-height: 4; margin-top: 1; color: $quiet; }
    """

    BINDINGS = [("f1", "dismiss('help')", "Help")]  # noqa: RUF012

    def __init__(self, rows: Sequence[PaletteRow], title: str = "Type what you want", *, first: str = "") -> None:
        """``first``: the id of the row that is highlighted at first."""
        super().__init__()
        self.rows, self.heading, self.first = rows, title, first

    def compose(self) -> ComposeResult:
        with Vertical() as box:
            box.border_title, box.border_subtitle = self.heading, "↑↓ ⏎ runs it, esc closes"
            yield Input(placeholder="why slow, undo, port, download, opencode, what is pp ...", compact=True)
            yield ChoiceList()
            yield Static(markup=False)

    def on_mount(self) -> None:
        self.set_focus(self.query_one(Input))
        self._show("")

    @on(Input.Changed)
    def _typed(self, event: Input.Changed) -> None:
        self._show(event.value)

    def _show(self, query: str) -> None:
        options, width = self.query_one(OptionList), min(90, self.app.size.width - 6)
        shown = find(query, self.rows)[:ROWS_SHOWN]
        options.set_options([Option(_row_line(row, width), id=row.id) for row in shown])
        at = next((index for index, row in enumerate(shown) if row.id == self.first and not query), 0)
        options.highlighted = at if shown else None
        if not shown:
            self.query_one(Static).update("Nothing is called that; press F1 for help.")

    @on(OptionList.OptionHighlighted)
    def _highlighted(self, event: OptionList.OptionHighlighted) -> None:
        """What the row does stands whole below the list."""
        about = next((row.about for row in self.rows if row.id == event.option_id), "")
        self.query_one(Static).update(sanitize_line(about))

    def on_key(self, event: events.Key) -> None:
        moves = {"down": "cursor_down", "up": "cursor_up", "pagedown": "page_down", "pageup": "page_up"}
        if name := moves.get(event.key):
            event.stop()
            getattr(self.query_one(OptionList), f"action_{name}")()

    @on(Input.Submitted)
    def _submitted(self) -> None:
        options = self.query_one(OptionList)
        if options.highlighted is not None:
            options.action_select()

    @on(OptionList.OptionSelected)
    def _selected(self, event: OptionList.OptionSelected) -> None:
        self.dismiss(event.option_id)


def _row_line(row: PaletteRow, width: int) -> Content:
    title = sanitize_line(row.title)
    about = shorten(sanitize_line(row.about), max(0, width - len(title) - 8))
    return Content.assemble((row.key.ljust(6), "bold $primary"), title, "  ", (about, "$quiet"))


async def ask_palette(bridge: ServiceBridge, top: PersistentScreen) -> str:
    """Asks what the owner wants. Explains a term and copies a path or command itself; returns the id of any other
    row, or nothing. Call it in a worker."""
    files = dict(bridge.services.file_locations())
    terms = [(name, figure.meaning) for name, figure in FIGURES.items()]
    rows = palette_rows(top.keys.scope, bridge.entries, terms, files.items())
    chosen = await bridge.app.push_screen_wait(PaletteScreen(rows)) or ""
    kind, _, name = chosen.partition(":")
    if kind == "term":
        bridge.app.push_screen(FieldsScreen(name, explain(name)))
    elif kind == "file":
        top.copy(files[name], f"the path of {name}")
    elif kind == "shell":
        top.copy(name, "the command")
    return "" if kind in ("term", "file", "shell") else chosen


class MenuScreen(Dialog[str | None]):
    """The actions of a pane or screen. Enter runs the highlighted row, a letter its own. Returns the action's id."""

    DEFAULT_CSS = """
    MenuScreen > Vertical { width: 60; height: auto; padding: 0 1; }
    MenuScreen OptionList { max-height: 90vh; }
    """
    BINDINGS = [("x", "dismiss(None)", "Close"), ("question_mark,f1", "app.help", "Help")]  # noqa: RUF012

    def __init__(self, title: str, actions: Sequence[Action]) -> None:
        super().__init__()
        self.heading, self.actions = title, actions

    def compose(self) -> ComposeResult:
        with Vertical() as box:
            box.border_title, box.border_subtitle = Content(self.heading), "⏎ or its key runs it, esc closes"
            keys = ((action, (action.letter.ljust(5), "bold $primary")) for action in self.actions)
            yield ChoiceList(*(Option(Content.assemble(key, action.title), id=action.id) for action, key in keys))

    def on_mount(self) -> None:
        options = self.query_one(OptionList)
        options.highlighted = 0
        options.focus()

    def on_key(self, event: events.Key) -> None:
        if event.key in ("j", "k"):
            event.stop()
            getattr(self.query_one(OptionList), "action_cursor_down" if event.key == "j" else "action_cursor_up")()
        elif event.key != "enter" and (action := next((a for a in self.actions if event.key in a.keys), None)):
            event.stop()
            self.dismiss(action.id)

    @on(OptionList.OptionSelected)
    def _selected(self, event: OptionList.OptionSelected) -> None:
        self.dismiss(event.option_id)
