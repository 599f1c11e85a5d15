"""The chat screen: the transcript of one chat, the prompt box below it, and the list of chats beside it."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, ClassVar

from textual import events, on
from textual.app import ComposeResult
from textual.binding import BindingType
from textual.containers import Horizontal, Vertical

from gpubox.threads import run_in_thread
from gpubox.tui.actions import Scope, bindings
from gpubox.tui.chat.approval import ApprovalQueue
from gpubox.tui.chat.chat_list import ChatList, ChatRows
from gpubox.tui.chat.composer import Composer
from gpubox.tui.chat.controller import ChatController
from gpubox.tui.chat.markdown import preload
from gpubox.tui.chat.status_lines import chat_line, idle_line, no_server_lines, running_turn_line, welcome_lines
from gpubox.tui.chat.transcript import Transcript
from gpubox.tui.chat.turn import CodeSnippet, code_snippets
from gpubox.tui.dialogs import PromptScreen
from gpubox.tui.persistent_screen import PersistentScreen
from gpubox.tui.styled_lines import StyledLine, styled_line
from gpubox.tui.widgets.styled_lines import SingleLine

if TYPE_CHECKING:
    from gpubox.telemetry.snapshot import Snapshot, Throughput
    from gpubox.tui.chat.service import ChatService, SandboxStatus
    from gpubox.tui.messages import ServerOverview

READINGS_SECONDS = 0.5
"""Minimum time between two drawings of new readings."""
TURN_ACTIONS = {"chat_fold", "chat_last", "chat_new", "chat_retry", "chat_copy_code", "chat_save_code"}
"""Actions that are hidden while the chat is empty."""


class ChatScreen(PersistentScreen):
    """Draws the chat and forwards keys to the controller. Turns run in its workers."""

    HORIZONTAL_BREAKPOINTS = [(0, "-narrow"), (100, "-wide"), (150, "-roomy")]  # noqa: RUF012
    AUTO_FOCUS = "#composer"
    BINDINGS: ClassVar[list[BindingType]] = [*bindings(Scope.CHAT)]
    DEFAULT_CSS = """
    ChatScreen { layout: vertical; background: $background; color: $foreground; }
    ChatScreen #chat-line { background: $footer-background; }
    ChatScreen #body { height: 1fr; }
    ChatScreen #conversation { width: 1fr; height: 1fr; }
    ChatScreen.-narrow ChatList { width: 1fr; }
    ChatScreen.-listing.-narrow #conversation { display: none; }
    ChatScreen.-roomy ChatList { width: 48; }
    """

    def __init__(self, service: ChatService, *, note: str = "") -> None:
        super().__init__(Scope.CHAT, note=note)
        self.service = service
        self.chat_line, self.status_line = SingleLine("chat-line"), SingleLine("turn-line")
        self.transcript, self.composer, self.chat_list = Transcript(), Composer(), ChatList()
        self.chat_list.display = False
        self.approvals = ApprovalQueue(self)
        self.controller = ChatController(self, service)
        self.runner = self.controller.runner
        self.sandbox: SandboxStatus | None = None
        self.throughput: Throughput | None = None
        self._overview: ServerOverview | None = None
        self._readings_drawn_at = float("-inf")
        self._unfolded = False
        self._copied: tuple[int, int] = (-1, 0)
        """Index of a turn, and which of its snippets was copied last, counted from the end."""

    def compose(self) -> ComposeResult:
        yield self.header
        yield self.chat_line
        with Horizontal(id="body"):
            yield self.chat_list
            with Vertical(id="conversation"):
                yield self.transcript
                yield self.status_line
                yield self.composer
        yield self.keys

    def on_mount(self) -> None:
        self.show_welcome()
        self.work(self._prepare, "prepare")

    async def on_unmount(self) -> None:
        self.runner.stop()
        await self.controller.close()

    async def _prepare(self) -> None:
        await run_in_thread(preload)
        self.sandbox = await self.service.sandbox_status()
        self.show_welcome()
        self.draw_lines()

    # -- updates from the app -------------------------------------------------------------------------

    def show_overview(self, overview: ServerOverview | None) -> None:
        if overview != self._overview:
            self._overview = overview
            self.show_welcome()
            self.draw_lines()

    def show_snapshot(self, snapshot: Snapshot) -> None:
        self.throughput = snapshot.throughput
        now = time.monotonic()
        if self.is_current and now - self._readings_drawn_at >= READINGS_SECONDS:
            self._readings_drawn_at = now
            self.draw_lines()

    @property
    def no_server(self) -> list[StyledLine]:
        """Why no model can answer; empty if one can."""
        return no_server_lines(self._overview)

    @property
    def profile(self) -> str:
        """The running profile; empty: none runs."""
        return (self._overview.status.profile if self._overview else "") or ""

    # -- drawing --------------------------------------------------------------------------------------

    def draw(self) -> None:
        """Draws the running turn, unless another screen is in front."""
        if self.is_current or self.approvals.shown:
            self.transcript.update_last()
            self.draw_lines()

    def draw_lines(self) -> None:
        """Draws the lines above and below the transcript."""
        if not self.is_mounted:
            return
        chat, settings = self.controller.chat, self.controller.settings
        name, problem = (chat.name, chat.problem) if chat else ("", "")
        width = self.chat_line.content_size.width
        self.chat_line.show([chat_line(name, settings, self.sandbox, problem, width)])
        width, turn = self.status_line.content_size.width, self.runner.turn
        if self.runner.running and turn:
            row = running_turn_line(turn.progress, self.runner.seconds, time.monotonic(), self.throughput, width)
        else:
            last = next(reversed(self.transcript.turns), None)
            row = idle_line(self._idle_note(), self.transcript.lines_below, last, width)
        self.status_line.show([row])
        self._update_keys()

    def _idle_note(self) -> StyledLine:
        if self.controller.editing:
            return styled_line(("✎ ", "$accent"), ("⏎ sends it as a new branch; esc cancels", "$quiet"))
        reasons = self.no_server if self.transcript.turns else []
        return reasons[0] if reasons else ()

    @on(events.DescendantFocus)
    def _update_keys(self) -> None:
        listing, reading = self.chat_list.rows.has_focus, self.transcript.has_focus
        hidden = {"chat_send"} if reading else {"chat_write"}
        if not self.transcript.turns:
            hidden |= TURN_ACTIONS
        self.keys.typing, self.keys.hidden_actions = not (listing or reading), frozenset(hidden)
        back = "stop" if self.runner.running else "back"
        self.keys.labels = {"chat_back": back, "chat_send": "open" if listing else "send"}

    def show_welcome(self) -> None:
        """Updates what an empty chat shows."""
        self.transcript.welcome = self.no_server or welcome_lines(self.sandbox)
        if not self.transcript.turns:
            self.transcript.remake()

    def on_resize(self, event: events.Resize) -> None:
        self.call_after_refresh(self.draw_lines)

    @on(Transcript.LinesBelowChanged)
    def _lines_below_changed(self) -> None:
        self.draw_lines()

    @on(events.ScreenResume)
    def _resumed(self) -> None:
        self.transcript.update_last()
        self.draw_lines()
        self.approvals.show_next()

    # -- the prompt box and the list ------------------------------------------------------------------

    @on(Composer.Submitted)
    def _submitted(self, message: Composer.Submitted) -> None:
        self.controller.ask(message.text)

    @on(Composer.EditLastRequested)
    def _edit_last_requested(self) -> None:
        self.controller.edit_last()

    @on(Composer.PageKeyPressed)
    def _page_key_pressed(self, message: Composer.PageKeyPressed) -> None:
        page = max(1, self.transcript.size.height - 2)
        self.transcript.scroll_relative(y=message.pages * page, animate=False)

    @on(ChatRows.RowOpened)
    def _row_opened(self, message: ChatRows.RowOpened) -> None:
        self.controller.open_chat(message.value.name)

    @on(ChatList.SearchChanged)
    def _search_changed(self) -> None:
        self._read_list()

    def _read_list(self) -> None:
        self.work(self.controller.read_list, "list", exclusive=True)

    def show_list(self, shown: bool) -> None:
        """Opens or closes the list of chats."""
        self.chat_list.display = shown
        self.set_class(shown, "-listing")
        self.set_focus(self.chat_list.rows if shown else self.composer)

    # -- actions --------------------------------------------------------------------------------------

    def action_chat_back(self) -> None:
        """One level back: stop the turn, close the list, cancel the edit, leave the prompt box, leave the chat."""
        if self.runner.running:
            self.runner.stop()
        elif self.chat_list.display:
            self.show_list(False)
        elif self.controller.editing:
            self.controller.cancel_edit()
        elif self.composer.has_focus and (self.composer.text or self.transcript.turns):
            self.set_focus(self.transcript)
        else:
            self.app.run_worker(self.app.run_action("show_dashboard"))

    def action_chat_write(self) -> None:
        self.set_focus(self.composer)

    def action_chat_fold(self) -> None:
        self._unfolded = not self._unfolded
        self.transcript.fold_all(self._unfolded)

    def action_chat_retry(self) -> None:
        self.controller.retry()

    def action_chat_new(self) -> None:
        self.controller.new_chat()

    def action_chat_branch(self) -> None:
        self.controller.branch()

    def action_chat_settings(self) -> None:
        self.controller.edit_settings()

    def action_chat_list(self) -> None:
        self.show_list(not self.chat_list.display)
        self._read_list()

    def action_chat_search(self) -> None:
        self.show_list(True)
        self.chat_list.focus_search()
        self._read_list()

    def action_chat_rename(self) -> None:
        if self.controller.chat and self.controller.chat.name:
            self.controller.rename(self.controller.chat.name)

    def action_chat_delete(self) -> None:
        if self.controller.chat and self.controller.chat.name:
            self.controller.delete(self.controller.chat.name)

    def action_chat_rename_highlighted(self) -> None:
        if chat := self.chat_list.rows.value:
            self.controller.rename(chat.name)

    def action_chat_delete_highlighted(self) -> None:
        if chat := self.chat_list.rows.value:
            self.controller.delete(chat.name)

    # -- copying and saving ---------------------------------------------------------------------------

    def action_chat_copy_answer(self) -> None:
        index, selected = self.transcript.turn_in_view, self.get_selected_text()
        text = selected or (self.transcript.turns[index].answer if index is not None else "")
        if text:
            self.copy(text, "the selected text" if selected else "the answer")
        else:
            self.say("There is no answer to copy.")

    def action_chat_copy_code(self) -> None:
        turn, snippets = self._snippets_in_view()
        if not snippets:
            self.say("There is no code in this turn.")
            return
        back = self._copied[1] + 1 if self._copied[0] == turn else 0
        self._copied = (turn, back % len(snippets))
        index = len(snippets) - 1 - self._copied[1]
        snippet = snippets[index]
        lines = f"{snippet.line_count} line{'s' * (snippet.line_count != 1)}"
        again = ". Press again for the one before it" if len(snippets) > 1 else ""
        self.copy(snippet.text, f"code {index + 1} of {len(snippets)} ({snippet.language}, {lines}){again}")

    def action_chat_save_code(self) -> None:
        turn, snippets = self._snippets_in_view()
        if not snippets:
            self.say("There is no code in this turn.")
            return
        back = self._copied[1] if self._copied[0] == turn else 0
        self.work(lambda: self._save_code(snippets[len(snippets) - 1 - back]), "save")

    async def _save_code(self, snippet: CodeSnippet) -> None:
        folder = self.controller.chat.settings.workdir if self.controller.chat else ""
        where = f"Relative to {folder}." if folder else "Relative to the folder in which gpubox was started."
        path = await self.app.push_screen_wait(PromptScreen("Save the code as", snippet.file_name, where))
        if path:
            self.say(f"Saved: {await self.service.save_file(snippet.text, path, folder)}")

    def _snippets_in_view(self) -> tuple[int, list[CodeSnippet]]:
        index = self.transcript.turn_in_view
        return (-1, []) if index is None else (index, code_snippets(self.transcript.turns[index]))
