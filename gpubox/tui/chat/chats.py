"""Several chats: open, begin, branch, search, rename and delete one, and change what one may do."""

from __future__ import annotations

from collections.abc import Awaitable
from dataclasses import replace

import msgspec

from gpubox.agent.transcript.records import ChatSettings
from gpubox.sanitize import sanitize_line
from gpubox.tui.chat.base import ChatBase
from gpubox.tui.chat.replay import turn_view_of
from gpubox.tui.chat.service import OpenChat
from gpubox.tui.dialogs import DialogAnswer, PromptScreen, QuestionScreen


class Chats(ChatBase):
    """The verbs of chats."""

    def open_chat(self, name: str) -> None:
        """Opens another chat."""
        if self.chat and self.chat.name == name:
            self.show_list(False)
        elif not self.busy():
            self.work(lambda: self._open(self.service.open(name, self.allow)), "chat")

    async def _open(self, opening: Awaitable[OpenChat]) -> None:
        chat = await opening
        await self._close()
        self.chat, self.settings = chat, chat.settings
        self.transcript.load([turn_view_of(turn) for turn in chat.log.path()])
        await self._shown()

    async def _close(self) -> None:
        chat, self.chat, self.editing = self.chat, None, False
        if chat:
            await chat.close()

    async def _shown(self) -> None:
        self.show_list(False)
        self.greet()
        self.draw_lines()
        await self.read_list()

    def action_chat_new(self) -> None:
        if not self.busy():
            self.work(self._new, "chat")

    async def _new(self) -> None:
        await self._close()
        self.transcript.load([])
        await self._shown()

    def action_chat_branch(self) -> None:
        at = self.transcript.turn_in_view
        if self.chat is None or at is None or self.busy():
            return
        chat, turn = self.chat, self.transcript.turns[at].id
        if turn:
            self.work(lambda: self._branch(chat, turn), "chat")

    async def _branch(self, chat: OpenChat, turn: str) -> None:
        old, name = chat.name, await self.service.free_name(chat.name)
        chat.branch(name, turn)
        await self._open(self.service.open(name, self.allow))
        self.say(f"This is {name}; {old} stays as it is.")

    # -- the list -------------------------------------------------------------------------------------

    def action_chat_list(self) -> None:
        self.show_list(not self.chat_list.display)
        self.work(self.read_list, "list", exclusive=True)

    def action_chat_search(self) -> None:
        self.show_list(True)
        self.chat_list.find()
        self.work(self.read_list, "list", exclusive=True)

    async def read_list(self) -> None:
        if not self.chat_list.display:
            return
        wanted = self.chat_list.search.value.strip()
        chat_summaries = await self.service.chat_summaries()
        if wanted:
            hits = {hit.chat: hit.excerpt for hit in reversed(await self.service.search(wanted))}
            low = wanted.casefold()
            found = [head for head in chat_summaries if head.name in hits or low in head.name.casefold()]
            chat_summaries = [replace(head, title=hits.get(head.name, head.title)) for head in found]
        self.chat_list.take(tuple(chat_summaries), self.chat.name if self.chat else "")

    def action_chat_rename(self) -> None:
        if self.chat and self.chat.name:
            self.change_chat("rename", self.chat.name)

    def action_chat_delete(self) -> None:
        if self.chat and self.chat.name:
            self.change_chat("remove", self.chat.name)

    def change_chat(self, what: str, name: str) -> None:
        """Renames or deletes a chat, after asking."""
        if not self.busy():
            self.work(lambda: self._rename(name) if what == "rename" else self._remove(name), "chat")

    async def _rename(self, name: str) -> None:
        new = await self.app.push_screen_wait(PromptScreen(f"Rename {sanitize_line(name)}", name))
        if not new or new == name:
            return
        mine = self.chat is not None and self.chat.name == name
        if mine:
            await self._close()  # a chat that is open is locked
        try:
            await self.service.rename(name, new)
            name = new
        finally:
            if mine:
                await self._open(self.service.open(name, self.allow))
        await self.read_list()

    async def _remove(self, name: str) -> None:
        answers = (DialogAnswer("n", "keep it", "no"), DialogAnswer("y", f"delete {sanitize_line(name)}", "yes"))
        ask = QuestionScreen(
            f"Delete {sanitize_line(name)}?", "All its turns and branches go. This cannot be undone.", answers
        )
        if await self.app.push_screen_wait(ask) != "yes":
            return
        if self.chat and self.chat.name == name:
            await self._close()
            self.transcript.load([])
            self.greet()
        await self.service.remove(name)
        self.draw_lines()
        await self.read_list()

    # -- what it may do -------------------------------------------------------------------------------

    def action_chat_settings(self) -> None:
        if not self.busy():
            self.work(self._settings, "chat")

    async def _settings(self) -> None:
        from gpubox.tui.chat.settings_screen import ChatSettingsScreen

        now = self.chat.settings if self.chat else self.settings
        defaults = await self.service.defaults(self.profile)
        if (made := await self.app.push_screen_wait(ChatSettingsScreen(now, defaults))) is not None:
            await self.change_settings(made)

    @property
    def profile(self) -> str:
        """The profile that runs; empty: none does."""
        raise NotImplementedError

    async def change_settings(self, settings: ChatSettings) -> None:
        """From the next turn on. Raises GpuboxError where the workspace cannot be one."""
        if self.chat is None:
            self.chat = await self.service.open("", self.allow)
        self.chat.change_settings(settings)
        self.settings = self.chat.settings
        self.draw_lines()

    async def allow_all(self) -> None:
        """From here on this chat writes in its workspace unasked."""
        if self.chat:
            await self.change_settings(msgspec.structs.replace(self.chat.settings, approvals="workspace"))
