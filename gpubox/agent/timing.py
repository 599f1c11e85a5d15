"""Where the time of a turn goes: from the timestamps of each request to round timings and turn totals."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Any

import msgspec

from gpubox.agent.conversation import UNDERSTOOD, Conversation
from gpubox.agent.events import RoundTiming, TurnTotals
from gpubox.server.chunks import Timings
from gpubox.storage import json_line

MIN_REREAD_TOKENS = 16
"""Fewer are the end of a template, or an answer that was made of other tokens than its text is read as."""
EXCERPT_CHARACTERS = 40
_PREFILL_COUNTS = ("prefill_new_tokens", "prefill_reprocessed_tokens", "cached_tokens")
_OPTIONAL_COUNTS = ("thinking_tokens", "draft_tokens", "draft_tokens_accepted")
_NOT_SUMMED = ("tg_tokens_per_second", "pp_tokens_per_second", "from_server", "reread_from")


@dataclass(slots=True)
class RequestMeasurements:
    """Timestamps and counts of one request. Times are seconds of the loop's clock, ``None`` if not reached."""

    round_started: float
    """The end of the round before: the time from here to ``sent`` is the loop's own."""
    sent: float
    prefill_started: float | None = None
    """First ``prompt_progress`` of the server."""
    first_delta: float | None = None
    ended: float | None = None
    thinking_seconds: float = 0.0
    """Sum of the intervals that end with a thinking delta."""
    deltas: int = 0
    thinking_deltas: int = 0
    prompt_tokens: int | None = None
    """Whole prompt, cached tokens included."""
    cached_tokens: int | None = None
    completion_tokens: int | None = None
    """``usage.completion_tokens``."""
    timings: Timings | None = None
    """The server's newest ``timings``."""
    timings_after_thinking: Timings | None = None
    """The server's ``timings`` at the last thinking delta (``timings_per_token``)."""
    body: Mapping[str, Any] = field(default_factory=dict)
    """The request."""


class TurnTimings:
    """The clock of one turn. It measures each round and adds them up; every second of the turn belongs to a round."""

    def __init__(self, conversation: Conversation, clock: Callable[[], float]) -> None:
        self._conversation, self.clock = conversation, clock
        self._rounds: list[RoundTiming] = []
        self._round_started = clock()
        self._tools_started: float | None = None
        self._approval_seconds = self._approval_in_tools = 0.0

    @property
    def generated_tokens(self) -> int:
        """Of all rounds so far, repeated requests included."""
        return sum(timing.generated_tokens for timing in self._rounds)

    def start_request(self) -> RequestMeasurements:
        """The measurements of a request that is sent now."""
        return RequestMeasurements(self._round_started, self.clock())

    def start_tools(self) -> None:
        """From now to the end of the round the time belongs to the tools."""
        self._tools_started = self.clock()

    def add_approval(self, seconds: float) -> None:
        """``seconds`` of the running round were spent waiting for the owner."""
        self._approval_seconds += seconds
        self._approval_in_tools += seconds if self._tools_started is not None else 0.0

    def end_round(self, measured: RequestMeasurements) -> RoundTiming:
        """Ends a round, or a request that is given up and repeated."""
        now = self.clock()
        tool_seconds = 0.0
        if self._tools_started is not None:
            tool_seconds = max(now - self._tools_started - self._approval_in_tools, 0.0)
        cache_tokens = self._conversation.server_cache_tokens
        timing = _round_timing(measured, now, cache_tokens, tool_seconds, self._approval_seconds)
        if (again := timing.prefill_reprocessed_tokens or 0) >= MIN_REREAD_TOKENS and measured.body:
            whole = (timing.cached_tokens or 0) + again + (timing.prefill_new_tokens or 0)
            name = reread_from(self._conversation.last_request, measured.body, timing.cached_tokens or 0, whole)
            timing = msgspec.structs.replace(timing, reread_from=name)
        self._conversation.last_request = measured.body or self._conversation.last_request
        self._conversation.server_cache_tokens = _cache_tokens_after(measured) or cache_tokens
        self._rounds.append(timing)
        self._round_started, self._tools_started = now, None
        self._approval_seconds = self._approval_in_tools = 0.0
        return timing

    def totals(self, rounds: int, tool_calls: int, failed_tool_calls: int) -> TurnTotals:
        """The sums of all rounds so far."""
        whole = sum_timings(self._rounds)
        effective = _rate(whole.generated_tokens, whole.wall_seconds - whole.approval_seconds)
        return TurnTotals(rounds, whole, effective, tool_calls, failed_tool_calls)


