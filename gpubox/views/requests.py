"""A request in words: what its row says, on the screen and in a verb."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpubox import units

if TYPE_CHECKING:
    from gpubox.telemetry.snapshot import Request


def request_words(request: Request) -> dict[str, str]:
    """Name of a column -> its text. ``prompt`` is ``41.2k+1.8k``: tokens from the cache, and tokens read."""
    acceptance = request.draft_acceptance
    return {
        "prompt": units.token_sum(request.prompt_tokens, request.cached_tokens, request.read_tokens),
        "out": units.tokens(request.generated_tokens),
        "TTFT": units.duration_at_least(request.ttft_seconds, request.slot_ttft_seconds),
        "pp": units.rate(request.pp_tokens_per_second),
        "tg": units.rate(request.tg_tokens_per_second),
        "draft": units.UNKNOWN if acceptance is None else f"{acceptance:.0%}",
        "took": units.duration(request.duration_seconds),
        "end": request.stop_reason or units.UNKNOWN,
    }
