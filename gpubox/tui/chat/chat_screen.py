"""The chat screen: the transcript of one chat, the prompt box below it, and the list of chats beside it."""

from __future__ import annotations

import time
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any, ClassVar

from textual import events, on
from textual.app import ComposeResult
from textual.binding import BindingType
from textual.containers import Horizontal, Vertical
from textual.widgets import Input

from gpubox.agent.chat_log import ChatSettings
from gpubox.agent.events import TurnFailed
from gpubox.concurrency import run_in_thread
from gpubox.errors import GpuboxError
from gpubox.tui.actions import Scope, bindings, slash_actions
from gpubox.tui.base_screen import OtherScreen
from gpubox.tui.chat.chat_lines import (
    chat_line,
    idle_line,
    no_server_lines,
    queued_line,
    restarts,
    running_turn_line,
    waiting_line,
    welcome_lines,
)
from gpubox.tui.chat.chat_list import ChatList, ChatRows, StoredChats
from gpubox.tui.chat.commands import ChatCommands
from gpubox.tui.chat.composer import Composer
from gpubox.tui.chat.markdown import preload
from gpubox.tui.chat.question import QuestionPane
from gpubox.tui.chat.snippets import Snippets
from gpubox.tui.chat.suggestions import Suggestions, agent_commands
from gpubox.tui.chat.transcript import Transcript
from gpubox.tui.chat.turn import TurnRunner, TurnView, stored_turn_view
from gpubox.tui.styled_lines import StyledLine, styled_line
from gpubox.tui.widgets.lines import SingleLine

if TYPE_CHECKING:
    from gpubox.agent.chat import Chat
    from gpubox.sandbox.policy import Confinement
    from gpubox.telemetry.snapshot import Snapshot, Throughput
    from gpubox.tui.chat.chats import Chats
    from gpubox.tui.messages import ServerOverview

READINGS_SECONDS = 0.5
"""Minimum time between two drawings of new readings."""
TURN_ACTIONS = {"chat_fold", "chat_last", "chat_new", "chat_retry", "chat_copy_code", "chat_save_code"}
"""Actions that are hidden while the chat is empty."""
WAIT_FOR_THE_TURN = {"chat_last", "chat_new", "chat_retry", "chat_settings"}
"""Actions that do nothing while a turn runs."""


