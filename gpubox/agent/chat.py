"""One open chat: its file, the server that answers, its workspace, what the owner decides. Both front ends use it.

Each turn finds the server anew: after a switch of the profile another server answers, and the chat stays the same.
"""

from __future__ import annotations

import asyncio
import contextlib
import secrets
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Collection, Iterator, Sequence
from contextlib import aclosing, asynccontextmanager, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from gpubox.agent.chat_file import ChatFile
from gpubox.agent.chat_files import branch_chat, require_turn
from gpubox.agent.chat_log import (
    ChatLog,
    ChatSettings,
    FilesTaken,
    HeadMoved,
    OwnerNote,
    SettingsChanged,
    TurnHeader,
)
from gpubox.agent.chat_work import ChatWork
from gpubox.agent.conversation import Conversation
from gpubox.agent.endpoint import ServerEndpoint, find_endpoint
from gpubox.agent.events import (
    AgentEvent,
    ChangedFile,
    Message,
    MessageAdded,
    Notice,
    TestFinished,
    TurnFailed,
    TurnFinished,
    TurnStarted,
)
from gpubox.agent.hosting import (
    REDONE,
    REWOUND,
    UNDONE,
    HostAgent,
    HostedAgent,
    Hosting,
    hosted_turn,
)
from gpubox.agent.tools import AskOwner, nobody
from gpubox.agent.workspace import printable_path
from gpubox.clock import utc_now
from gpubox.concurrency import run_in_thread
from gpubox.config import Config
from gpubox.errors import GpuboxError, UsageError
from gpubox.paths import Paths

