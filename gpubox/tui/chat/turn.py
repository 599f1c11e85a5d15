"""One turn of a chat: agent events in, parts of the transcript and the current progress out. No widget, no clock."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from gpubox.agent import events as e
from gpubox.agent.thinking import split_thinking
from gpubox.agent.tools import ToolCall
from gpubox.sanitize import sanitize_line
from gpubox.tui.chat.markdown import fences
from gpubox.tui.chat.parts import (
    STOP_REASONS,
    AnswerPart,
    ErrorPart,
    NotePart,
    PromptPart,
    SummaryPart,
    ThinkingPart,
    ToolCallPart,
    TurnPart,
    round_line,
)
from gpubox.tui.styled_lines import join_lines, styled_line

if TYPE_CHECKING:
    from gpubox.agent.transcript.chat_log import Turn

MIN_SPEED_DELTAS = 5
MIN_SPEED_SECONDS = 0.25
PROTOCOL_LABELS = {
    "native": "native tool calls",
    "fenced": "tool calls as ```python blocks",
    "none": "no tools",
}


@dataclass(slots=True)
class TurnProgress:
    """What a running turn is doing."""

    phase: str = "asks"
    """asks | reads | thinks | answers | runs | waits | over"""
    round: int = 0
    rounds: int = 0
    prefill: e.PrefillProgress | None = None
    generation: e.GenerationStats | None = None
    """The server's figures of this round."""
    deltas: int = 0
    """Deltas of the turn."""
    stretch_started_at: float | None = None
    """When the current uninterrupted stretch of deltas started, by the caller's clock."""
    stretch_deltas: int = 0
    tool: str = ""

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

    def __init__(self, prompt: str, answered_by: str = "") -> None:
        self.prompt = prompt
        self.parts: list[TurnPart] = [PromptPart(prompt)]
        self.id = ""
        """The turn's id in the chat file; empty until the turn is written there."""
        self.progress = TurnProgress()
        self.over = False
        self.failed = False
        self.context_size_tokens: int | None = None
        self.context_used_tokens: int | None = None
        """Of this chat after the last round; ``None``: the server does not say."""
        self.answered_by = answered_by
        """Profile and build, as far as they are known."""
        self._tool_calls: dict[str, ToolCallPart] = {}
        self._round_notes: list[NotePart] = []
        self._round_start = 1
        """Index of the first part of the current round."""

    @property
    def answer(self) -> str:
        """All visible text of the turn."""
        return "\n\n".join(part.text.strip("\n") for part in self.parts if isinstance(part, AnswerPart))

    def apply(self, event: e.AgentEvent, now: float = 0.0) -> None:
        """Updates the turn with ``event``, which arrived at ``now``."""
        progress = self.progress
        match event:
            case e.ReasoningDelta(text):
                self._count_delta("thinks", now)
                self._open_part(ThinkingPart).add(text)
            case e.TextDelta(text):
                self._count_delta("answers", now)
                self._open_part(AnswerPart).add(text)
            case e.PrefillProgress():
                progress.phase, progress.prefill = "reads", event
            case e.TurnStarted():
                self.context_size_tokens = event.context_size_tokens
                self._add_model_note(event)
            case e.GenerationStats():
                progress.generation = event
            case e.RoundStarted(number, rounds):
                self._close_part()
                progress.round, progress.rounds = number, rounds
                self._start_round()
            case e.RoundRestarted(_, why):
                del self.parts[self._round_start :]
                self._add_note("! ", why)
                self._start_round()
            case e.MessageAdded(message) if message.partial:
                self._restore_partial(message)
            case e.ToolRequested(call):
                self._close_part()
                if call.code and isinstance(last := self.parts[-1], AnswerPart):
                    last.drop_code(call.code)
                self._tool_call(call).state = "runs"
                progress.phase, progress.tool, progress.stretch_started_at = "runs", call.name, None
            case e.ApprovalRequested(call, diff):
                part = self._tool_call(call)
                part.state, part.diff = "waits for you", diff
                part.changed()
                progress.phase, progress.tool = "waits", call.name
            case e.ToolFinished(call, output):
                part = self._tool_call(call)
                part.output = output
                part.changed()
                progress.phase = "asks"
            case e.RoundFinished():
                self.context_used_tokens = event.timing.context_tokens
                self._finish_round(event)
            case e.Notice(_, text):
                self._add_note("! ", text)
            case e.TurnFinished(totals, reason):
                self._finish(totals, reason)
            case e.TurnFailed(message, hint, _, totals):
                self.failed = True
                self._close_part()
                self.parts.append(ErrorPart(message, hint))
                self._finish(totals, "")
            case _:
                pass

    def stop(self, why: str = "stopped") -> None:
        """Ends a turn whose events broke off without a final event."""
        if not self.over:
            self._close_part()
            self.parts.append(NotePart(styled_line((f"■ {why}", "$warning"))))
            self.over, self.progress.phase = True, "over"

    def _start_round(self) -> None:
        self._round_start = len(self.parts)
        progress = self.progress
        progress.phase = "asks"
        progress.prefill = progress.generation = progress.stretch_started_at = None

    def _restore_partial(self, message: e.Message) -> None:
        """Shows the text of a given-up attempt if no later attempt wrote any: the text stays in the conversation."""
        text = split_thinking(message.content)[1]
        if text.strip() and not any(isinstance(part, AnswerPart) for part in self.parts[self._round_start :]):
            self._open_part(AnswerPart).add(text)

    def _add_model_note(self, event: e.TurnStarted) -> None:
        model = sanitize_line(self.answered_by or event.model)
        protocol = PROTOCOL_LABELS.get(event.protocol, sanitize_line(event.protocol))
        row = join_lines([styled_line((model, "$secondary")), styled_line((protocol, "$quiet"))])
        self.parts.append(NotePart(row))

    def _count_delta(self, phase: str, now: float) -> None:
        progress = self.progress
        if progress.stretch_started_at is None:
            progress.stretch_started_at, progress.stretch_deltas = now, 0
        progress.phase = phase
        progress.deltas += 1
        progress.stretch_deltas += 1

    def _open_part(self, kind: type[ThinkingPart] | type[AnswerPart]) -> ThinkingPart | AnswerPart:
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
        if isinstance(last, AnswerPart):
            last.end()
        elif isinstance(last, ThinkingPart) and not last.over:
            last.over = True
            last.changed()

    def _tool_call(self, call: ToolCall) -> ToolCallPart:
        part = self._tool_calls.get(call.id)
        if part is None:
            part = self._tool_calls[call.id] = ToolCallPart(call)
            self.parts.append(part)
        return part

    def _add_note(self, mark: str, text: str) -> None:
        self._close_part()
        self.parts.append(NotePart(styled_line((mark, "$warning"), (sanitize_line(text), "$secondary"))))

    def _finish_round(self, event: e.RoundFinished) -> None:
        self._close_part()
        timing = event.timing
        thinking = [part for part in self.parts if isinstance(part, ThinkingPart) and part.seconds is None]
        if thinking:
            for part in thinking[:-1]:
                part.seconds = 0.0
            last = thinking[-1]
            last.seconds = timing.thinking_seconds
            if timing.thinking_tokens is not None and len(thinking) == 1:
                last.tokens = timing.thinking_tokens
                last.exact = not timing.draft_tokens  # with drafts a delta may hold several tokens
            last.changed()
        row = round_line(event.round, max(self.progress.rounds, event.round), timing)
        note = NotePart(row, gap=isinstance(self.parts[-1], AnswerPart))
        self._round_notes.append(note)
        self.parts.append(note)

    def _finish(self, totals: e.TurnTotals, reason: str) -> None:
        self._close_part()
        for part in self._tool_calls.values():
            if part.output is None:
                part.state = STOP_REASONS["cancelled"]
                part.changed()
        if len(self._round_notes) == 1:  # the summary repeats the figures of a single round
            self.parts.remove(self._round_notes[0])
        if totals.timing.wall_seconds:
            self.parts.append(SummaryPart(totals, reason))
        self.over, self.progress.phase = True, "over"


