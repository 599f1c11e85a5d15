"""From what an agent reports of its turn to the events of a chat. Pure, but for the clock."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import msgspec

from gpubox.acp import protocol
from gpubox.acp.protocol import Diff, PermissionOption, ToolUpdate, line, read
from gpubox.agent.edits import diff_text, shorten_diff
from gpubox.agent.events import (
    AgentEvent,
    AgentOffers,
    Message,
    MessageAdded,
    PlanChanged,
    ReasoningDelta,
    TextDelta,
    ToolFinished,
    ToolRequested,
    UsageReported,
)
from gpubox.agent.tools import OwnerQuestion, ToolCall, ToolOutput, truncate_output
from gpubox.errors import GpuboxError

MAX_TURN_CHARACTERS = 2_000_000
"""Of answer and thinking; more ends the turn."""
MAX_UPDATES, MAX_CALLS, MAX_QUESTIONS = 100_000, 1_000, 500
"""Of one turn; more end it."""
MAX_OUTPUT, MAX_ARGUMENT, MAX_DIFF = 8_000, 2_000, 200_000
"""Characters of a call's output, of each of its arguments, and of a text that is compared."""
MAX_CHANGES = 500
"""Of plans, offers and calls that are told again in one turn; further ones are dropped: the chat's file keeps them."""
_RAW_TEXTS = ("formatted_output", "aggregated_output", "output", "stdout")
"""Where a raw output that is no text has one."""
_ENDED = {"completed": True, "failed": False}


class Flood(GpuboxError):
    """The agent reports more than a turn may have."""


@dataclass(slots=True)
class Offers:
    """What the session offers, over all its turns."""

    commands: tuple[Any, ...] = ()
    choices: tuple[Any, ...] = ()

    def heed(self, update: dict[str, Any]) -> AgentOffers | None:
        """The offers if ``update`` changes them."""
        match update:
            case {"sessionUpdate": "available_commands_update", "availableCommands": commands}:
                self.commands = protocol.commands_of(commands)
            case {"sessionUpdate": "config_option_update"}:
                self.choices = protocol.choices_of(update) or self.choices
            case {"sessionUpdate": "current_mode_update", "currentModeId": str(mode)}:
                self.choose("mode", mode)
            case _:
                return None
        return self.event

    def choose(self, name: str, value: str) -> None:
        """The option ``value`` of the choice ``name`` holds now."""
        self.choices = tuple(
            msgspec.structs.replace(each, value=value) if each.id == name else each for each in self.choices
        )

    @property
    def event(self) -> AgentOffers:
        return AgentOffers(self.commands, self.choices)


@dataclass(slots=True)
class _Call:
    call: ToolCall
    output: str = ""
    diff: str = ""
    files: list[str] = field(default_factory=list)
    shown: bool = False
    denied: bool = False
    started: float = 0.0


