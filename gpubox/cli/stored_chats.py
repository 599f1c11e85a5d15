"""The chats there are: list, one of them, search."""

from __future__ import annotations

from dataclasses import asdict
from datetime import datetime
from typing import Any

from gpubox import units
from gpubox.agent.events import MessageAdded, TextDelta, ToolFinished, TurnFailed, event_values
from gpubox.agent.thinking import split_thinking
from gpubox.agent.transcript.chat_files import chat_summaries, existing_chat, load_chat
from gpubox.agent.transcript.chat_log import ChatLog, Turn
from gpubox.agent.transcript.search import search
from gpubox.cli import output
from gpubox.cli.context import Context
from gpubox.sanitize import reveal_hidden, sanitize_line


def list_chats(context: Context, as_json: bool) -> None:
    """Prints every chat."""
    found = chat_summaries(context.paths)
    if as_json:
        rows = [{**asdict(head), "path": str(head.path), "problem": head.problem or None} for head in found]
        output.emit_json({"chats": rows})
    elif found:
        rows_ = [
            (h.name, str(h.turns), _local(h.changed_at), h.profile, sanitize_line(h.problem or h.title)[:80])
            for h in found
        ]
        output.emit_table(rows_, header=("NAME", "TURNS", "CHANGED", "PROFILE", "ASKED"))
    else:
        output.emit('There is no chat yet. `gpubox chat -p "..."` begins one.')


def show_chat(context: Context, name: str, only_turns: bool, as_json: bool) -> None:
    """Prints what was said in one."""
    log = load_chat(existing_chat(context.paths, name))
    if as_json:
        output.emit_json(_values(log))
        return
    if only_turns:
        way = {turn.id for turn in log.path()}
        rows = [
            (t.id, "*" if t.id in way else "", t.state, _who(t), sanitize_line(t.header.text)[:80])
            for t in log.turns.values()
        ]
        output.emit_table(rows, header=("TURN", "", "END", "ANSWERED BY", "ASKED"))
        return
    for turn in log.path():
        _print(turn)
    for count, what in ((log.damaged_lines, "damaged"), (log.unknown_lines, "of a newer gpubox")):
        if count:
            output.emit(f"(not shown: {count} {'line' if count == 1 else 'lines'}, {what})")


def search_chats(context: Context, text: str, as_json: bool) -> bool:
    """Prints where ``text`` was said; whether it was."""
    found = search(context.paths, text)
    if as_json:
        output.emit_json({"hits": [asdict(hit) for hit in found]})
    else:
        output.emit_table([(hit.chat, hit.turn, _local(hit.at), hit.role, hit.excerpt) for hit in found])
    return bool(found)


def _values(log: ChatLog) -> dict[str, Any]:
    import msgspec

    return {
        "chat": log.name,
        "created_at": log.created_at or None,
        "settings": msgspec.to_builtins(log.settings),
        "head": log.head or None,
        "turns": [_turn(turn) for turn in log.turns.values()],
        "path": [turn.id for turn in log.path()],
        "damaged_lines": log.damaged_lines,
        "unknown_lines": log.unknown_lines,
    }


def _turn(turn: Turn) -> dict[str, Any]:
    asked = turn.header
    return {
        "turn": turn.id,
        "parent": turn.parent_id or None,
        "at": asked.at,
        "text": asked.text,
        "profile": asked.profile or None,
        "build": asked.build or None,
        "model": asked.model or None,
        "state": turn.state,
        "answer": turn.answer,
        "events": [event_values(event) for event in turn.events],
    }


def _print(turn: Turn) -> None:
    output.emit_text("\n".join(f"> {line}" for line in turn.header.text.split("\n")))
    said = ""
    for event in turn.events:
        if isinstance(event, MessageAdded) and event.message.role == "assistant":
            said = event.message.content
            _say(split_thinking(said)[1])
        elif isinstance(event, ToolFinished):
            _print_run(event, said)
        elif isinstance(event, TurnFailed):
            output.emit(f"  ✗ {event.message}")
    _say("".join(event.text for event in turn.events if isinstance(event, TextDelta)))
    output.emit_text(f"\n  ({sanitize_line(_who(turn))}: {turn.state})\n")


def _say(text: str) -> None:
    if text.strip():
        output.emit_text(f"\n{text.strip()}\n")


def _print_run(event: ToolFinished, said: str) -> None:
    call, done = event.call, event.output
    output.emit(f"  ▸ {call.name}")
    code = call.code or "\n".join(f"{key}: {value}" for key, value in call.arguments.items())
    if code.strip() not in said:  # a fenced program stands in the text
        _indented(reveal_hidden(code))
    end = "" if done.exit_code is None else f"exit {done.exit_code}"
    words = [end, done.ended_by, units.duration(done.seconds), done.isolation]
    output.emit(f"  {'✓' if done.ok else '✗'} {'  '.join(word for word in words if word)}")
    _indented(done.text)


def _indented(text: str) -> None:
    for line in text.rstrip("\n").split("\n"):
        output.emit(f"  │ {line}")


def _who(turn: Turn) -> str:
    asked = turn.header
    return f"{asked.profile or asked.model or '—'} {asked.build}".rstrip()


def _local(iso: str) -> str:
    try:
        return f"{datetime.fromisoformat(iso).astimezone():%Y-%m-%d %H:%M}"
    except ValueError:
        return iso