def model_label(profile: str, build: str) -> str:
    """``qwen36-mtp-16gb   llama-server b11434``, as far as it is known."""
    return "   ".join(part for part in (profile, build) if part)


def stored_turn_view(turn: Turn) -> TurnView:
    """A turn of a chat file as the screen showed it when it ended, or when gpubox was killed during it."""
    header = turn.header
    view = TurnView(header.text, model_label(header.profile or header.model, header.build))
    view.id = turn.id
    for event in turn.events:
        if not isinstance(event, e.MessageAdded):
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


# -- code snippets ------------------------------------------------------------------------------------

FILE_EXTENSIONS = {
    "python": "py", "py": "py", "bash": "sh", "sh": "sh", "shell": "sh", "javascript": "js", "js": "js",
    "typescript": "ts", "c": "c", "cpp": "cpp", "c++": "cpp", "rust": "rs", "go": "go", "java": "java", "json": "json",
    "yaml": "yaml", "toml": "toml", "html": "html", "css": "css", "sql": "sql", "markdown": "md", "diff": "diff",
}  # fmt: skip
"""By language."""


@dataclass(frozen=True, slots=True)
class CodeSnippet:
    """A program in a turn, as the model wrote it."""

    text: str
    language: str

    @property
    def line_count(self) -> int:
        return len(self.text.rstrip("\n").split("\n"))

    @property
    def file_name(self) -> str:
        """A name to save it under."""
        return f"snippet.{FILE_EXTENSIONS.get(self.language.lower(), 'txt')}"


def code_snippets(turn: TurnView) -> list[CodeSnippet]:
    """The code blocks and executed programs of a turn, in order. A block that was then executed counts once."""
    snippets: list[CodeSnippet] = []
    for part in turn.parts:
        if isinstance(part, AnswerPart):
            snippets += [CodeSnippet(text, language or "text") for language, text in fences(part.text)]
        elif isinstance(part, ToolCallPart) and part.call.code:
            code = part.call.code
            snippets = [snippet for snippet in snippets if snippet.text.strip() != code.strip()]
            snippets.append(CodeSnippet(code, "python"))
    return [snippet for snippet in snippets if snippet.text.strip()]
