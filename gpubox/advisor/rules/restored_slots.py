"""Slots whose restored states are cleared by the next task."""

from __future__ import annotations

from gpubox.advisor.advice import Judgement, Rule
from gpubox.advisor.evidence import Evidence


def _read(evidence: Evidence) -> Judgement | None:
    """parallel auto shares one KV cache, and a new task clears the idle slots in it, the restored ones too.

    Evidence: several states were restored at the start, parallel is not set (or KV is unified), and cache-idle-slots is
    on, with a prompt cache in RAM to take them. Source: measured with build 11434: four restored slots, 0 of 1,515
    tokens reused with unified KV, all 1,515 with ``parallel 4``; ggml-org/llama.cpp#20993.
    """
    flags = evidence.memory_flags
    if flags is None or evidence.restored_slots < 2 or not flags.unified:
        return None
    if evidence.flag("cache-idle-slots") is False or evidence.whole("cache-ram", 1) == 0:
        return None
    reused = sum(1 for request in evidence.requests if request.restored_tokens)
    if reused >= evidence.restored_slots:
        return None
    auto = "parallel is not set: 4 slots share one KV cache" if "parallel" not in evidence.flags else "KV is unified"
    return Judgement(
        f"{evidence.restored_slots} slots were restored, but the first request clears the idle ones among them.",
        (
            auto,
            f"{reused} of {evidence.restored_slots} restored states were reused by {len(evidence.requests)} requests",
            f"a slot of its own for each client takes ctx-size / {flags.slots} tokens each; "
            "no-cache-idle-slots keeps the shared cache",
        ),
        (("cache-idle-slots", False),),
    )


SLOTS = Rule("slots", "slots", _read)
