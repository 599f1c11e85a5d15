"""A stored record -> the program in it, and where its time went. Pure."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Any

import msgspec

from gpubox.agent import events
from gpubox.bench.kinds.humaneval.dataset import load_problems
from gpubox.bench.kinds.humaneval.extract import ExtractedCode, code_of_completion, code_of_reply
from gpubox.bench.measured_request import MeasuredReply, stored_reply
from gpubox.bench.model import Item, RawRecord

TIME_PARTS = ("reading", "rereading", "thinking", "writing", "sandbox", "waiting", "gpubox")
"""Of one problem's wall time, in seconds: the prompt, what of it was read before, tokens of thinking and of answer (all
four by the server's clock), programs, HTTP and queue, and gpubox itself. They sum to it."""


@dataclass(frozen=True, slots=True)
class ParsedReply:
    """What one record holds."""

    code: ExtractedCode
    numbers: dict[str, Any] = field(default_factory=dict)
    failure: str = ""
    """Why there is no answer, where the turn failed."""


def parse_reply(item: Item, raw: RawRecord) -> ParsedReply:
    """The record of ``item``, of any mode."""
    problem = load_problems()[item.values["task"]]
    if item.values["mode"] == "agentic":
        return _turn(item, raw)
    got = stored_reply(raw.data)
    if item.values["mode"] == "vanilla":
        return ParsedReply(code_of_completion(problem, got.text), _numbers(raw, got))
    return ParsedReply(code_of_reply(problem, got.text, got.reasoning), _numbers(raw, got))


def _numbers(raw: RawRecord, got: MeasuredReply) -> dict[str, Any]:
    reading, writing = got.prompt_seconds or 0.0, got.generation_seconds or 0.0
    parts = {
        "reading": reading,
        "writing": writing,
        "waiting": max(0.0, got.wall_seconds - reading - writing),
        "gpubox": max(0.0, raw.seconds - got.wall_seconds),
    }
    return {
        "finish_reason": got.finish_reason,
        "generated_tokens": got.generated_tokens,
        "peak": _peak([(got.generated_tokens, got.tg)]),
        "draft_tokens": got.draft_tokens,
        "draft_tokens_accepted": got.draft_tokens_accepted,
        "parts": _rounded(parts),
    }


def _turn(item: Item, raw: RawRecord) -> ParsedReply:
    told = [msgspec.convert(values, events.AgentEvent) for values in raw.data["events"]]
    ran = [
        event.call.code
        for event in told
        if isinstance(event, events.ToolFinished) and event.output.ok and event.call.code
    ]
    answers = [e.message for e in told if isinstance(e, events.MessageAdded) and e.message.role == "assistant"]
    last = answers[-1] if answers else events.Message("assistant")
    end = told[-1]
    assert isinstance(end, events.TurnFinished | events.TurnFailed)
    timing = end.totals.timing
    outer = max(0.0, raw.seconds - timing.wall_seconds)
    parts = {
        "reading": timing.prefill_new_seconds,
        "rereading": timing.prefill_reprocessed_seconds,
        "thinking": timing.thinking_seconds,
        "writing": timing.answer_seconds,
        "sandbox": timing.tool_seconds,
        "waiting": timing.queue_seconds,
        "gpubox": timing.loop_seconds + outer,
    }
    rounds = [event.timing for event in told if isinstance(event, events.RoundFinished)]
    found = code_of_reply(load_problems()[item.values["task"]], last.content, last.reasoning_content, ran)
    started = next((event for event in told if isinstance(event, events.TurnStarted)), None)
    numbers = {
        "end": end.reason if isinstance(end, events.TurnFinished) else "failed",
        "protocol": started.protocol if started else "",
        "rounds": end.totals.rounds,
        "tools": end.totals.tool_calls,
        "tools_failed": end.totals.failed_tool_calls,
        "notices": dict(Counter(event.kind for event in told if isinstance(event, events.Notice))),
        "restarts": sum(isinstance(event, events.RoundRestarted) for event in told),
        "generated_tokens": timing.generated_tokens,
        "peak": _peak([(r.generated_tokens, r.tg_tokens_per_second) for r in rounds]),
        "draft_tokens": timing.draft_tokens,
        "draft_tokens_accepted": timing.draft_tokens_accepted,
        "parts": _rounded(parts),
    }
    return ParsedReply(found, numbers, end.message if isinstance(end, events.TurnFailed) else "")


PEAK_TOKENS = 32


def _peak(replies: list[tuple[int | None, float | None]]) -> float | None:
    """The fastest reply of at least PEAK_TOKENS: a few tokens have no speed."""
    return max((tg for tokens, tg in replies if tg and (tokens or 0) >= PEAK_TOKENS), default=None)


def _rounded(parts: dict[str, float]) -> dict[str, float]:
    return {name: round(parts.get(name, 0.0), 6) for name in TIME_PARTS}
