"""The files of one chat: its workspace with the layers over it, the tools that use them, and what the owner decides.

A chat without a workspace has a scratch folder as one: what a turn made there is taken at its end, and is no change.
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncGenerator, Callable, Collection
from pathlib import Path

import msgspec

from gpubox.agent.chat_files import existing_chat, layers_folder, scratch_folder
from gpubox.agent.chat_log import AnyChatRecord, Apply, FilesTaken
from gpubox.agent.conversation import Conversation
from gpubox.agent.events import AgentEvent, ChangedFile, FilesChanged, Message, Notice, TestFinished
from gpubox.agent.file_tools import file_tools
from gpubox.agent.mcp import McpServers
from gpubox.agent.projects import ProjectTests, project_rules
from gpubox.agent.run_tools import Programs, RunTool, SearchTool, TestTool
from gpubox.agent.tools import Tool, ToolOutput
from gpubox.agent.turn_tools import turn_tools
from gpubox.agent.workspace import Workspace
from gpubox.clock import utc_now
from gpubox.concurrency import Stoppable, Stopped, run_in_thread
from gpubox.errors import GpuboxError
from gpubox.paths import Paths
from gpubox.sandbox.changes import Choice, unified
from gpubox.sandbox.runner import Sandbox
from gpubox.sandbox.spawn import layer_owner
from gpubox.sandbox.step_book import StepBook, read_record
from gpubox.sandbox.steps import StepResult, Steps, TakeResult
from gpubox.sanitize import show_name
from gpubox.storage import private_folder

CHARACTERS_PER_TOKEN = 4
"""Of an AGENTS.md, about."""
MAX_TAKEN_DIFF = 4000
"""Characters of one file's diff that are kept for the message of a commit."""
Record = Callable[[AnyChatRecord], None]


