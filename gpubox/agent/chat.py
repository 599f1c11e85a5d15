"""One open chat: its file, the server that answers, the tools, the owner's approvals. Both front ends use it.

Each turn finds the server anew: after a switch of the profile another server answers, and the chat stays the same.
"""

from __future__ import annotations

import asyncio
import contextlib
import secrets
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from gpubox.agent.chat_files import (
    branch_chat,
    chat_path,
    existing_chat,
    free_name,
    load_chat,
    move_chat_file,
    require_turn,
)
from gpubox.agent.chat_log import AnyChatRecord, ChatLog, ChatSettings, HeadMoved, SettingsChanged, TurnHeader
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
from gpubox.agent.journal import ChatJournal
from gpubox.agent.tools import Approve, Tool, ToolCall, deny_all
from gpubox.agent.workspace import Workspace, create_scratch, remove_scratch
from gpubox.clock import utc_now
from gpubox.concurrency import run_in_thread
from gpubox.config import Config
from gpubox.errors import GpuboxError, UsageError
from gpubox.paths import Paths

if TYPE_CHECKING:
    from gpubox.agent.loop import AgentLoop
    from gpubox.sandbox.runner import Sandbox
    from gpubox.server.client import LlamaClient

FLUSH_SECONDS = 0.5
"""Deltas reach the file at most so much later."""
CLOSE_TIMEOUT_SECONDS = 10.0
"""How long a stopped turn may take to end, its tools included."""
FindEndpoint = Callable[[], Awaitable[ServerEndpoint]]


