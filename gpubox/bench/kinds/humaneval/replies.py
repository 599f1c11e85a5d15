"""A stored record -> the program in its reply and the parts of its wall time.

Pure: the same record gives the same program, so that a stored run can be scored again.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from gpubox.agent import events
from gpubox.agent.code_answer import body_in_blocks, fenced_blocks, function_in_blocks, plain_text, unmarked_readings
from gpubox.agent.reply_text import split_thinking
from gpubox.bench.kinds.humaneval.dataset import Problem, load_problems
from gpubox.bench.measured_request import MeasuredReply, stored_reply
from gpubox.bench.model import Item, RawRecord

TIME_PARTS = ("prefill", "reprocessed", "thinking", "answer", "sandbox", "queue", "gpubox")
"""The parts of one problem's wall time, in seconds. prefill, reprocessed (prompt tokens that had been in the cache),
thinking and answer are the server's own timings; sandbox is the model's programs, queue is HTTP and waiting for a slot,
gpubox is the rest. They sum to the wall time."""
PEAK_TOKENS = 32
"""A shorter reply has no meaningful speed."""


@dataclass(frozen=True, slots=True)
class ExtractedCode:
    """The code of one reply. All empty: the reply has none."""

    program: str = ""
    """The whole program to grade."""
    code: str = ""
    """What the model wrote."""
    source: str = ""
    """completion | answer | body | executed | whole reply | reasoning"""


@dataclass(frozen=True, slots=True)
class ParsedReply:
    """The content of one record."""

    code: ExtractedCode
    values: dict[str, Any]
    """What the result keeps: counts, times, how the reply ended."""
    failure: str = ""
    """Why the turn failed."""


def parse_reply(item: Item, raw: RawRecord) -> ParsedReply:
    """Parses the record of ``item``, whatever its mode."""
    problem = load_problems()[item.values["task"]]
    if item.values["mode"] == "agentic":
        return _parse_turn(problem, raw)
    reply = stored_reply(raw.data)
    if item.values["mode"] == "vanilla":
        whole = ExtractedCode(problem.prompt + reply.text, reply.text, "completion")  # as lm-eval: nothing is cut off
        return ParsedReply(whole, _reply_values(raw, reply))
    return ParsedReply(code_of_reply(problem, reply.text, reply.reasoning), _reply_values(raw, reply))


def _reply_values(raw: RawRecord, reply: MeasuredReply) -> dict[str, Any]:
    prefill, answer = reply.prompt_seconds or 0.0, reply.generation_seconds or 0.0
    return {
        "finish_reason": reply.finish_reason,
        "generated_tokens": reply.generated_tokens,
        "peak": _peak([(reply.generated_tokens, reply.tg)]),
        "draft_tokens": reply.draft_tokens,
        "draft_tokens_accepted": reply.draft_tokens_accepted,
        "parts": _time_parts(
            prefill=prefill,
            answer=answer,
            queue=max(0.0, reply.wall_seconds - prefill - answer),
            gpubox=max(0.0, raw.seconds - reply.wall_seconds),
        ),
    }


def _parse_turn(problem: Problem, raw: RawRecord) -> ParsedReply:
    turn = [msgspec.convert(values, events.AgentEvent) for values in raw.data["events"]]
    executed = [
        event.call.code
        for event in turn
        if isinstance(event, events.ToolFinished) and event.output.ok and event.call.code
    ]
    answers = [e.message for e in turn if isinstance(e, events.MessageAdded) and e.message.role == "assistant"]
    last = answers[-1] if answers else events.Message("assistant")
    end = turn[-1]
    assert isinstance(end, events.TurnFinished | events.TurnFailed)
    rounds = [event.timing for event in turn if isinstance(event, events.RoundFinished)]
    started = next((event for event in turn if isinstance(event, events.TurnStarted)), None)
    totals, timing = end.totals, end.totals.timing
    values = {
        "end": end.reason if isinstance(end, events.TurnFinished) else "failed",
        "protocol": started.protocol if started else "",
        "rounds": totals.rounds,
        "tools": totals.tool_calls,
        "tools_failed": totals.failed_tool_calls,
        "notices": dict(Counter(event.kind for event in turn if isinstance(event, events.Notice))),
        "restarts": sum(isinstance(event, events.RoundRestarted) for event in turn),
        "generated_tokens": timing.generated_tokens,
        "peak": _peak([(r.generated_tokens, r.tg_tokens_per_second) for r in rounds]),
        "draft_tokens": timing.draft_tokens,
        "draft_tokens_accepted": timing.draft_tokens_accepted,
        "parts": _time_parts(
            prefill=timing.prefill_new_seconds,
            reprocessed=timing.prefill_reprocessed_seconds,
            thinking=timing.thinking_seconds,
            answer=timing.answer_seconds,
            sandbox=timing.tool_seconds,
            queue=timing.queue_seconds,
            gpubox=timing.loop_seconds + max(0.0, raw.seconds - timing.wall_seconds),
        ),
    }
    code = code_of_reply(problem, last.content, last.reasoning_content, executed)
    return ParsedReply(code, values, end.message if isinstance(end, events.TurnFailed) else "")


def _peak(replies: list[tuple[int | None, float | None]]) -> float | None:
    """The tok/s of the fastest reply of at least PEAK_TOKENS."""
    return max((tg for tokens, tg in replies if tg and (tokens or 0) >= PEAK_TOKENS), default=None)


def _time_parts(**seconds: float) -> dict[str, float]:
    return {name: round(seconds.get(name, 0.0), 6) for name in TIME_PARTS}


def code_of_reply(problem: Problem, content: str, reasoning: str = "", executed: Sequence[str] = ()) -> ExtractedCode:
    """The code of a chat answer: what its blocks define, else the last executed program, else what stands in the prose.

    Code inside thinking never counts, closed or not. Only if the reply has no other text at all are closed blocks of
    ``reasoning_content`` used, with the source ``reasoning``.
    """
    attempts = _attempts(problem, plain_text(split_thinking(content)[1]), reasoning, executed)
    return next((ExtractedCode(*codes, source) for source, codes in attempts if codes), ExtractedCode())


def _attempts(
    problem: Problem, text: str, reasoning: str, executed: Sequence[str]
) -> Iterator[tuple[str, tuple[str, str] | None]]:
    """Where the function may be, and what is there: the program and its code."""
    name, prompt = problem.entry_point, problem.prompt
    blocks = [block.code for block in fenced_blocks(text)]
    yield "answer", function_in_blocks(blocks, name, prompt)
    yield "body", body_in_blocks(blocks, name, prompt)
    yield "executed", function_in_blocks(executed, name, prompt)
    for runs in unmarked_readings(text):
        yield "whole reply", function_in_blocks(runs, name, prompt)
    yield "whole reply", body_in_blocks([text], name, prompt)
    if not text.strip():
        closed = [block.code for block in fenced_blocks(reasoning) if block.closed]
        yield "reasoning", function_in_blocks(closed, name, prompt) or body_in_blocks(closed, name, prompt)
