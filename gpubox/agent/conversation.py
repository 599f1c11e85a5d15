"""The conversation: messages that are only ever appended, and how they are sent. Pure.

What is sent is the same bytes each time, so that the server's KV cache holds all but the newest messages.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import msgspec

from gpubox.agent.clip import truncate_output
from gpubox.agent.events import AgentEvent, Message, MessageAdded, MessageShortened
from gpubox.agent.fenced_code import python_program
from gpubox.agent.tools import ToolCall

STUB = "[output folded to save context: {} characters]"
FOLD_FROM = 200
"""Characters of tool output that are worth folding."""
STOPPED = "(stopped)"


class Conversation:
    """The messages of one chat, without the system message: that belongs to the settings."""

    def __init__(self, messages: Iterable[Message] = ()) -> None:
        self.messages = list(messages)
        self.server_cache_tokens = 0
        """What the server's cache held after the last round; 0: nobody knows."""

    def add(self, message: Message) -> MessageAdded:
        """Appends ``message``."""
        self.messages.append(message)
        return MessageAdded(message)

    def apply(self, event: AgentEvent) -> None:
        """Does again what a recorded event did: a chat made of its events is sent as it was."""
        if isinstance(event, MessageAdded):
            self.messages.append(event.message)
        elif isinstance(event, MessageShortened) and 0 <= event.index < len(self.messages):
            self.messages[event.index] = msgspec.structs.replace(self.messages[event.index], content=event.content)

    def fold(self, characters: int) -> list[MessageShortened]:
        """Shortens the oldest tool outputs to one line each until ``characters`` are saved, the newest one never."""
        done: list[MessageShortened] = []
        saved = 0
        for index in self._outputs()[:-1]:
            size = len(self.messages[index].content)
            if size < FOLD_FROM or saved >= characters:
                continue
            event = MessageShortened(index, STUB.format(f"{size:,}"))
            self.apply(event)
            saved += size - len(event.content)
            done.append(event)
        return done

    def shorten_newest(self, characters: int) -> list[MessageShortened]:
        """Leaves out the middle of the newest tool output, ``characters`` of it or two thirds; empty: it is short."""
        index = next(iter(self._outputs()[-1:]), None)
        if index is None or (size := len(self.messages[index].content)) < FOLD_FROM:
            return []
        text, _ = truncate_output(self.messages[index].content, max(size - characters, size // 3))
        event = MessageShortened(index, text)
        self.apply(event)
        return [event]

    def _outputs(self) -> list[int]:
        return [index for index, message in enumerate(self.messages) if _is_output(message)]

    def programs_not_run(self) -> int:
        """How many answers hold a Python block that no tool ran, as long as the model never made a native call."""
        if any(message.tool_calls for message in self.messages):
            return 0
        following = [message.role for message in self.messages[1:]] + [""]
        pairs = zip(self.messages, following, strict=False)
        return sum(
            m.role == "assistant" and after != "tool" and bool(python_program(m.content)[0]) for m, after in pairs
        )

    def unanswered(self) -> list[ToolCall]:
        """Calls that have no tool message yet: a template refuses a history with such."""
        answered = {message.tool_call_id for message in self.messages if message.role == "tool"}
        return [call for message in self.messages for call in message.tool_calls if call.id not in answered]


def _is_output(message: Message) -> bool:
    return message.role == "tool" and not message.content.startswith(STUB[:14])


def rendered(
    conversation: Conversation, system: str, *, native: bool, system_role: bool = True
) -> list[dict[str, Any]]:
    """The ``messages`` of a request. ``native`` says whether the template knows tool calls; else they are text.

    Without ``system_role`` the system text begins the first user's message.
    """
    made: list[dict[str, Any]] = [{"role": "system" if system_role else "user", "content": system}] if system else []
    for message in conversation.messages:
        item = _one(message, native)
        last = made[-1] if made else {}
        if item["role"] == "user" and last.get("role") == "tool":
            made.append({"role": "assistant", "content": STOPPED})  # many templates want the roles in turn
        elif item["role"] == "user" and last.get("role") == "user":
            last["content"] += "\n\n" + item["content"]
            continue
        elif item["role"] == "assistant" and last.get("role") == "assistant":
            made.append({"role": "user", "content": "Go on."})
        made.append(item)
    return made


def _one(message: Message, native: bool) -> dict[str, Any]:
    if message.role == "tool":
        if native and message.tool_call_id:
            return {"role": "tool", "tool_call_id": message.tool_call_id, "content": message.content}
        return {"role": "user", "content": message.content}
    if message.role != "assistant":
        return {"role": message.role, "content": message.content}
    item: dict[str, Any] = {"role": "assistant", "content": message.content}
    if message.reasoning_content:
        item["reasoning_content"] = message.reasoning_content
    if message.tool_calls and native:
        item["tool_calls"] = [_call(call) for call in message.tool_calls]
    elif message.tool_calls:
        programs = [f"```python\n{call.code.rstrip()}\n```" for call in message.tool_calls if call.code]
        item["content"] = "\n".join([message.content, *programs]).strip() or STOPPED
    return item


def _call(call: ToolCall) -> dict[str, Any]:
    arguments = msgspec.json.encode(call.arguments).decode()
    return {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": arguments}}
