"""The files of one chat: its workspace with the layers over it, the tools that use them, and what the owner decides.

A chat without a workspace has a scratch folder as one: what a turn made there is taken at its end, and is no change.
"""

from __future__ import annotations

import contextlib
from collections.abc import Collection
from pathlib import Path

from gpubox.agent.events import ChangedFile
from gpubox.agent.file_tools import file_tools
from gpubox.agent.projects import ProjectTests
from gpubox.agent.run_tools import Programs, RunTool, SearchTool, TestTool
from gpubox.agent.tools import Tool, ToolOutput
from gpubox.agent.turn_tools import AskTool, DoneTool
from gpubox.agent.workspace import Workspace
from gpubox.concurrency import run_in_thread
from gpubox.paths import Paths
from gpubox.sandbox.runner import Sandbox
from gpubox.sandbox.spawn import layer_owner
from gpubox.sandbox.steps import StepResult, Steps
from gpubox.storage import private_folder


class Work:
    """Blocking, but for what is a coroutine. ``close`` it."""

    def __init__(self, paths: Paths, workspace: Workspace, folder: Path, sandbox: Sandbox, *, scratch: bool) -> None:
        """``folder``: where the layers are. Raises GpuboxError."""
        self.workspace, self.scratch = workspace, scratch
        self.steps = workspace.steps = Steps(workspace.root, folder, layer_owner())
        self.tests = ProjectTests(paths, workspace)
        programs = Programs(sandbox, workspace)
        self._run, self._test = RunTool(programs), TestTool(programs, self.tests)
        self.tools: list[Tool] = [self._run]
        if not scratch:
            listing, read, edit, write = file_tools(workspace)
            search = SearchTool(programs, workspace)
            self.tools = [listing, read, search, edit, write, self._run, self._test, AskTool(), DoneTool()]
        self._turn = contextlib.ExitStack()

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


def open_scratch(folder: Path) -> Workspace:
    """The workspace of a chat that has none. Raises GpuboxError."""
    workspace = folder / "workspace"
    private_folder(folder)
    workspace.mkdir(exist_ok=True)
    return Workspace(workspace, any_folder=True)
