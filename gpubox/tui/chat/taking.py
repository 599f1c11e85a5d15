"""Taking something out of a chat: code and answers, to the clipboard or to a file."""

from __future__ import annotations

from gpubox.tui.chat.base import ChatBase
from gpubox.tui.chat.snippets import CodeSnippet, code_snippets
from gpubox.tui.dialogs import PromptScreen

CLIPBOARD_HINT = "(Terminals that know OSC 52; tmux: set-clipboard on.)"


class Taking(ChatBase):
    """The verbs of copying and saving."""

    _copied: tuple[int, int] = (-1, 0)
    """The turn, and which of its codes from the end was copied last."""

    def action_chat_copy_code(self) -> None:
        at, codes = self._codes()
        if not codes:
            self.say("There is no code in this turn.")
            return
        again = self._copied[1] + 1 if self._copied[0] == at else 0
        self._copied = (at, again % len(codes))
        place = len(codes) - 1 - self._copied[1]
        code = codes[place]
        self.app.copy_to_clipboard(code.text)
        more = " Again: the one before it." if len(codes) > 1 else ""
        lines = f"{code.lines} line{'s' * (code.lines != 1)}"
        self.say(f"Copied code {place + 1} of {len(codes)} ({code.language}, {lines}).{more} {CLIPBOARD_HINT}")

    def action_chat_save_code(self) -> None:
        at, codes = self._codes()
        if not codes:
            self.say("There is no code in this turn.")
            return
        back = self._copied[1] if self._copied[0] == at else 0
        self.work(lambda: self._save(codes[len(codes) - 1 - back]), "save")

    async def _save(self, code: CodeSnippet) -> None:
        folder = self.chat.settings.workdir if self.chat else ""
        where = f"In {folder}, where no other folder is said." if folder else "In the folder gpubox was started in."
        path = await self.app.push_screen_wait(PromptScreen("Save the code as", code.file_name, where))
        if path:
            self.say(f"Saved: {await self.service.save(code.text, path, folder)}")

    def action_chat_copy_answer(self) -> None:
        at = self.transcript.turn_in_view
        text = self.transcript.turns[at].answer if at is not None else ""
        if not text:
            self.say("There is no answer to copy.")
            return
        self.app.copy_to_clipboard(text)
        self.say(f"Copied the answer. {CLIPBOARD_HINT}")

    def _codes(self) -> tuple[int, list[CodeSnippet]]:
        at = self.transcript.turn_in_view
        return (-1, []) if at is None else (at, code_snippets(self.transcript.turns[at]))
