"""One turn: rounds until the model answers, a limit is met, the owner stops it or something breaks."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

from gpubox.agent.asking import Emit
from gpubox.agent.completion import CompletionRequester
from gpubox.agent.conversation import Conversation
from gpubox.agent.events import (
    EndReason,
    Message,
    Notice,
    RoundFinished,
    RoundStarted,
    TurnFailed,
    TurnFinished,
    TurnStarted,
)
from gpubox.agent.ledger import TurnTimings
from gpubox.agent.protocol import choose_protocol, context_size
from gpubox.agent.repetition import without_repetition
from gpubox.agent.reply import ModelReply
from gpubox.agent.settings import AgentSettings
from gpubox.agent.thinking import ThinkingSplitter
from gpubox.agent.tool_calls import CallIds, ToolCallPlan, plan_tool_calls
from gpubox.agent.tool_round import CompletedCall, ToolRunner
from gpubox.agent.tools import Approve, Tool, ToolCall
from gpubox.errors import GpuboxError
from gpubox.server.client import LlamaClient

LAST_REPLY_HINT = "\n(You have one reply left: give your answer now.)"
STOPPED_CALL_OUTPUT = "[not run: the turn was stopped]"
REPEATS = 2
"""Rounds that only repeat the calls before them, until the turn is ended."""


class RunningTurn:
    """Everything one turn knows while it plays."""

    def __init__(
        self,
        conversation: Conversation,
        settings: AgentSettings,
        tools: Sequence[Tool],
        client: LlamaClient,
        *,
        emit: Emit,
        approve: Approve,
        retry_seconds: float,
        clock: Callable[[], float],
    ) -> None:
        self._conversation, self._settings, self._tools = conversation, settings, tools
        self._client, self._emit, self._clock = client, emit, clock
        self._approve, self._retry_seconds = approve, retry_seconds
        self._limit = asyncio.timeout(settings.wall_seconds)
        self._runner = ToolRunner(tools, self._ask_owner, emit, settings.output_characters, clock)
        self._requests: CompletionRequester | None = None
        taken = (call.id for message in conversation.messages for call in message.tool_calls)
        self._identities = CallIds(taken, f"call_{len(conversation.messages)}")
        self._messages_before = len(conversation.messages)
        self._ledger = TurnTimings(conversation, self._runner, clock)
        self._round = 0
        self._open: ModelReply | None = None
        """The reply of the round that runs, from its end on."""
        self._text = ""
        self.stopped = False
        """The owner stopped it: a cancellation is then an end, not an error."""

    async def play(self) -> None:
        """Plays to the end. Every way out leaves a conversation that can go on; only a cancellation is raised."""
        try:
            async with self._limit:
                reason = await self._rounds()
        except asyncio.CancelledError:
            self._close()
            if not self.stopped:
                raise
            reason = "stopped"
        except TimeoutError:
            self._close()
            reason = "wall"
            self._emit(Notice("wall", f"The turn reached its limit of {self._settings.wall_seconds:,.0f} s."))
        except GpuboxError as error:
            self._close()
            kept = len(self._conversation.messages) - self._messages_before
            self._emit(TurnFailed(error.message, error.hint, kept, self._ledger.totals(self._round)))
            return
        self._emit(TurnFinished(self._ledger.totals(self._round), reason, self._text))

    async def _rounds(self) -> EndReason:
        props = await self._client.props()
        ignored = self._conversation.programs_not_run()
        chosen, context = choose_protocol(self._settings, self._tools, props, ignored=ignored), context_size(props)
        if context:  # one output must not fill a small context
            self._runner.characters = min(self._runner.characters, context)
        model = str((props or {}).get("model_alias") or (props or {}).get("model_path") or "")
        self._emit(TurnStarted(chosen.name, chosen.why, model, chosen.offered, context))
        self._requests = CompletionRequester(
            self._client,
            self._conversation,
            self._settings,
            chosen,
            context,
            self._emit,
            self._clock,
            self._ledger,
            self._retry_seconds,
        )
        repeats = 0
        for number in range(1, self._settings.rounds + 1):
            self._round = number
            left = self._settings.turn_tokens - self._ledger.generated_tokens
            if left <= 0:
                return "tokens"
            self._emit(RoundStarted(self._round, self._settings.rounds))
            reply = await self._requests.ask(self._round, min(self._settings.max_tokens, left))
            self._open = reply
            if reply.circles:
                return self._circles(reply)
            found = plan_tool_calls(reply, self._tools, chosen, self._identities)
            self._text = reply.visible.strip()
            self._say(found.content, reply, found)
            if not found.calls:
                self._end_round(reply)
                return "length" if reply.finish_reason == "length" else "answered"
            if not found.linked and self._runner.went_well(found.calls):
                self._end_round(reply)
                return "answered"  # it shows the program that was run
            done = await self._act(reply, found)
            repeats = repeats + 1 if all(one.repeated for one in done) else 0
            if repeats >= REPEATS:
                self._emit(Notice("repetition", "The model makes the same call again and again."))
                return "repetition"
        return "rounds"

    def _say(
        self, content: str, reply: ModelReply, found: ToolCallPlan | None = None, *, partial: bool = False
    ) -> None:
        """Makes the reply part of the conversation."""
        calls = tuple(planned.call for planned in found.calls) if found and found.linked else ()
        if content.strip() or reply.reasoning.strip() or calls:
            message = Message("assistant", content, reply.reasoning, calls, partial=partial)
            self._emit(self._conversation.add(message))

    async def _act(self, reply: ModelReply, found: ToolCallPlan) -> list[CompletedCall]:
        self._ledger.tools_begin()
        done = await self._runner.run(found.calls)
        last = LAST_REPLY_HINT if self._round == self._settings.rounds - 1 else ""
        if found.linked:
            for one in done:
                said = one.output.text + (last if one is done[-1] else "")
                self._emit(self._conversation.add(Message("tool", said, tool_call_id=one.call.id)))
        else:
            outputs = "\n\n".join(f"Output:\n```\n{one.output.text}\n```" for one in done)
            self._emit(self._conversation.add(Message("tool", outputs + last)))
        self._end_round(reply)
        return done

    def _circles(self, reply: ModelReply) -> EndReason:
        self._emit(Notice("repetition", "The model turned in circles and was stopped."))
        self._text = without_repetition(reply.visible).strip()
        self._say(without_repetition(reply.content), reply, partial=True)
        self._end_round(reply)
        return "repetition"

    def _end_round(self, reply: ModelReply) -> None:
        self._emit(RoundFinished(self._round, self._ledger.end(reply.marks), reply.finish_reason))
        self._open = None
        if self._requests:
            self._requests.reply = None

    def _close(self) -> None:
        """Ends the round in the middle of which the turn ends, so that the conversation can go on."""
        reply = self._open or (self._requests.reply if self._requests else None)
        if reply is None:
            return
        if self._open is None:
            self._text = reply.visible.strip()
            self._say(_closed(reply.content), reply, partial=True)
        for call in self._conversation.unanswered():
            self._emit(self._conversation.add(Message("tool", STOPPED_CALL_OUTPUT, tool_call_id=call.id)))
        self._end_round(reply)

    async def _ask_owner(self, call: ToolCall, diff: str) -> bool:
        """The owner may think as long as he likes: his time does not count."""
        at, began = self._limit.when(), asyncio.get_running_loop().time()
        self._limit.reschedule(None)
        try:
            return await self._approve(call, diff)
        finally:
            if at is not None:
                self._limit.reschedule(at + asyncio.get_running_loop().time() - began)


def _closed(content: str) -> str:
    """``content`` with its thinking closed, if it ends in the middle of it."""
    splitter = ThinkingSplitter()
    splitter.feed(content)
    return f"{content}\n{splitter.closing}\n" if splitter.closing else content
