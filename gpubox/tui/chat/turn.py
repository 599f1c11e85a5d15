"""One turn of a chat: runs it; agent events in, parts of the transcript and the current progress out. No widget."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import msgspec

from gpubox.agent import events as e
from gpubox.agent.files_named import attachment
from gpubox.agent.reply_text import split_thinking
from gpubox.agent.tools import ToolCall, ToolOutput
from gpubox.errors import GpuboxError
from gpubox.sanitize import sanitize_line
from gpubox.tui.chat import turn_parts
from gpubox.tui.styled_lines import join_lines, styled_line, wrap_parts

if TYPE_CHECKING:
    from gpubox.agent.chat import Chat
    from gpubox.agent.chat_log import ChatSettings, Turn
    from gpubox.agent.files_named import Prompt

FRAME_SECONDS = 1 / 12
"""Minimum time between two drawings of a turn."""
REST_FACTOR = 12
"""After a drawing, the next one waits at least this many times as long as it took: drawing must not fill a core."""
WAITS = "waits for you"
"""State of a tool call."""
MIN_SPEED_DELTAS = 5
MIN_SPEED_SECONDS = 0.25
PROTOCOL_LABELS = {
    "native": "",
    "acp": "",
    "fenced": "tool calls as ```python blocks",
    "none": "no tools",
}


@dataclass(slots=True)
class TurnProgress:
    """What a running turn is doing."""

    phase: str = "asks"
    """starts | asks | reads | thinks | answers | runs | waits | stops | over"""
    round: int = 0
    rounds: int = 0
    budgets: e.RoundStarted | None = None
    """What the turn had used when the round started."""
    prefill: e.PrefillProgress | None = None
    generation: e.GenerationStats | None = None
    """The server's figures of this round."""
    deltas: int = 0
    """Deltas of the turn."""
    stretch_started_at: float | None = None
    """When the current uninterrupted stretch of deltas started, by the caller's clock."""
    stretch_deltas: int = 0
    tool: str = ""
    usage: e.UsageReported | None = None
    """What a hosted agent says of its context."""
    plan: str = ""
    """How much of its plan is done."""

    def deltas_per_second(self, now: float) -> float | None:
        """An estimate of tg while the server reports none; too low if deltas hold several tokens."""
        if self.stretch_started_at is None:
            return None
        elapsed = now - self.stretch_started_at
        if self.stretch_deltas < MIN_SPEED_DELTAS or elapsed < MIN_SPEED_SECONDS:
            return None
        return (self.stretch_deltas - 1) / elapsed


