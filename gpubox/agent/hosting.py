"""What a chat needs of another program's agent, which answers it instead of gpubox's own. ``gpubox.acp`` hosts it."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from gpubox.agent.chat_file import ChatFile
from gpubox.agent.chat_log import AgentSession, ChatLog, ChatSettings, Turn
from gpubox.agent.endpoint import ServerEndpoint
from gpubox.agent.events import AgentEvent, Message
from gpubox.agent.tools import AskOwner
from gpubox.clock import utc_now
from gpubox.errors import UsageError

if TYPE_CHECKING:
    from gpubox.agent.work import Work

MAX_RETOLD = 24_000
"""Characters of a conversation that is told again; the newest ones."""
UNDONE = "(The owner took your last turn back: the files are as they were before it.)"
REDONE = "(The owner brought the turn back that he had taken back, with its changes.)"
REWOUND = "(The owner goes on from an earlier place of this conversation.)"


@dataclass(frozen=True, slots=True)
class HostedTurn:
    """One turn, as the chat orders it."""

    id: str
    prompt: Message
    settings: ChatSettings
    work: Work
    chat: Path
    """The file of the chat."""
    images: Path | None
    """Where the images of its messages are."""
    session_id: str
    """The agent's session of this chat; empty: it has none yet."""
    missed: str
    """What was said since that session's last turn; empty: nothing."""
    retold: str
    """The whole conversation so far, for a new session."""
    remember: Callable[[str], None]
    """Takes the id of a new session."""


class HostedAgent(Protocol):
    """One agent for one chat: a process that stays from the first turn on."""

    async def connect(self) -> ServerEndpoint:
        """What will answer. Raises GpuboxError if the gateway does not run, or the program is not installed."""

    def run(self, turn: HostedTurn) -> AsyncGenerator[AgentEvent, None]:
        """The events of one turn, TurnStarted first, TurnFinished or TurnFailed last."""

    def stop(self) -> None:
        """Ends the running turn. The last event still comes."""

    async def close(self) -> None:
        """Ends the process. May be called twice."""


HostAgent = Callable[[str, AskOwner], HostedAgent]
"""(name of the agent, who is asked) -> it, not started yet. Raises UsageError for an unknown name."""


class Hosting:
    """The hosted agent of an open chat. ``close`` it."""

    def __init__(self, host: HostAgent | None, ask: AskOwner) -> None:
        self._host, self._ask = host, ask
        self._agent: HostedAgent | None = None
        self._made_for = ("", "")

    async def agent(self, settings: ChatSettings) -> HostedAgent | None:
        """The one that ``settings`` name; None: none is. Another workspace starts it anew. Raises GpuboxError."""
        wanted = settings.agent, settings.workdir
        if self._made_for != wanted:
            await self.close()
        if settings.agent and not self._agent:
            if self._host is None:
                raise UsageError("No agent can be hosted here.", "--agent '' lets gpubox's own answer.")
            self._agent, self._made_for = self._host(settings.agent, self._ask), wanted
        return self._agent

    async def close(self) -> None:
        """Ends it. May be called twice."""
        agent, self._agent = self._agent, None
        if agent:
            await agent.close()


def hosted_turn(turn_id: str, prompt: Message, work: Work, file: ChatFile) -> HostedTurn:
    """The next turn of the chat in ``file``."""
    log, agent = file.log, file.log.settings.agent
    assert file.path
    return HostedTurn(
        turn_id, prompt, log.settings, work, file.path, file.images, log.sessions.get(agent, ""),
        retold(missed_turns(log, agent)), retold(log.path()),
        lambda session: file.record(AgentSession(agent, session, utc_now())),
    )  # fmt: skip


def retold(turns: Sequence[Turn]) -> str:
    """These turns as text for an agent that was not there; empty: there are none."""
    texts = [f"Owner: {turn.header.text}\n\nAnswer: {turn.answer or '(none)'}" for turn in turns]
    text = "\n\n".join(texts)
    if len(text) > MAX_RETOLD:
        text = f"[...]{text[-MAX_RETOLD:]}"
    return f"(What was said in this conversation before you came:)\n\n{text}\n\n(Now:)\n\n" if text else ""


def missed_turns(log: ChatLog, agent: str) -> list[Turn]:
    """The turns of the conversation since the last one that ``agent`` answered."""
    turns = log.path()
    last = max((number for number, turn in enumerate(turns) if turn.header.agent == agent), default=-1)
    return turns[last + 1 :]
