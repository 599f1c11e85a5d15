"""A context far larger than what is used of it."""

from __future__ import annotations

from gpubox import units
from gpubox.advisor.advice import Judgement, Rule
from gpubox.advisor.evidence import ContextUse, Evidence
from gpubox.planner.launch_flags import LaunchFlags
from gpubox.profiles.profile import FlagValue

LEAST_REQUESTS = 50
"""With fewer requests the largest is no measure of the next: if n requests are alike, the next is larger than all of
them with a chance of 1 in n + 1."""
LARGEST_SHARE = 0.25
"""The largest request may use up to this share of a slot's context."""
HEADROOM = 2
"""The suggested context holds this many times the largest request."""
STEP, LEAST_SLOT = 1024, 4096
LEAST_FREED_BYTES = 256 * units.MIB
"""What the planner keeps free on a card anyway."""


def wanted_context(flags: LaunchFlags, use: ContextUse, slot_tokens: int, cells: int) -> int | None:
    """The ctx-size that would do, in tokens of all slots; None: the present one (``cells``) is not far too large.

    Slots that share one cache need it only for as many requests as there were slots in use.
    """
    if use.requests < LEAST_REQUESTS or use.largest_tokens > LARGEST_SHARE * slot_tokens:
        return None
    slot = max(LEAST_SLOT, -(-use.largest_tokens * HEADROOM // STEP) * STEP)
    wanted = slot * (use.slots if flags.unified else flags.slots)
    return wanted if wanted <= cells / HEADROOM else None


def _read(evidence: Evidence) -> Judgement | None:
    """Memory is reserved for tokens that never came.

    Evidence: the largest of at least 50 requests against the context of a slot; and what the planner says a smaller one
    frees (drawn ``~``), at least 256 MiB. Source: the size formulas of llama.cpp's KV cache (src/llama-kv-cache.cpp).
    """
    use, saving = evidence.context_use, evidence.saving
    size = evidence.snapshot.throughput.context_size_tokens if evidence.snapshot else None
    if use is None or saving is None or size is None or saving.freed_bytes < LEAST_FREED_BYTES:
        return None
    changes: list[tuple[str, FlagValue | None]] = [("ctx-size", saving.context_tokens)]
    gain = f"ctx-size {saving.context_tokens} frees ~{units.memory(saving.freed_bytes)} on {saving.device}"
    if saving.expert_layers:
        now, then = saving.expert_layers
        changes.append(("n-cpu-moe", then))
        gain += f": room for the experts of {now - then} more layers"
    return Judgement(
        f"The largest of {use.requests:,} requests used {use.largest_tokens:,} of {size:,} tokens; {gain}.",
        (
            f"requests of {use.source}",
            f"{saving.context_tokens:,} tokens hold at least {HEADROOM} times the largest request"
            + (f" in each of {use.slots} slots" if use.slots > 1 else ""),
        ),
        tuple(changes),
    )


CONTEXT = Rule("context", "context", _read)