class TurnView:
    """The parts of one turn. ``parts`` grows, and only its last parts change."""

    def __init__(self, prompt: str, answered_by: str = "", agent: str = "") -> None:
        """``agent``: the hosted agent that is asked."""
        self.prompt = prompt
        self.parts: list[turn_parts.TurnPart] = [turn_parts.PromptPart(prompt)]
        self.id = ""
        """The turn's id in the chat file; empty until the turn is written there."""
        self.progress = TurnProgress("starts", tool=agent) if agent else TurnProgress()
        self.agent = agent
        self.offers: e.AgentOffers | None = None
        """What the agent offers."""
        self.over = False
        self.failed = False
        self.context_size_tokens: int | None = None
        self.context_used_tokens: int | None = None
        """Of this chat after the last round; ``None``: the server does not say."""
        self.answered_by = answered_by
        """Profile and build, as far as they are known."""
        self.changes: turn_parts.ChangesPart | None = None
        self._tool_calls: dict[str, turn_parts.ToolCallPart] = {}
        self._round_notes: list[turn_parts.LinesPart] = []
        self._compacted = False
        self._reread_from = ""
        self._plan: turn_parts.PlanPart | None = None
        self._own_usage = False
        """Whether the context is what a hosted agent says of it."""
        self._late_notes: list[turn_parts.TurnPart] = []
        """Figures of a request that the gateway counted while the agent still passed its answer on."""
        self._round_start = 1
        """Index of the first part of the current round."""

    def show_prompt(self, attached: str, images: Sequence[str], notes: Sequence[str] = ()) -> None:
        """The prompt with the files and images it names, and what was not added."""
        self.parts[0] = turn_parts.PromptPart(self.prompt, attachment(attached), images)
        for note in notes:
            self._add_note("! ", note)

    @property
    def answer(self) -> str:
        return "\n\n".join(part.text.strip("\n") for part in self.parts if isinstance(part, turn_parts.AnswerPart))

    def apply(self, event: e.AgentEvent, now: float = 0.0) -> None:
        """Updates the turn with ``event``, which arrived at ``now``."""
        progress = self.progress
        match event:
            case e.ReasoningDelta(text):
                self._count_delta("thinks", now)
                self._open_part(turn_parts.ThinkingPart).add(text)
            case e.TextDelta(text):
                self._count_delta("answers", now)
                self._open_part(turn_parts.AnswerPart).add(text)
            case e.PrefillProgress():
                progress.phase, progress.prefill = "reads", event
            case e.TurnStarted():
                self.context_size_tokens = event.context_size_tokens
                self._add_model_note(event)
            case e.GenerationStats():
                progress.generation = event
            case e.RoundStarted(number, rounds):
                self._close_part()
                progress.round, progress.rounds, progress.budgets = number, rounds, event
                self._start_round()
            case e.RoundRestarted(_, why):
                del self.parts[self._round_start :]
                self._add_note("! ", why)
                self._start_round()
            case e.MessageAdded(message) if message.partial:
                self._restore_partial(message)
            case e.MessageAdded(message) if message.role == "user" and not progress.round:
                if self.parts[1:] == [] and (message.images or attachment(message.content)):  # of a stored turn
                    self.show_prompt(message.content, message.images)
            case e.Compacted(summary):
                self._compacted = True
                self.add_summary(summary)
            case e.MessageAdded(message) if message.role == "user":
                if not self._compacted:  # it was queued; the one after a summary is gpubox's own
                    self._close_part()
                    self.parts.append(turn_parts.PromptPart(message.content))
                self._compacted = False
            case e.ToolRequested(call):
                self._close_part()
                if call.code and isinstance(last := self.parts[-1], turn_parts.AnswerPart):
                    last.drop_code(call.code)
                self._tool_call(call).state = "runs"
                progress.phase, progress.tool, progress.stretch_started_at = "runs", call.title or call.name, None
            case e.QuestionAsked(question):
                progress.phase, progress.tool = "waits", ""
                if question.call:
                    part = self._tool_call(question.call)
                    part.state = WAITS
                    progress.tool = question.call.title or question.call.name
            case e.ToolFinished(call, output):
                self._tool_call(call).output = output
                progress.phase = "asks"
            case e.PlanChanged(steps):
                self._show_plan(steps)
            case e.AgentOffers():
                self.offers = event
                progress.phase = "asks" if progress.phase == "starts" else progress.phase
            case e.UsageReported(used, size):
                progress.usage = event
                self._own_usage, self.context_used_tokens = True, used
                self.context_size_tokens = size or self.context_size_tokens
            case e.RoundFinished():
                if not self._own_usage:
                    self.context_used_tokens = event.timing.context_tokens
                self._finish_round(event)
            case e.FilesChanged(files):
                self._close_part()
                self.changes = turn_parts.ChangesPart(files)
                self.parts.append(self.changes)
            case e.TestFinished(command, output):
                self.add_test(command, output)
            case e.Notice(_, text):
                self._add_note("! ", text)
            case e.TurnFinished(totals, reason):
                self._finish(totals, reason)
            case e.TurnFailed(message, hint, _, totals):
                self.failed = True
                self._close_part()
                self.parts.append(turn_parts.LinesPart(lambda width: turn_parts.error_lines(message, hint, width)))
                self._finish(totals, "")
            case _:
                pass

    def answered(self) -> None:
        """The owner has answered: what asked goes on."""
        waiting = [part for part in self._tool_calls.values() if part.output is None and part.state == WAITS]
        for part in waiting:
            part.state = "runs"
            part.changed()
        if self.progress.phase == "waits":
            self.progress.phase = "runs" if waiting else "asks"

    def add_test(self, command: str, output: ToolOutput) -> None:
        self._close_part()
        part = turn_parts.TestPart(ToolCall("", "test", {"command": command}))
        part.output = output
        self.parts.append(part)

    def add_summary(self, text: str) -> None:
        """What the model knows of the conversation from here on."""
        self._close_part()
        self.parts.append(turn_parts.SummaryPart(text))

    def stop(self, why: str = "stopped") -> None:
        """Ends a turn whose events broke off without a final event."""
        if not self.over:
            self._close_part()
            self.parts.append(turn_parts.note_part(styled_line((f"■ {why}", "$warning"))))
            self.over, self.progress.phase = True, "over"

    def _start_round(self) -> None:
        self._round_start = len(self.parts)
        progress = self.progress
        progress.phase = "asks"
        progress.prefill = progress.generation = progress.stretch_started_at = None

    def _restore_partial(self, message: e.Message) -> None:
        """Shows the text of a given-up attempt if no later attempt wrote any: the text stays in the conversation."""
        text = split_thinking(message.content)[1]
        if text.strip() and not any(
            isinstance(part, turn_parts.AnswerPart) for part in self.parts[self._round_start :]
        ):
            self._open_part(turn_parts.AnswerPart).add(text)

    def _add_model_note(self, event: e.TurnStarted) -> None:
        model = sanitize_line(self.answered_by or event.model)
        protocol = PROTOCOL_LABELS.get(event.protocol, sanitize_line(event.protocol))
        row = join_lines([styled_line((model, "$secondary")), styled_line((protocol, "$quiet"))])
        self.parts.append(turn_parts.note_part(row))

    def _count_delta(self, phase: str, now: float) -> None:
        progress = self.progress
        if progress.stretch_started_at is None:
            progress.stretch_started_at, progress.stretch_deltas = now, 0
        progress.phase = phase
        progress.deltas += 1
        progress.stretch_deltas += 1

    def _open_part(
        self, kind: type[turn_parts.ThinkingPart] | type[turn_parts.AnswerPart]
    ) -> turn_parts.ThinkingPart | turn_parts.AnswerPart:
        """The last part if it is an open one of this kind; otherwise a new part."""
        last = self.parts[-1]
        if isinstance(last, kind) and not last.over:
            return last
        self._close_part()
        part = kind()
        self.parts.append(part)
        return part

    def _close_part(self) -> None:
        last = self.parts[-1]
        if isinstance(last, turn_parts.AnswerPart | turn_parts.ThinkingPart) and not last.over:
            last.over = True
            last.changed()
        self.parts += self._late_notes
        self._late_notes.clear()

    def _show_plan(self, steps: Sequence[e.PlanStep]) -> None:
        done = sum(step.status == "completed" for step in steps)
        self.progress.plan = f"{done} of {len(steps)}" if steps else ""
        if self._plan:
            self._plan.steps = steps
            self._plan.changed()
        elif steps:
            self._close_part()
            self._plan = turn_parts.PlanPart(steps)
            self.parts.append(self._plan)

    def _tool_call(self, call: ToolCall) -> turn_parts.ToolCallPart:
        part = self._tool_calls.get(call.id)
        if part is None:
            part = self._tool_calls[call.id] = turn_parts.ToolCallPart(call)
            self.parts.append(part)
        part.call = call  # a hosted agent says more of it later
        part.changed()
        return part

    def _add_note(self, mark: str, text: str) -> None:
        self._close_part()
        self.parts.append(turn_parts.note_part(styled_line((mark, "$warning"), (sanitize_line(text), "$secondary"))))

    def _finish_round(self, event: e.RoundFinished) -> None:
        timing, hosted = event.timing, not self.progress.rounds
        if not hosted:
            self._close_part()
        self._reread_from = self._reread_from or timing.reread_from
        thinking = [part for part in self.parts if isinstance(part, turn_parts.ThinkingPart) and part.seconds is None]
        if thinking:
            for part in thinking[:-1]:
                part.seconds = 0.0
            last = thinking[-1]
            last.seconds = timing.thinking_seconds
            if timing.thinking_tokens is not None and len(thinking) == 1:
                last.tokens = timing.thinking_tokens
                last.exact = not timing.draft_tokens  # with drafts a delta may hold several tokens
            last.changed()
        spans = turn_parts.round_spans(event.round, self.progress.rounds, timing)
        if hosted and timing.tg_tokens_per_second is timing.prefill_new_tokens is None:
            return  # the gateway knows no figure of it
        gap = isinstance(self.parts[-1], turn_parts.AnswerPart) and not self._late_notes
        note = turn_parts.LinesPart(lambda width: wrap_parts(spans, width), gap=gap)
        self._round_notes.append(note)
        (self._late_notes if hosted else self.parts).append(note)
        if getattr(self.parts[-1], "over", True):
            self._close_part()

    def _finish(self, totals: e.TurnTotals, reason: str) -> None:
        self._close_part()
        for part in self._tool_calls.values():
            if part.output is None:
                part.state = turn_parts.STOP_REASONS["cancelled"]
                part.changed()
        if len(self._round_notes) == 1:  # the summary repeats the figures of a single round
            self.parts.remove(self._round_notes[0])
        if totals.timing.wall_seconds:
            timing = msgspec.structs.replace(totals.timing, reread_from=self._reread_from)
            totals = msgspec.structs.replace(totals, timing=timing)
            rest = self.agent or "gpubox"
            self.parts.append(turn_parts.LinesPart(lambda width: turn_parts.waterfall(totals, reason, width, rest)))
        self.over, self.progress.phase = True, "over"


