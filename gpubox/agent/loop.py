"""The agent loop: a turn is rounds of think (a completion), act (tool calls) and observe (their outputs)."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

from gpubox.agent.budget import Budget
from gpubox.agent.compaction import compact_in_turn
from gpubox.agent.completion import CompletionRequester, ModelReply, NoAnswer, open_requester
from gpubox.agent.conversation import Conversation
from gpubox.agent.events import (
    AgentEvent,
    Emit,
    EndReason,
    Message,
    Notice,
    RoundFinished,
    RoundStarted,
    TextDelta,
    TurnFailed,
    TurnFinished,
    TurnStarted,
    TurnTotals,
)
from gpubox.agent.reply_text import ThinkingSplitter, without_repetition
from gpubox.agent.settings import AgentSettings
from gpubox.agent.timing import TurnTimings
from gpubox.agent.tool_calls import ToolCallPlan, plan_tool_calls
from gpubox.agent.tool_runner import CompletedCall, ToolRunner
from gpubox.agent.tools import AskOwner, Tool, nobody
from gpubox.errors import GpuboxError
from gpubox.server.client import LlamaClient
from gpubox.server.stream import ContextOverflow

LAST_REPLY = "(You have one reply left: give your answer now.)"
MAX_LAST_REPLY_TOKENS = 1024
STOPPED_CALL_OUTPUT = "[not run: the turn was stopped]"
MAX_REPEATED_ROUNDS = 2
"""Consecutive rounds that only repeat earlier calls; then the turn ends."""
FINISHED_OUTPUT = "The turn is over."
"""What a call that ends the turn is answered with: the text of its answer follows as the assistant's."""


class AgentLoop:
    """Runs turns, one at a time. It owns no file and no server: ``run`` receives both."""

    def __init__(
        self, ask: AskOwner = nobody, *, retry_seconds: float = 0.5, clock: Callable[[], float] = time.perf_counter
    ) -> None:
        """``ask`` asks the owner. ``retry_seconds``: wait before a request is repeated."""
        self._ask, self._retry_seconds, self._clock = ask, retry_seconds, clock
        self._task: asyncio.Task[None] | None = None
        self._turn: RunningTurn | None = None
        self.queued: list[str] = []
        """What the owner typed while the model works. The next round sends it; what no round sent is left here."""

    def stop(self) -> None:
        """Ends the running turn: the stream is closed, tools are killed, TurnFinished says ``stopped``."""
        if self._turn and self._task and not self._task.done():
            self._turn.stopped = True
            self._task.cancel()

    async def run(
        self, conversation: Conversation, settings: AgentSettings, tools: Sequence[Tool], client: LlamaClient
    ) -> AsyncGenerator[AgentEvent, None]:
        """The events of one turn. The last message of ``conversation`` is the owner's; the turn adds its own.

        The last event is TurnFinished or TurnFailed. If the generator is cancelled or closed early
        (``contextlib.aclosing``), the stream is closed, tools are killed, and ``conversation`` stays usable.
        """
        events: asyncio.Queue[AgentEvent | None] = asyncio.Queue()
        turn = self._turn = RunningTurn(
            conversation, settings, tools, client, events.put_nowait, self._ask, self._retry_seconds, self._clock,
            self.queued,
        )  # fmt: skip
        task = self._task = asyncio.create_task(turn.run())
        task.add_done_callback(lambda _: events.put_nowait(None))
        try:
            while (event := await events.get()) is not None:
                yield event
            if turn.stopped and task.cancelled():  # it was stopped before it started
                yield TurnFinished(TurnTotals(), "stopped")
            else:
                await task
        finally:
            if not task.done():
                task.cancel()
                await asyncio.wait([task])


