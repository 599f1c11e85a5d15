"""What the verbs of the chat stand on: the open chat, its pieces on the screen, and work beside it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpubox.agent.transcript.records import ChatSettings
from gpubox.tui.persistent_screen import PersistentScreen

if TYPE_CHECKING:
    from gpubox.agent.tools import ToolCall
    from gpubox.tui.chat.chat_list import ChatList
    from gpubox.tui.chat.composer import Composer
    from gpubox.tui.chat.runner import TurnRunner
    from gpubox.tui.chat.service import ChatService, OpenChat, SandboxStatus
    from gpubox.tui.chat.transcript import Transcript
    from gpubox.tui.styled_lines import StyledLine

BUSY = "The answer is still coming; esc stops it."


class ChatBase(PersistentScreen):
    """One open chat at a time; ``None`` is a new one that nothing was asked in."""

    transcript: Transcript
    composer: Composer
    chat_list: ChatList
    runner: TurnRunner
    no_server: list[StyledLine]
    """Why nobody can answer now, and what to do; empty where somebody can."""

    def __init__(self, service: ChatService) -> None:
        super().__init__()
        self.service = service
        self.chat: OpenChat | None = None
        self.settings = ChatSettings()
        """Of a chat that has no file yet."""
        self.confined: SandboxStatus | None = None
        self.editing = False
        """Whether the next prompt takes the place of the last turn."""

    async def allow(self, call: ToolCall, diff: str) -> bool:
        """Asks the owner whether the call may do what ``diff`` shows."""
        raise NotImplementedError

    def draw_lines(self) -> None:
        """Draws what stands around the transcript."""
        raise NotImplementedError

    def greet(self) -> None:
        """Draws what stands in an empty chat."""
        raise NotImplementedError

    def show_list(self, shown: bool) -> None:
        """Opens or closes the list of chats."""
        raise NotImplementedError

    async def read_list(self) -> None:
        """Brings the list of chats up to date, where it is shown."""
        raise NotImplementedError

    def busy(self) -> bool:
        """Whether a turn runs; says so."""
        if self.runner.running:
            self.say(BUSY)
        return self.runner.running