class Chat:
    """One chat. It runs one turn at a time; ``close`` it at the end."""

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
        """Opens the chat ``name``; empty: a new chat, which gets its name from the first question.

        ``find`` returns the server that answers; by default it is the box's active server. ``approve`` asks the owner
        about a diff. Raises GpuboxError if the chat cannot be opened or another gpubox has it open.
        """
        self._paths, self._config, self._any_workdir = paths, config, any_workdir
        self._find: FindEndpoint = find or (lambda: find_endpoint(paths, config))
        self._ask_owner, self._sandbox = approve, sandbox
        self.endpoint: ServerEndpoint | None = None
        """The server of the running or the last turn."""
        self._client: LlamaClient | None = None
        self._loop: AgentLoop | None = None
        self._idle = asyncio.Event()
        self._idle.set()
        self._flush_timer: asyncio.TimerHandle | None = None
        self._scratch: Path | None = None
        self._workspace: Workspace | None = None
        self._journal: ChatJournal | None = None
        self._conversation: Conversation | None = None
        """The prompt of the last turn. It knows how much of it the server has cached."""
        self._conversation_head = ""
        """The turn that ``_conversation`` ends with."""
        self._reported_problem = ""
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
        """Empty for a new chat before its first question."""
        return self.log.name

    @property
    def settings(self) -> ChatSettings:
        """The settings of this chat."""
        return self.log.settings

    @property
    def busy(self) -> bool:
        """Whether a turn is running."""
        return not self._idle.is_set()

    @property
    def problem(self) -> str:
        """Why the chat is not saved at the moment; empty: it is."""
        return self._journal.problem if self._journal else ""

    def change_settings(self, settings: ChatSettings) -> None:
        """Holds from the next turn on. Raises UsageError if the folder cannot be a workspace."""
        if settings.workdir != self.settings.workdir:
            self._workspace = self._open_workspace(settings.workdir) if settings.workdir else None
            if self._workspace:
                settings = msgspec.structs.replace(settings, workdir=str(self._workspace.root))
        if settings != self.settings:
            self._record(SettingsChanged(settings, utc_now()))

    def rename_to(self, name: str) -> None:
        """Renames the chat, also before it has a file. Raises UsageError if the name is taken or not valid."""
        target = chat_path(self._paths, name)
        if self._journal:
            move_chat_file(self._journal.path, target)
            self._journal.path = target
        elif target.exists():
            raise UsageError(f"There is a chat {name} already.", f"--continue {name} continues it.")
        self.log.name = name

    def rewind(self, turn_id: str = "") -> None:
        """The next turn follows ``turn_id``; empty: it starts the chat anew. Nothing is deleted.

        Raises UsageError if there is no such turn, GpuboxError while a turn is running.
        """
        self._require_idle()
        require_turn(self.log, turn_id)
        self._record(HeadMoved(turn_id, utc_now()))

    def branch(self, name: str, turn_id: str | None = None) -> None:
        """Copies the chat up to ``turn_id`` (without it: up to the head) to a new chat ``name``.

        Raises UsageError, GpuboxError if the new chat cannot be written.
        """
        branch_chat(self._paths, self.log, name, turn_id)

    async def send(self, text: str) -> AsyncGenerator[AgentEvent, None]:
        """Asks ``text`` and yields the events of the turn, each after it is in the chat's file.

        The last event is TurnFinished or TurnFailed. If the generator is closed early (``contextlib.aclosing``) or
        cancelled, the chat keeps what was received. Raises GpuboxError if no server answers; then nothing is recorded.
        """
        self._require_idle()
        self._idle.clear()
        try:
            endpoint = await self._connect()
            tools = await self._open_tools()
            self._create_file(text)
            async with aclosing(self._run_turn(text, endpoint, tools)) as events:
                async for event in events:
                    yield event
        finally:
            self._loop = None
            self._idle.set()

    async def _run_turn(
        self, text: str, endpoint: ServerEndpoint, tools: list[Tool]
    ) -> AsyncGenerator[AgentEvent, None]:
        from gpubox.agent.loop import AgentLoop

        assert self._client is not None
        conversation = self._conversation
        if conversation is None or self._conversation_head != self.log.head:
            conversation = self._conversation = self.log.conversation()
        turn_id = self._conversation_head = secrets.token_hex(4)
        header = TurnHeader(
            turn_id, self.log.head, utc_now(), text, endpoint.profile_name, endpoint.build, endpoint.model
        )
        self._record(header)
        question = conversation.add(Message("user", text))
        self._log_event(question)
        logged_messages = len(conversation.messages)
        self._loop = AgentLoop(self._approve)
        failure = ""
        try:
            yield question
            settings = self.settings.agent_settings(endpoint.system_prompt)
            async with aclosing(self._loop.run(conversation, settings, tools, self._client)) as events:
                async for event in events:
                    logged_messages += isinstance(event, MessageAdded)
                    self._log_event(event)
                    if notice := self._new_problem():  # before the event, which may be the last of the turn
                        yield notice
                    yield event
                    if isinstance(event, TurnStarted) and (notice := self._read_only_notice(event)):
                        self._log_event(notice)
                        yield notice
        except Exception as error:
            failure = str(error) or type(error).__name__
            raise
        finally:
            if self.log.turns[turn_id].ended is None:
                self._log_interrupted(conversation.messages[logged_messages:], failure)
            self._flush()
            task = asyncio.current_task()
            if self._journal and not failure and not (task and task.cancelling()):
                await run_in_thread(self._journal.sync)

    def stop(self) -> bool:
        """Stops the running turn. Its generator still yields the end, TurnFinished with ``stopped``.

        Returns False if the model was not asked yet: then close the generator.
        """
        if self._loop:
            self._loop.stop()
        return self._loop is not None

    async def close(self) -> None:
        """Stops the running turn and closes the file. May be called twice."""
        self.stop()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(CLOSE_TIMEOUT_SECONDS):
                await self._idle.wait()
        if self._flush_timer:
            self._flush_timer.cancel()
        if self._journal:
            self._journal.close()
        client, self._client = self._client, None
        if client:
            await client.close()
        if self._scratch:
            await run_in_thread(remove_scratch, self._scratch)
            self._scratch = None

    async def _connect(self) -> ServerEndpoint:
        """Finds the server. The client is kept as long as the server's address is the same."""
        endpoint, previous = await self._find(), self.endpoint
        if previous and previous.launch_id != endpoint.launch_id:
            self._conversation = None  # a new server process: its cache is empty
        if self._client and (not previous or (previous.base_url, previous.key) != (endpoint.base_url, endpoint.key)):
            await self._client.close()
            self._client = None
        self._client = self._client or endpoint.client()
        self.endpoint = endpoint
        return endpoint

    async def _open_tools(self) -> list[Tool]:
        """The tools of the next turn. Raises GpuboxError if the workspace is no longer usable."""
        if not self.settings.tools:
            return []
        from gpubox.agent.file_tools import file_tools
        from gpubox.agent.tool_runner import CodeExecution
        from gpubox.sandbox.policy import Policy
        from gpubox.sandbox.runner import Sandbox

        self._sandbox = self._sandbox or Sandbox(self._config)
        if self.settings.workdir:
            self._workspace = self._workspace or self._open_workspace(self.settings.workdir)
            policy = Policy(workspace=self._workspace.root)
            return [CodeExecution(self._sandbox, policy), *file_tools(self._workspace)]
        if self._scratch is None:
            self._scratch = await run_in_thread(create_scratch, self._paths)
        return [CodeExecution(self._sandbox, Policy(workspace=self._scratch))]

    def _open_workspace(self, folder: str) -> Workspace:
        own_folders = (self._paths.config, self._paths.state, self._paths.cache)
        return Workspace(Path(folder), any_folder=self._any_workdir, own_folders=own_folders)

    async def _approve(self, call: ToolCall, diff: str) -> bool:
        if self.settings.approvals == "never":
            return False
        if self.settings.approvals == "workspace":
            from gpubox.sandbox.auto_run_files import auto_run_kinds

            path = call.arguments.get("path")
            if not (isinstance(path, str) and auto_run_kinds(path)):
                return True  # only files that programs of the owner run by themselves need a question
        return await self._ask_owner(call, diff)

    def _create_file(self, text: str) -> None:
        """Gives a new chat its name and its file."""
        while not self._journal:
            name = self.log.name or free_name(self._paths, text)
            try:
                self._journal = ChatJournal(chat_path(self._paths, name), new=True)
            except UsageError:
                if self.log.name:
                    raise
                continue  # another gpubox has just taken the name
            self.log.name = name
            if self.settings != ChatSettings():
                self._journal.add(SettingsChanged(self.settings, utc_now()))

    def _record(self, record: AnyChatRecord) -> None:
        self.log.apply_record(record)
        if self._journal:
            self._journal.add(record)

    def _log_event(self, event: AgentEvent) -> None:
        assert self._journal is not None
        self.log.apply_event(event)
        self._journal.add_event(event)
        if self._journal.has_pending and self._flush_timer is None:
            self._flush_timer = asyncio.get_running_loop().call_later(FLUSH_SECONDS, self._flush)

    def _log_interrupted(self, messages: list[Message], failure: str) -> None:
        """Journals the events that the consumer did not receive because it closed the generator or the turn broke."""
        for message in messages:
            self._log_event(MessageAdded(message))
        answers = [message.content for message in messages if message.role == "assistant"]
        answer = answers[-1] if answers else ""
        self._log_event(TurnFailed(failure) if failure else TurnFinished(TurnTotals(), "stopped", answer))

    def _flush(self) -> None:
        if self._flush_timer:
            self._flush_timer.cancel()
        self._flush_timer = None
        if self._journal:
            self._journal.flush()

    def _new_problem(self) -> Notice | None:
        """A Notice for each new problem of the file."""
        if self.problem == self._reported_problem:
            return None
        self._reported_problem = self.problem
        return Notice("journal", self.problem) if self.problem else None

    def _read_only_notice(self, started: TurnStarted) -> Notice | None:
        """The file tools need native calls: without them only programs could write, and those may not."""
        if started.protocol != "fenced" or not self.settings.workdir or self.settings.approvals == "workspace":
            return None
        return Notice("read_only", "This model can only run programs: it can read the workspace but not change it.")

    def _require_idle(self) -> None:
        if self.busy:
            raise GpuboxError("The model is still answering in this chat.", "Wait for the answer, or stop it.")
