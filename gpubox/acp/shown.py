"""What an editor is shown of gpubox's own agent: its events as the values of ``session/update``."""

from __future__ import annotations

import re
import secrets
from collections.abc import Iterator, Mapping
from typing import Any

from gpubox.agent.chat_log import Turn
from gpubox.agent.events import (
    AgentEvent,
    MessageAdded,
    Notice,
    ReasoningDelta,
    RoundRestarted,
    TestFinished,
    TextDelta,
    ToolFinished,
    ToolRequested,
    TurnFailed,
)
from gpubox.agent.reply_text import split_thinking
from gpubox.agent.tools import ToolCall, ToolOutput
from gpubox.agent.workspace import Workspace, read_item
from gpubox.errors import GpuboxError
from gpubox.line_diff import is_binary
from gpubox.sandbox.changes import Change, unified
from gpubox.sandbox.layers import View
from gpubox.sanitize import reveal_hidden, sanitize_line, sanitize_text

Update = dict[str, Any]
_KINDS = {"list": "search", "read": "read", "search": "search", "edit": "edit", "write": "edit", "run": "execute"}
_MAX_TITLE, _MAX_TEXT, _MAX_FILES = 120, 200_000, 100
"""Characters; of a file or an output; files of one question that are shown."""


def new_id() -> str:
    """The id of a tool call that is not the model's."""
    return f"gpubox-{secrets.token_hex(6)}"


def text_block(text: str) -> Update:
    """A content block of an untrusted text."""
    return {"type": "text", "text": sanitize_text(text)}


def chunk(kind: str, text: str) -> Update:
    """One piece of a message. ``kind``: ``user_message``, ``agent_message`` or ``agent_thought``."""
    return {"sessionUpdate": f"{kind}_chunk", "content": text_block(text)}


def note(text: str) -> Update:
    """A sentence of gpubox, on a line of its own."""
    return chunk("agent_message", f"\n\n> {sanitize_line(text)}\n\n")


def fenced(text: str, language: str = "") -> Update:
    """The content of a message: text as it is, because an editor reads Markdown."""
    visible = reveal_hidden(text[:_MAX_TEXT])
    fence = "`" * max(3, 1 + max(map(len, re.findall("`+", visible)), default=0))
    return {"content": {"type": "text", "text": f"{fence}{language}\n{visible.rstrip()}\n{fence}"}}


def shown_text(text: str, language: str = "") -> Update:
    """The same of a tool call."""
    return {"type": "content", **fenced(text, language)}


def tool_call(identity: str, title: str, kind: str, *content: Update) -> Update:
    """A tool call that begins now."""
    called = {"toolCallId": identity, "title": sanitize_line(title)[:_MAX_TITLE], "kind": kind, "status": "in_progress"}
    return {"sessionUpdate": "tool_call", **called, "content": [*content]}


def tool_update(identity: str, status: str, *content: Update) -> Update:
    """More of it. ``content`` takes the place of all before; none: that stays."""
    more = {"content": [*content]} if content else {}
    return {"sessionUpdate": "tool_call_update", "toolCallId": identity, "status": status, **more}


def updates(event: AgentEvent, workspace: Workspace | None) -> Iterator[Update]:
    """What an event of a running turn shows."""
    match event:
        case TextDelta():
            yield chunk("agent_message", event.text)
        case ReasoningDelta():
            yield chunk("agent_thought", event.text)
        case ToolRequested():
            yield _requested(event.call, workspace)
        case ToolFinished():
            yield _finished(event.call, event.output, workspace)
        case TestFinished():
            yield tool_call(identity := new_id(), event.command, "execute")
            yield _ended(identity, event.output, shown_text(event.output.text))
        case Notice():
            yield note(event.text)
        case RoundRestarted():
            yield note(event.why)
        case _:
            pass


