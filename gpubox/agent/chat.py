"""One chat that is open: its file, the server that answers, the tools, the owner's approvals. Both front ends use it.

The server is looked for anew at each turn: a switch in mid-chat changes who answers, not the chat.
"""

from __future__ import annotations

import asyncio
import contextlib
import secrets
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing
from pathlib import Path
from typing import TYPE_CHECKING

from gpubox.agent.conversation import Conversation
from gpubox.agent.endpoint import ServerEndpoint, find_endpoint
from gpubox.agent.events import (
    AgentEvent,
    Message,
    MessageAdded,
    Notice,
    TurnFailed,
    TurnFinished,
    TurnStarted,
    TurnTotals,
)
from gpubox.agent.scratch import create_scratch, remove_scratch
from gpubox.agent.tools import Approve, Tool, ToolCall, deny_all
from gpubox.agent.transcript.branch import copy_turns, require_turn, turns_to
from gpubox.agent.transcript.chat_files import chat_path, existing_chat, free_name, load_chat, move_chat_file
from gpubox.agent.transcript.chat_log import ChatLog
from gpubox.agent.transcript.journal import ChatJournal
from gpubox.agent.transcript.records import ChatRecord, ChatSettings, HeadMoved, SettingsChanged, TurnHeader
from gpubox.agent.workspace import Workspace
from gpubox.clock import utc_now
from gpubox.config import Config
from gpubox.errors import GpuboxError, UsageError
from gpubox.paths import Paths
from gpubox.threads import run_in_thread

if TYPE_CHECKING:
    from gpubox.agent.loop import AgentLoop
    from gpubox.sandbox.runner import Sandbox
    from gpubox.server.client import LlamaClient

FLUSH_SECONDS = 0.5
CLOSE_TIMEOUT_SECONDS = 10.0
"""A turn that is stopped has so long to end, its tools included."""
FindEndpoint = Callable[[], Awaitable[ServerEndpoint]]


