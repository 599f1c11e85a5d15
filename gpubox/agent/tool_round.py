"""The calls of one round: asked for, run (side by side where that is safe), answered in the history."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from gpubox.agent.asking import Emit
from gpubox.agent.clip import truncate_output
from gpubox.agent.events import ApprovalRequested, Notice, ToolFinished, ToolRequested
from gpubox.agent.tool_calls import PlannedCall
from gpubox.agent.tools import Approve, Tool, ToolCall, ToolOutput
from gpubox.errors import GpuboxError
from gpubox.threads import run_in_thread

REPEATED_CALL_OUTPUT = (
    "You made the same call before; it was not run again. Its result was:\n{}\nDo something else, or answer."
)


@dataclass(frozen=True, slots=True)
class CompletedCall:
    """One call and its output. ``repeated``: the round before made the same."""

    call: ToolCall
    output: ToolOutput
    repeated: bool = False


class ToolRunner:
    """Runs the calls of one turn; remembers those of the round before."""

    def __init__(
        self,
        tools: Sequence[Tool],
        approve: Approve,
        emit: Emit,
        characters: int,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self._tools = {tool.name: tool for tool in tools}
        self._approve, self._emit, self._clock = approve, emit, clock
        self.characters = characters
        """Of one output that the model reads."""
        self._before: dict[bytes, ToolOutput] = {}
        self.approval_seconds = 0.0
        """The owner's, since the turn began."""
        self.made = self.failed = 0

    def went_well(self, planned: Sequence[PlannedCall]) -> bool:
        """Whether the round before made the very same calls, without a fault."""
        before = [self._before.get(_key(item.call)) for item in planned]
        return bool(before) and all(output is not None and output.ok for output in before)

    async def run(self, planned: Sequence[PlannedCall]) -> list[CompletedCall]:
        """The outputs in the order of the calls. Never raises but for a cancellation, which ends what runs."""
        done: dict[int, CompletedCall] = {}
        group: list[int] = []
        for index, item in enumerate(planned):
            tool = self._tools.get(item.call.name)
            if tool is not None and not item.error and tool.parallel_safe:
                group.append(index)
                continue
            await self._together(group, planned, done)
            group = []
            done[index] = await self._one(item, tool)
        await self._together(group, planned, done)
        ordered = [done[index] for index in range(len(planned))]
        self._before = {_key(item.call): item.output for item in ordered if not item.repeated} or self._before
        return ordered

    async def _together(self, group: list[int], planned: Sequence[PlannedCall], done: dict[int, CompletedCall]) -> None:
        if not group:
            return
        async with asyncio.TaskGroup() as tasks:
            running = {i: tasks.create_task(self._one(planned[i], self._tools[planned[i].call.name])) for i in group}
        done.update({index: task.result() for index, task in running.items()})

    async def _one(self, item: PlannedCall, tool: Tool | None) -> CompletedCall:
        call = item.call
        if item.notice:
            self._emit(Notice(item.kind, item.notice))
        self._emit(ToolRequested(call))
        repeated = False
        if item.error or tool is None:
            output = ToolOutput(item.error, ok=False, ended_by="refused")
        elif (before := self._before.get(_key(call))) is not None:
            output, repeated = _again(before), True
            self._emit(Notice("repeated", f"The model made the same call of {call.name} again; it was not run."))
        else:
            output = self._bounded(await self._made(call, tool))
        self.made += 1
        self.failed += not output.ok
        self._emit(ToolFinished(call, output))
        return CompletedCall(call, output, repeated)

    async def _made(self, call: ToolCall, tool: Tool) -> ToolOutput:
        try:
            diff = await run_in_thread(tool.diff, call)  # it reads the file
            if diff and not await self._asked(call, diff):
                return ToolOutput("The owner did not allow this.", ok=False, ended_by="denied")
            return await tool.run(call)
        except GpuboxError as error:
            self._emit(Notice("refused", str(error)))
            return ToolOutput(f"Not run: {error.message}", ok=False, ended_by="refused")
        except OSError as error:
            return ToolOutput(f"Failed: {error.strerror or type(error).__name__}.", ok=False, ended_by="refused")
        except Exception as error:  # a tool's own fault must not end the turn
            return ToolOutput(f"The tool failed ({type(error).__name__}).", ok=False, ended_by="refused")

    async def _asked(self, call: ToolCall, diff: str) -> bool:
        self._emit(ApprovalRequested(call, diff))
        began = self._clock()
        try:
            return await self._approve(call, diff)
        finally:
            self.approval_seconds += self._clock() - began

    def _bounded(self, output: ToolOutput) -> ToolOutput:
        text, dropped = truncate_output(output.text, self.characters)
        return msgspec.structs.replace(output, text=text, dropped_bytes=output.dropped_bytes + dropped)


def _again(before: ToolOutput) -> ToolOutput:
    return msgspec.structs.replace(before, text=REPEATED_CALL_OUTPUT.format(before.text), seconds=0.0)


def _key(call: ToolCall) -> bytes:
    arguments: dict[str, Any] = {k: v.strip() if isinstance(v, str) else v for k, v in call.arguments.items()}
    return msgspec.json.encode([call.name, arguments], order="sorted")
