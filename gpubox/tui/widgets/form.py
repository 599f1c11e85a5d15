"""What the owner types into: the line that filters a view, rows of a form, a field that cycles through a few values."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from textual import events
from textual.app import ComposeResult
from textual.containers import Horizontal
from textual.content import Content
from textual.message import Message
from textual.widget import Widget
from textual.widgets import Input, Static

from gpubox.sanitize import sanitize_line


class FilterLine(Input):
    """Filters ``view``, which gets the focus back. The arrows move in ``view`` meanwhile."""

    def __init__(self, name: str, placeholder: str, view: Widget) -> None:
        super().__init__(placeholder=placeholder, id=name, compact=True, select_on_focus=False)
        self.view = view
        self.display = False

    def open(self) -> None:
        self.display = True
        # Not Widget.focus(), which waits a turn: letters typed right behind "/" would reach the view.
        self.screen.set_focus(self)

    def close(self) -> bool:
        """Shows everything again. Returns False if nothing was filtered."""
        if not self.display and not self.value:
            return False
        self.value = ""
        self.display = False
        self.screen.set_focus(self.view)
        return True

    def on_key(self, event: events.Key) -> None:
        if event.key in ("down", "up"):
            event.stop()
            getattr(self.view, f"action_{event.key}")()

    async def action_submit(self) -> None:
        # Not by a message, which is handled a turn later: a key typed right behind Enter would reach this line.
        self.screen.set_focus(self.view)
        self.display = bool(self.value)


class CycleField(Static, can_focus=True):
    """A value out of a few. Space and the right arrow select the next one, the left arrow the one before."""

    class Changed(Message):
        """Another value was selected."""

        def __init__(self, field: CycleField) -> None:
            super().__init__()
            self.field = field

    def __init__(
        self, name: str, choices: Sequence[tuple[Any, str]], value: Any, *, enter_cycles: bool = False
    ) -> None:
        """``choices``: values and their labels. A ``value`` that is not among them is shown as it is."""
        super().__init__(name=name, markup=False, classes="value")
        self.choices, self.enter_cycles = list(choices), enter_cycles
        self._initial = value
        self._index = next((index for index, (choice, _) in enumerate(self.choices) if choice == value), -1)
        self._show()

    @property
    def value(self) -> Any:
        return self._initial if self._index < 0 else self.choices[self._index][0]

    def _show(self) -> None:
        label = sanitize_line(str(self.value) if self._index < 0 else self.choices[self._index][1])
        self.update(Content.assemble(("‹ ", "$quiet"), label, (" ›", "$quiet")))

    def cycle(self, step: int) -> None:
        """Selects the value ``step`` places further, cyclically."""
        self._index = (self._index + step) % len(self.choices)
        self._show()
        self.post_message(self.Changed(self))

    def on_key(self, event: events.Key) -> None:
        if event.key in ("space", "right", "left") or (event.key == "enter" and self.enter_cycles):
            event.stop()
            self.cycle(-1 if event.key == "left" else 1)

    def on_click(self) -> None:
        self.cycle(1)


class FormRow(Horizontal):
    """One row of a form."""

    DEFAULT_CSS = """
    FormRow { height: 1; }
    FormRow .label { width: 12; color: $secondary; }
    FormRow .value { width: 35; height: 1; background: $line; margin-right: 1; padding: 0 1; }
    FormRow Static.value, FormRow .about { text-wrap: nowrap; text-overflow: ellipsis; }
    FormRow .value:focus { background: $cursor; text-style: bold; }
    FormRow .about { width: 1fr; color: $quiet; }
    """

    def __init__(self, label: str, field: CycleField | Input, about: str = "") -> None:
        super().__init__()
        self.label, self.field, self.about = label, field, about

    def compose(self) -> ComposeResult:
        yield Static(self.label, classes="label", markup=False)
        yield self.field
        if self.about:
            yield Static(self.about, classes="about", markup=False)
