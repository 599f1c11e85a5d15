"""Prints the events of a chat turn as text: the answer on stdout as it comes, everything else on stderr."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpubox import units
from gpubox.agent.events import (
    AgentEvent,
    Notice,
    PrefillProgress,
    ReasoningDelta,
    RoundRestarted,
    TextDelta,
    ToolFinished,
    ToolRequested,
    TurnFailed,
    TurnFinished,
    TurnStarted,
)
from gpubox.agent.tools import ToolCall, ToolOutput
from gpubox.cli import diagnostics, output
from gpubox.errors import GpuboxError
from gpubox.sanitize import reveal_hidden

if TYPE_CHECKING:
    from gpubox.agent.chat import Chat

MAX_CARD_LINES = 24
"""Shown lines of a program or of its output: the first and the last ones."""
MAX_LINE_CHARS = 400


class TextTurnOutput:
    """Writes each event as it comes."""

    def __init__(self) -> None:
        self._at_line_start = True
        """Whether the next character of the answer begins a line."""
        self._thinking_tokens = 0
        self._one_screen = diagnostics.stderr_is_terminal() and output.is_terminal()
        self._text_since_call = ""

    def begin(self, chat: Chat) -> None:
        """Prints which model answers in which chat."""
        endpoint = chat.endpoint
        model = (endpoint.profile_name or endpoint.model or endpoint.base_url) if endpoint else ""
        build = f" ({endpoint.build})" if endpoint and endpoint.build else ""
        diagnostics.note(f"{model}{build} answers in chat {chat.name}")

    def show(self, event: AgentEvent) -> None:
        """Prints one event."""
        match event:
            case TextDelta():
                diagnostics.redraw("")
                output.emit_chunk(event.text)
                self._text_since_call += event.text
                self._at_line_start = event.text.endswith("\n") if event.text else self._at_line_start
            case ReasoningDelta():
                self._thinking_tokens += 1
                self._progress(f"  thinking … ~{self._thinking_tokens:,} tokens")
            case PrefillProgress() if event.total > event.cached:
                self._progress(f"  reading the prompt … {event.processed:,} of {event.total:,} tokens")
            case TurnStarted() if event.protocol != "none":
                self._note(f"  tools: {event.protocol} ({event.why})")
            case ToolRequested():
                self._tool_call(event.call)
            case ToolFinished():
                changed = event.output.files_changed
                files = f"files: {', '.join(changed[:8])}{' …' if len(changed) > 8 else ''}" if changed else ""
                self._note(tool_result_line(event.output, files))
                _note_block(event.output.text)
            case Notice():
                self._note(f"  ! {event.text}")
            case RoundRestarted():
                self._note(f"  ! {event.why}")
            case TurnFinished():
                self._summary(event)
            case TurnFailed():
                self._end_line()
            case _:
                pass

    def fail(self, error: GpuboxError) -> None:
        """Ends the line of the answer; the caller prints the error."""
        self._end_line()

    def _tool_call(self, call: ToolCall) -> None:
        self._note(f"  ▸ {call.name}")
        text, self._text_since_call = self._text_since_call, ""
        if not (self._one_screen and call.code and call.code.strip() in text):  # else it stands right above
            _note_block(reveal_hidden(tool_call_text(call)))

    def _summary(self, event: TurnFinished) -> None:
        totals, timing = event.totals, event.totals.timing
        about = "" if timing.from_server else "~"
        parts = [
            f"{totals.rounds} round{'s' * (totals.rounds != 1)}",
            f"{about}{timing.generated_tokens:,} tokens in {units.duration(timing.wall_seconds)}",
            f"effective {units.rate(totals.effective_tokens_per_second)} tok/s",
        ]
        if totals.tool_calls:
            parts.append(f"tools {totals.tool_calls} in {units.duration(timing.tool_seconds)}")
        self._note(f"  {'✓' if event.reason == 'answered' else '✗'} {'  '.join(parts)}")

    def _note(self, text: str) -> None:
        self._end_line()
        diagnostics.note(text)

    def _end_line(self) -> None:
        if not self._at_line_start:
            output.emit_chunk("\n")
            self._at_line_start = True

    def _progress(self, text: str) -> None:
        if self._at_line_start:  # in the middle of a line it would erase the answer
            diagnostics.redraw(text)


def tool_call_text(call: ToolCall) -> str:
    """The program of a call, else its arguments, one in each line."""
    return call.code or "\n".join(f"{key}: {value}" for key, value in call.arguments.items())


def tool_result_line(result: ToolOutput, *more: str) -> str:
    """How a call ended, in one line."""
    exit_code = "" if result.exit_code is None else f"exit {result.exit_code}"
    parts = [exit_code, result.ended_by, units.duration(result.seconds), result.isolation, *more]
    return f"  {'✓' if result.ok else '✗'} {'  '.join(filter(None, parts))}"


def _note_block(text: str) -> None:
    lines = text.splitlines()
    if len(lines) > MAX_CARD_LINES:
        half = MAX_CARD_LINES // 2
        lines = [*lines[:half], f"… {len(lines) - 2 * half:,} lines …", *lines[-half:]]
    for line in lines:
        rest = len(line) - MAX_LINE_CHARS
        diagnostics.note(f"  │ {line[:MAX_LINE_CHARS]}" + (f" … {rest:,} characters" if rest > 0 else ""))
