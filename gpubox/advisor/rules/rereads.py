"""Prompts that a hybrid or SWA model reads again because no checkpoint lies before the change."""

from __future__ import annotations

from gpubox import units
from gpubox.advisor.advice import Judgement, Rule
from gpubox.advisor.evidence import Evidence
from gpubox.profiles.profile import FlagValue
from gpubox.telemetry.requests import MIN_REUSED, NO_CHECKPOINT
from gpubox.telemetry.snapshot import Request

LEAST_REQUESTS, LEAST_EACH = 2, 256
LEAST_TOKENS = 2048
"""Fewer tokens are read again in a few seconds."""
DEFAULT_STEP, SMALL_STEP = 8192, 1024
"""``--checkpoint-min-step`` of build 11434 (common/arg.cpp), and the one to try: checkpoints are made at user messages
that are so many tokens apart, and the messages of an agent have hundreds of tokens."""
DEFAULT_CHECKPOINTS = 32


def lost_tokens(request: Request) -> int:
    """Tokens that the server could have reused if it had kept a checkpoint before the change."""
    if request.reread_tokens is not None:
        return request.reread_tokens
    return (request.prompt_tokens or 0) if request.cache_miss == NO_CHECKPOINT else 0


def _read(evidence: Evidence) -> Judgement | None:
    """What a slot holds is read again because the state before the change was not kept.

    Evidence: at least two of the last requests for which the slot held more tokens than were reused (the similarity of
    the server's own line "selected slot by LCP similarity"), or that it processed whole ("forcing full prompt
    re-processing"), on a model with recurrent states or a window. Source: tools/server/server-context.cpp of build
    11434 makes checkpoints at user messages that are checkpoint-min-step apart; measured there with four chats that
    differ in their third user message: 1,639 of 2,707 tokens reused with 256, and 582 with the default.
    """
    lost = [(request, tokens) for request in evidence.requests if (tokens := lost_tokens(request)) >= LEAST_EACH]
    total = sum(tokens for _, tokens in lost)
    if len(lost) < LEAST_REQUESTS or total < LEAST_TOKENS:
        return None
    seconds = sum(tokens / pp for request, tokens in lost if (pp := request.pp_tokens_per_second))
    shown = [
        f"{len(lost)} of the last {len(evidence.requests)} requests: ~{units.tokens(total)} tokens that a slot held"
        + (f", ~{units.duration(seconds)}" if seconds else "")
    ]
    kept = evidence.snapshot.offload.checkpoints_bytes if evidence.snapshot else None
    if kept:
        shown.append(f"the checkpoints take {units.memory(kept)} of RAM now; more of them take more")
    count, step = (
        evidence.whole("ctx-checkpoints", DEFAULT_CHECKPOINTS),
        evidence.whole("checkpoint-min-step", DEFAULT_STEP),
    )
    partly = [1 for request, _ in lost if (request.cached_tokens or 0) > MIN_REUSED * (request.prompt_tokens or 1)]
    model, flags = evidence.model, evidence.memory_flags
    if count < DEFAULT_CHECKPOINTS:
        shown.append(f"ctx-checkpoints {count} of the default {DEFAULT_CHECKPOINTS}")
        return _judged("more checkpoints keep them", shown, (("ctx-checkpoints", None),))
    if partly and step > SMALL_STEP:
        shown.append(f"checkpoints are at user messages at least {units.tokens(step)} tokens apart")
        return _judged("closer checkpoints keep more of them", shown, (("checkpoint-min-step", SMALL_STEP),))
    if model and model.windowed and not model.hybrid and flags and not flags.swa_full:
        shown.append("swa-full keeps all tokens of the windowed layers: it takes more VRAM")
        return _judged("swa-full keeps them", shown, (("swa-full", True),))
    shown.append("before the first user message, and in /completion, the server keeps no checkpoint")
    return _judged("the client changes the beginning of its prompts", shown, ())


def _judged(why: str, shown: list[str], changes: tuple[tuple[str, FlagValue | None], ...]) -> Judgement:
    sentence = f"The model reads tokens again that a slot held, for want of a checkpoint before the change; {why}."
    return Judgement(sentence, tuple(shown), changes)


REREADS = Rule("re-reads", "re-reads", _read)
