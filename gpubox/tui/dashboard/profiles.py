"""The profiles pane: profiles, broken files and models without a profile, with a search line.

``Enter`` on a row posts ``ProfilePane.EntrySelected``; the dashboard passes it to the OperationController.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path, PurePath
from typing import TYPE_CHECKING, ClassVar, Literal

from textual import events, on
from textual.binding import BindingType
from textual.containers import Vertical
from textual.content import Content
from textual.message import Message
from textual.reactive import reactive
from textual.widgets import Input, OptionList
from textual.widgets.option_list import Option

from gpubox.errors import GpuboxError
from gpubox.sanitize import sanitize_line
from gpubox.tui.actions import Scope, bindings
from gpubox.tui.formatting import shorten

if TYPE_CHECKING:
    from gpubox.profiles.loader import ProfileCatalog
    from gpubox.profiles.profile import Profile
    from gpubox.server.engine_compatibility import EngineCompatibility

PROFILE_MARKS = {
    "●": ("$success", "runs"),
    "◌": ("$accent", "an operation on it is under way"),
    "✓": ("$quiet", "the engine accepts every flag, and the model is here"),
    "↓": ("$primary", "the engine accepts every flag; Enter downloads the model first"),
    "?": ("$warning", "the model is not where the profile says"),
    "!": ("$warning", "the engine does not accept it; the row says why"),
    "✗": ("$error", "the file is broken; the row says where"),
    "+": ("$primary", "a model without a profile; Enter makes one"),
    "·": ("$quiet", "not known yet"),
}
"""Mark of a row -> its colour and meaning."""
NAME_CELLS = 22
MODEL_MISSING = "model missing: "
"""EngineCompatibility's text begins so if the model file is missing."""


@dataclass(frozen=True, slots=True)
class ProfileEntry:
    """One row of the list. ``id`` is unique, and stays the same when the entry changes."""

    id: str
    kind: Literal["profile", "broken", "model"]
    name: str
    profile: Profile | None = None
    compatibility: EngineCompatibility | None = None
    """``None`` until the engine has been asked."""
    error: GpuboxError | None = None
    model: Path | None = None

    @property
    def summary(self) -> str:
        """The text beside the name."""
        if self.kind == "broken" and self.error:
            # The path is left out: the row has no room for the folder, and the name is beside it.
            file = re.escape(f"{self.name.removesuffix('.toml')}.toml")
            return re.sub(rf"^.*?{file}:? (is )?", "", self.error.message, count=1)
        if self.kind == "model":
            return "a model without a profile: Enter makes one"
        assert self.profile is not None
        state = self.compatibility
        if state and state.summary and not (state.ok and (state.model_present or state.fetchable)):
            return state.summary
        return self.profile.title

    @property
    def search_text(self) -> str:
        """Everything that a search looks at, in lower case."""
        profile = self.profile
        details = f"{profile.title} {profile.description} {profile.model}" if profile else ""
        return f"{self.name} {self.summary} {details} {self.model or ''}".lower()


def build_entries(
    catalog: ProfileCatalog, compatibility: Mapping[str, EngineCompatibility], models: Iterable[Path]
) -> tuple[ProfileEntry, ...]:
    """Broken files, then the profiles in the catalog's order, then the models that no profile names."""
    entries = [ProfileEntry(f"broken:{name}", "broken", name, error=e) for name, e in sorted(catalog.broken.items())]
    entries += [
        ProfileEntry(f"profile:{p.name}", "profile", p.name, p, compatibility.get(p.name))
        for p in catalog.profiles.values()
    ]
    entries += [ProfileEntry(f"model:{path}", "model", path.name, model=path) for path in models]
    return tuple(entries)


def filter_entries(entries: Iterable[ProfileEntry], search: str) -> tuple[ProfileEntry, ...]:
    """The entries that contain every word of ``search``; those with all words in their name come first."""
    terms = search.lower().split()
    matching = [entry for entry in entries if all(term in entry.search_text for term in terms)]
    return tuple(sorted(matching, key=lambda entry: not all(term in entry.name.lower() for term in terms)))


