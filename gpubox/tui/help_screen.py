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
from gpubox.views.marks import PROFILES

TERMS = (
    (
        "pp",
        "prompt processing, tokens per second (tok/s): prompt tokens / processing time, both without cached tokens.",
    ),
    (
        "tg",
        "token generation, tokens per second (tok/s): (n - 1) / generation time. Thinking tokens count, the first "
        "token does not.",
    ),
    (
        "TTFT",
        "time to first token: from the request's arrival at the server, including the wait for a slot. ≥: the log "
        "does not show that wait. In the chat and in benchmarks the client measures it, to the first token of text or "
        "thinking. On the Clients screen the gateway does, from the request's last byte in to the first token out.",
    ),
    (
        "waiting, reading",
        "a request waits in the gateway until the server of its profile takes it; the server reads the prompt until "
        "the first token comes. `working`: not streamed, so the gateway sees no token before the end.",
    ),
    ("now", "tg of all slots together over the last 3 s."),
    (
        "median, peak",
        "the median and the highest tg of all slots together, over the periods of this session in which tokens were "
        "generated without a pause. `a request`: the median tg of a single request, shown if several ran at once.",
    ),
    ("effective", "all generated tokens / wall time of the turn or session, including tools and pauses."),
    (
        "acceptance",
        "of speculative decoding (a draft model, or MTP): accepted / drafted tokens. tokens/step: 1 + accepted tokens "
        "/ verification steps.",
    ),
    (
        "KV cache",
        "what the server keeps of each conversation so that it need not read it again. It is reserved at load for the "
        "whole context, in the type that cache-type-k and cache-type-v name. `reused`: tokens found in it.",
    ),
    ("context", "the most tokens of prompt and answer that a slot can hold: ctx-size, shared by the slots."),
    ("slot", "a place for one request. As many are answered at the same time; more wait."),
    ("quant", "how few bits the weights have: Q4_K_M is smaller and less exact than Q8_0, and read faster."),
    ("CPU offload", "weights that stay in RAM and are used by the CPU: it frees VRAM and costs tg."),
    (
        "history",
        "what gpubox recorded while it was open: a graph of 1 h, 1 day or 30 days, and the requests of all launches. "
        "A column is the mean over the time in which tokens were generated (tg) or only prompts were read (pp). "
        "·: nothing was observed. ▲ start or switch, ▽ stop, ✗ crash, ◆ another engine, ◇ another driver.",
    ),
    ("slower since", "tg or pp of comparable requests of a profile fell at that moment, beyond its usual noise."),
    ("~", "marks an estimate; every other number was read or measured."),
    ("—", "not known; never shown as 0."),
)
"""The definitions of the numbers on every screen."""
LEFT_CELLS, TITLE_CELLS = 8, 42
TITLES = {
    Scope.ANYWHERE: "Keys", Scope.CHAT: "Keys in the chat", Scope.BENCH: "Keys on the Bench screen",
    Scope.EDITOR: "Keys in the editor", Scope.TRIAL: "Keys of a trial",
    Scope.MODELS: "Keys on the models screen", Scope.CLIENTS: "Keys on the Clients screen",
    Scope.CONNECT: "Keys while connecting a client", Scope.ADVICE: "Keys in the advice",
}  # fmt: skip


class HelpPage(ScrollKeys, VerticalScroll, can_focus=True):
    """The scrolling page."""

    BINDINGS: ClassVar[list[BindingType]] = [*bindings(Scope.LISTS)]


class HelpScreen(Dialog[None]):
    """The keys of the ``first`` scope stand at the top."""

    DEFAULT_CSS = """
    HelpScreen > HelpPage { width: 96; height: auto; padding: 1 2; }
    HelpScreen Horizontal { height: auto; }
    HelpScreen Horizontal > Static { width: 1fr; }
    HelpScreen Horizontal > .left { width: 15; }
    HelpScreen .keys { text-wrap: nowrap; text-overflow: ellipsis; }
    """
    BINDINGS = [("escape,q,question_mark,f1", "dismiss", "Close")]  # noqa: RUF012

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
        intro = "^p lists the actions, explains them and runs them by name.\nThe mouse selects text, ^c copies it.\n"
        yield Static(intro, markup=False)
        for scope in dict.fromkeys((self.first, *TITLES)):
            actions = [a for a in ACTIONS if (a.scope if a.scope in TITLES else Scope.ANYWHERE) is scope]
            yield Static(Content.styled(TITLES[scope], "bold"), markup=False)
            yield Static(Content("\n").join([*map(_key_line, actions), Content("")]), markup=False, classes="keys")
        yield from _table("Terms", [(term, text, "bold") for term, text in TERMS])
        states = [(f"{glyph} {name}", meaning, colour) for name, (glyph, colour, meaning) in SERVER_STATES.items()]
        yield from _table("State of the server", states)
        yield from _table(
            "Marks in the profile list",
            [(mark.glyph, mark.meaning, ROLE_STYLES[mark.role]) for mark in PROFILES.values()],
        )
        yield from _table("Marks in the editor", [(mark, text, colour) for mark, (colour, text) in EDIT_MARKS.items()])
        yield from _table("Files", [(name, sanitize_line(path), "") for name, path in self.file_locations])


def _key_line(action: Action) -> Content:
    """Key, title, and the command that does the same."""
    command = f"gpubox {action.command}" if action.command else ""
    return Content.assemble(
        (action.key_label.ljust(LEFT_CELLS), "$primary"), action.title.ljust(TITLE_CELLS), (command, "$quiet")
    )


def _table(title: str, rows: Iterable[tuple[str, str, str]]) -> Iterable[Widget]:
    """A heading and (left, right, style of left) rows; the right column wraps within itself."""
    yield Static(Content.styled(title, "bold"), markup=False)
    for left, right, style in rows:
        with Horizontal():
            yield Static(Content.styled(left, style), markup=False, classes="left")
            yield Static(right, markup=False)
    yield Static("", markup=False)