def replayed(turn: Turn, workspace: Workspace | None) -> Iterator[Update]:
    """What a turn of the past shows."""
    yield chunk("user_message", turn.header.text)
    for event in turn.events:
        if isinstance(event, MessageAdded) and event.message.role == "assistant":
            thinking, text = split_thinking(event.message.content)
            for kind, said in (("thought", event.message.reasoning_content or thinking), ("message", text)):
                if said.strip():
                    yield chunk(f"agent_{kind}", said)
        elif isinstance(event, ToolFinished):
            yield _requested(event.call, workspace)
            yield _finished(event.call, event.output, workspace)
        elif isinstance(event, TurnFailed):
            yield note(event.message)
        elif not isinstance(event, ToolRequested):
            yield from updates(event, workspace)


def _requested(call: ToolCall, workspace: Workspace | None) -> Update:
    texts = [value for value in (call.code, *call.arguments.values()) if isinstance(value, str) and value.strip()]
    about = texts[0].strip().split("\n")[0] if texts else ""
    title = call.title or f"{call.name} {about}"
    code = [shown_text(call.code, call.language)] if call.code else []
    shown = tool_call(call.id, title, _KINDS.get(call.name, "execute" if call.code else "other"), *code)
    if path := _absolute(call, workspace):
        line = call.arguments.get("first_line")
        shown["locations"] = [{"path": path, **({"line": line} if type(line) is int and 0 < line < 1 << 31 else {})}]
    return shown


def _finished(call: ToolCall, output: ToolOutput, workspace: Workspace | None) -> Update:
    path, edits = _absolute(call, workspace), call.arguments.get("edits")
    pairs = [(each.get("old"), each.get("new")) for each in edits or () if isinstance(each, Mapping)] \
        if isinstance(edits, list) else [(None, call.arguments.get("content"))]  # fmt: skip
    diffs = [_diff(path, old, new) for old, new in pairs if isinstance(new, str)] if path and output.ok else []
    code = [shown_text(call.code, call.language)] if call.code else []
    return _ended(call.id, output, *(diffs or [*code, shown_text(output.text)]))


def _ended(identity: str, output: ToolOutput, *content: Update) -> Update:
    return tool_update(identity, "completed" if output.ok else "failed", *content)


def _diff(path: str, old: Any, new: str) -> Update:
    before = _visible(old) if isinstance(old, str) else None
    return {"type": "diff", "path": path, "oldText": before, "newText": _visible(new)}


def _visible(text: str) -> str:
    """Nothing in it is hidden: the owner decides about it."""
    return "\t".join(map(reveal_hidden, text.split("\t")))


def _absolute(call: ToolCall, workspace: Workspace | None) -> str:
    path = call.arguments.get("path")
    if not workspace or not isinstance(path, str):
        return ""
    try:
        return _sendable(str(workspace.root.joinpath(*workspace.parts(path))))
    except GpuboxError:
        return ""


def _sendable(path: str) -> str:
    """Empty if the path is not UTF-8: JSON has no other names."""
    try:
        path.encode()
    except UnicodeError:
        return ""
    return path


def file_text(view: View, path: str) -> str | None:
    """The text of a regular file in UTF-8; ``None``: there is none. Blocking."""
    *folders, name = path.split("/")
    try:
        with view.folder(tuple(folders)) as folder:
            item = folder.find(name)
            data = read_item(item, path) if item and item.is_file else None
        return None if data is None or is_binary(data) else data.decode()
    except (OSError, ValueError, GpuboxError):
        return None


def shown_changes(changes: list[Change], live: View, made: View | None) -> list[Update]:
    """The contents of a question about ``changes``: each as a diff, or in words where it is no text. Blocking."""
    root, shown = live.folders[-1], []
    for change in changes[:_MAX_FILES]:
        old, new = file_text(live, change.path), file_text(made, change.path) if made else None
        path, removed = _sendable(str(root / change.path)), change.kind == "removed"
        small = change.kind in ("new", "changed", "removed") and max(len(old or ""), len(new or "")) <= _MAX_TEXT
        if path and small and (new is not None or (removed and old is not None)):
            shown.append(_diff(path, old, new or ""))
        else:
            shown.append(shown_text(unified(change)[:_MAX_TEXT]))
    if len(changes) > _MAX_FILES:
        shown.append(shown_text(f"{len(changes) - _MAX_FILES:,} more files"))
    return shown
