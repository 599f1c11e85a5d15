"""Asking: the prompt, the turn that runs, edit and retry."""

from __future__ import annotations

from gpubox.agent.events import TurnFailed
from gpubox.errors import GpuboxError
from gpubox.tui.chat.base import ChatBase
from gpubox.tui.chat.turn import TurnView


class Turns(ChatBase):
    """The verbs of a turn."""

    _unfolded = False

    def ask(self, text: str) -> None:
        """Asks the model; the prompt stays in the box where nobody can answer."""
        if self.busy():
            return
        if rows := self.no_server:
            self.say(" ".join("".join(part for part, _ in row).strip() for row in rows[:2]), bad=True)
            return
        self.composer.put("")
        self.runner.running = True
        self.work(lambda: self._turn(text), "turn")

    async def _turn(self, text: str) -> None:
        turns = self.transcript.turns
        instead = turns[-1] if self.editing and turns else None
        self.editing = False
        if instead:
            self.transcript.load(turns[:-1])
        view = TurnView(text)
        self.transcript.add(view)
        self.draw_lines()
        try:
            chat = self.chat
            if chat is None:
                chat = self.chat = await self.service.open("", self.allow)
                chat.change_settings(self.settings)
            if instead and instead.id and (turn := chat.log.turns.get(instead.id)):
                chat.rewind(turn.parent_id)
            before = chat.log.head
            await self.runner.run(chat, view, text)
            if chat.log.head != before:  # it was asked
                view.id = chat.log.head
        except GpuboxError as error:
            view.take(TurnFailed(error.message, error.hint))
            self.transcript.grow()
        finally:
            self.runner.running = False
        if view.failed and not view.answer and not self.composer.text:
            self.composer.put(text)  # nothing was answered: it can be asked again as it stands
            self.editing = bool(view.id)
        self.draw_lines()
        await self.read_list()

    def edit_last(self) -> None:
        """Up: the last prompt, to be asked again in other words."""
        if self.transcript.turns and not self.runner.running:
            self.editing = True
            self.composer.put(self.transcript.turns[-1].prompt)
            self.draw_lines()

    def leave_edit(self) -> None:
        """Leaves the last turn as it is."""
        self.editing = False
        self.composer.put("")
        self.draw_lines()

    def action_chat_retry(self) -> None:
        turns = self.transcript.turns
        if turns and not self.busy():
            self.editing = not self.no_server
            self.ask(turns[-1].prompt)

    def action_chat_write(self) -> None:
        self.set_focus(self.composer)

    def action_chat_fold(self) -> None:
        self._unfolded = not self._unfolded
        self.transcript.fold_all(self._unfolded)
