"""The messages of a chat and their form in a request. Pure.

Messages are only appended, so that each request starts with the bytes of the one before and the server's KV cache
holds all but the newest messages.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import msgspec

from gpubox.agent.code_answer import python_program
from gpubox.agent.events import AgentEvent, Compacted, Message, MessageAdded, MessageShortened
from gpubox.agent.tools import ToolCall, truncate_output

REMOVED_OUTPUT = "[output removed to save context: {:,} characters]"
MIN_SHORTENED_CHARACTERS = 200
"""Shorter tool outputs stay: to shorten them saves next to nothing."""
UNDERSTOOD = "Understood."
"""Between a fixed message and the question: after a compaction another message follows, and up to it nothing is new."""
STOPPED = "(interrupted)"
"""Stands where a template demands an answer between what a tool said and what the owner says next."""


class Conversation:
    """The messages of one chat without the system message, which belongs to the settings."""

    def __init__(self, messages: Iterable[Message] = ()) -> None:
        self.messages = list(messages)
        self.server_cache_tokens = 0
        """Tokens in the server's KV cache after the last round; 0 if unknown."""
        self.last_request: Mapping[str, Any] = {}
        """The body of the last request. What it shares with the next one need not be read again."""
        self.images_folder: Path | None = None
        """Where the images of its messages are."""
        self.image_urls: dict[str, str] = {}
        """The images that the model gets, by name."""

    def add(self, message: Message) -> MessageAdded:
        """Appends ``message`` and returns the event that records it."""
        self.messages.append(message)
        return MessageAdded(message)

    def apply(self, event: AgentEvent) -> None:
        """Repeats the change that ``event`` records. All events together rebuild the same prompt."""
        if isinstance(event, MessageAdded):
            self.messages.append(event.message)
        elif isinstance(event, MessageShortened) and 0 <= event.index < len(self.messages):
            self.messages[event.index] = msgspec.structs.replace(self.messages[event.index], content=event.content)
        elif isinstance(event, Compacted):
            before = enumerate(self.messages[: event.kept_from])
            fixed = [message for index, message in before if message.fixed or index == event.question_at]
            summary = (Message("user", event.request), Message("assistant", event.summary))
            self.messages = [*fixed, *self.messages[event.kept_from :], *summary]

    def make_room(self, characters: int) -> list[MessageShortened]:
        """Shortens tool outputs until ``characters`` are saved: the oldest to one line each, before the newest one.

        Of that one, if nothing else is left, up to two thirds go from its middle.
        """
        events: list[MessageShortened] = []
        outputs = [index for index, message in enumerate(self.messages) if message.role == "tool"]
        for index in outputs:
            size = len(self.messages[index].content)
            if characters <= 0 or size < MIN_SHORTENED_CHARACTERS or (index == outputs[-1] and events):
                continue
            short = REMOVED_OUTPUT.format(size)
            if index == outputs[-1]:
                short, _ = truncate_output(self.messages[index].content, max(size - characters, size // 3))
            if len(short) < size:
                events.append(MessageShortened(index, short))
                self.apply(events[-1])
                characters -= size - len(short)
        return events

    def ignored_programs(self) -> int:
        """How many answers hold a Python block that no tool ran; 0 once the model has made a native call."""
        if any(message.tool_calls for message in self.messages):
            return 0
        followers = [*self.messages[1:], None]
        answers = [
            message.content
            for message, follower in zip(self.messages, followers, strict=False)
            if message.role == "assistant" and not (follower and follower.role == "tool")
        ]
        return sum(bool(python_program(answer)[0]) for answer in answers)

    def unanswered_calls(self) -> list[ToolCall]:
        """Calls without a tool message. A chat template refuses a history that contains one."""
        answered = {message.tool_call_id for message in self.messages if message.role == "tool"}
        return [call for message in self.messages for call in message.tool_calls if call.id not in answered]


def request_messages(
    conversation: Conversation, system: str, *, native: bool, system_role: bool = True
) -> list[dict[str, Any]]:
    """The ``messages`` of a request.

    ``native``: the chat template supports tool calls; otherwise calls and outputs are sent as text.
    ``system_role``: the template supports a system message; otherwise the system text begins the first user message.
    """
    rendered: list[dict[str, Any]] = []
    if system:
        rendered.append({"role": "system" if system_role else "user", "content": system})
    after_fixed = False
    for message in conversation.messages:
        item = _request_message(message, native)
        if message.images:
            item["content"] = _with_images(message, conversation.image_urls)
        previous = rendered[-1] if rendered else {}
        roles = (previous.get("role"), item["role"])
        if after_fixed and roles == ("user", "user"):
            rendered.append({"role": "assistant", "content": UNDERSTOOD})
        elif roles == ("user", "user"):
            previous["content"] = _joined(previous["content"], item["content"])
            continue
        elif roles == ("tool", "user"):  # many templates require alternating roles
            rendered.append({"role": "assistant", "content": STOPPED})
        elif roles == ("assistant", "assistant"):
            rendered.append({"role": "user", "content": "Go on."})
        rendered.append(item)
        after_fixed = message.fixed
    return rendered


def _with_images(message: Message, urls: Mapping[str, str]) -> str | list[dict[str, Any]]:
    """The text and the images; of one that the model does not get, only a word."""
    notes = "".join("\n[an image that you cannot see]" for name in message.images if name not in urls)
    shown = [{"type": "image_url", "image_url": {"url": urls[name]}} for name in message.images if name in urls]
    text = message.content + notes
    return [{"type": "text", "text": text}, *shown] if shown else text


def _joined(first: Any, second: Any) -> Any:
    if isinstance(first, str) and isinstance(second, str):
        return f"{first}\n\n{second}"
    parts = [[{"type": "text", "text": part}] if isinstance(part, str) else part for part in (first, second)]
    return [*parts[0], *parts[1]]


def _request_message(message: Message, native: bool) -> dict[str, Any]:
    if message.role == "tool" and native and message.tool_call_id:
        return {"role": "tool", "tool_call_id": message.tool_call_id, "content": message.content}
    if message.role != "assistant":
        return {"role": "user" if message.role == "tool" else message.role, "content": message.content}
    item: dict[str, Any] = {"role": "assistant", "content": message.content}
    if message.reasoning_content:
        item["reasoning_content"] = message.reasoning_content
    if message.tool_calls and native:
        item["tool_calls"] = [
            {
                "id": call.id,
                "type": "function",
                "function": {"name": call.name, "arguments": msgspec.json.encode(call.arguments).decode()},
            }
            for call in message.tool_calls
        ]
    elif message.tool_calls:
        programs = [
            f"```{'bash' if 'command' in call.arguments else 'python'}\n{call.code.rstrip()}\n```"
            for call in message.tool_calls
            if call.code
        ]
        item["content"] = "\n".join([message.content, *programs]).strip() or STOPPED
    return item
