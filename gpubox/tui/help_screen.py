"""The help screen: keys, terms, states, marks and file locations, from the tables that the screens themselves use."""

from __future__ import annotations

from collections.abc import Iterable
from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import BindingType
from textual.containers import Horizontal, VerticalScroll
from textual.content import Content
from textual.widget import Widget
from textual.widgets import Static

from gpubox.sanitize import sanitize_line
from gpubox.tui.actions import ACTIONS, Action, Scope, bindings
from gpubox.tui.dialogs import Dialog
from gpubox.tui.styled_lines import ROLE_STYLES
from gpubox.tui.widgets.header import SERVER_STATES
from gpubox.tui.widgets.lines import ScrollKeys
from gpubox.tui.workshop.edit_session import EDIT_MARKS
from gpubox.views.figures import FIGURES
from gpubox.views.marks import PROFILES, STATE_WORDS

LEFT_CELLS, TITLE_CELLS = 8, 42
TITLES = {
    Scope.ANYWHERE: "Keys", Scope.CHAT: "Keys in the chat", Scope.DIFF: "Keys in the diff",
    Scope.BENCH: "Keys on the Bench screen",
    Scope.EDITOR: "Keys in the editor", Scope.TRIAL: "Keys of a trial",
    Scope.MODELS: "Keys on the models screen", Scope.CLIENTS: "Keys on the Clients screen",
    Scope.CONNECT: "Keys while connecting a client", Scope.ADVICE: "Keys in the advice",
}  # fmt: skip


PROMPT = (
    ("/", "At the start: the commands. A list completes them."),
    ("@path", "Adds the text of a file, within bounds, or the names in a folder. A few letters find a path."),
    ("@image.png", "Adds an image, for a model that sees. A terminal passes on no pixels: save a screenshot to a file "
     "first, and paste or drop its path."),
    ("⏎", "While the model works: queues the prompt, which is sent when its step is done."),
)  # fmt: skip


class HelpPage(ScrollKeys, VerticalScroll, can_focus=True):
    """The scrolling page."""

    BINDINGS: ClassVar[list[BindingType]] = [*bindings(Scope.LISTS)]


class HelpScreen(Dialog[None]):
    """The keys of the ``first`` scope stand at the top."""

    DEFAULT_CSS = """
    HelpScreen > HelpPage { width: 96; height: auto; padding: 1 2; }
    HelpScreen Horizontal { height: auto; }
    HelpScreen Horizontal > Static { width: 1fr; }
    HelpScreen Horizontal > .left { width: 20; }
    HelpScreen .keys { text-wrap: nowrap; text-overflow: ellipsis; }
    """
    BINDINGS = [("q,question_mark,f1", "dismiss", "Close")]  # noqa: RUF012

    def __init__(self, file_locations: Iterable[tuple[str, str]], *, first: Scope = Scope.ANYWHERE) -> None:
        super().__init__()
        self.file_locations, self.first = file_locations, first if first in TITLES else Scope.ANYWHERE

    def compose(self) -> ComposeResult:
        with HelpPage() as page:
            page.border_title, page.border_subtitle = "Help", "esc closes"
            yield from self._tables()

    def on_mount(self) -> None:
        self.query_one(HelpPage).focus()

    def _tables(self) -> Iterable[Widget]:
        intro = (
            "x opens the menu of the pane you are in; tab changes the pane.\n"
            "^p lists the actions, explains them and runs them by name.\nThe mouse selects text, ^c copies it.\n"
        )
        yield Static(intro, markup=False)
        for scope in dict.fromkeys((self.first, *TITLES)):
            actions = [a for a in ACTIONS if (a.scope if a.scope in TITLES else Scope.ANYWHERE) is scope]
            yield Static(Content.styled(TITLES[scope], "bold"), markup=False)
            yield Static(Content("\n").join([*map(_key_line, actions), Content("")]), markup=False, classes="keys")
        yield from _table("The prompt of the chat", [(left, right, "$primary") for left, right in PROMPT])
        yield from _table("Terms", [(name, figure.meaning, "bold") for name, figure in FIGURES.items()])
        states = [
            (f"{glyph} {STATE_WORDS.get(name, name)}", meaning, colour)
            for name, (glyph, colour, meaning) in SERVER_STATES.items()
        ]
        yield from _table("State of the server", states)
        yield from _table(
            "Marks in the profile list",
            [(mark.name, mark.meaning, ROLE_STYLES[mark.role]) for mark in PROFILES.values()],
        )
        yield from _table("Marks in the editor", [(mark, text, colour) for mark, (colour, text) in EDIT_MARKS.items()])
        yield from _table("Files", [(name, sanitize_line(path), "") for name, path in self.file_locations])


def _key_line(action: Action) -> Content:
    """Key, title, and the command that does the same."""
    command = f"gpubox {action.command}" if action.command else ""
    return Content.assemble(
        (action.key_label.ljust(LEFT_CELLS), "$primary"),
        action.title.ljust(TITLE_CELLS - 2) + "  ",
        (command, "$quiet"),
    )


def _table(title: str, rows: Iterable[tuple[str, str, str]]) -> Iterable[Widget]:
    """A heading and (left, right, style of left) rows; the right column wraps within itself."""
    yield Static(Content.styled(title, "bold"), markup=False)
    for left, right, style in rows:
        with Horizontal():
            yield Static(Content.styled(left, style), markup=False, classes="left")
            yield Static(right, markup=False)
    yield Static("", markup=False)
