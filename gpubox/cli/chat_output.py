"""The events of a turn as plain text: the answer to stdout as it comes, everything beside it to stderr."""

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
"""Of a program, and of its output; of more the head and the tail."""


class TextTurnOutput:
    """Writes each event as it comes."""

    def __init__(self) -> None:
        self._live = diagnostics.stderr_is_terminal()
        self._drawn = False
        """Whether a line stands on the terminal that the next one replaces."""
        self._at_start = True
        """Whether the answer's next character begins a line."""
        self._thought = 0
        self._one_screen = self._live and output.is_terminal()
        self._said = ""
        """The answer's text since the last call."""

    def begin(self, chat: Chat) -> None:
        """Who answers, in which chat."""
        endpoint = chat.endpoint
        who = (endpoint.profile_name or endpoint.model or endpoint.base_url) if endpoint else ""
        build = f" ({endpoint.build})" if endpoint and endpoint.build else ""
        diagnostics.note(f"{who}{build} answers in chat {chat.name}")

    def show(self, event: AgentEvent) -> None:
        """One event."""
        match event:
            case TextDelta():
                self._clear()
                output.emit_chunk(event.text)
                self._said += event.text
                self._at_start = event.text.endswith("\n") if event.text else self._at_start
            case ReasoningDelta():
                self._thought += 1
                self._progress(f"  thinking … ~{self._thought:,} tokens")
            case PrefillProgress() if event.total > event.cached:
                self._progress(f"  reading the prompt … {event.processed:,} of {event.total:,} tokens")
            case TurnStarted() if event.protocol != "none":
                self._line(f"  tools: {event.protocol}, as {event.why}")
            case ToolRequested():
                self._card(event.call)
            case ToolFinished():
                self._result(event.output)
            case Notice():
                self._line(f"  ! {event.text}")
            case RoundRestarted():
                self._line(f"  ! {event.why}")
            case TurnFinished():
                self._totals(event)
            case TurnFailed():
                self._clear()
                self._end_line()
            case _:
                pass

    def fail(self, error: GpuboxError) -> None:
        """The line of the answer ends; the error is told by whoever catches it."""
        self._clear()
        self._end_line()

    def _card(self, call: ToolCall) -> None:
        self._line(f"  ▸ {call.name}")
        said, self._said = self._said, ""
        if self._one_screen and call.code and call.code.strip() in said:
            return  # a fenced program stands right above
        shown = call.code or "\n".join(f"{key}: {value}" for key, value in call.arguments.items())
        for line in _cut(reveal_hidden(shown)):
            diagnostics.note(f"  │ {line}")

    def _result(self, done: ToolOutput) -> None:
        exit_code = "" if done.exit_code is None else f"exit {done.exit_code}"
        files = f"files: {', '.join(done.files_changed[:8])}{' …' if len(done.files_changed) > 8 else ''}"
        words = [
            exit_code,
            done.ended_by,
            units.duration(done.seconds),
            done.isolation,
            files if done.files_changed else "",
        ]
        self._line(f"  {'✓' if done.ok else '✗'} {'  '.join(word for word in words if word)}")
        for line in _cut(done.text):
            diagnostics.note(f"  │ {line}")

    def _totals(self, end: TurnFinished) -> None:
        totals = end.totals
        words = [
            f"{totals.rounds} round{'s' * (totals.rounds != 1)}",
            f"{totals.timing.generated_tokens:,} tokens in {units.duration(totals.timing.wall_seconds)}",
            f"effective {units.rate(totals.effective_tokens_per_second)} tok/s",
            f"tools {totals.tool_calls} in {units.duration(totals.timing.tool_seconds)}" if totals.tool_calls else "",
        ]
        self._line(f"  {'✓' if end.reason == 'answered' else '✗'} {'  '.join(word for word in words if word)}")

    def _line(self, text: str) -> None:
        self._clear()
        self._end_line()
        diagnostics.note(text)

    def _end_line(self) -> None:
        if not self._at_start:
            output.emit_chunk("\n")
            self._at_start = True

    def _progress(self, text: str) -> None:
        if self._live and self._at_start:  # in the middle of a line it would wipe out what stands there
            diagnostics.redraw(text)
            self._drawn = True

    def _clear(self) -> None:
        if self._drawn:
            diagnostics.redraw("")
            self._drawn = False


def _cut(text: str) -> list[str]:
    lines = text.splitlines()
    if len(lines) > MAX_CARD_LINES:
        half = MAX_CARD_LINES // 2
        lines = [*lines[:half], f"… {len(lines) - 2 * half:,} lines …", *lines[-half:]]
    return [line if len(line) <= 400 else f"{line[:400]} … {len(line) - 400:,} characters" for line in lines]