def sum_timings(timings: Sequence[RoundTiming]) -> RoundTiming:
    """The sums of rounds; a rate is computed from them.

    A count that no round knows is unknown, and one of the prompt that a round does not know.
    """
    sums: dict[str, Any] = {
        name: sum(getattr(timing, name) or 0 for timing in timings)
        for name in RoundTiming.__struct_fields__
        if name not in _NOT_SUMMED
    }
    for name in _OPTIONAL_COUNTS:
        if all(getattr(timing, name) is None for timing in timings):
            sums[name] = None
    for name in _PREFILL_COUNTS:
        if any(getattr(timing, name) is None for timing in timings):
            sums[name] = None
    # By the server's clock, as each round: a round's own seconds may be scaled to the wait for them.
    spoken = [(t.generated_tokens, t.tg_tokens_per_second) for t in timings if t.tg_tokens_per_second]
    prefill_seconds = sums["prefill_new_seconds"] + sums["prefill_reprocessed_seconds"]
    counts = [sums[name] for name in _PREFILL_COUNTS[:2]]
    prefill_tokens = None if None in counts else sum(counts)
    return RoundTiming(
        **sums,
        tg_tokens_per_second=_rate(sum(count for count, _ in spoken), sum(count / tg for count, tg in spoken)),
        pp_tokens_per_second=_rate(prefill_tokens, prefill_seconds),
        from_server=all(timing.from_server for timing in timings),
    )


def _round_timing(
    measured: RequestMeasurements, now: float, cache_tokens: int, tool_seconds: float, approval_seconds: float
) -> RoundTiming:
    """The timing of a round that ends ``now``.

    ``cache_tokens`` is the size of the server's cache before the round. The tool and approval times follow the reply.
    """
    server, started = measured.timings, measured.prefill_started
    ended = measured.ended if measured.ended is not None else now
    request_seconds = max(ended - measured.sent, 0.0)
    first_delta = measured.first_delta if measured.first_delta is not None else ended
    if server:
        prefill, generation = server.prompt_seconds, server.generation_seconds
        generated = server.generated_tokens
    else:
        prefill = max(first_delta - (measured.sent if started is None else started), 0.0)
        generation = max(ended - first_delta, 0.0)
        generated = measured.completion_tokens if measured.completion_tokens is not None else measured.deltas
    if prefill + generation > request_seconds:  # the clocks differ: the server's time cannot exceed the wait for it
        scale = request_seconds / (prefill + generation)
        prefill, generation = prefill * scale, generation * scale
    if started is None:
        started = first_delta - prefill if server else measured.sent
    queue = min(max(started - measured.sent, 0.0), request_seconds - prefill - generation)
    prompt_tokens, cached = _prompt_counts(measured)
    new = reprocessed = None
    if cached is not None and prompt_tokens is not None:
        reprocessed = min(max(cache_tokens - cached, 0), prompt_tokens)
        new = prompt_tokens - reprocessed
    reprocessed_share = reprocessed / prompt_tokens if reprocessed and prompt_tokens else 0.0
    after_thinking = measured.timings_after_thinking
    if measured.thinking_deltas and measured.thinking_deltas == measured.deltas:
        thinking_share = 1.0
    elif after_thinking and server and server.generation_seconds:
        thinking_share = min(after_thinking.generation_seconds / server.generation_seconds, 1.0)
    else:
        thinking_share = min(measured.thinking_seconds / max(ended - first_delta, 1e-9), 1.0)
    wall = max(now - measured.round_started, 0.0)
    return RoundTiming(
        wall_seconds=wall,
        queue_seconds=queue,
        prefill_new_seconds=prefill * (1 - reprocessed_share),
        prefill_reprocessed_seconds=prefill * reprocessed_share,
        thinking_seconds=generation * thinking_share,
        answer_seconds=generation * (1 - thinking_share),
        tool_seconds=tool_seconds,
        approval_seconds=approval_seconds,
        loop_seconds=max(wall - queue - prefill - generation - tool_seconds - approval_seconds, 0.0),
        prefill_new_tokens=new,
        prefill_reprocessed_tokens=reprocessed,
        cached_tokens=cached,
        generated_tokens=generated,
        thinking_tokens=after_thinking.generated_tokens if after_thinking else measured.thinking_deltas,
        tg_tokens_per_second=server.tg_tokens_per_second if server else _rate(generated, generation),
        pp_tokens_per_second=server.pp_tokens_per_second if server else _rate(prompt_tokens, prefill),
        draft_tokens=server.draft_tokens if server else None,
        draft_tokens_accepted=server.draft_tokens_accepted if server else None,
        from_server=server is not None,
    )


