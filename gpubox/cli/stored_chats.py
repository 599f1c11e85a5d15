"""Lists, prints and searches stored chats."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from gpubox import units
from gpubox.agent.chat_files import chat_summaries, existing_chat, load_chat, search
from gpubox.agent.chat_log import ChatLog, Turn
from gpubox.agent.events import MessageAdded, TextDelta, ToolFinished, TurnFailed, event_values
from gpubox.agent.reply_text import split_thinking
from gpubox.cli import output
from gpubox.cli.chat_output import tool_call_text, tool_result_line
from gpubox.cli.context import Context
from gpubox.sanitize import reveal_hidden, sanitize_line
from gpubox.views.fields import json_value
from gpubox.views.rows import Table


def list_chats(context: Context, as_json: bool) -> None:
    """Prints one line for each chat."""
    chats = chat_summaries(context.paths)
    if as_json:
        output.emit_json({"chats": json_value(chats)})
    else:
        rows = [
            (c.name, str(c.turns), _local(c.changed_at), c.profile, sanitize_line(c.problem or c.title)[:80])
            for c in chats
        ]
        empty = 'There are no chats yet. `gpubox chat -p "..."` starts one.'
        output.emit_table(Table(rows, ("NAME", "TURNS", "CHANGED", "PROFILE", "PROMPT"), empty))


def show_chat(context: Context, name: str, only_turns: bool, as_json: bool) -> None:
    """Prints a chat, or with ``only_turns`` one line for each turn of all branches."""
    log = load_chat(existing_chat(context.paths, name))
    if as_json:
        output.emit_json(_values(log))
        return
    if only_turns:
        current = {turn.id for turn in log.path()}
        rows = [
            (t.id, "*" if t.id in current else "", t.state, _model(t), sanitize_line(t.header.text)[:80])
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
    if as_json:
        output.emit_json({"hits": json_value(hits)})
    else:
        output.emit_table(Table([(hit.chat, hit.turn, _local(hit.at), hit.role, hit.excerpt) for hit in hits]))
    return bool(hits)


def _values(log: ChatLog) -> dict[str, Any]:
    import msgspec

    return {
        "chat": log.name,
        "created_at": log.created_at or None,
        "settings": msgspec.to_builtins(log.settings),
        "head": log.head or None,
        "turns": [_turn_values(turn) for turn in log.turns.values()],
        "path": [turn.id for turn in log.path()],
        "damaged_lines": log.damaged_lines,
        "unknown_lines": log.unknown_lines,
    }


def _turn_values(turn: Turn) -> dict[str, Any]:
    header = turn.header
    return {
        "turn": turn.id,
        "parent": turn.parent_id or None,
        "at": header.at,
        "text": header.text,
        "profile": header.profile or None,
        "build": header.build or None,
        "model": header.model or None,
        "state": turn.state,
        "answer": turn.answer,
        "events": [event_values(event) for event in turn.events],
    }


def _print_turn(turn: Turn) -> None:
    output.emit_text("\n".join(f"> {line}" for line in turn.header.text.split("\n")))
    message = ""
    for event in turn.events:
        if isinstance(event, MessageAdded) and event.message.role == "assistant":
            message = event.message.content
            _print_text(split_thinking(message)[1])
        elif isinstance(event, ToolFinished):
            output.emit(f"  ▸ {event.call.name}")
            program = tool_call_text(event.call)
            if program.strip() not in message:  # a fenced program stands in the message
                _print_block(reveal_hidden(program))
            output.emit(tool_result_line(event.output))
            _print_block(event.output.text)
        elif isinstance(event, TurnFailed):
            output.emit(f"  ✗ {event.message}")
    _print_text("".join(event.text for event in turn.events if isinstance(event, TextDelta)))
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


def _local(iso: str) -> str:
    try:
        return f"{datetime.fromisoformat(iso).astimezone():%Y-%m-%d %H:%M}"
    except ValueError:
        return iso
