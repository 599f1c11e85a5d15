"""Keys, words, marks, and where files are: made from the registry and the tables that the screen itself uses."""

from __future__ import annotations

from collections.abc import Iterable
from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import BindingType
from textual.containers import Horizontal, VerticalScroll
from textual.content import Content
from textual.screen import ModalScreen
from textual.widget import Widget
from textual.widgets import Static

from gpubox.sanitize import sanitize_line
from gpubox.tui.actions import ACTIONS, Action, Scope, bindings
from gpubox.tui.glyphs import PROFILE_MARKS, STATES
from gpubox.tui.widgets.scroll_keys import ScrollKeys

WORDS = (
    ("pp", "tokens/s of reading the prompt: read tokens / reading time. Cached tokens do not count."),
    ("tg", "tokens/s of generating: (n - 1) / generation time, thinking included; the first token is free."),
    (
        "TTFT",
        "from the request's arrival at the server to its first token, the wait for a slot with it; ≥: that wait is in "
        "no line of its log. In the chat and in benchmarks: to the first token with text or thinking, as the client "
        "sees it.",
    ),
    ("now", "tg of all slots together over the last 3 s."),
    (
        "median, peak",
        "tg of all slots together, over the stretches of this session in which any generated without a pause: half of "
        "that time was faster; the fastest. `a request`: the median of one request alone, where several ran at once.",
    ),
    (
        "effective",
        "all tokens that came out, of all slots, / wall time of the turn or session, tools and gaps included.",
    ),
    ("acceptance", "accepted / drafted tokens; the mean length is 1 + accepted / verify steps."),
    ("~", "stands before an estimate; every other number was read or measured."),
    ("—", "not known. Never drawn as 0."),
)
"""The definitions that every number on every screen keeps to."""


class Page(ScrollKeys, VerticalScroll, can_focus=True):
    """What scrolls."""

    BINDINGS: ClassVar[list[BindingType]] = [*bindings(Scope.LISTS)]


class HelpScreen(ModalScreen[None]):
    """One page; esc, q or ? closes it."""

    DEFAULT_CSS = """
    HelpScreen { align: center middle; background: $background 60%; }
    HelpScreen > Page {
        width: 96; max-width: 98%; height: auto; max-height: 96%; padding: 1 2; background: $panel;
        border: round $line-focus; border-title-color: $foreground; border-title-style: bold;
        border-subtitle-color: $quiet; scrollbar-size-vertical: 1;
    }
    HelpScreen Static { height: auto; }
    """
    BINDINGS = [("escape,q,question_mark,f1", "dismiss", "Close")]  # noqa: RUF012

    def __init__(self, places: Iterable[tuple[str, str]], *, first: Scope = Scope.ANYWHERE) -> None:
        super().__init__()
        self.places, self.first = places, first

    def compose(self) -> ComposeResult:
        with Page() as box:
            box.border_title, box.border_subtitle = "Help", "esc closes"
            yield from self._blocks()

    def on_mount(self) -> None:
        self.query_one(Page).focus()

    def _blocks(self) -> Iterable[Widget]:
        titles = {Scope.ANYWHERE: "Keys", Scope.CHAT: "Keys in the chat", Scope.BENCH: "Keys on the Bench screen"}
        keys: dict[Scope, list[Action]] = {self.first: [], **{where: [] for where in titles}}
        for verb in ACTIONS:
            keys[verb.where if verb.where in titles else Scope.ANYWHERE].append(verb)
        for where, verbs in keys.items():
            yield from _table(titles[where], [(verb.shown, _told(verb), "$primary") for verb in verbs])
        yield from _table("Words", [(word, text, "bold") for word, text in WORDS])
        states = [(f"{glyph} {name}", meaning, colour) for name, (glyph, colour, meaning) in STATES.items()]
        yield from _table("State of the server", states)
        yield from _table("Marks in the list", [(mark, text, colour) for mark, (colour, text) in PROFILE_MARKS.items()])
        yield from _table("Where things are", [(what, sanitize_line(path), "") for what, path in self.places])


def _told(verb: Action) -> Content:
    """What a verb does, and the command that does the same."""
    command = f"  gpubox {verb.command}" if verb.command else ""
    return Content.assemble(verb.title, (f"  {verb.help}".rstrip(), "$secondary"), (command, "$quiet"))


def _table(title: str, rows: Iterable[tuple[str, str | Content, str]]) -> Iterable[Widget]:
    """A heading and two columns; the second wraps under itself."""
    yield Static(Content.styled(f"{title}", "bold"), markup=False)
    for left, right, style in rows:
        yield _Row(left, right, style)
    yield Static("", markup=False)


class _Row(Horizontal):
    """A word at the left, its text beside it with a hanging indent."""

    DEFAULT_CSS = "_Row { height: auto; } _Row > .left { width: 15; } _Row > .right { width: 1fr; }"

    def __init__(self, left: str, right: str | Content, style: str) -> None:
        super().__init__()
        self.left, self.right, self.left_style = left, right, style

    def compose(self) -> ComposeResult:
        yield Static(Content.styled(self.left, self.left_style), markup=False, classes="left")
        yield Static(self.right, markup=False, classes="right")
