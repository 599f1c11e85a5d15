"""The profile list with its search line."""

from __future__ import annotations

from typing import ClassVar

from textual import events, on
from textual.binding import BindingType
from textual.containers import Vertical
from textual.message import Message
from textual.reactive import reactive
from textual.widgets import Input, OptionList
from textual.widgets.option_list import Option

from gpubox.tui.actions import Scope, bindings
from gpubox.tui.glyphs import mark_of, row
from gpubox.tui.profile_entries import ProfileEntry, filter_entries


class ProfileRows(OptionList):
    """One line per entry; Enter chooses, a click only highlights."""

    DEFAULT_CSS = """
    ProfileRows {
        height: 1fr; border: none; padding: 0; background: $background; scrollbar-size-vertical: 1;
        text-wrap: nowrap; text-overflow: ellipsis;
        &:focus { border: none; background-tint: $foreground 0%; }
        & > .option-list--option-highlighted { background: $cursor; text-style: none; }
        &:focus > .option-list--option-highlighted { background: $line; text-style: none; }
        & > .option-list--option-hover { background: $panel; }
    }
    """

    BINDINGS: ClassVar[list[BindingType]] = [*bindings(Scope.LIST, Scope.LISTS)]

    class WidthChanged(Message):
        """The rows have another width and must be drawn for it."""

    def on_resize(self) -> None:
        self.post_message(self.WidthChanged())

    def action_down(self) -> None:
        self.action_cursor_down()

    def action_up(self) -> None:
        self.action_cursor_up()

    def action_top(self) -> None:
        self.action_first()

    def action_bottom(self) -> None:
        self.action_last()

    async def _on_click(self, event: events.Click) -> None:
        # Textual's own list chooses at the first click, which here would replace a running server.
        event.prevent_default()
        clicked = event.style.meta.get("option")
        if clicked is not None:
            self.highlighted = clicked
            if event.chain == 2:
                self.action_select()


