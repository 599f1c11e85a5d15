"""One running turn of a hosted agent: what it reports, what it asks, and when it has said nothing for too long."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol, TypeVar

from gpubox.acp.client_files import ClientFiles
from gpubox.acp.rounds import Span, TurnRounds
from gpubox.acp.updates import Offers, TurnUpdates
from gpubox.agent.endpoint import ServerEndpoint
from gpubox.agent.events import AgentEvent, AgentOffers, EndReason, Notice, QuestionAsked, TurnFinished, TurnTotals
from gpubox.agent.hosting import HostedTurn
from gpubox.agent.images import image_urls
from gpubox.agent.settings import AgentSettings
from gpubox.agent.tools import AskOwner
from gpubox.concurrency import run_in_thread
from gpubox.errors import GpuboxError
from gpubox.json_rpc import Peer

T = TypeVar("T")
_LEDGER_LOOKS = 5
CANCELLED = {"outcome": {"outcome": "cancelled"}}


class AgentProcess(Protocol):
    """The process of an agent: a ``sandbox.resident.Resident``."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter

    @property
    def last_words(self) -> str:
        """The end of what it wrote to stderr."""

    @property
    def why(self) -> str:
        """Why it ended; empty: it runs, or nobody knows."""

    async def begin_turn(self, layers: tuple[Path, ...]) -> None:
        """Its copy becomes what the workspace under ``layers`` is. Raises GpuboxError."""

    async def end_turn(self) -> None:
        """What it changed goes into the top layer. Raises GpuboxError."""

    async def close(self) -> None:
        """Kills it and all that it started. May be called twice."""


@dataclass(frozen=True, slots=True)
class Started:
    """An agent that runs."""

    process: AgentProcess
    cwd: str
    """The workspace, as the agent names it."""
    files: Path
    """The folder of this machine that it is."""
    close_ways: Callable[[], Awaitable[None]] | None = None
    """Closes what leads out of its walls, once it has ended."""

    async def close(self) -> None:
        await self.process.close()
        if self.close_ways:
            await self.close_ways()


@dataclass(frozen=True, slots=True)
class HowHosted:
    """How an agent is hosted."""

    title: str
    connect: Callable[[], Awaitable[ServerEndpoint]]
    start: Callable[[HostedTurn], Awaitable[Started]]
    ledger: Path
    client: str
    """Its name in the ledger."""
    asks_now: Callable[[], Awaitable[bool]]
    """Whether one of its requests is at the gateway now."""
    auth: str = ""
    """How it signs in, if it insists; empty: it need not."""
    start_seconds: float = 90.0
    silence_seconds: float = AgentSettings().silence_seconds
    call_seconds: float = AgentSettings().max_turn_seconds
    """The longest silence while a call of it runs."""
    stop_seconds: float = 5.0
    ledger_seconds: float = 0.5
    """How long the last line of a turn is waited for: the gateway writes it when the agent has its answer."""


@dataclass(slots=True)
class OpenSession:
    """The running process, and its conversation with gpubox."""

    started: Started
    peer: Peer
    reading: asyncio.Task[str]
    files: ClientFiles
    chat: Path
    """The file of the chat for which it was started."""
    id: str = ""
    planned: str = ""
    """Its mode before plan mode; empty: it was not changed."""
    capabilities: dict[str, Any] = field(default_factory=dict)
    offers: Offers = field(default_factory=Offers)

    def can(self, *path: str) -> bool:
        """Whether it says so of itself."""
        value: Any = self.capabilities
        for name in path:
            value = value.get(name) if isinstance(value, dict) else None
        return value is not None and value is not False


