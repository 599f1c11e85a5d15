"""What the chat pane asks for. The real one is ``chat.live``; tests hand in their own."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from gpubox.agent.endpoint import ServerEndpoint
    from gpubox.agent.events import AgentEvent
    from gpubox.agent.tools import Approve
    from gpubox.agent.transcript.chat_files import ChatSummary
    from gpubox.agent.transcript.chat_log import ChatLog
    from gpubox.agent.transcript.records import ChatSettings
    from gpubox.agent.transcript.search import SearchHit


@dataclass(frozen=True, slots=True)
class SandboxStatus:
    """What confines the model's programs here."""

    isolation: str
    """bubblewrap | landlock | none; empty where nothing does, and nothing is run."""
    why: str = ""
    """Why it is not better, and what to do; empty where it is the best there is."""


@dataclass(frozen=True, slots=True)
class ProfileDefaults:
    """What a profile gives its chats."""

    system_prompt: str
    sampling: Mapping[str, float]


class OpenChat(Protocol):
    """One open chat, as ``agent.session.Chat`` is one. Methods raise GpuboxError."""

    @property
    def name(self) -> str:
        """Empty for a new one: the first question names it."""

    @property
    def settings(self) -> ChatSettings: ...

    @property
    def log(self) -> ChatLog:
        """All turns so far."""

    @property
    def endpoint(self) -> ServerEndpoint | None:
        """Who answers the turn that runs, or answered the last one."""

    @property
    def problem(self) -> str:
        """Why it is not saved just now; empty: it is."""

    def send(self, text: str) -> AsyncGenerator[AgentEvent, None]:
        """Asks. Closing the iterator stops the model and what it runs; what was said stays."""

    def stop(self) -> bool:
        """Ends the turn that runs; whether its iterator still gives the end."""

    def change_settings(self, settings: ChatSettings) -> None:
        """Changes what this chat does from here on."""

    def rewind(self, turn: str) -> None:
        """The next question goes on from ``turn``; empty: from the beginning. Nothing is deleted."""

    def branch(self, name: str, turn: str | None = None) -> None:
        """Makes a chat ``name`` of this one up to ``turn``."""

    async def close(self) -> None: ...


class ChatService(Protocol):
    """All chats. Methods raise GpuboxError."""

    async def chat_summaries(self) -> list[ChatSummary]:
        """Every chat, the one that changed last first."""

    async def search(self, text: str) -> list[SearchHit]:
        """Where ``text`` was said."""

    async def open(self, name: str, approve: Approve) -> OpenChat:
        """The chat ``name``; empty: a new one. ``approve`` is called where the owner has to allow something."""

    async def free_name(self, text: str) -> str:
        """A name made of ``text`` that no chat has."""

    async def rename(self, name: str, new: str) -> None: ...

    async def remove(self, name: str) -> None: ...

    async def confined(self) -> SandboxStatus:
        """What confines programs; found out once, by trying."""

    async def defaults(self, profile: str) -> ProfileDefaults:
        """What holds where a chat says nothing else."""

    async def save(self, text: str, path: str, folder: str) -> str:
        """Writes ``text`` to a file that is not there yet, from ``folder``. Returns its path for showing."""
