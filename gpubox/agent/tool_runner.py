"""Runs the calls of a reply, after the owner's yes where one is needed."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from gpubox.agent.events import Emit, Notice, QuestionAsked, ToolFinished, ToolRequested
from gpubox.agent.tool_calls import PlannedCall
from gpubox.agent.tools import Answer, AskOwner, OwnerQuestion, Tool, ToolCall, ToolOutput, truncate_output
from gpubox.concurrency import run_in_thread
from gpubox.errors import GpuboxError
from gpubox.storage import json_line

REPEATED_CALL_OUTPUT = (
    "You made the same call before; it was not run again. Its result was:\n{}\nDo something else, or answer."
)


@dataclass(frozen=True, slots=True)
class CompletedCall:
    """One call and its output. ``repeated``: the round before made the same call, and this one did not run."""

    call: ToolCall
    output: ToolOutput
    repeated: bool = False


class ToolRunner:
    """Runs the tool calls of one turn. It remembers the calls of the round before, to notice repetition."""

    def __init__(self, tools: Sequence[Tool], ask_owner: AskOwner, emit: Emit, max_characters: int) -> None:
        """``max_characters``: how much of one output the model reads."""
        self._tools = {tool.name: tool for tool in tools}
        self._ask_owner, self._emit = ask_owner, emit
        self.max_characters = max_characters
        self.calls = self.failed_calls = 0
        self._previous_outputs: dict[bytes, ToolOutput] = {}

    def repeats_success(self, planned: Sequence[PlannedCall]) -> bool:
        """Whether the round before made the same calls and all of them succeeded."""
        outputs = [self._previous_outputs.get(_call_key(item)) for item in planned]
        return bool(outputs) and all(output is not None and output.ok for output in outputs)

    async def run(self, planned: Sequence[PlannedCall]) -> list[CompletedCall]:
        """The completed calls in the order of ``planned``. Only cancellation raises; it ends the running tools."""
        completed: list[CompletedCall] = []
        for parallel, items in itertools.groupby(planned, self._may_run_parallel):
            if parallel:
                async with asyncio.TaskGroup() as group:
                    tasks = [group.create_task(self._run_call(item)) for item in items]
                completed += [task.result() for task in tasks]
            else:
                completed += [await self._run_call(item) for item in items]
        done_by_item = zip(planned, completed, strict=True)
        new_outputs = {_call_key(item): done.output for item, done in done_by_item if not done.repeated}
        self._previous_outputs = new_outputs or self._previous_outputs
        return completed

    def _may_run_parallel(self, item: PlannedCall) -> bool:
        tool = self._tools.get(item.call.name)
        return tool is not None and not item.error and tool.parallel_safe

    async def _run_call(self, item: PlannedCall) -> CompletedCall:
        call, tool = item.call, self._tools.get(item.call.name)
        if item.notice:
            self._emit(item.notice)
        self._emit(ToolRequested(call))
        previous = self._previous_outputs.get(_call_key(item))
        repeated = False
        if previous is not None:
            repeated = True
            output = msgspec.structs.replace(previous, text=REPEATED_CALL_OUTPUT.format(previous.text), seconds=0.0)
            self._emit(Notice("repeated", f"The model made the same call of {call.name} again. It was not run again."))
        elif item.error or tool is None:
            output = ToolOutput(item.error, ok=False, ended_by="refused")
        else:
            output = await self._ask_and_run(call, tool)
            text, dropped = truncate_output(output.text, self.max_characters)
            output = msgspec.structs.replace(output, text=text, dropped_bytes=output.dropped_bytes + dropped)
        self.calls += 1
        self.failed_calls += not output.ok
        self._emit(ToolFinished(call, output))
        return CompletedCall(call, output, repeated)

    async def _ask_and_run(self, call: ToolCall, tool: Tool) -> ToolOutput:
        try:
            question = await run_in_thread(tool.question, call)  # it may read files
            if question:
                self._emit(QuestionAsked(question))
                answer = await self._ask_owner(question)
                if question.kind == "ask" or not answer.yes:
                    return _answer_output(question, answer)
            return await tool.run(call)
        except GpuboxError as error:
            self._emit(Notice("refused", str(error)))
            return ToolOutput(f"Not run: {error.message}", ok=False, ended_by="refused")
        except OSError as error:
            return ToolOutput(f"Failed: {error.strerror or type(error).__name__}.", ok=False, ended_by="refused")
        except Exception as error:  # a bug in a tool must not end the turn
            return ToolOutput(f"The tool failed ({type(error).__name__}).", ok=False, ended_by="refused")


def _answer_output(question: OwnerQuestion, answer: Answer) -> ToolOutput:
    if answer.yes:
        return ToolOutput(answer.text or "Yes.")
    text = f"The owner said no: {answer.text}" if answer.text else "The owner said no."
    if question.kind == "ask" and not answer.text:
        text = "The owner does not answer. Decide yourself, and say what you assumed."
    return ToolOutput(text, ok=False, ended_by="denied")


def _call_key(item: PlannedCall) -> bytes:
    """Equal for calls that do the same, or are wrong in the same way: white space around arguments does not count."""
    given = sorted(item.call.arguments.items())
    arguments: dict[str, Any] = {key: value.strip() if isinstance(value, str) else value for key, value in given}
    return json_line([item.call.name, arguments, item.error])