class TurnUpdates:
    """One turn."""

    def __init__(self, number: str, clock: Callable[[], float] = time.time) -> None:
        """``number``: names the turn."""
        self._number, self._clock = number, clock
        self.roots: tuple[str, ...] = ()
        """The paths of the workspace, which are left out of what is shown."""
        self._calls: dict[str, _Call] = {}
        self._over: set[str] = set()
        """The ids of calls that have ended."""
        self._text, self._thinking = list[str](), list[str]()
        self._characters = self._updates = self._questions = self._changes = 0
        self.answer = ""
        """The last text."""
        self.skipped = 0
        """Updates that could not be read."""
        self.calls = self.failed_calls = 0
        self.tool_spans: list[tuple[float, float]] = []
        """When calls ran."""
        self.flooded = False

    @property
    def running(self) -> bool:
        """Whether a call runs."""
        return bool(self._calls)

    def heed(self, update: Any, offers: AgentOffers | None = None) -> list[AgentEvent]:
        """The events of one ``session/update``; ``offers``: it changed them to these. Raises Flood."""
        self._updates += 1
        if self._updates > MAX_UPDATES:
            raise Flood("It sends updates without end.")
        if offers:
            return self._changed(offers)
        match update:
            case {"sessionUpdate": "agent_message_chunk", "content": content}:
                return self._delta(TextDelta, self._text, content)
            case {"sessionUpdate": "agent_thought_chunk", "content": content}:
                return self._delta(ReasoningDelta, self._thinking, content)
            case {"sessionUpdate": "tool_call" | "tool_call_update"} if known := read(ToolUpdate, update):
                return self._tool(known)
            case {"sessionUpdate": "plan", "entries": entries}:
                return self._changed(PlanChanged(protocol.plan_of(entries)))
            case {"sessionUpdate": "usage_update", "used": used} if protocol.is_count(used):
                size = update.get("size")
                return [UsageReported(used, size if protocol.is_count(size) and size else None)]
        self.skipped += 1
        return []

    def question(self, params: dict[str, Any]) -> tuple[list[AgentEvent], OwnerQuestion, list[PermissionOption]]:
        """A permission: what is shown before, the question, and its options in the order of their names.

        Raises Flood, and GpuboxError if it cannot be asked.
        """
        self._questions += 1
        if self._questions > MAX_QUESTIONS:
            self.flooded = True
            raise Flood("It asks without end.")
        options = protocol.read_all(PermissionOption, params.get("options"), 20)
        if (update := read(ToolUpdate, params.get("toolCall"))) is None or not options:
            self.skipped += 1
            raise GpuboxError("A permission needs a call and options.")
        events = self._tool(update, show=True)
        known = self._calls.get(update.tool_call_id) or _Call(ToolCall("", "other"))
        names: list[str] = []
        for option in options:
            name = line(option.name, 80) or line(option.option_id, 80) or "?"
            names.append(f"{name} ({len(names) + 1})" if name in names else name)
        text = f"May it do this? {known.call.title or known.call.name}"
        return events, OwnerQuestion("permission", text, tuple(names), known.call, shorten_diff(known.diff)), options

    def deny(self, call: ToolCall | None) -> None:
        """The owner said no to this call."""
        for key, each in self._calls.items():
            if call and each.call.id == call.id:
                self._calls[key].denied = True

    def end(self) -> list[AgentEvent]:
        """The last events: calls that did not end are over."""
        events = [event for key in [*self._calls] for event in self._finish(key, ok=False, why="cancelled")]
        return [*events, *self._message()]

    def _changed(self, event: AgentEvent) -> list[AgentEvent]:
        self._changes += 1
        return [event] if self._changes <= MAX_CHANGES else []

    def _delta(self, kind: type[TextDelta] | type[ReasoningDelta], texts: list[str], content: Any) -> list[AgentEvent]:
        text = protocol.text_of(content, MAX_TURN_CHARACTERS)
        self._characters += len(text)
        if self._characters > MAX_TURN_CHARACTERS:
            raise Flood("It writes without end.")
        if not text:
            return []
        texts.append(text)
        return [kind(text)]

    def _message(self) -> list[AgentEvent]:
        """What it said since its last call, as a message."""
        text, thinking = "".join(self._text), "".join(self._thinking)
        self._text, self._thinking = [], []
        self.answer = (text.strip() and text) or self.answer
        if not text and not thinking:
            return []
        return [MessageAdded(Message("assistant", text, reasoning_content=thinking))]

    def _tool(self, update: ToolUpdate, *, show: bool = False) -> list[AgentEvent]:
        key, events = update.tool_call_id, list[AgentEvent]()
        if key in self._over:
            return []
        if key not in self._calls:
            if self.calls + len(self._calls) >= MAX_CALLS:
                raise Flood("It calls tools without end.")
            name = f"{self._number}.{self.calls + len(self._calls) + 1}"
            self._calls[key] = _Call(ToolCall(name, "other"), started=self._clock())
        known = self._calls[key]
        given = {name: self._argument(value) for name, value in _named(update.raw_input)}
        call = msgspec.structs.replace(
            known.call,
            name=line(update.kind, 20) or known.call.name,
            title=self._title(update.title) or known.call.title,
            arguments=given or known.call.arguments,
        )
        changed, known.call = call != known.call, call
        self._read_content(known, update)
        ended = _ENDED.get(update.status) if isinstance(update.status, str) else None
        is_known = bool(given) or known.shown or show or update.status == "in_progress" or ended is not None
        if is_known and (changed or not known.shown):  # at first, many agents only announce that they will call
            event = ToolRequested(call)
            events += self._changed(event) if known.shown else [*self._message(), event]
            known.shown = True
        if ended is not None:
            events += self._finish(key, ok=ended)
        return events

    def _read_content(self, known: _Call, update: ToolUpdate) -> None:
        """Content replaces what was there before."""
        texts, diffs, files = list[str](), list[str](), list[str]()
        for item in update.content[:100] if isinstance(update.content, list) else ():
            if isinstance(item, dict) and item.get("type") == "diff" and (diff := read(Diff, item)):
                files.append(path := self._title(diff.path))
                diffs.append(_diff(path, diff))
            elif isinstance(item, dict):
                texts.append(protocol.text_of(item.get("content"), 8 * MAX_OUTPUT))
        raw = update.raw_output
        if isinstance(raw, dict):
            raw = next((raw[name] for name in _RAW_TEXTS if isinstance(raw.get(name), str)), None)
        if not any(texts) and isinstance(raw, str):
            texts = [raw[: 8 * MAX_OUTPUT]]
        if any(texts):
            known.output = "\n".join(filter(None, texts))
        if diffs:
            known.diff, known.files = "".join(diffs), files

    def _finish(self, key: str, *, ok: bool, why: str = "") -> list[AgentEvent]:
        known, now = self._calls.pop(key), self._clock()
        self._over.add(key)
        self.calls += 1
        self.failed_calls += not ok
        self.tool_spans.append((known.started, now))
        text, dropped = truncate_output(known.output, MAX_OUTPUT)
        output = ToolOutput(
            text, ok, now - known.started, ended_by="denied" if known.denied else why, files_changed=tuple(known.files),
            dropped_bytes=dropped, diff=shorten_diff(known.diff),
        )  # fmt: skip
        shown = [] if known.shown else [*self._message(), ToolRequested(known.call)]
        return [*shown, ToolFinished(known.call, output)]

    def _argument(self, value: Any) -> Any:
        text = value if isinstance(value, str) else msgspec.json.encode(value).decode()
        return self._relative(text[:MAX_ARGUMENT]) if isinstance(value, str) or len(text) > MAX_ARGUMENT else value

    def _relative(self, text: str) -> str:
        for root in self.roots:
            text = text.replace(f"{root.rstrip('/')}/", "")
        return text

    def _title(self, text: Any) -> str:
        return line(self._relative(text[:4096])) if isinstance(text, str) else ""


def _named(raw_input: Any) -> list[tuple[str, Any]]:
    given = raw_input.items() if isinstance(raw_input, dict) else ()
    return [(name[:80], value) for name, value in given if isinstance(name, str)][:20]


def _diff(path: str, diff: Diff) -> str:
    if max(len(diff.new_text), len(diff.old_text or "")) > MAX_DIFF:
        return f"--- {path}\n+++ {path}\n@@ too long to compare @@\n"
    before = None if diff.old_text is None else diff.old_text.encode("utf-8", "replace")
    return diff_text(path, before, diff.new_text.encode("utf-8", "replace"))
