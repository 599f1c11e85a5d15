"""The second screen: one chat, its turns, and the box to write in."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, ClassVar

from textual import events, on
from textual.app import ComposeResult
from textual.binding import BindingType
from textual.containers import Horizontal, Vertical

from gpubox.threads import run_in_thread
from gpubox.tui.actions import Scope, bindings
from gpubox.tui.chat.approval import ApprovalScreen
from gpubox.tui.chat.chat_list import ChatList, ChatRows
from gpubox.tui.chat.chats import Chats
from gpubox.tui.chat.composer import Composer
from gpubox.tui.chat.markdown import preload
from gpubox.tui.chat.runner import TurnRunner
from gpubox.tui.chat.status_lines import chat_line, idle_line, running_turn_line
from gpubox.tui.chat.taking import Taking
from gpubox.tui.chat.transcript import Transcript
from gpubox.tui.chat.turns import Turns
from gpubox.tui.chat.welcome import no_server, welcome
from gpubox.tui.styled_lines import StyledLine, styled_line
from gpubox.tui.widgets.header import StatusHeader
from gpubox.tui.widgets.key_bar import KeyBar
from gpubox.tui.widgets.styled_lines import StyledLines

if TYPE_CHECKING:
    from gpubox.agent.tools import ToolCall
    from gpubox.telemetry.snapshot import Snapshot, Throughput
    from gpubox.tui.chat.service import ChatService
    from gpubox.tui.messages import ServerOverview

HEADER_SECONDS = 0.5
"""Between two drawings of the header and the context in use."""


class StatusLine(StyledLines):
    """A line that is drawn again only when it changes."""

    DEFAULT_CSS = "StatusLine { height: 1; padding: 0 1; }"


TURN_VERBS = {"chat_fold", "chat_last", "chat_new", "chat_retry", "chat_copy_code", "chat_save_code"}
"""Verbs with nothing to do in an empty chat."""


class ChatScreen(Turns, Chats, Taking):
    """Draws one open chat. Turns run here as workers; what they do, the service does."""

    HORIZONTAL_BREAKPOINTS = [(0, "-narrow"), (100, "-wide"), (150, "-roomy")]  # noqa: RUF012
    AUTO_FOCUS = "#composer"
    BINDINGS: ClassVar[list[BindingType]] = [*bindings(Scope.CHAT)]
    DEFAULT_CSS = """
    ChatScreen { layout: vertical; background: $background; color: $foreground; }
    ChatScreen #chat-line { background: $footer-background; }
    ChatScreen #body { height: 1fr; }
    ChatScreen #talk { width: 1fr; height: 1fr; }
    ChatScreen.-narrow ChatList { width: 1fr; }
    ChatScreen.-listing.-narrow #talk { display: none; }
    ChatScreen.-roomy ChatList { width: 48; }
    """

    def __init__(self, service: ChatService, *, note: str = "") -> None:
        super().__init__(service)
        self.header, self.keys = StatusHeader(), KeyBar(Scope.CHAT)
        self.header.note = note
        self.chat_bar, self.status = StatusLine(), StatusLine()
        self.chat_bar.id = "chat-line"
        self.transcript, self.composer, self.chat_list = Transcript(), Composer(), ChatList()
        self.chat_list.display = False
        self.runner = TurnRunner(self.draw)
        self.throughput: Throughput | None = None
        self._now: ServerOverview | None = None
        self._drawn_at = float("-inf")
        self._questions: list[tuple[ToolCall, str, asyncio.Future[str]]] = []
        """Approvals that nobody has seen yet."""
        self._asking: ApprovalScreen | None = None

    def compose(self) -> ComposeResult:
        yield self.header
        yield self.chat_bar
        with Horizontal(id="body"):
            yield self.chat_list
            with Vertical(id="talk"):
                yield self.transcript
                yield self.status
                yield self.composer
        yield self.keys

    def on_mount(self) -> None:
        self.greet()
        self.work(self._probe, "probe")

    async def on_unmount(self) -> None:
        self.runner.stop()
        if self.chat:
            await self.chat.close()

    async def _probe(self) -> None:
        await run_in_thread(preload)
        self.confined = await self.service.confined()
        self.greet()
        self.draw_lines()

    # -- what the app tells ---------------------------------------------------------------------------

    def show_overview(self, header: StatusHeader, now: ServerOverview | None) -> None:
        """What runs changed, or the minute."""
        self.header.overview, self.header.clock, self.header.stale = header.overview, header.clock, header.stale
        if self.throughput is None:  # until the first readings come here, what the dashboard shows
            self.header.gpu_readings, self.header.activity = header.gpu_readings, header.activity
        if now != self._now:
            self._now = now
            self.greet()
            self.draw_lines()

    def show_snapshot(self, snapshot: Snapshot) -> None:
        """New readings."""
        self.throughput = snapshot.throughput
        now = time.monotonic()
        if not self.is_current or now - self._drawn_at < HEADER_SECONDS:
            return
        self._drawn_at = now
        from gpubox.tui.dashboard.vram import gpu_readings

        self.header.gpu_readings = gpu_readings(snapshot)
        self.header.activity = snapshot.throughput.state
        self.draw_lines()

    @property
    def no_server(self) -> list[StyledLine]:  # type: ignore[override]
        return no_server(self._now)

    @property
    def profile(self) -> str:
        return (self._now.status.profile if self._now else "") or ""

    # -- drawing --------------------------------------------------------------------------------------

    def draw(self) -> None:
        """The turn went on. Draws nothing while another screen is in front."""
        if self.is_current or self._asking:
            self.transcript.grow()
            self.draw_lines()

    def draw_lines(self) -> None:
        """The line above the chat and the one below it."""
        if not self.is_mounted:
            return
        chat = self.chat
        settings = chat.settings if chat else self.settings
        problem = chat.problem if chat else ""
        name = chat.name if chat else ""
        self.chat_bar.show([chat_line(name, settings, self.confined, problem, self.chat_bar.content_size.width)])
        width = self.status.content_size.width
        turn = self.runner.turn
        if self.runner.running and turn:
            at = time.monotonic()
            row = running_turn_line(turn.live, self.runner.seconds, at, self.throughput, width)
        else:
            row = idle_line(self._said(), self.transcript.below, self.throughput, width)
        self.status.show([row])
        self._draw_keys()

    @on(events.DescendantFocus)
    def _draw_keys(self) -> None:
        """What the keys do where they go now."""
        listing, reading = self.chat_list.rows.has_focus, self.transcript.has_focus
        needless = {"chat_send"} if reading else {"chat_write"}
        if not self.transcript.turns:
            needless |= TURN_VERBS
        self.keys.typing, self.keys.hidden_actions = not (listing or reading), frozenset(needless)
        back = "stop" if self.runner.running else "back"
        self.keys.labels = {"chat_back": back, "chat_send": "open" if listing else "send"}

    def _said(self) -> StyledLine:
        if self.editing:
            return styled_line(("✎ ", "$accent"), ("instead of the last turn, which is kept; esc leaves it", "$quiet"))
        if self.transcript.turns and (why := self.no_server):
            return why[0]
        return ()

    def greet(self) -> None:
        """What stands in an empty chat."""
        self.transcript.welcome = self.no_server or welcome(self.confined)
        if not self.transcript.turns:
            self.transcript.remake()

    @on(Transcript.Scrolled)
    def _scrolled(self) -> None:
        self.draw_lines()

    def on_resize(self, event: events.Resize) -> None:
        self.call_after_refresh(self.draw_lines)

    @on(events.ScreenResume)
    def _resumed(self) -> None:
        self.transcript.grow()
        self.draw_lines()
        self._ask_next()

    # -- keys -----------------------------------------------------------------------------------------

    @on(Composer.Sent)
    def _sent(self, message: Composer.Sent) -> None:
        self.ask(message.text)

    @on(Composer.WantsLast)
    def _wants_last(self) -> None:
        self.edit_last()

    @on(Composer.WantsScroll)
    def _wants_scroll(self, message: Composer.WantsScroll) -> None:
        view = self.transcript
        view.scroll_relative(y=message.pages * max(1, view.size.height - 2), animate=False)

    @on(ChatRows.RowOpened)
    def _opened(self, message: ChatRows.RowOpened) -> None:
        self.open_chat(message.value.name)

    @on(ChatRows.Wanted)
    def _wanted(self, message: ChatRows.Wanted) -> None:
        self.change_chat(message.what, message.head.name)

    @on(ChatList.Searched)
    def _searched(self) -> None:
        self.work(self.read_list, "list", exclusive=True)

    def show_list(self, shown: bool) -> None:
        """Opens or closes the list of chats."""
        self.chat_list.display = shown
        self.set_class(shown, "-listing")
        self.set_focus(self.chat_list.rows if shown else self.composer)

    def action_chat_back(self) -> None:
        """One level back: the turn, the list, the edit, the prompt, the chat."""
        if self.runner.running:
            self.runner.stop()
        elif self.chat_list.display:
            self.show_list(False)
        elif self.editing:
            self.leave_edit()
        elif self.composer.has_focus and (self.composer.text or self.transcript.turns):
            self.set_focus(self.transcript)
        else:
            self.app.run_worker(self.app.run_action("show_dashboard"))

    # -- approvals ------------------------------------------------------------------------------------

    async def allow(self, call: ToolCall, diff: str) -> bool:
        """Asks the owner. Waits until this screen is in front, and one question at a time."""
        answered: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self._questions.append((call, diff, answered))
        if not self.is_current:
            self.app.notify("The chat waits for you: a file is to be written.", markup=False)
        self._ask_next()
        try:
            answer = await answered
        finally:
            self._questions = [one for one in self._questions if one[2] is not answered]
            if not answered.done() or answered.cancelled():
                self._close_question()
        if answer == "all":
            await self.allow_all()
        return answer != "no"

    def _ask_next(self) -> None:
        waiting = [one for one in self._questions if not one[2].done()]  # who asked may not have read the answer yet
        if self._asking or not waiting or not self.is_current:
            return
        call, diff, answered = waiting[0]

        def take(answer: str | None) -> None:
            self._asking = None
            if not answered.done():
                answered.set_result(answer or "no")
            self.call_later(self._ask_next)

        self._asking = ApprovalScreen(call, diff)
        self.app.push_screen(self._asking, take)

    def _close_question(self) -> None:
        asking, self._asking = self._asking, None
        if asking and asking.is_current:
            asking.dismiss("no")
