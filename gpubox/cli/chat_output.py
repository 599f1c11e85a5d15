"""Chats as text: the events of a turn as they come (the answer on stdout, all else on stderr), and stored chats."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING, Any

from gpubox import units
from gpubox.agent import events
from gpubox.agent.chat_files import chat_summaries, existing_chat, load_chat, search
from gpubox.agent.chat_log import ChatLog, Turn
from gpubox.agent.reply_text import split_thinking
from gpubox.agent.tools import ToolCall, ToolOutput
from gpubox.cli import diagnostics, output
from gpubox.cli.context import Context
from gpubox.errors import GpuboxError
from gpubox.sanitize import reveal_hidden, sanitize_line, show_name
from gpubox.views.fields import json_fields, json_value
from gpubox.views.marks import GRADES
from gpubox.views.rows import Table

if TYPE_CHECKING:
    from gpubox.agent.chat import Chat

MAX_CARD_LINES = 24
"""Shown lines of a program or of its output: the first and the last ones."""
MAX_LINE_CHARS = 400
_STEP_MARKS = {"pending": "·", "in_progress": "▸", "completed": "✓"}
WHEN = "%Y-%m-%d %H:%M"


class TextTurnOutput:
    """Writes each event as it comes."""

    def __init__(self) -> None:
        self._at_line_start = True
        """Whether the next character of the answer begins a line."""
        self._thinking_tokens = 0
        self._shown_call = "", ""
        self._one_screen = diagnostics.stderr_is_terminal() and output.is_terminal()
        self._text_since_call = self._take_hint = ""

    def begin(self, chat: Chat) -> None:
        """Prints which model answers in which chat."""
        endpoint = chat.endpoint
        model = (endpoint.profile_name or endpoint.model or endpoint.base_url) if endpoint else ""
        build = f" ({endpoint.build})" if endpoint and endpoint.build else ""
        diagnostics.note(f"{model}{build} answers in chat {chat.name}")
        if chat.settings.apply == "ask":
            self._take_hint = f"  Nothing is written yet. gpubox chat take {shlex.quote(chat.name)} writes it."

    def show(self, event: events.AgentEvent) -> None:
        """Prints one event."""
        match event:
            case events.TextDelta():
                diagnostics.redraw("")
                output.emit_chunk(event.text)
                self._text_since_call += event.text
                self._at_line_start = event.text.endswith("\n") if event.text else self._at_line_start
            case events.ReasoningDelta():
                self._thinking_tokens += 1
                self._progress(f"  thinking … ~{self._thinking_tokens:,} tokens")
            case events.PrefillProgress() if event.total > event.cached:
                self._progress(f"  reading the prompt … {event.processed:,} of {event.total:,} tokens")
            case events.TurnStarted() if event.protocol not in ("none", "acp"):
                how = "the model's own calls" if event.protocol == "native" else "as programs in its answer"
                self._note(f"  tools: {how} ({event.why})")
            case events.ToolRequested() if (event.call.id, event.call.title) != self._shown_call:
                self._shown_call = event.call.id, event.call.title
                self._tool_call(event.call)
            case events.PlanChanged():
                for step in event.steps:
                    self._note(f"  {_STEP_MARKS[step.status]} {step.text}")
            case events.ToolFinished():
                changed = event.output.files_changed
                files = f"files: {', '.join(changed[:8])}{' …' if len(changed) > 8 else ''}" if changed else ""
                self._note(tool_result_line(event.output, files))
                _note_block(event.output.text)
            case events.FilesChanged():
                for file in event.files:
                    self._note(f"  {file.kind:<8} {show_name(file.path)}  +{file.added} -{file.removed}")
                if self._take_hint:
                    self._note(self._take_hint)
            case events.TestFinished():
                self._note(tool_result_line(event.output, event.command))
                _note_block(event.output.text)
            case events.Notice():
                self._note(f"  ! {event.text}")
            case events.RoundRestarted():
                self._note(f"  ! {event.why}")
            case events.TurnFinished():
                self._summary(event)
            case events.TurnFailed():
                self._end_line()
            case _:
                pass

    def fail(self, error: GpuboxError) -> None:
        """Ends the line of the answer; the caller prints the error."""
        self._end_line()

    def _tool_call(self, call: ToolCall) -> None:
        self._note(f"  ▸ {sanitize_line(f'{call.name}  {call.title}').rstrip()}")
        text, self._text_since_call = self._text_since_call, ""
        if not (self._one_screen and call.code and call.code.strip() in text):  # else it stands right above
            _note_block(reveal_hidden(tool_call_text(call)))

    def _summary(self, event: events.TurnFinished) -> None:
        totals, timing = event.totals, event.totals.timing
        about = "" if timing.from_server else "~"
        parts = [
            f"{totals.rounds} round{'s' * (totals.rounds != 1)}",
            f"{about}{timing.generated_tokens:,} tokens in {units.duration(timing.wall_seconds)}",
            f"{about}{units.rate(timing.tg_tokens_per_second)} tok/s while writing",
            f"{units.rate(totals.effective_tokens_per_second)} with waiting",
        ]
        if totals.tool_calls:
            calls = f"{totals.tool_calls} tool call{'s' * (totals.tool_calls != 1)}"
            parts.append(f"{calls} in {units.duration(timing.tool_seconds)}")
        self._note(f"  {GRADES[event.reason == 'answered'].before('  '.join(parts))}")

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
    """The program of a call, else its arguments, one in each line; of a hosted agent's nothing: it has a title."""
    if call.title:
        return ""
    return call.code or "\n".join(f"{key}: {value}" for key, value in call.arguments.items())


