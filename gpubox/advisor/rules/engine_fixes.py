"""Errors in the log that a newer build of llama.cpp no longer has.

The table holds only what two sources agree on: an issue with the error's text and the builds it was seen with, and the
change that mended it.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from gpubox.advisor.advice import Judgement, Rule
from gpubox.advisor.evidence import Evidence
from gpubox.telemetry.requests import NO_CHECKPOINT


@dataclass(frozen=True, slots=True)
class EngineFix:
    """One fault of the engine."""

    pattern: re.Pattern[str]
    """What the log of the failure says."""
    builds: range
    """The builds that have it, as far as the sources say."""
    what: str
    source: str


FIXES = (
    EngineFix(
        # d59d455 is build 10523 or later: 10522 works, 10525 fails; #27433 takes the change back.
        re.compile(r"illegal memory access.{0,400}ggml_backend_cuda_buffer_init_tensor", re.S),
        range(10523, 10526),
        "split-mode tensor writes beyond its memory in builds 10523 to 10525",
        "ggml-org/llama.cpp#27430, mended by #27433",
    ),
)
CHECKPOINT_FIX_BUILD = 9310
"""The first build that makes a checkpoint before the latest user message (release b9310, ggml-org/llama.cpp#22929)."""


def _read(evidence: Evidence) -> Judgement | None:
    """The log of a failure names an error that later builds do not have.

    Evidence: the text of the log, and the engine's build number. Silent for an engine that does not know its number.
    """
    build = evidence.log.build
    if not build:
        return None
    for fix in FIXES:
        if build in fix.builds and fix.pattern.search(evidence.log.failure):
            return Judgement(
                f"The engine is build {build}, and its error is mended in later ones: {fix.what}.",
                (f"the log of the last failure; {fix.source}", "`gpubox engines build` makes a newer one"),
            )
    missed = sum(request.cache_miss == NO_CHECKPOINT for request in evidence.requests)
    if missed >= 2 and build < CHECKPOINT_FIX_BUILD:
        return Judgement(
            f"The engine is build {build}: from {CHECKPOINT_FIX_BUILD} on it keeps a checkpoint before the last user "
            "message, so that prompts are not read again.",
            (
                f"{missed} of the last {len(evidence.requests)} requests were read again for want of a checkpoint",
                "ggml-org/llama.cpp#22929; `gpubox engines build` makes a newer one",
            ),
        )
    return None


ENGINE_FIXES = Rule("engine", "engine", _read)
