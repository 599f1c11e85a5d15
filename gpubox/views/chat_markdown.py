"""A chat as one Markdown document: prompts, answers, tool calls and what they changed."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpubox.agent.events import FilesChanged, MessageAdded, ToolFinished
from gpubox.agent.reply_text import split_thinking
from gpubox.sanitize import sanitize_text, show_name
from gpubox.views.changes import changed_sentence, what_changed

if TYPE_CHECKING:
    from gpubox.agent.chat_log import ChatLog, Turn

OUTPUT_CHARACTERS = 4000
"""Of one tool output."""


def chat_markdown(log: ChatLog) -> str:
    """The turns of the current branch. Thinking is left out."""
    return f"# {log.name}\n\n" + "\n".join(_turn_text(turn) for turn in log.path())


def _turn_text(turn: Turn) -> str:
    header = turn.header
    by = " · ".join(part for part in (header.profile or header.model, header.build, header.at) if part)
    parts = [f"## {' '.join(sanitize_text(header.text).split())[:80]}", f"_{by}_", quoted(header.text)]
    for event in turn.events:
        match event:
            case MessageAdded(message) if message.role == "assistant":
                parts.append(sanitize_text(split_thinking(message.content)[1]).strip())
            case ToolFinished(call, output):
                given = call.code or str(call.arguments.get("command", call.arguments.get("path", "")))
                parts += [f"**{call.name}**", fenced(given, call.language if call.code else "")]
                parts.append(fenced(output.diff, "diff") if output.diff else fenced(output.text[:OUTPUT_CHARACTERS]))
            case FilesChanged(files):
                rows = [f"- {_code(each.path)} {each.kind} {what_changed(each)}".rstrip() for each in files]
                parts.append("\n".join([f"{changed_sentence(files)}:", "", *rows]))
    return "\n\n".join(part for part in parts if part) + "\n"


def quoted(text: str) -> str:
    """``text`` as a Markdown quotation."""
    return "\n".join(f"> {line}".rstrip() for line in sanitize_text(text).strip("\n").split("\n"))


def _code(path: str) -> str:
    """A path as a code span that it does not end itself."""
    name = show_name(path)
    mark = "`"
    while mark in name:
        mark += "`"
    return f"{mark} {name} {mark}" if "`" in name else f"`{name}`"


def fenced(text: str, language: str = "") -> str:
    """``text`` in a fence that it does not close itself; empty without a text."""
    text = sanitize_text(text).strip("\n")
    fence = "```"
    while fence in text:
        fence += "`"
    return f"{fence}{language}\n{text}\n{fence}" if text else ""