def _prompt_counts(measured: RequestMeasurements) -> tuple[int | None, int | None]:
    """The tokens of the prompt that were processed, and those that were reused. ``None``: the server does not say."""
    if server := measured.timings:
        return server.prompt_tokens, server.cached_tokens
    whole, cached = measured.prompt_tokens, measured.cached_tokens
    return None if whole is None or cached is None else max(whole - cached, 0), cached


def _cache_tokens_after(measured: RequestMeasurements) -> int:
    """Tokens in the server's cache after a request: the prompt and all generated tokens but the last."""
    if server := measured.timings:
        return server.cached_tokens + server.prompt_tokens + max(server.generated_tokens - 1, 0)
    return (measured.prompt_tokens or 0) + max((measured.completion_tokens or 0) - 1, 0)


def _rate(count: int | None, seconds: float) -> float | None:
    return count / seconds if count and seconds > 1e-6 else None


def reread_from(before: Mapping[str, Any], after: Mapping[str, Any], cached_tokens: int, prompt_tokens: int) -> str:
    """Where in the request ``after`` the first token stands that was read again; ``before`` is the request before it.

    It is the first part that the two do not share. If they share all, the server has lost its cache: then it is the
    part at the share of tokens that were still cached.
    """
    old, new = _parts(before), _parts(after)
    for index, (was, now) in enumerate(zip(old, new, strict=False)):
        if not now.startswith(was.removesuffix(b"}").removesuffix(b'"')):
            return _name(index, after)
    ends = list(accumulate(map(len, new)))
    place = cached_tokens / prompt_tokens * ends[-1] if prompt_tokens else 0
    return _name(next((index for index, end in enumerate(ends) if end > place), len(ends) - 1), after)


def _parts(body: Mapping[str, Any]) -> list[bytes]:
    """The tools, which most templates put first, then each message."""
    return [json_line(body.get("tools") or []), *map(json_line, body.get("messages", ()))]


def _name(index: int, body: Mapping[str, Any]) -> str:
    messages: Sequence[Mapping[str, Any]] = body["messages"]
    if index == 0:
        return "the tools"
    message = messages[index - 1]
    match message["role"]:
        case "system":
            return "the system prompt"
        case "user" if index < len(messages) and messages[index].get("content") == UNDERSTOOD:
            return "AGENTS.md"
        case "user":
            content = message["content"] if isinstance(message["content"], str) else "an image"
            text = " ".join(content.split())
            excerpt = text if len(text) <= EXCERPT_CHARACTERS else f"{text[:EXCERPT_CHARACTERS]}..."
            return f'message {index}, "{excerpt}"'
        case "tool":
            return f"message {index}, a tool's output"
    return f"message {index}, an answer"
