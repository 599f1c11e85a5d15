"""Speculative decoding: drafts that are rejected too often to pay, and thinking beside MTP."""

from __future__ import annotations

from gpubox.advisor.advice import Judgement, Rule
from gpubox.advisor.evidence import Evidence
from gpubox.profiles.profile import FlagValue
from gpubox.telemetry.snapshot import Request

LEAST_ACCEPTANCE = 0.35
"""Below it drafts cost more than they save: ggml-org/llama.cpp#24508 measured 23.5 tok/s at 34 % (spec-draft-n-max 3)
against 26.7 without drafts, and 29.6 at 54 % (spec-draft-n-max 2)."""
THINKING_ACCEPTANCE = 0.5
"""An article measured 86.6 % with thinking off and about 40 % with thinking on, for the same MTP head."""
LEAST_REQUESTS, LEAST_DRAFT_TOKENS = 5, 500
"""At 500 tokens the acceptance is known to about 4 points (two standard errors of a share of one half)."""


def acceptance(requests: tuple[Request, ...]) -> tuple[float, int, int] | None:
    """Accepted over drafted tokens, drafted tokens, and requests; None: too few to judge."""
    drafted = [request for request in requests if request.draft_tokens and request.draft_tokens_accepted is not None]
    total = sum(request.draft_tokens or 0 for request in drafted)
    if len(drafted) < LEAST_REQUESTS or total < LEAST_DRAFT_TOKENS:
        return None
    return sum(request.draft_tokens_accepted or 0 for request in drafted) / total, total, len(drafted)


def _read_thinking(evidence: Evidence) -> Judgement | None:
    """An MTP head that was trained on answers without thinking drafts badly for thinking.

    Evidence: spec-type draft-mtp, a chat template that can think, thinking not switched off, and acceptance below 50 %
    over at least 500 draft tokens. Source: an article on Qwen3.6 with MTP, see THINKING_ACCEPTANCE.
    """
    flags, model, measured = evidence.memory_flags, evidence.model, acceptance(evidence.requests)
    if flags is None or not flags.mtp or model is None or not model.thinks or evidence.thinking_off:
        return None
    if measured is None or measured[0] >= THINKING_ACCEPTANCE:
        return None
    share, total, count = measured
    return Judgement(
        f"The model may think, and its MTP head drafts badly for thinking: {share:.0%} of the drafts are accepted.",
        (
            f"{share:.1%} of {total:,} draft tokens in {count} requests",
            "an article measured 87 % without thinking and about 40 % with it, for the same head",
        ),
        (("reasoning", "off"),),
    )


def _read_acceptance(evidence: Evidence) -> Judgement | None:
    """Drafts are rejected so often that they cost more than they save.

    Evidence: acceptance below 35 % over at least 5 requests and 500 draft tokens. Silent if thinking explains it.
    Source: see LEAST_ACCEPTANCE. What it costs on this box is not known before *Try* measures it.
    """
    flags, measured = evidence.memory_flags, acceptance(evidence.requests)
    if flags is None or measured is None or measured[0] >= LEAST_ACCEPTANCE or _read_thinking(evidence):
        return None
    share, total, count = measured
    window = flags.draft_tokens
    changes: tuple[tuple[str, FlagValue | None], ...] = (("spec-type", None),)
    remedy = "none may be faster"
    if flags.rollback_tokens > 1 or (flags.draft is not None and window > 1):
        changes, remedy = (("spec-draft-n-max", max(1, window // 2)),), "shorter drafts may be faster"
    lengths = [r.mean_accepted_length for r in evidence.requests if r.mean_accepted_length is not None]
    shown = [f"{share:.1%} of {total:,} draft tokens in {count} requests; up to {window} tokens a draft"]
    if lengths:
        shown.append(f"{sum(lengths) / len(lengths):.2f} tokens a step on average")
    shown.append("34 % cost 12 % of tg where it was measured, 54 % gained 11 % (ggml-org/llama.cpp#24508)")
    return Judgement(f"Only {share:.0%} of the draft tokens are accepted: {remedy}.", tuple(shown), changes)


THINKING = Rule("thinking-mtp", "thinking", _read_thinking)
ACCEPTANCE = Rule("drafts", "drafts", _read_acceptance)
