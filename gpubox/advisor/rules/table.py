"""All rules, the most urgent first."""

from __future__ import annotations

from gpubox.advisor.advice import Advice, judge
from gpubox.advisor.evidence import Evidence
from gpubox.advisor.rules.context import CONTEXT
from gpubox.advisor.rules.drafts import ACCEPTANCE, THINKING
from gpubox.advisor.rules.engine_fixes import ENGINE_FIXES
from gpubox.advisor.rules.exposure import EXPOSURE
from gpubox.advisor.rules.kv_types import CPU_ATTENTION, HALF_PRECISION
from gpubox.advisor.rules.machine import OTHER_PROGRAMS, PCIE, THREADS
from gpubox.advisor.rules.mapped_weights import MAPPED_WEIGHTS
from gpubox.advisor.rules.rereads import REREADS
from gpubox.advisor.rules.restored_slots import SLOTS

RULES = (
    EXPOSURE, ENGINE_FIXES, CPU_ATTENTION, MAPPED_WEIGHTS, REREADS, PCIE, OTHER_PROGRAMS, THREADS, SLOTS, THINKING,
    ACCEPTANCE, CONTEXT, HALF_PRECISION,
)  # fmt: skip


def advise(evidence: Evidence) -> tuple[Advice, ...]:
    """What the rules say, the most urgent first. Pure and cheap."""
    judged = (judge(rule, evidence) for rule in RULES)
    return tuple(advice for advice in judged if advice)
