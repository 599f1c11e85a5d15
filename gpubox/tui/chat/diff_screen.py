"""The diff of what waits for the owner: files and hunks to mark, and what becomes of the marked ones."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Coroutine, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from textual import on
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Container

from gpubox.sanitize import show_name
from gpubox.tui.actions import Scope, bindings
from gpubox.tui.base_screen import PushedScreen
from gpubox.tui.chat.diff_lines import change_rows, file_line, is_shown_whole
from gpubox.tui.dialogs import PromptScreen, confirm
from gpubox.tui.styled_lines import StyledLine, sanitize_to_width, styled_line, truncate_line
from gpubox.tui.widgets.cursor_rows import CursorRows
from gpubox.tui.widgets.lines import SingleLine, TitledPane
from gpubox.views.changes import changed_sentence, count, doubt, line_counts

if TYPE_CHECKING:
    from gpubox.sandbox.changes import Change, Choice, Hunk


@dataclass(frozen=True, slots=True)
class DiffRow:
    """A file, or one of its hunks."""

    change: Change
    hunk: Hunk | None = None

    @property
    def key(self) -> tuple[str, int]:
        return self.change.path, self.hunk.index if self.hunk else -1


def diff_rows(changes: Sequence[Change]) -> tuple[DiffRow, ...]:
    """The files, below each its hunks if it has several."""
    rows: list[DiffRow] = []
    for change in changes:
        rows.append(DiffRow(change))
        if len(change.hunks) > 1:
            rows += [DiffRow(change, hunk) for hunk in change.hunks]
    return tuple(rows)


def toggled(marked: Choice, row: DiffRow) -> Choice:
    """``marked`` with this file or hunk marked, or no longer."""
    path, every = row.change.path, frozenset(hunk.index for hunk in row.change.hunks)
    others = {name: hunks for name, hunks in marked.items() if name != path}
    if row.hunk is None:
        return others if path in marked else {**others, path: None}
    hunks = marked.get(path, frozenset())
    hunks = (every if hunks is None else hunks) ^ {row.hunk.index}
    return others if not hunks else {**others, path: None if hunks == every else hunks}


class DiffRows(CursorRows[DiffRow]):
    """The list of files and hunks."""

    EMPTY_TEXT = "Nothing waits."
    KEY = "key"
    CURSOR_STYLES = ("on $cursor", "on $cursor")
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("pagedown", "screen.page(1)", show=False), Binding("pageup", "screen.page(-1)", show=False),
    ]  # fmt: skip

    def __init__(self) -> None:
        super().__init__()
        self.marked: Choice = {}
        self.path_cells = 0

    def make_row(self, value: DiffRow, width: int) -> StyledLine:
        path, hunk = value.change.path, value.hunk
        hunks = self.marked.get(path, frozenset())
        if hunk is None:
            box = ("■ ", "$success") if hunks is None else ("◧ ", "$success") if hunks else ("□ ", "$quiet")
            return file_line(value.change, width, (box,), cells=self.path_cells)
        box = ("■ ", "$success") if hunks is None or hunk.index in hunks else ("□ ", "$quiet")
        title, _, context = hunk.header.partition(" @@")
        start = title.rpartition("+")[2].partition(",")[0]
        added, removed = (sum(line.startswith(sign) for line in hunk.lines) for sign in "+-")
        line = styled_line(("    ", ""), box, f"line {start}", (f"  {line_counts(added, removed)}", "$quiet"))
        return truncate_line((*line, (f"  {sanitize_to_width(context.strip(), 40)}", "$quiet")), width)


class DiffScreen(PushedScreen):
    """Marks, takes and drops. Closes after a decision."""

    HORIZONTAL_BREAKPOINTS = [(0, "-narrow"), (100, "-wide")]  # noqa: RUF012
    AUTO_FOCUS = "DiffRows"
    BINDINGS: ClassVar[list[BindingType]] = [*bindings(Scope.DIFF)]
    DEFAULT_CSS = """
    DiffScreen #diff-line { background: $footer-background; }
    DiffScreen #diff-body { height: 1fr; }
    DiffScreen.-wide #diff-body { layout: horizontal; }
    DiffScreen DiffRows {
        border: round $line; padding: 0 1; border-title-color: $secondary;
        &:focus { border: round $line-focus; border-title-color: $foreground; }
    }
    DiffScreen.-wide DiffRows { width: 44%; max-width: 72; height: 1fr; }
    DiffScreen.-narrow DiffRows { max-height: 45%; box-sizing: content-box; }
    """

    def __init__(
        self,
        changes: Sequence[Change],
        take: Callable[[Choice, Collection[str]], Awaitable[None]],
        drop: Callable[[Choice, str], Awaitable[None]],
        *,
        note: str = "",
    ) -> None:
        """``take(choice, allowed)`` and ``drop(choice, why)`` do what was decided. They raise GpuboxError."""
        super().__init__(Scope.DIFF, note=note)
        self.changes, self._take, self._drop = tuple(changes), take, drop
        self.line, self.rows, self.pane = SingleLine("diff-line"), DiffRows(), TitledPane()
        self._certain: Choice = {each.path: None for each in changes if not doubt(each) and is_shown_whole(each)}
        self.rows.values, self.rows.marked = diff_rows(changes), self._certain
        self.rows.border_title = "Changes"
        self.rows.path_cells = max((len(show_name(change.path)) for change in self.changes), default=0)

    def compose(self) -> ComposeResult:
        yield self.header
        yield self.line
        with Container(id="diff-body"):
            yield self.rows
            yield self.pane
        yield self.keys

    def on_mount(self) -> None:
        self.on_resize()

    def on_resize(self) -> None:
        self.rows.styles.height = len(self.rows.values) if self.size.width < 100 else None
        self.draw()

    def mark(self, marked: Choice) -> None:
        self.rows.marked = marked
        self.draw()

    @on(CursorRows.RowHighlighted)
    def draw(self) -> None:
        """Draws the marks, and the diff of the file under the cursor."""
        if not self.pane.is_attached:  # a key came first
            return
        marked = self.rows.marked
        parts = [(changed_sentence(self.changes), "bold"), (f"   {count(len(marked), 'file')} marked", "$secondary")]
        if left := len({change.path for change in self.changes} - self._certain.keys() - marked.keys()):
            parts.append((f"   ! {left} to look at", "$warning"))
        self.line.show([styled_line(*parts)])
        self.rows.redraw()
        if row := self.rows.value:
            change, chosen = row.change, marked.get(row.change.path, frozenset())
            self.pane.put(show_name(change.path), lambda width: change_rows(change, width, chosen))
            drawn = enumerate(self.pane.drawn)
            starts = [y for y, line in drawn if row.hunk and line and line[0][0].lstrip().startswith("╌╌")]
            if row.hunk and row.hunk.index < len(starts):
                self.pane.scroll_to(y=starts[row.hunk.index], animate=False, immediate=True)

    @on(CursorRows.RowOpened)
    def _opened(self) -> None:
        self.set_focus(self.pane)

    def action_page(self, pages: int) -> None:
        """Scrolls the diff while the list has the focus."""
        self.pane.scroll_relative(y=pages * max(1, self.pane.size.height - 2), animate=False)

    # -- deciding -------------------------------------------------------------------------------------

    def action_diff_mark(self) -> None:
        if row := self.rows.value:
            self.mark(toggled(self.rows.marked, row))

    def action_diff_mark_all(self) -> None:
        every, marked = self._certain, self.rows.marked
        self.mark({} if every.items() <= marked.items() else {**marked, **every})

    @property
    def _is_deciding(self) -> bool:
        return any(worker.group == "decide" and not worker.is_finished for worker in self.workers)

    def action_diff_back(self) -> None:
        if not self._is_deciding:  # it would be cancelled: files written, and nothing said or recorded
            self.dismiss(None)

    def _decide(self, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
        if not self.rows.marked:
            self.say("Nothing is marked: space marks a file or a hunk.")
        elif not self._is_deciding:
            self.work(work, "decide")

    def action_diff_take(self) -> None:
        self._decide(self._take_marked)

    async def _take_marked(self) -> None:
        choice, allowed = dict(self.rows.marked), set[str]()
        for change in self.changes:
            if change.path in choice and change.runs_by_itself:
                names = show_name(change.path), change.runs_by_itself
                path, why = (sanitize_to_width(text, 200) for text in names)
                body = f"{path}\nIt is {why}: your own programs may run it without asking you."
                if await confirm(self.app, "Take what runs by itself?", body, "take it, too", no="leave it"):
                    allowed.add(change.path)
                else:
                    del choice[change.path]
        if choice:
            await self._take(choice, allowed)
            self.dismiss(None)

    def action_diff_drop(self) -> None:
        self._decide(self._drop_marked)

    async def _drop_marked(self) -> None:
        choice = dict(self.rows.marked)
        body = "Why? The model reads it with your next prompt. An empty line only drops."
        ask = PromptScreen(f"Drop {count(len(choice), 'file')}", "", body, may_be_empty=True)
        if (why := await self.app.push_screen_wait(ask)) is not None:
            await self._drop(choice, why)
            self.dismiss(None)
