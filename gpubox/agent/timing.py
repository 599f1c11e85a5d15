"""From the moments of one round to its Timing, whose parts sum to its wall time. Pure."""

from __future__ import annotations

from dataclasses import dataclass

import msgspec

from gpubox.agent.events import RoundTiming, TurnTotals
from gpubox.server.chunks import Timings


@dataclass(slots=True)
class RequestMeasurements:
    """Moments of one round by this clock, ``None`` where they never came; and what was counted."""

    began: float
    """The end of what came before: what lies between it and the request is the loop's own time."""
    asked: float
    reading: float | None = None
    """The server began to read the prompt (its first progress)."""
    first: float | None = None
    """The first generated piece."""
    ended: float | None = None
    thinking_seconds: float = 0.0
    """Between pieces of which the later one is thinking."""
    pieces: int = 0
    thinking_pieces: int = 0
    thought: Timings | None = None
    """The server's figures when the last piece of thinking came (``timings_per_token``)."""
    prompt_total: int | None = None
    prompt_cached: int | None = None
    server: Timings | None = None
    generated: int | None = None
    """``usage.completion_tokens``."""


def round_timing(
    marks: RequestMeasurements, now: float, *, server_cache_tokens: int, tool: float, approval: float
) -> RoundTiming:
    """The Timing of a round that ends ``now``.

    ``server_cache_tokens`` is what the server's cache held after the round before (prompt and answer); ``tool`` and
    ``approval`` are seconds of this round after the answer.
    """
    server = marks.server
    ended = marks.ended if marks.ended is not None else now
    asked = max(ended - marks.asked, 0.0)
    first = marks.first if marks.first is not None else ended
    if server:
        prompt, generation = server.prompt_seconds, server.generation_seconds
        read, cached, generated = server.prompt_tokens, server.cached_tokens, server.generated_tokens
    else:
        began = marks.reading if marks.reading is not None else marks.asked
        prompt, generation = max(first - began, 0.0), max(ended - first, 0.0)
        cached = marks.prompt_cached or 0
        read = max((marks.prompt_total or 0) - cached, 0)
        generated = marks.generated if marks.generated is not None else marks.pieces
    if prompt + generation > asked:  # clocks differ; a server's figures never exceed what was waited for
        scale = asked / (prompt + generation)
        prompt, generation = prompt * scale, generation * scale
    began = marks.reading if marks.reading is not None else (marks.asked if server is None else first - prompt)
    queue = min(max(began - marks.asked, 0.0), asked - prompt - generation)
    reread = min(max(server_cache_tokens - cached, 0), read)
    share = reread / read if read else 0.0
    span = max(ended - first, 1e-9)
    thinking = generation * min(marks.thinking_seconds / span, 1.0)
    if marks.thinking_pieces and marks.thinking_pieces == marks.pieces:
        thinking = generation
    elif marks.thought and server and server.generation_seconds:
        thinking = generation * min(marks.thought.generation_seconds / server.generation_seconds, 1.0)
    wall = max(now - marks.began, 0.0)
    named = queue + prompt + generation + tool + approval
    return RoundTiming(
        wall_seconds=wall,
        queue_seconds=queue,
        prefill_new_seconds=prompt * (1 - share),
        prefill_reprocessed_seconds=prompt * share,
        thinking_seconds=thinking,
        answer_seconds=generation - thinking,
        tool_seconds=tool,
        approval_seconds=approval,
        loop_seconds=max(wall - named, 0.0),
        prefill_new_tokens=read - reread,
        prefill_reprocessed_tokens=reread,
        cached_tokens=cached,
        generated_tokens=generated,
        thinking_tokens=marks.thought.generated_tokens if marks.thought else marks.thinking_pieces,
        tg_tokens_per_second=server.tg_tokens_per_second if server else _rate(generated, generation),
        pp_tokens_per_second=server.pp_tokens_per_second if server else _rate(read, prompt),
        draft_tokens=server.draft_tokens if server else None,
        draft_tokens_accepted=server.draft_tokens_accepted if server else None,
        from_server=server is not None,
    )


def cache_tokens_after(marks: RequestMeasurements) -> int:
    """Tokens the server's cache holds after this round: the prompt, and the answer but for its last token."""
    if marks.server:
        generated = max(marks.server.generated_tokens - 1, 0)
        return marks.server.cached_tokens + marks.server.prompt_tokens + generated
    return (marks.prompt_total or 0) + max((marks.generated or 0) - 1, 0)


def turn_totals(timings: list[RoundTiming], rounds: int, tools: int, failed: int) -> TurnTotals:
    """The sums of a turn. A rate is that of the sums; a count that no round knew stays unknown."""
    sums: dict[str, float | int | None] = {}
    for name in RoundTiming.__struct_fields__:
        known = [value for timing in timings if (value := getattr(timing, name)) is not None]
        sums[name] = sum(known) if known else None
    generation = sum(t.thinking_seconds + t.answer_seconds for t in timings)
    prefill = sum(t.prefill_new_seconds + t.prefill_reprocessed_seconds for t in timings)
    generated = sum(t.generated_tokens for t in timings)
    read = sum(t.prefill_new_tokens + t.prefill_reprocessed_tokens for t in timings)
    whole = msgspec.convert(
        {
            **{name: value if value is not None else 0 for name, value in sums.items() if name not in _OPTIONAL},
            **{name: sums[name] for name in _OPTIONAL if name in sums},
            "tg_tokens_per_second": _rate(generated, generation),
            "pp_tokens_per_second": _rate(read, prefill),
            "from_server": all(t.from_server for t in timings),
        },
        RoundTiming,
    )
    own = whole.wall_seconds - whole.approval_seconds
    return TurnTotals(rounds, whole, _rate(generated, own), tools, failed)


_OPTIONAL = ("thinking_tokens", "draft_tokens", "draft_tokens_accepted")


def _rate(count: int, seconds: float) -> float | None:
    return count / seconds if count and seconds > 1e-6 else None