if TYPE_CHECKING:
    from gpubox.agent.compaction import AfterTurn
    from gpubox.agent.loop import AgentLoop
    from gpubox.agent.work import Work
    from gpubox.sandbox.changes import Change, Choice
    from gpubox.sandbox.layers import View
    from gpubox.sandbox.runner import Sandbox
    from gpubox.sandbox.steps import StepResult, TakeResult
    from gpubox.server.client import LlamaClient

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
        ask: AskOwner = nobody,
        sandbox: Sandbox | None = None,
        any_workdir: bool = False,
        host: HostAgent | None = None,
    ) -> None:
        """Opens the chat ``name``; empty: a new chat, which gets its name from the first question.

        ``find`` returns the server that answers; by default it is the box's active server. ``ask`` asks the owner.
        ``host`` makes the agent that the settings name. Raises GpuboxError if the chat cannot be opened or another
        gpubox has it open.
        """
        self._paths = paths
        self._find: FindEndpoint = find or (lambda: find_endpoint(paths, config))
        self._ask_owner = ask
        self.endpoint: ServerEndpoint | None = None
        """The server of the running or the last turn."""
        self._client: LlamaClient | None = None
        self._loop: AgentLoop | HostedAgent | None = None
        """What answers now."""
        self._hosting = Hosting(host, ask)
        self._idle = asyncio.Event()
        self._idle.set()
        self._files = ChatWork(paths, config, sandbox, any_folder=any_workdir)
        self._new_server = False
        self._after: AfterTurn | None = None
        self._conversation: Conversation | None = None
        """The prompt of the last turn. It knows how much of it the server has cached."""
        self._conversation_head = ""
        """The turn that ``_conversation`` ends with."""
        self.queued: list[str] = []
        """What the owner typed while the model works."""
        self.take_at_end = True
        """False: the front end takes what a turn changed, where the settings say ``turn``."""
        self._file = ChatFile(paths, name)
        self._record, self._log_event = self._file.record, self._file.log_event

    @property
    def log(self) -> ChatLog:
        """What is in the chat's file."""
        return self._file.log

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
        return self._file.problem

    def change_settings(self, settings: ChatSettings) -> None:
        """Holds from the next turn on. Raises UsageError if the folder cannot be a workspace."""
        if settings.workdir != self.settings.workdir:
            self._require_idle()
            settings = msgspec.structs.replace(settings, workdir=self._files.change(settings.workdir))
        if settings != self.settings:
            self._record(SettingsChanged(settings, utc_now()))

    def rename_to(self, name: str) -> None:
        """Renames the chat, also before it has a file. Raises UsageError if the name is taken or not valid."""
        if self._files.opened:
            self._require_idle()
            self._files.close_layers()
        self._file.rename_to(name)

    def rewind(self, turn_id: str = "") -> None:
        """The next turn follows ``turn_id``; empty: it starts the chat anew. Nothing is deleted.

        Raises UsageError if there is no such turn, GpuboxError while a turn is running.
        """
        self._require_idle()
        require_turn(self.log, turn_id)
        self._record(HeadMoved(turn_id, utc_now()))
        self._tell_agent(REWOUND)

    def branch(self, name: str, turn_id: str | None = None) -> str:
        """Copies the chat up to ``turn_id`` (without it: up to the head) to a new chat ``name``.

        Returns a sentence on what it lacks, as ``branch_chat``. Raises GpuboxError.
        """
        return branch_chat(self._paths, self.log, name, turn_id)

    async def send(
        self, text: str, images: Sequence[Path] = (), *, attached: str = ""
    ) -> AsyncGenerator[AgentEvent, None]:
        """Asks ``text`` and yields the events of the turn, each after it is in the chat's file.

        ``attached``: what only the model reads, such as the files that ``text`` names.

        The last event is TurnFinished or TurnFailed. If the generator is closed early (``contextlib.aclosing``) or
        cancelled, the chat keeps what was received. Raises GpuboxError if no server answers; then nothing is recorded.
        """
        with self._alone():
            hosted = await self._hosting.agent(self.settings)
            self.endpoint = endpoint = await (hosted.connect() if hosted else self._connect())
            has_work = self.settings.tools or hosted is not None
            if has_work and self.settings.workdir:
                self._files.known(self.settings.workdir)
            await self._rest()
            self._file.create(text)
            question = Message("user", text, images=await run_in_thread(self._file.store_images, images))
            work = await self._work() if has_work else None
            async with aclosing(self._run_turn(question, attached, endpoint, work, hosted)) as events:
                async for event in events:
                    yield event

    async def _run_turn(
        self,
        question: Message,
        attached: str,
        endpoint: ServerEndpoint,
        work: Work | None,
        hosted: HostedAgent | None,
    ) -> AsyncGenerator[AgentEvent, None]:
        conversation, reread = self._conversation, 0
        if conversation is None or self._conversation_head != self.log.head:
            reread = conversation.server_cache_tokens if conversation and self._new_server else 0
            conversation = self._conversation = self.log.conversation()
        conversation.images_folder = self._file.images
        who = endpoint.profile_name or "The new server"
        told = f"{who} reads the whole conversation anew: ~{reread:,} tokens."
        notices = [Notice("reread", told)] if reread else []
        text = "\n\n".join([*self.log.notes, question.content + attached])
        first = [msgspec.structs.replace(question, content=text)]
        if work:
            rules = hosted is None  # another agent reads them itself
            await work.introduce(conversation, first, notices, plan=self.settings.apply == "plan", rules=rules)
        turn_id = secrets.token_hex(4)
        if work:
            await run_in_thread(work.begin_turn, turn_id, plan=self.settings.apply == "plan")
        self._conversation_head = turn_id
        answers: AsyncGenerator[AgentEvent, None] | None = None
        if hosted and work:
            self._loop, answers = hosted, hosted.run(hosted_turn(turn_id, first[-1], work, self._file))
        header = TurnHeader(
            turn_id, self.log.head, utc_now(), question.content, endpoint.profile_name, endpoint.build, endpoint.model,
            self.settings.agent if hosted else "",
        )  # fmt: skip
        self._record(header)
        messages = [conversation.add(message) for message in first]
        for message in messages:
            self._log_event(message)
        logged_messages = len(conversation.messages)
        settings, tools, after = self.settings.agent_settings(endpoint.system_prompt), work.tools if work else [], None
        if answers is None:
            from gpubox.agent.loop import AgentLoop

            assert self._client is not None
            self._loop, after = AgentLoop(self._ask_owner), self._after_turn()
            self._loop.queued = self.queued
            answers = self._loop.run(conversation, settings, tools, self._client)
        failure = ""
        try:
            for message in messages:
                yield message
            async with aclosing(answers) as events:
                async for event in events:
                    if hosted:
                        conversation.apply(event)
                    logged_messages += isinstance(event, MessageAdded)
                    if after:
                        after.observe(event)
                    if isinstance(event, TurnFinished | TurnFailed):
                        apply = self.settings.apply if self.take_at_end else "ask"
                        endings = [work.ending(apply, self._record)] if work else []
                        if isinstance(event, TurnFinished) and after and self._client:
                            endings.append(after.ending(conversation, settings, tools, self._client))
                        for ending in endings:
                            async with aclosing(ending):
                                async for last in ending:
                                    logged_messages = len(conversation.messages)
                                    self._log_event(last)
                                    yield last
                    self._log_event(event)
                    if problem := self._file.new_problem():  # before the event, which may be the last of the turn
                        yield problem
                    yield event
                    for notice in notices if isinstance(event, TurnStarted) else ():
                        self._log_event(notice)
                        yield notice
        except Exception as error:
            failure = str(error) or type(error).__name__
            raise
        finally:
            if self.log.turns[turn_id].ended is None:
                files: tuple[ChangedFile, ...] = ()
                with contextlib.suppress(GpuboxError):
                    files = await run_in_thread(work.end_turn) if work else ()
                self._file.log_interrupted(conversation.messages[logged_messages:], files, failure)
            self._file.flush()
            task = asyncio.current_task()
            if not failure and not (task and task.cancelling()):
                await run_in_thread(self._file.sync)

    def stop(self) -> bool:
        """Stops the running turn. Its generator still yields the end, TurnFinished with ``stopped``.

        Returns False if the model was not asked yet: then close the generator.
        """
        summing_up = self._after is not None and self._after.summing_up.stop()
        testing = self._files.opened is not None and self._files.opened.testing.stop()
        if self._loop and not (summing_up or testing):
            self._loop.stop()
        return self._loop is not None

    def view(self) -> View | None:
        """The workspace as the model sees it; ``None``: its layers are not open yet."""
        return self._files.opened.steps.view() if self._files.opened else None

    async def changes(self) -> list[Change]:
        """What the turns changed and the owner has not decided on, against the workspace as it is now, by path."""
        async with self._deciding() as work:
            return await run_in_thread(work.steps.changes)

    async def take(self, choice: Choice | None = None, *, allow: Collection[str] = ()) -> TakeResult:
        """Writes changes into the workspace; ``None``: all but conflicts and what runs by itself.

        ``allow``: the paths that run by themselves and that the owner allowed by name. Raises GpuboxError, also while
        a turn is running, as each method below does.
        """
        async with self._deciding() as work:
            return await work.take(choice, allow, self._record)

    async def drop(self, choice: Choice | None = None, why: str = "") -> None:
        """Puts changes back; ``None``: all. The model reads ``why`` before the next question."""
        async with self._deciding() as work:
            changes = await run_in_thread(work.steps.changes)
            paths = [change.path for change in changes if choice is None or change.path in choice]
            await run_in_thread(work.steps.drop, choice)
            names = ", ".join(map(printable_path, paths[:10])) + (" and others" if len(paths) > 10 else "")
            self._record(
                OwnerNote(f"(The owner dropped your change of {names}{f': {why}' if why else '.'})", utc_now())
            )

    async def undo(self, turn_id: str = "", *, keep: Collection[str] = ()) -> StepResult:
        """Takes the last turn back (or all to before ``turn_id``), its files and its place in the conversation.

        ``keep``: files that stay as they are. Raises GpuboxError where the owner changed another one since.
        """
        require_turn(self.log, turn_id)
        path = [turn.id for turn in self.log.path()]
        target = turn_id or self.log.head
        if target not in path:
            raise UsageError("There is no turn to undo.")
        result = await self._step("undo", set(path[path.index(target) :]), keep)
        self._record(HeadMoved(self.log.turns[target].parent_id, utc_now(), "undo"))
        self._tell_agent(UNDONE)
        return result

    async def redo(self, *, keep: Collection[str] = ()) -> StepResult:
        """Brings back what ``undo`` took."""
        if not self.log.undone:
            raise UsageError("There is no turn to redo.")
        target = self.log.undone[-1]
        known = {turn.id for turn in self.log.path()}
        result = await self._step("redo", {turn.id for turn in self.log.path(target)} - known, keep)
        self._record(HeadMoved(target, utc_now(), "redo"))
        self._tell_agent(REDONE)
        return result

    async def run_test(self) -> TestFinished:
        """Runs the project's test command over the changes. Raises GpuboxError if the owner has confirmed none."""
        async with self._deciding() as work:
            if not work.tests.command:
                raise UsageError("No test command is confirmed for this project.", "/test COMMAND confirms one.")
            return TestFinished(work.tests.command, await work.run_test())

    async def test_command(self) -> tuple[str, str]:
        """``(confirmed, proposed)``: the test command, and what the project's files point to; empty: none."""
        tests = self._files.tests(self.settings.workdir)
        return tests.command, await run_in_thread(tests.find)

    async def confirm_test(self, command: str) -> None:
        """The owner says which command tests the project; empty: none."""
        await run_in_thread(self._files.tests(self.settings.workdir).confirm, command)

    async def commit_message(self) -> str:
        """A message for a commit of what was taken, proposed by the model. Raises GpuboxError."""
        async with self._deciding() as work:
            if not self.log.taken:
                raise UsageError("Nothing was taken since the last commit.")
            from gpubox.agent.git import propose_message

            endpoint = await self._connect()
            assert self._client is not None
            settings = self.settings.agent_settings(endpoint.system_prompt)
            await self._rest()
            return await propose_message(self.log.conversation(), self.log.taken, settings, work.tools, self._client)

    async def commit(self, message: str) -> str:
        """Commits the taken paths with the owner's git and returns what it printed. The owner has said yes before."""
        async with self._deciding() as work:
            if not self.log.taken:
                raise UsageError("Nothing was taken since the last commit.")
            from gpubox.agent.git import commit_paths

            said = await run_in_thread(commit_paths, work.workspace.root, list(self.log.taken), message)
            self._record(FilesTaken({}, utc_now()))
            return said

    @asynccontextmanager
    async def _deciding(self) -> AsyncIterator[Work]:
        """The work of this chat; meanwhile no turn begins. Raises GpuboxError."""
        with self._alone():
            self._files.known(self.settings.workdir)
            if not self._file.path:
                raise UsageError("This chat has no turn yet.")
            yield await self._work()

    @contextmanager
    def _alone(self) -> Iterator[None]:
        """One thing at a time is done with a chat. Raises GpuboxError."""
        self._require_idle()
        self._idle.clear()
        try:
            yield
        finally:
            self._loop = None
            self._idle.set()

    async def _step(self, what: str, turn_ids: set[str], keep: Collection[str]) -> StepResult:
        with self._alone():
            work = await self._work()
            return await run_in_thread(work.undo if what == "undo" else work.redo, turn_ids, keep)

    async def compaction_cost(self) -> str:
        """What ``compact`` would cost and free now, a sentence."""
        return self._after_turn().cost(self._conversation or self.log.conversation())

    async def compact(self) -> str:
        """The model sums the conversation up; returns what that freed, a sentence. Raises GpuboxError."""
        if self.settings.agent:
            raise UsageError(f"{self.settings.agent} keeps its conversation itself.", "It may have a command for that.")
        with self._alone():
            await self._rest()
            endpoint = await self._connect()
            assert self._client is not None
            if self._conversation is None or self._conversation_head != self.log.head:
                self._conversation, self._conversation_head = self.log.conversation(), self.log.head
            tools = (await self._work()).tools if self.settings.tools and self._file.path else []
            settings = self.settings.agent_settings(endpoint.system_prompt)
            events = await self._after_turn().compact(self._conversation, settings, tools, self._client)
            for event in events:
                self._log_event(event)
            return next((event.text for event in events if isinstance(event, Notice)), "")

    def queue(self, text: str) -> None:
        """Keeps what was typed while the model works: the next round sends it, else ``next_queued`` returns it."""
        self.queued.append(text)

    def next_queued(self) -> str:
        """The first queued text, which is then no longer queued; empty: none."""
        return self.queued.pop(0) if self.queued else ""

    async def close(self) -> None:
        """Stops the running turn and closes the file. May be called twice."""
        self.stop()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(CLOSE_TIMEOUT_SECONDS):
                await self._idle.wait()
        await self._rest()
        self._file.close()
        client, self._client = self._client, None
        if client:
            await client.close()
        await self._hosting.close()
        await self._files.close()

    def _after_turn(self) -> AfterTurn:
        from gpubox.agent.compaction import AfterTurn

        self._after = self._after or AfterTurn()
        return self._after

    async def _rest(self) -> None:
        if self._after:
            await self._after.rest()

    async def _connect(self) -> ServerEndpoint:
        """Finds the server. The client is kept as long as the server's address is the same."""
        endpoint, previous = await self._find(), self.endpoint
        self._new_server = bool(previous and previous.launch_id != endpoint.launch_id)
        if self._new_server:
            self._conversation_head = "-"  # its cache is empty
        if self._client and (not previous or (previous.base_url, previous.key) != (endpoint.base_url, endpoint.key)):
            await self._client.close()
            self._client = None
        self._client = self._client or endpoint.client()
        self.endpoint = endpoint
        return endpoint

    async def _work(self) -> Work:
        assert self._file.path
        return await self._files.open(self._file.path, self.settings.workdir)

    def _tell_agent(self, note: str) -> None:
        """An agent with a memory of its own reads ``note`` before the next question."""
        if self.settings.agent:
            self._record(OwnerNote(note, utc_now()))

    def _require_idle(self) -> None:
        if self.busy:
            raise GpuboxError("The model is still answering in this chat.", "Wait for the answer, or stop it.")