class ChatScreen(OtherScreen):
    """One open chat at a time; ``chat`` is ``None`` for a new one without a prompt. Turns run in workers."""

    HORIZONTAL_BREAKPOINTS = [(0, "-narrow"), (100, "-wide"), (150, "-roomy")]  # noqa: RUF012
    AUTO_FOCUS = "#composer"
    BINDINGS: ClassVar[list[BindingType]] = [*bindings(Scope.CHAT)]
    DEFAULT_CSS = """
    ChatScreen #chat-line { background: $footer-background; }
    ChatScreen #body { height: 1fr; }
    ChatScreen #conversation { width: 1fr; height: 1fr; }
    ChatScreen.-narrow ChatList { width: 1fr; }
    ChatScreen.-listing.-narrow #conversation { display: none; }
    ChatScreen.-roomy ChatList { width: 48; }
    """

    def __init__(self, chats: Chats, *, note: str = "") -> None:
        super().__init__(Scope.CHAT, note=note)
        self.chats = chats
        self.chat_line, self.status_line = SingleLine("chat-line"), SingleLine("turn-line")
        self.queue_line = SingleLine("queue-line")
        self.transcript, self.chat_list = Transcript(), ChatList()
        self.suggestions = Suggestions(
            lambda: self.chats.workspace_names(self.chat, self.settings.workdir),
            lambda typed: agent_commands(typed, self.commands.offers.commands, self.settings.agent),
        )
        self.composer = Composer(self.suggestions)
        self.chat_list.display = self.queue_line.display = False
        self.runner = TurnRunner(self.draw)
        self.questions = QuestionPane(self.runner.answered)
        self.commands, self.snippets, self.stored = ChatCommands(self), Snippets(self), StoredChats(self)
        self.chat: Chat | None = None
        self.new_settings = ChatSettings()
        """Settings of a chat that has no file yet."""
        self.editing = False
        """Whether the next prompt replaces the last turn."""
        self.sandbox: Confinement | None = None
        self.throughput: Throughput | None = None
        self._overview: ServerOverview | None = None
        self._readings_drawn_at = float("-inf")
        self._unfolded = False

    def compose(self) -> ComposeResult:
        yield self.header
        yield self.chat_line
        with Horizontal(id="body"):
            yield self.chat_list
            with Vertical(id="conversation"):
                yield self.transcript
                yield self.questions
                yield self.status_line
                yield self.queue_line
                yield self.suggestions
                yield self.composer
        yield self.keys

    def on_mount(self) -> None:
        self.show_welcome()
        self.work(self._prepare, "prepare")

    async def on_unmount(self) -> None:
        self.runner.stop()
        await self.close()

    async def _prepare(self) -> None:
        await run_in_thread(preload)
        self.sandbox = await self.chats.confinement()
        self.show_welcome()
        self.draw_lines()
        self.work(self.commands.offer_workspace, "offer")

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
        """Why no model can answer; empty if one can. The gateway starts what a hosted agent asks for."""
        return [] if self.settings.agent else no_server_lines(self._overview)

    # -- drawing --------------------------------------------------------------------------------------

    def draw(self) -> None:
        """Draws the running turn, unless another screen is in front."""
        if self.is_current:
            self.transcript.update_last()
            self.draw_lines()

    @on(Transcript.LinesBelowChanged)
    def draw_lines(self) -> None:
        if not self.is_mounted:
            return
        name, problem = (self.chat.name, self.chat.problem) if self.chat else ("", "")
        width = self.chat_line.content_size.width
        choices = self.commands.offers.choices
        self.chat_line.show([chat_line(name, self.settings, self.sandbox, problem, width, choices)])
        width, turn = self.status_line.content_size.width, self.runner.turn
        if self.runner.running and turn:
            row = running_turn_line(turn.progress, self.runner.seconds, time.monotonic(), self.throughput, width)
        else:
            last = next(reversed(self.transcript.turns), None)
            row = idle_line(self._idle_note(), self.transcript.lines_below, last, width)
        self.status_line.show([row])
        queued = self.chat.queued if self.chat else []
        self.queue_line.display = bool(queued)
        self.queue_line.show([queued_line(queued, self.queue_line.content_size.width or width)] if queued else [])
        self._update_keys()

    def _idle_note(self) -> StyledLine:
        if doing := self.commands.doing:
            return styled_line(
                ("● ", "$turn-tools"), (f"{doing} …   ", ""), ("esc", "bold $primary"), (" stops", "$quiet")
            )
        if self.editing:
            return styled_line(("✎ ", "$accent"), ("⏎ sends it as a new branch; esc cancels", "$quiet"))
        if self.chat and self.chat.log.undone:
            return styled_line(("↶ ", "$accent"), "A turn is undone.   ", ("/redo", "bold $primary"),
                               (" brings it back", "$quiet"))  # fmt: skip
        if self.transcript.turns and (waiting := len(self.commands.changes)) and not self.no_server:
            return waiting_line(waiting)
        return next(iter(self.no_server if self.transcript.turns else []), ())

    @on(events.DescendantFocus)
    @on(Composer.Changed)
    def _update_keys(self) -> None:
        listing, reading = self.chat_list.rows.has_focus, self.transcript.has_focus
        hidden = {"chat_send"} if reading else {"chat_write"}
        if not self.transcript.turns:
            hidden |= TURN_ACTIONS
        running, waits = self.runner.running, bool(self.commands.changes)
        if running:
            hidden |= WAIT_FOR_THE_TURN
        if self.questions.has_focus_within:
            hidden |= {"chat_send", "chat_write"}
        decides = waits and not running and not self.composer.text
        send = "open" if listing else "queue" if running else "diff" if decides else "send"
        labels = {"chat_back": "stop" if running else "back", "chat_send": send}
        if not waits or (decides and not reading):
            hidden |= {"chat_diff"}
        if self.no_server and restarts(self._overview):
            hidden = (hidden | TURN_ACTIONS | {"chat_settings"}) - {"chat_retry"}
            labels["chat_retry"] = "start the server"
        self.keys.labels, self.keys.hidden_actions = labels, frozenset(hidden)
        self.keys.typing = not (listing or reading)

    def show_welcome(self) -> None:
        self.transcript.welcome = self.no_server or welcome_lines(self.sandbox, self.settings.agent)
        if not self.transcript.turns:
            self.transcript.remake()

    def on_resize(self, event: events.Resize) -> None:
        self.call_after_refresh(self.draw_lines)

    @on(events.ScreenResume)
    def _resumed(self) -> None:
        self.transcript.update_last()
        self.draw_lines()

    # -- the prompt box and the list ------------------------------------------------------------------

    @on(Composer.Submitted)
    def _submitted(self, message: Composer.Submitted) -> None:
        """Sends a prompt, runs a command; an empty prompt opens the diff that waits."""
        self.app.clear_notifications()  # they are about what was before
        text = message.text
        name = text[1:] if text.startswith("/") and text[1:].isalpha() else ""
        if action := slash_actions().get(name):
            self.composer.set_text("")
            self.app.run_worker(self.app.run_action(f"run_by_id('{action.id}')"))
        elif name and not self.commands.knows(name):
            self.say(f"There is no command /{name}: a / in an empty prompt lists them.", bad=True)
        elif text:
            self.ask(text[1:] if self.settings.agent and text.startswith("//") else text)
        elif self.commands.changes and not self.runner.running:
            self.action_command("diff")

    def action_page(self, pages: int) -> None:
        """Scrolls the question, else the transcript."""
        read = self.questions.body if self.questions.display else self.transcript
        read.scroll_relative(y=pages * max(1, read.size.height - 2), animate=False)

    def action_tab(self) -> None:
        """Goes to the question, else to what follows the prompt."""
        if not self.questions.take_tab(self.composer.typed_at):
            self.focus_next()

    @on(ChatRows.RowOpened)
    def _row_opened(self, message: ChatRows.RowOpened) -> None:
        self.open_chat(message.value.name)

    @on(Input.Changed, "#chat-search")
    def _read_list(self) -> None:
        self.work(self.read_list, "list", exclusive=True)

    def show_list(self, shown: bool) -> None:
        self.chat_list.display = shown
        self.set_class(shown, "-listing")
        self.set_focus(self.chat_list.rows if shown else self.composer)

    # -- actions --------------------------------------------------------------------------------------

    def action_chat_back(self) -> None:
        """One level back: stop the turn, close the list, cancel the edit, leave the prompt box, leave the chat."""
        if self.runner.running:
            self.runner.stop()
        elif self.commands.doing and self.chat:
            self.chat.stop()
        elif self.chat_list.display:
            self.show_list(False)
        elif self.editing:
            self.editing = False
            self.composer.set_text("")
            self.draw_lines()
        elif self.composer.has_focus and (self.composer.text or self.transcript.turns):
            self.set_focus(self.transcript)
        else:
            self.app.run_worker(self.app.run_action("show('dashboard')"))

    def action_chat_write(self) -> None:
        self.set_focus(self.composer)

    def action_chat_fold(self) -> None:
        self._unfolded = not self._unfolded
        self.transcript.fold_all(self._unfolded)

    def action_chat_list(self) -> None:
        self.show_list(not self.chat_list.display)
        self._read_list()

    def action_chat_search(self) -> None:
        self.show_list(True)
        self.set_focus(self.chat_list.search)
        self._read_list()

    def action_command(self, name: str) -> None:
        """Runs a command of the chat: those about its turns wait until none runs."""
        if name == "save_code":
            self.work(self.snippets.save_code, "save")
        elif name.startswith("copy_"):
            getattr(self.snippets, name)()
        else:
            self.change(getattr(self.commands, name, None) or getattr(self.stored, name))

    # -- the open chat --------------------------------------------------------------------------------

    @property
    def settings(self) -> ChatSettings:
        return self.chat.settings if self.chat else self.new_settings

    def busy(self) -> bool:
        """Returns whether a turn runs, and tells the user so."""
        if self.runner.running:
            self.say("The answer is still coming; esc stops it.")
        return self.runner.running

    def change(self, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Runs ``work`` in a worker, unless a turn runs."""
        if not self.busy():
            self.work(work, "chat")

    async def close(self) -> None:
        chat, self.chat, self.editing = self.chat, None, False
        if chat:
            await chat.close()

    # -- turns ----------------------------------------------------------------------------------------

    def ask(self, text: str) -> None:
        """Runs a turn with the prompt ``text``, or queues it. While no model can answer, it stays in its box."""
        if self.runner.running and self.chat:
            self.chat.queue(text)
            self.composer.set_text("")
            self.draw_lines()
            return
        if self.busy():
            return
        if self.commands.doing:
            self.say(f"{self.commands.doing}: the prompt stays in its box. esc stops it.")
            return
        if self.no_server:  # the transcript, or the line below it, says why
            self.say("Nothing can answer now: the prompt stays in its box.", bad=True)
            return
        if self.settings.agent and not self.commands.has_gateway:
            self.change(lambda: self.commands.start_gateway(text))
            return
        self.composer.set_text("")
        self.runner.running = True
        self.work(lambda: self._run_turns(text), "turn")

    async def _run_turns(self, text: str) -> None:
        """The turn of ``text``, then those that were queued meanwhile, unless it was stopped or failed."""
        while text:
            view = await self._run_turn(text)
            chat = self.chat
            if chat and chat.queued and (view.failed or self.runner.stopped):
                typed = [*chat.queued, *filter(None, [self.composer.text])]
                chat.queued.clear()
                self.composer.set_text("\n\n".join(typed))
            text = chat.next_queued() if chat else ""
            self.runner.running = bool(text)
        self.draw_lines()
        await self.read_list()

    async def _run_turn(self, text: str) -> TurnView:
        transcript, composer = self.transcript, self.composer
        turns = transcript.turns
        replaced = turns[-1] if self.editing and turns else None
        self.editing = False
        if replaced:
            transcript.load(turns[:-1])
        view = TurnView(text, agent=self.settings.agent)
        transcript.add(view)
        self.draw_lines()
        try:
            if self.chat is None:
                await self.change_settings(self.new_settings)
            assert self.chat
            chat = self.chat
            if replaced and replaced.id and (turn := chat.log.turns.get(replaced.id)):
                chat.rewind(turn.parent_id)
            prompt = await self.chats.read_named(chat, text)
            view.show_prompt(prompt.attached, prompt.image_names, prompt.notes)
            async with self.commands.lock:
                head = chat.log.head
                await self.runner.run(chat, view, prompt)
                if chat.log.head != head:  # the turn was written to the chat file
                    view.id = chat.log.head
                await self.commands.show_changes()
            self.work(self.commands.offer_tests, "offer")
        except GpuboxError as error:
            view.apply(TurnFailed(error.message, error.hint))
            transcript.update_last()
        finally:
            self.runner.running = False
        if view.failed and not view.answer and not composer.text:
            composer.set_text(text)  # nothing was answered, so the prompt can be sent again
            self.editing = bool(view.id)
        return view

    def action_chat_last(self) -> None:
        """Takes back what was queued last; else edits the last prompt, which is then sent instead of the last turn."""
        if self.chat and self.chat.queued:
            self.composer.set_text(self.chat.queued.pop())
            self.draw_lines()
        elif self.transcript.turns and not self.runner.running:
            self.editing = True
            self.composer.set_text(self.transcript.turns[-1].prompt)
            self.draw_lines()

    def action_chat_retry(self) -> None:
        """Sends the last prompt again, instead of the last turn; starts the server first if it died."""
        turns = self.transcript.turns
        if self.no_server and restarts(self._overview):
            self.app.run_worker(self.app.run_action("restart"))
        elif turns and not self.busy():
            self.editing = not self.no_server
            self.ask(turns[-1].prompt)

    # -- chats ----------------------------------------------------------------------------------------

    def open_chat(self, name: str) -> None:
        if self.chat and self.chat.name == name:
            self.show_list(False)
        else:
            self.change(lambda: self.open(name))

    async def open(self, name: str) -> None:
        chat = await self.chats.open(name, self.questions.ask)
        await self.close()
        self.chat, self.new_settings = chat, chat.settings
        self.show_chat()
        self.show_list(False)
        await self.commands.read_changes()

    def show_chat(self) -> None:
        """Shows the turns of the open chat, up to its head."""
        self.transcript.load([stored_turn_view(turn) for turn in self.chat.log.path()] if self.chat else [])
        self.show_welcome()
        self.draw_lines()

    def action_chat_new(self) -> None:
        """Closes the open chat; the next prompt starts a new one."""
        self.change(self.show_no_chat)

    async def show_no_chat(self) -> None:
        await self.close()
        self.show_chat()
        self.show_list(False)
        await self.commands.read_changes()

    async def read_list(self) -> None:
        if not self.chat_list.display:
            return
        chats = await self.chats.matching(self.chat_list.search.value.strip())
        self.chat_list.show_chats(tuple(chats), self.chat.name if self.chat else "")

    # -- settings -------------------------------------------------------------------------------------

    def action_chat_settings(self) -> None:
        self.change(self._edit_settings)

    async def _edit_settings(self) -> None:
        from gpubox.tui.chat.chat_settings import ChatSettingsScreen

        running = self._overview and self._overview.status.profile
        defaults = await self.chats.profile_defaults(running or "")
        agents = [agent.name for agent in await self.chats.agents() if not agent.install]
        settings = await self.app.push_screen_wait(ChatSettingsScreen(self.settings, *defaults, agents))
        if settings is not None:
            await self.commands.change_agent(settings)

    async def change_settings(self, settings: ChatSettings) -> None:
        """Applies from the next turn on. Raises GpuboxError if the workspace cannot be used."""
        if self.chat is None:
            self.chat = await self.chats.open("", self.questions.ask)
        self.chat.change_settings(settings)
        self.new_settings = self.chat.settings
        self.show_welcome()
        self.draw_lines()