@dataclass(slots=True)
class RunningTurn:
    """One turn: rounds until the model answers, a budget is used, the owner stops it, or something breaks."""

    conversation: Conversation
    settings: AgentSettings
    tools: Sequence[Tool]
    client: LlamaClient
    emit: Emit
    ask: AskOwner
    retry_seconds: float
    clock: Callable[[], float]
    queued: list[str]
    stopped: bool = False
    """The owner stopped the turn: a cancellation is then its end, not an error."""
    _round: int = 0
    _answer: str = ""
    _question: Message | None = None
    _requester: CompletionRequester | None = None
    _reply_added: bool = False
    """Whether the reply of the running round is part of the conversation."""
    _budget: Budget = field(init=False)
    _deadline: asyncio.Timeout = field(init=False)
    _timings: TurnTimings = field(init=False)
    _tool_runner: ToolRunner = field(init=False)
    _used_ids: set[str] = field(init=False)

    def __post_init__(self) -> None:
        self._budget = Budget(self.settings, self.ask)
        self._deadline = asyncio.timeout(None)
        self._timings = TurnTimings(self.conversation, self.clock)
        self._tool_runner = ToolRunner(
            self.tools, self._budget.ask_owner, self.emit, self.settings.max_output_characters
        )
        self._used_ids = {call.id for message in self.conversation.messages for call in message.tool_calls}

    async def run(self) -> None:
        """Runs to the end. Afterwards the conversation is usable in every case; only a cancellation is raised."""
        messages_before = len(self.conversation.messages)
        self._question = self.conversation.messages[-1] if messages_before else None
        minutes = asyncio.create_task(self._watch_minutes())
        try:
            async with self._deadline:
                reason = await self._run_rounds()
        except asyncio.CancelledError:
            self._close_round()
            if not self.stopped:
                raise
            reason = "stopped"
        except TimeoutError:
            self._close_round()
            reason = "wall"
            self.emit(Notice("wall", f"The turn reached its limit of {self._budget.seconds:,.0f} s."))
        except GpuboxError as error:
            self._close_round()
            kept = len(self.conversation.messages) - messages_before
            by_model = isinstance(error, NoAnswer | ContextOverflow)
            self.emit(TurnFailed(error.message, error.hint, kept, self._totals(), by_model))
            return
        except Exception as error:  # a bug ends the turn, not the chat
            self._close_round()
            why = f"gpubox failed in this turn ({type(error).__name__}: {str(error)[:200]})."
            kept = len(self.conversation.messages) - messages_before
            self.emit(TurnFailed(why, "Please report it. The chat can go on.", kept, self._totals()))
            return
        finally:
            minutes.cancel()
            await asyncio.wait([minutes])
        self.emit(TurnFinished(self._totals(), reason, self._answer))

    async def _run_rounds(self) -> EndReason:
        requester = await self._start()
        budget, repeated_rounds = self._budget, 0
        while True:
            used_up = budget.used_up(self._round, self._timings.generated_tokens)
            if used_up and not await self._may_go_on():
                return used_up if self.ask is nobody else await self._last_reply(requester, used_up)
            left = budget.tokens - self._timings.generated_tokens  # a summary may use them up
            await compact_in_turn(requester, self.settings.max_tokens, self._question)
            self._add_queued()
            self._start_round()
            reply = await requester.request(self._round, min(self.settings.max_tokens, left))
            if reply.repetitive:
                return self._end_repetitive(reply)
            plan = plan_tool_calls(reply, self.tools, requester.protocol, self._used_ids)
            self._answer = reply.visible.strip()
            self._add_reply(reply, plan.content, plan)
            if not plan.calls:
                self._end_round(reply)
                if reply.finish_reason == "content_filter":
                    self.emit(Notice("filtered", "The server cut the answer off: its content filter."))
                return "length" if reply.finish_reason == "length" else "answered"
            if not plan.native and self._tool_runner.repeats_success(plan.calls):
                self._end_round(reply)
                return "answered"  # the answer shows the program that ran
            completed = await self._act(reply, plan)
            if any(call.output.ends_turn for call in completed):
                return "answered"
            repeated_rounds = repeated_rounds + 1 if all(call.repeated for call in completed) else 0
            if repeated_rounds >= MAX_REPEATED_ROUNDS:
                self.emit(Notice("repetition", "The model makes the same call again and again."))
                return "repetition"

    async def _last_reply(self, requester: CompletionRequester, reason: EndReason) -> EndReason:
        """The owner said no: the model says in words how far it is. Its calls do not run."""
        self.emit(self.conversation.add(Message("user", LAST_REPLY)))
        self._start_round()
        reply = await requester.request(self._round, min(self.settings.max_tokens, MAX_LAST_REPLY_TOKENS))
        if reply.repetitive:
            self._end_repetitive(reply)
            return reason
        self._answer = reply.visible.strip()
        self._add_reply(reply, reply.content)
        self._end_round(reply)
        return reason

    def _start_round(self) -> None:
        self._round += 1
        budget, generated = self._budget, self._timings.generated_tokens
        used = (generated, budget.tokens, budget.used_seconds(), budget.seconds)
        self.emit(RoundStarted(self._round, budget.rounds, *used))

    def _add_queued(self) -> None:
        if self.queued:
            self.emit(self.conversation.add(Message("user", "\n\n".join(self.queued))))
            self.queued.clear()

    async def _start(self) -> CompletionRequester:
        requester = self._requester = await open_requester(
            self.client, self.conversation, self.settings, self.tools, self.emit, self._timings
        )
        requester.retry_seconds = self.retry_seconds
        protocol, context_tokens = requester.protocol, requester.context_tokens
        if context_tokens:  # one output must not fill a small context
            self._tool_runner.max_characters = min(self._tool_runner.max_characters, context_tokens)
        for tool in self.tools:
            tool.max_characters = self._tool_runner.max_characters
        self.emit(TurnStarted(protocol.name, protocol.why, requester.model, protocol.tool_names, context_tokens))
        return requester

    async def _act(self, reply: ModelReply, plan: ToolCallPlan) -> list[CompletedCall]:
        """Runs the calls of ``reply`` and adds their outputs to the conversation."""
        self._timings.start_tools()
        with self._owner_thinks():
            completed = await self._tool_runner.run(plan.calls)
        hint = f"\n{LAST_REPLY}" if self.ask is nobody and self._round == self._budget.rounds - 1 else ""
        texts = [FINISHED_OUTPUT if done.output.ends_turn else done.output.text for done in completed]
        if plan.native:
            texts[-1] += hint
            for done, text in zip(completed, texts, strict=True):
                self.emit(self.conversation.add(Message("tool", text, tool_call_id=done.call.id)))
        else:
            outputs = "\n\n".join(f"Output:\n```\n{text}\n```" for text in texts)
            self.emit(self.conversation.add(Message("tool", outputs + hint)))
        if answers := [done.output.text for done in completed if done.output.ends_turn]:
            self._answer = answers[-1].strip()
            self.emit(TextDelta(self._answer))
            self.emit(self.conversation.add(Message("assistant", self._answer)))
        self._end_round(reply)
        return completed

    def _add_reply(
        self, reply: ModelReply, content: str, plan: ToolCallPlan | None = None, *, partial: bool = False
    ) -> None:
        self._reply_added = True
        calls = tuple(planned.call for planned in plan.calls) if plan and plan.native else ()
        if content.strip() or reply.reasoning_content.strip() or calls:
            message = Message("assistant", content, reply.reasoning_content, calls, partial=partial)
            self.emit(self.conversation.add(message))

    def _end_repetitive(self, reply: ModelReply) -> EndReason:
        self.emit(Notice("repetition", "The model repeated itself and was stopped."))
        self._answer = without_repetition(reply.visible).strip()
        self._add_reply(reply, without_repetition(reply.content), partial=True)
        self._end_round(reply)
        return "repetition"

    def _end_round(self, reply: ModelReply) -> None:
        self.emit(RoundFinished(self._round, self._timings.end_round(reply.measurements), reply.finish_reason))
        self._reply_added = False
        if self._requester:
            self._requester.reply = None

    def _close_round(self) -> None:
        """Ends a round that was interrupted: adds the partial reply and answers the calls that did not run."""
        reply = self._requester.reply if self._requester else None
        if reply is None:
            return
        if not self._reply_added:
            self._answer = reply.visible.strip()
            self._add_reply(reply, _close_thinking(reply.content), partial=True)
        for call in self.conversation.unanswered_calls():
            self.emit(self.conversation.add(Message("tool", STOPPED_CALL_OUTPUT, tool_call_id=call.id)))
        self._end_round(reply)

    def _totals(self) -> TurnTotals:
        return self._timings.totals(self._round, self._tool_runner.calls, self._tool_runner.failed_calls)

    async def _may_go_on(self) -> bool:
        """Asks for as much again. The question of the minutes, if it is open, counts."""
        with self._owner_thinks():
            return await self._budget.may_go_on(self.emit, self._round, self._timings.generated_tokens)

    @contextmanager
    def _owner_thinks(self) -> Iterator[None]:
        """The time of the questions in this block is the owner's."""
        before = self._budget.thought_seconds()
        try:
            yield
        finally:
            self._timings.add_approval(self._budget.thought_seconds() - before)

    async def _watch_minutes(self) -> None:
        """Asks when the minutes are used, while the model goes on. A no ends the turn at once."""
        budget = self._budget
        while True:
            while (left := budget.seconds - budget.used_seconds()) > 0:
                await asyncio.sleep(left)
            if not await budget.may_go_on(self.emit, self._round, self._timings.generated_tokens):
                self._deadline.reschedule(asyncio.get_running_loop().time())
                return


def _close_thinking(content: str) -> str:
    """``content`` with a closing tag if it ends within its thinking."""
    splitter = ThinkingSplitter()
    splitter.feed(content)
    return f"{content}\n{splitter.closing_tag}\n" if splitter.closing_tag else content