class Work:
    """Blocking, but for the coroutines. ``close`` it."""

    def __init__(
        self,
        paths: Paths,
        workspace: Workspace,
        folder: Path,
        sandbox: Sandbox,
        servers: McpServers | None,
        *,
        scratch: bool,
    ) -> None:
        """``folder``: where the layers are. Raises GpuboxError."""
        self.workspace, self.scratch = workspace, scratch
        self.steps = workspace.steps = Steps(workspace.root, folder, layer_owner())
        self.tests = ProjectTests(paths, workspace)
        programs = Programs(sandbox, workspace)
        self._run, self._test = RunTool(programs, servers), TestTool(programs, self.tests)
        self.tools: list[Tool] = [self._run]
        if not scratch:
            listing, read, edit, write = file_tools(workspace)
            search = SearchTool(programs, workspace)
            self.tools = [listing, read, search, edit, write, self._run, self._test, *turn_tools()]
        self._turn = contextlib.ExitStack()
        self.testing = Stoppable()
        """The tests at the end of a turn."""

    async def introduce(
        self, conversation: Conversation, first: list[Message], notices: list[Notice], *, plan: bool, rules: bool = True
    ) -> None:
        """Completes the messages ``first`` of a turn: once by the ``rules`` of the project; ``plan``: by that."""
        if self.scratch:
            return
        if plan:
            text = f"(Plan mode: nothing that you write is kept. Say what you would change.)\n\n{first[-1].content}"
            first[-1] = msgspec.structs.replace(first[-1], content=text)
        if rules and not any(message.fixed for message in conversation.messages):
            name, text = await run_in_thread(project_rules, self.workspace)
            if text:
                first.insert(0, Message("user", f"{name} of this project:\n\n{text}", fixed=True))
                notices.append(Notice("rules", f"{name}: ~{len(text) // CHARACTERS_PER_TOKEN:,} tokens."))

    async def ending(self, apply: Apply, record: Record) -> AsyncGenerator[AgentEvent, None]:
        """Ends a turn that ran to its end: what it changed, what was taken of it, and how the tests ended."""
        try:
            files = await run_in_thread(self.end_turn)
            if not files:
                return
            yield FilesChanged(files)
            result = await self.take(None, (), record) if apply == "turn" else None
            for change in result.left if result else ():
                why = change.conflict or f"it is {change.runs_by_itself}."
                yield Notice("left", f"{show_name(change.path)} waits for you: {why}")
        except GpuboxError as error:
            yield Notice("left", f"The changes were not taken: {error.message}")
        if self.tests.command:
            try:
                yield TestFinished(self.tests.command, await self.testing.run(self.run_test()))
            except Stopped:
                yield Notice("stopped", "The tests were stopped.")
            except GpuboxError as error:
                yield Notice("refused", f"The tests were not run: {error.message}")

    async def take(self, choice: Choice | None, allow: Collection[str], record: Record) -> TakeResult:
        """Takes changes, and records their diffs. Raises GpuboxError."""
        changes = await run_in_thread(self.steps.changes)
        result = await run_in_thread(self.steps.take, choice, allow=allow)
        diffs = {change.path: unified(change)[:MAX_TAKEN_DIFF] for change in changes if change.path in result.taken}
        if diffs:
            record(FilesTaken(diffs, utc_now()))
        return result

    def close(self) -> None:
        """Another gpubox may open the layers now."""
        self.steps.close()

    def begin_turn(self, turn_id: str, *, plan: bool) -> None:
        """From here on the model writes into a layer of this turn; ``plan``: into one that is thrown away."""
        self.workspace.changed.clear()
        if plan and not self.scratch:
            self._turn.enter_context(self.workspace.throwing_away())
        else:
            self.steps.begin_turn(turn_id)

    def end_turn(self) -> tuple[ChangedFile, ...]:
        """What the turn changed. May be called twice."""
        self._turn.close()
        self.steps.end_turn()
        if not self.workspace.changed:
            return ()
        changes, names = self.steps.changes(), self.workspace.changed
        if self.scratch:
            self.steps.take(allow=[change.path for change in changes if change.runs_by_itself])
            return ()
        inner = tuple(sorted(names))
        return tuple(
            ChangedFile(change.path, change.kind, change.added, change.removed)
            for change in changes
            if change.path in names or any(name.startswith(f"{change.path}/") for name in inner)
        )

    async def run_test(self) -> ToolOutput:
        """The project's tests by the confirmed command. What they write is thrown away. Raises GpuboxError."""
        thrown_away = contextlib.ExitStack()
        await run_in_thread(thrown_away.enter_context, self.workspace.throwing_away())
        try:
            return await self._test.run_command(self.tests.command)
        finally:
            await run_in_thread(thrown_away.close)

    def undo(self, turn_ids: Collection[str], keep: Collection[str]) -> StepResult:
        """Undoes those of the turns that have layers, the last first. Raises GpuboxError."""
        results = []
        while self.steps.can_undo in turn_ids:
            results.append(self.steps.undo(keep=keep))
        return _joined(results)

    def redo(self, turn_ids: Collection[str], keep: Collection[str]) -> StepResult:
        """Redoes them. Raises GpuboxError."""
        results = []
        while self.steps.can_redo in turn_ids:
            results.append(self.steps.redo(keep=keep))
        return _joined(results)


def _joined(results: list[StepResult]) -> StepResult:
    return StepResult(
        tuple(turn for result in results for turn in result.turns),
        tuple(path for result in results for path in result.files),
        tuple(path for result in results for path in result.kept),
    )


def open_work(
    paths: Paths, chat: Path, workspace: Workspace | None, sandbox: Sandbox, servers: McpServers | None = None
) -> Work:
    """The files of the chat with the file ``chat``; without a workspace it has a scratch folder. Raises GpuboxError."""
    if workspace:
        return Work(paths, workspace, layers_folder(chat), sandbox, servers, scratch=False)
    folder = scratch_folder(chat)
    private_folder(folder)
    (folder / "workspace").mkdir(exist_ok=True)
    workspace = Workspace(folder / "workspace", any_folder=True)
    return Work(paths, workspace, folder / "layers", sandbox, servers, scratch=True)


def loses(paths: Paths, name: str) -> str:
    """What the owner loses with the chat ``name``, a sentence; empty: nothing waits. Ends a take that a kill cut off.

    Raises UsageError if there is no such chat.
    """
    path = existing_chat(paths, name)
    folder = layers_folder(path)
    try:
        book = read_record(folder / "steps.json", StepBook)
        if book is None:
            return ""
        with contextlib.closing(Steps(Path(book.workspace), folder, layer_owner())) as steps:
            number = len(steps.changes())
    except GpuboxError as error:
        return f"What waits of its changes is lost, and cannot be counted: {error.message}"
    what = "1 change waits" if number == 1 else f"{number:,} changes wait"
    return f"{what} for your decision: they are lost with it." if number else ""
