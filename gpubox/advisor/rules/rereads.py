"""Prompts that a hybrid or SWA model reads again because no checkpoint lies before the change."""

from __future__ import annotations

from gpubox import units
from gpubox.advisor.evidence import Evidence
from gpubox.advisor.rules.rule import Judgement, Rule
from gpubox.profiles.profile import FlagValue
from gpubox.telemetry.cache_miss import NO_CHECKPOINT

LEAST_MISSES = 2
LEAST_TOKENS = 2048
"""Fewer tokens are read again in a few seconds."""
DEFAULT_STEP, SMALL_STEP = 8192, 1024
"""``--checkpoint-min-step`` of build 11434 (common/arg.cpp), and the one to try: prompts of an agent grow by hundreds
of tokens, not by thousands."""
DEFAULT_CHECKPOINTS = 32


def _read(evidence: Evidence) -> Judgement | None:
    """The same conversation is read from its start again.

    Evidence: at least two of the last requests missed the cache because no checkpoint was there (the server's own line
    "forcing full prompt re-processing" on a model with recurrent states or a window), with the tokens and seconds that
    this cost. Source: ggml-org/llama.cpp#21831, #24055 (owners mend it with checkpoint-min-step and ctx-checkpoints).
    """
    missed = [request for request in evidence.requests if request.cache_miss == NO_CHECKPOINT]
    tokens = sum(request.prompt_tokens or 0 for request in missed)
    if len(missed) < LEAST_MISSES or tokens < LEAST_TOKENS:
        return None
    seconds = sum(request.prompt_seconds or 0.0 for request in missed)
    shown = [
        f"{len(missed)} of the last {len(evidence.requests)} requests: {units.tokens(tokens)} tokens"
        + (f", {units.duration(seconds)}" if seconds else "")
    ]
    changes: list[tuple[str, FlagValue | None]] = []
    count, step = (
        evidence.whole("ctx-checkpoints", DEFAULT_CHECKPOINTS),
        evidence.whole("checkpoint-min-step", DEFAULT_STEP),
    )
    if count < DEFAULT_CHECKPOINTS:
        changes.append(("ctx-checkpoints", None))
        shown.append(f"ctx-checkpoints {count} of the default {DEFAULT_CHECKPOINTS}")
    if step > SMALL_STEP:
        changes.append(("checkpoint-min-step", SMALL_STEP))
        shown.append(f"checkpoints are at least {units.tokens(step)} tokens apart")
    kept = evidence.snapshot.offload.checkpoints_bytes if evidence.snapshot else None
    if kept:
        shown.append(f"the checkpoints take {units.memory(kept)} of RAM now; closer ones take more")
    if not changes:
        return Judgement(
            "The model reads whole prompts again though checkpoints are close: the client changes the beginning of "
            "its prompt.",
            tuple(shown),
        )
    return Judgement(
        "The model reads whole prompts again because no checkpoint lies before the change; closer checkpoints help.",
        tuple(shown),
        tuple(changes),
    )


REREADS = Rule("re-reads", "re-reads", _read)
