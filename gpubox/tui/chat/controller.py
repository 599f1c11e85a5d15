"""The open chat and what the user does with it: run a turn, open, branch, rename, delete, change settings."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable, Coroutine
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import msgspec

from gpubox.agent.events import ApprovalRequested, ReasoningDelta, TextDelta, TurnFailed, TurnStarted
from gpubox.agent.transcript.records import ChatSettings
from gpubox.errors import GpuboxError
from gpubox.sanitize import sanitize_line
from gpubox.tui.chat.turn import TurnView, model_label, stored_turn_view
from gpubox.tui.dialogs import PromptScreen, ask

if TYPE_CHECKING:
    from gpubox.agent.chat import Chat
    from gpubox.agent.tools import ToolCall
    from gpubox.tui.chat.screen import ChatScreen
    from gpubox.tui.chat.service import ChatService

FRAME_SECONDS = 1 / 12
"""Minimum time between two drawings of a turn."""
REST_FACTOR = 12
"""After a drawing, the next one waits at least this many times as long as it took: drawing must not fill a core."""
BUSY = "The answer is still coming; esc stops it."


class TurnRunner:
    """Runs one turn at a time and calls ``draw`` a few times a second."""

    def __init__(self, draw: Callable[[], None], clock: Callable[[], float] = time.monotonic) -> None:
        self.turn: TurnView | None = None
        """The running turn, or the last one."""
        self.running = False
        self._started_at = 0.0
        self._draw, self._clock = draw, clock
        self._task: asyncio.Task[None] | None = None
        self._chat: Chat | None = None
        self._stopping = False
        self._dirty = asyncio.Event()

    @property
    def seconds(self) -> float:
        """Since the turn started."""
        return self._clock() - self._started_at

    async def run(self, chat: Chat, turn: TurnView, text: str) -> None:
        """Runs the turn to its end. A GpuboxError becomes a part of the turn."""
        self.turn, self.running, self._started_at = turn, True, self._clock()
        self._chat, self._stopping = chat, False
        self._task = asyncio.create_task(self._consume(chat, turn, text))
        drawing = asyncio.create_task(self._draw_changes())
        try:
            await asyncio.wait([self._task])
            if not self._task.cancelled() and (error := self._task.exception()):
                raise error
        finally:
            if not self._task.done():  # the screen is being closed
                self._task.cancel()
                with contextlib.suppress(BaseException):
                    await self._task
            drawing.cancel()
            self.running = False
            turn.stop()
            self._draw()

    def stop(self) -> None:
        """Stops the running turn and keeps its text. The second call does not wait for the final event."""
        if not (self._task and not self._task.done() and self._chat):
            return
        if self._stopping or not self._chat.stop():
            self._task.cancel()
        self._stopping = True

    async def _consume(self, chat: Chat, turn: TurnView, text: str) -> None:
        try:
            async with contextlib.aclosing(chat.send(text)) as events:
                async for event in events:
                    if isinstance(event, TurnStarted) and (endpoint := chat.endpoint):
                        turn.answered_by = model_label(endpoint.profile_name or endpoint.model, endpoint.build)
                    turn.apply(event, self._clock())
                    self._dirty.set()
                    if isinstance(event, ApprovalRequested):
                        self._draw()
                    if not isinstance(event, (TextDelta, ReasoningDelta)):
                        await asyncio.sleep(0)
        except GpuboxError as error:
            turn.apply(TurnFailed(error.message, error.hint), self._clock())

    async def _draw_changes(self) -> None:
        """Draws after events, and once a second for the clock."""
        while True:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._dirty.wait(), 1.0)
            self._dirty.clear()
            started = self._clock()
            self._draw()
            await asyncio.sleep(max(FRAME_SECONDS, REST_FACTOR * (self._clock() - started)))


class ChatController:
    """One open chat at a time. ``chat`` is ``None`` for a new chat without a prompt."""

    def __init__(self, screen: ChatScreen, service: ChatService) -> None:
        self.screen, self.service = screen, service
        self.runner = TurnRunner(screen.draw)
        self.chat: Chat | None = None
        self.new_settings = ChatSettings()
        """Settings of a chat that has no file yet."""
        self.editing = False
        """Whether the next prompt replaces the last turn."""

    @property
    def settings(self) -> ChatSettings:
        return self.chat.settings if self.chat else self.new_settings

    def busy(self) -> bool:
        """Returns whether a turn runs, and tells the user so."""
        if self.runner.running:
            self.screen.say(BUSY)
        return self.runner.running

    def _change(self, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Runs ``work`` in a worker, unless a turn runs."""
        if not self.busy():
            self.screen.work(work, "chat")

    async def close(self) -> None:
        """Closes the open chat, if there is one."""
        chat, self.chat, self.editing = self.chat, None, False
        if chat:
            await chat.close()

    # -- turns ----------------------------------------------------------------------------------------

    def ask(self, text: str) -> None:
        """Runs a turn with the prompt ``text``. While no model can answer, the prompt stays in its box."""
        if self.busy():
            return
        if rows := self.screen.no_server:
            self.screen.say(" ".join("".join(part for part, _ in row).strip() for row in rows[:2]), bad=True)
            return
        self.screen.composer.set_text("")
        self.runner.running = True
        self.screen.work(lambda: self._run_turn(text), "turn")

    async def _run_turn(self, text: str) -> None:
        transcript, composer = self.screen.transcript, self.screen.composer
        turns = transcript.turns
        replaced = turns[-1] if self.editing and turns else None
        self.editing = False
        if replaced:
            transcript.load(turns[:-1])
        view = TurnView(text)
        transcript.add(view)
        self.screen.draw_lines()
        try:
            chat = await self._open_new() if self.chat is None else self.chat
            if replaced and replaced.id and (turn := chat.log.turns.get(replaced.id)):
                chat.rewind(turn.parent_id)
            head = chat.log.head
            await self.runner.run(chat, view, text)
            if chat.log.head != head:  # the turn was written to the chat file
                view.id = chat.log.head
        except GpuboxError as error:
            view.apply(TurnFailed(error.message, error.hint))
            transcript.update_last()
        finally:
            self.runner.running = False
        if view.failed and not view.answer and not composer.text:
            composer.set_text(text)  # nothing was answered, so the prompt can be sent again
            self.editing = bool(view.id)
        self.screen.draw_lines()
        await self.read_list()

    async def _open_new(self) -> Chat:
        chat = self.chat = await self.service.open("", self.approve)
        chat.change_settings(self.new_settings)
        return chat

    def edit_last(self) -> None:
        """Puts the last prompt into the box, to be sent instead of the last turn."""
        if self.screen.transcript.turns and not self.runner.running:
            self.editing = True
            self.screen.composer.set_text(self.screen.transcript.turns[-1].prompt)
            self.screen.draw_lines()

    def cancel_edit(self) -> None:
        """Leaves the last turn as it is."""
        self.editing = False
        self.screen.composer.set_text("")
        self.screen.draw_lines()

    def retry(self) -> None:
        """Sends the last prompt again, instead of the last turn."""
        turns = self.screen.transcript.turns
        if turns and not self.busy():
            self.editing = not self.screen.no_server
            self.ask(turns[-1].prompt)

    async def approve(self, call: ToolCall, diff: str) -> bool:
        """Asks the user to allow a tool call. ``all`` allows every later write in the workspace too."""
        answer = await self.screen.approvals.ask(call, diff)
        if answer == "all" and self.chat:
            await self.change_settings(msgspec.structs.replace(self.chat.settings, approvals="workspace"))
        return answer != "no"

    # -- chats ----------------------------------------------------------------------------------------

    def open_chat(self, name: str) -> None:
        """Opens another chat."""
        if self.chat and self.chat.name == name:
            self.screen.show_list(False)
        else:
            self._change(lambda: self._open(name))

    async def _open(self, name: str) -> None:
        chat = await self.service.open(name, self.approve)
        await self.close()
        self.chat, self.new_settings = chat, chat.settings
        self.screen.transcript.load([stored_turn_view(turn) for turn in chat.log.path()])
        await self._show_chat()

    async def _show_chat(self) -> None:
        self.screen.show_list(False)
        self.screen.show_welcome()
        self.screen.draw_lines()
        await self.read_list()

    def new_chat(self) -> None:
        """Closes the open chat; the next prompt starts a new one."""
        self._change(self._new_chat)

    async def _new_chat(self) -> None:
        await self.close()
        self.screen.transcript.load([])
        await self._show_chat()

    def branch(self) -> None:
        """Continues after the turn in view in a new chat."""
        index = self.screen.transcript.turn_in_view
        if (chat := self.chat) and index is not None and (turn := self.screen.transcript.turns[index].id):
            self._change(lambda: self._branch(chat, turn))

    async def _branch(self, chat: Chat, turn: str) -> None:
        old, name = chat.name, await self.service.free_name(chat.name)
        chat.branch(name, turn)
        await self._open(name)
        self.screen.say(f"The new chat is {name}; {old} is unchanged.")

    async def read_list(self) -> None:
        """Updates the list of chats, if it is shown."""
        if not self.screen.chat_list.display:
            return
        wanted = self.screen.chat_list.search.value.strip()
        chats = await self.service.summaries()
        if wanted:
            excerpts = {hit.chat: hit.excerpt for hit in reversed(await self.service.search(wanted))}
            chats = [
                replace(chat, title=excerpts.get(chat.name, chat.title))
                for chat in chats
                if chat.name in excerpts or wanted.casefold() in chat.name.casefold()
            ]
        self.screen.chat_list.show_chats(tuple(chats), self.chat.name if self.chat else "")

    def rename(self, name: str) -> None:
        """Asks for a new name of the chat ``name``."""
        self._change(lambda: self._rename(name))

    async def _rename(self, name: str) -> None:
        new = await self.screen.app.push_screen_wait(PromptScreen(f"Rename {sanitize_line(name)}", name))
        if not new or new == name:
            return
        is_open = self.chat is not None and self.chat.name == name
        if is_open:
            await self.close()  # an open chat is locked
        try:
            await self.service.rename(name, new)
            name = new
        finally:
            if is_open:
                await self._open(name)
        await self.read_list()

    def delete(self, name: str) -> None:
        """Deletes the chat ``name``, after a question."""
        self._change(lambda: self._delete(name))

    async def _delete(self, name: str) -> None:
        shown, body = sanitize_line(name), "All its turns and branches are deleted. This cannot be undone."
        answers = (("n", "keep it", "no"), ("y", f"delete {shown}", "yes"))
        if await ask(self.screen.app, f"Delete {shown}?", body, *answers) != "yes":
            return
        if self.chat and self.chat.name == name:
            await self.close()
            self.screen.transcript.load([])
            self.screen.show_welcome()
        await self.service.delete(name)
        self.screen.draw_lines()
        await self.read_list()

    # -- settings -------------------------------------------------------------------------------------

    def edit_settings(self) -> None:
        """Opens the form with the settings of this chat."""
        self._change(self._edit_settings)

    async def _edit_settings(self) -> None:
        from gpubox.tui.chat.settings_screen import ChatSettingsScreen

        defaults = await self.service.profile_defaults(self.screen.profile)
        settings = await self.screen.app.push_screen_wait(ChatSettingsScreen(self.settings, defaults))
        if settings is not None:
            await self.change_settings(settings)

    async def change_settings(self, settings: ChatSettings) -> None:
        """Applies from the next turn on. Raises GpuboxError if the workspace cannot be used."""
        if self.chat is None:
            self.chat = await self.service.open("", self.approve)
        self.chat.change_settings(settings)
        self.new_settings = self.chat.settings
        self.screen.draw_lines()