class HostedRun:
    """One running turn."""

    def __init__(self, hosting: HowHosted, ask: AskOwner, order: HostedTurn, rounds: TurnRounds) -> None:
        self._hosting, self._ask, self.order, self._rounds = hosting, ask, order, rounds
        self.events: asyncio.Queue[AgentEvent | None] = asyncio.Queue()
        self.stopped = asyncio.Event()
        self.session: OpenSession | None = None
        self.before = ""
        """What the agent is told before the prompt."""
        self.updates = TurnUpdates(order.id, time.time)
        self._heard = time.monotonic()
        self._flood: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self._asking, self._asked = asyncio.Lock(), list[Span]()
        self._waiting = 0
        """Permissions that wait for the owner."""

    def emit(self, event: AgentEvent) -> None:
        self.events.put_nowait(event)

    @property
    def totals(self) -> TurnTotals:
        return self._rounds.totals(self.updates.calls, self.updates.failed_calls)

    def finished(self, reason: EndReason) -> TurnFinished:
        """The last event."""
        return TurnFinished(self.totals, reason, self.updates.answer)

    async def unless_stopped(self, work: Awaitable[T]) -> T | None:
        """The result of ``work``; None if the owner stops the turn before."""
        task, stopped = asyncio.ensure_future(work), asyncio.ensure_future(self.stopped.wait())
        try:
            await asyncio.wait([task, stopped], return_when=asyncio.FIRST_COMPLETED)
            return await task if task.done() else None
        finally:
            for each in (task, stopped):
                each.cancel()
            await asyncio.wait([task, stopped])

    async def answered(self, session: OpenSession) -> str:
        """Sends the prompt and returns why the agent's turn ended; ``ended``: it was asked to stop, and did not.

        Raises GpuboxError.
        """
        prompt = {"sessionId": session.id, "prompt": await self._content(session)}
        self._heard = time.monotonic()
        waits: list[asyncio.Future[Any]] = [
            asyncio.ensure_future(session.peer.request("session/prompt", prompt)),
            asyncio.ensure_future(self.stopped.wait()), self._flood, asyncio.ensure_future(self._silence()),
        ]  # fmt: skip
        answer, stopped, flood, silence = waits
        try:
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
            if stopped.done() and not answer.done():
                await session.peer.notify("session/cancel", {"sessionId": session.id})
                await asyncio.wait([answer, flood], timeout=self._hosting.stop_seconds, return_when="FIRST_COMPLETED")
                if not answer.done():
                    return "ended"
            if answer.done():
                result = answer.result()
                reason = result.get("stopReason") if isinstance(result, dict) else None
                if not isinstance(reason, str):
                    raise GpuboxError(f"{self._hosting.title} ended its turn without a reason.")
                return "cancelled" if self.stopped.is_set() else reason
            raise GpuboxError(flood.result() if flood.done() else silence.result())
        finally:
            self.session = None
            self.stopped.set()  # a question that is still open is over, too
            for each in waits:
                each.cancel()
            await asyncio.wait(waits)

    async def _content(self, session: OpenSession) -> list[dict[str, Any]]:
        """The prompt as content blocks."""
        prompt = self.order.prompt
        blocks: list[dict[str, Any]] = [{"type": "text", "text": f"{self.before}{prompt.content}"}]
        if prompt.images and not session.can("promptCapabilities", "image"):
            self.emit(Notice("left", f"{self._hosting.title} takes no images."))
        elif prompt.images and self.order.images:
            for url in (await run_in_thread(image_urls, self.order.images, prompt.images)).values():
                kind, _, data = url.removeprefix("data:").partition(";base64,")
                blocks.append({"type": "image", "mimeType": kind, "data": data})
        return blocks

    async def _silence(self) -> str:
        """Returns a sentence when the agent has said nothing for too long, and nobody works for it or is asked."""
        while True:
            limit = self._hosting.call_seconds if self.updates.running else self._hosting.silence_seconds
            rest = self._heard + limit - time.monotonic()
            if rest <= 0 and not self._waiting:
                if not await self._hosting.asks_now():
                    return f"{self._hosting.title} has said nothing for {limit:g} s, and was ended."
                self._heard = time.monotonic()
            await asyncio.sleep(max(rest, 0.05))

    def heed(self, update: Any, offers: AgentOffers | None) -> None:
        """Takes an update of the agent."""
        self._heard = time.monotonic()
        if self._flood.done():
            return
        try:
            for event in self.updates.heed(update, offers):
                self.emit(event)
        except GpuboxError as error:
            self._flood.set_result(f"{self._hosting.title} was ended. {error.message}")

    async def permit(self, params: dict[str, Any]) -> Any:
        """Asks the owner; a no is an option that rejects, else a cancelled question."""
        self._heard = time.monotonic()
        try:
            events, question, options = self.updates.question(params)
        except GpuboxError as error:
            if self.updates.flooded and not self._flood.done():
                self._flood.set_result(f"{self._hosting.title} was ended. {error.message}")
            return CANCELLED
        for event in events:
            self.emit(event)
        self._waiting += 1
        try:
            async with self._asking:
                if self.stopped.is_set() or self._flood.done():
                    return CANCELLED
                await self.tell_rounds()
                began = time.time()
                self.emit(QuestionAsked(question))
                answer = await self.unless_stopped(self._ask(question))
                self._asked.append((began, time.time()))
        finally:
            self._waiting -= 1
            self._heard = time.monotonic()
        chosen = None
        if answer is not None:
            by_name = dict(zip(question.options, options, strict=True))
            kind = "allow" if answer.yes else "reject"
            ranked = sorted(options, key=lambda each: not str(each.kind).endswith("once"))
            chosen = by_name.get(answer.text) or next((o for o in ranked if str(o.kind).startswith(kind)), None)
        if chosen is None or not chosen.allows:
            self.updates.deny(question.call)
        if chosen is None:
            return CANCELLED
        return {"outcome": {"outcome": "selected", "optionId": chosen.option_id}}

    async def tell_rounds(self, *, last: bool = False) -> None:
        """Emits the rounds that are over."""
        for _ in range(_LEDGER_LOOKS if last else 1):
            if await run_in_thread(self._rounds.read) or not last or self._rounds.complete:
                break
            await asyncio.sleep(self._hosting.ledger_seconds / _LEDGER_LOOKS)
        for event in self._rounds.finished(self.updates.tool_spans, self._asked, all_of_them=last):
            self.emit(event)