def tool_result_line(result: ToolOutput, *more: str) -> str:
    """How a call ended, in one line."""
    exit_code = "" if result.exit_code is None else f"exit {result.exit_code}"
    parts = [exit_code, result.ended_by, units.duration(result.seconds), result.isolation, *more]
    return f"  {GRADES[result.ok].before('  '.join(filter(None, parts)))}"


def _note_block(text: str) -> None:
    lines = text.splitlines()
    if len(lines) > MAX_CARD_LINES:
        half = MAX_CARD_LINES // 2
        lines = [*lines[:half], f"… {len(lines) - 2 * half:,} lines …", *lines[-half:]]
    for line in lines:
        rest = len(line) - MAX_LINE_CHARS
        diagnostics.note(f"  │ {line[:MAX_LINE_CHARS]}" + (f" … {rest:,} characters" if rest > 0 else ""))


def list_chats(context: Context, as_json: bool) -> None:
    """Prints one line for each chat."""
    chats = chat_summaries(context.paths)
    rows = [
        (c.name, str(c.turns), units.local_time(c.changed_at, WHEN), c.profile, _prompt(c.problem or c.title))
        for c in chats
    ]
    empty = 'There are no chats yet. `gpubox chat -p "..."` starts one.'
    table = Table(rows, ("NAME", "TURNS", "CHANGED", "PROFILE", "PROMPT"), empty)
    output.emit_result(table, {"chats": json_value(chats)}, as_json=as_json)


def list_agents(context: Context, as_json: bool) -> None:
    """Prints one line for each agent that a chat can host."""
    from gpubox.acp.registry import known_agents

    agents = known_agents(context.config).values()
    rows = [(a.name, a.title, str(a.program or f"missing: {a.install or a.command[0]}")) for a in agents]
    values = [
        {"name": a.name, "title": a.title, "program": a.program and str(a.program), "hosts": list(a.hosts)}
        for a in agents
    ]
    output.emit_result(Table(rows, ("AGENT", "NAME", "PROGRAM")), {"agents": values}, as_json=as_json)


def show_chat(context: Context, name: str, only_turns: bool, as_json: bool) -> None:
    """Prints a chat, or with ``only_turns`` one line for each turn of all branches."""
    log = load_chat(existing_chat(context.paths, name))
    if as_json:
        output.emit_json(_values(log))
        return
    if only_turns:
        current = {turn.id for turn in log.path()}
        rows = [
            (t.id, "*" if t.id in current else "", t.state, _model(t), _prompt(t.header.text))
            for t in log.turns.values()
        ]
        output.emit_table(Table(rows, ("TURN", "", "STATE", "MODEL", "PROMPT")))
        return
    for turn in log.path():
        _print_turn(turn)
    for count, reason in ((log.damaged_lines, "damaged"), (log.unknown_lines, "of a newer gpubox")):
        if count:
            output.emit(f"(not shown: {count} {'line' if count == 1 else 'lines'}, {reason})")


def search_chats(context: Context, text: str, as_json: bool) -> bool:
    """Prints where ``text`` stands in all chats. Returns whether there is a hit."""
    hits = search(context.paths, text)
    rows = [(hit.chat, hit.turn, units.local_time(hit.at, WHEN), hit.role, hit.excerpt) for hit in hits]
    output.emit_result(Table(rows), {"hits": json_value(hits)}, as_json=as_json)
    return bool(hits)


def _values(log: ChatLog) -> dict[str, Any]:
    return {
        "chat": log.name,
        "created_at": log.created_at or None,
        "settings": json_value(log.settings),
        "head": log.head or None,
        "turns": [
            {
                **json_fields(turn.header),
                "state": turn.state,
                "answer": turn.answer,
                "events": [events.event_values(event) for event in turn.events],
            }
            for turn in log.turns.values()
        ],
        "path": [turn.id for turn in log.path()],
        "damaged_lines": log.damaged_lines,
        "unknown_lines": log.unknown_lines,
    }


def _print_turn(turn: Turn) -> None:
    output.emit_text("\n".join(f"> {line}" for line in turn.header.text.split("\n")))
    message = ""
    for event in turn.events:
        if isinstance(event, events.MessageAdded) and event.message.role == "assistant":
            message = event.message.content
            _print_text(split_thinking(message)[1])
        elif isinstance(event, events.ToolFinished):
            output.emit(f"  ▸ {event.call.name}")
            program = tool_call_text(event.call)
            if program.strip() not in message:  # a fenced program stands in the message
                _print_block(reveal_hidden(program))
            output.emit(tool_result_line(event.output))
            _print_block(event.output.text)
        elif isinstance(event, events.TurnFailed):
            output.emit(f"  ✗ {event.message}")
    _print_text("".join(event.text for event in turn.events if isinstance(event, events.TextDelta)))
    output.emit_text(f"\n  ({sanitize_line(_model(turn))}: {turn.state})\n")


def _print_text(text: str) -> None:
    if text.strip():
        output.emit_text(f"\n{text.strip()}\n")


def _print_block(text: str) -> None:
    for line in text.rstrip("\n").split("\n"):
        output.emit(f"  │ {line}")


def _model(turn: Turn) -> str:
    header = turn.header
    return f"{header.profile or header.model or units.UNKNOWN} {header.build}".rstrip()


def _prompt(text: str) -> str:
    """The beginning of a prompt, for a table."""
    return sanitize_line(text)[:80]
