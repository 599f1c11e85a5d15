"""The profiles pane: profiles, broken files and models without a profile, with a search line.

``Enter``, which ``CursorRows`` binds, becomes ``ProfilePane.EntrySelected``; the app passes it to the
OperationController.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import PurePath

from textual import on
from textual.app import ComposeResult
from textual.containers import Vertical
from textual.message import Message
from textual.reactive import reactive
from textual.widgets import Input

from gpubox.sanitize import sanitize_line
from gpubox.tui.dashboard.welcome import QUESTION, choices
from gpubox.tui.messages import ProfileEntry, entry_state, filter_entries, is_newcomer
from gpubox.tui.styled_lines import QUIET, StyledLine, marked, shorten, styled_line
from gpubox.tui.widgets.cursor_rows import CursorRows
from gpubox.tui.widgets.form import FilterLine
from gpubox.tui.widgets.header import SERVER_STATES
from gpubox.views.marks import PROFILES

NAME_CELLS, WIDE_NAME_CELLS = 22, 28
NAME_STYLES = {"running": "bold", "busy": "bold", "refused": QUIET, "model": QUIET, "no model": QUIET}
MODEL_MISSING = "model missing: "
"""EngineCompatibility's text begins so if the model file is missing."""


def entry_row(
    entry: ProfileEntry, state: str, step: str, width: int, *, server: str = "", compared: bool = False
) -> StyledLine:
    """One row, ``width`` cells wide; ``step`` is the label of the operation's current step, if it is about this row.

    ``server``: the state of its server, whose mark it has. ``compared``: it is the first of two profiles to compare.
    """
    name_cells = min(NAME_CELLS if width < 70 else WIDE_NAME_CELLS, max(10, width // 2 - 3))
    name = shorten(sanitize_line(entry.name), name_cells)
    text = step or sanitize_line(entry.summary)
    if text.startswith(MODEL_MISSING):  # the file name says more than the start of its path
        text = f"no {PurePath(text.removeprefix(MODEL_MISSING)).name}"
    room = max(0, width - name_cells - 4)
    if state == "refused" and len(text) > room:  # the sentence, without its details
        text = text.partition(":")[0]
    return styled_line(
        SERVER_STATES[server][:2] if state == "running" and server in SERVER_STATES else marked(PROFILES[state]),
        ("=", "bold $accent") if compared else " ",
        (name.ljust(name_cells), NAME_STYLES.get(state, "")),
        "  ",
        (
            shorten(text, room),
            "$accent" if step else "$error" if state == "broken" else "$quiet",
        ),
    )


class ProfileRows(CursorRows[ProfileEntry]):
    """One line per entry. Enter or a double click opens one; a click only highlights it."""

    DEFAULT_CSS = "ProfileRows { overflow-y: auto; scrollbar-size-vertical: 1; }"
    CURSOR_STYLES = ("on $cursor", "on $line")
    KEY = "id"

    running: frozenset[str] = frozenset()
    active = ("", "")
    operations: Mapping[str, str] = {}
    """The profiles that operations are about, and the labels of their steps."""
    marked = ""
    """The first of two profiles to compare."""

    def make_row(self, value: ProfileEntry, width: int) -> StyledLine:
        if value.kind == "last":
            return styled_line((f"  {shorten(value.name, max(0, width - 2))}", f"{QUIET} dim"))
        step = self.operations.get(value.name)
        state = entry_state(value, self.running, changes=step is not None)
        server = self.active[1] if value.name == self.active[0] else ""
        compared = bool(value.profile) and value.name == self.marked
        return entry_row(value, state, step or "", width, server=server, compared=compared)

    def move_cursor(self, index: int) -> None:
        super().move_cursor(index)
        self.post_message(ProfilePane.EntryHighlighted(self.entry))

    @property
    def entry(self) -> ProfileEntry | None:
        """The entry under the cursor; None for a name that is only known from the last time."""
        return self.value if self.value and self.value.kind != "last" else None


class ProfilePane(Vertical):
    """The rows and the search line."""

    entries: reactive[tuple[ProfileEntry, ...] | None] = reactive(None)
    running: reactive[frozenset[str]] = reactive(frozenset[str]())
    active: reactive[tuple[str, str]] = reactive(("", ""))
    """The profile whose server the screen is about, and the state of that (a key of SERVER_STATES)."""
    hides_shipped: reactive[bool] = reactive(False)
    """Whether the settings hide the shipped profiles."""
    looked: reactive[bool] = reactive(False)
    """Whether the models on this machine are known."""
    operations: reactive[Mapping[str, str]] = reactive({})
    """The profiles that operations are about, and the labels of their steps."""

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
        self.rows = ProfileRows()
        self.search = FilterLine("search", "name, title or text", self.rows)
        self.last_profile = ""
        """The profile that answered last: never hidden."""
        self.shipped_toggled = False
        """Whether the owner shows what the settings hide, or hides what they show."""
        self._highlight_id: str | None = None
        """The id to highlight as soon as its row exists."""

    def mount_content(self) -> None:
        """Mounts what the first frame has no need of."""
        self.mount(*(part for part in (self.search, self.rows) if not part.is_attached), before=0)
        self._update_rows()

    def compose(self) -> ComposeResult:
        if self.rows.values:
            yield self.rows

    def show_last(self, names: Sequence[str]) -> None:
        """Shows the names of the last time until the profiles are read; nothing can be done with them."""
        self.rows.values = tuple(ProfileEntry(f"profile:{name}", "last", name) for name in names)

    @property
    def entry(self) -> ProfileEntry | None:
        """The highlighted entry."""
        return self.rows.entry

    def highlight(self, entry_id: str) -> None:
        """Highlights a row, now or as soon as it exists."""
        self._highlight_id = None if self.rows.highlight(entry_id) else entry_id

    @property
    def asks(self) -> bool:
        """Whether it shows what an owner without a profile can begin with."""
        hides = self.hides_shipped and not self.shipped_toggled and not self.search.value
        return hides and self.entries is not None and is_newcomer(self.entries)

    def mark(self, name: str) -> None:
        """Marks the first of two profiles to compare; empty: none."""
        self.rows.marked = name
        self.rows.redraw()

    def toggle_shipped(self) -> bool:
        """Shows hidden shipped profiles, or hides shown ones. Returns False if the list has none."""
        if not any(entry.profile and entry.profile.shipped for entry in self.entries or ()):
            return False
        self.shipped_toggled = not self.shipped_toggled
        self._update_rows()
        return True

    @on(CursorRows.RowOpened)
    def _row_opened(self, event: CursorRows.RowOpened) -> None:
        event.stop()
        if self.entry:
            self.post_message(self.EntrySelected(event.value))

    def _is_hidden(self, entry: ProfileEntry) -> bool:
        if self.hides_shipped == self.shipped_toggled or not entry.profile or not entry.profile.shipped:
            return False
        return entry.name not in self._kept and entry.id != self._highlight_id

    @property
    def _kept(self) -> frozenset[str]:
        return self.running | {*self.operations, self.last_profile}

    @on(Input.Changed, "#search")
    def _update_rows(self) -> None:
        """Shows the entries that match the search; the highlight stays on its entry."""
        if self.entries is None or not self.rows.is_attached:
            return
        before, search = self.entry, self.search.value
        shown = filter_entries(self.entries, search)
        asks = self.asks
        if not search:
            shown = tuple(entry for entry in shown if not self._is_hidden(entry))
        if asks:
            shown = tuple(choices(self.entries, self._kept, looked=self.looked))
        count, hidden = len(self.entries), {entry.id for entry in self.entries} - {entry.id for entry in shown}
        self.border_title = QUESTION if asks else "Profiles"
        if search:
            self.border_subtitle = f"{len(shown)} of {count}" if hidden else f"{count}"
        else:
            some = "1 example" if len(hidden) == 1 else f"{len(hidden)} examples"
            self.border_subtitle = f"{some} hidden (in the menu)" if hidden else f"{count}"
        self.rows.running, self.rows.operations = self.running, self.operations
        self.rows.show_values(shown)
        self.rows.redraw()
        wanted = self._highlight_id or (before.id if before else "")
        index = next((i for i, entry in enumerate(shown) if entry.id == wanted), 0)
        if shown and shown[index].id == self._highlight_id:
            self._highlight_id = None
        if index != self.rows.cursor:
            self.rows.move_cursor(index)
        else:
            self.post_message(self.EntryHighlighted(self.entry))

    def watch_operations(self) -> None:
        self.rows.operations, self.rows.active = self.operations, self.active
        self.rows.redraw()

    watch_active = watch_operations

    def watch_entries(self) -> None:
        self._update_rows()

    watch_hides_shipped = watch_running = watch_looked = watch_entries