def model_label(profile: str, build: str) -> str:
    """``qwen36-mtp-16gb   llama-server b11434``, as far as it is known."""
    return "   ".join(part for part in (profile, build) if part)


def stored_turn_view(turn: Turn) -> TurnView:
    """A turn of a chat file as the screen showed it when it ended, or when gpubox was killed during it."""
    header = turn.header
    view = TurnView(header.text, model_label(header.profile or header.model, header.build), header.agent)
    view.id = turn.id
    for event in turn.events:
        if not isinstance(event, e.MessageAdded) or event.message.role == "user":
            view.apply(event)
        elif event.message.role == "assistant":  # the file stores messages instead of deltas
            thinking, visible = split_thinking(event.message.content)
            if reasoning := event.message.reasoning_content + thinking:
                view.apply(e.ReasoningDelta(reasoning))
            if visible:
                view.apply(e.TextDelta(visible))
    if not view.over:
        view.stop("cut off: gpubox ended during this turn")
    return view


class TurnRunner:
    """Runs one turn at a time and calls ``draw`` a few times a second."""

    def __init__(self, draw: Callable[[], None], clock: Callable[[], float] = time.monotonic) -> None:
        self.turn: TurnView | None = None
        """The running turn, or the last one."""
        self.running = False
        self._started_at = 0.0
        self._draw, self._clock = draw, clock
        self._task: asyncio.Task[None] | None = None
        self._chat: Chat | None = None
        self._began: tuple[int, ChatSettings] | None = None
        """The chat of the last turn, and its settings then."""
        self.stopped = False
        """Whether the owner stopped the turn."""
        self._dirty = asyncio.Event()

    @property
    def seconds(self) -> float:
        return self._clock() - self._started_at

    async def run(self, chat: Chat, turn: TurnView, prompt: Prompt) -> None:
        """Runs the turn to its end. A GpuboxError becomes a part of the turn."""
        before, self.turn, self.running, self._started_at = self.turn, turn, True, self._clock()
        began = (id(chat), chat.settings)
        if turn.agent and began == self._began and before and not before.failed and not self.stopped:
            turn.progress.phase = "asks"  # the agent runs already
        self._chat, self.stopped, self._began = chat, False, began
        self._task = asyncio.create_task(self._consume(chat, turn, prompt))
        drawing = asyncio.create_task(self._draw_changes())
        try:
            await asyncio.wait([self._task])
            if not self._task.cancelled() and (error := self._task.exception()):
                raise error
        finally:
            if not self._task.done():  # the screen is being closed
                self._task.cancel()
                with contextlib.suppress(BaseException):
                    await self._task
            drawing.cancel()
            self.running = False
            turn.stop()
            self._draw()

    def answered(self) -> None:
        """The owner has answered a question."""
        if self.turn and self.running:
            self.turn.answered()
            self._dirty.set()

    def stop(self) -> None:
        """Stops the running turn and keeps its text. The second call does not wait for the final event."""
        if not (self._task and not self._task.done() and self._chat):
            return
        if self.stopped or not self._chat.stop():
            self._task.cancel()
        self.stopped = True
        if self.turn:
            self.turn.progress.phase = "stops"

    async def _consume(self, chat: Chat, turn: TurnView, prompt: Prompt) -> None:
        try:
            async with contextlib.aclosing(chat.send(prompt.text, prompt.images, attached=prompt.attached)) as events:
                async for event in events:
                    if isinstance(event, e.TurnStarted) and (endpoint := chat.endpoint):
                        turn.answered_by = model_label(endpoint.profile_name or endpoint.model, endpoint.build)
                    turn.apply(event, self._clock())
                    self._dirty.set()
                    if isinstance(event, e.QuestionAsked):
                        self._draw()
                    if not isinstance(event, (e.TextDelta, e.ReasoningDelta)):
                        await asyncio.sleep(0)
        except GpuboxError as error:
            turn.apply(e.TurnFailed(error.message, error.hint), self._clock())

    async def _draw_changes(self) -> None:
        """Draws after events, and once a second for the clock."""
        while True:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._dirty.wait(), 1.0)
            self._dirty.clear()
            started = self._clock()
            self._draw()
            await asyncio.sleep(max(FRAME_SECONDS, REST_FACTOR * (self._clock() - started)))
