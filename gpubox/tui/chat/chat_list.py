"""The list of chats, the last changed one first, under a search line; and what is done with a stored chat."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from textual import on
from textual.app import ComposeResult
from textual.containers import Vertical
from textual.widgets import Input

from gpubox.sanitize import sanitize_line
from gpubox.tui.dialogs import PromptScreen, confirm
from gpubox.tui.styled_lines import StyledLine, cell_width, pad_line, sanitize_to_width, styled_line, time_or_date
from gpubox.tui.widgets.cursor_rows import CursorRows
from gpubox.views.changes import count

if TYPE_CHECKING:
    from gpubox.agent.chat_files import ChatSummary

NARROW_CELLS = 48
"""Below this width a row has only the name and the time."""


class ChatRows(CursorRows["ChatSummary"]):
    """The rows. Enter opens a chat."""

    EMPTY_TEXT = "No chats yet."
    KEY = "name"
    current = ""
    """Name of the open chat."""

    def make_row(self, value: ChatSummary, width: int) -> StyledLine:
        mark = ("● ", "$primary") if value.name == self.current else ("✗ ", "$error") if value.problem else ("  ", "")
        time = time_or_date(value.changed_at)
        if width < NARROW_CELLS:
            agent = sanitize_to_width(value.agent, 10)
            name = styled_line(mark, (sanitize_to_width(value.name, width - len(time) - len(agent) - 6), "bold"),
                               (f"  {agent}", "$accent"))  # fmt: skip
            return (*pad_line(name, width - len(time) - 1), (f" {time}", "$quiet"))
        name_cells = max(12, min(28, width // 2))
        name = styled_line(mark, (sanitize_to_width(value.name, name_cells - 3), "bold"))
        title = sanitize_to_width(value.problem or value.title, width - name_cells - len(time) - 8)
        left = styled_line(
            *pad_line(name, name_cells), (f"{value.agent}  " if value.agent else "", "$accent"), (title, "$secondary")
        )
        right = styled_line((f"{value.turns:>4} ", "$quiet"), (f" {time}", "$quiet"))
        return (*pad_line(left, width - cell_width(right)), *right)


class ChatList(Vertical):
    """The rows and their search line."""

    DEFAULT_CSS = """
    ChatList {
        width: 40%; min-width: 40; height: 1fr; border: round $line; padding: 0 1; background: $background;
        border-title-color: $secondary; border-title-style: bold; border-subtitle-color: $quiet;
        &:focus-within { border: round $line-focus; border-title-color: $foreground; }
        & Input { height: 1; background: $panel; margin-bottom: 1; }
    }
    """

    def __init__(self) -> None:
        super().__init__(id="chats")
        self.search = Input(placeholder="search in all chats", id="chat-search", compact=True, select_on_focus=False)
        self.rows = ChatRows()
        self.border_title = "Chats"
        self.border_subtitle = "⏎ open  / search  x rename, delete"

    def compose(self) -> ComposeResult:
        yield self.search
        yield self.rows

    def show_chats(self, chats: tuple[ChatSummary, ...], current: str) -> None:
        """Replaces the rows; ``current`` is the name of the open chat."""
        if self.rows.current != current:
            self.rows.current = current
            self.rows.redraw()
        self.rows.show_values(chats)

    @on(Input.Submitted, "#chat-search")
    def _search_submitted(self) -> None:
        self.screen.set_focus(self.rows)


class StoredChats:
    """Branches, renames and deletes: the chat that is highlighted in the list, else the open one."""

    def __init__(self, screen: Any) -> None:
        """``screen``: the ChatScreen, whose module imports this one."""
        self.screen = screen

    @property
    def _name(self) -> str:
        rows = self.screen.chat_list.rows
        chat = rows.value if rows.has_focus else self.screen.chat
        return chat.name or "" if chat else ""

    async def branch(self) -> None:
        """Continues after the turn in view in a new chat."""
        screen, index = self.screen, self.screen.transcript.turn_in_view
        if not (chat := screen.chat) or index is None or not (turn := screen.transcript.turns[index].id):
            return
        old, name = chat.name, await screen.chats.free_name(chat.name)
        lacking = chat.branch(name, turn)
        await screen.open(name)
        screen.say(f"The new chat is {name}; {old} is unchanged. {lacking}".rstrip())

    async def rename(self) -> None:
        screen, name = self.screen, self._name
        if not name:
            return
        new = await screen.app.push_screen_wait(PromptScreen(f"Rename {sanitize_line(name)}", name))
        if not new or new == name:
            return
        is_open = screen.chat is not None and screen.chat.name == name
        if is_open:
            await screen.close()  # an open chat is locked
        try:
            await screen.chats.rename(name, new)
            name = new
        finally:
            if is_open:
                await screen.open(name)
        await screen.read_list()

    async def delete(self) -> None:
        screen, name = self.screen, self._name
        if not name:
            return
        shown, is_open = sanitize_line(name), screen.chat is not None and screen.chat.name == name
        if is_open:
            waiting = screen.commands.changes
            lost = f"{count(len(waiting), 'change')} of it wait for your decision: they are lost." if waiting else ""
        else:
            lost = await screen.chats.loses(name)
        body = f"{sanitize_line(lost)}\nAll its turns and branches are deleted. This cannot be undone.".strip()
        if not await confirm(screen.app, f"Delete {shown}?", body, f"delete {shown}", no="keep it"):
            return
        if is_open:
            await screen.close()
            screen.show_chat()
            await screen.commands.read_changes()
        await screen.chats.delete(name)
        await screen.read_list()
