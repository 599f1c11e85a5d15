"""The frame of every dialog, and the general ones: a question with answers, a prompt for a line of text, a table."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Iterable
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from textual import events, on
from textual.app import App, ComposeResult
from textual.containers import Horizontal, Vertical, VerticalScroll
from textual.content import Content
from textual.screen import ModalScreen
from textual.widgets import Input, OptionList, Static
from textual.widgets.option_list import Option

from gpubox.errors import UsageError
from gpubox.sanitize import sanitize_line

if TYPE_CHECKING:
    from textual.widgets import TextArea

Result = TypeVar("Result")


class Dialog(ModalScreen[Result], Generic[Result]):
    """A framed box over a dimmed screen; esc closes it. Subclasses compose one Vertical or VerticalScroll."""

    BINDINGS = [("escape", "dismiss(None)", "Close")]  # noqa: RUF012

    DEFAULT_CSS = """
    Dialog { align: center middle; background: $background 60%; }
    Dialog > Vertical, Dialog > VerticalScroll {
        max-width: 98%; max-height: 96%; background: $panel; border: round $line-focus;
        border-title-color: $foreground; border-title-style: bold; border-subtitle-color: $quiet;
        scrollbar-size-vertical: 1;
    }
    """


class ChoiceList(OptionList):
    """Rows of which one is chosen. Without a scroll bar, for whose room a row would wrap, and the bar then stay."""

    DEFAULT_CSS = """
    ChoiceList { height: auto; border: none; padding: 0; background: $panel; scrollbar-size-vertical: 0; }
    ChoiceList:focus { border: none; background-tint: $foreground 0%; }
    ChoiceList > .option-list--option-highlighted, ChoiceList:focus > .option-list--option-highlighted {
        background: $line; color: $foreground; text-style: none;
    }
    """

    def __init__(self, *rows: Option) -> None:
        super().__init__(*rows, markup=False)


TYPING_PAUSE_SECONDS = 0.6
"""A key answers a question only this long after it came, and after the last key of a text that is being typed."""
PROMPT_SECONDS = 2.0
"""A question so soon after a key that is no text was asked for by that key."""

NEW_LINE_KEYS = ("ctrl+j", "shift+enter", "alt+enter")
"""In a text of several lines, where Enter sends it."""

DialogAnswer = tuple[str, str, str]
"""Its key, its text, and the value that the dialog returns."""


async def ask(app: App[Any], title: str, body: str, *answers: DialogAnswer) -> str | None:
    """Asks a question. Returns the value of the chosen answer, ``None`` for esc. Only inside workers."""
    return await app.push_screen_wait(QuestionScreen(title, body, *answers))


async def confirm(app: App[Any], title: str, body: str, yes: str, *, no: str = "not now") -> bool:
    """Whether the owner agrees; ``yes`` and ``no`` say what happens then. Call it in a worker."""
    return await ask(app, title, body, ("n", no, "no"), ("y", yes, "yes")) == "yes"


async def ask_name(
    app: App[Any], title: str, proposal: str, body: str, write: Callable[[str], Awaitable[object]]
) -> str | None:
    """Asks for a name until ``write`` raises no UsageError. ``None``: the owner gave up. Call it in a worker."""
    while name := await app.push_screen_wait(PromptScreen(title, proposal, body)):
        try:
            await write(name)
        except UsageError as error:
            proposal, body = name, f"{sanitize_line(str(error))} Another name:"
        else:
            return name
    return None


class QuestionScreen(Dialog[str | None]):
    """Returns the value of the chosen answer, ``None`` for esc. The first answer must be the safe one.

    While the owner types into a text below it, the question takes none of that: text goes where it was meant to go, and
    no answer is chosen at first. The arrows choose, and Tab gives the question the letters.
    """

    DEFAULT_CSS = """
    QuestionScreen > Vertical { width: 72; max-width: 96%; height: auto; padding: 1 2; }
    QuestionScreen Static { margin-bottom: 1; }
    QuestionScreen ChoiceList { max-height: 66vh; }
    """

    def __init__(self, title: str, body: str, *answers: DialogAnswer) -> None:
        super().__init__()
        self.question, self.body, self.answers = title, body, answers
        self.text_below: Input | TextArea | None = None
        """What the owner types into."""
        self._typed_at = 0.0
        self.options = ChoiceList()

    def compose(self) -> ComposeResult:
        self.text_below, self._typed_at = self._find_text(), time.monotonic()
        with Vertical() as box:
            box.border_title = Content(self.question)  # a str would be parsed as markup
            if self.text_below:
                box.border_subtitle = Content("or ↑↓ ⏎; text goes to where you type")
            yield Static(self.body, markup=False)
            self.options = ChoiceList(*self._options())
            yield self.options

    def _options(self) -> list[Option]:
        tab = ("tab " if self.text_below else "", "$accent")
        shown = ((Content.assemble(tab, (f"{k}  ", "bold $primary"), text), value) for k, text, value in self.answers)
        return [Option(content, id=value) for content, value in shown]

    def on_mount(self) -> None:
        if self.text_below:
            self.options.highlighted = None
        self.set_focus(self.options)

    def on_key(self, event: events.Key) -> None:
        if not self.text_below:
            for key, _, value in self.answers:
                if event.key == key:
                    event.stop()
                    self.dismiss(value)
            return
        now = time.monotonic()
        early = now - self._typed_at < TYPING_PAUSE_SECONDS
        if is_text(event):
            self._typed_at = now
        elif event.key == "tab" and not early:
            self._take_letters()
        elif not early:
            return
        event.stop()
        if self.text_below:
            _type(self.text_below, event)

    def _take_letters(self) -> None:
        self.text_below = None
        self.options.set_options(self._options())
        self.options.highlighted = 0
        self.query_one(Vertical).border_subtitle = ""

    def on_paste(self, event: events.Paste) -> None:
        if self.text_below:
            self.text_below._forward_event(events.Paste(event.text))

    def on_option_list_option_selected(self, event: OptionList.OptionSelected) -> None:
        self.dismiss(event.option_id)

    def _find_text(self) -> Input | TextArea | None:
        last: events.Key | None = getattr(self.app, "last_key", None)
        if last and not is_text(last) and time.monotonic() - last.time < PROMPT_SECONDS:
            return None  # a key asked for it
        below = self.app.screen_stack[-2:][0]  # this one may be closed already
        if isinstance(below, QuestionScreen):
            return below.text_below
        from textual.widgets import TextArea  # not before the first paint

        return below.focused if isinstance(below.focused, Input | TextArea) else None


def is_text(event: events.Key) -> bool:
    """Whether a key is pressed while one writes."""
    return event.is_printable or event.key in ("backspace", "delete", *NEW_LINE_KEYS)


def _type(text: Input | TextArea, event: events.Key) -> None:
    """Gives a key to a text that has not the focus."""
    bindings = text._bindings.key_to_bindings.get(event.key, [])
    for binding in bindings:
        text.call_later(text.app.run_action, binding.action, text)
    if not bindings and (is_text(event) or event.key == "enter"):
        text._forward_event(events.Key(event.key, event.character))


class PromptScreen(Dialog[str | None]):
    """Asks for one line of text. Returns it, ``None`` for esc or an empty line."""

    DEFAULT_CSS = """
    PromptScreen > Vertical { width: 72; max-width: 96%; height: auto; padding: 1 2; }
    PromptScreen Static { margin-bottom: 1; color: $secondary; }
    PromptScreen Input { height: 1; background: $line; }
    """

    def __init__(self, title: str, value: str, body: str = "", *, may_be_empty: bool = False) -> None:
        """``may_be_empty``: an empty line is an answer, too."""
        super().__init__()
        self.question, self.value, self.body, self.may_be_empty = title, value, body, may_be_empty

    def compose(self) -> ComposeResult:
        with Vertical() as box:
            box.border_title = Content(self.question)
            box.border_subtitle = "⏎ confirms, esc cancels"
            if self.body:
                yield Static(self.body, markup=False)
            yield Input(self.value, compact=True, select_on_focus=True)

    def on_mount(self) -> None:
        self.set_focus(self.query_one(Input))  # Widget.focus() waits a turn; text typed at once would be lost

    @on(Input.Submitted)
    def _submitted(self, event: Input.Submitted) -> None:
        text = event.value.strip()
        self.dismiss(text if text or self.may_be_empty else None)


class FieldsScreen(Dialog[None]):
    """Every field of one thing: names and values."""

    DEFAULT_CSS = """
    FieldsScreen > VerticalScroll { width: 88; height: auto; padding: 1 2; }
    FieldsScreen Horizontal { height: auto; }
    FieldsScreen Horizontal > Static { width: 1fr; }
    FieldsScreen Horizontal > .name { color: $quiet; }
    """
    BINDINGS = [("q,enter", "dismiss", "Close")]  # noqa: RUF012

    def __init__(self, title: str, fields: Iterable[tuple[str, str]]) -> None:
        """The values are sanitized already."""
        super().__init__()
        self.heading, self.fields = title, tuple(fields)

    def compose(self) -> ComposeResult:
        with VerticalScroll() as box:
            box.border_title, box.border_subtitle = Content(self.heading), "esc closes"
            cells = max((len(name) for name, _ in self.fields), default=0) + 2
            for name, value in self.fields:
                with Horizontal():
                    label = Static(name, markup=False, classes="name")
                    label.styles.width = cells
                    yield label
                    yield Static(value, markup=False)

    def on_mount(self) -> None:
        self.query_one(VerticalScroll).focus()