def entry_mark(entry: ProfileEntry, running: frozenset[str], operating_on: str) -> str:
    """The mark of a row; ``operating_on`` names the profile of the operation under way."""
    if entry.kind != "profile":
        return "✗" if entry.kind == "broken" else "+"
    if entry.name == operating_on:
        return "◌"
    if entry.name in running:
        return "●"
    state = entry.compatibility
    if state is None:
        return "·"
    if not state.ok:
        return "!"
    return "✓" if state.model_present else "↓" if state.fetchable else "?"


def entry_row(entry: ProfileEntry, mark: str, step: str, width: int) -> Content:
    """One row, ``width`` cells wide; ``step`` is the label of the operation's current step, if it is about this row."""
    name_cells = min(NAME_CELLS, max(10, width // 2 - 3))
    name = shorten(sanitize_line(entry.name), name_cells)
    text = step or sanitize_line(entry.summary)
    if text.startswith(MODEL_MISSING):  # the file name says more than the start of its path
        text = f"no {PurePath(text.removeprefix(MODEL_MISSING)).name}"
    return Content.assemble(
        (mark, PROFILE_MARKS[mark][0]),
        " ",
        (name.ljust(name_cells), "bold" if mark in "●◌" else "$quiet" if mark in "!+?" else ""),
        "  ",
        (shorten(text, max(0, width - name_cells - 4)), "$accent" if step else "$error" if mark == "✗" else "$quiet"),
    )


class ProfileRows(OptionList):
    """One line per entry. Enter or a double click selects; a click only highlights."""

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
    action_down, action_up = OptionList.action_cursor_down, OptionList.action_cursor_up
    action_top, action_bottom = OptionList.action_first, OptionList.action_last

    class WidthChanged(Message):
        """The rows must be drawn again for the new width."""

    def on_resize(self) -> None:
        self.post_message(self.WidthChanged())

    async def _on_click(self, event: events.Click) -> None:
        # OptionList selects at the first click, which here would replace a running server.
        event.prevent_default()
        clicked = event.style.meta.get("option")
        if clicked is not None:
            self.highlighted = clicked
            if event.chain == 2:
                self.action_select()


class ProfilePane(Vertical):
    """The rows and the search line."""

    entries: reactive[tuple[ProfileEntry, ...] | None] = reactive(None)
    running: reactive[frozenset[str]] = reactive(frozenset[str]())
    hides_shipped: reactive[bool] = reactive(False)
    """Whether the settings hide the shipped profiles."""
    operation: reactive[tuple[str, str]] = reactive(("", ""))
    """The profile that an operation is about, and the label of its step."""

    class EntryHighlighted(Message):
        """Another row is highlighted, or the highlighted row changed."""

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
        self.last_profile = ""
        """The profile that answered last: never hidden."""
        self._shipped_toggled = False
        self._highlight_id: str | None = None
        """The id to highlight as soon as its row exists."""
        self._drawn: list[tuple[ProfileEntry, str, str]] = []

    def mount_content(self) -> None:
        """Mounts rows and search line. Not composed: they are slow to create, and empty at the first paint."""
        self.mount(self.search, self.rows)
        self.screen.set_focus(self.rows)
        self._update_rows()

    @property
    def entry(self) -> ProfileEntry | None:
        """The highlighted entry."""
        index = self.rows.highlighted
        return self.shown[index] if index is not None and index < len(self.shown) else None

    def highlight(self, entry_id: str) -> None:
        """Highlights a row, now or as soon as it exists."""
        index = next((i for i, entry in enumerate(self.shown) if entry.id == entry_id), None)
        self._highlight_id = entry_id if index is None else None
        if index is not None:
            self.rows.highlighted = index

    def toggle_shipped(self) -> bool:
        """Shows hidden shipped profiles, or hides shown ones. Returns False if the list has none."""
        if not any(entry.profile and entry.profile.shipped for entry in self.entries or ()):
            return False
        self._shipped_toggled = not self._shipped_toggled
        self._update_rows()
        return True

    def open_search(self) -> None:
        self.search.display = True
        # Not Widget.focus(), which waits a turn: letters typed right behind "/" would reach the rows.
        self.screen.set_focus(self.search)

    def close_search(self) -> bool:
        """Shows all rows again. Returns False if no search was open."""
        if not self.search.display and not self.search.value:
            return False
        self.search.value = ""
        self.search.display = False
        self.screen.set_focus(self.rows)
        return True

    @on(ProfileRows.WidthChanged)
    def _redraw(self) -> None:
        self._drawn = []
        self._draw_rows()

    @on(Input.Submitted, "#search")
    def _search_submitted(self) -> None:
        self.screen.set_focus(self.rows)
        if not self.search.value:
            self.search.display = False

    def on_key(self, event: events.Key) -> None:
        if self.search.has_focus and event.key in ("down", "up"):
            event.stop()
            self.rows.action_cursor_down() if event.key == "down" else self.rows.action_cursor_up()

    @on(OptionList.OptionHighlighted)
    def _row_highlighted(self) -> None:
        self.post_message(self.EntryHighlighted(self.entry))

    @on(OptionList.OptionSelected)
    def _row_selected(self) -> None:
        if self.entry:
            self.post_message(self.EntrySelected(self.entry))

    def _is_hidden(self, entry: ProfileEntry) -> bool:
        if self.hides_shipped == self._shipped_toggled or not entry.profile or not entry.profile.shipped:
            return False
        always_shown = self.running | {self.operation[0], self.last_profile}
        return entry.name not in always_shown and entry.id != self._highlight_id

    @on(Input.Changed, "#search")
    def _update_rows(self) -> None:
        """Rebuilds the rows if their number or order changed; the highlight stays on the same entry."""
        if self.entries is None or not self.rows.is_attached:
            return
        before = self.entry
        shown = filter_entries(self.entries, self.search.value)
        if not self.search.value:
            shown = tuple(entry for entry in shown if not self._is_hidden(entry))
        same = [entry.id for entry in shown] == [entry.id for entry in self.shown]
        self.shown = shown
        count = len(self.entries)
        self.border_subtitle = f"{len(shown)} of {count}" if len(shown) != count else f"{count}"
        if not self.search.value and len(shown) != count:
            self.border_subtitle += ", H shows the shipped"
        if not same:
            self._drawn = []
            self.rows.set_options([Option("", id=entry.id) for entry in shown])
            wanted = self._highlight_id or (before.id if before else "")
            index = next((i for i, entry in enumerate(shown) if entry.id == wanted), 0 if shown else None)
            if index is not None and shown[index].id == self._highlight_id:
                self._highlight_id = None
            self.rows.highlighted = index
        self._draw_rows()
        self.post_message(self.EntryHighlighted(self.entry))

    def _draw_rows(self) -> None:
        """Draws the rows that changed."""
        if not self.rows.is_attached:
            return
        width = self.rows.scrollable_content_region.width
        if width <= 0:
            return  # before the first layout; WidthChanged follows
        name, step = self.operation
        for index, entry in enumerate(self.shown):
            row = (entry, entry_mark(entry, self.running, name), step if entry.name == name else "")
            if index >= len(self._drawn):
                self._drawn.append(row)
            elif self._drawn[index] == row:
                continue
            self._drawn[index] = row
            self.rows.replace_option_prompt_at_index(index, entry_row(*row, width))

    def watch_operation(self) -> None:
        self._draw_rows()

    def watch_entries(self) -> None:
        self._update_rows()

    watch_hides_shipped = watch_running = watch_entries
