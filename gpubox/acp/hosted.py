"""One agent of another program that answers one chat: its process, its session, its turns.

The agent may die, hang, flood, write garbage or lie: each is a sentence, nothing of it stays, and the next turn starts
it anew. While a turn runs one task waits for it; what the agent asks meanwhile is answered beside it.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Mapping
from pathlib import Path
from typing import Any

from gpubox import __version__
from gpubox.acp import protocol
from gpubox.acp.client_files import ClientFiles
from gpubox.acp.hosted_turn import CANCELLED, HostedRun, HowHosted, OpenSession, Started
from gpubox.acp.protocol import line
from gpubox.acp.rounds import TurnRounds
from gpubox.agent.endpoint import ServerEndpoint
from gpubox.agent.events import AgentEvent, EndReason, Notice, TurnFailed, TurnStarted
from gpubox.agent.hosting import HostedTurn
from gpubox.agent.tools import AskOwner
from gpubox.concurrency import run_in_thread
from gpubox.errors import GpuboxError
from gpubox.json_rpc import BAD_PARAMETERS, NO_SUCH_METHOD, Peer, RpcError
from gpubox.sandbox.confined_run import finish

_REASONS: Mapping[str, EndReason] = {"cancelled": "stopped", "max_tokens": "length", "max_turn_requests": "rounds"}
MAX_SESSION_ID = 500


class HostedProgram:
    """The agent. ``connect``, then ``run`` turns, one at a time."""

    def __init__(self, hosting: HowHosted, ask: AskOwner) -> None:
        self._hosting, self._ask = hosting, ask
        self._session: OpenSession | None = None
        self._turn: HostedRun | None = None

    async def connect(self) -> ServerEndpoint:
        return await self._hosting.connect()

    async def run(self, turn: HostedTurn) -> AsyncGenerator[AgentEvent, None]:
        """The events of one turn. If it is closed early the process is ended."""
        rounds = TurnRounds(self._hosting.ledger, self._hosting.client)
        running = self._turn = HostedRun(self._hosting, self._ask, turn, rounds)
        yield TurnStarted("acp", self._hosting.title)
        work = asyncio.create_task(self._work(running))
        work.add_done_callback(lambda _: running.events.put_nowait(None))
        try:
            while (event := await running.events.get()) is not None:
                yield event
            yield await work
        finally:
            self._turn = None
            try:
                if not work.done():
                    work.cancel()
                    await finish(asyncio.wait([work]))  # however often it is cancelled: it is putting the changes away
            finally:
                if work.cancelled():
                    await finish(self.close())

    def stop(self) -> None:
        """Asks the agent to stop; if it does not, it is ended."""
        if self._turn:
            self._turn.stopped.set()

    async def close(self) -> None:
        session, self._session = self._session, None
        if session:
            session.reading.cancel()
            await asyncio.wait([session.reading])
            await session.started.close()

    async def _work(self, turn: HostedRun) -> AgentEvent:
        """Runs the turn and returns its last event. What it changed is in the turn's layer then."""
        try:
            session = await turn.unless_stopped(self._ready(turn))
            if session is None:
                await self.close()
                return turn.finished("stopped")
            turn.session = session
            turn.updates.roots = session.started.cwd, str(turn.order.work.workspace.root)
            return await self._prompt(turn, session)
        except GpuboxError as error:
            return await self._failed(turn, error)

    async def _prompt(self, turn: HostedRun, session: OpenSession) -> AgentEvent:
        process, work = session.started.process, turn.order.work
        await process.begin_turn(work.workspace.layers())
        try:
            reason = await turn.answered(session)
        finally:
            await finish(self._harvest(turn, session))
        for event in turn.updates.end():
            turn.emit(event)
        await turn.tell_rounds(last=True)
        if reason == "refusal":
            turn.emit(Notice("refused", f"{self._hosting.title} refused to go on."))
        if reason == "ended":
            turn.emit(Notice("stopped", f"{self._hosting.title} did not stop, and was ended."))
            await self.close()
            reason = "cancelled"
        return turn.finished(_REASONS.get(reason, "answered"))

    async def _harvest(self, turn: HostedRun, session: OpenSession) -> None:
        await session.started.process.end_turn()
        await run_in_thread(turn.order.work.workspace.note_changes)

    async def _failed(self, turn: HostedRun, error: GpuboxError) -> TurnFailed:
        """Ends the process; the sentence has its last words."""
        words = ""
        if self._session:
            with contextlib.suppress(TimeoutError):  # what it writes as it dies
                await asyncio.wait_for(asyncio.shield(self._session.reading), 0.2)
            words = line(self._session.started.process.last_words.rpartition("\n")[2], 300)
            strange = self._session.peer.strange
            words = words or self._session.started.process.why or (strange[-1] if strange else "")
            await self.close()
        for event in turn.updates.end():
            turn.emit(event)
        await turn.tell_rounds(last=True)
        hint = error.hint or (f"Its last words: {words}" if words else "The next question starts it anew.")
        return TurnFailed(error.message, hint, totals=turn.totals)

    async def _ready(self, turn: HostedRun) -> OpenSession:
        """The session, started if it does not run. Raises GpuboxError."""
        if self._session and (self._session.peer.problem or self._session.chat != turn.order.chat):
            await self.close()  # it has ended, or the chat has another name, and its copy another place
        session = self._session
        is_new = session is None
        if session is None:
            session = self._session = self._speak(await self._hosting.start(turn.order), turn.order.chat)
        limit = self._hosting.start_seconds
        try:
            async with asyncio.timeout(limit):
                if is_new:
                    await self._initialize(session)
                    await self._open_session(session, turn)
                else:
                    turn.before = turn.order.missed
                await self._choose(session, turn)
        except TimeoutError:
            raise GpuboxError(f"{self._hosting.title} did not start within {limit:g} s.") from None
        if is_new and (session.offers.commands or session.offers.choices):
            turn.emit(session.offers.event)
        return session

    def _speak(self, started: Started, chat: Path) -> OpenSession:
        files = ClientFiles(started.files, started.cwd)
        process = started.process
        peer = Peer(process.reader, process.writer, self._answer, self._heed, title=self._hosting.title)
        return OpenSession(started, peer, asyncio.create_task(peer.run()), files, chat)

    async def _initialize(self, session: OpenSession) -> None:
        about = {
            "protocolVersion": protocol.VERSION,
            "clientCapabilities": {"fs": {"readTextFile": True, "writeTextFile": True}, "terminal": False},
            "clientInfo": {"name": "gpubox", "title": "gpubox", "version": __version__},
        }
        answer = await session.peer.request("initialize", about)
        answer = answer if isinstance(answer, dict) else {}
        version = answer.get("protocolVersion")
        if isinstance(version, bool) or version not in protocol.READABLE:
            said = f"{self._hosting.title} speaks version {line(str(version), 40)} of the Agent Client Protocol"
            raise GpuboxError(f"{said}, and gpubox speaks version 1.", "Another version of the agent may fit.")
        capabilities = answer.get("agentCapabilities")
        session.capabilities = capabilities if isinstance(capabilities, dict) else {}

    async def _open_session(self, session: OpenSession, turn: HostedRun) -> None:
        """The chat's session, resumed if the agent can; else a new one, which is told what was said."""
        place = {"cwd": session.started.cwd, "mcpServers": []}
        known = turn.order.session_id
        method = "session/resume" if session.can("sessionCapabilities", "resume") else ""
        method = method or ("session/load" if session.can("loadSession") else "")
        if known and method:
            session.id = known
            with contextlib.suppress(RpcError):
                answer = await session.peer.request(method, {"sessionId": known, **place})
                session.offers.choices = protocol.choices_of(answer) if isinstance(answer, dict) else ()
                turn.before = turn.order.missed
                return
        answer = await self._new_session(session, place)
        session.id = answer["sessionId"]
        session.offers.choices = protocol.choices_of(answer) or session.offers.choices
        turn.before = turn.order.retold
        turn.order.remember(session.id)
        if known:
            text = f"{self._hosting.title} does not remember this conversation, and is told what was said."
            turn.emit(Notice("reread", text))

    async def _new_session(self, session: OpenSession, place: dict[str, Any]) -> dict[str, Any]:
        session.id = ""
        try:
            answer = await session.peer.request("session/new", place)
        except RpcError as error:
            if error.rpc_code != protocol.AUTH_REQUIRED or not self._hosting.auth:
                raise
            await session.peer.request("authenticate", {"methodId": self._hosting.auth})
            answer = await session.peer.request("session/new", place)
        name = answer.get("sessionId") if isinstance(answer, dict) else None
        if not isinstance(name, str) or not 0 < len(name) <= MAX_SESSION_ID:
            raise GpuboxError(f"{self._hosting.title} opened no session.")
        opened: dict[str, Any] = answer
        return opened

    async def _choose(self, session: OpenSession, turn: HostedRun) -> None:
        """Sets what the owner chose, and the agent's own plan mode in plan mode."""
        wanted = dict(turn.order.settings.agent_choices)
        if turn.order.settings.apply == "plan":
            wanted["mode"] = "plan"
        elif session.planned:
            wanted.setdefault("mode", session.planned)
        for choice in session.offers.choices:
            value = wanted.get(choice.id, choice.value)
            if value == choice.value or all(value != each for each, _ in choice.options):
                continue
            try:
                await self._set(session, choice.id, value)
                session.offers.choose(choice.id, value)
                if choice.id == "mode" and value == "plan":
                    session.planned = choice.value
            except RpcError as error:
                turn.emit(Notice("refused", error.message))

    async def _set(self, session: OpenSession, name: str, value: str) -> None:
        """Agents have up to three ways for it; the newest one first."""
        about = {"sessionId": session.id}
        try:
            await session.peer.request("session/set_config_option", {**about, "configId": name, "value": value})
        except RpcError as error:
            older = {"mode": ("session/set_mode", "modeId"), "model": ("session/set_model", "modelId")}.get(name)
            if error.rpc_code != NO_SUCH_METHOD or not older:
                raise
            await session.peer.request(older[0], {**about, older[1]: value})

    def _heed(self, method: str, params: dict[str, Any]) -> None:
        """Takes a notification. What belongs to no running turn, such as the replay of a session, is dropped."""
        session, turn = self._session, self._turn
        if method != "session/update" or session is None or params.get("sessionId") not in (session.id, None):
            return
        update = params.get("update")
        offers = session.offers.heed(update) if isinstance(update, dict) else None
        if turn and turn.session is session:
            turn.heed(update, offers)

    async def _answer(self, method: str, params: dict[str, Any]) -> Any:
        """Answers a request of the agent."""
        session, turn = self._session, self._turn
        if session is None or not session.id or params.get("sessionId") != session.id:
            raise RpcError("There is no such session.", BAD_PARAMETERS)
        match method:
            case "session/request_permission":
                return await turn.permit(params) if turn and turn.session is session else CANCELLED
            case "fs/read_text_file":
                return {"content": await run_in_thread(session.files.read, params)}
            case "fs/write_text_file":
                if turn is None or turn.session is not session:
                    raise RpcError("No turn is running.", BAD_PARAMETERS)
                await run_in_thread(session.files.write, params)
                return None
        raise RpcError("gpubox offers no such method.", NO_SUCH_METHOD)