class Chat:
    """One chat. One turn at a time; ``close`` it at the end."""

    def __init__(
        self,
        paths: Paths,
        config: Config,
        name: str = "",
        *,
        find: FindEndpoint | None = None,
        approve: Approve = deny_all,
        sandbox: Sandbox | None = None,
        any_workdir: bool = False,
    ) -> None:
        """``name`` is a chat that exists; empty: a new one, which gets its name from what is asked first.

        ``find`` says who answers; without it the box's active server. ``approve`` asks the owner about a diff.
        Raises GpuboxError where the chat cannot be opened, or another gpubox has it.
        """
        self._paths, self._config, self._any_workdir = paths, config, any_workdir
        self._find: FindEndpoint = find or (lambda: find_endpoint(paths, config))
        self._ask_owner, self._sandbox = approve, sandbox
        self.endpoint: ServerEndpoint | None = None
        """Who answers the turn that runs, or answered the last one."""
        self._client: LlamaClient | None = None
        self._loop: AgentLoop | None = None
        self._idle = asyncio.Event()
        self._idle.set()
        self._timer: asyncio.TimerHandle | None = None
        self._scratch: Path | None = None
        self._workspace: Workspace | None = None
        self._journal: ChatJournal | None = None
        self._unsaved: list[ChatRecord] = []
        """What was chosen before the file was there."""
        self._conversation: Conversation | None = None
        """The prompt as it was sent last: it knows what the server holds of it."""
        self._conversation_head = ""
        self._told = ""
        """The last problem of the file that was told."""
        self.log = ChatLog(name)
        if name:
            path = existing_chat(paths, name)
            self._journal = ChatJournal(path)
            try:
                self.log = load_chat(path)
            except BaseException:
                self._journal.close()
                raise

    @property
    def name(self) -> str:
        """Empty as long as nothing was asked in a new chat."""
        return self.log.name

    @property
    def settings(self) -> ChatSettings:
        """What was changed for this chat."""
        return self.log.settings

    @property
    def busy(self) -> bool:
        """Whether a turn runs."""
        return not self._idle.is_set()

    @property
    def problem(self) -> str:
        """Why the chat is not saved just now; empty when it is."""
        return self._journal.problem if self._journal else ""

    def change_settings(self, settings: ChatSettings) -> None:
        """From the next turn on. Raises UsageError where the workspace cannot be one."""
        if settings.workdir != self.settings.workdir:
            self._workspace = None
            if settings.workdir:
                self._workspace = self._open_workspace(settings.workdir)
                settings = _with_workdir(settings, str(self._workspace.root))
        if settings != self.settings:
            self._record(SettingsChanged(settings, utc_now()))

    def rename_to(self, name: str) -> None:
        """Another name, for a chat that has no file yet, too. Raises UsageError where it is taken or no name."""
        target = chat_path(self._paths, name)
        if self._journal:
            move_chat_file(self._journal.path, target)
            self._journal.path = target
        elif target.exists():
            raise UsageError(f"There is a chat {name} already.", f"--continue {name} goes on with it.")
        self.log.name = name

    def rewind(self, turn: str = "") -> None:
        """The next turn goes on from ``turn``; empty: from the beginning. Nothing is deleted.

        Raises UsageError where there is no such turn, GpuboxError while one runs.
        """
        self._refuse_busy()
        require_turn(self.log, turn)
        self._record(HeadMoved(turn, utc_now()))

    def retry(self) -> str:
        """Goes back before the last turn and returns what was asked in it, to be sent again, changed or not.

        Raises UsageError where nothing was asked yet, GpuboxError while a turn runs.
        """
        path = self.log.path()
        if not path:
            raise UsageError("Nothing was asked yet.")
        self.rewind(path[-1].parent)
        return path[-1].header.text

    def branch(self, name: str, turn: str | None = None) -> None:
        """Makes a chat ``name`` of this one up to ``turn`` (without: as far as it is). This one stays as it is.

        Raises UsageError, GpuboxError where the new one cannot be written.
        """
        copy_turns(chat_path(self._paths, name), self.settings, turns_to(self.log, turn))

    async def send(self, text: str) -> AsyncGenerator[AgentEvent, None]:
        """Asks ``text`` and gives the events of the turn, which are in the chat's file as they come.

        The last event is TurnFinished or TurnFailed. Closed early (``contextlib.aclosing``) or cancelled, what was
        said stays. Raises GpuboxError where nobody can answer; then nothing was asked.
        """
        self._refuse_busy()
        self._idle.clear()
        try:
            endpoint = await self._serve()
            tools = await self._tools()
            self._open_file(text)
            async with aclosing(self._turn(text, endpoint, tools)) as events:
                async for event in events:
                    yield event
        finally:
            self._loop = None
            self._idle.set()

    async def _turn(self, text: str, endpoint: ServerEndpoint, tools: list[Tool]) -> AsyncGenerator[AgentEvent, None]:
        from gpubox.agent.loop import AgentLoop

        assert self._client is not None
        conversation = self._conversation
        if conversation is None or self._conversation_head != self.log.head:
            conversation = self._conversation = self.log.conversation()
        asked = TurnHeader(
            secrets.token_hex(4), self.log.head, utc_now(), text, endpoint.profile_name, endpoint.build, endpoint.model
        )
        self._record(asked)
        turn = self.log.turns[asked.turn]
        self._conversation_head = asked.turn
        added = conversation.add(Message("user", text))
        self._note(added)
        heard = len(conversation.messages)
        self._loop = AgentLoop(self._approve)
        reason = ""
        try:
            yield added
            settings = self.settings.settings(endpoint.system)
            async with aclosing(self._loop.run(conversation, settings, tools, self._client)) as events:
                async for event in events:
                    heard += isinstance(event, MessageAdded)
                    self._note(event)
                    if problem := self._news():  # ahead of the event: nothing follows the turn's end
                        yield problem
                    yield event
                    if isinstance(event, TurnStarted) and (hint := self._cannot_write(event)):
                        self._note(hint)
                        yield hint
        except Exception as error:
            reason = str(error) or type(error).__name__
            raise
        finally:
            if turn.ended is None:
                self._end(conversation, heard, reason)
            self._flush()
            if self._journal and not reason and not _cancelled():
                await run_in_thread(self._journal.sync)

    def stop(self) -> bool:
        """Ends the turn that runs: its iterator still gives the end, TurnFinished with ``stopped``.

        False where the model was not asked yet: then the iterator has to be closed.
        """
        if self._loop:
            self._loop.stop()
        return self._loop is not None

    async def close(self) -> None:
        """Ends the turn that runs and closes the file. May be called twice."""
        self.stop()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(CLOSE_TIMEOUT_SECONDS):
                await self._idle.wait()
        if self._timer:
            self._timer.cancel()
        if self._journal:
            self._journal.close()
        client, self._client = self._client, None
        if client:
            await client.close()
        if self._scratch:
            await run_in_thread(remove_scratch, self._scratch)
            self._scratch = None

    def _end(self, conversation: Conversation, heard: int, failure: str) -> None:
        """Writes down what nobody was there to hear: the turn's iterator was closed, or broke."""
        for message in conversation.messages[heard:]:
            self._note(MessageAdded(message))
        said = [m.content for m in conversation.messages[heard:] if m.role == "assistant"]
        last = said[-1] if said else ""
        self._note(TurnFailed(failure) if failure else TurnFinished(TurnTotals(), "stopped", last))

    async def _serve(self) -> ServerEndpoint:
        """Who answers; one client is kept as long as it is the same server."""
        endpoint = await self._find()
        before = self.endpoint
        if before and before.launch_id != endpoint.launch_id:
            self._conversation = None  # another server, or the same one started again: its cache is empty
        same = before and (before.base_url, before.key) == (endpoint.base_url, endpoint.key)
        if self._client and not same:
            await self._client.close()
            self._client = None
        self._client = self._client or endpoint.client()
        self.endpoint = endpoint
        return endpoint

    async def _tools(self) -> list[Tool]:
        """The tools of the next turn. Raises GpuboxError where the workspace cannot be used any more."""
        if not self.settings.tools:
            return []
        from gpubox.agent.code_execution import CodeExecution
        from gpubox.agent.filetools import file_tools
        from gpubox.sandbox.policy import Policy
        from gpubox.sandbox.runner import Sandbox

        self._sandbox = self._sandbox or Sandbox(self._config)
        if self.settings.workdir:
            self._workspace = self._workspace or self._open_workspace(self.settings.workdir)
            seen_first = self.settings.approvals != "workspace"  # else a program could write what no diff showed
            policy = Policy(workspace=self._workspace.root, read_only=seen_first)
            return [CodeExecution(self._sandbox, policy), *file_tools(self._workspace)]
        if self._scratch is None:
            self._scratch = await run_in_thread(create_scratch, self._paths)
        return [CodeExecution(self._sandbox, Policy(workspace=self._scratch))]

    def _open_workspace(self, folder: str) -> Workspace:
        own = (self._paths.config, self._paths.state, self._paths.cache)
        return Workspace(Path(folder), anywhere=self._any_workdir, own=own)

    async def _approve(self, call: ToolCall, diff: str) -> bool:
        if self.settings.approvals == "ask":
            return await self._ask_owner(call, diff)
        if self.settings.approvals == "workspace":
            from gpubox.sandbox.auto_run_files import auto_run_kinds

            path = call.arguments.get("path")
            started = isinstance(path, str) and any(auto_run_kinds(path))  # "allow" is about files, not about programs
            return await self._ask_owner(call, diff) if started else True
        return False

    def _open_file(self, text: str) -> None:
        if self._journal:
            return
        named = self.log.name
        while not self._journal:
            name = named or free_name(self._paths, text)
            try:
                self._journal = ChatJournal(chat_path(self._paths, name), new=True)
            except UsageError:
                if named:
                    raise
                continue  # another gpubox took it just now
            self.log.name = name
        for record in self._unsaved:
            self._journal.add(record)
        self._unsaved = []

    def _record(self, record: TurnHeader | SettingsChanged | HeadMoved) -> None:
        self.log.apply_record(record)
        if self._journal:
            self._journal.add(record)
        else:
            self._unsaved.append(record)

    def _note(self, event: AgentEvent) -> None:
        assert self._journal is not None
        self.log.apply_event(event)
        self._journal.event(event)
        if self._journal.waiting and self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(FLUSH_SECONDS, self._flush)

    def _flush(self) -> None:
        if self._timer:
            self._timer.cancel()
        self._timer = None
        if self._journal:
            self._journal.flush()

    def _news(self) -> Notice | None:
        """Once for each new problem of the file."""
        problem, told, self._told = self.problem, self._told, self.problem
        return Notice("journal", problem) if problem and problem != told else None

    def _cannot_write(self, started: TurnStarted) -> Notice | None:
        """File tools are native calls: a model without those changes files only by its programs."""
        if started.protocol != "fenced" or not self.settings.workdir or self.settings.approvals == "workspace":
            return None
        return Notice("read_only", "Only programs are run for this model: it can read the workspace, not change it.")

    def _refuse_busy(self) -> None:
        if self.busy:
            raise GpuboxError("This chat is being answered.", "Stop the answer first, or wait for it.")


def _with_workdir(settings: ChatSettings, folder: str) -> ChatSettings:
    import msgspec

    return msgspec.structs.replace(settings, workdir=folder)


def _cancelled() -> bool:
    task = asyncio.current_task()
    return bool(task and task.cancelling())