class ProfilePane(Vertical):
    """ProfileRows and search. Draws ``entries``; tells what is highlighted and what is chosen."""

    entries: reactive[tuple[ProfileEntry, ...] | None] = reactive(None)
    running: reactive[frozenset[str]] = reactive(frozenset[str]())
    hides_shipped: reactive[bool] = reactive(False)
    """Whether the settings hide the shipped profiles."""
    working: reactive[tuple[str, str]] = reactive(("", ""))
    """The profile an operation is about, and the step in a word."""

    class EntryHighlighted(Message):
        """Another row is highlighted, or the row changed."""

        def __init__(self, entry: ProfileEntry | None) -> None:
            super().__init__()
            self.entry = entry

    class EntrySelected(Message):
        """Enter was pressed on a row."""

        def __init__(self, entry: ProfileEntry) -> None:
            super().__init__()
            self.entry = entry

    def __init__(self) -> None:
        super().__init__()
        self.search = Input(placeholder="name, title or text", id="search", compact=True, select_on_focus=False)
        self.rows = ProfileRows(id="rows", markup=False)
        self.search.display = False
        self.border_title = "Profiles"
        self.shown: tuple[ProfileEntry, ...] = ()
        self.last = ""
        """The profile that answered last: never hidden."""
        self._toggled = False
        self.wanted: str | None = None
        """The id of the row to highlight once it is there."""
        self._drawn: list[tuple[ProfileEntry, str, str]] = []

    def fill(self) -> None:
        """Mounts what is inside. Not composed: lists and inputs are slow to make and empty at the first paint."""
        self.mount(self.search, self.rows)
        self.screen.set_focus(self.rows)
        self._list()

    @property
    def entry(self) -> ProfileEntry | None:
        """The highlighted entry."""
        at = self.rows.highlighted
        return self.shown[at] if at is not None and at < len(self.shown) else None

    def watch_entries(self) -> None:
        self._list()

    def watch_hides_shipped(self) -> None:
        self._list()

    def watch_running(self) -> None:
        self._list()
        self._mark()

    def toggle_shipped(self) -> bool:
        """Shows the shipped profiles where they are hidden, hides them where they are shown. Whether there are any."""
        if not any(entry.profile and entry.profile.shipped for entry in self.entries or ()):
            return False
        self._toggled = not self._toggled
        self._list()
        return True

    def _hidden(self, entry: ProfileEntry) -> bool:
        if self.hides_shipped == self._toggled or not entry.profile or not entry.profile.shipped:
            return False
        return entry.name not in self.running | {self.working[0], self.last} and entry.id != self.wanted

    def watch_working(self) -> None:
        self._mark()

    @on(ProfileRows.WidthChanged)
    def _redraw(self) -> None:
        self._drawn = []
        self._mark()

    def find(self) -> None:
        """Opens the search line."""
        self.search.display = True
        # Not Widget.focus(), which waits a turn: letters typed right behind "/" would reach the rows.
        self.screen.set_focus(self.search)

    def close_search(self) -> bool:
        """Closes the search line and shows all; whether there was anything to close."""
        if not self.search.display and not self.search.value:
            return False
        self.search.value = ""
        self.search.display = False
        self.screen.set_focus(self.rows)
        return True

    def highlight(self, entry_id: str) -> None:
        """Highlights a row, now or once it is there."""
        self.wanted = entry_id
        at = next((i for i, entry in enumerate(self.shown) if entry.id == entry_id), None)
        if at is not None:
            self.wanted = None
            self.rows.highlighted = at

    @on(Input.Changed, "#search")
    def _narrowed(self) -> None:
        self._list()

    @on(Input.Submitted, "#search")
    def _found(self) -> None:
        self.screen.set_focus(self.rows)
        if not self.search.value:
            self.search.display = False

    def on_key(self, event: events.Key) -> None:
        if self.search.has_focus and event.key in ("down", "up"):
            event.stop()
            self.rows.action_cursor_down() if event.key == "down" else self.rows.action_cursor_up()

    @on(OptionList.OptionHighlighted)
    def _highlighted(self) -> None:
        self.post_message(self.EntryHighlighted(self.entry))

    @on(OptionList.OptionSelected)
    def _chosen(self) -> None:
        if self.entry:
            self.post_message(self.EntrySelected(self.entry))

    def _list(self) -> None:
        """Makes the rows anew where their number or order changed; keeps the highlight on the same thing."""
        if self.entries is None or not self.rows.is_attached:
            return
        before = self.entry
        shown = filter_entries(self.entries, self.search.value)
        if not self.search.value:
            shown = tuple(entry for entry in shown if not self._hidden(entry))
        same = [e.id for e in shown] == [e.id for e in self.shown]
        self.shown = shown
        count = len(self.entries)
        self.border_subtitle = f"{len(shown)} of {count}" if len(shown) != count else f"{count}"
        if not self.search.value and len(shown) != count:
            self.border_subtitle += ", H shows the shipped"
        if not same:
            self._drawn = []
            self.rows.set_options([Option("", id=entry.id) for entry in shown])
            kept = self.wanted or (before.id if before else "")
            at = next((i for i, entry in enumerate(shown) if entry.id == kept), 0 if shown else None)
            if at is not None and shown[at].id == self.wanted:
                self.wanted = None
            self.rows.highlighted = at
        self._mark()
        self.post_message(self.EntryHighlighted(self.entry))

    def _mark(self) -> None:
        """Draws the rows that changed, and only those."""
        if not self.rows.is_attached:
            return
        width = self.rows.scrollable_content_region.width
        if width <= 0:
            return  # not laid out yet: the rows' first size draws them
        working, word = self.working
        for at, entry in enumerate(self.shown):
            drawn = (entry, mark_of(entry, self.running, working), word if entry.name == working else "")
            if at >= len(self._drawn):
                self._drawn.append(drawn)
            elif self._drawn[at] == drawn:
                continue
            self._drawn[at] = drawn
            self.rows.replace_option_prompt_at_index(at, row(*drawn, width))
